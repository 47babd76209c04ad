//! Prices of simulated steps, in milliseconds.
//!
//! The defaults are those of a model of half a billion weights in 8 bits (Q8_0) on two threads of a
//! processor: its weights are read in 18 ms, and a token takes 1.3 ms of arithmetic.

use pelton_sched::StepCost;
use serde::{Deserialize, Serialize};

/// Picoseconds of a millisecond.
const PS_PER_MS: f64 = 1e9;
/// Most milliseconds of a price.
const MOST_MS: f64 = 1e6;

/// Prices of a step's parts, in milliseconds; see [`StepCost`].
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Prices {
    /// A step, whatever it holds.
    pub base_ms: f64,
    /// A token.
    pub token_ms: f64,
    /// A row whose logits are computed.
    pub sample_ms: f64,
    /// A pair of a token and one that it attends to.
    pub attended_ms: f64,
    /// A KV block copied to or from the host.
    pub moved_block_ms: f64,
}

impl Default for Prices {
    fn default() -> Self {
        Self {
            base_ms: 18.0,
            token_ms: 1.3,
            sample_ms: 0.05,
            attended_ms: 0.0003,
            moved_block_ms: 0.02,
        }
    }
}

/// A price that cannot be used.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("`{name}` must be {expected}, got {got}")]
pub struct PriceError {
    name: &'static str,
    expected: &'static str,
    got: f64,
}

impl Prices {
    /// The same in picoseconds.
    ///
    /// # Errors
    ///
    /// A price that is not a number from 0 to 1,000,000 ms, or steps that take no time at all.
    pub fn cost(&self) -> Result<StepCost, PriceError> {
        let price = |name, got: f64| match (0.0..=MOST_MS).contains(&got) {
            true => Ok((got * PS_PER_MS).round() as u64),
            false => Err(PriceError { name, expected: "from 0 to 1000000 ms", got }),
        };
        let cost = StepCost {
            base_ps: price("base_ms", self.base_ms)?,
            token_ps: price("token_ms", self.token_ms)?,
            sample_ps: price("sample_ms", self.sample_ms)?,
            attended_ps: price("attended_ms", self.attended_ms)?,
            moved_block_ps: price("moved_block_ms", self.moved_block_ms)?,
        };
        if cost.is_known() {
            return Ok(cost);
        }
        let expected = "above 0, unless `token_ms` is";
        Err(PriceError { name: "base_ms", expected, got: self.base_ms })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prices_are_exact_to_the_picosecond() {
        let cost = Prices::default().cost().expect("good");
        let expected = StepCost {
            base_ps: 18_000_000_000,
            token_ps: 1_300_000_000,
            sample_ps: 50_000_000,
            attended_ps: 300_000,
            moved_block_ps: 20_000_000,
        };
        assert_eq!(cost, expected);
    }

    #[test]
    fn a_file_may_state_some_of_them_and_nothing_else() {
        let some: Prices = serde_json::from_str(r#"{"base_ms": 2.5}"#).expect("good");
        assert_eq!(some, Prices { base_ms: 2.5, ..Prices::default() });
        assert!(serde_json::from_str::<Prices>(r#"{"base": 2.5}"#).is_err());
    }

    #[test]
    fn prices_that_are_none_are_refused_by_name() {
        for bad in [-1.0, f64::NAN, f64::INFINITY, 1e7] {
            let prices = Prices { attended_ms: bad, ..Prices::default() };
            assert_eq!(prices.cost().expect_err("bad").name, "attended_ms", "{bad}");
        }
        let free = Prices { base_ms: 0.0, token_ms: 0.0, ..Prices::default() };
        assert_eq!(free.cost().expect_err("no time").name, "base_ms");
    }
}
