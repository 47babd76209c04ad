//! `pelton eval`, through the real binary: its figures are those of the logits that `pelton logits`
//! prints.

mod common;

use std::path::{Path, PathBuf};

use common::{Outcome, pelton};
use pelton_tensor::DType;
use pelton_testkit::TinyModel;
use serde_json::Value;

const TEXT: &str = "The moth that the lamp had drawn went out with the light.\n";

/// Two tiny models of one vocabulary, and a text.
struct World {
    folder: tempfile::TempDir,
}

impl World {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("temp");
        for (seed, name) in [(0, "a"), (1, "b")] {
            TinyModel { seed, ..TinyModel::default() }.write_folder(&folder.path().join(name));
        }
        std::fs::write(folder.path().join("text"), TEXT.repeat(2)).expect("written");
        Self { folder }
    }

    fn path(&self, name: &str) -> String {
        self.folder.path().join(name).to_str().expect("UTF-8").to_owned()
    }

    fn eval(&self, model: &str, more: &[&str]) -> Outcome {
        let (model, text) = (self.path(model), self.path("text"));
        pelton(&[&["eval", &model, "--text", &text][..], more].concat())
    }

    /// The ids of the text.
    fn tokens(&self) -> Vec<u32> {
        let line = serde_json::to_string(&TEXT.repeat(2)).expect("JSON");
        let args = ["tokenize", "-m", &self.path("a"), "--no-special"];
        let outcome = common::pelton_with_input(&args, line.as_bytes());
        serde_json::from_str(&outcome.stdout).expect("ids")
    }

    /// Log probabilities after each of these tokens, over the whole vocabulary.
    fn log_softmax(&self, model: &str, tokens: &[u32]) -> Vec<Vec<f64>> {
        let ids: Vec<String> = tokens.iter().map(u32::to_string).collect();
        let path = self.path(model);
        let args = ["logits", "-m", &path, "--tokens", &ids.join(","), "--all", "--top", "1000"];
        let outcome = pelton(&args);
        outcome.assert_answered();
        outcome.stdout.lines().map(row).collect()
    }
}

fn row(line: &str) -> Vec<f64> {
    let line: Value = serde_json::from_str(line).expect("JSON");
    let top = line["top"].as_array().expect("logits");
    let mut logits = vec![0.0; top.len()];
    for pair in top {
        logits[pair[0].as_u64().expect("an id") as usize] = pair[1].as_f64().expect("a logit");
    }
    let total: f64 = logits.iter().map(|logit: &f64| logit.exp()).sum();
    logits.iter().map(|logit| logit - total.ln()).collect()
}

fn likeliest(row: &[f64]) -> usize {
    (0..row.len()).rev().max_by(|a, b| row[*a].total_cmp(&row[*b])).expect("a token")
}

fn number(value: &Value) -> f64 {
    value.as_f64().expect("a number")
}

fn near(a: f64, b: f64) -> bool {
    (a - b).abs() <= 1e-5 * b.abs().max(1e-3)
}

#[test]
fn every_figure_is_that_of_the_logits_window_by_window() {
    let world = World::new();
    let (window, stride) = (40, 24);
    let flags = ["--window", "40", "--stride", "24", "--json"];
    let reference = world.path("b");
    let report = world.eval("a", &[&flags[..], &["--reference", &reference]].concat()).json();

    let tokens = world.tokens();
    let (mut nats, mut their_nats, mut kl) = (0.0, 0.0, 0.0);
    let (mut n_agreed, mut scored, mut n_windows) = (0, 1, 0);
    while scored < tokens.len() {
        let start = n_windows * stride;
        let end = tokens.len().min(start + window);
        let [own, theirs] = ["a", "b"].map(|m| world.log_softmax(m, &tokens[start..end]));
        for at in scored..end {
            let (p, q) = (&theirs[at - 1 - start], &own[at - 1 - start]);
            nats -= q[tokens[at] as usize];
            their_nats -= p[tokens[at] as usize];
            kl += p.iter().zip(q).map(|(p, q)| p.exp() * (p - q)).sum::<f64>();
            n_agreed += usize::from(likeliest(p) == likeliest(q));
        }
        (scored, n_windows) = (end, n_windows + 1);
    }
    let n = (tokens.len() - 1) as f64;
    assert!(n_windows > 2, "several windows");
    assert_eq!([&report["n_tokens"], &report["n_windows"]], [tokens.len() - 1, n_windows]);
    assert_eq!([&report["window"], &report["stride"]], [window, stride]);
    let n_bytes = TEXT.len() * 2 - 1;
    assert_eq!(report["n_bytes"], n_bytes, "all but the first token, which is one byte");
    assert!(near(number(&report["perplexity"]["value"]), (nats / n).exp()), "{report}");
    let per_byte = number(&report["perplexity_per_byte"]["value"]);
    assert!(near(per_byte, (nats / n_bytes as f64).exp()), "{report}");
    let against = &report["against"];
    let value = |name: &str| number(&against[name]["value"]);
    assert!(near(value("perplexity"), (their_nats / n).exp()), "{report}");
    assert!(near(value("kl_divergence"), kl / n), "{report}: {}", kl / n);
    assert!(near(value("top1_agreement"), n_agreed as f64 / n), "{report}");
    let increase = ((nats - their_nats) / n).exp_m1() * 100.0;
    assert!((value("perplexity_increase_percent") - increase).abs() < 1e-3, "{report}");
    for figure in ["kl_divergence", "top1_agreement", "perplexity_increase_percent"] {
        let (low, high) = (number(&against[figure]["low"]), number(&against[figure]["high"]));
        assert!(low <= value(figure) && value(figure) <= high, "{figure}: {report}");
    }
}

