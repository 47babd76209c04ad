//! The common format of the reports of all benchmarks, and the commands that read it:
//! `pelton bench compare` and `pelton bench report`.

use std::path::{Path, PathBuf};

use crate::common::pelton;
use pelton_testkit::TinyModel;
use serde_json::json;

/// Writes a report with one figure of these samples.
fn written(folder: &Path, name: &str, samples: &[f64]) -> String {
    let report = json!({
        "report": {
            "format": "pelton-bench", "version": 1, "kind": "offline", "pelton": "0.1.0",
            "command": [], "at": 0, "interrupted": false,
            "machine": {"cpu": "x", "n_processors": 2, "kernels": "avx2", "threads": 2},
        },
        "measures": [
            {"name": "speed", "unit": "tokens/s", "better": "higher", "samples": samples},
        ],
    });
    let path = folder.join(name);
    std::fs::write(&path, report.to_string()).expect("written");
    path.to_str().expect("UTF-8").to_owned()
}

#[test]
fn a_worse_run_ends_with_code_3_and_an_equal_one_with_0() {
    let folder = tempfile::tempdir().expect("temp");
    let fast = written(folder.path(), "a.json", &[100.0, 101.0, 99.0, 100.5, 99.5, 100.2]);
    let same = written(folder.path(), "b.json", &[100.4, 99.2, 100.9, 99.8, 100.1, 100.6]);
    let slow = written(folder.path(), "c.json", &[95.0, 96.0, 94.0, 95.5, 94.5, 95.2]);
    let equal = pelton(&["bench", "compare", &fast, &same]);
    equal.assert_answered();
    assert!(equal.stdout.contains("speed, tokens/s") && equal.stdout.contains("1 the same"));
    let worse = pelton(&["bench", "compare", &fast, &slow]);
    assert_eq!(worse.code, Some(3), "{}", worse.stderr);
    assert!(worse.stdout.contains("WORSE") && worse.stdout.contains("-5."), "{}", worse.stdout);
    assert!(worse.stderr.contains("B is worse than A in one figure"), "{}", worse.stderr);
    let better = pelton(&["bench", "compare", &slow, &fast, "--json"]).json();
    assert_eq!(better["rows"][0]["verdict"], "better");
    // Two pairs, and a difference that is too small to count.
    let pairs = ["bench", "compare", &fast, &slow, &fast, &slow, "--least", "20", "--json"];
    let pairs = pelton(&pairs).json();
    assert_eq!((&pairs["n_pairs"], &pairs["rows"][0]["verdict"]), (&2.into(), &"same".into()));
}

#[test]
fn a_figure_without_a_verdict_fails_where_all_have_to_be_decided() {
    let folder = tempfile::tempdir().expect("temp");
    let six = [100.0, 101.0, 99.0, 100.5, 99.5, 100.2];
    let decided = written(folder.path(), "a.json", &six);
    let few = written(folder.path(), "few.json", &[100.0, 101.0]);
    let more = folder.path().join("more.json");
    let text = std::fs::read_to_string(&decided).expect("readable");
    let mut report: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    let speed = report["measures"][0].clone();
    let measures = report["measures"].as_array_mut().expect("a list");
    measures.push(speed);
    measures[1]["name"] = json!("other");
    std::fs::write(&more, report.to_string()).expect("written");
    let more = more.to_str().expect("UTF-8");
    let compare = |files: [&str; 2], strict: &[&str]| {
        pelton(&[&["bench", "compare"], &files[..], strict].concat())
    };
    for (files, words) in [
        ([few.as_str(), few.as_str()], Some("too few rounds to decide: speed")),
        ([decided.as_str(), more], Some("only in one of the runs: other")),
        ([decided.as_str(), decided.as_str()], None),
    ] {
        compare(files, &[]).assert_answered();
        let strict = compare(files, &["--strict"]);
        assert_eq!(strict.code, Some(words.map_or(0, |_| 3)), "{}", strict.stderr);
        assert!(strict.stderr.contains(words.unwrap_or("")), "{}", strict.stderr);
        assert!(strict.stdout.contains("speed, tokens/s"), "{}", strict.stdout);
    }
}

