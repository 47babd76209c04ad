//! A sentence hidden in a long text, and whether the model finds it.
//!
//! ```text
//! 0 ..... depth ................................. length
//! text    The secret number of Lisbon is 48213.    text    The secret number of Lisbon is ─▶ 48213
//! ```
//!
//! For each length and depth several sentences are hidden, one at a time; the number counts as found
//! where greedy decoding would say each of its tokens. Lengths are exact: question and answer included,
//! and what the tokenizer puts before a text.

use serde::Serialize;

use pelton_base::TokenId;
use pelton_text::Tokenizer;

use super::Subject;
use super::runner::Runner;
use crate::table::{Align, table};
use crate::{BenchError, Progress, Result, Watch};

/// Names that sentences are about.
const PLACES: [&str; 8] =
    ["Lisbon", "Cairo", "Oslo", "Lima", "Kyoto", "Quebec", "Nairobi", "Dublin"];

/// The hidden sentence and its place.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Tokens of the whole, question and answer included.
    pub lengths: Vec<usize>,
    /// Shares of the text before the sentence, in percent.
    pub depths: Vec<u32>,
    /// Sentences for each length and depth.
    pub trials: usize,
}

impl Config {
    /// Checks the numbers against the context of the model.
    ///
    /// # Errors
    ///
    /// Names the flag that is out of range.
    pub fn check(&self, context: usize) -> Result<()> {
        let least = 64;
        if let Some(length) = self.lengths.iter().find(|n| !(least..=context).contains(*n)) {
            return Err(BenchError::invalid(format!(
                "`--lengths` has {length}: expected {least} to the context of {context} tokens"
            )));
        }
        if let Some(depth) = self.depths.iter().find(|depth| **depth > 100) {
            return Err(BenchError::invalid(format!(
                "`--depths` has {depth}: expected percentages from 0 to 100"
            )));
        }
        if self.lengths.is_empty() || self.depths.is_empty() || self.trials == 0 {
            return Err(BenchError::invalid(
                "`--lengths`, `--depths` and `--trials`: expected at least one of each",
            ));
        }
        Ok(())
    }
}

/// One length and depth.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Cell {
    /// Tokens of the whole.
    pub length: usize,
    /// Share of the text before the sentence, in percent.
    pub depth: u32,
    /// Sentences that were hidden.
    pub n_trials: usize,
    /// Numbers that were found.
    pub n_found: usize,
    /// Mean log probability of the right number, in nats.
    pub logprob: f64,
}

/// All lengths and depths.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// Name of the model.
    pub model: String,
    /// Lengths, and within them depths.
    pub cells: Vec<Cell>,
    /// Share of all numbers that were found.
    pub found: f64,
    /// Whether some cells are missing.
    pub interrupted: bool,
}

impl Report {
    /// The figures as a table.
    pub fn render(&self) -> String {
        let head = [
            ("length", Align::Right),
            ("depth", Align::Right),
            ("found", Align::Right),
            ("log probability", Align::Right),
        ];
        let row = |cell: &Cell| {
            [
                cell.length.to_string(),
                format!("{} %", cell.depth),
                format!("{} of {}", cell.n_found, cell.n_trials),
                format!("{:.2}", cell.logprob),
            ]
        };
        let rows: Vec<[String; 4]> = self.cells.iter().map(row).collect();
        let note = if self.interrupted { "(interrupted: not every cell is there)\n" } else { "" };
        let found = 100.0 * self.found;
        format!("model  {}\nfound  {found:.1} %\n\n{}{note}", self.model, table(head, &rows))
    }
}

/// Hides and asks. `text` is what sentences are hidden in; it is repeated where it is too short.
///
/// # Errors
///
/// A text without tokens, lengths that leave no room for it, memory for keys and values that is
/// refused.
pub fn measure(
    subject: &mut Subject,
    tokenizer: &Tokenizer,
    text: &str,
    config: &Config,
    watch: Watch<'_>,
) -> Result<Report> {
    let longest = config.lengths.iter().copied().max().unwrap_or(0);
    let mut runner = Runner::new(&subject.decoder, longest)?;
    let hay = Hay::new(tokenizer, text)?;
    let n_steps = config.lengths.len() * config.depths.len();
    let mut cells = Vec::with_capacity(n_steps);
    let pairs = config.lengths.iter().flat_map(|n| config.depths.iter().map(move |d| (*n, *d)));
    for (length, depth) in pairs {
        if (watch.is_stopped)() {
            break;
        }
        let mut cell = Cell { length, depth, n_trials: config.trials, n_found: 0, logprob: 0.0 };
        for trial in 0..config.trials {
            let (before, answer) = hay.hide(length, depth, trial)?;
            let scored = runner.score(&mut subject.decoder, &before, &answer);
            cell.n_found += usize::from(scored.iter().all(|token| token.is_likeliest));
            let logprob: f64 = scored.iter().map(|token| token.logprob).sum();
            cell.logprob += logprob / config.trials as f64;
        }
        cells.push(cell);
        let label = format!("{length} tokens, {depth} %");
        (watch.progress)(Progress { n_done: cells.len(), n_steps, label: &label });
    }
    let n_found: usize = cells.iter().map(|cell| cell.n_found).sum();
    let n_trials: usize = cells.iter().map(|cell| cell.n_trials).sum();
    Ok(Report {
        model: subject.name.clone(),
        found: n_found as f64 / n_trials.max(1) as f64,
        interrupted: cells.len() < n_steps,
        cells,
    })
}

