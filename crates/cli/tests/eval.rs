//! `pelton eval`, through the real binary: its figures are those of the logits that `pelton logits`
//! prints.

use std::path::{Path, PathBuf};

use crate::common::{self, Outcome, pelton};
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

#[test]
fn two_models_stand_side_by_side_and_gates_decide() {
    let world = World::new();
    let (a, b, text) = (world.path("a"), world.path("b"), world.path("text"));
    let small =
        ["--window", "32", "--prompts", "3", "--prompt-tokens", "8", "--answer-tokens", "6"];
    let ab = |b: &str, more: &[&str]| {
        let args = ["eval", "ab", &a, b, "--text", &text];
        pelton(&[&args[..], &small, more].concat())
    };
    let report = ab(&b, &["--json"]).json();
    let whole = world.eval("b", &["--reference", &a, "--window", "32", "--json"]).json();
    for (own, field) in [
        ("kl_divergence", "kl_divergence"),
        ("perplexity_increase_percent", "perplexity_increase_percent"),
        ("top1_agreement", "top1_agreement"),
    ] {
        assert_eq!(report[own], whole["against"][field], "{own}");
    }
    assert_eq!(report["b"]["perplexity"], whole["perplexity"]);
    assert_eq!(report["report"]["kind"], "ab");
    for side in ["a", "b"] {
        assert!(number(&report[side]["weight_bytes"]) > 0.0);
        let rounds = report[side]["generated_tokens_per_s"]["rounds"].as_array().expect("rounds");
        assert_eq!(rounds.len(), 3);
    }
    // The answers are those of `pelton run`.
    let ids = world.tokens();
    let continued = |model: &str, from: usize| -> Vec<usize> {
        let mut ids = ids[from..from + 8].to_vec();
        for _ in 0..6 {
            let rows = world.log_softmax(model, &ids);
            ids.push(likeliest(rows.last().expect("a row")) as u32);
        }
        ids[8..].iter().map(|id| *id as usize).collect()
    };
    let stride = (ids.len() - 8) / 3;
    let same = |n: usize| {
        let (a, b) = (continued("a", n * stride), continued("b", n * stride));
        a.iter().zip(&b).take_while(|(a, b)| a == b).count()
    };
    let same: Vec<usize> = (0..3).map(same).collect();
    let mean = same.iter().sum::<usize>() as f64 / 3.0;
    assert_eq!(number(&report["exactness"]["same_tokens"]), mean, "{same:?}");
    let n_same = same.iter().filter(|n| **n == 6).count() as f64;
    assert_eq!(number(&report["exactness"]["n_same_answers"]), n_same);

    let own = ab(&a, &["--max-kl", "0", "--max-ppl-increase", "0"]);
    own.assert_answered();
    for part in ["3 of 3", "6.0 of 6 before a difference", "--max-kl", "held: 0.000000"] {
        assert!(own.stdout.contains(part), "`{part}` is missing in: {}", own.stdout);
    }
    let exceeded = ab(&b, &["--max-kl", "0.000001"]);
    assert_eq!(exceeded.code, Some(3), "{}", exceeded.stderr);
    assert!(exceeded.stderr.contains("above `--max-kl 0.000001`"), "{}", exceeded.stderr);
    assert!(exceeded.stdout.contains("exceeded"), "{}", exceeded.stdout);

    let page = world.path("page.html");
    ab(&b, &["--html", &page]).assert_answered();
    let page = std::fs::read_to_string(page).expect("a page");
    assert_eq!(page.matches("<svg").count(), 4, "{page}");
    assert!(page.contains("KL divergence along the text"), "{page}");
    ab(&b, &["--prompt-tokens", "500"]).assert_refused(&["--prompt-tokens"]);
    let long = pelton(&["eval", "ab", &a, &b, "--text", &text, "--prompt-tokens", "200"]);
    long.assert_refused(&["the context of 256", "264"]);
}

