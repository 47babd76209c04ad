//! Scores of pairs and labels of texts, against those of the reference.

use std::sync::{Arc, mpsc};

use crate::common::one_thread;
use pelton_llm::{
    Cut, EmbedInput, EmbedOptions, EmbedRequest, Embedder, LlmError, ModelRef, ScoreRequest, cosine,
};
use pelton_model::Compute;
use pelton_testkit::TinyEncoder;
use pelton_testkit::golden::{GoldenRanker, ranker_named, rankers};

fn open(folder: &tempfile::TempDir, options: EmbedOptions) -> Result<Arc<Embedder>, LlmError> {
    let model = ModelRef::parse(folder.path().to_str().expect("UTF-8")).expect("a folder");
    Embedder::load(&one_thread(), &model, &options, &mut |_| {})
}

fn load(golden: &GoldenRanker) -> (tempfile::TempDir, Arc<Embedder>) {
    let folder = tempfile::tempdir().expect("a folder");
    golden.write_folder(folder.path());
    let options = EmbedOptions { compute: Compute::F32, ..EmbedOptions::default() };
    let name = golden.checkpoint.name();
    let embedder = open(&folder, options).unwrap_or_else(|error| panic!("{name}: {error}"));
    (folder, embedder)
}

fn request(queries: &[&str], documents: &[&str]) -> ScoreRequest {
    let owned = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect();
    ScoreRequest {
        queries: owned(queries),
        documents: owned(documents),
        names: ["query", "documents"],
        ..ScoreRequest::default()
    }
}

/// All pairs of a fixture in one request, cut as the reference cuts them.
fn whole(golden: &GoldenRanker) -> ScoreRequest {
    let side = |text: fn(&pelton_testkit::golden::GoldenPair) -> &String| -> Vec<String> {
        golden.pairs.iter().map(|pair| text(pair).clone()).collect()
    };
    ScoreRequest {
        queries: side(|pair| &pair.a),
        documents: side(|pair| &pair.b),
        cut: Cut { pair_tokens: Some(golden.max_tokens), document_tokens: None },
        ..request(&[], &[])
    }
}

#[test]
fn pairs_are_encoded_as_the_reference_encodes_them() {
    for golden in rankers() {
        let (_folder, embedder) = load(&golden);
        let tokenizer = embedder.tokenizer();
        let frame = tokenizer.pair_frame().expect("a frame");
        for pair in &golden.pairs {
            let tokens = |text: &str| tokenizer.encode(text, false).expect("words");
            let (a, b) = (tokens(&pair.a), tokens(&pair.b));
            let (n, m) = frame.lengths_within(a.len(), b.len(), golden.max_tokens);
            let got = frame.join(&a[..n], &b[..m]);
            let ids: Vec<u32> = got.tokens.iter().map(|token| token.0).collect();
            assert_eq!(ids, pair.ids, "{}: {}", golden.checkpoint.name(), pair.b);
            // A model without kinds of tokens does not read them, nor does its reference give any.
            if pair.types.contains(&1) {
                assert_eq!(got.kinds, pair.types, "{}: {}", golden.checkpoint.name(), pair.b);
            }
        }
    }
}

#[test]
fn scores_are_those_of_the_reference() {
    for golden in rankers().iter().filter(|golden| golden.n_labels() == 1) {
        let (_folder, embedder) = load(golden);
        let name = golden.checkpoint.name();
        let got = embedder.score(&whole(golden)).expect(name);
        let raw = ScoreRequest { activation: Some(false), ..whole(golden) };
        let raw = embedder.score(&raw).expect(name);
        let n_tokens: usize = golden.pairs.iter().map(|pair| pair.ids.len()).sum();
        assert_eq!(got.n_tokens, n_tokens, "{name}");
        for (i, pair) in golden.pairs.iter().enumerate() {
            let logit = f64::from(pair.logits[0]);
            assert!((raw.scores[i] - logit).abs() < 2e-4, "{name} {i}: {} {logit}", raw.scores[i]);
            let sigmoid = 1.0 / (1.0 + (-logit).exp());
            let expected = pair.score.unwrap_or(sigmoid);
            assert!((got.scores[i] - expected).abs() < 2e-4, "{name} {i}: {expected}");
        }
    }
}