/// The text around sentences.
struct Hay<'a> {
    tokenizer: &'a Tokenizer,
    /// Tokens that the tokenizer puts before a text.
    prefix: Vec<TokenId>,
    tokens: Vec<TokenId>,
}

impl<'a> Hay<'a> {
    fn new(tokenizer: &'a Tokenizer, text: &str) -> Result<Self> {
        let own = super::Tokens::new(tokenizer, text, None)
            .map_err(|error| BenchError::invalid(error.to_string()))?;
        if own.tokens.is_empty() {
            return Err(BenchError::invalid("the text is empty: expected something to hide in"));
        }
        Ok(Self { tokenizer, prefix: own.prefix, tokens: own.tokens })
    }

    /// All tokens before the answer, and those of the answer.
    fn hide(
        &self,
        length: usize,
        depth: u32,
        trial: usize,
    ) -> Result<(Vec<TokenId>, Vec<TokenId>)> {
        let encode = |text: &str| {
            let tokens = self.tokenizer.encode(text, false);
            tokens.map_err(|error| BenchError::invalid(error.to_string()))
        };
        let place = PLACES[trial % PLACES.len()];
        // Five digits, none of which begins with zero.
        let number = 10_000 + (trial * 7919 + depth as usize * 104_729 + length * 31) % 90_000;
        let sentence = encode(&format!("\nThe secret number of {place} is {number}.\n"))?;
        let question = format!("\nThe secret number of {place} is");
        let asked = encode(&question)?;
        let whole = encode(&format!("{question} {number}"))?;
        let n_common = asked.iter().zip(&whole).take_while(|(a, b)| a == b).count();
        let answer = whole[n_common..].to_vec();
        let taken = self.prefix.len() + sentence.len() + whole.len();
        let Some(room) = length.checked_sub(taken).filter(|room| *room > 0) else {
            return Err(BenchError::invalid(format!(
                "`--lengths` has {length}: sentence and question take {taken} tokens, and leave no room \
                 for the text"
            )));
        };
        // Each trial begins elsewhere in the text.
        let start = trial * room % self.tokens.len();
        let mut before = self.prefix.clone();
        before.extend(hidden(&self.tokens, start, &sentence, room, depth));
        before.extend(&whole[..n_common]);
        Ok((before, answer))
    }
}

/// `room` tokens of a text from `start` on, again from its beginning where it ends, with the sentence
/// behind `depth` percent of them.
fn hidden(
    hay: &[TokenId],
    start: usize,
    sentence: &[TokenId],
    room: usize,
    depth: u32,
) -> Vec<TokenId> {
    let n_before = room * depth as usize / 100;
    let around = |skipped: usize, n: usize| hay.iter().cycle().skip(start + skipped).take(n);
    let before = around(0, n_before).chain(sentence);
    before.chain(around(n_before, room - n_before)).copied().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sentence_lies_at_its_depth_of_a_text_of_its_length() {
        let ids = |range: std::ops::Range<u32>| range.map(TokenId).collect::<Vec<_>>();
        let (hay, sentence) = (ids(0..30), ids(500..503));
        for (depth, n_before) in [(0, 0), (25, 10), (50, 20), (100, 40)] {
            let found = hidden(&hay, 7, &sentence, 40, depth);
            assert_eq!(found.len(), 43);
            assert_eq!(found[n_before..n_before + 3], sentence);
            let around = [&found[..n_before], &found[n_before + 3..]].concat();
            let expected: Vec<TokenId> = (0..40).map(|at| TokenId((7 + at) % 30)).collect();
            assert_eq!(around, expected, "the text goes on behind the sentence");
        }
    }

    #[test]
    fn numbers_out_of_range_are_named() {
        let config = |lengths: &[usize], depths: &[u32], trials| {
            let config = Config { lengths: lengths.to_vec(), depths: depths.to_vec(), trials };
            config.check(512).err().map(|error| error.to_string()).unwrap_or_default()
        };
        assert_eq!(config(&[64, 512], &[0, 100], 1), "");
        assert!(config(&[63], &[0], 1).contains("`--lengths` has 63"));
        assert!(config(&[513], &[0], 1).contains("context of 512"));
        assert!(config(&[64], &[101], 1).contains("`--depths` has 101"));
        assert!(config(&[64], &[0], 0).contains("at least one"));
    }
}
