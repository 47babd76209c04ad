//! `pelton parse-tools` through the binary, with every transcript of every format.

use std::path::{Path, PathBuf};

use crate::common::{pelton, pelton_with_input};
use serde_json::{Value, json};

fn golden() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../parse/tests/golden")
}

fn transcripts(name: &str) -> Vec<Value> {
    let text = std::fs::read_to_string(golden().join(name)).expect("a file");
    text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

/// The line that is printed for a transcript.
fn printed(transcript: &Value) -> Value {
    let (content, calls) = (&transcript["content"], &transcript["calls"]);
    let is_bare = content == "" && calls != &json!([]);
    let mut printed = json!({
        "content": if is_bare { &Value::Null } else { content },
        "tool_calls": calls,
    });
    if transcript["reasoning"].as_str().is_some_and(|text| !text.is_empty()) {
        printed["reasoning"] = transcript["reasoning"].clone();
    }
    printed
}

fn lines(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

#[test]
fn every_format_is_read_through_the_binary() {
    let tools = golden().join("tools.json");
    let tools = tools.to_str().expect("UTF-8");
    let list = pelton(&["parse-tools", "--tool-parser", "list"]);
    let names: Vec<&str> =
        list.stdout.lines().map(|line| line.split(' ').next().expect("a name")).collect();
    assert!(names.len() >= 12 && names.is_sorted(), "{names:?}");
    for name in names {
        let transcripts = transcripts(&format!("{name}.jsonl"));
        let transcripts: Vec<&Value> =
            transcripts.iter().filter(|t| t["starts_inside"] != true).collect();
        let input: String = transcripts.iter().map(|t| format!("{}\n", t["raw"])).collect();
        let args = ["parse-tools", "--tool-parser", name, "--tools", tools];
        let outcome = pelton_with_input(&args, input.as_bytes());
        assert_eq!(outcome.code, Some(0), "{name}: {}", outcome.stderr);
        let expected: Vec<Value> = transcripts.iter().map(|t| printed(t)).collect();
        assert_eq!(lines(&outcome.stdout), expected, "{name}");
        let n_flagged = transcripts.iter().filter(|t| t["malformed"] == true).count();
        assert_eq!(outcome.stderr.matches("looks like a call").count(), n_flagged, "{name}");
    }
}

#[test]
fn thoughts_and_pieces_are_printed_where_they_are_asked_for() {
    let raw = json!("<think>\nHm\n</think>\n\nSo <tool_call>{\"name\": \"f\", \"arguments\": {}}");
    let args = ["parse-tools", "--tool-parser", "qwen", "--reasoning-parser", "qwen3"];
    let outcome = pelton_with_input(&args, format!("{raw}\n").as_bytes());
    let call = json!({"name": "f", "arguments": "{}"});
    assert_eq!(
        lines(&outcome.stdout),
        [json!({"content": "So ", "tool_calls": [call], "reasoning": "Hm"})]
    );
    let outcome =
        pelton_with_input(&[&args[..], &["--stream"]].concat(), raw.to_string().as_bytes());
    let deltas = lines(&outcome.stdout);
    let deltas = deltas[0].as_array().expect("an array");
    let joined =
        |key: &str| -> String { deltas.iter().filter_map(|delta| delta[key].as_str()).collect() };
    assert_eq!(
        [joined("reasoning"), joined("content"), joined("name"), joined("arguments")],
        ["Hm", "So ", "f", "{}"]
    );
    assert!(deltas.len() > 4, "{deltas:?}");
}

#[test]
fn lines_before_a_bad_line_are_answered() {
    let args = ["parse-tools", "--tool-parser", "hermes"];
    let outcome = pelton_with_input(&args, b"\"a\"\n\"b\n");
    assert_eq!(outcome.code, Some(2));
    let named = ["line 2 of standard input", "JSON string"];
    assert!(named.iter().all(|part| outcome.stderr.contains(part)), "{}", outcome.stderr);
    assert_eq!(lines(&outcome.stdout), [json!({"content": "a", "tool_calls": []})]);
}