#[test]
fn a_model_does_not_differ_from_itself_and_the_table_says_how_it_was_measured() {
    let world = World::new();
    let itself = world.path("a");
    let outcome = world.eval("a", &["--reference", &itself, "--max-kl", "0"]);
    outcome.assert_answered();
    for part in ["1 of 256 tokens, 128 apart", "0.000000", "100.00 %", "bootstrap"] {
        assert!(outcome.stdout.contains(part), "`{part}` is missing in: {}", outcome.stdout);
    }
    let report = world.eval("a", &["--limit", "20", "--json"]).json();
    assert_eq!(
        [&report["n_tokens"], &report["n_bytes"]],
        [19, 19 + TEXT[..20].matches("th").count()]
    );
    assert_eq!(report["against"], Value::Null);
    assert_eq!(report["perplexity"]["low"], Value::Null, "one window has no interval");
}

#[test]
fn a_gate_that_is_exceeded_ends_with_code_3_after_the_figures() {
    let world = World::new();
    let other = world.path("b");
    let with = |flags: &[&str]| world.eval("a", &[&["--reference", &other], flags].concat());
    let outcome = with(&["--max-kl", "0.0001", "--json"]);
    assert_eq!(outcome.code, Some(3), "{}", outcome.stderr);
    assert!(outcome.stderr.starts_with("error: the divergence is "), "{}", outcome.stderr);
    let report: Value = serde_json::from_str(&outcome.stdout).expect("the figures");
    let kl = number(&report["against"]["kl_divergence"]["value"]);
    with(&["--max-kl", &(kl * 1.001).to_string()]).assert_answered();

    // One of the two is worse than the other.
    let swapped = world.eval("b", &["--reference", &world.path("a"), "--max-ppl-increase", "0"]);
    let codes = [with(&["--max-ppl-increase", "0"]).code, swapped.code];
    assert!(codes == [Some(0), Some(3)] || codes == [Some(3), Some(0)], "{codes:?}");
    pelton(&["eval", "x", "--text", "y", "--max-kl", "1"]).assert_refused(&["--reference"]);
    with(&["--max-kl", "-1"]).assert_refused(&["--max-kl"]);
}

#[test]
fn texts_and_models_that_cannot_be_compared_are_named() {
    let world = World::new();
    let (model, folder) = (world.path("a"), world.folder.path());
    let file = |name: &str, bytes: &[u8]| -> String {
        std::fs::write(folder.join(name), bytes).expect("written");
        world.path(name)
    };
    let refused = |text: &str, more: &[&str], parts: &[&str]| {
        pelton(&[&["eval", &model, "--text", text][..], more].concat()).assert_refused(parts);
    };
    refused(&file("empty", b""), &[], &["empty", "at least 2 tokens"]);
    refused(&file("short", b"a"), &[], &["short", "1 token"]);
    refused(&file("latin", b"caf\xe9"), &[], &["latin", "UTF-8", "3"]);
    refused(&world.path("nothing"), &[], &["nothing"]);
    refused(&world.path("a"), &[], &["a"]);
    let text = world.path("text");
    refused(&text, &["--window", "257"], &["--window", "256"]);
    refused(&text, &["--window", "8", "--stride", "8"], &["--stride", "1 to 7"]);

    let wide: PathBuf = folder.join("wide");
    TinyModel { vocab_size: 320, ..TinyModel::default() }.write_folder(&wide);
    refused(&text, &["--reference", &world.path("wide")], &["288", "wide", "320"]);
    swap_two_tokens(&folder.join("b"));
    let parts = ["the reference b", "different tokens", "token 0"];
    refused(&text, &["--reference", &world.path("b")], &parts);
    let gguf = folder.join("a.gguf");
    TinyModel::default().write_gguf(&gguf, DType::F32);
    let reference = gguf.to_str().expect("UTF-8");
    pelton(&["eval", &model, "--text", &text, "--reference", reference]).assert_answered();
}

/// Gives `T` the id of `U` and the other way round.
fn swap_two_tokens(model: &Path) {
    let file = model.join("tokenizer.json");
    let text = std::fs::read_to_string(&file).expect("a tokenizer");
    let mut json: Value = serde_json::from_str(&text).expect("JSON");
    let (t, u) = (json["model"]["vocab"]["T"].clone(), json["model"]["vocab"]["U"].clone());
    (json["model"]["vocab"]["T"], json["model"]["vocab"]["U"]) = (u, t);
    std::fs::write(file, json.to_string()).expect("written");
}
