//! `--quantize` through the real binary: the same as converting a model and loading the file.

use std::path::{Path, PathBuf};

use crate::common::server::Server;
use crate::common::{command, outcome, pelton};
use pelton_testkit::golden::{decoder_at, decoder_named};
use pelton_testkit::{TinyEncoder, TinyModel};
use serde_json::json;

fn text(path: &Path) -> &str {
    path.to_str().expect("UTF-8")
}

/// A folder in f32 whose rows are whole blocks of every type. Its vocabulary has no padding, for
/// which a file would have further tokens.
fn tiny(folder: &Path) -> PathBuf {
    let path = folder.join("tiny");
    let (hidden_size, intermediate_size, vocab_size) = (256, 512, 260);
    TinyModel { hidden_size, intermediate_size, vocab_size, ..TinyModel::default() }
        .write_folder(&path);
    path
}

/// The file that a model is converted to.
fn converted(model: &Path, to: &str) -> PathBuf {
    let out = model.with_extension(format!("{to}.gguf"));
    pelton(&["convert", text(model), text(&out), "--format", to]).assert_answered();
    out
}

/// The output of these arguments for a model.
fn printed(args: &[&str], model: &Path) -> String {
    let ran = pelton(&[args, &["-m", text(model)]].concat());
    ran.assert_answered();
    ran.stdout
}

#[test]
fn logits_are_those_of_the_converted_file() {
    let temp = tempfile::tempdir().expect("temp");
    // Dense, mixtures, latent attention with keys in tensors of their own and without, hybrids.
    let families = [
        "llama3",
        "phi3",
        "qwen3-moe",
        "gpt-oss",
        "deepseek-v2",
        "deepseek-v3",
        "minicpm3",
        "granite-hybrid",
        "lfm2",
        "jamba",
        "rwkv7",
    ];
    let mut models = vec![(tiny(temp.path()), vec!["q4_k", "iq4_xs"])];
    for name in families {
        let path = temp.path().join(name);
        decoder_named(name).checkpoint.write_folder(&path);
        models.push((path, vec!["q4_0"]));
    }
    let logits = ["logits", "--tokens", "5,6,7,8,9,10,11,12", "--all"];
    for (model, types) in models {
        let stored = printed(&logits, &model);
        for to in types {
            let own = printed(&[&logits[..], &["--quantize", to]].concat(), &model);
            assert_ne!(own, stored, "{}", model.display());
            assert_eq!(own, printed(&logits, &converted(&model, to)), "{}", model.display());
        }
    }
}

#[test]
fn answers_and_figures_are_those_of_the_converted_file() {
    let temp = tempfile::tempdir().expect("temp");
    let model = tiny(temp.path());
    let file = converted(&model, "q4_k");
    let model = text(&model);

    let run =
        ["run", "the moth", "--raw", "--temperature", "0", "--json", "-n", "6", "--ignore-eos"];
    let tokens = |more: &[&str]| pelton(&[&run[..], more].concat()).json()["tokens"].clone();
    let expected = tokens(&["-m", text(&file)]);
    assert_eq!(tokens(&["-m", model, "--quantize", "Q4_K"]), expected, "in either case");
    // A draft model stays as it is: this one could not be rounded.
    let draft = ["--spec", "draft", "--draft-model", text(&file)];
    assert_eq!(tokens(&[&["-m", model, "--quantize", "q4_k"], &draft[..]].concat()), expected);
    let mut by_variable = command(&[&run[..], &["-m", model]].concat());
    let by_variable = outcome(&by_variable.env("PELTON_QUANTIZE", "q4_k").output().expect("runs"));
    assert_eq!(by_variable.json()["tokens"], expected);

    let inspect = |args: &[&str]| pelton(&[&["inspect", "--json"], args].concat()).json();
    let own = inspect(&[model, "--quantize", "q4_k", "--load"]);
    let of_file = inspect(&[text(&file)]);
    assert_eq!(own["rounded_to"], "q4_k");
    assert_eq!(own["weight_bytes"], of_file["weight_bytes"]);
    assert_eq!(own["load"]["weight_bytes"], of_file["weight_bytes"]);
    assert_eq!(own["memory"]["weight_bytes"], of_file["weight_bytes"]);
    assert_eq!(own["activation_groups"], of_file["activation_groups"]);
    let table = pelton(&["inspect", model, "--quantize", "q4_k"]);
    table.assert_answered();
    assert!(table.stdout.contains("q4_k, when it is loaded"), "{}", table.stdout);
}