#[test]
fn files_that_cannot_be_compared_are_refused_by_name() {
    let folder = tempfile::tempdir().expect("temp");
    let good = written(folder.path(), "a.json", &[1.0, 2.0]);
    let newer = folder.path().join("newer.json");
    let text = std::fs::read_to_string(&good).expect("readable");
    let text = text.replace("\"version\":1", "\"version\":7").replace("0.1.0", "9.9.9");
    std::fs::write(&newer, text).expect("written");
    let newer = newer.to_str().expect("UTF-8");
    let compare = |files: &[&str]| pelton(&[&["bench", "compare"], files].concat());
    compare(&[&good, newer]).assert_refused(&["newer.json", "version 7", "pelton 9.9.9"]);
    pelton(&["bench", "report", newer]).assert_refused(&["newer.json", "version 7"]);
    let before = std::fs::read(&good).expect("a report");
    pelton(&["bench", "report", &good, "-o", &good]).assert_refused(&["`-o`", "`FILE`", "a.json"]);
    assert_eq!(std::fs::read(&good).expect("a report"), before);
    let other = folder.path().join("other.json");
    std::fs::write(&other, "{\"figures\": []}").expect("written");
    let other = other.to_str().expect("UTF-8");
    compare(&[&good, other]).assert_refused(&["other.json", "is no report", "--json"]);
    compare(&[&good, "nowhere.json"]).assert_refused(&["nowhere.json"]);
    compare(&[&good, &good, &good]).assert_refused(&["pairs", "3"]);
    compare(&[&good]).assert_refused(&["FILE"]);
    compare(&[&good, &good, "--level", "2"]).assert_refused(&["--level"]);
}

#[test]
fn an_output_replaces_no_file_that_its_command_reads() {
    let folder = tempfile::tempdir().expect("temp");
    let written = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).expect("written");
        path.to_str().expect("UTF-8").to_owned()
    };
    let model = folder.path().join("tiny");
    TinyModel::default().write_folder(&model);
    let model = model.to_str().expect("UTF-8");
    let (text, trace) = (written("s.txt", "a word\n"), written("t.txt", "0 5 4\n"));
    let prices = written(
        "prices.json",
        r#"{"base_ms": 18, "token_ms": 1, "sample_ms": 0, "attended_ms": 0, "moved_block_ms": 0}"#,
    );
    let config = folder.path().join("tiny/config.json");
    let config = config.to_str().expect("UTF-8");
    let weights = folder.path().join("tiny/model.safetensors");
    let weights = weights.to_str().expect("UTF-8");
    let link = folder.path().join("link");
    #[cfg(unix)]
    std::os::unix::fs::symlink(weights, &link).expect("linked");
    let link = link.to_str().expect("UTF-8");
    let cases: [(&[&str], [&str; 2]); 10] = [
        (&["bench", "model", "-m", model, "--profile", weights], ["--profile", "-m"]),
        (&["bench", "model", "-m", model, "--profile", link], ["--profile", "-m"]),
        (&["bench", "model", "-m", weights, "--profile", config], ["--profile", "-m"]),
        (&["bench", "offline", "-m", model, "--profile", config], ["--profile", "-m"]),
        (&["bench", "load", "-m", model, "--save-trace", config], ["--save-trace", "-m"]),
        (
            &["bench", "sim", "--prices", &prices, "--save-trace", &prices],
            ["--save-trace", "--prices"],
        ),
        (
            &["bench", "serve", "--prompts", &text, "--vllm-json", &text],
            ["--vllm-json", "--prompts"],
        ),
        (&["bench", "serve", "--trace", &trace, "--vllm-json", &trace], ["--vllm-json", "--trace"]),
        (&["eval", "ab", model, model, "--text", &text, "--html", &text], ["--html", "--text"]),
        (&["eval", "ab", model, "story", "--text", &text, "--html", config], ["--html", "`A`"]),
    ];
    let read = || [&text, &trace, config, weights].map(|file| std::fs::read(file).expect("there"));
    let before = read();
    for (args, flags) in cases {
        pelton(args).assert_refused(&["would replace", flags[0], flags[1]]);
        assert!(read() == before, "{args:?}");
    }
}

