//! A regular expression over the characters of a string, and over their spelling in JSON.
//!
//! A character has exactly one spelling here: itself, or the shortest escape where JSON demands one.
//!
//! ```text
//!   "  \  BS FF LF CR HT     \"  \\  \b \f \n \r \t
//!   other control characters  , four hexadecimal digits in lower case
//!   everything else           itself
//! ```
//!
//! So two spellings of one key cannot both occur in an object, and a list of spellings excludes a
//! list of keys.

use std::fmt::Write as _;

use llguidance::derivre::{RegexAst, RegexBuilder};
use regex_syntax::hir::{Class, Hir, HirKind, Look};

use super::ecma;

/// One spelled character, as an expression.
pub(super) const CHAR: &str = r#"(?:[^"\\\x00-\x1F]|\\(?:["\\bfnrt]|u00(?:0[0-7bef]|1[0-9a-f])))"#;
/// Steps that a question about an expression may take.
const MAX_STEPS: u64 = 200_000;
/// Alternatives that an expression may be split into to find its anchors.
const MAX_BRANCHES: usize = 256;
/// Bytes of one written expression.
const MAX_WRITTEN: usize = 1 << 20;

/// Strings that an expression matches as a whole.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Pattern {
    /// Over characters, in the notation of `regex-syntax`.
    pub plain: String,
    /// Over spellings, without quotes around.
    pub spelled: String,
}

/// An expression that a whole text matches.
#[derive(Debug)]
pub(crate) struct Expression(String);

impl Expression {
    /// Reads an expression; anchors at its ends change nothing.
    ///
    /// # Errors
    ///
    /// Names the construct that cannot be enforced, or says that nothing matches.
    pub(crate) fn whole(source: &str) -> Result<Self, String> {
        let named = |why: String| format!("the regular expression {source:?}: {why}");
        let pattern = Pattern::of(&ecma::translate(source).map_err(named)?, true).map_err(named)?;
        match is_empty(&[&pattern], &[], 0, None) {
            Some(false) => Ok(Self(pattern.plain)),
            Some(true) => Err(named("it matches no text".to_owned())),
            None => Err(named("it takes too long to find a text that it matches".to_owned())),
        }
    }

    /// The expression between slashes.
    pub(crate) fn slashed(&self) -> String {
        format!("/{}/", self.0)
    }
}

impl Pattern {
    /// Strings in which `source`, an expression of a schema, matches somewhere.
    ///
    /// # Errors
    ///
    /// Names the construct that cannot be enforced.
    pub(super) fn searched(source: &str) -> Result<Self, String> {
        let translated = ecma::translate(source)?;
        Self::of(&translated, false).map_err(|why| format!("the expression {source:?}: {why}"))
    }

    /// `whole` takes both ends of every branch for anchored.
    fn of(translated: &str, whole: bool) -> Result<Self, String> {
        let hir =
            regex_syntax::ParserBuilder::new().nest_limit(64).build().parse(translated).map_err(
                |error| match error {
                    regex_syntax::Error::Parse(error) => error.kind().to_string(),
                    regex_syntax::Error::Translate(error) => error.kind().to_string(),
                    other => other.to_string(),
                },
            )?;
        let mut branches = Vec::new();
        split(&hir, &mut branches)?;
        let written = |spelled: bool| -> Result<String, String> {
            let mut out = String::from("(?:");
            for (idx, branch) in branches.iter().enumerate() {
                let any = if spelled { CHAR } else { "(?s:.)" };
                out.push_str(if idx == 0 { "" } else { "|" });
                if !branch.at_start && !whole {
                    let _ = write!(out, "{any}*");
                }
                for part in &branch.parts {
                    write_hir(part, spelled, &mut out)?;
                }
                if !branch.at_end && !whole {
                    let _ = write!(out, "{any}*");
                }
            }
            out.push(')');
            Ok(out)
        };
        Ok(Self { plain: written(false)?, spelled: written(true)? })
    }

    /// Whether a string is matched; `None` when that takes too long.
    pub(super) fn matches(&self, text: &str) -> Option<bool> {
        let mut builder = RegexBuilder::new();
        let expression = builder.mk_regex(&self.plain).ok()?;
        let mut regex = builder.into_regex_limited(expression, MAX_STEPS).ok()?;
        Some(regex.is_match(text))
    }
}

