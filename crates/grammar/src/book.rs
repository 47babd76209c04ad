//! Rules and terminals in the Lark notation of llguidance, as they are written down.
//!
//! A terminal is a regular expression that the lexer matches as one piece, so it is exact; a rule is
//! a sequence of them. Names are `t1, t2, ..` in upper case for terminals and `r1, r2, ..` for rules.

use std::collections::HashMap;
use std::fmt::Write as _;

use serde_json::Value;

/// Texts of a choice from which a tree of prefixes is built.
const TREE_FROM: usize = 8;
/// Depth of that tree.
const TREE_DEPTH: usize = 40;

#[derive(Debug, Default)]
pub(crate) struct Book {
    text: String,
    n_rules: usize,
    terminals: HashMap<String, String>,
}

impl Book {
    /// Everything that was written.
    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    /// The name of a rule that is defined later.
    pub(crate) fn name(&mut self) -> String {
        self.n_rules += 1;
        format!("r{}", self.n_rules)
    }

    /// Defines a rule; `options` such as `[lazy]` follow its name.
    pub(crate) fn define(&mut self, name: &str, options: &str, body: &str) {
        let _ = writeln!(self.text, "{name}{options}: {body}");
    }

    /// A rule of its own for `body`.
    pub(crate) fn rule(&mut self, body: &str) -> String {
        let name = self.name();
        self.define(&name, "", body);
        name
    }

    /// A terminal for an expression of terminals; equal expressions share it.
    pub(crate) fn terminal(&mut self, expression: &str) -> String {
        if let Some(name) = self.terminals.get(expression) {
            return name.clone();
        }
        let is_name = expression.strip_prefix('T').is_some_and(|rest| rest.parse::<u32>().is_ok());
        if is_name {
            return expression.to_owned();
        }
        let name = format!("T{}", self.terminals.len() + 1);
        self.define(&name, "", expression);
        self.terminals.insert(expression.to_owned(), name.clone());
        name
    }
}

/// A text as a literal.
pub(crate) fn quoted(text: &str) -> String {
    Value::from(text).to_string().replace('\u{7f}', "\\u007f")
}

/// Exactly one of these texts, as an expression of terminals.
///
/// A tree of prefixes keeps a choice of thousands of texts as cheap as one of a few.
pub(crate) fn one_of(texts: &[String]) -> String {
    let mut sorted: Vec<Vec<char>> = texts.iter().map(|text| text.chars().collect()).collect();
    sorted.sort_unstable();
    sorted.dedup();
    match sorted.len() {
        0 => "/[^\\x{0}-\\x{10FFFF}]/".to_owned(),
        1..=TREE_FROM => {
            let texts: Vec<String> =
                sorted.iter().map(|text| quoted(&text.iter().collect::<String>())).collect();
            format!("({})", texts.join(" | "))
        }
        _ => {
            let mut out = String::new();
            let slices: Vec<&[char]> = sorted.iter().map(Vec::as_slice).collect();
            tree(&slices, 0, &mut out);
            format!("/{out}/")
        }
    }
}

/// Writes sorted, different texts as one expression.
fn tree(texts: &[&[char]], depth: usize, out: &mut String) {
    if let [text] = texts {
        text.iter().for_each(|c| out.push_str(&escaped_char(*c)));
        return;
    }
    let (Some(first), Some(last)) = (texts.first(), texts.last()) else { return };
    let n_common = first.iter().zip(last.iter()).take_while(|(a, b)| a == b).count();
    first[..n_common].iter().for_each(|c| out.push_str(&escaped_char(*c)));
    let rests: Vec<&[char]> = texts.iter().map(|text| &text[n_common..]).collect();
    out.push_str("(?:");
    let mut start = 0;
    while start < rests.len() {
        let head = rests[start].first();
        let is_deep = depth >= TREE_DEPTH;
        let same = rests[start..].iter().take_while(|rest| rest.first() == head).count();
        let n_group = if is_deep || head.is_none() { 1 } else { same };
        out.push_str(if start == 0 { "" } else { "|" });
        tree(&rests[start..start + n_group], depth + 1, out);
        start += n_group;
    }
    out.push(')');
}

/// A character inside of an expression between slashes.
pub(crate) fn escaped_char(c: char) -> String {
    if c.is_ascii_alphanumeric() { c.to_string() } else { format!("\\x{{{:X}}}", u32::from(c)) }
}

/// A text inside of an expression between slashes.
pub(crate) fn escaped(text: &str) -> String {
    text.chars().map(escaped_char).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use llguidance::derivre::Regex;

    #[test]
    fn a_tree_of_prefixes_matches_its_texts_and_no_others() {
        let texts: Vec<String> = (0..500).map(|n| format!("{}/x{}", n % 7, n)).collect();
        let expression = one_of(&texts);
        let mut regex = Regex::new(&expression[1..expression.len() - 1]).expect("an expression");
        for text in &texts {
            assert!(regex.is_match(text), "{text}");
            assert!(
                !regex.is_match(&text[..text.len() - 1])
                    || texts.contains(&text[..text.len() - 1].to_owned())
            );
        }
        assert!(!regex.is_match("0/x1") && !regex.is_match(""));
        let with_empty: Vec<String> = (0..9).map(|n| "a".repeat(n)).collect();
        let expression = one_of(&with_empty);
        let mut regex = Regex::new(&expression[1..expression.len() - 1]).expect("an expression");
        assert!(regex.is_match("") && regex.is_match("aaaaaaaa") && !regex.is_match("aaaaaaaaa"));
    }
}
