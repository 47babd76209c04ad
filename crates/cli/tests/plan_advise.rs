//! `pelton plan advise` through the real binary.

use crate::common::{self, bare_config, pelton};
use serde_json::json;

#[test]
fn every_scenario_is_advised_in_order_with_reasons() {
    let folder = tempfile::tempdir().expect("temp");
    let model = bare_config(folder.path());
    for scenario in ["chat", "rag", "agents", "batch", "code", "edge"] {
        let args = ["plan", "advise", &model, "--hardware", "rtx-4090", "--scenario", scenario];
        let told = pelton(&[&args[..], &["--json"]].concat()).json();
        let steps = told["steps"].as_array().expect("steps");
        assert!(!steps.is_empty(), "{scenario}");
        for step in steps {
            let [low, gain, high] = [&step["range"][0], &step["gain"], &step["range"][1]]
                .map(|x| x.as_f64().expect("a number"));
            assert!(low <= gain && gain <= high && gain >= 1.0, "{step}");
            assert!(step["reason"].as_str().is_some_and(|reason| !reason.is_empty()), "{step}");
        }
        let text = pelton(&args);
        text.assert_answered();
        for part in ["plain", "1. ", "advised", "limit", "datasheet"] {
            assert!(text.stdout.contains(part), "`{part}` is missing in\n{}", text.stdout);
        }
    }
}

#[test]
fn the_written_settings_are_those_of_a_server() {
    let folder = tempfile::tempdir().expect("temp");
    let file = folder.path().join("serve.yaml");
    let file = file.to_str().expect("UTF-8");
    // The model inside the binary is stored in q8_0 already.
    let args = ["plan", "advise", "--hardware", "xeon-8480", "--loss", "0", "--input", "64"];
    let more = ["--output", "32", "--batch", "4", "--write", file];
    pelton(&[&args[..], &more].concat()).assert_answered();
    let yaml = std::fs::read_to_string(file).expect("written");
    assert!(yaml.contains("max_context: 96"), "{yaml}");
    let checked = pelton(&["serve", "--config", file, "--check-config"]);
    checked.assert_answered();
    assert!(checked.stdout.contains("max_context: 96"), "{}", checked.stdout);
}

#[test]
fn a_trace_is_a_workload_too() {
    let folder = tempfile::tempdir().expect("temp");
    let model = bare_config(folder.path());
    let trace = folder.path().join("trace");
    std::fs::write(&trace, "0 100 10 prefix=1:50\n5 300 30 prefix=1:50\n").expect("written");
    let trace = trace.to_str().expect("UTF-8");
    let args = ["plan", "advise", &model, "--hardware", "h200", "--trace", trace, "--json"];
    let told = pelton(&args).json();
    let scenario = &told["scenario"];
    assert_eq!((&scenario["input_tokens"], &scenario["output_tokens"]), (&200.into(), &20.into()));
    assert_eq!(scenario["shared_prefix"], 0.125);
}

#[test]
fn every_scenario_with_every_goal_writes_settings_that_a_server_takes() {
    let folder = tempfile::tempdir().expect("temp");
    let (model, file) = (bare_config(folder.path()), folder.path().join("serve.yaml"));
    let file = file.to_str().expect("UTF-8");
    for scenario in ["chat", "rag", "agents", "batch", "code", "edge"] {
        for goal in ["latency", "throughput", "memory", "cost"] {
            let args =
                ["plan", "advise", &model, "--hardware", "xeon-8480", "--scenario", scenario];
            let more = ["--goal", goal, "--json", "--write", file];
            let told = pelton(&[&args[..], &more].concat()).json();
            let checked = pelton(&["serve", "--config", file, "--check-config"]);
            assert_eq!(checked.code, Some(0), "{scenario}, {goal}: {}", checked.stderr);
            let lines: Vec<&str> = checked.stdout.lines().map(str::trim).collect();
            let settings = &told["settings"];
            for key in ["kv_dtype", "max_running", "max_context", "prefix_cache"] {
                let value = settings[key].to_string().replace('"', "");
                let line = format!("{key}: {value}");
                assert!(lines.contains(&line.as_str()), "{scenario}, {goal}: no `{line}`");
            }
            let spec = if settings["drafts"].is_null() { "spec: \"off\"" } else { "spec: auto" };
            assert!(lines.contains(&spec), "{scenario}, {goal}: no `{spec}`: {}", checked.stdout);
        }
    }
}

