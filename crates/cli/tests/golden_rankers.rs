//! Every family of classifiers through the real binary: `serve` ranks, scores and labels as the
//! reference implementation does.
//!
//! Encoders are compared with their reference logits. A decoder of any family becomes a classifier
//! by a matrix after its last row; the labels must be that matrix times the vector which the same
//! decoder makes of the same tokens.

use std::collections::BTreeMap;
use std::path::Path;

use crate::common::server::Server;
use pelton_model::{ARCHS, ENCODERS, KvDtype, ModelFiles, inspect};
use pelton_tensor::{DType, Safetensors, TensorSource, TensorView, write_safetensors};
use pelton_testkit::TinyEncoder;
use pelton_testkit::golden::{GoldenDecoder, GoldenPair, GoldenRanker, decoders, rankers};
use serde_json::{Value, json};

/// Largest difference to the reference.
const BOUND: f64 = 2e-4;
/// Arithmetic of the reference, in the same order on every machine.
const EXACT: [&str; 4] = ["--compute", "f32", "--threads", "1"];
/// Ends of the names of decoders, in whose place classifiers have another.
const STEM_ENDS: [&str; 2] = ["ForCausalLM", "LMHeadModel"];
/// Tokens of a prompt that fit into the context that every golden decoder declares.
const MOST_TOKENS: usize = 24;
/// Labels of a decoder that becomes a classifier.
const N_LABELS: usize = 3;

type Check = Result<(), String>;

fn serve(path: &Path, flags: &[&str]) -> Result<Server, String> {
    let path = path.to_str().expect("a path of this test is UTF-8");
    Server::start(&[&["-m", path], &EXACT[..], flags].concat())
}

fn numbers(list: &Value) -> Vec<f64> {
    list.as_array().into_iter().flatten().map(|x| x.as_f64().unwrap_or(f64::NAN)).collect()
}

fn near(what: &str, got: &[f64], expected: &[f64]) -> Check {
    let worst = got.iter().zip(expected).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
    // The comparison is false for NaN.
    match got.len() == expected.len() && worst < BOUND {
        true => Ok(()),
        false => Err(format!("{what}: {got:?}, expected {expected:?}")),
    }
}

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

/// Lists the models that fail.
fn none(failed: &[String]) {
    assert!(failed.is_empty(), "{} failed:\n{}", failed.len(), failed.join("\n"));
}

/// The score of one pair by a route, in the field of its dialect.
fn scored(server: &Server, path: &str, pair: &GoldenPair, more: &Value) -> Result<f64, String> {
    let (is_score, most) = (path.ends_with("score"), &more["most"]);
    let mut body = match is_score {
        true => json!({"text_1": pair.a, "text_2": pair.b}),
        false => json!({"query": pair.a, "documents": [pair.b]}),
    };
    body["truncate_prompt_tokens"] = most.clone();
    body["use_activation"] = more["use_activation"].clone();
    let answer = server.post(path, &body)?;
    if answer["usage"]["prompt_tokens"] != pair.ids.len() {
        return Err(format!("{path}: {} of {} tokens", answer["usage"], pair.ids.len()));
    }
    let score = match is_score {
        true => &answer["data"][0]["score"],
        false => &answer["results"][0]["relevance_score"],
    };
    score.as_f64().ok_or_else(|| format!("{path}: {answer}"))
}

/// Compares the scores of a model of one label, under every name of each route.
fn ranks(golden: &GoldenRanker, server: &Server) -> Check {
    let most = json!(golden.max_tokens);
    for (i, pair) in golden.pairs.iter().enumerate() {
        let logit = f64::from(pair.logits[0]);
        let expected = pair.score.unwrap_or(sigmoid(logit));
        let plain = json!({"most": most});
        let first = scored(server, "/v1/rerank", pair, &plain)?;
        near(&format!("pair {i}"), &[first], &[expected])?;
        for path in ["/rerank", "/v2/rerank", "/v1/score", "/score"] {
            let other = scored(server, path, pair, &plain)?;
            if other.to_bits() != first.to_bits() {
                return Err(format!("{path}: {other} instead of {first}"));
            }
        }
        let raw = json!({"most": most, "use_activation": false});
        near(&format!("logit {i}"), &[scored(server, "/v1/score", pair, &raw)?], &[logit])?;
    }
    // The order of several documents is that of their scores.
    let query = &golden.pairs[0].a;
    let documents: Vec<&String> = golden.pairs.iter().map(|pair| &pair.b).collect();
    let body = json!({"query": query, "documents": documents, "truncate": true});
    let answer = server.post("/v1/rerank", &body)?;
    let results = answer["results"].as_array().ok_or("no results")?;
    let scores: Vec<f64> =
        results.iter().filter_map(|result| result["relevance_score"].as_f64()).collect();
    let is_sorted = scores.windows(2).all(|pair| pair[0] >= pair[1]);
    if is_sorted && scores.len() == documents.len() { Ok(()) } else { Err(answer.to_string()) }
}

