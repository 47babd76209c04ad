//! The list of measurements, checked against the context of the model and the memory of the
//! machine.

use super::report::Facts;
use crate::bytes;
use crate::profile::StepWork;
use crate::shared::{BLOCK_TOKENS, STEP_TOKENS};
use crate::{BenchError, Result};

/// Tokens of the short prompts that decoding is measured from.
pub(super) const SHORT_TOKENS: usize = 8;
/// Decoding steps per round at each context.
pub(super) const CONTEXT_STEPS: usize = 16;
/// Contexts measured when the configuration names none, in tokens.
const DEFAULT_CONTEXTS: [usize; 2] = [128, 4096];

/// The settings of `pelton bench model`, named as its flags.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Config {
    /// Tokens of a prompt; also the context of verification.
    pub prompt: usize,
    /// Steps of generation.
    pub generate: usize,
    /// Sequences generated at once; 1 is always measured.
    pub batches: Vec<usize>,
    /// Drafted tokens per verification.
    pub verify: usize,
    /// Tokens before a decoded one; empty for 128 and 4096 as far as the model reaches.
    pub contexts: Vec<usize>,
    /// How often everything is measured.
    pub rounds: usize,
    /// Whether prompts and generation are also timed operation by operation.
    pub profile: bool,
}

/// One thing that is measured in every round.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Variant {
    /// A prompt through the engine, to its first token.
    Prefill {
        /// Tokens of the prompt.
        n_tokens: usize,
    },
    /// A step of the engine that generates for several sequences.
    Decode {
        /// Sequences.
        batch: usize,
    },
    /// A forward pass of one row behind a long context.
    Context {
        /// Tokens before it.
        n_tokens: usize,
    },
    /// A forward pass of several rows of one sequence, all with logits, as verification does.
    Verify {
        /// Rows.
        n_rows: usize,
    },
}

/// Everything that is measured, and how often.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Tokens of a prompt; also the context of verification.
    pub(super) prompt: usize,
    /// Steps of generation.
    pub(super) generate: usize,
    /// How often everything is measured.
    pub(super) rounds: usize,
    /// The measurements of a round, in this order; baselines come first.
    pub(super) variants: Vec<Variant>,
    /// Whether prompts and generation are also timed operation by operation.
    pub(super) profile: bool,
}

/// Bytes that the plan needs, beside the weights.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Needs {
    /// Blocks of the engine's KV cache.
    pub(super) n_engine_blocks: usize,
    /// Blocks of the one sequence that is computed without the engine.
    pub(super) n_sequence_blocks: usize,
}

impl Plan {
    /// Lays out what is asked for.
    ///
    /// # Errors
    ///
    /// Names the flag that asks for more than `max_context` tokens of one sequence.
    pub fn new(config: &Config, max_context: usize) -> Result<Self> {
        let plan = Self {
            prompt: config.prompt,
            generate: config.generate,
            rounds: config.rounds,
            variants: variants(config, max_context),
            profile: config.profile,
        };
        for &variant in &plan.variants {
            plan.check(variant, config, max_context)?;
        }
        Ok(plan)
    }

    /// Refuses a variant that needs more than `max_context` tokens of one sequence.
    fn check(&self, variant: Variant, config: &Config, max_context: usize) -> Result<()> {
        let (flag, asked, n_more) = match variant {
            // Verification goes on where the prompt ends.
            Variant::Prefill { n_tokens } => {
                ("--prompt", n_tokens, config.verify.saturating_add(1))
            }
            Variant::Decode { batch } => {
                let n_asked = self.generated_tokens(batch);
                let n_more = (n_asked - self.generate).saturating_add(SHORT_TOKENS);
                ("--generate", self.generate, n_more)
            }
            Variant::Context { n_tokens } => ("--context", n_tokens, CONTEXT_STEPS),
            Variant::Verify { .. } => return Ok(()),
        };
        if asked.saturating_add(n_more) <= max_context {
            return Ok(());
        }
        let hint = match max_context.saturating_sub(n_more) {
            0 => "lower `--verify`, `--batch` or `--prompt`".to_owned(),
            most => format!("`{flag}` {most} is the most that fits"),
        };
        let batch = match variant {
            Variant::Decode { batch } => format!(" with `--batch` {batch}"),
            _ => String::new(),
        };
        let message = format!(
            "`{flag}` {asked}{batch} and {n_more} tokens more, which are measured with it, are \
             beyond the context of {max_context} tokens"
        );
        Err(BenchError::invalid_with_hint(message, hint))
    }

