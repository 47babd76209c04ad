//! `pelton bench spec`, through the real binary and with the model inside it, at tiny sizes.

use crate::common::{command, pelton, signal};
use serde_json::Value;
use std::io::Write;
use std::process::Stdio;

/// As little as can be measured.
const TINY: [&str; 10] = [
    "bench",
    "spec",
    "--max-tokens",
    "12",
    "--rounds",
    "1",
    "--threads",
    "1",
    "--methods",
    "ngram,suffix",
];

#[test]
fn every_method_is_compared_with_plain_decoding_and_says_the_same() {
    let report = pelton(&[&TINY[..], &["--batch", "2,1", "--json"]].concat()).json();
    assert_eq!((&report["equal"], &report["interrupted"]), (&true.into(), &false.into()));
    let figures = report["figures"].as_array().expect("figures");
    let key = |figure: &Value| {
        let text = |name: &str| figure[name].as_str().expect("text").to_owned();
        (figure["batch"].as_u64().expect("a size"), text("texts"), text("method"))
    };
    let mut expected = Vec::new();
    for batch in [1, 2] {
        for texts in ["repetitive", "editing", "retrieval", "free", "ruled", "schema"] {
            for method in ["plain", "ngram", "suffix"] {
                expected.push((batch, texts.to_owned(), method.to_owned()));
            }
        }
    }
    assert_eq!(figures.iter().map(key).collect::<Vec<_>>(), expected);
    for figure in figures {
        assert_eq!(figure["ratio"]["rounds"].as_array().map(Vec::len), Some(1), "{figure}");
        assert!(figure["tokens_per_step"].as_f64().is_some_and(|n| n >= 0.0), "{figure}");
        if figure["method"] == "plain" {
            assert_eq!((&figure["drafts"], &figure["ratio"]["median"]), (&0.into(), &1.0.into()));
        }
    }
    let advice = report["advice"].as_array().expect("advice");
    assert_eq!(advice.len(), 2);
    assert!(advice[0]["text"].as_str().is_some_and(|text| text.starts_with("batch 1: ")));
}

#[test]
fn texts_of_a_file_are_measured_at_a_temperature() {
    let mut file = tempfile::NamedTempFile::new().expect("a file");
    writeln!(file, "Tom had a red ball. Tom had a red ball. Tom had").expect("written");
    writeln!(file, "\n{{\"prompt\": \"Once upon a time\"}}").expect("written");
    let path = file.path().to_str().expect("UTF-8");
    let flags = ["--prompts", path, "--batch", "1", "--temperature", "0.8", "--spec-max", "3"];
    let outcome = pelton(&[&TINY[..], &flags].concat());
    outcome.assert_answered();
    for part in ["1 x given", "plain", "suffix", "times plain", "All tokens are", "batch 1: "] {
        assert!(outcome.stdout.contains(part), "`{part}` is missing in: {}", outcome.stdout);
    }
}

#[test]
fn what_cannot_be_compared_is_refused() {
    let mut file = tempfile::NamedTempFile::new().expect("a file");
    writeln!(file, "fine\n{{\"text\": 1}}").expect("written");
    let path = file.path().to_str().expect("UTF-8");
    let cases: [(&[&str], &[&str]); 12] = [
        (&["--methods", "magic"], &["--methods", "`magic`", "suffix"]),
        (&["--methods", "off"], &["--methods", "`off`"]),
        (&["--methods", "suffix,suffix"], &["--methods", "`suffix`"]),
        (&["--methods", "early-exit:1,early-exit:2"], &["early-exit:2"]),
        (&["--methods", "draft"], &["`draft` needs a model"]),
        (&["--methods", "draft:a/a", "--draft-model", "b/b"], &["draft:a/a", "b/b"]),
        (&["--prompts", path], &[":2:", "`prompt`", "`messages`"]),
        (&["--prompts", "no-such-file"], &["no-such-file"]),
        (&["--temperature", "-1"], &["--temperature"]),
        (&["--batch", "0"], &["--batch"]),
        (&["-n", "1"], &["--max-tokens", "3 tokens or more"]),
        (&["-n", "2"], &["--max-tokens", "3 tokens or more"]),
    ];
    for (flags, parts) in cases {
        pelton(&[&["bench", "spec"], flags].concat()).assert_refused(parts);
    }
}

#[test]
fn ctrl_c_ends_with_what_was_measured() {
    // So many tokens never end by themselves in the time it takes to interrupt.
    let flags = ["--rounds", "1000000", "--json", "--batch", "1"];
    let mut child = command(&[&["bench", "spec", "--methods", "suffix"], &flags[..]].concat())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary starts");
    let mut lines = std::io::BufRead::lines(std::io::BufReader::new(
        child.stderr.take().expect("stderr is piped"),
    ));
    let heard = lines.by_ref().map(|line| line.expect("text"));
    assert!(
        heard.into_iter().any(|line| line.contains("comparing plain, suffix")),
        "it ended early"
    );
    signal("INT", child.id());
    lines.for_each(drop);
    let output = child.wait_with_output().expect("the binary ends");
    assert_eq!(output.status.code(), Some(130));
    let report: Value = serde_json::from_slice(&output.stdout).expect("stdout is JSON");
    assert_eq!((&report["interrupted"], &report["equal"]), (&true.into(), &true.into()));
}