/// Compares the labels that a model gives to tokens; `expected` has the numbers of each text.
fn labels(server: &Server, ids: &[Vec<u32>], expected: &[Vec<f64>]) -> Check {
    let answer = server.post("/v1/classify", &json!({ "input": ids }))?;
    let other = server.post("/classify", &json!({ "input": ids }))?;
    for (i, expected) in expected.iter().enumerate() {
        let item = &answer["data"][i];
        near(&format!("labels of text {i}"), &numbers(&item["probs"]), expected)?;
        let best = (0..expected.len()).max_by(|a, b| expected[*a].total_cmp(&expected[*b]));
        let best = format!("LABEL_{}", best.ok_or("no labels")?);
        let is_same = item["label"] == best.as_str() && item["num_classes"] == expected.len();
        if !is_same || other["data"][i] != *item {
            return Err(format!("{item}, expected {best}; /classify: {}", other["data"][i]));
        }
    }
    Ok(())
}

fn is_ranked(golden: &GoldenRanker, path: &Path) -> Check {
    let server = serve(path, &[])?;
    let route = if golden.n_labels() == 1 { "POST /v1/rerank" } else { "POST /v1/classify" };
    let refused = server.post("/v1/completions", &json!({"prompt": "w1"}));
    if !refused.as_ref().is_err_and(|error| error.contains(route)) {
        return Err(format!("no `{route}` in {refused:?}"));
    }
    if golden.n_labels() == 1 {
        return ranks(golden, &server);
    }
    let error = server.post("/v1/rerank", &json!({"query": "w1", "documents": ["w2"]}));
    if !error.as_ref().is_err_and(|error| error.contains("labels")) {
        return Err(format!("it ranks: {error:?}"));
    }
    // Kinds of tokens cannot be sent beside ids.
    let has_kinds = golden.pairs.iter().any(|pair| pair.types.contains(&1));
    let pairs: Vec<&GoldenPair> = golden.pairs.iter().collect();
    let ids: Vec<Vec<u32>> = pairs.iter().map(|pair| pair.ids.clone()).collect();
    if !has_kinds {
        let of_logits = |pair: &&GoldenPair| -> Vec<f64> {
            pair.logits.iter().map(|logit| sigmoid(f64::from(*logit))).collect()
        };
        return labels(&server, &ids, &pairs.iter().map(of_logits).collect::<Vec<_>>());
    }
    let answer = server.post("/v1/classify", &json!({"input": pairs[0].a}))?;
    let probs = numbers(&answer["data"][0]["probs"]);
    near("the sum of the labels", &[probs.iter().sum()], &[1.0])
}

#[test]
fn every_golden_classifier_ranks_and_labels_as_the_reference_does() {
    let mut failed = Vec::new();
    for golden in rankers() {
        let temp = tempfile::tempdir().expect("a folder");
        let (folder, file) = (temp.path().join("model"), temp.path().join("model.gguf"));
        golden.write_folder(&folder);
        if golden.has_gguf() {
            golden.write_gguf(&file);
        }
        for path in [&folder, &file].into_iter().filter(|path| path.exists()) {
            if let Err(error) = is_ranked(&golden, path) {
                failed.push(format!("{} {}: {error}", path.display(), golden.checkpoint.name()));
            }
        }
    }
    none(&failed);
}

/// Writes a decoder as a classifier; returns the matrix after its last row.
fn write_classifier(golden: &GoldenDecoder, folder: &Path, n: usize) -> Vec<f32> {
    golden.checkpoint.write_folder(folder);
    let file = folder.join("config.json");
    let text = std::fs::read(&file).expect("config.json");
    let mut config: Value = serde_json::from_slice(&text).expect("JSON");
    let name = config["architectures"][0].as_str().expect("a name").to_owned();
    let stem = STEM_ENDS.iter().find_map(|end| name.strip_suffix(end));
    let name = format!("{}ForSequenceClassification", stem.unwrap_or(&name));
    config["architectures"] = json!([name]);
    let of_labels = (0..N_LABELS).map(|i| (i.to_string(), json!(format!("LABEL_{i}"))));
    config["id2label"] = Value::Object(of_labels.collect());
    // The numbers as they are.
    config["problem_type"] = json!("regression");
    std::fs::write(&file, config.to_string()).expect("written");
    // Any matrix of numbers that are not all alike.
    let score: Vec<f32> =
        (0..N_LABELS * n).map(|i| ((i * 37 % 101) as f32 - 50.0) / 100.0).collect();
    let bytes: Vec<u8> = score.iter().flat_map(|x| x.to_le_bytes()).collect();
    let weights = Safetensors::open_folder(folder).expect("weights");
    let mut tensors: Vec<TensorView<'_>> =
        weights.names().into_iter().map(|name| weights.get(name).expect("a tensor")).collect();
    let shape = [N_LABELS, n];
    let (name, dtype) = ("score.weight", DType::F32);
    tensors.push(TensorView { name, dtype, shape: &shape, data: &bytes });
    let written = folder.join("written");
    write_safetensors(&written, &tensors, &BTreeMap::new()).expect("written");
    std::fs::rename(written, folder.join("model.safetensors")).expect("renamed");
    score
}