#[test]
fn the_server_takes_every_combination_of_techniques_that_advice_can_choose() {
    let folder = tempfile::tempdir().expect("temp");
    let path = folder.path().join("serve.yaml");
    for chosen in 0..16 {
        let mut text = "model: story\n".to_owned();
        for (at, line) in ["kv_dtype: int8", "max_running: 8", "prefix_cache: true", "spec: auto"]
            .into_iter()
            .enumerate()
        {
            text += &(if chosen >> at & 1 == 1 { format!("{line}\n") } else { String::new() });
        }
        std::fs::write(&path, &text).expect("written");
        let file = path.to_str().expect("UTF-8");
        let checked = pelton(&["serve", "--config", file, "--check-config"]);
        assert_eq!(checked.code, Some(0), "{text}{}", checked.stderr);
    }
}

#[test]
fn pairs_that_exclude_each_other_are_those_that_the_server_refuses() {
    let folder = tempfile::tempdir().expect("temp");
    let (model, path) = (bare_config(folder.path()), folder.path().join("serve.yaml"));
    let args = ["plan", "advise", &model, "--hardware", "rtx-4090"];
    let told = pelton(&[&args[..], &["--json"]].concat()).json();
    let excluded = told["excludes"]["excluded"].as_array().expect("pairs");
    assert!(told["excludes"]["pairs_tried"].as_u64().expect("a count") > excluded.len() as u64);
    let mut n_refused = 0;
    for pair in excluded {
        let settings = pair["settings"].as_array().expect("two lists").iter();
        let settings = settings.flat_map(|list| list.as_array().expect("settings"));
        let reason = pair["reason"].as_str().expect("words");
        if reason.contains(" is either ") {
            continue;
        }
        let line =
            |setting: &serde_json::Value| setting.as_str().expect("words").replacen('=', ": ", 1);
        let mut lines: Vec<String> = settings.map(line).collect();
        lines.sort();
        lines.dedup();
        std::fs::write(&path, format!("model: story\n{}\n", lines.join("\n"))).expect("written");
        let file = path.to_str().expect("UTF-8");
        let checked = pelton(&["serve", "--config", file, "--check-config"]);
        assert_eq!(checked.code, Some(2), "{pair}: {}", checked.stdout);
        n_refused += 1;
    }
    assert!(n_refused > 0, "{told}");
    let text = pelton(&args).stdout;
    assert_eq!(text.matches("\nexcludes   ").count(), excluded.len(), "{text}");
    assert!(text.contains("lossy drafts and kept results: `--result-cache`"), "{text}");
}

#[test]
fn a_price_is_shown_and_contradictions_are_named_with_what_would_do() {
    let folder = tempfile::tempdir().expect("temp");
    let model = bare_config(folder.path());
    let args = ["plan", "advise", &model, "--hardware", "rtx-4090"];
    let text = pelton(&[&args[..], &["--goal", "cost", "--price-per-hour", "0.7"]].concat());
    text.assert_answered();
    assert_eq!(text.stdout.matches(" per million tokens").count(), 2, "{}", text.stdout);
    for part in ["phase 0 ", "phase 1 ", "% of perplexity", "GiB that rtx-4090 has: yes"] {
        assert!(text.stdout.contains(part), "`{part}` is missing in\n{}", text.stdout);
    }
    assert!(!text.stdout.contains("would do"), "{}", text.stdout);
    let tight = pelton(&[&args[..], &["--memory", "4GiB", "--loss", "0"]].concat());
    for part in ["would do   memory: `--memory ", "would do   quality: `--loss 4.13`"] {
        assert!(tight.stdout.contains(part), "`{part}` is missing in\n{}", tight.stdout);
    }
}