    /// The work of the steps of a variant that are timed operation by operation.
    pub(super) fn work(&self, variant: Variant, facts: &Facts) -> Option<StepWork> {
        let name = variant.name();
        match variant {
            Variant::Prefill { n_tokens } => {
                // The last whole step of the prompt.
                let n_rows = n_tokens.min(STEP_TOKENS);
                let end = n_tokens - n_tokens % n_rows;
                let n_seen = (end - n_rows + 1..=end).sum();
                let n_logits = usize::from(end == n_tokens);
                Some(StepWork { name, n_rows, n_logits, kv_bytes: facts.kv_bytes(end), n_seen })
            }
            Variant::Decode { batch } => {
                let context = SHORT_TOKENS + 1 + self.generate / 2;
                let kv_bytes = batch * facts.kv_bytes(context);
                let n_seen = batch * context;
                Some(StepWork { name, n_rows: batch, n_logits: batch, kv_bytes, n_seen })
            }
            Variant::Context { .. } | Variant::Verify { .. } => None,
        }
    }

    /// Tokens that each of `batch` sequences generates: enough that all run together for
    /// `generate` steps, although their prompts take several steps.
    pub(super) fn generated_tokens(&self, batch: usize) -> usize {
        let n_prompt_steps = batch.saturating_mul(SHORT_TOKENS).div_ceil(STEP_TOKENS);
        self.generate.saturating_add(n_prompt_steps).saturating_add(3)
    }

    /// Most sequences at once.
    pub(super) fn most_sequences(&self) -> usize {
        let batch = |variant: &Variant| match variant {
            Variant::Decode { batch } => *batch,
            _ => 1,
        };
        self.variants.iter().map(batch).max().unwrap_or(1)
    }

    /// Tokens of the one sequence that is computed without the engine.
    pub(super) fn sequence_tokens(&self) -> usize {
        let end = |variant: &Variant| match *variant {
            Variant::Context { n_tokens } => n_tokens + CONTEXT_STEPS,
            Variant::Verify { n_rows } => self.prompt + n_rows,
            Variant::Prefill { .. } | Variant::Decode { .. } => 0,
        };
        self.variants.iter().map(end).max().unwrap_or(0)
    }

    /// The KV blocks that the plan needs.
    ///
    /// # Errors
    ///
    /// Names the flag to lower when keys, values and logits take more than `available_bytes`.
    pub(super) fn needs(
        &self,
        block_bytes: usize,
        logits_row_bytes: usize,
        available_bytes: Option<u64>,
    ) -> Result<Needs> {
        let batch = self.most_sequences();
        let per_sequence = self.generated_tokens(batch).saturating_add(SHORT_TOKENS);
        let n_decode = per_sequence.div_ceil(BLOCK_TOKENS).saturating_mul(batch);
        let n_engine = n_decode.max((self.prompt + 1).div_ceil(BLOCK_TOKENS));
        // The scheduler keeps some blocks free for running requests.
        let n_engine_blocks = n_engine.saturating_add(n_engine / 50).saturating_add(2);
        let n_sequence_blocks = self.sequence_tokens().div_ceil(BLOCK_TOKENS);
        let engine_bytes = n_engine_blocks
            .saturating_mul(block_bytes)
            .saturating_add(batch.saturating_mul(logits_row_bytes));
        let sequence_bytes = n_sequence_blocks.saturating_mul(block_bytes);
        let needed = engine_bytes.saturating_add(sequence_bytes) as u64;
        match available_bytes {
            Some(available) if needed > available => {
                let what = if engine_bytes > sequence_bytes {
                    format!("`--batch` {batch} with `--generate` {}", self.generate)
                } else {
                    format!("a context (`--context`, `--prompt`) of {}", self.sequence_tokens())
                };
                let (needed, available) = (bytes(needed), bytes(available));
                let message = format!(
                    "{what} does not fit in memory: keys, values and logits of all that is \
                     measured take {needed}, {available} are available"
                );
                Err(BenchError::invalid_with_hint(message, "lower these flags"))
            }
            _ => Ok(Needs { n_engine_blocks, n_sequence_blocks }),
        }
    }
}

