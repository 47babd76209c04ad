//! Two models side by side: speed, memory, quality and exactness.
//!
//! ```text
//! quality     B's perplexity and its divergence from A, on a text            as of `measure`
//! exactness   prompts out of the text, continued greedily by both            same tokens?
//! speed       the same prompts and answers, A and B in turns                 a round each
//! memory      packed weights, and keys and values of a token
//! ```
//!
//! A is the model that B is meant to replace. Rounds of A and B alternate, so that a slow minute of the
//! machine disturbs both; the ratio is that of each round.

use std::time::Instant;

use serde::Serialize;

use pelton_base::TokenId;

use super::report::words;
use super::runner::Runner;
use super::{Config, Interval, Report as Quality, Subject, Tokens};
use crate::record::{Measure, Reads, Reported};
use crate::samples::Summary;
use crate::table::{Align, INTERRUPTED, bytes, table};
use crate::{BenchError, Progress, Result, Watch};

/// Prompts and answers that are compared.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Answers {
    /// Prompts.
    pub n_prompts: usize,
    /// Tokens of a prompt.
    pub prompt_tokens: usize,
    /// Tokens of an answer.
    pub answer_tokens: usize,
}

/// Bounds that B is held to.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Bounds {
    /// Most divergence from A, in nats per token.
    pub kl: Option<f64>,
    /// Most increase of the perplexity over A's, in percent.
    pub perplexity_increase_percent: Option<f64>,
}

/// Speed and memory of one model.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Side {
    name: String,
    perplexity: Interval,
    prompt_tokens_per_s: Option<Summary>,
    generated_tokens_per_s: Option<Summary>,
    weight_bytes: u64,
    kv_bytes_per_token: f64,
}

/// How many tokens of the answers are the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Exactness {
    n_answers: usize,
    answer_tokens: usize,
    /// Answers without any difference.
    n_same_answers: usize,
    /// Mean number of tokens before the first difference.
    same_tokens: f64,
}

/// One bound, and the figure that it is about.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Gate {
    /// Name of the flag.
    pub flag: &'static str,
    /// The figure in words.
    pub figure: &'static str,
    /// Its unit.
    pub unit: &'static str,
    /// The figure.
    pub value: f64,
    /// The most that it may be.
    pub bound: f64,
    /// Whether it is no larger; a figure that is no number is larger.
    pub passed: bool,
}

/// Both models.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    a: Side,
    b: Side,
    /// Generation of B over that of A, round by round.
    generation_ratio: Option<Summary>,
    kl_divergence: Interval,
    /// The same by windows of the text.
    kl_by_window: Vec<f64>,
    perplexity_increase_percent: Interval,
    top1_agreement: Interval,
    exactness: Exactness,
    /// Tokens of the text that were scored.
    n_tokens: usize,
    /// Bounds that were asked for.
    pub gates: Vec<Gate>,
    /// Whether something is missing.
    pub interrupted: bool,
}

/// Compares `b` with `a`. `None` when the caller stopped before the first window was scored.
///
/// # Errors
///
/// Models of different vocabularies, a text that is shorter than a prompt, memory for keys and values
/// that is refused.
pub fn measure(
    [a, b]: [&mut Subject; 2],
    tokens: &Tokens,
    (config, answers, bounds): (&Config, Answers, Bounds),
    watch: Watch<'_>,
) -> Result<Option<Report>> {
    let prompts = prompts(tokens, answers)?;
    let Some(quality) = super::measure(b, Some(&mut *a), tokens, config, watch)? else {
        return Ok(None);
    };
    let n_tokens = answers.prompt_tokens + answers.answer_tokens;
    let mut runners = [Runner::new(&a.decoder, n_tokens)?, Runner::new(&b.decoder, n_tokens)?];
    let mut rounds: [Vec<Round>; 2] = [Vec::new(), Vec::new()];
    for (idx, prompt) in prompts.iter().enumerate() {
        if (watch.is_stopped)() {
            break;
        }
        for ((subject, runner), rounds) in
            [&mut *a, &mut *b].into_iter().zip(&mut runners).zip(&mut rounds)
        {
            rounds.extend(round(subject, runner, prompt, answers.answer_tokens));
        }
        let label = "greedy answers";
        (watch.progress)(Progress { n_done: idx + 1, n_steps: prompts.len(), label });
    }
    let interrupted = quality.interrupted || rounds[1].len() < prompts.len();
    Ok(Some(Report::new([a, b], &quality, &rounds, (bounds, interrupted))))
}

