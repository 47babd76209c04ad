//! Beam search as vLLM's clients ask for it.
//!
//! ```text
//! use_beam_search   true for answers by beam search
//! best_of, else n   beams
//! n                 best answers that are returned
//! length_penalty    exponent of the length
//! early_stopping    true, false or "never", as `transformers` has them; absent is "never"
//! ```

use pelton_base::{SamplingParams, limits};
use pelton_llm::{BeamParams, EarlyStopping, Generation};

use super::Fields;
use super::json::{typed, wrong};
use crate::error::ApiError;

/// The parameters of a beam search, as they were sent.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct BeamFields {
    is_on: bool,
    length_penalty: Option<f64>,
    early_stopping: EarlyStopping,
}

impl BeamFields {
    /// Reads the parameters; without `use_beam_search` the others may not ask for anything.
    pub(crate) fn read(fields: &mut Fields<'_>) -> Result<Self, ApiError> {
        let is_on = fields.bool("use_beam_search")?.unwrap_or(false);
        let length_penalty = match fields.take("length_penalty") {
            Some(raw) => Some(typed::<f64>("length_penalty", "a number", raw)?),
            None => None,
        };
        let early_stopping = early_stopping(fields)?;
        let needs = |param: &str| {
            let message = format!("`{param}` needs `use_beam_search` to be true");
            Err(ApiError::param(param, message))
        };
        match early_stopping {
            _ if !is_on && length_penalty.is_some_and(|penalty| penalty != 1.0) => {
                needs("length_penalty")
            }
            Some(EarlyStopping::Always | EarlyStopping::Never) if !is_on => needs("early_stopping"),
            mode => Ok(Self { is_on, length_penalty, early_stopping: mode.unwrap_or_default() }),
        }
    }

    /// Whether beams are searched.
    pub(crate) fn is_on(&self) -> bool {
        self.is_on
    }

    /// The defaults under the parameters of a search: sampling that a model recommends does not
    /// apply to it.
    pub(crate) fn defaults(&self, defaults: Generation) -> Generation {
        if !self.is_on {
            return defaults;
        }
        Generation { sampling: SamplingParams::greedy(), ..defaults }
    }

    /// Turns `n` and `best_of` of `generation` into a search.
    pub(crate) fn over(&self, generation: &mut Generation) -> Result<(), ApiError> {
        if !self.is_on {
            return Ok(());
        }
        let (n, best_of) = (generation.n, generation.best_of.take());
        let (param, width) = best_of.map_or(("n", n), |width| ("best_of", width));
        let most = limits::BEAMS;
        if !(n.max(1)..=most as u32).contains(&width) {
            let expected = match param {
                "n" => format!("from 1 to {most} with a beam search"),
                _ => format!("from `n` to {most} with a beam search"),
            };
            return Err(wrong(param, &expected, &width.to_string()));
        }
        generation.beams = Some(BeamParams {
            n: n as usize,
            length_penalty: self.length_penalty.unwrap_or(1.0),
            early_stopping: self.early_stopping,
            ..BeamParams::of_width(width as usize)
        });
        Ok(())
    }

    /// Refuses to stream a search, whose answers are known only at its end.
    pub(crate) fn check_stream(&self, is_stream: bool) -> Result<(), ApiError> {
        if self.is_on && is_stream {
            let message = "`stream` is not possible with `use_beam_search`: its answers are known \
                           only when the search is over";
            return Err(ApiError::param("stream", message));
        }
        Ok(())
    }
}

fn early_stopping(fields: &mut Fields<'_>) -> Result<Option<EarlyStopping>, ApiError> {
    const EXPECTED: &str = "true, false or \"never\"";
    let Some(raw) = fields.take("early_stopping") else { return Ok(None) };
    match raw.get() {
        "true" => Ok(Some(EarlyStopping::Always)),
        "false" => Ok(Some(EarlyStopping::Heuristic)),
        "\"never\"" => Ok(Some(EarlyStopping::Never)),
        other => Err(wrong("early_stopping", EXPECTED, other)),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn read(value: Value, n: u32, best_of: Option<u32>) -> Result<Generation, ApiError> {
        let text = value.to_string();
        let mut fields = Fields::of_body(text.as_bytes())?;
        let sent = BeamFields::read(&mut fields)?;
        fields.finish()?;
        let warm = SamplingParams { temperature: 0.6, top_k: 20, ..SamplingParams::default() };
        let defaults = Generation { sampling: warm, best_of, n, ..Generation::default() };
        let mut generation = sent.defaults(defaults);
        sent.over(&mut generation)?;
        Ok(generation)
    }

    #[test]
    fn the_width_is_n_and_best_of_where_that_is_given() {
        let on = || json!({"use_beam_search": true});
        let plain = read(on(), 4, None).expect("valid");
        assert_eq!(plain.beams, Some(BeamParams::of_width(4)));
        assert_eq!(plain.sampling, SamplingParams::greedy(), "nothing that the model recommends");
        let wide = read(on(), 2, Some(7)).expect("valid");
        assert_eq!(wide.beams, Some(BeamParams { n: 2, ..BeamParams::of_width(7) }));
        assert_eq!((wide.n, wide.best_of), (2, None));
        let all = json!({"use_beam_search": true, "length_penalty": 0, "early_stopping": true});
        let params = read(all, 1, None).expect("valid").beams.expect("a search");
        assert_eq!((params.length_penalty, params.early_stopping), (0.0, EarlyStopping::Always));
        for (value, mode) in
            [(json!(false), EarlyStopping::Heuristic), (json!("never"), EarlyStopping::Never)]
        {
            let body = json!({"use_beam_search": true, "early_stopping": value});
            assert_eq!(read(body, 1, None).expect("valid").beams.expect("on").early_stopping, mode);
        }
        for off in [json!({}), json!({"use_beam_search": false, "length_penalty": 1.0})] {
            assert_eq!(read(off, 4, None).expect("valid").beams, None);
        }
        assert!(read(json!({"early_stopping": false}), 1, None).is_ok());
    }

    #[test]
    fn every_bad_value_is_named() {
        let on = |name: &str, value: Value| json!({"use_beam_search": true, name: value});
        for (param, body, n, best_of) in [
            ("use_beam_search", json!({"use_beam_search": 1}), 1, None),
            ("length_penalty", json!({"length_penalty": 2}), 1, None),
            ("length_penalty", on("length_penalty", json!("1")), 1, None),
            ("early_stopping", json!({"early_stopping": true}), 1, None),
            ("early_stopping", on("early_stopping", json!("always")), 1, None),
            ("early_stopping", on("early_stopping", json!(0)), 1, None),
            ("n", json!({"use_beam_search": true}), 33, None),
            ("n", json!({"use_beam_search": true}), 0, None),
            ("best_of", json!({"use_beam_search": true}), 3, Some(2)),
            ("best_of", json!({"use_beam_search": true}), 3, Some(33)),
        ] {
            let error = read(body, n, best_of).expect_err(param);
            assert_eq!(error.body.param.as_deref(), Some(param), "{}", error.body.message);
        }
    }
}
