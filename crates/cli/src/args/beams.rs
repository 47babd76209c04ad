//! Flags of beam search.

use clap::{Args, ValueEnum};
use pelton_base::{SamplingParams, limits};
use pelton_llm::{BeamParams, EarlyStopping, Generation};

use super::{EndArgs, SamplingArgs};
use crate::failure::{Failure, Result};

/// Beam search in place of sampling.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Beam search")]
pub(crate) struct BeamArgs {
    /// Search the most likely answer along N beams instead of sampling, from 1 to 32
    #[arg(long, value_name = "N", value_parser = width)]
    beams: Option<usize>,
    /// Exponent of the length by which scores are divided; above 0 favours long answers [default: 1]
    #[arg(
        long,
        value_name = "X",
        requires = "beams",
        allow_negative_numbers = true,
        value_parser = length_penalty
    )]
    length_penalty: Option<f64>,
    /// When a search ends that has N answers [default: never]
    #[arg(long, value_enum, value_name = "WHEN", requires = "beams")]
    early_stopping: Option<Early>,
}

/// The values of `--early-stopping`.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Early {
    /// When no beam can reach a better score
    Never,
    /// When the best beam would be no better if it ended now
    Heuristic,
    /// At once
    Always,
}

impl BeamArgs {
    /// Beams, where a search is asked for.
    pub(crate) fn width(&self) -> Option<usize> {
        self.beams
    }

    /// The sampling over which the flags are laid: a search takes nothing that a model recommends.
    pub(crate) fn sampling(&self, recommended: SamplingParams) -> SamplingParams {
        if self.beams.is_some() { SamplingParams::greedy() } else { recommended }
    }

    /// Lays the flags over `generation`.
    pub(crate) fn over(&self, mut generation: Generation) -> Generation {
        generation.beams = self.beams.map(|width| BeamParams {
            n: 1,
            length_penalty: self.length_penalty.unwrap_or(1.0),
            early_stopping: match self.early_stopping {
                None | Some(Early::Never) => EarlyStopping::Never,
                Some(Early::Heuristic) => EarlyStopping::Heuristic,
                Some(Early::Always) => EarlyStopping::Always,
            },
            ..BeamParams::of_width(width)
        });
        generation
    }

    /// Checks the flags, and those that do not combine with a search, before anything slow happens.
    ///
    /// # Errors
    ///
    /// Names the flag that is out of range or does not combine.
    pub(crate) fn check(
        &self,
        sampling: &SamplingArgs,
        ends: &EndArgs,
        is_interactive: bool,
    ) -> Result<()> {
        if self.beams.is_none() {
            return Ok(());
        }
        if is_interactive {
            let words = "`--beams` is not possible in a conversation, which is shown as it grows: \
                         expected PROMPT or standard input";
            return Err(Failure::new(words));
        }
        let sampling = sampling.over(self.sampling(SamplingParams::default()), 0)?;
        let generation = Generation { sampling, ..Generation::default() };
        self.over(ends.over(generation)).validate().map_err(|error| {
            let flag = error.param.replace('_', "-");
            Failure::new(format!("`--{flag}` must be {}, got {}", error.expected, error.got))
        })
    }
}

fn width(text: &str) -> std::result::Result<usize, String> {
    let n = text.trim().parse().ok().filter(|n| (1..=limits::BEAMS).contains(n));
    n.ok_or_else(|| format!("expected a whole number from 1 to {}", limits::BEAMS))
}

fn length_penalty(text: &str) -> std::result::Result<f64, String> {
    // NaN is out of the range.
    let length_penalty = text.trim().parse().unwrap_or(f64::NAN);
    let checked = BeamParams { length_penalty, ..BeamParams::of_width(1) }.validate();
    checked
        .map(|()| length_penalty)
        .map_err(|error| format!("expected a number {}", error.expected))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_combine_is_named_as_it_is_typed() {
        let beams = BeamArgs { beams: Some(3), ..BeamArgs::default() };
        let line = |sampling: SamplingArgs, ends: EndArgs, is_interactive| {
            let refused = beams.check(&sampling, &ends, is_interactive);
            refused.expect_err("refused").line().expect("a line")
        };
        let warm = SamplingArgs { temperature: Some(0.7), ..SamplingArgs::default() };
        assert!(line(warm, EndArgs::default(), false).contains("`--temperature` must be 0, 1"));
        let stop = EndArgs { stop: vec!["x".to_owned()], ..EndArgs::default() };
        assert!(line(SamplingArgs::default(), stop, false).contains("`--stop`"));
        let chat = line(SamplingArgs::default(), EndArgs::default(), true);
        assert!(chat.contains("`--beams` is not possible in a conversation"), "{chat}");
        assert!(beams.check(&SamplingArgs::default(), &EndArgs::default(), false).is_ok());
        let none = BeamArgs::default();
        assert!(none.check(&SamplingArgs::default(), &EndArgs::default(), true).is_ok());
        assert!(width("0").is_err() && width("33").is_err() && width("x").is_err());
        assert!(length_penalty("nan").is_err() && length_penalty("-11").is_err());
        assert_eq!((width("32"), length_penalty("-1.5")), (Ok(32), Ok(-1.5)));
    }
}