/// Every variant that the settings ask for, each once, baselines first.
fn variants(config: &Config, max_context: usize) -> Vec<Variant> {
    let mut contexts = config.contexts.clone();
    if contexts.is_empty() {
        contexts.extend(DEFAULT_CONTEXTS);
        contexts.retain(|n| n + CONTEXT_STEPS <= max_context);
    }
    let mut variants = vec![Variant::Prefill { n_tokens: config.prompt }];
    let batches = [1].into_iter().chain(config.batches.iter().copied());
    variants.extend(batches.map(|batch| Variant::Decode { batch }));
    variants.extend(contexts.iter().map(|&n_tokens| Variant::Context { n_tokens }));
    let rows = [1, config.verify, config.verify.saturating_add(1)];
    variants.extend(rows.map(|n_rows| Variant::Verify { n_rows }));
    let mut once: Vec<Variant> = Vec::new();
    variants.retain(|variant| {
        let is_new = !once.contains(variant);
        once.extend(is_new.then_some(*variant));
        is_new
    });
    variants
}

impl Variant {
    /// The name of the figure.
    pub(super) fn name(self) -> String {
        match self {
            Self::Prefill { n_tokens } => format!("prefill {n_tokens}"),
            Self::Decode { batch } => format!("decode batch {batch}"),
            Self::Context { n_tokens } => format!("decode context {n_tokens}"),
            Self::Verify { n_rows } => format!("verify rows {n_rows}"),
        }
    }

    /// Rows of one measured step.
    pub(super) fn n_rows(self) -> usize {
        match self {
            Self::Prefill { n_tokens } => n_tokens,
            Self::Decode { batch } => batch,
            Self::Context { .. } => 1,
            Self::Verify { n_rows } => n_rows,
        }
    }

    /// The variant that this one is compared with.
    pub(super) fn baseline(self) -> Option<Self> {
        match self {
            Self::Decode { .. } => Some(Self::Decode { batch: 1 }),
            Self::Verify { .. } => Some(Self::Verify { n_rows: 1 }),
            Self::Prefill { .. } | Self::Context { .. } => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config() -> Config {
        Config {
            prompt: 512,
            generate: 128,
            batches: vec![1, 8, 32],
            verify: 5,
            contexts: Vec::new(),
            rounds: 5,
            profile: false,
        }
    }

    #[test]
    fn everything_is_measured_once_and_baselines_come_first() {
        let config = Config { batches: vec![4, 1, 4], verify: 1, ..config() };
        let plan = Plan::new(&config, 1024).expect("fits");
        let expected = [
            Variant::Prefill { n_tokens: 512 },
            Variant::Decode { batch: 1 },
            Variant::Decode { batch: 4 },
            Variant::Context { n_tokens: 128 },
            Variant::Verify { n_rows: 1 },
            Variant::Verify { n_rows: 2 },
        ];
        assert_eq!(plan.variants, expected);
    }

    #[test]
    fn what_is_beyond_the_context_is_refused_by_flag_and_the_hint_holds() {
        let of = |flag: &str, n: usize| match flag {
            "--prompt" => Config { prompt: n, ..config() },
            "--generate" => Config { generate: n, ..config() },
            _ => Config { contexts: vec![n], ..config() },
        };
        for (flag, asked, most) in
            [("--prompt", 1024, 1018), ("--generate", 1013, 1012), ("--context", 2000, 1008)]
        {
            let error = Plan::new(&of(flag, asked), 1024).expect_err(flag);
            let BenchError::Invalid { message, hint: Some(hint) } = error else {
                panic!("{error:?}")
            };
            assert!(message.contains(flag) && message.contains("1024"), "{message}");
            assert!(hint.contains(&format!("`{flag}` {most}")), "{hint}");
            Plan::new(&of(flag, most), 1024).expect("the hint fits");
        }
    }

    #[test]
    fn what_does_not_fit_in_memory_is_refused_before_it_is_allocated() {
        let refused =
            |plan: &Plan| plan.needs(1000, 0, Some(10_000)).expect_err("too much").to_string();
        let wide = Config { batches: vec![64], contexts: vec![128], ..config() };
        let wide = Plan::new(&wide, 1024).expect("fits the context");
        let needs = wide.needs(1000, 0, Some(1 << 30)).expect("fits");
        // 8 + 128 + 1 + 3 tokens are 9 blocks per sequence.
        assert!(needs.n_engine_blocks > 64 * 9, "{needs:?}");
        assert_eq!(needs.n_sequence_blocks, 518_usize.div_ceil(16));
        let line = refused(&wide);
        assert!(line.contains("--batch") && line.contains("64"), "{line}");
        let long = Config { batches: vec![1], contexts: vec![100_000], ..config() };
        let line = refused(&Plan::new(&long, 200_000).expect("fits"));
        assert!(line.contains("--context"), "{line}");
        let absurd = Config { batches: vec![usize::MAX], ..config() };
        Plan::new(&absurd, 1 << 30).expect_err("more prompts than a word counts");
    }
}
