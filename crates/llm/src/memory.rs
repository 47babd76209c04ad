//! How much memory keys and values may take.

use pelton_model::KvFootprint;

/// Share of the available memory that keys and values may take when nobody said: one half.
const KV_SHARE: u64 = 2;

/// What a machine that does not tell its memory is assumed to have.
pub(crate) const UNKNOWN_MEMORY_BYTES: u64 = 4 << 30;

/// What decides the size of the KV pool.
pub(crate) struct KvSizing {
    /// Bytes of one block over all layers.
    pub(crate) bytes_per_block: u64,
    /// Tokens of one block.
    pub(crate) block_size: usize,
    /// Most tokens of one sequence.
    pub(crate) context_tokens: usize,
    /// Most sequences running at once.
    pub(crate) n_running: usize,
    /// Most bytes, when the user said.
    pub(crate) limit_bytes: Option<u64>,
    /// Bytes that the machine can still give.
    pub(crate) available_bytes: u64,
}

/// The size of the KV pool, and what fits into it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct KvPlan {
    pub(crate) n_blocks: u32,
    /// The context, cut to what the pool holds.
    pub(crate) context_tokens: usize,
}

impl KvSizing {
    /// As many blocks as all sequences could ever use, as long as memory allows.
    ///
    /// `None` when not even two tokens fit.
    pub(crate) fn plan(&self) -> Option<KvPlan> {
        let budget = self.limit_bytes.unwrap_or(self.available_bytes / KV_SHARE);
        let n_affordable = budget / self.bytes_per_block.max(1);
        let n_useful =
            KvFootprint::blocks_for(self.context_tokens, self.block_size, self.n_running);
        let n_blocks = u32::try_from(n_affordable.min(n_useful as u64)).unwrap_or(u32::MAX);
        let n_tokens = (n_blocks as usize).saturating_mul(self.block_size);
        let context_tokens = self.context_tokens.min(n_tokens);
        (context_tokens >= 2).then_some(KvPlan { n_blocks, context_tokens })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sizing() -> KvSizing {
        KvSizing {
            bytes_per_block: 1000,
            block_size: 16,
            context_tokens: 1024,
            n_running: 4,
            limit_bytes: None,
            available_bytes: 1 << 30,
        }
    }

    #[test]
    fn the_pool_is_never_larger_than_all_sequences_can_use() {
        let plan = sizing().plan().expect("fits");
        assert_eq!(plan, KvPlan { n_blocks: 4 * 64 + 1, context_tokens: 1024 });
    }

    #[test]
    fn little_memory_cuts_the_pool_and_then_the_context() {
        let plan = KvSizing { available_bytes: 200_000, ..sizing() }.plan().expect("fits");
        assert_eq!(plan, KvPlan { n_blocks: 100, context_tokens: 1024 });
        let plan = KvSizing { limit_bytes: Some(10_000), ..sizing() }.plan().expect("fits");
        assert_eq!(plan, KvPlan { n_blocks: 10, context_tokens: 160 });
        assert_eq!(KvSizing { limit_bytes: Some(999), ..sizing() }.plan(), None);
    }
}
