//! Regular expressions of tokenizers, under a budget of time per text.
//!
//! Expressions that look ahead are matched by backtracking, which can take exponential time, and
//! even one without look-ahead takes quadratic time on some texts. The `tokenizers` crate ends a
//! search at the matcher's own limit without an error, so the rest of the text gets other tokens.
//! Here both are an error that names the expression.
//!
//! ```text
//! quick     all starts in one search, up to QUICK_BACKTRACKS       ordinary text: it ends at once
//! careful   a search per start, up to a limit by the text's length  where `quick` gives up, such as
//!                                                                  many starts without a match
//! clock     read every few searches                                all searches of a text together
//! ```
//!
//! A backtrack, and a start, may read all of the text that follows. So `quick` gives up soon, and
//! the limit of `careful` falls with the length of the text. Both find the same matches.

use std::cell::RefCell;
use std::fmt;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use fancy_regex::{Match, Regex, RegexBuilder};
use tokenizers::tokenizer::pattern::Pattern;
use tokenizers::{NormalizedString, Offsets};

/// Backtracks of a search that tries all starts.
const QUICK_BACKTRACKS: usize = 100;
/// Lengths of texts in bytes, ascending, with the backtracks of a careful search in them.
const CAREFUL_BACKTRACKS: [(usize, usize); 4] =
    [(2_000, 1_000_000), (20_000, 25_000), (200_000, 5_000), (usize::MAX, 2_500)];
/// Searches between two looks at the clock.
const SEARCHES_PER_LOOK: usize = 8;

/// Time that the expressions of a tokenizer may take for any text, and for each byte of it: fifty
/// times what ordinary ones need.
const BASE_BUDGET: Duration = Duration::from_secs(1);
const BUDGET_PER_BYTE: Duration = Duration::from_micros(5);

/// The rest of the budget of the text that this thread encodes.
struct Budget {
    left: Duration,
    /// The expression that exhausted it.
    exhausted_by: Option<String>,
}

thread_local! {
    static BUDGET: RefCell<Option<Budget>> = const { RefCell::new(None) };
}

/// Calls `encode`, in which expressions together take no more than the budget of `n_bytes` of text.
///
/// # Errors
///
/// The expression that would take longer.
pub(crate) fn within_budget<T>(n_bytes: usize, encode: impl FnOnce() -> T) -> Result<T, String> {
    let per_bytes = BUDGET_PER_BYTE.saturating_mul(u32::try_from(n_bytes).unwrap_or(u32::MAX));
    let left = BASE_BUDGET.saturating_add(per_bytes);
    BUDGET.replace(Some(Budget { left, exhausted_by: None }));
    let encoded = encode();
    match BUDGET.take().and_then(|budget| budget.exhausted_by) {
        Some(expression) => Err(expression),
        None => Ok(encoded),
    }
}

/// An expression whose searches are bounded.
pub(crate) struct BoundedRegex {
    expression: String,
    quick: Regex,
    /// Made at their first use; `None` where the expression cannot be tied to its start.
    careful: [OnceLock<Option<Regex>>; CAREFUL_BACKTRACKS.len()],
}

impl fmt::Debug for BoundedRegex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("BoundedRegex").field(&self.expression).finish()
    }
}

/// The budget is exhausted, or a search at one start.
#[derive(Debug, thiserror::Error)]
#[error("the search takes too long")]
struct Exhausted;

impl BoundedRegex {
    /// `None` where the expression is not well formed.
    pub(crate) fn new(expression: &str) -> Option<Self> {
        let quick = RegexBuilder::new(expression).backtrack_limit(QUICK_BACKTRACKS).build().ok()?;
        Some(Self { expression: expression.to_owned(), quick, careful: Default::default() })
    }

    /// The first match at `start` or behind it.
    fn find<'t>(
        &self,
        text: &'t str,
        start: usize,
        clock: &mut Clock,
    ) -> Result<Option<Match<'t>>, Exhausted> {
        clock.look()?;
        if let Ok(found) = self.quick.find_from_pos(text, start) {
            return Ok(found);
        }
        let careful = self.careful(text.len()).ok_or(Exhausted)?;
        let starts = text[start..].char_indices().map(|(i, _)| start + i);
        for at in starts.chain([text.len()]) {
            clock.look()?;
            match careful.find_from_pos(text, at) {
                Ok(None) => {}
                found => return found.map_err(|_| Exhausted),
            }
        }
        Ok(None)
    }

    /// The expression tied to the start of its search.
    fn careful(&self, n_bytes: usize) -> Option<&Regex> {
        let of_length = |&(longest, _): &(usize, usize)| n_bytes <= longest;
        let idx = CAREFUL_BACKTRACKS.iter().position(of_length)?;
        let build = || {
            let tied = format!(r"\G(?:{})", self.expression);
            RegexBuilder::new(&tied).backtrack_limit(CAREFUL_BACKTRACKS[idx].1).build().ok()
        };
        self.careful[idx].get_or_init(build).as_ref()
    }

    /// Every match, as `fancy_regex` and Python find them: an empty match right behind another
    /// match does not count.
    fn matches(&self, text: &str, clock: &mut Clock) -> Result<Vec<(usize, usize)>, Exhausted> {
        let (mut found, mut start, mut last_end) = (Vec::new(), 0, None);
        while start <= text.len() {
            let Some(next) = self.find(text, start, clock)? else { break };
            start = next.end();
            if next.start() == next.end() {
                start += text[start..].chars().next().map_or(1, char::len_utf8);
                if last_end == Some(next.end()) {
                    continue;
                }
            }
            last_end = Some(next.end());
            found.push((next.start(), next.end()));
        }
        Ok(found)
    }
}

