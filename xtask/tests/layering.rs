//! The plan of the house, checked: dependencies only point down, and `unsafe` stays in two rooms.
//!
//! The table below lists the floors. A new crate needs a line in it; a dependency on the same floor
//! or above fails the test with the names of both crates.

use std::path::PathBuf;
use std::process::Command;

use serde_json::Value;

/// Every crate and its floor; a crate may use only crates with a smaller number.
///
/// `text` reads the vocabularies inside GGUF files, so on the ground floor it stands one step above
/// `tensor`. Reserved rooms are listed, so that they land on their floor when they are built.
const FLOORS: &[(&str, u32)] = &[
    ("pelton-base", 0),
    ("pelton-sched", 10),
    ("pelton-gateway", 10),
    ("pelton-tensor", 10),
    ("pelton-text", 11),
    ("pelton-parse", 11),
    ("pelton-kernels", 20),
    ("pelton-sim", 20),
    ("pelton-quant", 30),
    ("pelton-comm", 30),
    ("pelton-kvstore", 30),
    ("pelton-model", 40),
    ("pelton-sampling", 40),
    ("pelton-grammar", 40),
    ("pelton-engine", 50),
    ("pelton-plan", 50),
    ("pelton-cuda", 50),
    ("pelton-llm", 60),
    ("pelton-quantize", 60),
    ("pelton-train", 60),
    // The library under its public name.
    ("pelton", 65),
    ("pelton-server", 70),
    ("pelton-bench", 70),
    ("pelton-cli", 80),
    ("pelton-python", 90),
    // Beside the house: a tool that no crate depends on.
    ("xtask", 100),
];

/// Helpers for tests: every crate may use them, but only in tests.
const TESTKIT: &str = "pelton-testkit";

/// One edge between two crates of the workspace.
#[derive(Clone, Debug)]
struct Edge {
    from: String,
    to: String,
    is_dev: bool,
}

fn floor_of(name: &str) -> Option<u32> {
    FLOORS.iter().find(|(known, _)| *known == name).map(|(_, floor)| *floor)
}

/// Every edge that breaks the plan, in words.
fn violations(edges: &[Edge]) -> Vec<String> {
    let mut found = Vec::new();
    let testkit_floor = edges
        .iter()
        .filter(|edge| edge.from == TESTKIT)
        .filter_map(|edge| floor_of(&edge.to))
        .max()
        .unwrap_or(0);
    for Edge { from, to, is_dev } in edges {
        if to == TESTKIT {
            if !is_dev {
                found.push(format!("{from} uses {TESTKIT} outside of tests"));
            }
            // `model` itself may, in `tests/`: cargo builds one copy of it for them and for the testkit.
            if floor_of(from).is_some_and(|floor| floor < testkit_floor) {
                found.push(format!("{from} uses {TESTKIT}, which stands on crates above it"));
            }
            continue;
        }
        if from == TESTKIT {
            continue;
        }
        match (floor_of(from), floor_of(to)) {
            (Some(upper), Some(lower)) if upper > lower => {}
            (Some(_), Some(_)) => found.push(format!("{from} uses {to}, which is not below it")),
            (None, _) => found.push(format!("{from} has no floor: add it to FLOORS")),
            (_, None) => found.push(format!("{to} has no floor: add it to FLOORS")),
        }
    }
    found
}

