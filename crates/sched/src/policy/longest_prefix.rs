//! Longest cached prefix first, so that cached blocks are used before they are evicted.
//!
//! Paper: Zheng et al., "SGLang", NeurIPS 2024, §3 (cache-aware scheduling). The paper sorts the
//! whole queue at every step, and falls back to arrival when the queue is long. This policy looks
//! at the first sixteen requests only, so the cost of a step does not depend on the length of the
//! queue.

use super::{Arrival, Policy};

/// By arrival, but of the first sixteen the one with the longest cached prefix.
#[derive(Debug)]
pub(super) struct LongestPrefix;

impl Policy for LongestPrefix {
    fn rank(&self, _: &Arrival) -> i64 {
        0
    }

    fn window(&self) -> usize {
        16
    }
}
