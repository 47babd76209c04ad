//! Texts and importance that `pelton quantize` measures by, and the report of what it did.

use std::path::Path;

use super::World;
use crate::common::pelton;
use pelton_testkit::TinyModel;
use serde_json::Value;

#[test]
fn a_calibration_is_a_file_a_folder_chats_or_the_sample() {
    let world = World::new();
    let texts = world.folder.path().join("texts");
    std::fs::create_dir(&texts).expect("a folder");
    let seen = std::fs::read_to_string(world.folder.path().join("seen")).expect("a text");
    let (first, second) = seen.split_at(seen.len() / 2);
    std::fs::write(texts.join("a.txt"), first).expect("written");
    std::fs::write(texts.join("left-out.csv"), "the moth").expect("written");
    let tokens = |calibration: &str| {
        let (input, output) = (world.path("tiny"), world.path("out"));
        let args = ["quantize", &input, &output, "--method", "gptq", "--group", "32", "--json"];
        let args = [&args[..], &["--sample-length", "16", "--samples", "100000"]].concat();
        let report = pelton(&[&args[..], &["--calibration", calibration]].concat()).json();
        let card = std::fs::read_to_string(Path::new(&output).join("README.md")).expect("a card");
        std::fs::remove_dir_all(&output).expect("removed");
        (report["calibration_tokens"].as_u64().expect("a number"), card)
    };
    let (n_half, _) = tokens(&world.path("texts"));
    let (n_whole, _) = tokens(&world.path("seen"));
    assert!(n_half > 100 && n_half < n_whole, "{n_half} {n_whole}");
    let line = serde_json::json!({ "text": second });
    std::fs::write(texts.join("b.jsonl"), format!("{line}\n\n")).expect("written");
    let (n_both, card) = tokens(&world.path("texts"));
    assert!(n_both.abs_diff(n_whole) <= 16, "{n_both} {n_whole}");
    assert!(card.contains("of `texts`, SHA-256"), "{card}");

    // A chat has the tokens of its template beside those of its messages.
    let file = texts.join("chats.jsonl");
    let path = world.path("texts/chats.jsonl");
    let messages = serde_json::json!([
        { "role": "user", "content": first }, { "role": "assistant", "content": second },
    ]);
    let shared = serde_json::json!([
        { "from": "human", "value": first }, { "from": "gpt", "value": second },
    ]);
    let mut found = Vec::new();
    for line in [
        serde_json::json!({ "messages": messages }),
        serde_json::json!({ "conversations": shared }),
        serde_json::json!({ "prompt": format!("{first}{second}") }),
    ] {
        std::fs::write(&file, line.to_string()).expect("written");
        found.push(tokens(&path).0);
    }
    assert!(found[0] == found[1] && found[0] > found[2], "{found:?}");

    let (n_sample, card) = tokens("sample");
    assert!(n_sample > 20_000 && card.contains("of `sample`"), "{n_sample} {card}");

    let refused = |calibration: &str, parts: &[&str]| {
        let (input, output) = (world.path("tiny"), world.path("out"));
        let args = ["quantize", &input, &output, "--method", "gptq", "--group", "32"];
        pelton(&[&args[..], &["--calibration", calibration]].concat()).assert_refused(parts);
    };
    for (line, part) in [
        ("{\"text\": 3}", "`conversations`"),
        ("{\"text\": ", "EOF"),
        ("{\"messages\": []}", "`messages`"),
        ("{\"messages\": [{\"content\": \"a\"}]}", "`role`"),
        ("{\"conversations\": [{\"from\": \"human\"}]}", "`from`"),
    ] {
        std::fs::write(&file, format!("{{\"text\": \"a moth\"}}\n{line}\n")).expect("written");
        refused(&path, &["chats.jsonl", "line 2", part]);
    }
    refused(&world.path("tiny"), &[".txt, .md or .jsonl"]);
    refused(&world.path("nowhere"), &["nowhere"]);
    std::fs::write(&file, "the moth\u{0}").expect("written");
    refused(&path, &["chats.jsonl", "line 1"]);
}

/// Windows of a calibration may be longer than the vocabulary is large.
#[test]
fn a_calibration_with_windows_longer_than_the_vocabulary() {
    let world = World::new();
    let (model, out, text) = (world.path("long"), world.path("out"), world.path("seen"));
    let tiny = TinyModel { max_context: 512, n_layers: 1, ..TinyModel::default() };
    std::fs::create_dir(&model).expect("a folder");
    tiny.write_folder(Path::new(&model));
    let args = ["quantize", &model, &out, "--method", "gptq", "--group", "32"];
    let windows = ["--calibration", &text, "--sample-length", "400", "--samples", "2"];
    pelton(&[&args[..], &windows].concat()).assert_answered();
}