#[test]
fn a_gguf_file_has_the_scores_of_its_folder() {
    let with_files: Vec<GoldenRanker> =
        rankers().into_iter().filter(GoldenRanker::has_gguf).collect();
    assert!(!with_files.is_empty());
    for golden in &with_files {
        let name = golden.checkpoint.name();
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("model.gguf");
        golden.write_gguf(&file);
        let options = EmbedOptions { compute: Compute::F32, ..EmbedOptions::default() };
        let model = ModelRef::parse(file.to_str().expect("UTF-8")).expect("a file");
        let embedder = Embedder::load(&one_thread(), &model, &options, &mut |_| {}).expect(name);
        let got = embedder.score(&whole(golden)).expect(name);
        for (i, pair) in golden.pairs.iter().enumerate() {
            let expected = pair.score.expect("of the reference");
            assert!((got.scores[i] - expected).abs() < 2e-4, "{name} {i}: {}", got.scores[i]);
        }
    }
}

#[test]
fn every_family_of_classifiers_has_a_fixture() {
    let names: Vec<String> = rankers()
        .iter()
        .map(|golden| {
            let (_folder, embedder) = load(golden);
            embedder.info().architecture.clone()
        })
        .collect();
    for family in ["Bert", "Roberta", "XLMRoberta", "DistilBert", "ModernBert", "Qwen2", "Llama"] {
        let name = format!("{family}ForSequenceClassification");
        assert!(names.contains(&name), "{name}: {names:?}");
    }
}

#[test]
fn a_pair_has_the_same_score_alone_and_in_a_crowd() {
    let golden = ranker_named("bert");
    let (_folder, embedder) = load(&golden);
    let documents: Vec<String> = (0..200).map(|i| "w7 ".repeat(i % 19 + 1) + "w9").collect();
    let texts: Vec<&str> = documents.iter().map(String::as_str).collect();
    let together = embedder.score(&request(&["w1 w2"], &texts)).expect("scored");
    assert!(embedder.metrics().n_steps > 1);
    for i in (0..200).step_by(41) {
        let alone = embedder.score(&request(&["w1 w2"], &[texts[i]])).expect("scored");
        assert_eq!(alone.scores[0].to_bits(), together.scores[i].to_bits(), "{i}");
    }
}

#[test]
fn a_model_of_vectors_scores_by_cosine_after_the_prompt_of_queries() {
    let folder = tempfile::tempdir().expect("a folder");
    TinyEncoder::default().write_folder(folder.path());
    let embedder = open(&folder, EmbedOptions::default()).expect("loads");
    let scores = embedder.score(&request(&["cat"], &["dog", "cow"])).expect("scored").scores;
    let vectors = |text: &str, prompt: Option<&str>| {
        let inputs = vec![EmbedInput::Text(text.to_owned())];
        let prompt_name = prompt.map(str::to_owned);
        let request = EmbedRequest { inputs, prompt_name, ..EmbedRequest::default() };
        embedder.embed(request).expect("embedded").vectors.remove(0)
    };
    let query = vectors("cat", Some("query"));
    for (score, text) in scores.iter().zip(["dog", "cow"]) {
        assert_eq!(*score, cosine(&query, &vectors(text, None)));
    }
    let error = embedder.classify(&[EmbedInput::Text("a".into())], false).expect_err("vectors");
    assert!(matches!(error, LlmError::WrongTask { .. }), "{error}");
}

#[test]
fn labels_are_probabilities_and_such_a_model_gives_no_scores() {
    let golden = ranker_named("bert-labels");
    let (_folder, embedder) = load(&golden);
    assert_eq!(embedder.info().labels, ["LABEL_0", "LABEL_1", "LABEL_2"]);
    assert_eq!(embedder.info().activation, Some("softmax"));
    let texts = ["w1 w2", "w3"].map(|text| EmbedInput::Text(text.to_owned())).to_vec();
    let classes = embedder.classify(&texts, false).expect("classified");
    assert_eq!(classes.n_tokens, [4, 3]);
    for row in &classes.probabilities {
        assert!((row.iter().sum::<f64>() - 1.0).abs() < 1e-12 && row.len() == 3, "{row:?}");
    }
    let error = embedder.score(&request(&["w1"], &["w2"])).expect_err("three labels").to_string();
    assert!(error.contains("3 labels") && error.contains("/classify"), "{error}");
    let embeds = EmbedRequest { inputs: vec![EmbedInput::Text("w1".into())], ..Default::default() };
    let error = embedder.embed(embeds).expect_err("no vectors").to_string();
    assert!(error.contains("makes no vectors"), "{error}");
    let mean = ranker_named("modernbert-mean");
    let (_folder, embedder) = load(&mean);
    assert_eq!(embedder.info().activation, Some("sigmoid"), "of several labels that may hold");
}