/// Whether a decoder with a matrix after its last row gives the labels of its vectors.
fn is_labelled(golden: &GoldenDecoder, temp: &Path) -> Check {
    let (plain, folder) = (temp.join("plain"), temp.join("classifier"));
    golden.checkpoint.write_folder(&plain);
    let whole: Vec<u32> = golden.prompt.iter().take(MOST_TOKENS).map(|token| token.0).collect();
    let ids = vec![whole.clone(), whole[..whole.len() / 2].to_vec()];
    let as_rows = ["--embeddings", "--pooling", "lasttoken", "--normalize", "false"];
    let server = serve(&plain, &as_rows)?;
    let answer = server.post("/v1/embeddings", &json!({ "input": ids }))?;
    let rows: Vec<Vec<f64>> =
        (0..ids.len()).map(|i| numbers(&answer["data"][i]["embedding"])).collect();
    drop(server);
    let score = write_classifier(golden, &folder, rows[0].len());
    let label = |row: &Vec<f64>| -> Vec<f64> {
        let dot = |w: &[f32]| w.iter().zip(row).map(|(w, x)| f64::from(*w) * x).sum();
        score.chunks_exact(row.len()).map(dot).collect()
    };
    let expected: Vec<Vec<f64>> = rows.iter().map(label).collect();
    let server = serve(&folder, &[])?;
    labels(&server, &ids, &expected)
}

/// Whether the model has recurrent layers, which give no vectors.
fn keeps_states(golden: &GoldenDecoder, temp: &Path) -> bool {
    let folder = temp.join("facts");
    golden.checkpoint.write_folder(&folder);
    let files = ModelFiles::open(&folder).expect("a model");
    inspect(&files, KvDtype::Bf16).expect("facts").n_recurrent_layers > 0
}

#[test]
fn a_decoder_of_every_family_labels_by_the_matrix_after_its_last_row() {
    let mut failed = Vec::new();
    let mut n_tried = 0;
    for golden in decoders() {
        let temp = tempfile::tempdir().expect("a folder");
        // Models of pictures and text, of which there are no classifiers; other ones are their text alone.
        if ["gemma3n", "gemma4", "llama4-scout"].contains(&golden.checkpoint.name()) {
            continue;
        }
        n_tried += 1;
        let outcome = match keeps_states(&golden, temp.path()) {
            false => is_labelled(&golden, temp.path()),
            true => match is_labelled(&golden, temp.path()) {
                Err(error) if error.contains("a model of attention alone") => Ok(()),
                outcome => Err(format!("{outcome:?} in place of a refusal")),
            },
        };
        if let Err(error) = outcome {
            failed.push(format!("{}: {error}", golden.checkpoint.name()));
        }
    }
    assert!(n_tried > ARCHS.len(), "{n_tried}");
    none(&failed);
}

#[test]
fn every_encoder_that_can_have_a_classifier_is_among_the_golden_ones() {
    let temp = tempfile::tempdir().expect("a folder");
    let golden: Vec<_> = rankers()
        .iter()
        .map(|golden| {
            let folder = temp.path().join(golden.checkpoint.name());
            golden.write_folder(&folder);
            ModelFiles::open(&folder).expect("a model").arch().names
        })
        .collect();
    for arch in ENCODERS {
        // Its checkpoints have no classifiers.
        let has_none = arch.names == ["NomicBertModel"];
        assert!(has_none || golden.contains(&arch.names), "no classifier of {:?}", arch.names);
    }
    assert!(golden.iter().any(|names| ARCHS.iter().any(|arch| arch.names == *names)));
}

#[test]
fn a_model_of_vectors_ranks_by_cosine() {
    let folder = tempfile::tempdir().expect("a folder");
    TinyEncoder::default().write_folder(folder.path());
    let server = serve(folder.path(), &[]).expect("it listens");
    let body = json!({"query": "cat", "documents": ["dog", "query: cat", "cow"]});
    for path in ["/v1/rerank", "/rerank", "/v2/rerank"] {
        let answer = server.post(path, &body).expect("ranked");
        assert_eq!(answer["results"][0]["index"], 1, "the text that the prompt makes: {answer}");
    }
    let score = json!({"text_1": "cat", "text_2": ["query: cat"]});
    for path in ["/v1/score", "/score"] {
        let answer = server.post(path, &score).expect("scored");
        near(path, &[answer["data"][0]["score"].as_f64().expect("a number")], &[1.0]).expect("one");
    }
    let error = server.post("/classify", &json!({"input": "cat"})).expect_err("no labels");
    assert!(error.starts_with("HTTP/1.1 400") && error.contains("no labels"), "{error}");
}
