//! Longest cached prefix first, so that what is cached is used before it is forgotten.
//!
//! Paper: Zheng et al., "SGLang", NeurIPS 2024, §3 (cache-aware scheduling). Where it sorts the whole
//! queue at every step, and falls back to arrival when that is long, this looks at the first sixteen
//! only: the cost of a step does not depend on how many wait.

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