#[test]
fn measurements_are_of_the_rounded_weights() {
    let temp = tempfile::tempdir().expect("temp");
    let model = tiny(temp.path());
    let file = converted(&model, "q4_k");
    let book = temp.path().join("book.txt");
    std::fs::write(&book, "Once upon a time there was a mill by a river. ".repeat(20))
        .expect("text");
    let model = text(&model);

    let bench = ["bench", "model", "--prompt", "4", "--generate", "2", "--rounds", "1", "--json"];
    let bench = |more: &[&str]| pelton(&[&bench[..], more].concat()).json()["layouts"].clone();
    let own = bench(&["-m", model, "--quantize", "q4_k"]);
    assert_eq!(own, bench(&["-m", text(&file)]));
    assert_eq!(own[0][0], "q4k", "{own}");

    // The reference keeps its weights, and of two models the first.
    let eval = ["eval", model, "--reference", model, "--text", text(&book), "--json"];
    let kl = |more: &[&str]| {
        let report = pelton(&[&eval[..], more].concat()).json();
        report["against"]["kl_divergence"]["value"].as_f64().expect("a divergence")
    };
    assert_eq!(kl(&[]), 0.0);
    assert!(kl(&["--quantize", "q4_k"]) > kl(&["--quantize", "q8_0"]));
    let ab = ["eval", "ab", model, model, "--text", text(&book), "--max-kl", "0", "--prompts", "1"];
    let ab = |more: &[&str]| {
        let short = ["--prompt-tokens", "8", "--answer-tokens", "4"];
        pelton(&[&ab[..], &short, more].concat()).code
    };
    assert_eq!((ab(&[]), ab(&["--quantize", "q4_k"])), (Some(0), Some(3)));
}

#[test]
fn a_server_takes_it_from_its_file_for_each_model_and_says_so() {
    let temp = tempfile::tempdir().expect("temp");
    let model = tiny(temp.path());
    let file = converted(&model, "q4_0");
    let config = temp.path().join("serve.yaml");
    let settings = format!(
        "max_context: 64\nmodels:\n  - {{name: small, model: {0}, quantize: q4_0}}\n  - {{name: \
         stored, model: {0}}}\n  - {{name: file, model: {1}}}\n",
        model.display(),
        file.display()
    );
    std::fs::write(&config, settings).expect("written");
    let checked = pelton(&["serve", "--check-config", "--config", text(&config)]);
    checked.assert_answered();
    assert_eq!(checked.stdout.matches("quantize: q4_0").count(), 1, "{}", checked.stdout);

    let mut server = Server::start(&["--config", text(&config)]).expect("it listens");
    let log = server.log_until("try it").concat();
    assert!(log.contains("of weights, rounded to q4_0\n"), "{log}");
    let complete = |model: &str| {
        let body = json!({
            "model": model, "prompt": "the moth", "max_tokens": 6, "temperature": 0,
            "logprobs": 3, "ignore_eos": true,
        });
        server.post("/v1/completions", &body).expect("answered")["choices"][0]["logprobs"].clone()
    };
    assert_eq!(complete("small"), complete("file"));
    assert_ne!(complete("small"), complete("stored"));
}

#[test]
fn vectors_are_made_with_rounded_weights() {
    let temp = tempfile::tempdir().expect("temp");
    let encoder = temp.path().join("encoder");
    TinyEncoder::default().write_folder(&encoder);
    let embed = |more: &[&str]| {
        let report = pelton(&[&["embed", text(&encoder), "a cat", "--json"], more].concat()).json();
        assert_eq!(report["model"]["rounded_to"].is_string(), !more.is_empty(), "{report}");
        let bytes = report["model"]["weight_bytes"].as_u64().expect("bytes");
        (report["embeddings"].clone(), bytes)
    };
    let (stored, rounded) = (embed(&[]), embed(&["--quantize", "q8_0"]));
    assert!(stored.0 != rounded.0 && rounded.1 < stored.1, "{stored:?} {rounded:?}");
}

