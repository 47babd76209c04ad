//! `--activation-group` through the real binary.

use std::path::Path;

use crate::common::{command, outcome, pelton};
use pelton_testkit::TinyModel;
use pelton_testkit::golden::decoder_at;

const GROUPS: [&str; 4] = ["32", "64", "128", "row"];

/// A quantized checkpoint of the tests of `model`, written to a folder.
struct Checkpoint {
    folder: tempfile::TempDir,
}

impl Checkpoint {
    fn new(name: &str) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../model/tests/checkpoints");
        decoder_at(&root.join(name)).checkpoint.write_folder(folder.path());
        Self { folder }
    }

    fn path(&self) -> &str {
        self.folder.path().to_str().expect("UTF-8")
    }
}

#[test]
fn every_size_computes_the_same_logits_on_every_instruction_set() {
    let tokens: Vec<String> = (0..60).map(|i| (1 + i * 7 % 60).to_string()).collect();
    let tokens = tokens.join(",");
    for (name, n_sizes) in [("ct-w8a8", 3), ("awq-g64", 2), ("awq-g32", 1)] {
        let checkpoint = Checkpoint::new(name);
        let mut seen = Vec::new();
        for group in GROUPS {
            let args = [
                "logits",
                "-m",
                checkpoint.path(),
                "--tokens",
                &tokens,
                "--activation-group",
                group,
            ];
            let on = |kernels: &str| {
                let mut command = command(&args);
                let ran = outcome(&command.env("PELTON_KERNELS", kernels).output().expect("runs"));
                ran.assert_answered();
                ran.stdout
            };
            let logits = on("scalar");
            for kernels in pelton_kernels::Kernels::available() {
                assert_eq!(on(kernels.name), logits, "{name}, {group}, {}", kernels.name);
            }
            if !seen.contains(&logits) {
                seen.push(logits);
            }
        }
        // Rows of these models are narrow: a group of 128 may be a row.
        assert!(seen.len() >= n_sizes, "{name}: {} different results", seen.len());
        assert!(n_sizes > 1 || seen.len() == 1, "{name} has scales for 32 inputs");
    }
}

#[test]
fn inspect_names_the_size_and_other_words_are_refused() {
    let checkpoint = Checkpoint::new("ct-w8a8");
    let path = checkpoint.path();
    let report = pelton(&["inspect", path, "--json", "--activation-group", "row"]).json();
    assert_eq!(report["activation_groups"]["int8-row"], "row");
    let table = pelton(&["inspect", path]);
    table.assert_answered();
    assert!(table.stdout.contains("a scale for 32 (int8-row)"), "{}", table.stdout);
    let refused = pelton(&["run", "-m", path, "--activation-group", "256", "x"]);
    refused.assert_refused(&["activation-group", "32", "64", "128", "row"]);
}

#[test]
fn eval_measures_what_larger_groups_cost() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name).to_str().expect("UTF-8").to_owned();
    let (model, int8, text) = (path("tiny"), path("int8"), path("text"));
    TinyModel::default().write_folder(model.as_ref());
    std::fs::write(&text, "Once upon a time there was a mill by a river. ".repeat(20))
        .expect("text");
    pelton(&["quantize", &model, &int8, "--method", "int8"]).assert_answered();
    let kl = |group: &str| {
        let args = ["eval", &int8, "--reference", &int8, "--text", &text, "--json"];
        let report = pelton(&[&args[..], &["--activation-group", group]].concat()).json();
        report["against"]["kl_divergence"]["value"].as_f64().expect("a divergence")
    };
    assert_eq!(kl("32"), 0.0, "the same model");
    let row = kl("row");
    assert!(0.0 < row && row < 0.02, "{row} nats");
}
