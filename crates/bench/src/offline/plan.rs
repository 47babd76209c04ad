//! The shapes that are measured, checked against the context of the model and the memory.

use crate::bytes;
use crate::model::report::Facts;
use crate::profile::StepWork;
use crate::shared::BLOCK_TOKENS;
use crate::{BenchError, Result};

/// Batches that are measured where none is named.
const BATCHES: [usize; 4] = [1, 8, 32, 128];
/// Lengths that are measured where none are named.
const LENGTHS: [Lengths; 3] = [
    Lengths { input: 128, output: 128 },
    Lengths { input: 512, output: 512 },
    Lengths { input: 2048, output: 1024 },
];

/// Tokens of a prompt and of its answer.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Lengths {
    /// Tokens of the prompt.
    pub input: usize,
    /// Tokens of the answer.
    pub output: usize,
}

/// The settings of `pelton bench offline`, named as its flags.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Config {
    /// Requests at once; empty for 1, 8, 32 and 128.
    pub batches: Vec<usize>,
    /// Tokens of prompts and answers; empty for 128:128, 512:512 and 2048:1024 as far as the model
    /// reaches.
    pub lengths: Vec<Lengths>,
    /// How often everything is measured.
    pub rounds: usize,
    /// Whether prompts and generation are also timed operation by operation.
    pub profile: bool,
}

/// Requests that arrive together.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Shape {
    pub(super) batch: usize,
    pub(super) input: usize,
    pub(super) output: usize,
}

impl Shape {
    /// The shape in words: `8 x 128 + 32`.
    pub(super) fn name(&self) -> String {
        format!("{} x {} + {}", self.batch, self.input, self.output)
    }

    /// The steps that are timed operation by operation: those like the first one, of `n_rows` rows of
    /// prompts, and those in which all generate.
    ///
    /// The engine may begin with the first requests before it has seen the last ones, so the number of
    /// rows is the one that was found.
    pub(super) fn work(&self, facts: &Facts, n_rows: usize) -> [StepWork; 2] {
        let Self { batch, input, output } = *self;
        let seen = |n: usize| n * (n + 1) / 2;
        let (n_whole, rest) = (n_rows / input, n_rows % input);
        let prompts = StepWork {
            name: format!("{}, prompts", self.name()),
            n_rows,
            n_logits: n_whole,
            kv_bytes: n_whole * facts.kv_bytes(input) + facts.kv_bytes(rest),
            n_seen: n_whole * seen(input) + seen(rest),
        };
        let context = input + output / 2;
        let generation = StepWork {
            name: format!("{}, generation", self.name()),
            n_rows: batch,
            n_logits: batch,
            kv_bytes: batch * facts.kv_bytes(context),
            n_seen: batch * context,
        };
        [prompts, generation]
    }

    /// Blocks of keys and values of all requests.
    fn n_blocks(&self) -> usize {
        let tokens = self.input.saturating_add(self.output);
        tokens.div_ceil(BLOCK_TOKENS).saturating_mul(self.batch)
    }
}

/// Everything that is measured, and how often.
#[derive(Clone, Debug)]
pub struct Plan {
    pub(super) shapes: Vec<Shape>,
    pub(super) rounds: usize,
    /// Default shapes that are not measured, with the reason.
    pub(super) left_out: Vec<String>,
    /// Whether prompts and generation are also timed operation by operation.
    pub(super) profile: bool,
    has_named_shapes: bool,
}

impl Plan {
    /// Lays out what is asked for.
    ///
    /// # Errors
    ///
    /// Lengths beyond `max_context` tokens that were asked for.
    pub fn new(config: &Config, max_context: usize) -> Result<Self> {
        let batches = if config.batches.is_empty() { &BATCHES[..] } else { &config.batches };
        let lengths = if config.lengths.is_empty() { &LENGTHS[..] } else { &config.lengths };
        let mut left_out = Vec::new();
        let mut shapes: Vec<Shape> = Vec::new();
        for &Lengths { input, output } in lengths {
            let n_tokens = input.saturating_add(output);
            if n_tokens > max_context {
                let why =
                    format!("{input} + {output} tokens are beyond the context of {max_context}");
                if !config.lengths.is_empty() {
                    let hint = format!("at most {max_context} tokens together");
                    return Err(BenchError::invalid_with_hint(format!("`--lengths`: {why}"), hint));
                }
                left_out.push(why);
                continue;
            }
            shapes.extend(batches.iter().map(|&batch| Shape { batch, input, output }));
        }
        let mut once: Vec<Shape> = Vec::new();
        shapes.retain(|shape| {
            !once.contains(shape) && {
                once.push(*shape);
                true
            }
        });
        if shapes.is_empty() {
            let hint = "`--lengths 32:16` names shorter ones";
            let message =
                format!("the context of {max_context} tokens is too short for the usual lengths");
            return Err(BenchError::invalid_with_hint(message, hint));
        }
        let has_named_shapes = !config.batches.is_empty() || !config.lengths.is_empty();
        let (rounds, profile) = (config.rounds, config.profile);
        Ok(Self { shapes, rounds, left_out, profile, has_named_shapes })
    }

