//! `docs/unsafe.md` lists every `unsafe` block of the product with the reason beside it.
//!
//! With `UPDATE_UNSAFE=1` in the environment the page is written anew.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

const HEAD: &str = "\
# Unsafe code

Every `unsafe` block and `unsafe impl` outside of tests, with the reason why it is sound, as it stands in
the code. Only `pelton-kernels` and `pelton-tensor` may have any; every other crate forbids it. The page is
generated: `UPDATE_UNSAFE=1 cargo test --workspace --test unsafe_list` writes it, and without the variable
the same test fails where a block has no reason or the page is out of date.
";

/// Lines between a reason and its block: the beginning of a statement, attributes.
const MOST_BETWEEN: usize = 8;

/// A block without a reason, or the reason.
fn reason(lines: &[&str], block: usize) -> Option<String> {
    let is_comment = |i: usize| lines[i].trim_start().starts_with("//");
    let last = (block.saturating_sub(MOST_BETWEEN)..block).rev().find(|&i| is_comment(i))?;
    let first = (0..=last).rev().take_while(|&i| is_comment(i)).find(|&i| {
        let text = lines[i].trim_start();
        text.starts_with("// SAFETY:")
    })?;
    let words = lines[first..=last].iter().map(|line| line.trim_start().trim_start_matches('/'));
    let text = words.map(str::trim).collect::<Vec<_>>().join(" ");
    Some(text.trim_start_matches("SAFETY:").trim().to_owned())
}

/// The lines of a file where a block or an impl begins.
fn blocks(lines: &[&str]) -> Vec<usize> {
    let begins = |line: &str| {
        let code = line.split("//").next().unwrap_or("");
        code.contains("unsafe {") || code.trim_start().starts_with("unsafe impl")
    };
    (0..lines.len()).filter(|&i| begins(lines[i])).collect()
}

fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        let name = path.file_name().and_then(|name| name.to_str()).expect("UTF-8").to_owned();
        if path.is_dir() {
            if name != "tests" {
                sources(&path, found);
            }
        } else if name.ends_with(".rs") && !name.ends_with("tests.rs") {
            found.push(path);
        }
    }
}

/// The page, and the places of blocks without a reason.
fn page(root: &Path) -> (String, Vec<String>) {
    let (mut text, mut bare) = (HEAD.to_owned(), Vec::new());
    for krate in ["kernels", "tensor"] {
        let mut files = Vec::new();
        sources(&root.join("crates").join(krate).join("src"), &mut files);
        files.sort();
        let mut rows = String::new();
        let mut n_all = 0;
        for file in files {
            let source = std::fs::read_to_string(&file).expect("UTF-8");
            // Tests at the end of a file are no part of the product.
            let source = source.split("#[cfg(test)]\nmod tests {").next().unwrap_or("");
            let lines: Vec<&str> = source.lines().collect();
            let name = file.strip_prefix(root).expect("below it").display().to_string();
            let mut reasons: Vec<String> = Vec::new();
            let mut counts: BTreeMap<String, usize> = BTreeMap::new();
            for block in blocks(&lines) {
                match reason(&lines, block) {
                    Some(reason) => {
                        if !reasons.contains(&reason) {
                            reasons.push(reason.clone());
                        }
                        *counts.entry(reason).or_default() += 1;
                    }
                    None => bare.push(format!("{name}:{}", block + 1)),
                }
            }
            for reason in reasons {
                let n = counts[&reason];
                n_all += n;
                let reason = reason.replace('|', "\\|");
                writeln!(rows, "| `{name}` | {n} | {reason} |").expect("into a string");
            }
        }
        let title = format!("\n## pelton-{krate}: {n_all}\n\n");
        text += &format!("{title}| file | blocks | reason |\n|---|---|---|\n{rows}");
    }
    (text, bare)
}

#[test]
fn every_unsafe_block_has_a_reason_and_is_listed() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let (page, bare) = page(&root);
    assert!(bare.is_empty(), "without a reason: {bare:#?}");
    let path = root.join("docs/unsafe.md");
    if std::env::var_os("UPDATE_UNSAFE").is_some() {
        return std::fs::write(&path, page).expect("written");
    }
    let written = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(written == page, "docs/unsafe.md is not up to date: UPDATE_UNSAFE=1 writes it");
}

#[test]
fn a_block_without_a_reason_is_found() {
    let lines = ["// SAFETY: one.", "let a =", "    unsafe { x };", "let b = unsafe { y };"];
    assert_eq!(blocks(&lines), [2, 3]);
    assert_eq!(reason(&lines, 2).as_deref(), Some("one."));
    assert_eq!(reason(&["// Nothing.", "unsafe { x }"], 1), None);
    assert_eq!(blocks(&["// unsafe { x }", "unsafe fn f() {"]), [] as [usize; 0]);
}
