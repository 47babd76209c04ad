//! `pelton bench offline`, through the real binary and with the model inside it, at tiny sizes.

use crate::common::{command, interrupted, pelton};

const TINY: [&str; 8] =
    ["bench", "offline", "--batch", "1,3", "--lengths", "24:6,9:4", "--rounds", "2"];

#[test]
fn every_shape_is_measured_once_per_round_and_nothing_is_trimmed() {
    let report = pelton(&[&TINY[..], &["--threads", "2", "--json"]].concat()).json();
    assert_eq!(report["report"]["kind"], "offline");
    if cfg!(target_os = "linux") {
        let noise = &report["report"]["noise"];
        for share in ["others_share", "stolen_share"] {
            let share = noise[share].as_f64();
            assert!(share.is_some_and(|share| (0.0..=1.0).contains(&share)), "{noise}");
        }
        assert!(noise["is_noisy"].is_boolean(), "{noise}");
    }
    let figures = report["figures"].as_array().expect("figures");
    let names: Vec<&str> = figures.iter().map(|x| x["name"].as_str().expect("a name")).collect();
    assert_eq!(names, ["1 x 24 + 6", "3 x 24 + 6", "1 x 9 + 4", "3 x 9 + 4"]);
    for figure in figures {
        let (batch, output) = (&figure["batch"], &figure["output_tokens"]);
        let [batch, output] = [batch, output].map(|n| n.as_u64().expect("a count"));
        for rate in ["prompt_tokens_per_s", "generated_tokens_per_s", "output_tokens_per_s"] {
            let rounds = figure[rate]["rounds"].as_array().expect("rounds");
            assert_eq!(rounds.len(), 2, "{rate}: {figure}");
            assert!(rounds.iter().all(|x| x.as_f64().is_some_and(|x| x > 0.0)), "{figure}");
        }
        // Two rounds: every request has a first token, and a gap before each further one.
        assert_eq!(figure["ttft_ms"]["n"], 2 * batch);
        assert_eq!(figure["itl_ms"]["n"], 2 * batch * (output - 1));
        assert!(figure["itl_ms"]["p99"]["interval"]["high"].is_number(), "{figure}");
        for share in
            ["prompt_mfu_percent", "generation_mfu_percent", "generation_bandwidth_percent"]
        {
            assert!(figure[share].as_f64().is_some_and(|x| x > 0.0), "{share}: {figure}");
        }
    }
    assert!(report["peak_bytes"].as_u64() > report["weight_bytes"].as_u64());
    let measures = report["measures"].as_array().expect("measures");
    assert_eq!(measures.len(), 4 * 4);
    assert!(measures.iter().all(|m| m["samples"].as_array().is_some_and(|s| s.len() == 2)));
}

#[test]
fn the_table_has_prompts_and_generation_apart() {
    let text = pelton(&[&TINY[..], &["--threads", "1"]].concat());
    text.assert_answered();
    for part in ["prompts/s", "generated/s", "token P50 / P95 / P99 ms", "3 x 24 + 6", "memory:"] {
        assert!(text.stdout.contains(part), "`{part}` is missing in\n{}", text.stdout);
    }
    assert!(text.stderr.contains("round 2 of 2"), "{}", text.stderr);
    if cfg!(target_os = "linux") {
        let last = text.stdout.lines().last().expect("lines");
        assert!(last.starts_with("the run was in a "), "{last}");
        assert!(last.contains("other programs took"), "{last}");
    }
}

#[test]
fn lengths_beyond_the_model_are_refused_by_flag() {
    let refused = |more: &[&str], parts: &[&str]| {
        pelton(&[&["bench", "offline"], more].concat()).assert_refused(parts);
    };
    refused(&["--lengths", "100000:1"], &["--lengths", "context"]);
    refused(&["--lengths", "8"], &["--lengths", "128:64"]);
    refused(&["--batch", "0"], &["--batch"]);
    refused(&["--batch", "100000000", "--lengths", "8:8"], &["100000000 x 8 + 8", "memory"]);
}

#[test]
fn ctrl_c_keeps_the_rounds_that_are_done() {
    let args = ["--lengths", "16:8", "--batch", "1", "--rounds", "100000", "--json"];
    let report = interrupted(command(&[&["bench", "offline"], &args[..]].concat()), "round 2");
    let samples = report["measures"][0]["samples"].as_array().expect("samples");
    assert!(samples.len() >= 2, "{samples:?}");
}
