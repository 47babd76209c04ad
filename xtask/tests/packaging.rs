//! Packages and the manual agree with the rest of the repository.

use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn read(path: impl AsRef<Path>) -> String {
    std::fs::read_to_string(root().join(&path)).expect("a file of the repository")
}

/// The value of a line `key = "value"`.
fn value(text: &str, key: &str) -> String {
    let line = text.lines().find_map(|line| line.strip_prefix(key)?.trim().strip_prefix("= \""));
    line.and_then(|rest| rest.strip_suffix('"')).expect(key).to_owned()
}

/// The Markdown pages of a folder.
fn pages(folder: &str) -> Vec<PathBuf> {
    let files = std::fs::read_dir(root().join(folder)).expect("a folder");
    let paths = files.map(|file| Path::new(folder).join(file.expect("an entry").file_name()));
    paths.filter(|path| path.extension().is_some_and(|end| end == "md")).collect()
}

/// The targets of the links of a page, without those to other hosts and within the page.
fn links(page: &str) -> Vec<&str> {
    let targets = page.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    let local = |target: &&str| !target.contains("://") && !target.starts_with('#');
    targets.filter(local).map(|target| target.split('#').next().unwrap_or(target)).collect()
}

#[test]
fn packages_have_the_version_and_the_toolchain_of_the_workspace() {
    let version = value(&read("Cargo.toml"), "version ");
    assert!(read("packaging/homebrew/pelton.rb").contains(&format!("pelton-{version}.tar.gz")));
    let channel = value(&read("rust-toolchain.toml"), "channel ");
    let image = channel.split('.').take(2).collect::<Vec<_>>().join(".");
    assert!(read("packaging/Containerfile").contains(&format!("FROM rust:{image}-")), "{image}");
}

#[test]
fn the_manual_has_every_page_once() {
    let summary = read("docs/SUMMARY.md");
    let mut named = links(&summary);
    named.sort_unstable();
    let pages = pages("docs");
    let names = pages.iter().filter_map(|path| path.file_name()?.to_str());
    let mut expected: Vec<&str> =
        names.filter(|name| !["SUMMARY.md", "reference.md"].contains(name)).collect();
    // Made by `just book`, and not part of the repository.
    expected.push("reference.md");
    expected.sort_unstable();
    assert_eq!(named, expected);
}

#[test]
fn links_lead_somewhere() {
    let mut wrong = Vec::new();
    for path in ["", "docs", "demo", "crates/python"].into_iter().flat_map(pages) {
        let page = read(&path);
        let folder = path.parent().unwrap_or(Path::new(""));
        for link in links(&page) {
            if link != "reference.md" && !root().join(folder).join(link).exists() {
                wrong.push(format!("{}: {link}", path.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn pages_of_the_manual_link_to_nothing_outside_of_it() {
    let outside = |page: &PathBuf| {
        let page = read(page);
        links(&page).into_iter().filter(|link| link.starts_with("..")).map(String::from).collect()
    };
    let wrong: Vec<String> = pages("docs").iter().flat_map::<Vec<_>, _>(outside).collect();
    assert!(wrong.is_empty(), "the website has only docs/; name the file instead: {wrong:#?}");
}

#[test]
fn the_readme_is_short() {
    let n_lines = read("README.md").lines().count();
    assert!(n_lines < 200, "the README has {n_lines} lines");
}