#[test]
fn the_written_settings_take_the_longest_request_of_the_trace() {
    let folder = tempfile::tempdir().expect("temp");
    let at = |name: &str| folder.path().join(name).to_str().expect("UTF-8").to_owned();
    let (trace, file) = (at("trace"), at("serve.yaml"));
    let lines: String = (0..9).map(|n| format!("{} 20 10\n", 100 * n)).collect();
    std::fs::write(&trace, lines + "900 300 50\n").expect("written");
    let args = ["plan", "advise", "--hardware", "xeon-8480", "--loss", "0", "--trace", &trace];
    let told = pelton(&[&args[..], &["--json", "--write", &file]].concat()).json();
    assert_eq!(told["scenario"]["longest_tokens"], 350);
    assert_eq!(told["scenario"]["input_tokens"], 48);
    let words = told["scenario"]["words"].as_str().expect("words");
    assert!(words.contains("10 recorded requests at 10.00 per second"), "{words}");
    let checked = pelton(&["serve", "--config", &file, "--check-config"]);
    checked.assert_answered();
    assert!(checked.stdout.contains("max_context: 350"), "{}", checked.stdout);
    // Ten at the same moment are ten at once, unless a flag says otherwise.
    std::fs::write(&trace, "0 20 10\n".repeat(10)).expect("written");
    let batch = |more: &[&str]| {
        pelton(&[&args[..], &["--json"], more].concat()).json()["scenario"]["batch"].clone()
    };
    assert_eq!((batch(&[]), batch(&["--batch", "3"])), (10.into(), 3.into()));
}

#[test]
fn wishes_that_cannot_be_met_are_refused_or_marked() {
    let folder = tempfile::tempdir().expect("temp");
    let model = bare_config(folder.path());
    let advise = |more: &[&str]| pelton(&[&["plan", "advise", &model], more].concat());
    advise(&["--scenario", "chats"]).assert_refused(&["chats", "rag", "did you mean `chat`"]);
    advise(&["--hardware", "h9000"]).assert_refused(&["h9000", "pelton doctor"]);
    advise(&["--goal", "beauty"]).assert_refused(&["--goal", "latency"]);
    let tight = ["--hardware", "rtx-4090", "--memory", "4GiB", "--loss", "0"];
    let text = advise(&tight);
    text.assert_answered();
    assert!(text.stdout.contains("of memory: NO"), "{}", text.stdout);
    let file = folder.path().join("serve.yaml");
    let written = advise(&[&tight[..], &["--write", file.to_str().expect("UTF-8")]].concat());
    assert_eq!(written.code, Some(2));
    assert!(
        written.stderr.contains("a limit does not hold") && !file.exists(),
        "{}",
        written.stderr
    );
}

#[test]
fn settings_replace_earlier_ones_and_no_other_file() {
    let folder = tempfile::tempdir().expect("temp");
    let model = bare_config(folder.path());
    let file = folder.path().join("serve.yaml");
    let path = file.to_str().expect("UTF-8");
    let advise = |batch: &str| {
        let args = ["plan", "advise", &model, "--hardware", "xeon-8480", "--batch", batch];
        pelton(&[&args[..], &["--write", path]].concat())
    };
    let settings = |batch| {
        advise(batch).assert_answered();
        std::fs::read_to_string(&file).expect("written")
    };
    let (first, second) = (settings("2"), settings("4"));
    assert!(first.contains("max_running: 2\n") && second.contains("max_running: 4\n"), "{second}");
    for other in [
        "# Written by hand, and there is no other copy of it.\nmodel: story\n",
        "model: story\n",
        "",
    ] {
        std::fs::write(&file, other).expect("written");
        // Refused before anything is printed or measured.
        advise("2").assert_refused(&["serve.yaml exists", "give another name"]);
        assert_eq!(std::fs::read_to_string(&file).expect("there"), other);
    }
    let nowhere = folder.path().join("nowhere/serve.yaml");
    let nowhere = nowhere.to_str().expect("UTF-8");
    let args = ["plan", "advise", &model, "--hardware", "xeon-8480", "--write", nowhere];
    pelton(&args).assert_refused(&["nowhere/serve.yaml"]);
}

