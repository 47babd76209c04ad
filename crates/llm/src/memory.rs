//! How much memory keys and values may take.

/// Share of the available memory that keys and values may take when nobody said: one half.
const KV_SHARE: u64 = 2;

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
        let per_sequence = self.context_tokens.div_ceil(self.block_size) as u64;
        // One block more than the sequences need, so that copies never wait.
        let n_useful = per_sequence.saturating_mul(self.n_running as u64).saturating_add(1);
        let n_blocks = u32::try_from(n_affordable.min(n_useful)).unwrap_or(u32::MAX);
        let n_tokens = (n_blocks as usize).saturating_mul(self.block_size);
        let context_tokens = self.context_tokens.min(n_tokens);
        (context_tokens >= 2).then_some(KvPlan { n_blocks, context_tokens })
    }
}

/// Bytes of memory that can be had without pushing anything out, as far as the system tells.
pub(crate) fn available_bytes() -> u64 {
    let read = |path: &str| std::fs::read_to_string(path).ok();
    let machine = read("/proc/meminfo").and_then(|text| mem_available(&text));
    let number = |path| read(path)?.trim().parse::<u64>().ok();
    let cgroup = number("/sys/fs/cgroup/memory.max")
        .map(|most| most.saturating_sub(number("/sys/fs/cgroup/memory.current").unwrap_or(0)));
    // A machine that tells nothing is assumed to have a little.
    machine.into_iter().chain(cgroup).min().unwrap_or(4 << 30)
}

fn mem_available(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.split_whitespace().next()?.parse::<u64>().ok()?.checked_mul(1024)
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

    #[test]
    fn the_system_tells_kibibytes() {
        assert_eq!(mem_available("MemTotal: 9 kB\nMemAvailable:   2048 kB\n"), Some(2 << 20));
        assert_eq!(mem_available("MemTotal: 9 kB\n"), None);
    }
}
