//! Flags that shape the choice of the next token.

use clap::Args;
use pelton_base::SamplingParams;
use serde::Serialize;

use crate::failure::{Failure, Result};

/// How tokens are chosen; absent flags take their values from the model's
/// `generation_config.json`.
#[derive(Args, Clone, Debug, Default, Serialize)]
#[command(next_help_heading = "Sampling")]
pub(crate) struct SamplingArgs {
    /// Randomness; 0 always takes the likeliest token [default: the model's, else 0.8]
    #[arg(long, value_name = "T", allow_negative_numbers = true)]
    pub(crate) temperature: Option<f32>,
    /// Choose among the K likeliest tokens; 0 is all [default: the model's, else 0]
    #[arg(long, value_name = "K")]
    pub(crate) top_k: Option<u32>,
    /// Choose among the likeliest tokens that together have this probability [default: the model's, else 0.95]
    #[arg(long, value_name = "P", allow_negative_numbers = true)]
    pub(crate) top_p: Option<f32>,
    /// Drop tokens less likely than P times the likeliest [default: the model's, else 0]
    #[arg(long, value_name = "P", allow_negative_numbers = true)]
    pub(crate) min_p: Option<f32>,
    /// Penalty for repeated tokens; above 1 makes repetition less likely [default: the model's, else 1]
    #[arg(long, value_name = "R", allow_negative_numbers = true)]
    pub(crate) repetition_penalty: Option<f32>,
    /// Seed of the random choices; the same seed gives the same text [default: a new one for each
    /// run, shown in the statistics]
    #[arg(long, env = "PELTON_SEED", value_name = "N")]
    pub(crate) seed: Option<u64>,
}

impl SamplingArgs {
    /// Lays the flags over `defaults`.
    ///
    /// # Errors
    ///
    /// Names the first flag that is out of range.
    pub(crate) fn over(&self, defaults: SamplingParams, seed: u64) -> Result<SamplingParams> {
        let params = SamplingParams {
            temperature: self.temperature.unwrap_or(defaults.temperature),
            top_k: self.top_k.unwrap_or(defaults.top_k),
            top_p: self.top_p.unwrap_or(defaults.top_p),
            min_p: self.min_p.unwrap_or(defaults.min_p),
            repetition_penalty: self.repetition_penalty.unwrap_or(defaults.repetition_penalty),
            seed,
            ..defaults
        };
        params.validate().map_err(|error| {
            let flag = error.param.replace('_', "-");
            Failure::new(format!("`--{flag}` must be {}, got {}", error.expected, error.got))
        })?;
        Ok(params)
    }

    /// The flags that ask for what `params` do.
    pub(crate) fn of(params: &SamplingParams) -> Self {
        Self {
            temperature: Some(params.temperature),
            top_k: Some(params.top_k),
            top_p: Some(params.top_p),
            min_p: Some(params.min_p),
            repetition_penalty: Some(params.repetition_penalty),
            seed: Some(params.seed),
        }
    }

    /// Checks the flags before anything slow happens.
    ///
    /// # Errors
    ///
    /// Names the first flag that is out of range.
    pub(crate) fn check(&self) -> Result<()> {
        self.over(SamplingParams::default(), 0).map(|_| ())
    }

    /// The seed asked for, or a fresh one of 32 bits, short enough to type again.
    pub(crate) fn seed(&self) -> u64 {
        use std::hash::{BuildHasher, Hasher};
        self.seed.unwrap_or_else(|| {
            // The standard library keys its hash maps from the system's randomness.
            let hasher = std::collections::hash_map::RandomState::new().build_hasher();
            hasher.finish() >> 32
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_win_over_the_models_defaults() {
        let defaults = SamplingParams { temperature: 0.6, top_k: 20, ..Default::default() };
        let args = SamplingArgs { temperature: Some(0.0), ..Default::default() };
        let params = args.over(defaults, 7).expect("in range");
        assert_eq!((params.temperature, params.top_k, params.seed), (0.0, 20, 7));
    }

    #[test]
    fn a_flag_out_of_range_is_named_as_it_is_typed() {
        let args = SamplingArgs { top_p: Some(1.5), ..Default::default() };
        let line = args.check().expect_err("out of range").line().expect("a line");
        assert!(line.contains("`--top-p` must be above 0 and at most 1, got 1.5"), "{line}");
        let args = SamplingArgs { temperature: Some(f32::NAN), ..Default::default() };
        assert!(args.check().is_err());
    }

    #[test]
    fn fresh_seeds_differ_and_a_given_one_stays() {
        let fresh = SamplingArgs::default();
        let seeds: std::collections::HashSet<u64> = (0..8).map(|_| fresh.seed()).collect();
        assert!(seeds.len() > 1);
        assert_eq!(SamplingArgs { seed: Some(5), ..Default::default() }.seed(), 5);
    }
}
