//! The order of the folders, checked: a folder uses only folders below its own.

use std::fs;
use std::path::{Path, PathBuf};

/// Each ordered folder, and the modules of the crate that its code may name.
///
/// `layout` packs with a [`Cpu`](pelton_kernels::Cpu), its thread team and its NUMA policy.
const MAY_USE: &[(&str, &[&str])] = &[
    ("simd", &["simd"]),
    ("team", &["team"]),
    ("layout", &["layout", "simd", "team", "cpu"]),
    ("ops", &["ops", "layout", "simd", "team", "cpu", "Cpu", "dispatch", "tuning"]),
];

/// Modules that the code of `text` names by `crate::`, tests and comments aside.
fn used(text: &str) -> Vec<&str> {
    let code = text.split("#[cfg(test)]\nmod ").next().unwrap_or_default();
    let lines = code.lines().filter(|line| !line.trim_start().starts_with("//"));
    let names = lines.flat_map(|line| line.split("crate::").skip(1));
    let end = |rest: &str| rest.find(|c: char| !c.is_alphanumeric() && c != '_');
    names.map(|rest| &rest[..end(rest).unwrap_or(rest.len())]).collect()
}

fn violations(folder: &str, text: &str) -> Vec<String> {
    let (_, allowed) = MAY_USE.iter().find(|(name, _)| *name == folder).expect("a known folder");
    let bad = used(text).into_iter().filter(|name| !allowed.contains(name));
    bad.map(|name| format!("{folder} uses `{name}`")).collect()
}

fn sources(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("entry").path());
    let is_test = |path: &PathBuf| {
        path.file_stem().is_some_and(|name| name.to_string_lossy().ends_with("tests"))
    };
    let paths = entries.filter(|path| !is_test(path));
    paths.flat_map(|path| if path.is_dir() { sources(&path) } else { vec![path] }).collect()
}

#[test]
fn folders_use_only_what_is_below_them() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut n_files = 0;
    for (folder, _) in MAY_USE {
        for path in sources(&src.join(folder)) {
            let found = violations(folder, &fs::read_to_string(&path).expect("readable"));
            assert!(found.is_empty(), "{}: {}", path.display(), found.join(", "));
            n_files += 1;
        }
    }
    assert!(n_files > 50, "only {n_files} files were found");
}

#[test]
fn a_use_that_points_up_is_caught() {
    let caught = |folder, text| violations(folder, text).len();
    assert_eq!(caught("simd", "use crate::layout::PANEL;"), 1);
    assert_eq!(caught("team", "use crate::simd::Simd;"), 1);
    assert_eq!(caught("layout", "fn f() { crate::ops::matmul::g() }"), 1);
    assert_eq!(caught("ops", "use crate::ceilings::Ceilings;"), 1);
    let below =
        "use crate::simd::Simd;\n//! crate::ops\n#[cfg(test)]\nmod tests { use crate::ops; }";
    assert_eq!(caught("layout", below), 0);
}
