//! Every golden checkpoint and GGUF file through the real binary.
//!
//! `run` repeats the greedy tokens of the reference implementation, `logits` its logits, `serve`
//! answers a completion or a request for vectors, `convert` writes a file that continues with the
//! same tokens. A model that fails does not end a test: the message lists all that failed.

use std::path::{Path, PathBuf};

use crate::common::server::Server;
use crate::common::{Outcome, pelton, pelton_with_input};
use pelton_base::TokenId;
use pelton_model::{ARCHS, Arch, ENCODER_DECODERS, ENCODERS, ModelFiles};
use pelton_testkit::golden::{
    Checkpoint, GoldenDecoder, GoldenEncoder, GoldenSeq2Seq, NOT_IN_GGUF, decoders,
    encoder_decoders, encoders,
};
use serde_json::{Value, json};

/// Largest difference to the reference, relative to the largest element of the same row.
const BOUND: f64 = 1e-4;
/// Arithmetic of the reference, in the same order on every machine.
const EXACT: [&str; 4] = ["--compute", "f32", "--threads", "1"];

type Check = Result<(), String>;

/// A golden model on disk, as a folder or as a GGUF file.
struct Model<'a, G> {
    golden: &'a G,
    path: &'a Path,
    files: ModelFiles,
}

impl<G> Model<'_, G> {
    fn path(&self) -> &str {
        self.path.to_str().expect("a path of this test is UTF-8")
    }
}

