//! How much the model thinks: `thinking` and `output_config.effort`.
//!
//! ```text
//! thinking.type   template with a switch   model that always thinks   model that never thinks
//! (absent)        as the template says     it thinks                  -
//! disabled        off                      its thought is empty       -
//! enabled         on, within the budget    within the budget          no effect
//! adaptive        on                       it thinks                  no effect
//! ```

use pelton_llm::{ChatOptions, Thoughts};
use serde_json::Value;

use crate::error::ApiError;
use crate::routes::conversation::{missing, turn_thoughts};
use crate::wire::json::wrong;
use crate::wire::{Fields, Ignored};

const EFFORTS: [&str; 5] = ["low", "medium", "high", "xhigh", "max"];

/// The fields of a request about thoughts.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(crate) struct Thinking {
    mode: Option<Mode>,
    pub(crate) effort: Option<String>,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Mode {
    Disabled,
    Adaptive,
    Enabled { budget: usize },
}

impl Thinking {
    /// Reads `thinking`.
    ///
    /// # Errors
    ///
    /// Names the field that is wrong.
    pub(crate) fn read(fields: &mut Fields<'_>) -> Result<Self, ApiError> {
        let Some(raw) = fields.take("thinking") else { return Ok(Self::default()) };
        let mut inner = Fields::nested("thinking", raw)?;
        let kind_path = inner.path("type");
        let kind = inner.string("type")?.ok_or_else(|| missing(&kind_path))?;
        let mode = match kind.as_str() {
            "disabled" => Mode::Disabled,
            "adaptive" => Mode::Adaptive,
            "enabled" => {
                let path = inner.path("budget_tokens");
                let budget = inner.usize("budget_tokens")?.ok_or_else(|| missing(&path))?;
                Mode::Enabled { budget }
            }
            _ => {
                let got = Value::from(kind).to_string();
                return Err(wrong(&kind_path, "enabled, disabled or adaptive", &got));
            }
        };
        let display_path = inner.path("display");
        match inner.string("display")?.as_deref() {
            // A thought is shown as it is; nothing here makes a summary of it.
            None | Some("summarized") => {}
            Some(_) => return Err(ApiError::unsupported(display_path)),
        }
        inner.finish()?;
        Ok(Self { mode: Some(mode), effort: None })
    }

    /// Reads `effort` of `output_config`.
    pub(crate) fn read_effort(&mut self, output: &mut Fields<'_>) -> Result<(), ApiError> {
        let path = output.path("effort");
        let Some(effort) = output.string("effort")? else { return Ok(()) };
        if !EFFORTS.contains(&effort.as_str()) {
            let expected = format!("one of {}", EFFORTS.join(", "));
            return Err(wrong(&path, &expected, &Value::from(effort).to_string()));
        }
        self.effort = Some(effort);
        Ok(())
    }

    /// Checks the budget against the tokens of the whole answer.
    pub(crate) fn check(&self, max_tokens: usize) -> Result<(), ApiError> {
        match self.mode {
            Some(Mode::Enabled { budget }) if budget >= max_tokens => {
                let expected = format!("below `max_tokens`, which is {max_tokens}");
                Err(wrong("thinking.budget_tokens", &expected, &budget.to_string()))
            }
            _ => Ok(()),
        }
    }

    /// Writes the fields into the options of a conversation with a model that thinks like this;
    /// adds to `ignored` the fields that the model cannot follow.
    pub(crate) fn over(self, can: &Thoughts, options: &mut ChatOptions, ignored: &mut Ignored) {
        match self.mode {
            None => {}
            Some(Mode::Disabled) => turn_thoughts(can, false, options),
            Some(_) if !can.is_read && can.switches.is_empty() => ignored.add("thinking"),
            Some(mode) => {
                turn_thoughts(can, true, options);
                if let Mode::Enabled { budget } = mode {
                    options.thinking_budget = can.is_read.then_some(budget);
                }
            }
        }
        match self.effort {
            Some(effort) if can.has_effort => {
                let effort = if effort == "max" { "xhigh" } else { effort.as_str() };
                options.template_args.insert("reasoning_effort".to_owned(), effort.into());
            }
            Some(_) => ignored.add("output_config.effort"),
            None => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_greatest_effort_has_the_name_that_templates_know() {
        let can = Thoughts { is_read: true, switches: Vec::new(), has_effort: true };
        for (effort, expected) in [("low", "low"), ("xhigh", "xhigh"), ("max", "xhigh")] {
            let thinking = Thinking { mode: None, effort: Some(effort.to_owned()) };
            let (mut options, mut ignored) = (ChatOptions::default(), Ignored::default());
            thinking.over(&can, &mut options, &mut ignored);
            assert_eq!(options.template_args["reasoning_effort"], expected);
        }
    }
}
