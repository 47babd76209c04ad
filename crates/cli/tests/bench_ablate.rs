//! `pelton bench ablate` through the real binary, with the model inside it.

use crate::common::{command, interrupted, pelton};

const TINY: [&str; 10] =
    ["bench", "ablate", "-n", "4", "--scale", "0.05", "--clients", "2", "--rounds", "2"];

#[test]
fn each_technique_is_measured_alone_and_on_top_of_the_others() {
    let more = ["--technique", "max_running=2,prefix_cache=true,spec=ngram", "--json"];
    let told = pelton(&[&TINY[..], &more].concat()).json();
    let names = |list: &str| -> Vec<String> {
        let list = told[list].as_array().expect("a list");
        list.iter().map(|figure| figure["name"].as_str().expect("a name").to_owned()).collect()
    };
    let techniques = ["max_running=2", "prefix_cache=true", "spec=ngram"];
    assert_eq!(names("alone"), techniques);
    assert_eq!(names("stacked"), [&["plain"], &techniques[..]].concat());
    for list in ["alone", "stacked"] {
        for figure in told[list].as_array().expect("a list") {
            let rounds = figure["tokens_per_s"]["rounds"].as_array().expect("rounds");
            assert_eq!(rounds.len(), 2, "{figure}");
            assert!(figure["to_plain"]["median"].as_f64().is_some_and(|x| x > 0.0), "{figure}");
        }
    }
    // One measurement is shown twice.
    let rounds = |list: &str, at: usize| told[list][at]["tokens_per_s"]["rounds"].clone();
    assert_eq!(rounds("stacked", 1), rounds("alone", 0));
    assert_eq!(told["stacked"][1]["to_last"], told["stacked"][1]["to_plain"]);
    assert_eq!(told["measures"].as_array().map(Vec::len), Some(7));
}

#[test]
fn techniques_that_are_no_settings_are_refused_by_name() {
    let refused = |technique: &str, parts: &[&str]| {
        pelton(&["bench", "ablate", "--technique", technique]).assert_refused(parts);
    };
    refused("speed=11", &["speed=11", "no setting `speed`"]);
    refused("max_running", &["max_running", "KEY=VALUE"]);
    refused("max_running=many", &["max_running=many", "whole number"]);
    refused("kv_dtype=int3", &["kv_dtype=int3", "int8"]);
}

#[test]
fn flags_of_arrivals_are_refused_where_clients_wait_for_answers() {
    for (flag, value) in [("--rate", "3"), ("--arrivals", "bursty")] {
        let parts = [&format!("`{flag}`")[..], "once another has ended"];
        pelton(&["bench", "ablate", flag, value]).assert_refused(&parts);
    }
}

#[test]
fn a_round_without_any_answer_is_a_failure_with_the_reason() {
    let long = ["bench", "ablate", "-n", "2", "--lengths", "4000:4000"];
    let ended = pelton(&[&long[..], &["--technique", "max_running=2"]].concat());
    assert_eq!(ended.code, Some(1), "{}", ended.stderr);
    let line = "error: plain: no request was answered: prompt too long";
    assert!(ended.stderr.contains(line), "{}", ended.stderr);
}

#[test]
fn a_technique_that_fails_keeps_what_was_measured_before() {
    let more = ["--technique", "max_running=2,kv_memory=1KiB", "--json"];
    let ended = pelton(&[&TINY[..], &more].concat());
    assert!(
        ended.stderr.contains("error: kv_memory=1KiB: ") && ended.code == Some(2),
        "{}",
        ended.stderr
    );
    let told: serde_json::Value = serde_json::from_str(&ended.stdout).expect("a report");
    assert_eq!(told["report"]["interrupted"], true);
    let names: Vec<_> =
        told["stacked"].as_array().expect("a list").iter().map(|f| &f["name"]).collect();
    assert_eq!(names, ["plain", "max_running=2"]);
}

#[test]
fn ctrl_c_keeps_the_rounds_that_are_done() {
    let more = ["--technique", "max_running=2", "--json", "--rounds", "20", "-n", "32"];
    let args = ["bench", "ablate", "--scale", "0.1", "--clients", "2"];
    let told = interrupted(command(&[&args[..], &more].concat()), "round 1 of 20  plain");
    let stacked = told["stacked"].as_array().expect("a list");
    assert_eq!(stacked[0]["name"], "plain");
    let rounds = stacked[0]["tokens_per_s"]["rounds"].as_array().expect("rounds");
    assert!((1..20).contains(&rounds.len()), "{told}");
}