/// Checks each model as a folder and, where there is one, as a GGUF file; lists those that fail.
fn each<G>(all: &[G], checkpoint: fn(&G) -> &Checkpoint, check: impl Fn(&Model<'_, G>) -> Check) {
    let mut failed = Vec::new();
    for golden in all {
        let name = checkpoint(golden).name();
        let temp = tempfile::tempdir().expect("a folder");
        let (folder, file) = (temp.path().join("model"), temp.path().join("model.gguf"));
        checkpoint(golden).write_folder(&folder);
        let has_file = checkpoint(golden).has_gguf();
        if has_file {
            checkpoint(golden).write_gguf(&file);
        }
        for path in [Some(folder), has_file.then_some(file)].into_iter().flatten() {
            let files = ModelFiles::open(&path).expect(name);
            if let Err(error) = check(&Model { golden, path: &path, files }) {
                let kind = if path.is_dir() { "folder" } else { "GGUF file" };
                failed.push(format!("{kind} {name}: {error}"));
            }
        }
    }
    assert!(failed.is_empty(), "{} failed:\n{}", failed.len(), failed.join("\n"));
}

fn each_decoder(check: impl Fn(&Model<'_, GoldenDecoder>) -> Check) {
    each(&decoders(), |golden| &golden.checkpoint, check);
}

fn each_encoder(check: impl Fn(&Model<'_, GoldenEncoder>) -> Check) {
    each(&encoders(), |golden| &golden.checkpoint, check);
}

fn each_encoder_decoder(check: impl Fn(&Model<'_, GoldenSeq2Seq>) -> Check) {
    each(&encoder_decoders(), |golden| &golden.checkpoint, check);
}

/// Standard output of a command that must succeed.
fn printed(outcome: Outcome) -> Result<String, String> {
    match outcome.code {
        Some(0) => Ok(outcome.stdout),
        code => Err(format!("exit code {code:?}: {}", outcome.stderr.trim_end())),
    }
}

fn parsed(text: &str) -> Result<Value, String> {
    serde_json::from_str(text).map_err(|error| format!("{error} in: {text}"))
}

fn equal<T: PartialEq + std::fmt::Debug>(what: &str, got: T, expected: T) -> Check {
    if got == expected { Ok(()) } else { Err(format!("{what}: {got:?}, expected {expected:?}")) }
}

/// Whether two rows differ by less than [`BOUND`].
fn near(what: &str, got: &[f64], expected: &[f64], scale: f64) -> Check {
    equal(&format!("elements of {what}"), got.len(), expected.len())?;
    let worst = got.iter().zip(expected).map(|(a, b)| (a - b).abs() / scale).fold(0.0, f64::max);
    // The comparison is false for NaN.
    if worst < BOUND { Ok(()) } else { Err(format!("{what}: off by {worst:e}")) }
}

fn scale(row: &[f32]) -> f64 {
    f64::from(row.iter().fold(0.0_f32, |most, x| most.max(x.abs())))
}

fn ids(tokens: &[TokenId]) -> String {
    let ids: Vec<String> = tokens.iter().map(ToString::to_string).collect();
    ids.join(",")
}

/// The flag for the context that the reference served.
fn context(golden: &GoldenDecoder) -> Vec<String> {
    let flag = |n: usize| vec!["--max-context".to_owned(), n.to_string()];
    golden.max_context.map(flag).unwrap_or_default()
}

/// The command with these flags and those that every comparison needs.
fn exactly(args: &[&str], golden: &GoldenDecoder) -> Outcome {
    let context = context(golden);
    let context: Vec<&str> = context.iter().map(String::as_str).collect();
    pelton(&[args, &EXACT, &context].concat())
}

/// Whether `run` continues the prompt with the tokens of the reference.
fn runs(golden: &GoldenDecoder, path: &str) -> Check {
    let (prompt, n) = (ids(&golden.prompt), golden.greedy.len().to_string());
    let args = ["run", "-m", path, "--tokens", &prompt, "--max-tokens", &n, "--ignore-eos"];
    let greedy = ["--temperature", "0", "--json"];
    let answer = parsed(&printed(exactly(&[&args[..], &greedy].concat(), golden))?)?;
    equal("tokens", &answer["tokens"], &json!(golden.greedy))
}

#[test]
fn nothing_registered_is_missing() {
    let (decoders, encoders, both) = (decoders(), encoders(), encoder_decoders());
    let checkpoints = (decoders.iter().map(|golden| &golden.checkpoint))
        .chain(encoders.iter().map(|golden| &golden.checkpoint))
        .chain(both.iter().map(|golden| &golden.checkpoint));
    let (mut folders, mut files) = (Vec::new(), Vec::new());
    let temp = tempfile::tempdir().expect("a folder");
    for checkpoint in checkpoints {
        let architecture = |path: &Path| {
            let files = ModelFiles::open(path).expect("a golden model");
            files.config().architecture.clone()
        };
        let path = temp.path().join(checkpoint.name());
        checkpoint.write_folder(&path);
        folders.push(architecture(&path));
        if checkpoint.has_gguf() {
            let path = path.join("model.gguf");
            checkpoint.write_gguf(&path);
            files.push(architecture(&path));
        }
    }
    let has = |list: &[String], arch: &Arch| arch.names.iter().any(|n| list.iter().any(|s| s == n));
    for arch in ARCHS.iter().chain(ENCODERS).chain(ENCODER_DECODERS) {
        assert!(has(&folders, arch), "no folder of {:?}", arch.names);
        // `convert` writes the files of the families that it knows, and reads them back.
        let is_written = arch.is_exported() || arch.gguf_names.is_empty();
        // A GGUF file of SmolLM 3 holds nothing that a file of Llama does not.
        let is_like_another = arch.names == ["SmolLM3ForCausalLM"];
        assert!(has(&files, arch) || is_written || is_like_another, "no file of {:?}", arch.names);
    }
}

#[test]
fn run_continues_with_the_greedy_tokens_of_the_reference() {
    each_decoder(|model| runs(model.golden, model.path()));
}

#[test]
fn logits_are_those_of_the_reference() {
    each_decoder(|model| {
        let tokens = ids(&model.golden.tokens());
        let args = ["logits", "-m", model.path(), "--tokens", &tokens, "--all", "--top", "256"];
        let text = printed(exactly(&args, model.golden))?;
        equal("lines", text.lines().count(), model.golden.logits.len())?;
        for (i, (line, row)) in text.lines().zip(&model.golden.logits).enumerate() {
            let line = parsed(line)?;
            let top: Vec<(usize, f64)> =
                serde_json::from_value(line["top"].clone()).map_err(|error| error.to_string())?;
            let what = format!("row {}", line["position"]);
            equal(&format!("{what}, largest first"), top.is_sorted_by(|a, b| a.1 >= b.1), true)?;
            let mut by_id = top.clone();
            by_id.sort_by_key(|(id, _)| *id);
            let ids: Vec<usize> = by_id.iter().map(|(id, _)| *id).collect();
            equal(&format!("{what}, ids"), ids, (0..256).collect::<Vec<_>>())?;
            let got: Vec<f64> = by_id.iter().map(|(_, logit)| *logit).collect();
            let expected: Vec<f64> = row.iter().map(|x| f64::from(*x)).collect();
            let stored = model.golden.columns.of(i, &got);
            near(&format!("{what}, by id"), &stored, &expected, scale(row))?;
            let mean = got.iter().sum::<f64>() / got.len() as f64;
            let got = line["mean"].as_f64().ok_or("no mean")?;
            near(&format!("{what}, mean"), &[got], &[mean], scale(row))?;
        }
        Ok(())
    });
}

#[test]
fn serve_completes_with_the_greedy_tokens_of_the_reference() {
    each_decoder(|model| {
        let golden = model.golden;
        let context = context(golden);
        let flags: Vec<&str> = context.iter().map(String::as_str).collect();
        let server = Server::start(&[&["-m", model.path()], &EXACT[..], &flags].concat())?;
        let answer = server.post(
            "/v1/completions",
            &json!({
                "prompt": golden.prompt, "max_tokens": golden.greedy.len(), "temperature": 0,
                "ignore_eos": true,
            }),
        )?;
        let bytes: Vec<u8> = golden.greedy.iter().map(|token| token.0 as u8).collect();
        let expected = String::from_utf8_lossy(&bytes);
        equal("text", &answer["choices"][0]["text"], &json!(expected))?;
        equal("usage", &answer["usage"]["prompt_tokens"], &json!(golden.prompt.len()))
    });
}

#[test]
fn serve_makes_the_vectors_of_the_reference() {
    each_encoder(|model| {
        let golden = model.golden;
        let as_rows = ["--pooling", "mean", "--normalize", "false", "--embeddings"];
        let server = Server::start(&[&["-m", model.path()], &EXACT[..], &as_rows].concat())?;
        let answer = server.post("/v1/embeddings", &json!({ "input": golden.texts }))?;
        for (i, expected) in golden.means.iter().enumerate() {
            let vector = answer["data"][i]["embedding"].clone();
            let vector: Vec<f64> = serde_json::from_value(vector).map_err(|e| e.to_string())?;
            let widened: Vec<f64> = expected.iter().map(|x| f64::from(*x)).collect();
            near(&format!("vector {i}"), &vector, &widened, scale(expected))?;
        }
        equal("vectors", answer["data"].as_array().map(Vec::len), Some(golden.means.len()))
    });
}

/// Whether `inspect` and `tokenize` understand the model.
fn is_understood<G>(model: &Model<'_, G>) -> Check {
    let report = parsed(&printed(pelton(&["inspect", model.path(), "--json"]))?)?;
    equal("architecture", &report["architecture"], &json!(model.files.config().architecture))?;
    equal("layers", &report["n_layers"], &json!(model.files.config().num_hidden_layers))?;
    equal("tokenizer", &report["tokenizer"]["vocab_size"], &report["vocab_size"])?;

    let line = "\"A cat, 2 dogs\\n\"\n";
    let encoded = printed(pelton_with_input(&["tokenize", "-m", model.path()], line.as_bytes()))?;
    // A token per byte.
    equal("token ids", parsed(&encoded)?, json!(b"A cat, 2 dogs\n"))?;
    let args = ["tokenize", "-m", model.path(), "--decode"];
    equal("text", printed(pelton_with_input(&args, encoded.as_bytes()))?, line.to_owned())
}

#[test]
fn inspect_and_tokenize_understand_decoders() {
    each_decoder(is_understood);
}

#[test]
fn inspect_and_tokenize_understand_encoders() {
    each_encoder(is_understood);
}

#[test]
fn encoder_decoders_answer_with_the_greedy_tokens_of_the_reference() {
    each_encoder_decoder(|model| {
        let golden = model.golden;
        let (source, n) = (ids(&golden.source), golden.greedy.len().to_string());
        let args = ["run", "-m", model.path(), "--tokens", &source, "--max-tokens", &n];
        let flags = ["--ignore-eos", "--temperature", "0", "--json"];
        let answer = parsed(&printed(pelton(&[&args[..], &flags, &EXACT].concat()))?)?;
        equal("tokens", &answer["tokens"], &json!(golden.greedy))?;

        let server = Server::start(&[&["-m", model.path()], &EXACT[..]].concat())?;
        let request = json!({
            "prompt": golden.source, "max_tokens": golden.greedy.len(), "temperature": 0,
            "ignore_eos": true, "n": 2,
        });
        let answer = server.post("/v1/completions", &request)?;
        let bytes: Vec<u8> = golden.greedy.iter().map(|token| token.0 as u8).collect();
        let expected = json!(String::from_utf8_lossy(&bytes));
        equal("text", &answer["choices"][0]["text"], &expected)?;
        equal("second text", &answer["choices"][1]["text"], &expected)?;
        equal("usage", &answer["usage"]["prompt_tokens"], &json!(golden.source.len()))
    });
}

#[test]
fn logits_of_encoder_decoders_are_those_of_the_reference() {
    each_encoder_decoder(|model| {
        let golden = model.golden;
        let source = ids(&golden.source);
        let args = ["logits", "-m", model.path(), "--tokens", &source, "--all", "--top", "1"];
        let text = printed(pelton(&[&args[..], &EXACT].concat()))?;
        equal("lines", text.lines().count(), golden.first.len())?;
        for (line, row) in text.lines().zip(&golden.logits) {
            let line = parsed(line)?;
            let largest = row.iter().copied().fold(f32::MIN, f32::max);
            let got = line["top"][0][1].as_f64().ok_or("no logit")?;
            near("largest logit", &[got], &[f64::from(largest)], scale(row))?;
        }
        Ok(())
    });
}

#[test]
fn inspect_names_the_encoder_and_tokenize_understands_encoder_decoders() {
    each_encoder_decoder(|model| {
        let report = parsed(&printed(pelton(&["inspect", model.path(), "--json"]))?)?;
        let spec = model.files.spec().map_err(|error| error.to_string())?;
        let encoder = spec.encoder.ok_or("no encoder")?;
        equal("layers", &report["n_layers"], &json!(spec.layers.len() / 2))?;
        equal("encoder", &report["encoder"]["n_layers"], &json!(encoder.layers.len()))?;
        let text = printed(pelton(&["inspect", model.path()]))?;
        equal("line", text.contains("reads prompts of up to"), true)?;
        let encoded =
            printed(pelton_with_input(&["tokenize", "-m", model.path()], b"\"A cat\"\n"))?;
        equal("token ids", parsed(&encoded)?, json!(b"A cat"))
    });
}

#[test]
fn commands_that_follow_a_text_token_by_token_refuse_encoder_decoders_by_name() {
    each_encoder_decoder(|model| {
        let temp = tempfile::tempdir().map_err(|error| error.to_string())?;
        let text = temp.path().join("text.txt");
        std::fs::write(&text, "A cat sat.").map_err(|error| error.to_string())?;
        let (text, out) = (text.to_str().expect("UTF-8"), temp.path().join("out.gguf"));
        let out = out.to_str().expect("UTF-8");
        for (args, why) in [
            (vec!["eval", model.path(), "--text", text], "has an encoder"),
            (vec!["bench", "model", "-m", model.path()], "has an encoder"),
            (vec!["bench", "offline", "-m", model.path()], "has an encoder"),
            (vec!["embed", model.path(), "A cat"], "an encoder and a decoder"),
            (vec!["serve", "-m", model.path(), "--embeddings"], "an encoder and a decoder"),
            (vec!["convert", model.path(), out], "not a family that is written as GGUF"),
        ] {
            let is_file = model.files.gguf().is_some();
            if is_file && args[0] == "convert" {
                continue;
            }
            let outcome = pelton(&args);
            equal(args[0], outcome.code, Some(2))?;
            let is_named = outcome.stderr.contains(why);
            equal(&format!("{}: {}", args[0], outcome.stderr), is_named, true)?;
        }
        Ok(())
    });
}

#[test]
fn tokenize_reads_a_folder_with_a_list_of_world_tokens() {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../text/tests/fixtures");
    let folder = fixtures.join("world");
    let folder = folder.to_str().expect("UTF-8");
    let read = |name: &str| std::fs::read(fixtures.join(name)).expect(name);
    let texts: Vec<String> = serde_json::from_slice(&read("vocab/texts.json")).expect("texts");
    let ids: Vec<Value> = serde_json::from_slice(&read("world/cases.json")).expect("ids");
    let lines: String = texts.iter().map(|text| format!("{}\n", json!(text))).collect();
    let encoded = printed(pelton_with_input(&["tokenize", "-m", folder], lines.as_bytes()));
    let encoded = encoded.expect("ids");
    let got: Vec<Value> = encoded.lines().map(|line| parsed(line).expect("ids")).collect();
    assert_eq!(got, ids);
    let args = ["tokenize", "-m", folder, "--decode"];
    let decoded = printed(pelton_with_input(&args, encoded.as_bytes())).expect("texts");
    let decoded: Vec<Value> = decoded.lines().map(|line| parsed(line).expect("a text")).collect();
    assert_eq!(decoded, texts);
}

/// Whether `convert` writes the model; a folder of a family that it does not write is refused.
fn is_written(golden: &GoldenDecoder, files: &ModelFiles) -> Result<(), &'static str> {
    if files.gguf().is_some() {
        return Ok(());
    }
    match NOT_IN_GGUF.iter().find(|(name, _)| *name == golden.checkpoint.name()) {
        Some((_, part)) => Err(part),
        None if files.arch().is_exported() => Ok(()),
        None => Err("not a family that is written as GGUF"),
    }
}

fn output_of(path: &Path) -> PathBuf {
    path.with_file_name("written.gguf")
}

#[test]
fn convert_writes_a_file_that_continues_with_the_same_tokens() {
    each_decoder(|model| {
        let output = output_of(model.path);
        let output = output.to_str().expect("UTF-8");
        let outcome = pelton(&["convert", model.path(), output, "--force"]);
        match is_written(model.golden, &model.files) {
            Ok(()) => {
                printed(outcome)?;
                runs(model.golden, output)
            }
            Err(why) => {
                equal("exit code", outcome.code, Some(2))?;
                equal("output", Path::new(output).exists(), false)?;
                let is_named = outcome.stderr.contains(why);
                if is_named { Ok(()) } else { Err(format!("no `{why}` in: {}", outcome.stderr)) }
            }
        }
    });
}

/// Each sequence of a batch has a state of its own.
#[test]
fn bench_model_measures_large_batches_of_recurrent_models() {
    each_decoder(|model| {
        // One of them: each measures what the machine can do, too.
        if model.golden.checkpoint.name() != "mamba2" {
            return Ok(());
        }
        let sizes = ["--prompt", "8", "--context", "8", "--generate", "2", "--batch", "20"];
        let args = ["bench", "model", "-m", model.path(), "--rounds", "1", "--threads", "1"];
        printed(pelton(&[&args[..], &sizes].concat())).map(drop)
    });
}

#[test]
fn an_encoder_does_not_generate() {
    each_encoder(|model| {
        let outcome = pelton(&["run", "-m", model.path(), "--tokens", "1,2"]);
        equal("exit code", outcome.code, Some(2))?;
        let is_named = outcome.stderr.contains("embedding model");
        if is_named { Ok(()) } else { Err(outcome.stderr) }
    });
}
