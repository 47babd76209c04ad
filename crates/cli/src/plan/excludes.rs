//! Which techniques exclude each other, by the answers of the server's own checks.
//!
//! ```text
//! for each pair of techniques:  plain server + settings of both ─▶ the checks of `pelton serve`
//!                                                   refused ─▶ the pair, and the server's words
//! ```
//!
//! There is no list of exclusions: a check that the server gets or loses changes this table. Checks
//! that need the files of a model, such as that of a draft model's vocabulary, are not among them.

use std::fmt::Write as _;

use serde::Serialize;

use crate::args::plain_with;
use crate::flags::Chosen;

/// Techniques and their settings of `pelton serve`.
const TECHNIQUES: [(&str, &[&str]); 11] = [
    ("smaller keys and values", &["kv_dtype=int8"]),
    ("arithmetic in f32", &["compute=f32"]),
    ("batching", &["max_running=8"]),
    ("prefix cache", &["prefix_cache=true"]),
    ("drafts by matches", &["spec=suffix"]),
    ("drafts by a smaller model", &["spec=draft:story-draft"]),
    ("drafts by the first layers", &["spec=early-exit:1"]),
    ("lossy drafts", &["spec=suffix", "spec_verify=typical-lossy"]),
    ("kept results", &["result_cache=64MiB"]),
    ("swapping", &["preemption=swap", "swap_memory=1GiB"]),
    ("recomputing", &["preemption=recompute"]),
];

/// Two techniques that no server has together.
#[derive(Debug, PartialEq, Serialize)]
pub(super) struct Exclusion {
    techniques: [&'static str; 2],
    /// The settings of each.
    settings: [&'static [&'static str]; 2],
    reason: String,
}

/// The pairs that exclude each other, and all that were tried.
#[derive(Debug, Serialize)]
pub(super) struct Exclusions {
    /// Every technique that was tried with every other one.
    techniques: Vec<&'static str>,
    pairs_tried: usize,
    excluded: Vec<Exclusion>,
}

impl Exclusions {
    /// Tries all pairs.
    pub(super) fn find() -> Self {
        let mut excluded = Vec::new();
        let mut pairs_tried = 0;
        for (at, a) in TECHNIQUES.iter().enumerate() {
            for b in &TECHNIQUES[at + 1..] {
                pairs_tried += 1;
                let reason = two_values(a.1, b.1).or_else(|| refusal(&[a.1, b.1].concat()));
                excluded.extend(reason.map(|reason| Exclusion {
                    techniques: [a.0, b.0],
                    settings: [a.1, b.1],
                    reason,
                }));
            }
        }
        let techniques = TECHNIQUES.iter().map(|(name, _)| *name).collect();
        Self { techniques, pairs_tried, excluded }
    }

    /// A line per pair.
    pub(super) fn render(&self) -> String {
        let mut text = String::new();
        for Exclusion { techniques: [a, b], reason, .. } in &self.excluded {
            writeln!(text, "excludes   {a} and {b}: {reason}").expect("invariant: a string");
        }
        let n = self.pairs_tried - self.excluded.len();
        let names = self.techniques.join(", ");
        writeln!(text, "together   the other {n} pairs of: {names}").expect("invariant: a string");
        text
    }
}

/// The setting that both have with different values, in words.
fn two_values(a: &[&str], b: &[&str]) -> Option<String> {
    let value = |settings: &[&str], key: &str| {
        let mut pairs = settings.iter().filter_map(|setting| setting.split_once('='));
        pairs.find(|(name, _)| *name == key).map(|(_, value)| value.to_owned())
    };
    let keys = a.iter().filter_map(|setting| setting.split_once('='));
    let mut both = keys.filter_map(|(key, one)| Some((key, one, value(b, key)?)));
    let (key, one, other) = both.find(|(_, one, other)| one != other)?;
    Some(format!("`{key}` is either `{one}` or `{other}`"))
}

/// The words with which the server refuses these settings; `None` where it takes them.
fn refusal(settings: &[&str]) -> Option<String> {
    let settings: Vec<String> = settings.iter().map(|setting| (*setting).to_owned()).collect();
    let chosen = match plain_with(Chosen::default(), &settings) {
        Ok(chosen) => chosen,
        Err(failure) => return Some(failure.message().unwrap_or_default().to_owned()),
    };
    chosen.llm.check().err().map(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_takes_each_technique_alone() {
        for (name, settings) in TECHNIQUES {
            assert_eq!(refusal(settings), None, "{name}");
        }
    }

    #[test]
    fn refusals_of_the_server_are_the_table() {
        let found = Exclusions::find();
        assert_eq!(found.pairs_tried, TECHNIQUES.len() * (TECHNIQUES.len() - 1) / 2);
        let reason = |a: &str, b: &str| {
            let pair = |known: &&Exclusion| known.techniques == [a, b];
            found.excluded.iter().find(pair).map(|known| known.reason.as_str())
        };
        let kept = reason("lossy drafts", "kept results").expect("refused");
        assert!(kept.contains("`--result-cache`") && kept.contains("not exact"), "{kept}");
        assert_eq!(reason("drafts by matches", "kept results"), None);
        assert_eq!(reason("drafts by matches", "lossy drafts"), None, "the same method");
        let methods = reason("drafts by matches", "drafts by the first layers").expect("one value");
        assert_eq!(methods, "`spec` is either `suffix` or `early-exit:1`");
        assert!(reason("swapping", "recomputing").is_some());
        let text = found.render();
        let n_lines = found.excluded.len() + 1;
        assert_eq!(text.lines().count(), n_lines, "{text}");
    }
}
