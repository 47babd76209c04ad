//! Tokens of each step since the start, for an exporter.

/// Numbers of tokens in buckets.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct StepTokens {
    counts: [u64; Self::BOUNDS.len() + 1],
    sum: u64,
}

impl StepTokens {
    /// Upper bounds of the buckets, in tokens; the last bucket has none. They are vLLM's.
    pub const BOUNDS: [u64; 13] = [1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16_384];

    /// Adds a step.
    pub(crate) fn add(&mut self, n_tokens: usize) {
        let n_tokens = n_tokens as u64;
        let bucket = Self::BOUNDS.partition_point(|&bound| bound < n_tokens);
        self.counts[bucket] += 1;
        self.sum += n_tokens;
    }

    /// Upper bound and number of steps of each bucket; the last bound is infinite.
    pub fn buckets(&self) -> impl Iterator<Item = (f64, u64)> + '_ {
        let finite = Self::BOUNDS.iter().map(|&bound| bound as f64);
        finite.chain([f64::INFINITY]).zip(self.counts)
    }

    /// Tokens of all steps.
    pub fn sum(&self) -> u64 {
        self.sum
    }

    /// Number of steps.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bound_belongs_to_the_bucket_below_it() {
        let mut tokens = StepTokens::default();
        for n_tokens in [0, 1, 2, 8, 9, 16_384, 16_385] {
            tokens.add(n_tokens);
        }
        let buckets: Vec<(f64, u64)> = tokens.buckets().filter(|(_, n)| *n > 0).collect();
        assert_eq!(buckets, [(1.0, 2), (8.0, 2), (16.0, 1), (16_384.0, 1), (f64::INFINITY, 1)]);
        assert_eq!((tokens.count(), tokens.sum()), (7, 32_789));
    }
}