#[test]
fn a_cache_of_packed_weights_is_one_of_its_type() {
    let temp = tempfile::tempdir().expect("temp");
    let model = tiny(temp.path());
    let run = ["run", "the moth", "--raw", "--temperature", "0", "--json", "-n", "4", "-v"];
    let run = |more: &[&str]| {
        let ran = pelton(&[&run[..], &["-m", text(&model)], more].concat());
        let is_hit = ran.stderr.contains("cache hit");
        (ran.json()["tokens"].clone(), is_hit)
    };
    for to in [&["--quantize", "q4_k"][..], &["--quantize", "q2_k"], &[]] {
        let (expected, _) = run(to);
        for is_hit in [false, true] {
            let cached = run(&[to, &["--packed-cache"]].concat());
            assert_eq!(cached, (expected.clone(), is_hit), "{to:?}");
        }
    }
}

#[test]
fn what_cannot_be_rounded_is_refused_with_a_way_out() {
    let temp = tempfile::tempdir().expect("temp");
    let model = tiny(temp.path());
    let file = converted(&model, "q8_0");
    let quantized = temp.path().join("quantized");
    let checkpoints = Path::new(env!("CARGO_MANIFEST_DIR")).join("../model/tests/checkpoints");
    decoder_at(&checkpoints.join("awq-g64")).checkpoint.write_folder(&quantized);
    let cases: [(&Path, &[&str]); 3] = [
        (&file, &["weight` in Q8_0", "leave `--quantize` out", "pelton convert", "--format q4_k"]),
        (&quantized, &["AWQ", "leave `--quantize` out"]),
        ("embedded".as_ref(), &["in Q8_0", "the checkpoint that it was made of"]),
    ];
    for (model, parts) in cases {
        for args in [&["run", "x"][..], &["serve", "--port", "0"], &["logits", "--tokens", "1"]] {
            let more = ["--quantize", "q4_k", "-m", text(model)];
            pelton(&[args, &more].concat())
                .assert_refused(&[&["f32, f16 or bf16"], parts].concat());
        }
    }
    let refused = |to: &str| pelton(&["run", "-m", text(&model), "--quantize", to, "x"]);
    refused("Q4_K_M").assert_refused(&["`Q4_K_M`", "q5_k", "iq4_xs", "`--quantize q4_k`?"]);
    refused("q4k").assert_refused(&["`--quantize q4_k`?"]);
    refused("f32").assert_refused(&["q8_0"]);
}

/// A model whose weights do not fit is loaded with the type that the error names.
#[test]
fn an_error_of_memory_names_the_type_that_fits() {
    let temp = tempfile::tempdir().expect("temp");
    let model = temp.path().join("wide");
    let wide = TinyModel {
        hidden_size: 512,
        intermediate_size: 2048,
        n_layers: 4,
        vocab_size: 8192,
        max_context: 64,
        ..TinyModel::default()
    };
    wide.write_folder(&model);
    let limited = |mib: u64, more: &[&str]| {
        let script = format!("ulimit -v {}", mib << 10);
        let args = ["run", "x", "--raw", "-q", "-n", "1", "--threads", "1", "-m", text(&model)];
        outcome(
            &crate::common::command_after(&script, &[&args[..], more].concat())
                .output()
                .expect("runs"),
        )
    };
    // The address space of the program and of the mapped file is not known here: the least limit is
    // searched in steps that are smaller than what lies between the two sizes, then in small ones.
    let least = |from: u64, step: usize| {
        let runs = (from..1000).step_by(step).map(|mib| (mib, limited(mib, &[])));
        let mut named = runs.filter(|(_, ran)| ran.stderr.contains("`--quantize q8_0` fits"));
        named.next().expect("a limit between the two sizes")
    };
    let (near, _) = least(60, 40);
    let (mib, ran) = least(near - 30, 10);
    ran.assert_refused(&["the weights need", "the weights then take"]);
    // Keys, values and steps take something, too.
    let fits = limited(mib + 30, &["--quantize", "q8_0"]);
    assert!(fits.code == Some(0) || !fits.stderr.contains("the weights need"), "{fits:?}");
}