#[test]
fn questions_are_answered_as_the_log_probabilities_say() {
    let world = World::new();
    let choices = ["lamp", "light went out"];
    // The log probability of each choice, from the logits of the whole.
    let score = |choice: &str| -> f64 {
        let encode = |text: &str| -> Vec<u32> {
            let line = serde_json::to_string(text).expect("JSON");
            let args = ["tokenize", "-m", &world.path("a")];
            let outcome = common::pelton_with_input(&args, line.as_bytes());
            serde_json::from_str(&outcome.stdout).expect("ids")
        };
        let (before, whole) = (encode("The moth"), encode(&format!("The moth {choice}")));
        assert_eq!(whole[..before.len()], before[..]);
        let rows = world.log_softmax("a", &whole[..whole.len() - 1]);
        let scored = whole.iter().enumerate().skip(before.len());
        scored.map(|(at, id)| rows[at - 1][*id as usize]).sum()
    };
    let scores = choices.map(score);
    let best = usize::from(scores[1] > scores[0]);
    let per_byte = [scores[0] / 4.0, scores[1] / 14.0];
    let best_per_byte = usize::from(per_byte[1] > per_byte[0]);
    let generated = {
        let args =
            ["run", "-m", &world.path("a"), "--raw", "--temperature", "0", "-n", "64", "--json"];
        pelton(&[&args[..], &["The moth"]].concat()).json()["text"]
            .as_str()
            .expect("text")
            .to_owned()
    };
    let start = generated.len() - generated.trim_start().len();
    let end = generated[start..].find('\n').map_or(generated.len(), |end| start + end);
    let target = serde_json::to_string(generated[..end].trim()).expect("JSON");
    let line = |gold: usize| {
        format!(r#"{{"query": "The moth", "choices": ["lamp", "light went out"], "gold": {gold}}}"#)
    };
    let file = world.path("task.jsonl");
    let lines = [line(best), line(1 - best)].join("\n");
    std::fs::write(&file, lines).expect("written");
    let exact = world.path("exact.jsonl");
    let lines = format!(
        "{{\"query\": \"The moth \", \"target\": {target}}}\n{{\"query\": \"The moth\", \"target\": \"?\"}}\n"
    );
    std::fs::write(&exact, lines).expect("written");
    let model = world.path("a");
    let report = pelton(&["eval", "tasks", &model, &file, &exact, "--json"]).json();
    let [first, second] = [0, 1].map(|at| report["tasks"][at].clone());
    assert_eq!((number(&first["accuracy"]), number(&first["accuracy_per_byte"])), (0.5, 0.5));
    assert_eq!(number(&second["exact_match"]), 0.5, "{report}");
    let limited = pelton(&["eval", "tasks", &model, &file, "--limit", "1", "--json"]).json();
    assert_eq!(number(&limited["tasks"][0]["accuracy"]), 1.0);
    let expected = f64::from(u8::from(best == best_per_byte));
    assert_eq!(number(&limited["tasks"][0]["accuracy_per_byte"]), expected);
    let table = pelton(&["eval", "tasks", &model, &file]);
    assert!(table.stdout.contains("50.0 %"), "{}", table.stdout);

    std::fs::write(&file, format!("{}\n{{\"query\": \"a\"}}\n", line(0))).expect("written");
    let refused = pelton(&["eval", "tasks", &model, &file]);
    refused.assert_refused(&["task.jsonl", "line 2", "no answer"]);
}

#[test]
fn a_needle_is_found_where_the_number_is_the_likeliest() {
    let world = World::new();
    let (model, text) = (world.path("a"), world.path("text"));
    let needle =
        |more: &[&str]| pelton(&[&["eval", "needle", &model, "--text", &text][..], more].concat());
    let flags = ["--lengths", "128,200", "--depths", "0,100", "--trials", "2", "--json"];
    let report = needle(&flags).json();
    let cells = report["cells"].as_array().expect("cells");
    let places: Vec<(f64, f64)> =
        cells.iter().map(|cell| (number(&cell["length"]), number(&cell["depth"]))).collect();
    assert_eq!(places, [(128.0, 0.0), (128.0, 100.0), (200.0, 0.0), (200.0, 100.0)]);
    for cell in cells {
        // Random weights find nothing: each token of a number has about the log probability of any.
        assert_eq!((number(&cell["n_found"]), number(&cell["n_trials"])), (0.0, 2.0));
        assert!(number(&cell["logprob"]) < -2.0, "{cell}");
    }
    assert_eq!(report, needle(&flags).json(), "the same sentences");
    needle(&["--lengths", "300"]).assert_refused(&["--lengths", "256"]);
    needle(&["--lengths", "64", "--depths", "101"]).assert_refused(&["--depths", "101"]);
}