#[test]
fn a_page_replaces_no_file_that_is_no_page() {
    let folder = tempfile::tempdir().expect("temp");
    let report = written(folder.path(), "a.json", &[1.0, 2.0]);
    let page = folder.path().join("page.html");
    let page = page.to_str().expect("UTF-8");
    // A page is written again, and nothing else is.
    pelton(&["bench", "report", &report, "-o", page]).assert_answered();
    pelton(&["bench", "report", &report, "-o", page]).assert_answered();
    let notes = folder.path().join("notes");
    std::fs::write(&notes, "mine").expect("written");
    let foreign = ["bench", "report", &report, "-o", notes.to_str().expect("UTF-8")];
    pelton(&foreign).assert_refused(&["`-o`", "notes", "no page"]);
    assert_eq!(std::fs::read(&notes).expect("there"), b"mine");
}

#[test]
fn every_benchmark_prints_the_same_head_and_a_page_shows_it() {
    let folder = tempfile::tempdir().expect("temp");
    let runs: [(&str, &[&str]); 6] = [
        ("kernels", &["--quick", "--filter", "norm"]),
        (
            "model",
            &[
                "--prompt",
                "9",
                "--generate",
                "2",
                "--batch",
                "1",
                "--context",
                "16",
                "--verify",
                "1",
                "--rounds",
                "2",
            ],
        ),
        ("sim", &["-n", "50"]),
        ("load", &["-n", "4", "--scale", "0.05", "--rate", "50"]),
        ("grammar", &["--walks", "1"]),
        ("offline", &["--batch", "2", "--lengths", "9:4", "--rounds", "2"]),
    ];
    let mut files: Vec<PathBuf> = Vec::new();
    for (kind, more) in runs {
        let told = pelton(&[&["bench", kind, "--json"], more].concat()).json();
        let head = &told["report"];
        assert_eq!((&head["format"], &head["version"]), (&"pelton-bench".into(), &1.into()));
        assert_eq!((&head["kind"], &head["interrupted"]), (&kind.into(), &false.into()));
        assert!(head["machine"]["cpu"].is_string() && head["command"][1] == "bench", "{head}");
        let measures = told["measures"].as_array().expect("measures");
        assert!(!measures.is_empty(), "{kind}");
        for measure in measures {
            assert!(measure["median"].is_number() && measure["unit"].is_string(), "{measure}");
        }
        let path = folder.path().join(format!("{kind}.json"));
        std::fs::write(&path, told.to_string()).expect("written");
        files.push(path);
    }
    let page = folder.path().join("page.html");
    let charts = folder.path().join("charts");
    let mut words = vec!["bench", "report", "-o", page.to_str().expect("UTF-8")];
    let folder_of_charts = charts.to_str().expect("UTF-8");
    words.extend(["--svg", folder_of_charts, "--png", folder_of_charts]);
    words.extend(files.iter().map(|file| file.to_str().expect("UTF-8")));
    pelton(&words).assert_answered();
    let html = std::fs::read_to_string(&page).expect("a page");
    for (kind, _) in runs {
        assert!(html.contains(&format!("<h2>{kind}: {kind}.json</h2>")), "{kind}");
    }
    assert!(html.contains("<svg") && !html.contains("<script"));
    let names: Vec<String> = std::fs::read_dir(&charts)
        .expect("a folder")
        .map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned())
        .collect();
    assert!(names.contains(&"6-roofline.svg".to_owned()), "{names:?}");
    let image = std::fs::read(charts.join("6-roofline.png")).expect("the same chart as an image");
    assert!(image.starts_with(b"\x89PNG\r\n\x1a\n"));
}