#[test]
fn texts_that_are_empty_or_too_long_are_named() {
    let golden = ranker_named("bert");
    let (_folder, embedder) = load(&golden);
    let long = "w1 ".repeat(62);
    for (request, param, is_long) in [
        (request(&[""], &["w1"]), "query", false),
        (request(&["w1"], &["w1", ""]), "documents[1]", false),
        (request(&["w1", ""], &["w1", "w2"]), "query[1]", false),
        (request(&["w1"], &["w1", &long]), "documents[1]", true),
        (request(&[&long], &["w1"]), "query", true),
    ] {
        match embedder.score(&request).expect_err(param) {
            LlmError::Pair { param: found, is_too_long, why } => {
                assert_eq!((found.as_str(), is_too_long), (param, is_long), "{why}");
            }
            other => panic!("{other}"),
        }
    }
    // The text fits by itself; beside the other it does not.
    let close = "w1 ".repeat(60);
    let error = embedder.score(&request(&["w1 w2"], &[&close])).expect_err("too long").to_string();
    assert!(error.contains("65 tokens") && error.contains("64"), "{error}");
    let cut = Cut { pair_tokens: None, document_tokens: Some(5) };
    let cut = ScoreRequest { cut, ..request(&["w1"], &[&long]) };
    assert_eq!(embedder.score(&cut).expect("cut").n_tokens, 3 + 1 + 5);
}

#[test]
fn a_dropped_request_is_not_computed() {
    let golden = ranker_named("bert");
    let (_folder, embedder) = load(&golden);
    let many = vec!["w1 w2 w3"; 2000];
    let first = embedder.prepare_scores(&request(&["w1"], &many)).expect("prepared");
    let second = embedder.prepare_scores(&request(&["w1"], &many)).expect("prepared");
    let (send, received) = mpsc::channel();
    let kept = embedder.submit_scores(first, move |scores| send.send(scores).expect("waits"));
    drop(embedder.submit_scores(second, |_| panic!("nobody waits for it")).expect("submitted"));
    let scores = received.recv().expect("answered").expect("scored");
    assert_eq!(scores.scores.len(), 2000);
    drop(kept);
    assert!(embedder.metrics().n_texts < 4000, "{:?}", embedder.metrics());
}

#[test]
fn files_that_contradict_themselves_are_refused_by_field() {
    let golden = ranker_named("bert");
    for (key, value, words) in [
        ("id2label", serde_json::json!({"0": "a", "1": "b"}), ["id2label", "1 labels"]),
        ("id2label", serde_json::json!({"7": "a"}), ["id2label", "from \"0\" on"]),
        ("problem_type", serde_json::json!(7), ["problem_type", "a text"]),
        (
            "sentence_transformers",
            serde_json::json!({"activation_fn": "torch.nn.Hardtanh"}),
            ["sentence_transformers.activation_fn", "Identity"],
        ),
    ] {
        let folder = tempfile::tempdir().expect("a folder");
        golden.write_folder(folder.path());
        let file = folder.path().join("config.json");
        let text = std::fs::read(&file).expect("config");
        let mut config: serde_json::Value = serde_json::from_slice(&text).expect("JSON");
        config[key] = value;
        std::fs::write(&file, config.to_string()).expect("written");
        let error = open(&folder, EmbedOptions::default()).expect_err(key).to_string();
        assert!(words.iter().all(|word| error.contains(word)), "{error}");
    }
    let folder = tempfile::tempdir().expect("a folder");
    golden.write_folder(folder.path());
    let options = EmbedOptions { normalise: Some(true), ..EmbedOptions::default() };
    let error = open(&folder, options).expect_err("no vectors to normalise").to_string();
    assert!(error.contains("`normalize`") && error.contains("classifier"), "{error}");
}