/// The workspace as `cargo metadata` sees it; needs no network.
fn metadata() -> Value {
    let output = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
        .args(["metadata", "--format-version", "1", "--no-deps", "--offline"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .expect("cargo starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("cargo prints JSON")
}

fn packages(metadata: &Value) -> &[Value] {
    metadata["packages"].as_array().expect("a list of packages")
}

fn edges(metadata: &Value) -> Vec<Edge> {
    let mut edges = Vec::new();
    for package in packages(metadata) {
        for dependency in package["dependencies"].as_array().expect("a list of dependencies") {
            // Crates of the workspace are the ones given by path.
            if dependency["path"].is_string() {
                edges.push(Edge {
                    from: package["name"].as_str().expect("a name").to_owned(),
                    to: dependency["name"].as_str().expect("a name").to_owned(),
                    is_dev: dependency["kind"] == "dev",
                });
            }
        }
    }
    edges
}

#[test]
fn dependencies_only_point_down() {
    let edges = edges(&metadata());
    assert!(edges.len() > 20, "cargo metadata has only {} edges", edges.len());
    let found = violations(&edges);
    assert!(found.is_empty(), "the plan of the house is broken:\n  {}", found.join("\n  "));
}

#[test]
fn every_crate_of_the_workspace_has_a_floor() {
    let metadata = metadata();
    for package in packages(&metadata) {
        let name = package["name"].as_str().expect("a name");
        assert!(name == TESTKIT || floor_of(name).is_some(), "{name} has no floor");
    }
}

#[test]
fn an_edge_that_points_up_or_sideways_is_caught() {
    let edge = |from: &str, to: &str, is_dev| Edge { from: from.into(), to: to.into(), is_dev };
    let broken = [
        edge("pelton-sched", "pelton-engine", false),
        edge("pelton-sched", "pelton-tensor", false),
        edge("pelton-kernels", "pelton-model", true),
        edge("pelton-model", TESTKIT, false),
        edge("pelton-attic", "pelton-base", false),
        edge("pelton-cli", "xtask", false),
    ];
    for edge in broken {
        let found = violations(std::slice::from_ref(&edge));
        assert_eq!(found.len(), 1, "{edge:?} gave {found:?}");
    }
    let below_testkit =
        [edge(TESTKIT, "pelton-quant", false), edge("pelton-kernels", TESTKIT, true)];
    assert_eq!(violations(&below_testkit).len(), 1);
    let sound = [edge(TESTKIT, "pelton-model", false), edge("pelton-model", TESTKIT, true)];
    assert_eq!(violations(&sound), Vec::<String>::new());
}

#[test]
fn no_unit_test_of_model_uses_the_testkit() {
    // It would see two copies of `model`: itself, and the one below the testkit.
    let mut folders = vec![PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../crates/model/src")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).expect("a folder of sources") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let text = std::fs::read_to_string(&path).expect("a source");
            assert!(!text.contains("pelton_testkit"), "{}", path.display());
        }
    }
}

#[test]
fn every_test_file_belongs_to_a_test_binary() {
    for package in packages(&metadata()) {
        let targets = package["targets"].as_array().expect("a list of targets");
        let tests = targets.iter().filter(|target| target["kind"][0] == "test");
        let roots: Vec<PathBuf> =
            tests.map(|target| target["src_path"].as_str().expect("a path").into()).collect();
        let read = |root: &PathBuf| std::fs::read_to_string(root).expect("a test file");
        let modules: String = roots.iter().map(read).collect();
        let manifest = PathBuf::from(package["manifest_path"].as_str().expect("a path"));
        let Ok(folder) = std::fs::read_dir(manifest.with_file_name("tests")) else { continue };
        for entry in folder {
            let path = entry.expect("an entry").path();
            if path.extension().is_none_or(|extension| extension != "rs") || roots.contains(&path) {
                continue;
            }
            let module = format!("mod {};", path.file_stem().expect("a name").display());
            let is_module = modules.lines().any(|line| line == module);
            assert!(is_module, "`{module}` is missing in the tests/all.rs of {}", path.display());
        }
    }
}

#[test]
fn unsafe_code_is_forbidden_outside_of_two_crates() {
    let metadata = metadata();
    for package in packages(&metadata) {
        let name = package["name"].as_str().expect("a name");
        if ["pelton-kernels", "pelton-tensor"].contains(&name) {
            continue;
        }
        for target in package["targets"].as_array().expect("a list of targets") {
            let kinds = target["kind"].as_array().expect("a list of kinds");
            if !kinds.iter().any(|kind| kind == "lib" || kind == "bin") {
                continue;
            }
            let root = PathBuf::from(target["src_path"].as_str().expect("a path"));
            let text = std::fs::read_to_string(&root).expect("the root file is readable");
            assert!(
                text.contains("#![forbid(unsafe_code)]"),
                "{} does not forbid unsafe code",
                root.display()
            );
        }
    }
}
