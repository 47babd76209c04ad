//! `docs/dependencies.md` names every dependency of the workspace once, with its users.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;

use serde_json::Value;

/// Third-party crates, and the crates of the workspace that use each.
fn used() -> BTreeMap<String, Vec<String>> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .args(["metadata", "--no-deps", "--offline", "--format-version", "1"])
        .current_dir(root())
        .output()
        .expect("cargo runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: Value = serde_json::from_slice(&output.stdout).expect("cargo speaks JSON");
    let mut used: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for package in metadata["packages"].as_array().expect("packages") {
        let name = package["name"].as_str().expect("a name");
        for dependency in package["dependencies"].as_array().expect("dependencies") {
            let of = dependency["name"].as_str().expect("a name");
            // Our own crates have a path; layering.rs looks at them.
            if dependency["path"].is_null() {
                let user = name.trim_start_matches("pelton-").to_owned();
                used.entry(of.to_owned()).or_default().push(user);
            }
        }
    }
    used
}

/// The lines of the table: a crate and its column of users, as words without punctuation.
fn documented() -> Vec<(String, Vec<String>)> {
    let text = std::fs::read_to_string(root().join("docs/dependencies.md")).expect("the document");
    text.lines()
        .filter_map(|line| line.strip_prefix("| `"))
        .map(|line| {
            let (name, rest) = line.split_once("` |").expect("a name in backticks");
            let users = rest.split('|').next().expect("a column of users");
            let users = users.split([',', ' ', '(', ')']).filter(|word| !word.is_empty());
            (name.to_owned(), users.map(str::to_owned).collect())
        })
        .collect()
}

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("..")
}

#[test]
fn every_dependency_has_one_line_that_names_its_users() {
    let (used, documented) = (used(), documented());
    let mut wrong = Vec::new();
    for (name, users) in &used {
        let lines: Vec<_> = documented.iter().filter(|(known, _)| known == name).collect();
        match lines.as_slice() {
            [(_, told)] => wrong.extend(
                users
                    .iter()
                    .filter(|user| !told.contains(user))
                    .map(|user| format!("`{name}`: the line does not name {user}")),
            ),
            lines => wrong.push(format!("`{name}`: expected one line, found {}", lines.len())),
        }
        if let [(_, told)] = lines.as_slice() {
            let strangers = told.iter().filter(|user| *user != "tests" && !users.contains(user));
            wrong.extend(strangers.map(|user| format!("`{name}`: {user} does not use it")));
        }
    }
    for (name, _) in documented.iter().filter(|(name, _)| !used.contains_key(name)) {
        wrong.push(format!("`{name}`: has a line, but no crate uses it"));
    }
    assert!(wrong.is_empty(), "docs/dependencies.md:\n{}", wrong.join("\n"));
}
