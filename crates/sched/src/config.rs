//! What the scheduler is told: its limits once, time and pressure each step.

/// The limits of one scheduler.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct SchedulerConfig {
    /// KV blocks of the pool; at least one.
    pub n_blocks: u32,
    /// Tokens per block; at least one.
    pub block_size: usize,
    /// Most tokens of one step, over all sequences; at least one.
    pub max_batch_tokens: usize,
    /// Most sequences running at once; at least one.
    pub max_running: usize,
    /// Most tokens of one sequence, prompt and output together; at least two.
    pub max_context: usize,
    /// Most tokens that one sequence gets in one step; at least one.
    pub max_chunk_tokens: usize,
}

impl SchedulerConfig {
    /// Most tokens that one sequence can really hold: the context, or the whole pool if smaller.
    pub fn context_tokens(&self) -> usize {
        self.max_context.min((self.n_blocks as usize).saturating_mul(self.block_size))
    }

    /// Blocks that hold `n_tokens` tokens.
    pub fn blocks_for(&self, n_tokens: usize) -> usize {
        n_tokens.div_ceil(self.block_size)
    }

    /// Blocks kept free when a sequence joins others, so that those can grow for a while before
    /// the newcomer has to be preempted: one in a hundred, at least one.
    pub(crate) fn watermark_blocks(&self) -> usize {
        (self.n_blocks as usize / 100).max(1)
    }

    /// Panics if a limit makes progress impossible.
    pub(crate) fn check(&self) {
        assert!(self.n_blocks > 0, "n_blocks must be at least 1");
        assert!(self.block_size > 0, "block_size must be at least 1");
        assert!(self.max_batch_tokens > 0, "max_batch_tokens must be at least 1");
        assert!(self.max_running > 0, "max_running must be at least 1");
        assert!(self.max_chunk_tokens > 0, "max_chunk_tokens must be at least 1");
        assert!(self.context_tokens() > 1, "a context holds a prompt token and an output token");
    }
}

/// A moment, in steps or milliseconds as the caller likes; it only ever grows.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Tick(pub u64);

/// What the world tells the scheduler each step, as plain numbers.
///
/// Nothing yet: memory pressure from outside and deadlines enter here, so that the scheduler
/// stays replayable from a text file.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
#[non_exhaustive]
pub struct Signals {}

/// Why a request can never run here, however long it waits.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum Refusal {
    /// There is no token to start from.
    EmptyPrompt,
    /// `max_tokens` is zero: nothing is asked for.
    NothingToGenerate,
    /// The prompt leaves no room for even one more token.
    PromptTooLong {
        /// Tokens of the prompt.
        n_prompt: usize,
        /// Longest prompt that can run, in tokens.
        limit: usize,
    },
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::EmptyPrompt => write!(f, "the prompt is empty"),
            Self::NothingToGenerate => write!(f, "max_tokens is 0"),
            Self::PromptTooLong { n_prompt, limit } => {
                write!(f, "the prompt has {n_prompt} tokens, the longest that fits has {limit}")
            }
        }
    }
}
