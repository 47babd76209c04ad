//! The guard against starvation: a tenth of the service for requests that waited too long.
//!
//! ```text
//! debt = max(0, debt + 10 · tokens of promoted requests − tokens of all requests)    after each step
//!
//! a request older than `max_wait` is promoted when   the debt is zero,
//!                                                    no promoted request waits, and
//!                                                    promoted ones hold less than a tenth of the places
//! ```
//!
//! A promoted request goes before all that are not, and is never preempted for one of them. Of the
//! requests that are old enough, the first to arrive is promoted, of the tenant that had the least
//! service for its weight: a flood of one tenant does not take the tenth from the other tenants.
//!
//! **The share is bounded.** In any run of steps that begins without debt, promoted requests compute
//! at most a tenth of all tokens, and the tokens that the last promoted ones still had to compute
//! when the debt left zero. Unused service is not saved up, because the debt stops at zero.
//!
//! **The wait is bounded.** After a promoted request of `n` tokens the debt is zero again when `10 n`
//! tokens were computed, so the request at the `k`-th place among the old ones is promoted when at
//! most ten times the tokens of the `k − 1` before it were computed.

/// One token in this many is computed for promoted requests, at most; of places alike.
pub(crate) const SHARE: usize = 10;

/// The account of the service that promoted requests had.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Guard {
    /// Tokens that must be computed before the next request is promoted.
    debt: u64,
}

impl Guard {
    /// Charges a step of `n_tokens` tokens, of which `n_promoted` are of promoted requests.
    pub(crate) fn charge(&mut self, n_promoted: u64, n_tokens: u64) {
        self.debt = (self.debt + SHARE as u64 * n_promoted).saturating_sub(n_tokens);
    }

    /// Whether promoted requests had less than their share.
    pub(crate) fn is_free(&self) -> bool {
        self.debt == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ten_tokens_are_computed_for_each_of_a_promoted_request() {
        let mut guard = Guard::default();
        guard.charge(0, 1_000_000);
        assert!(guard.is_free(), "nothing is owed, and nothing is saved up");
        guard.charge(8, 16);
        guard.charge(0, 63);
        assert!(!guard.is_free());
        guard.charge(0, 1);
        assert!(guard.is_free());
    }
}