/// Parts of a text, each with whether it is a match.
type Parts = Vec<(Offsets, bool)>;

impl Pattern for &BoundedRegex {
    fn find_matches(&self, text: &str) -> tokenizers::Result<Parts> {
        if text.is_empty() {
            return Ok(vec![((0, 0), false)]);
        }
        let mut clock = Clock::start()?;
        let found = self.matches(text, &mut clock);
        clock.stop(found.is_err().then_some(&self.expression));
        let (mut parts, mut end) = (Vec::new(), 0);
        for (from, to) in found? {
            if end != from {
                parts.push(((end, from), false));
            }
            parts.push(((from, to), true));
            end = to;
        }
        if end != text.len() {
            parts.push(((end, text.len()), false));
        }
        Ok(parts)
    }
}

/// Matches that were found before.
struct Found(Parts);

impl Pattern for Found {
    fn find_matches(&self, _: &str) -> tokenizers::Result<Parts> {
        Ok(self.0.clone())
    }
}

/// Replaces every match by `content`.
///
/// After a replacement of an empty match the crate loses count of its characters, and its next step
/// panics. Such a text is built anew, without its place in the text around it.
pub(crate) fn replace(
    text: &mut NormalizedString,
    regex: &BoundedRegex,
    content: &str,
) -> tokenizers::Result<()> {
    let parts = regex.find_matches(text.get())?;
    if !parts.iter().any(|((from, to), is_match)| *is_match && from == to) {
        return text.replace(Found(parts), content);
    }
    let words = parts.into_iter().map(|((from, to), is_match)| match is_match {
        true => content,
        false => &text.get()[from..to],
    });
    let replaced: String = words.collect();
    *text = NormalizedString::from(replaced);
    Ok(())
}

/// The time of one expression on one piece of text.
struct Clock {
    started: Instant,
    left: Duration,
    n_searches: usize,
}

impl Clock {
    /// Refuses where the budget is exhausted already: the crate goes on after some errors.
    fn start() -> Result<Self, Exhausted> {
        let left = BUDGET.with_borrow(|budget| match budget {
            Some(Budget { exhausted_by: Some(_), .. }) => Err(Exhausted),
            Some(budget) => Ok(budget.left),
            // Outside of an encoding: a file is being read.
            None => Ok(BASE_BUDGET),
        })?;
        Ok(Self { started: Instant::now(), left, n_searches: 0 })
    }

    fn look(&mut self) -> Result<(), Exhausted> {
        self.n_searches += 1;
        let is_due = self.n_searches.is_multiple_of(SEARCHES_PER_LOOK);
        if is_due && self.started.elapsed() > self.left { Err(Exhausted) } else { Ok(()) }
    }

    fn stop(&self, exhausted_by: Option<&String>) {
        BUDGET.with_borrow_mut(|budget| {
            let Some(budget) = budget else { return };
            budget.left = budget.left.saturating_sub(self.started.elapsed());
            budget.exhausted_by = exhausted_by.cloned();
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unbounded(expression: &str, text: &str) -> Vec<(usize, usize)> {
        let regex = Regex::new(expression).expect("well formed");
        let found = regex.find_iter(text).map(|found| found.expect("within the limits"));
        found.map(|found| (found.start(), found.end())).collect()
    }

    fn bounded(expression: &str, text: &str) -> Vec<(usize, usize)> {
        let regex = BoundedRegex::new(expression).expect("well formed");
        // Hours, so that a busy machine finds what an idle one finds.
        let parts = within_budget(usize::MAX, || (&regex).find_matches(text));
        let parts = parts.expect("within the budget").expect("within the limits");
        let matches = parts.into_iter().filter_map(|(part, is_match)| is_match.then_some(part));
        matches.collect()
    }

    #[test]
    fn every_expression_finds_what_it_finds_without_bounds() {
        let mixed =
            "It's  3,141 \u{e9}t\u{e9}s\t12345678\r\n\n  \u{65e5}\u{672c}12 <a_b>\u{1f600}\u{301} ";
        // Searches between these matches begin at more starts than `quick` tries.
        let sparse = format!("{}12345678 {}x", "a".repeat(3000), "b\u{e9}".repeat(300));
        let more = ["(?=(a+)+b)a", "", "x*", "^", "$", r"\b", "(?=a)", "(?<=b)a|(?=x)"];
        for expression in crate::pre_tokenizer::expressions().chain(more) {
            for text in [mixed, &mixed.repeat(40), &sparse, " ", "a", &"a1 ".repeat(500)] {
                let shown: String = text.chars().take(20).collect();
                let expected = unbounded(expression, text);
                assert_eq!(bounded(expression, text), expected, "{expression} in {shown}");
            }
        }
    }

    #[test]
    fn the_budget_is_that_of_one_text_and_names_the_first_that_exhausts_it() {
        let regex = BoundedRegex::new("(?:a|(?=b)c|aa?)+(?=x)d").expect("well formed");
        let search = |text: &str| (&regex).find_matches(text).map(|parts| parts.len());
        let found =
            within_budget(100, || (search("aab").is_ok(), search(&"a".repeat(100)).is_ok()));
        assert_eq!(found.expect_err("exhausted"), regex.expression);
        assert!(format!("{regex:?}").contains("(?=b)c"), "{regex:?}");
        let again = within_budget(100, || {
            let first = search(&"a".repeat(100)).is_ok();
            (first, search("aab").is_ok())
        });
        assert!(again.is_err(), "nothing is searched once the budget is exhausted");
        assert_eq!(within_budget(3, || search("aab").expect("found")), Ok(1));
    }
}
