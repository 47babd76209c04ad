//! `pelton bench grammar`, through the real binary.

use crate::common::{command, interrupted, pelton};

#[test]
fn schemas_are_compiled_for_the_embedded_vocabulary_and_for_a_made_one() {
    for flags in [&[][..], &["--vocab", "2k"]] {
        let tiny = ["bench", "grammar", "--walks", "1", "-n", "60", "--json"];
        let report = pelton(&[&tiny[..], flags].concat()).json();
        assert_eq!(report["n_schemas"], report["n_enforced"], "{report}");
        assert!(report["mask"]["n"].as_u64().is_some_and(|n| n > 50), "{report}");
        assert!(report["forced_share"].as_f64().is_some_and(|share| share > 0.0), "{report}");
        assert_eq!(report["stuck"].as_array().map(Vec::len), Some(0), "{report}");
    }
}

#[test]
fn schemas_of_a_folder_are_measured_and_refusals_are_listed() {
    let folder = tempfile::tempdir().expect("a folder");
    let write = |name: &str, text: &str| {
        std::fs::write(folder.path().join(name), text).expect("written");
    };
    write("good.json", "{\"type\":\"boolean\"}");
    write("wrapped.json", "{\"schema\":{\"type\":\"null\"},\"tests\":[]}");
    write("bad.json", "{\"contains\":{}}");
    let path = folder.path().to_str().expect("UTF-8");
    let shown = pelton(&["bench", "grammar", "--schemas", path, "--walks", "1"]);
    shown.assert_answered();
    for part in ["2 of 3 schemas enforced", "refused bad: schema.contains", "first mask"] {
        assert!(shown.stdout.contains(part), "{}", shown.stdout);
    }
    pelton(&["bench", "grammar", "--schemas", "nowhere"]).assert_refused(&["--schemas nowhere"]);
    pelton(&["bench", "grammar", "--vocab", "x"]).assert_refused(&["--vocab"]);
    pelton(&["bench", "grammar", "--vocab", "10"]).assert_refused(&["--vocab", "1000"]);
}

#[test]
fn what_was_not_measured_has_no_figure() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("schema.json");
    let run = |schema: &str, more: &[&str]| {
        std::fs::write(&file, schema).expect("written");
        let path = folder.path().to_str().expect("UTF-8");
        pelton(&[&["bench", "grammar", "--schemas", path, "--walks", "1"], more].concat())
    };
    // All tokens are forced: no mask is asked for, and the state is never copied.
    let one = r#"{"const": "a"}"#;
    let told = run(one, &["--json"]).json();
    let of = |name: &str| {
        let measures = told["measures"].as_array().expect("measures");
        measures
            .iter()
            .filter(|measure| measure["name"].as_str().expect("a name").starts_with(name))
            .count()
    };
    assert_eq!((of("compile"), of("fork")), (2, 0), "{told}");
    assert_eq!(
        (&told["fork"]["n"], &told["fork"]["p50_us"]),
        (&0.into(), &serde_json::Value::Null)
    );
    let shown = run(one, &[]);
    let line = shown.stdout.lines().find(|line| line.starts_with("copy of a state"));
    let words: Vec<&str> = line.expect("a row").split_whitespace().skip(4).collect();
    assert_eq!(words, ["0", "-", "-", "-", "-"], "{}", shown.stdout);

    let none = run(r#"{"contains": {}}"#, &[]);
    assert_eq!(none.code, Some(2), "{}", none.stderr);
    assert!(none.stderr.contains("error: every schema was refused; schema: "), "{}", none.stderr);
    assert!(none.stdout.contains("0 of 1 schemas enforced"), "{}", none.stdout);
}

#[test]
fn ctrl_c_keeps_the_schemas_that_are_done() {
    let whole = pelton(&["bench", "grammar", "--walks", "1", "-n", "2", "--json"]).json();
    let long = command(&["bench", "grammar", "--walks", "20", "-n", "400", "--json"]);
    let told = interrupted(long, "measuring ");
    let count = |report: &serde_json::Value| report["n_schemas"].as_u64().expect("a number");
    assert!(count(&told) < count(&whole), "{told}");
}
