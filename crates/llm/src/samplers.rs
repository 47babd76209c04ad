//! The order of the truncations by name, as llama.cpp's `samplers` has it.
//!
//! ```text
//! llama.cpp      penalties  dry  top_n_sigma  top_k  typ_p  top_p  min_p  xtc  temperature
//! Pelton         penalties  dry  temperature  top_n_sigma  top_k  typ_p  top_p  min_p  xtc
//! ```
//!
//! Penalties and DRY change logits and come before all masks, so a list may have them at its
//! beginning, in this order, and nowhere else. A name that a list lacks does not apply.

use pelton_base::{Mirostat, ParamError, SamplerStage, SamplingParams};

/// Mirostat's settings where a request gives none, as in llama.cpp.
pub const DEFAULT_MIROSTAT: Mirostat = Mirostat { version: 2, tau: 5.0, eta: 0.1 };

/// An order of the steps that choose a token.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SamplerOrder {
    stages: Vec<SamplerStage>,
    penalties: bool,
    dry: bool,
}

/// A name of a list.
#[derive(Clone, Copy, PartialEq)]
enum Step {
    Penalties,
    Dry,
    Stage(SamplerStage),
}

/// The form of a list, for errors.
const EXPECTED: &str = "`penalties`, then `dry`, then names among `temperature`, `top_n_sigma`, \
     `top_k`, `typ_p`, `top_p`, `min_p`, `xtc`, each at most once";

impl SamplerOrder {
    /// Reads names; llama.cpp's other spellings (`temp`, `typical`, `nucleus`, hyphens) are names
    /// too.
    ///
    /// # Errors
    ///
    /// Names `samplers`, and the first name that is unknown, comes twice or stands where it cannot.
    pub fn named<'a>(names: impl IntoIterator<Item = &'a str>) -> Result<Self, ParamError> {
        let mut order = Self::default();
        for name in names {
            let step = step(name).ok_or_else(|| wrong(format!("`{}`", brief(name))))?;
            order.push(step).map_err(|why| wrong(format!("`{}` {why}", brief(name))))?;
        }
        Ok(order)
    }

    /// Reads a sequence of llama.cpp's letters, such as `edskypmxt`.
    ///
    /// # Errors
    ///
    /// As [`named`](Self::named).
    pub fn lettered(letters: &str) -> Result<Self, ParamError> {
        let name = |letter| match letter {
            'e' => Some("penalties"),
            'd' => Some("dry"),
            't' => Some("temperature"),
            's' => Some("top_n_sigma"),
            'k' => Some("top_k"),
            'y' => Some("typ_p"),
            'p' => Some("top_p"),
            'm' => Some("min_p"),
            'x' => Some("xtc"),
            _ => None,
        };
        let unknown = || wrong(format!("`{}`", brief(letters)));
        let names: Option<Vec<&str>> = letters.chars().map(name).collect();
        Self::named(names.ok_or_else(unknown)?)
    }

    /// Gives parameters this order; penalties and DRY that it lacks are turned off.
    pub fn over(self, sampling: &mut SamplingParams) {
        if !self.penalties {
            let plain = SamplingParams::default();
            sampling.repetition_penalty = plain.repetition_penalty;
            sampling.presence_penalty = plain.presence_penalty;
            sampling.frequency_penalty = plain.frequency_penalty;
        }
        if !self.dry {
            sampling.dry.multiplier = 0.0;
        }
        sampling.samplers = Some(self.stages);
    }

    fn push(&mut self, step: Step) -> Result<(), &'static str> {
        let is_again = match step {
            Step::Penalties => self.penalties,
            Step::Dry => self.dry,
            Step::Stage(stage) => self.stages.contains(&stage),
        };
        if is_again {
            return Err("twice");
        }
        match step {
            Step::Penalties if self.dry || !self.stages.is_empty() => {
                return Err("after another name");
            }
            Step::Dry if !self.stages.is_empty() => return Err("after another name"),
            Step::Penalties => self.penalties = true,
            Step::Dry => self.dry = true,
            Step::Stage(stage) => self.stages.push(stage),
        }
        Ok(())
    }
}

/// The step of a name, in any of its spellings.
fn step(name: &str) -> Option<Step> {
    let name = name.trim().replace('-', "_");
    let name = match name.as_str() {
        "penalties" => return Some(Step::Penalties),
        "dry" => return Some(Step::Dry),
        "temp" => "temperature",
        "nucleus" => "top_p",
        "typical_p" | "typical" | "typ" => "typ_p",
        other => other,
    };
    SamplerStage::ALL.into_iter().find(|stage| stage.name() == name).map(Step::Stage)
}

fn wrong(got: String) -> ParamError {
    ParamError { param: "samplers", expected: EXPECTED, got }
}

fn brief(text: &str) -> String {
    text.chars().take(40).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_stage_has_a_name_a_letter_and_a_place_in_the_error() {
        let names = SamplerStage::ALL.map(SamplerStage::name);
        let all = SamplerOrder::named(["penalties", "dry"].into_iter().chain(names));
        let all = all.expect("in order");
        assert_eq!(all.stages, SamplerStage::ALL);
        assert_eq!(SamplerOrder::lettered("edtskypmx"), Ok(all));
        assert!(names.iter().all(|name| EXPECTED.contains(&format!("`{name}`"))));
        let spelled = SamplerOrder::named(["top-k", "typical", "nucleus", " temp "]);
        use SamplerStage::{Temperature, TopK, TopP, TypicalP};
        assert_eq!(spelled.expect("known").stages, [TopK, TypicalP, TopP, Temperature]);
    }

    #[test]
    fn a_name_that_a_list_lacks_does_not_apply() {
        let sampling = || SamplingParams {
            repetition_penalty: 1.2,
            frequency_penalty: 0.5,
            dry: pelton_base::Dry { multiplier: 0.8, ..Default::default() },
            ..SamplingParams::default()
        };
        let mut params = sampling();
        SamplerOrder::named(["top_k"]).expect("known").over(&mut params);
        assert_eq!((params.repetition_penalty, params.frequency_penalty), (1.0, 0.0));
        assert_eq!((params.dry.multiplier, params.samplers), (0.0, Some(vec![SamplerStage::TopK])));
        let mut params = sampling();
        SamplerOrder::named(["penalties", "dry"]).expect("known").over(&mut params);
        assert_eq!(params, SamplingParams { samplers: Some(Vec::new()), ..sampling() });
    }

    #[test]
    fn what_cannot_be_honoured_is_named() {
        for (names, got) in [
            (&["top_k", "infill"][..], "`infill`"),
            (&["top_k", "top-k"], "`top-k` twice"),
            (&["dry", "penalties"], "`penalties` after another name"),
            (&["top_k", "dry"], "`dry` after another name"),
        ] {
            let error = SamplerOrder::named(names.iter().copied()).expect_err("wrong");
            assert_eq!((error.param, error.got.as_str()), ("samplers", got));
        }
        assert_eq!(SamplerOrder::lettered("kzt").expect_err("unknown").got, "`kzt`");
    }
}