    /// The blocks that the largest shape needs. Default shapes beyond the memory are left out.
    ///
    /// # Errors
    ///
    /// A shape that was asked for, or all of the default ones, do not fit in `available_bytes`.
    pub(super) fn fit(
        &mut self,
        block_bytes: usize,
        logits_row_bytes: usize,
        available_bytes: Option<u64>,
    ) -> Result<usize> {
        let needed = |shape: &Shape| {
            let blocks = with_reserve(shape.n_blocks()).saturating_mul(block_bytes);
            blocks.saturating_add(shape.batch.saturating_mul(logits_row_bytes)) as u64
        };
        let fits = |shape: &Shape| available_bytes.is_none_or(|there| needed(shape) <= there);
        let is_first = |shape: &Shape| shape.n_blocks() <= self.shapes[0].n_blocks();
        let too_large = self.shapes.iter().find(|shape| !fits(shape));
        if let Some(shape) = too_large.filter(|shape| self.has_named_shapes || is_first(shape)) {
            let (needed, there) = (bytes(needed(shape)), bytes(available_bytes.unwrap_or(0)));
            let message = format!(
                "{} does not fit in memory: keys, values and logits take {needed}, {there} are available",
                shape.name()
            );
            return Err(BenchError::invalid_with_hint(message, "lower `--batch` or `--lengths`"));
        }
        let too_large: Vec<Shape> =
            self.shapes.iter().filter(|shape| !fits(shape)).copied().collect();
        self.left_out.extend(too_large.iter().map(|shape| {
            format!("{}: keys, values and logits take {}", shape.name(), bytes(needed(shape)))
        }));
        self.shapes.retain(|shape| !too_large.contains(shape));
        Ok(with_reserve(self.shapes.iter().map(Shape::n_blocks).max().unwrap_or(1)))
    }

    /// Most requests at once.
    pub(super) fn most_requests(&self) -> usize {
        self.shapes.iter().map(|shape| shape.batch).max().unwrap_or(1)
    }
}

/// The scheduler keeps some blocks free for running requests.
fn with_reserve(n_blocks: usize) -> usize {
    n_blocks.saturating_add(n_blocks / 50).saturating_add(2)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(batches: &[usize], lengths: &[(usize, usize)]) -> Config {
        let lengths = lengths.iter().map(|&(input, output)| Lengths { input, output }).collect();
        Config { batches: batches.to_vec(), lengths, rounds: 3, profile: false }
    }

    #[test]
    fn the_usual_shapes_stop_at_the_context_and_say_so() {
        let plan = Plan::new(&config(&[], &[]), 1024).expect("shapes");
        assert_eq!(plan.shapes.len(), 8);
        assert_eq!(plan.left_out.len(), 1);
        assert!(plan.left_out[0].contains("2048 + 1024"), "{:?}", plan.left_out);
        let plan = Plan::new(&config(&[2, 4, 2], &[]), 1024).expect("shapes");
        assert_eq!(plan.shapes.len(), 4);
        let error = Plan::new(&config(&[], &[]), 100).expect_err("too short").to_string();
        assert!(error.contains("too short"), "{error}");
    }

    #[test]
    fn lengths_that_were_asked_for_are_refused_by_flag() {
        let error = Plan::new(&config(&[1], &[(1000, 25)]), 1024).expect_err("too long");
        let BenchError::Invalid { message, hint: Some(hint) } = error else { panic!("{error:?}") };
        assert!(message.contains("--lengths") && hint.contains("1024"), "{message} {hint}");
        Plan::new(&config(&[1], &[(1000, 24)]), 1024).expect("fits");
    }

    #[test]
    fn usual_shapes_beyond_the_memory_are_left_out_and_named_ones_are_refused() {
        let mut plan = Plan::new(&config(&[], &[]), 1024).expect("shapes");
        // 32 x 16 blocks and their reserve fit, 128 x 16 do not.
        let n_blocks = plan.fit(100, 0, Some(100 * 600)).expect("some fit");
        assert_eq!(n_blocks, 32 * 16 + 10 + 2);
        assert!(
            plan.left_out.iter().any(|why| why.starts_with("128 x 128")),
            "{:?}",
            plan.left_out
        );
        let mut plan = Plan::new(&config(&[1, 128], &[]), 1024).expect("shapes");
        let error = plan.fit(100, 0, Some(100 * 600)).expect_err("named").to_string();
        assert!(error.contains("128 x 128 + 128"), "{error}");
        let mut plan = Plan::new(&config(&[], &[]), 1024).expect("shapes");
        plan.fit(100, 0, Some(10)).expect_err("none fits");
    }
}
