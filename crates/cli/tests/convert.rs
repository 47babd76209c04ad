//! `pelton convert`, through the real binary: what comes out says what went in.

use std::path::Path;

use crate::common::{pelton, pelton_with_input};
use pelton_testkit::TinyModel;
use serde_json::{Value, json};

fn text(path: &Path) -> &str {
    path.to_str().expect("a path of this test is UTF-8")
}

/// A tiny model in `folder/tiny`.
fn tiny(folder: &Path) -> std::path::PathBuf {
    let path = folder.join("tiny");
    std::fs::create_dir(&path).expect("a folder");
    TinyModel::default().write_folder(&path);
    path
}

/// The greedy tokens that a model continues a text with.
fn tokens(model: &Path) -> serde_json::Value {
    let flags = ["--raw", "--temperature", "0", "--json", "-n", "8", "--ignore-eos", "-m"];
    let args = [&["run", "the moth"][..], &flags, &[text(model)]].concat();
    pelton(&args).json()["tokens"].clone()
}

fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).expect("a folder");
    let name = |entry: std::fs::DirEntry| entry.file_name().into_string().expect("UTF-8");
    let mut names: Vec<String> = entries.map(|entry| name(entry.expect("an entry"))).collect();
    names.sort();
    names
}

#[test]
fn a_folder_becomes_a_file_and_the_file_parts_and_all_give_the_same_tokens() {
    let folder = tempfile::tempdir().expect("temp");
    let model = tiny(folder.path());
    let expected = tokens(&model);
    let whole = folder.path().join("whole.gguf");
    let report = pelton(&["convert", text(&model), text(&whole), "--json"]).json();
    assert_eq!(report["outputs"], serde_json::json!([text(&whole)]));
    assert_eq!(report["architecture"], "LlamaForCausalLM");
    assert_eq!(tokens(&whole), expected);

    let part = folder.path().join("part.gguf");
    let args = ["convert", text(&whole), text(&part), "--split-max-size", "40k", "--json"];
    let report = pelton(&args).json();
    let parts = report["outputs"].as_array().expect("files");
    assert!(parts.len() > 1 && !part.exists(), "{parts:?}");
    for part in parts {
        assert_eq!(tokens(Path::new(part.as_str().expect("a path"))), expected);
    }
    let last = parts[parts.len() - 1].as_str().expect("a path");
    let again = folder.path().join("again.gguf");
    pelton(&["convert", last, text(&again)]).assert_answered();
    assert_eq!(tokens(&again), expected);

    std::fs::remove_file(last).expect("removed");
    let first = parts[0].as_str().expect("a path");
    pelton(&["run", "-m", first, "x"]).assert_refused(&[last, "is missing"]);
}

const QWEN35: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const TEKKEN: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";

#[test]
fn text_is_split_in_a_file_as_in_the_folder() {
    let split = |regex: &str| {
        let pattern = json!({"Regex": regex});
        json!({"type": "Split", "pattern": pattern, "behavior": "Isolated", "invert": false})
    };
    let bytes = |splits: bool| json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": splits});
    let digits = json!({"type": "Digits", "individual_digits": true});
    // Letters of the byte-level alphabet that are merged, a text, and whether the rule keeps them together.
    let mark = (["q", "\u{cc}"], "q\u{301} q");
    let pair = (["1", "2"], "12 1");
    for (name, steps, composes, (merge, sample), is_merged) in [
        ("qwen35", vec![split(QWEN35), bytes(false)], true, mark, true),
        ("tekken", vec![split(TEKKEN), bytes(false)], false, pair, false),
        ("gpt-2", vec![bytes(true)], false, pair, true),
        ("smollm", vec![digits, bytes(true)], false, pair, false),
    ] {
        let folder = tempfile::tempdir().expect("temp");
        let model = tiny(folder.path());
        let file = model.join("tokenizer.json");
        let mut json: Value =
            serde_json::from_slice(&std::fs::read(&file).expect("read")).expect("JSON");
        let old = json["model"]["merges"][0].take();
        let old = old.as_str().map_or_else(
            || old.as_array().map(|pair| pair.iter().filter_map(Value::as_str).collect()),
            |text| Some(text.replace(' ', "")),
        );
        let vocab = json["model"]["vocab"].as_object_mut().expect("a vocabulary");
        let id = vocab.remove(&old.expect("a merge")).expect("a token");
        vocab.insert(merge.concat(), id.clone());
        json["model"]["merges"] = json!([merge]);
        json["pre_tokenizer"] = json!({"type": "Sequence", "pretokenizers": steps});
        if composes {
            json["normalizer"] = json!({"type": "NFC"});
        }
        std::fs::write(&file, json.to_string()).expect("written");
        let out = folder.path().join("model.gguf");
        pelton(&["convert", text(&model), text(&out)]).assert_answered();
        let [of_folder, of_file] = [&model, &out].map(|model| {
            let line = format!("{}\n", json!(sample));
            let outcome = pelton_with_input(&["tokenize", "-m", text(model)], line.as_bytes());
            outcome.assert_answered();
            outcome.stdout
        });
        assert_eq!(of_file, of_folder, "{name}");
        let ids: Vec<Value> = serde_json::from_str(&of_file).expect("ids");
        assert_eq!(ids.contains(&id), is_merged, "{name}: {of_file}");
    }
}