/// Writes a record of this machine with the figures of a known profile, since a quick doctor keeps
/// none.
fn write_record(folder: &std::path::Path) {
    let told = pelton(&["plan", "--hardware", "xeon-8480", "--json"]).json();
    let head = pelton(&["bench", "sim", "-n", "20", "--json"]).json()["report"]["machine"].clone();
    let mut hardware = told["hardware"].clone();
    hardware["name"] = json!("here");
    let record = json!({"version": 1, "machines": [{
        "fingerprint": {"cpu": head["cpu"], "kernels": head["kernels"], "threads": head["threads"]},
        "measured_at": 1, "is_noisy": false, "spread_percent": 1.0, "hardware": hardware,
    }]});
    let cache = folder.join("pelton");
    std::fs::create_dir_all(&cache).expect("a folder");
    std::fs::write(cache.join("machine.json"), record.to_string()).expect("written");
}

/// Advice for a small workload, with the record of a folder.
fn measuring(folder: &std::path::Path, more: &[&str]) -> std::process::Command {
    let common = ["plan", "advise", "--input", "24", "--output", "6", "--batch", "2"];
    let mut command = common::command(&[&common[..], more].concat());
    command.env("XDG_CACHE_HOME", folder);
    command
}

#[test]
fn a_measurement_that_ends_early_prints_the_advice_and_the_rounds_until_then() {
    let folder = tempfile::tempdir().expect("temp");
    write_record(folder.path());
    let args = ["--goal", "throughput", "--measure"];
    let json = measuring(folder.path(), &[&args[..], &["--json"]].concat());
    let told: serde_json::Value =
        serde_json::from_str(&common::stopped(json, "round 1 of 3  batching").stdout)
            .expect("JSON");
    assert_eq!(told["interrupted"], true);
    let (steps, measured) = (told["steps"].as_array(), told["measured"].as_array());
    let (steps, measured) = (steps.expect("steps"), measured.expect("measured"));
    let at = steps.iter().position(|step| step["technique"] == "batching").expect("a step");
    assert!(measured[at].as_f64().is_some_and(|x| x > 0.0), "{told}");
    let text = common::stopped(measuring(folder.path(), &args), "round 1 of 3  plain").stdout;
    for part in ["advised", "measured   not to the end"] {
        assert!(text.contains(part), "`{part}` is missing in\n{text}");
    }
    // A model without its weights ends the measurement with its error, after the advice.
    let model = bare_config(folder.path());
    let broken = measuring(folder.path(), &[&args[..], &[&model]].concat()).output();
    let broken = common::outcome(&broken.expect("the binary starts"));
    assert!(broken.stdout.contains("measured   not to the end"), "{}", broken.stdout);
    assert!(
        broken.stderr.contains("error: plain: ") && broken.code == Some(2),
        "{}",
        broken.stderr
    );
}

#[test]
fn measured_gains_stand_beside_the_expected_ones() {
    let folder = tempfile::tempdir().expect("temp");
    write_record(folder.path());
    let advise = |more: &[&str]| {
        let output = measuring(folder.path(), more).output();
        common::outcome(&output.expect("the binary starts"))
    };
    let told = advise(&["--goal", "throughput", "--measure", "--json"]).json();
    let (steps, measured) = (told["steps"].as_array(), told["measured"].as_array());
    let (steps, measured) = (steps.expect("steps"), measured.expect("measured"));
    assert_eq!(steps.len(), measured.len());
    for (step, measured) in steps.iter().zip(measured) {
        let is_served = step["settings"].as_array().is_some_and(|keys| !keys.is_empty());
        assert_eq!(measured.as_f64().is_some_and(|x| x > 0.0), is_served, "{step} {measured}");
    }
    assert!(steps.iter().any(|step| step["technique"] == "batching"), "{steps:?}");
    let text = advise(&["--goal", "throughput", "--measure"]);
    assert!(text.stdout.contains(", measured "), "{}", text.stdout);
    advise(&["--goal", "memory", "--measure"]).assert_refused(&["--measure", "memory"]);
}