/// Evenly spaced pieces of the text.
fn prompts(tokens: &Tokens, answers: Answers) -> Result<Vec<Vec<TokenId>>> {
    let Answers { n_prompts, prompt_tokens, .. } = answers;
    let own = prompt_tokens.saturating_sub(tokens.prefix.len()).max(1);
    let n = tokens.tokens.len();
    if n < own {
        return Err(BenchError::invalid(format!(
            "the text has {n} tokens: expected at least a prompt of {own}, or a smaller `--prompt-tokens`"
        )));
    }
    let stride = (n - own) / n_prompts.max(1);
    let prompt = |idx: usize| {
        let first = idx * stride;
        [&tokens.prefix[..], &tokens.tokens[first..first + own]].concat()
    };
    Ok((0..n_prompts).map(prompt).collect())
}

/// A prompt and its answer.
struct Round {
    prompt_tokens_per_s: f64,
    generated_tokens_per_s: f64,
    answer: Vec<TokenId>,
}

/// `None` where no token is likelier than others, because none is a number.
fn round(
    subject: &mut Subject,
    runner: &mut Runner,
    prompt: &[TokenId],
    n_answer: usize,
) -> Option<Round> {
    let started = Instant::now();
    let first = runner.prompt(&mut subject.decoder, prompt)?;
    let read = started.elapsed().as_secs_f64();
    let started = Instant::now();
    let answer = runner.generate(&mut subject.decoder, prompt.len(), first, n_answer, |_| false);
    let generated = started.elapsed().as_secs_f64();
    Some(Round {
        prompt_tokens_per_s: prompt.len() as f64 / read.max(1e-9),
        generated_tokens_per_s: (answer.len() - 1) as f64 / generated.max(1e-9),
        answer,
    })
}

fn exactness([a, b]: &[Vec<Round>; 2]) -> Exactness {
    let pairs: Vec<(usize, usize)> = a
        .iter()
        .zip(b)
        .map(|(a, b)| {
            let n = a.answer.len().max(b.answer.len());
            (a.answer.iter().zip(&b.answer).take_while(|(a, b)| a == b).count(), n)
        })
        .collect();
    let n_answers = pairs.len();
    Exactness {
        n_answers,
        answer_tokens: pairs.iter().map(|(_, n)| *n).max().unwrap_or(0),
        n_same_answers: pairs.iter().filter(|(same, n)| same == n).count(),
        same_tokens: pairs.iter().map(|(same, _)| same).sum::<usize>() as f64
            / n_answers.max(1) as f64,
    }
}

impl Report {
    fn new(
        [a, b]: [&mut Subject; 2],
        quality: &Quality,
        rounds: &[Vec<Round>; 2],
        (bounds, interrupted): (Bounds, bool),
    ) -> Self {
        let against = quality.against.as_ref().expect("invariant: there is a reference");
        let side = |subject: &Subject, rounds: &[Round], perplexity| Side {
            name: subject.name.clone(),
            perplexity,
            prompt_tokens_per_s: Summary::new(
                rounds.iter().map(|round| round.prompt_tokens_per_s).collect(),
            ),
            generated_tokens_per_s: Summary::new(
                rounds.iter().map(|round| round.generated_tokens_per_s).collect(),
            ),
            weight_bytes: subject.decoder.memory_bytes(),
            kv_bytes_per_token: Runner::kv_bytes_per_token(&subject.decoder),
        };
        let ratios = rounds[0].iter().zip(&rounds[1]);
        let ratio = ratios.map(|(a, b)| b.generated_tokens_per_s / a.generated_tokens_per_s);
        let gate = |flag, figure, unit, value: f64, bound: Option<f64>| {
            let passed = |bound| value <= bound;
            bound.map(|bound| Gate { flag, figure, unit, value, bound, passed: passed(bound) })
        };
        let (kl, increase) = (against.kl_divergence, against.perplexity_increase_percent);
        let gates = [
            gate("--max-kl", "the divergence", "nats per token", kl.value, bounds.kl),
            gate(
                "--max-ppl-increase",
                "the increase of perplexity",
                "percent",
                increase.value,
                bounds.perplexity_increase_percent,
            ),
        ];
        Self {
            a: side(a, &rounds[0], against.perplexity),
            b: side(b, &rounds[1], quality.perplexity),
            generation_ratio: Summary::new(ratio.collect()),
            kl_divergence: kl,
            kl_by_window: quality.kl_by_window.clone(),
            perplexity_increase_percent: increase,
            top1_agreement: against.top1_agreement,
            exactness: exactness(rounds),
            n_tokens: quality.n_tokens,
            gates: gates.into_iter().flatten().collect(),
            interrupted,
        }
    }