fn change_json(file: &Path, change: impl FnOnce(&mut Value)) {
    let mut json = serde_json::from_slice(&std::fs::read(file).expect("read")).expect("JSON");
    change(&mut json);
    std::fs::write(file, json.to_string()).expect("written");
}

/// A post-processor that puts these tokens around a text.
fn around(before: &[u32], after: &[u32]) -> Value {
    let names = before.iter().chain(after).map(ToString::to_string);
    let special = names.map(|name| {
        let ids = [name.parse::<u32>().expect("a number")];
        (name.clone(), json!({"id": name, "ids": ids, "tokens": [name]}))
    });
    let part = |id: &u32| json!({"SpecialToken": {"id": id.to_string(), "type_id": 0}});
    let text = json!({"Sequence": {"id": "A", "type_id": 0}});
    let single = before.iter().map(part).chain([text]).chain(after.iter().map(part));
    json!({"type": "TemplateProcessing", "single": single.collect::<Vec<_>>(), "pair": [],
        "special_tokens": special.collect::<serde_json::Map<_, _>>()})
}

#[test]
fn a_file_has_the_tokens_around_a_text_and_the_pooling_of_the_folder() {
    let folder = tempfile::tempdir().expect("temp");
    let model = tiny(folder.path());
    change_json(&model.join("config.json"), |config| {
        (config["bos_token_id"], config["eos_token_id"]) = (json!(5), json!([2, 3]));
    });
    let modules = json!([
        {"type": "sentence_transformers.models.Pooling", "path": "1_Pooling"},
        {"type": "sentence_transformers.models.Normalize", "path": "2_Normalize"},
    ]);
    std::fs::write(model.join("modules.json"), modules.to_string()).expect("written");
    std::fs::create_dir(model.join("1_Pooling")).expect("a folder");
    let pooling = model.join("1_Pooling/config.json");
    std::fs::write(&pooling, r#"{"pooling_mode": "mean"}"#).expect("written");
    let out = folder.path().join("model.gguf");
    let run = |args: &[&str]| {
        let outcome = pelton_with_input(args, b"\"the moth\"\n");
        outcome.assert_answered();
        outcome.stdout
    };
    for (before, after, left_out) in [
        (&[][..], &[][..], 0),
        (&[7], &[3], 0),
        (&[7], &[], 0),
        (&[], &[2], 0),
        (&[7, 8], &[2, 3], 2),
        (&[], &[9], 1),
    ] {
        change_json(&model.join("tokenizer.json"), |json| {
            json["post_processor"] = around(before, after);
        });
        let report = pelton(&["convert", text(&model), text(&out), "--force", "--json"]).json();
        let words = report["left_out"].as_array().expect("a list");
        assert_eq!(words.len(), left_out, "{before:?} {after:?}: {report}");
        if left_out == 0 {
            let [of_folder, of_file] =
                [&model, &out].map(|model| run(&["tokenize", "-m", text(model)]));
            assert_eq!(of_folder, of_file, "{before:?} {after:?}");
            let [of_folder, of_file] = [&model, &out].map(|model| {
                let report = pelton(&["embed", text(model), "the moth", "--json"]).json();
                assert!(report["embeddings"][0].is_array(), "{report}");
                report["embeddings"].clone()
            });
            assert_eq!(of_folder, of_file, "{before:?} {after:?}");
        }
    }
    let table = run(&["convert", text(&model), text(&out), "--force"]);
    assert!(table.contains("left out       the tokens 9"), "{table}");

    // Pooling that a file cannot say is refused.
    for (config, word) in [
        (r#"{"pooling_mode": "max"}"#, "pooling by max"),
        (r#"{"pooling_mode_mean_tokens": true, "pooling_mode_cls_token": true}"#, "cls and mean"),
    ] {
        std::fs::write(&pooling, config).expect("written");
        let refused = pelton(&["convert", text(&model), text(&out), "--force"]);
        refused.assert_refused(&[word, "`modules.json`", "GGUF"]);
    }
}

#[test]
fn a_vocabulary_that_is_no_json_is_in_the_file() {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../text/tests/fixtures");
    let read = |name: &str| std::fs::read(fixtures.join(name)).expect(name);
    let texts: Vec<String> = serde_json::from_slice(&read("vocab/texts.json")).expect("texts");
    let lines: String = texts.iter().map(|text| format!("{}\n", json!(text))).collect();
    let world = "rwkv_vocab_v20230424.txt";
    for (name, from, keeps_json) in [
        (world, format!("world/{world}"), false),
        ("tokenizer.model", "vocab/bpe.model".to_owned(), false),
        ("tiktoken.model", "tiktoken/tiktoken.model".to_owned(), false),
        // A `tokenizer.json` whose rule has no name is left for the file that it was made of.
        ("tokenizer.model", "vocab/bpe.model".to_owned(), true),
    ] {
        let folder = tempfile::tempdir().expect("temp");
        let model = folder.path().join("model");
        std::fs::create_dir(&model).expect("a folder");
        TinyModel { vocab_size: 2048, ..TinyModel::default() }.write_folder(&model);
        let json = model.join("tokenizer.json");
        let text_of = std::fs::read_to_string(&json).expect("read");
        std::fs::remove_file(&json).expect("removed");
        std::fs::remove_file(model.join("tokenizer_config.json")).expect("removed");
        std::fs::write(model.join(name), read(&from)).expect("written");
        if name == "tiktoken.model" {
            let config = r#"{"tokenizer_class": "TikTokenTokenizer"}"#;
            std::fs::write(model.join("tokenizer_config.json"), config).expect("written");
        }
        let tokens = |model: &Path| {
            let args = ["tokenize", "-m", text(model)];
            let outcome = pelton_with_input(&args, lines.as_bytes());
            outcome.assert_answered();
            outcome.stdout
        };
        let expected = tokens(&model);
        if keeps_json {
            std::fs::write(&json, text_of.replace("ByteLevel", "Metaspace")).expect("written");
        }
        let out = folder.path().join("model.gguf");
        pelton(&["convert", text(&model), text(&out)]).assert_answered();
        assert_eq!(tokens(&out), expected, "{name}");
    }
}

#[test]
fn a_format_is_told_by_the_table_and_by_the_file() {
    let folder = tempfile::tempdir().expect("temp");
    let model = tiny(folder.path());
    let out = folder.path().join("out.gguf");
    let outcome = pelton(&["convert", text(&model), text(&out), "--format", "q8_0"]);
    outcome.assert_answered();
    for part in ["out.gguf", "LlamaForCausalLM", "of type Q8_0", "of type F32", "bits per weight"] {
        assert!(outcome.stdout.contains(part), "`{part}` is missing in: {}", outcome.stdout);
    }
    let flags = ["--embedding-format", "f16", "--force", "--json"];
    let args = [&["convert", text(&out), text(&out), "--format", "q4_0"][..], &flags].concat();
    let report = pelton(&args).json();
    assert_eq!(report["tensors"]["F16"]["n_tensors"], 1);
    assert!(report["tensors"]["Q4_0"]["n_tensors"].as_u64() > Some(4), "{report}");
    assert_eq!(report["tensors"]["Q8_0"], serde_json::Value::Null);
    pelton(&["inspect", text(&out)]).assert_answered();
}

#[test]
fn what_cannot_be_converted_is_refused_and_leaves_nothing() {
    let folder = tempfile::tempdir().expect("temp");
    let model = tiny(folder.path());
    let out = folder.path().join("out.gguf");
    let (input, output) = (text(&model), text(&out));
    let refused = |more: &[&str], parts: &[&str]| {
        pelton(&[&["convert"][..], more].concat()).assert_refused(parts);
        assert_eq!(names(folder.path()), ["tiny"], "{more:?}");
    };
    refused(&[input, "out.bin"], &["out.bin", "ends in .gguf"]);
    refused(&[input], &["OUTPUT"]);
    refused(&[input, output, "--format", "q9_9"], &["q9_9", "Q4_K"]);
    refused(&[input, output, "--head-format", "q6_k"], &["head is its embedding table"]);
    refused(&[input, output, "--split-max-size", "none"], &["--split-max-size", "500M"]);
    refused(&[input, output, "--split-max-size", "0"], &["--split-max-size"]);
    refused(&["nothing-here/at-all/x", output], &["nothing-here"]);
    refused(&[input, text(&folder.path().join("no/out.gguf"))], &["no/out.gguf"]);

    std::fs::write(&out, "precious").expect("written");
    pelton(&["convert", input, output]).assert_refused(&["out.gguf", "already", "--force"]);
    assert_eq!(std::fs::read_to_string(&out).expect("there"), "precious");
    pelton(&["convert", input, output, "--force"]).assert_answered();
    assert_eq!(names(folder.path()), ["out.gguf", "tiny"]);
    std::fs::remove_file(&out).and_then(|()| std::fs::create_dir(&out)).expect("a folder");
    pelton(&["convert", input, output])
        .assert_refused(&["out.gguf", "expected a file, got a folder"]);
}

/// A byte-level vocabulary may merge nothing.
#[test]
fn a_vocabulary_without_merges_is_written_and_read() {
    let folder = tempfile::tempdir().expect("temp");
    let model = tiny(folder.path());
    let path = model.join("tokenizer.json");
    let mut vocabulary: Value =
        serde_json::from_slice(&std::fs::read(&path).expect("there")).expect("JSON");
    vocabulary["model"]["merges"] = json!([]);
    std::fs::write(&path, vocabulary.to_string()).expect("written");
    let file = folder.path().join("model.gguf");
    pelton(&["convert", text(&model), text(&file)]).assert_answered();
    let ids = |model: &Path| {
        let outcome = pelton_with_input(&["tokenize", "-m", text(model)], b"\"the moth\"");
        assert_eq!(outcome.code, Some(0), "{}", outcome.stderr);
        outcome.stdout
    };
    assert_eq!(ids(&file), ids(&model));
}

/// Rows of the embedding that no token of the folder has are never sampled, from the file neither.
#[test]
fn a_padded_vocabulary_samples_the_same_tokens_from_folder_and_file() {
    let folder = tempfile::tempdir().expect("temp");
    let model = folder.path().join("model");
    std::fs::create_dir(&model).expect("a folder");
    TinyModel { vocab_size: 2048, ..TinyModel::default() }.write_folder(&model);
    let file = folder.path().join("model.gguf");
    pelton(&["convert", text(&model), text(&file)]).assert_answered();
    let sample = |model: &Path| {
        let args = ["run", "-m", text(model), "the moth", "--max-tokens", "40"];
        let more = ["--temperature", "2", "--seed", "7", "--ignore-eos", "--json"];
        let answer = pelton(&[&args[..], &more].concat()).json();
        serde_json::from_value::<Vec<u32>>(answer["tokens"].clone()).expect("ids")
    };
    let tokens = sample(&model);
    assert_eq!(tokens.len(), 40);
    assert_eq!(sample(&file), tokens);
}
