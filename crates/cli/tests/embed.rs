//! `pelton embed`, and what the other commands say to an embedding model.

use crate::common::server::Server;
use crate::common::{Outcome, pelton, pelton_with_input};
use pelton_testkit::TinyEncoder;
use pelton_testkit::golden::decoder_named;

fn tiny() -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    TinyEncoder::default().write_folder(folder.path());
    folder
}

/// Standard output of a command that must succeed.
fn printed(outcome: &Outcome) -> &str {
    outcome.assert_answered();
    &outcome.stdout
}

fn path(folder: &tempfile::TempDir) -> &str {
    folder.path().to_str().expect("UTF-8")
}

#[test]
fn a_line_of_numbers_is_printed_for_each_text() {
    let folder = tiny();
    let model = path(&folder);
    let file = folder.path().join("lines.txt");
    std::fs::write(&file, "cat\r\ndog\n").expect("written");
    let file = file.to_str().expect("UTF-8");
    let by_flags = pelton(&["embed", model, "cat", "dog"]);
    let by_flags = printed(&by_flags);
    let lines: Vec<&str> = by_flags.lines().collect();
    assert_eq!(lines.len(), 2, "{by_flags}");
    assert_eq!(lines[0].split(' ').count(), TinyEncoder::DIMENSIONS);
    assert_eq!(printed(&pelton(&["embed", model, "--file", file])), by_flags);
    let by_input = pelton_with_input(&["embed", model, "-"], b"cat\ndog");
    assert_eq!(printed(&by_input), by_flags);
    let short = pelton(&["embed", model, "cat", "--dimensions", "3"]);
    assert_eq!(printed(&short).trim().split(' ').count(), 3);
}

#[test]
fn similarities_are_a_matrix_and_json_is_one_object() {
    let folder = tiny();
    let model = path(&folder);
    let matrix = pelton(&["embed", model, "cat", "dog", "--similarity"]);
    let rows: Vec<Vec<f32>> = printed(&matrix)
        .lines()
        .map(|row| row.split_whitespace().map(|x| x.parse().expect("a number")).collect())
        .collect();
    assert_eq!((rows[0][0], rows[1][1], rows[0][1]), (1.0, 1.0, rows[1][0]));
    let json = pelton(&["embed", model, "cat", "dog", "--json"]).json();
    assert_eq!(json["model"]["architecture"], "BertModel");
    assert_eq!(json["usage"]["total_tokens"], 10);
    assert_eq!(json["embeddings"][1].as_array().expect("a vector").len(), TinyEncoder::DIMENSIONS);
}

#[test]
fn a_plan_and_an_inspection_of_an_encoder_say_what_it_does() {
    let folder = tiny();
    let model = path(&folder);
    let inspected = pelton(&["inspect", model]);
    let text = printed(&inspected);
    for part in ["BertModel", "64 tokens, no RoPE", "memory", "tokenizer"] {
        assert!(text.contains(part), "`{part}` is missing in\n{text}");
    }
    for part in ["kv pool", "keys and values", "output head", "chat template", "RoPE base"] {
        assert!(!text.contains(part), "`{part}` is in\n{text}");
    }
    let told = pelton(&["inspect", model, "--json"]).json();
    assert_eq!((&told["generates"], &told["memory"]["kv_bytes"]), (&false.into(), &0.into()));
    let planned = pelton(&["plan", model, "--hardware", "h200", "--price-per-hour", "2"]);
    let text = printed(&planned);
    for part in ["a text", "tokens/s, one text after the other", "a million tokens: ", "yes"] {
        assert!(text.contains(part), "`{part}` is missing in\n{text}");
    }
    for part in ["kv ", "keys and values", "first token", "next tokens", "decoding", "answers"] {
        assert!(!text.contains(part), "`{part}` is in\n{text}");
    }
    let planned = pelton(&["plan", model, "--hardware", "h200", "--json"]).json();
    let fit = &planned["fit"];
    let bytes = |name: &str| fit[name].as_u64().unwrap_or_else(|| panic!("{name} in {fit}"));
    assert_eq!(bytes("total_bytes"), bytes("weight_bytes") + bytes("workspace_bytes"));
    assert!(planned["kv"].is_null() && fit["n_sequences"].is_null(), "{planned}");
    let small = pelton(&["plan", model, "--hardware", "h200", "--memory", "1KiB"]);
    let text = printed(&small);
    for part in ["no\n", "missing", "would fit    ", " of memory"] {
        assert!(text.contains(part), "`{part}` is missing in\n{text}");
    }
    assert!(!text.contains("--batch") && !text.contains("--kv-dtype"), "{text}");
    let table = pelton(&["plan", model, "--hardware", "h200", "--table"]);
    table.assert_refused(&["`--table`", "generates nothing"]);
    let advice = pelton(&["plan", "advise", model, "--hardware", "h200"]);
    advice.assert_refused(&["`pelton plan advise`", "generates nothing"]);
}

#[test]
fn an_inspection_names_no_rotation_and_no_heads_that_a_model_does_not_have() {
    for (name, heads) in [("rwkv7", "of recurrent layers"), ("jamba", "query, ")] {
        let folder = tempfile::tempdir().expect("a folder");
        decoder_named(name).checkpoint.write_bare_folder(folder.path());
        let inspected = pelton(&["inspect", path(&folder)]);
        let text = printed(&inspected);
        for part in ["tokens, no RoPE", heads, "kv pool", "output head"] {
            assert!(text.contains(part), "`{part}` is missing in\n{text}");
        }
        assert!(!text.contains("RoPE base 0") && !text.contains("of 0\n"), "{text}");
    }
}

#[test]
fn bad_input_is_one_line() {
    let folder = tiny();
    let model = path(&folder);
    let long = "a ".repeat(100);
    pelton(&["embed", model]).assert_refused(&["TEXTS"]);
    pelton(&["embed", model, "a", ""]).assert_refused(&["text 2 of the command line", "is empty"]);
    pelton(&["embed", model, &long]).assert_refused(&["text 1 of", "64", "`--truncate`"]);
    pelton_with_input(&["embed", model, "a", "-"], b"b\n\nc\n")
        .assert_refused(&["standard input, line 2", "is empty"]);
    pelton(&["embed", model, "a", "--max-context", "65"]).assert_refused(&["--max-context", "64"]);
    pelton(&["embed", model, "a", "--dimensions", "99"])
        .assert_refused(&["dimensions", "99 of 32"]);
    pelton(&["embed", model, "a", "--pooling", "median"])
        .assert_refused(&["--pooling", "lasttoken"]);
    pelton(&["embed", model, "a", "--prompt", "poem"]).assert_refused(&["poem", "query"]);
    pelton(&["embed", model, "--file", "missing.txt"]).assert_refused(&["missing.txt"]);
    pelton_with_input(&["embed", model, "-"], b"a\n\xff\n").assert_refused(&["line 2", "UTF-8"]);
    pelton(&["run", "-m", model, "abc"]).assert_refused(&["BertModel", "embedding model"]);
}

#[test]
fn a_server_of_vectors_names_the_settings_of_text() {
    let folder = tiny();
    let server = |flags: &[&str]| {
        Server::start(&[&["-m", path(&folder)], flags].concat()).expect("it listens")
    };
    let useless = server(&["--kv-dtype", "int8", "--max-context", "32"]);
    let message = "kv_dtype: a model that makes vectors has no use for these settings";
    assert!(useless.first_log().contains(message), "{}", useless.first_log());
    let plain = server(&["--max-context", "32"]);
    assert!(!plain.first_log().contains("no use"), "{}", plain.first_log());
}