#[test]
fn an_importance_matrix_is_measured_written_read_and_helps() {
    let world = World::new();
    let (tiny, seen) = (world.path("tiny"), world.path("seen"));
    let gguf = |out: &str, flags: &[&str]| {
        let out = world.path(out);
        pelton(&[&["quantize", &tiny, &out, "--method", "gguf"], flags].concat())
    };
    let imatrix = world.path("imatrix.gguf");
    let flags = ["--type", "iq4_nl", "--calibration", &seen, "--save-imatrix", &imatrix];
    gguf("measured.gguf", &[&flags[..], &["--sample-length", "128"]].concat()).assert_answered();
    gguf("read.gguf", &["--type", "iq4_nl", "--imatrix", &imatrix]).assert_answered();
    gguf("plain.gguf", &["--type", "iq4_nl"]).assert_answered();
    let bytes = |name: &str| std::fs::read(world.path(name)).expect("a file");
    assert!(bytes("measured.gguf") == bytes("read.gguf"), "the file says the same");
    let kl = ["plain.gguf", "read.gguf"].map(|name| world.kl(name));
    println!("{kl:?}");
    assert!(kl[1] < 0.9 * kl[0], "{kl:?}");

    let refused = |out: &str, flags: &[&str], parts: &[&str]| {
        gguf(out, flags).assert_refused(parts);
    };
    refused("x.gguf", &[], &["--type", "q4_k"]);
    refused("x.gguf", &["--type", "q9"], &["--type", "q9", "IQ4_NL"]);
    refused("x", &["--type", "q4_k"], &[".gguf"]);
    refused("plain.gguf", &["--type", "q4_k"], &["plain.gguf", "already"]);
    refused("x.gguf", &["--type", "q8_0", "--imatrix", &imatrix], &["--type q8_0"]);
    refused("x.gguf", &["--type", "q4_k", "--bits", "4"], &["--bits"]);
    refused("x.gguf", &["--type", "iq4_nl", "--imatrix", &seen], &["seen", "importance matrix"]);
    let other = world.folder.path().join("other");
    TinyModel { n_layers: 1, ..TinyModel::default() }.write_folder(&other);
    let (other, out) = (world.path("other"), world.path("x.gguf"));
    let args = ["quantize", &other, &out, "--method", "gguf", "--type", "iq4_nl"];
    let outcome = pelton(&[&args[..], &["--imatrix", &imatrix]].concat());
    outcome.assert_refused(&["blk.1.", "importance matrix of this model"]);
    assert!(!Path::new(&out).exists());
}

#[test]
fn a_card_and_a_report_say_how_a_folder_was_made() {
    let world = World::new();
    let page = world.path("page.html");
    let flags = ["--method", "gptq", "--keep", "down_proj", "--html", &page];
    world.quantize("gptq", &flags).assert_answered();
    let page = std::fs::read_to_string(page).expect("a page");
    for part in ["<svg", "Error of each matrix", "rounded to nearest", "bits per weight"] {
        assert!(page.contains(part), "`{part}` is missing in the page");
    }
    let folder = world.folder.path().join("gptq");
    let card = std::fs::read_to_string(folder.join("README.md")).expect("a card");
    let seen = std::fs::read(world.folder.path().join("seen")).expect("a text");
    let hash: String = <sha2::Sha256 as sha2::Digest>::digest(&seen)
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    let command = "pelton quantize tiny gptq --method gptq --bits 4 --group 32 --keep down_proj \
                   --calibration seen --samples 128 --sample-length 128 --seed 0 --damping 0.01";
    for part in [&hash[..], command, "gptq, 4 bits, groups of 32", "mean error of outputs"] {
        assert!(card.contains(part), "`{part}` is missing in: {card}");
    }
    let report = std::fs::read(folder.join("quantization_report.json")).expect("a report");
    let report: Value = serde_json::from_slice(&report).expect("JSON");
    let matrices = report["matrices"].as_array().expect("matrices");
    assert_eq!(matrices.len(), 12, "down stays as it is");
    for matrix in matrices {
        for field in ["bits", "error", "error_rounded", "weight_error", "n_outliers", "seconds"] {
            assert!(matrix[field].is_number(), "{field}: {matrix}");
        }
    }
    assert!(world.kl("gptq") < 0.1);
}