/// Whether no string is matched by all of `all`, by none of `none`, and has a number of characters
/// between `least` and `most`; `None` when that takes too long to find out.
pub(super) fn is_empty(
    all: &[&Pattern],
    none: &[&Pattern],
    least: usize,
    most: Option<usize>,
) -> Option<bool> {
    if most.is_some_and(|most| most < least) {
        return Some(true);
    }
    let mut parts: Vec<RegexAst> =
        all.iter().map(|pattern| RegexAst::Regex(pattern.plain.clone())).collect();
    for pattern in none {
        parts.push(RegexAst::Not(Box::new(RegexAst::Regex(pattern.plain.clone()))));
    }
    let most = most.map_or(String::new(), |most| most.to_string());
    parts.push(RegexAst::Regex(format!("(?s:.){{{least},{most}}}")));
    let mut builder = RegexBuilder::new();
    let expression = builder.mk(&RegexAst::And(parts)).ok()?;
    let mut regex = builder.into_regex_limited(expression, MAX_STEPS).ok()?;
    Some(regex.always_empty())
}

/// An alternative, with the anchors at its ends taken off.
struct Branch {
    at_start: bool,
    at_end: bool,
    parts: Vec<Hir>,
}

/// Splits an expression until anchors stand only at the ends of branches.
fn split(hir: &Hir, branches: &mut Vec<Branch>) -> Result<(), String> {
    if branches.len() >= MAX_BRANCHES {
        return Err("it has too many alternatives with anchors".to_owned());
    }
    match hir.kind() {
        HirKind::Capture(group) => split(&group.sub, branches),
        HirKind::Alternation(items) if !hir.properties().look_set().is_empty() => {
            items.iter().try_for_each(|item| split(item, branches))
        }
        HirKind::Concat(items) => split_parts(items.clone(), branches),
        _ => split_parts(vec![hir.clone()], branches),
    }
}

fn split_parts(parts: Vec<Hir>, branches: &mut Vec<Branch>) -> Result<(), String> {
    let is = |hir: &Hir, look: Look| matches!(hir.kind(), HirKind::Look(found) if *found == look);
    let mut from = 0;
    let mut to = parts.len();
    while from < to && is(&parts[from], Look::Start) {
        from += 1;
    }
    while from < to && is(&parts[to - 1], Look::End) {
        to -= 1;
    }
    let inner = &parts[from..to];
    let looks = |hir: &Hir| !hir.properties().look_set().is_empty();
    let Some(idx) = inner.iter().position(looks) else {
        let (at_start, at_end) = (from > 0, to < parts.len());
        branches.push(Branch { at_start, at_end, parts: inner.to_vec() });
        return Ok(());
    };
    let at_edge = idx == 0 || idx + 1 == inner.len();
    // An alternation with anchors at an edge becomes one branch per alternative.
    let alternatives = match unwrapped(&inner[idx]).kind() {
        HirKind::Alternation(items) if at_edge => items.clone(),
        HirKind::Concat(items) if at_edge => vec![Hir::concat(items.clone())],
        _ => return Err("it has an anchor in its middle or a word boundary".to_owned()),
    };
    for alternative in alternatives {
        if branches.len() >= MAX_BRANCHES {
            return Err("it has too many alternatives with anchors".to_owned());
        }
        let mut whole = parts[..from].to_vec();
        whole.extend_from_slice(&inner[..idx]);
        match unwrapped(&alternative).kind() {
            HirKind::Concat(items) => whole.extend(items.iter().cloned()),
            _ => whole.push(alternative),
        }
        whole.extend_from_slice(&inner[idx + 1..]);
        whole.extend_from_slice(&parts[to..]);
        split_parts(whole, branches)?;
    }
    Ok(())
}

fn unwrapped(hir: &Hir) -> &Hir {
    match hir.kind() {
        HirKind::Capture(group) => unwrapped(&group.sub),
        _ => hir,
    }
}

fn write_hir(hir: &Hir, spelled: bool, out: &mut String) -> Result<(), String> {
    if out.len() > MAX_WRITTEN {
        return Err("it is too large".to_owned());
    }
    match hir.kind() {
        HirKind::Empty => out.push_str("(?:)"),
        HirKind::Literal(literal) => {
            let text = std::str::from_utf8(&literal.0).map_err(|_| "it is not UTF-8".to_owned())?;
            for c in text.chars() {
                out.push_str(&if spelled { spelling(c) } else { ecma::one(c) });
            }
        }
        HirKind::Class(Class::Unicode(class)) => {
            let ranges: Vec<(char, char)> =
                class.ranges().iter().map(|range| (range.start(), range.end())).collect();
            write_class(&ranges, spelled, out);
        }
        HirKind::Class(Class::Bytes(class)) => {
            let ranges: Vec<(char, char)> = class
                .ranges()
                .iter()
                .map(|range| (char::from(range.start()), char::from(range.end())))
                .collect();
            write_class(&ranges, spelled, out);
        }
        HirKind::Look(_) => return Err("it has an anchor in its middle".to_owned()),
        HirKind::Repetition(repetition) => {
            out.push_str("(?:");
            write_hir(&repetition.sub, spelled, out)?;
            let most = repetition.max.map_or(String::new(), |most| most.to_string());
            let _ = write!(out, "){{{},{most}}}", repetition.min);
        }
        HirKind::Capture(group) => write_hir(&group.sub, spelled, out)?,
        HirKind::Concat(items) => {
            items.iter().try_for_each(|item| write_hir(item, spelled, out))?;
        }
        HirKind::Alternation(items) => {
            out.push_str("(?:");
            for (idx, item) in items.iter().enumerate() {
                out.push_str(if idx == 0 { "" } else { "|" });
                write_hir(item, spelled, out)?;
            }
            out.push(')');
        }
    }
    Ok(())
}