    /// Both models as a table, and what holds between them.
    pub fn render(&self) -> String {
        let (a, b) = (&self.a, &self.b);
        let rate =
            |x: &Option<Summary>| x.as_ref().map_or("-".to_owned(), |x| format!("{:.1}", x.median));
        let both = |name: &str, of: &dyn Fn(&Side) -> String| [name.to_owned(), of(a), of(b)];
        let rows = [
            both("model", &|side| side.name.clone()),
            both("perplexity", &|side| words(side.perplexity, 4)),
            both("prompt tokens/s", &|side| rate(&side.prompt_tokens_per_s)),
            both("generated tokens/s", &|side| rate(&side.generated_tokens_per_s)),
            both("weights", &|side| bytes(side.weight_bytes)),
            both("KV per token", &|side| bytes(side.kv_bytes_per_token as u64)),
        ];
        let head = [("", Align::Left), ("A", Align::Right), ("B", Align::Right)];
        let Exactness { n_answers, answer_tokens, n_same_answers, same_tokens } = self.exactness;
        let ratio = self.generation_ratio.as_ref().map_or("-".to_owned(), |x| {
            format!("{:.2} ({:.2}..{:.2})", x.median, x.lowest, x.highest)
        });
        let mut lines = vec![
            ("B from A, KL divergence", words(self.kl_divergence, 6)),
            ("perplexity, increase in %", words(self.perplexity_increase_percent, 3)),
            ("same top token", words(self.top1_agreement, 4)),
            ("same greedy answers", format!("{n_same_answers} of {n_answers}")),
            ("same tokens", format!("{same_tokens:.1} of {answer_tokens} before a difference")),
            ("generation, B to A", ratio),
            ("text", format!("{} tokens scored", self.n_tokens)),
        ];
        for gate in &self.gates {
            let word = if gate.passed { "held" } else { "exceeded" };
            lines.push((gate.flag, format!("{word}: {:.6} of {}", gate.value, gate.bound)));
        }
        let lines: String =
            lines.iter().map(|(name, value)| format!("{name:<27}{value}\n")).collect();
        let note = if self.interrupted { INTERRUPTED } else { "" };
        format!("{}\n{lines}{note}", table(head, &rows))
    }
}

impl Reported for Report {
    const KIND: &'static str = "ab";

    fn measures(&self) -> Vec<Measure> {
        let mut measures = Vec::new();
        for (name, side) in [("A", &self.a), ("B", &self.b)] {
            let rounds = |x: &Option<Summary>| x.as_ref().map_or(Vec::new(), |x| x.rounds.clone());
            measures.extend([
                Measure::rate(
                    format!("{name} prompt"),
                    "tokens/s",
                    rounds(&side.prompt_tokens_per_s),
                ),
                Measure::rate(
                    format!("{name} generation"),
                    "tokens/s",
                    rounds(&side.generated_tokens_per_s),
                ),
                Measure::cost(format!("{name} weights"), "bytes", vec![side.weight_bytes as f64]),
                Measure::cost(
                    format!("{name} KV per token"),
                    "bytes",
                    vec![side.kv_bytes_per_token],
                ),
                Measure::cost(format!("{name} perplexity"), "", vec![side.perplexity.value]),
            ]);
        }
        let same = self.exactness.n_same_answers as f64 / self.exactness.n_answers.max(1) as f64;
        measures.extend([
            Measure::cost("KL divergence", "nats/token", self.kl_by_window.clone()),
            Measure::rate("same top token", "share", vec![self.top1_agreement.value]),
            Measure::rate("same greedy answers", "share", vec![same]),
        ]);
        measures
    }

    fn is_interrupted(&self) -> bool {
        self.interrupted
    }

    fn threads(&self) -> Option<usize> {
        None
    }

    fn reads(&self) -> Option<Reads> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answers(n_prompts: usize, prompt_tokens: usize) -> Answers {
        Answers { n_prompts, prompt_tokens, answer_tokens: 4 }
    }

    #[test]
    fn answers_are_compared_up_to_the_first_difference() {
        let round = |answer: &[u32]| Round {
            prompt_tokens_per_s: 1.0,
            generated_tokens_per_s: 1.0,
            answer: answer.iter().copied().map(TokenId).collect(),
        };
        let a = vec![round(&[1, 2, 3, 4]), round(&[1, 2, 3, 4]), round(&[1])];
        let b = vec![round(&[1, 2, 3, 4]), round(&[1, 9, 3, 4]), round(&[1, 2])];
        let found = exactness(&[a, b]);
        assert_eq!((found.n_answers, found.n_same_answers, found.answer_tokens), (3, 1, 4));
        assert_eq!(found.same_tokens, 2.0);
    }

    #[test]
    fn prompts_are_spread_over_the_text_and_a_short_text_is_refused() {
        let ids = |range: std::ops::Range<u32>| range.map(TokenId).collect::<Vec<_>>();
        let text = Tokens::of_ids(ids(100..101), ids(0..50));
        let found = prompts(&text, answers(3, 11)).expect("prompts");
        let expected = |first| [ids(100..101), ids(first..first + 10)].concat();
        assert_eq!(found, [expected(0), expected(13), expected(26)]);
        let error = prompts(&text, answers(1, 60)).expect_err("too short").to_string();
        assert!(error.contains("50 tokens") && error.contains("--prompt-tokens"), "{error}");
    }
}
