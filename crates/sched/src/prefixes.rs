//! How much of a prompt is cached: a guess that any thread can make at any time, from recent prompts.
//!
//! ```text
//! prompt   | 64 tokens | 64 tokens | 64 tokens | rest |
//!                      ▲           ▲           ▲
//!                      marks: hashes of the namespace and of all tokens before
//! ```
//!
//! The prefix tree belongs to the thread that works, which may be in a long step when a request has to
//! be taken or refused. So admission remembers the marks of the prompts that it took, as many as the KV
//! memory has room for. Marks are kept twice: when the younger are half of the limit they become
//! the older, which go.
//!
//! A prefix counts as cached although it may be evicted, or not computed yet: then a request is
//! taken whose first token comes late. That is better than refusing a request that could be served.
//! Answers are not remembered, so of the next turn of a chat the last answer counts as new.

use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher};

use crate::{PromptSize, SchedulerConfig};
use pelton_base::{ServiceParams, TokenId};

/// Tokens between two marks.
const STRIDE: usize = 64;

/// The prefixes of the prompts that were taken of late.
#[derive(Debug, Default)]
pub struct Prefixes {
    younger: HashSet<u64>,
    older: HashSet<u64>,
    /// Most marks of the younger; zero without a prefix cache.
    most: usize,
}

/// The prefixes of one prompt.
#[derive(Debug)]
pub struct PrefixMarks {
    hashes: Vec<u64>,
    n_tokens: usize,
    /// Fewer cached tokens than these are of no use.
    n_least: usize,
}

impl PrefixMarks {
    /// Of the prompt of a request.
    pub fn new(prompt: &[TokenId], service: &ServiceParams) -> Self {
        let mut hasher = DefaultHasher::new();
        service.namespace.hash(&mut hasher);
        let mark = |tokens: &[TokenId]| {
            tokens.hash(&mut hasher);
            hasher.finish()
        };
        let hashes = prompt.chunks_exact(STRIDE).map(mark).collect();
        Self { hashes, n_tokens: prompt.len(), n_least: service.source.end() }
    }

    /// Of a prompt of which nothing is read from the cache and nothing is left there.
    pub fn none(prompt: &[TokenId]) -> Self {
        Self { hashes: Vec::new(), n_tokens: prompt.len(), n_least: 0 }
    }
}

impl Prefixes {
    /// Without any prompt.
    pub fn new(config: &SchedulerConfig) -> Self {
        let n_tokens = config.n_blocks as usize * config.block_size;
        let most = if config.choices.prefix_cache { n_tokens / STRIDE / 2 } else { 0 };
        Self { most, ..Self::default() }
    }

    /// The size of a prompt; the tokens that it has in common with a recent one count as cached.
    pub fn size(&self, marks: &PrefixMarks) -> PromptSize {
        let is_known = |mark| self.younger.contains(mark) || self.older.contains(mark);
        let n_common =
            marks.hashes.iter().rposition(is_known).map_or(0, |last| (last + 1) * STRIDE);
        let n_cached = if n_common < marks.n_least { 0 } else { n_common };
        PromptSize { n_tokens: marks.n_tokens, n_cached }
    }

    /// Remembers a prompt.
    pub fn note(&mut self, marks: &PrefixMarks) {
        for &mark in marks.hashes.iter().take(self.most) {
            if self.younger.len() == self.most {
                self.older = std::mem::take(&mut self.younger);
            }
            self.younger.insert(mark);
        }
    }
}

#[cfg(test)]
mod tests {
    use pelton_base::Namespace;

    use super::*;
    use crate::Choices;

    fn of(namespace: u64) -> ServiceParams {
        ServiceParams { namespace: Namespace(namespace), ..ServiceParams::default() }
    }

    /// The tokens `first..first + n`.
    fn prompt(first: u32, n: u32) -> Vec<TokenId> {
        (first..first + n).map(TokenId).collect()
    }

    fn n_cached(prefixes: &Prefixes, namespace: u64, prompt: &[TokenId]) -> usize {
        prefixes.size(&PrefixMarks::new(prompt, &of(namespace))).n_cached
    }

    #[test]
    fn tokens_in_common_with_a_recent_prompt_count_as_cached() {
        let mut prefixes = Prefixes::new(&SchedulerConfig::new(100, 16));
        prefixes.note(&PrefixMarks::new(&prompt(0, 200), &of(1)));
        assert_eq!(n_cached(&prefixes, 1, &prompt(0, 200)), 192);
        assert_eq!(n_cached(&prefixes, 1, &prompt(0, 1_000)), 192);
        assert_eq!(n_cached(&prefixes, 1, &prompt(0, 130)), 128);
        assert_eq!(n_cached(&prefixes, 1, &prompt(1, 200)), 0, "it begins with other tokens");
        assert_eq!(n_cached(&prefixes, 2, &prompt(0, 200)), 0, "another namespace");
        let mut parted = prompt(0, 200);
        parted[64] = TokenId(7);
        assert_eq!(n_cached(&prefixes, 1, &parted), 64, "they part in the second run of 64");
        let mut of_source = of(1);
        of_source.source.n_tokens = 250;
        let size = prefixes.size(&PrefixMarks::new(&prompt(0, 300), &of_source));
        assert_eq!(size.n_cached, 0, "a part of a source is of no use");
        let size = prefixes.size(&PrefixMarks::none(&prompt(0, 200)));
        assert_eq!(size, PromptSize { n_tokens: 200, n_cached: 0 });
    }

    #[test]
    fn as_many_prefixes_are_remembered_as_there_is_room_for() {
        // 1,600 tokens: twice 12 marks.
        let mut prefixes = Prefixes::new(&SchedulerConfig::new(100, 16));
        for namespace in 0..9 {
            prefixes.note(&PrefixMarks::new(&prompt(0, 256), &of(namespace)));
            assert!(prefixes.younger.len() <= 12 && prefixes.older.len() <= 12);
        }
        assert_eq!(n_cached(&prefixes, 8, &prompt(0, 256)), 256);
        assert_eq!(n_cached(&prefixes, 4, &prompt(0, 256)), 256);
        assert_eq!(n_cached(&prefixes, 2, &prompt(0, 256)), 0, "forgotten");
        prefixes.note(&PrefixMarks::new(&prompt(0, 100_000), &of(1)));
        assert!(prefixes.younger.len() <= 12, "no more than there is room for");
    }

    #[test]
    fn without_a_prefix_cache_nothing_is_remembered() {
        let choices = Choices { prefix_cache: false, ..Choices::default() };
        let config = SchedulerConfig { choices, ..SchedulerConfig::new(100, 16) };
        let mut prefixes = Prefixes::new(&config);
        prefixes.note(&PrefixMarks::new(&prompt(0, 200), &of(1)));
        assert_eq!(n_cached(&prefixes, 1, &prompt(0, 200)), 0);
    }
}