/// A class; in JSON, characters that need an escape become alternatives beside it.
fn write_class(ranges: &[(char, char)], spelled: bool, out: &mut String) {
    let mut class = String::new();
    let mut escapes: Vec<String> = Vec::new();
    for (low, high) in ranges {
        let mut from = u32::from(*low);
        let to = u32::from(*high);
        if spelled {
            for code in (from..=to).take_while(|code| *code <= 0x5C) {
                if let Some(c) = char::from_u32(code).filter(|c| needs_escape(*c)) {
                    escapes.push(spelling(c));
                    push_range(&mut class, from, code.checked_sub(1));
                    from = code + 1;
                }
            }
        }
        push_range(&mut class, from, Some(to));
    }
    match (class.is_empty(), escapes.is_empty()) {
        (false, true) => {
            let _ = write!(out, "[{class}]");
        }
        (true, true) => out.push_str(r"[^\x{0}-\x{10FFFF}]"),
        (true, false) => {
            let _ = write!(out, "(?:{})", escapes.join("|"));
        }
        (false, false) => {
            let _ = write!(out, "(?:[{class}]|{})", escapes.join("|"));
        }
    }
}

fn push_range(class: &mut String, from: u32, to: Option<u32>) {
    if let Some(to) = to.filter(|to| from <= *to) {
        let _ = write!(class, "\\x{{{from:X}}}-\\x{{{to:X}}}");
    }
}

fn needs_escape(c: char) -> bool {
    matches!(c, '"' | '\\' | '\0'..='\x1F')
}

/// How JSON spells a character, as an expression.
fn spelling(c: char) -> String {
    if !needs_escape(c) {
        return ecma::one(c);
    }
    let spelled = spelled(&c.to_string());
    spelled.chars().map(ecma::one).collect()
}

/// How JSON spells a text, without quotes around.
fn spelled(text: &str) -> String {
    let quoted = serde_json::Value::from(text).to_string();
    quoted[1..quoted.len() - 1].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use llguidance::derivre::Regex;

    #[test]
    fn an_expression_matches_anywhere_unless_it_is_anchored() {
        let cases = [
            ("b", "abc", true),
            ("^b", "abc", false),
            ("c$", "abc", true),
            ("^a|c$", "xxc", true),
            ("^a|c$", "xcx", false),
            ("(^a|b)c", "bc", true),
            ("(^a|b)c", "xac", false),
            ("^(a|b$)", "bx", false),
            ("^$", "", true),
            ("", "anything", true),
            ("^^a$$", "a", true),
        ];
        for (source, text, expected) in cases {
            let pattern = Pattern::searched(source).expect(source);
            assert_eq!(pattern.matches(text), Some(expected), "{source} on {text:?}");
            let mut regex = Regex::new(&pattern.spelled).expect(source);
            assert_eq!(regex.is_match(&spelled(text)), expected, "{source} on {text:?}, spelled");
        }
        assert!(Pattern::searched("a(?:^b)c").is_err());
    }

    #[test]
    fn a_class_matches_the_one_spelling_of_each_of_its_characters() {
        let pattern = Pattern::searched("^[\\x00-\\x7f]$").expect("a pattern");
        let mut regex = Regex::new(&pattern.spelled).expect("an expression");
        let mut any = Regex::new(CHAR).expect("an expression");
        for code in 0..0x80_u32 {
            let spelled = spelled(&char::from_u32(code).expect("a character").to_string());
            assert!(regex.is_match(&spelled), "{spelled}");
            assert!(any.is_match(&spelled), "{spelled}");
        }
        for other in ["\\u0041", "\\/", "\n", "\"", "\\u000A", "\\u000a", "\\u0008"] {
            assert!(!regex.is_match(other), "{other:?}");
            assert!(!any.is_match(other), "{other:?}");
        }
    }

    #[test]
    fn an_expression_without_any_match_is_empty() {
        let a = Pattern::searched("^a+$").expect("a");
        let b = Pattern::searched("^b+$").expect("b");
        assert_eq!(is_empty(&[&a, &b], &[], 0, None), Some(true));
        assert_eq!(is_empty(&[&a], &[&b], 0, None), Some(false));
        assert_eq!(is_empty(&[&a], &[&a], 0, None), Some(true));
        assert_eq!(is_empty(&[&a], &[], 0, Some(0)), Some(true));
    }
}
