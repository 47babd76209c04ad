//! The table of flags in `docs/serving.md`; with `UPDATE_FLAGS=1` in the environment it is written anew.

use std::fmt::Write as _;
use std::path::Path;

use super::{Flag, Kind, Part, SpecChoice, table};

const BEGIN: &str = "<!-- flags: UPDATE_FLAGS=1 cargo test --workspace --lib flags::docs -->\n";
const END: &str = "<!-- end of flags -->\n";

/// The forms of a value, such as `on|off`, or the word for it.
fn forms(flag: &Flag) -> String {
    match flag.kind {
        Kind::Names(all) => all().join("|"),
        Kind::Truth => "true|false".to_owned(),
        Kind::Method => SpecChoice::possible().join("|"),
        Kind::Folder => format!("[={}]", flag.value),
        _ => flag.value.to_owned(),
    }
}

/// Markdown: a row per flag.
fn rows() -> String {
    let mut text = "| flag | key | default | meaning |\n|---|---|---|---|\n".to_owned();
    for flag in table() {
        let short = flag.short.map(|short| format!("-{short}, ")).unwrap_or_default();
        let forms = forms(flag).replace('|', "\\|");
        let form = match (flag.part, flag.kind, forms.as_str()) {
            (Part::File, ..) => String::new(),
            (_, Kind::Folder, forms) => format!("`{short}--{}{forms}`", flag.name),
            (.., "") => format!("`{short}--{}`", flag.name),
            (.., forms) => format!("`{short}--{} {forms}`", flag.name),
        };
        let default = match flag.default() {
            Some(value) if flag.default.is_empty() => format!("`{value}`"),
            words => words.unwrap_or_default(),
        };
        let (key, help) = (flag.key(), flag.help);
        writeln!(text, "| {form} | `{key}` | {default} | {help} |").expect("into a string");
    }
    text
}

#[test]
fn the_table_in_the_documentation_is_that_of_the_flags() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/serving.md");
    let page = std::fs::read_to_string(&path).expect("the page");
    let (before, rest) = page.split_once(BEGIN).expect("the beginning of the table");
    let (written, after) = rest.split_once(END).expect("the end of the table");
    let table = rows();
    if std::env::var_os("UPDATE_FLAGS").is_some() {
        let page = format!("{before}{BEGIN}{table}{END}{after}");
        return std::fs::write(&path, page).expect("written");
    }
    assert!(written == table, "docs/serving.md is not up to date: UPDATE_FLAGS=1 writes the table");
}
