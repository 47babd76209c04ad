//! How long the model thinks before it answers, and whether the client sees it.

use pelton_llm::{ChatOptions, Llm};
use serde_json::{Map, Value};

use crate::error::ApiError;
use crate::wire::Fields;
use crate::wire::json::{Kind, free, wrong};
use crate::wire::lenient::ignores;

/// Variables of a template that are not the client's to set.
const OWN: [&str; 4] = ["messages", "tools", "add_generation_prompt", "documents"];
const EFFORTS: [&str; 6] = ["none", "minimal", "low", "medium", "high", "xhigh"];

/// The fields of a request about thoughts.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Thinking {
    /// Variables of the template.
    pub(crate) template_args: Map<String, Value>,
    pub(crate) effort: Option<String>,
    /// Most tokens of the thought.
    pub(crate) budget: Option<usize>,
    /// Whether thoughts stay in the text as the model wrote them.
    pub(crate) is_raw: bool,
    /// Whether thoughts are left out of the answer.
    pub(crate) is_hidden: bool,
}

impl Thinking {
    /// Reads `chat_template_kwargs`, `reasoning_effort`, `reasoning`, `include_reasoning`,
    /// `reasoning_format`, `thinking_budget` and `thinking_token_budget`.
    ///
    /// # Errors
    ///
    /// Names the field that is wrong, and two fields that contradict each other.
    pub(crate) fn read(fields: &mut Fields<'_>) -> Result<Self, ApiError> {
        let mut thinking = Self::default();
        if let Some(raw) = fields.take("chat_template_kwargs") {
            thinking.template_args = template_args(raw.get(), free("chat_template_kwargs", raw)?)?;
        }
        let mut effort = effort(fields)?;
        if let Some(raw) = fields.take("reasoning") {
            if Kind::of(raw) != Kind::Object {
                return Err(wrong(
                    "reasoning",
                    "an object such as {\"effort\": \"low\"}",
                    raw.get(),
                ));
            }
            let mut inner = Fields::nested("reasoning", raw)?;
            let nested = self::effort_of(&mut inner, "effort")?;
            let summary = inner.string("summary")?;
            inner.finish()?;
            if summary.is_some_and(|summary| summary != "auto") {
                return Err(ApiError::unsupported("reasoning.summary".to_owned()));
            }
            if effort.is_some() && nested.is_some() && effort != nested {
                let message = "`reasoning.effort` contradicts `reasoning_effort`";
                return Err(ApiError::param("reasoning.effort", message));
            }
            effort = effort.or(nested);
        }
        thinking.effort = effort;
        let (one, other) =
            (fields.usize("thinking_budget")?, fields.usize("thinking_token_budget")?);
        if one.is_some() && other.is_some() && one != other {
            let message = "`thinking_token_budget` contradicts `thinking_budget`";
            return Err(ApiError::param("thinking_token_budget", message));
        }
        thinking.budget = one.or(other);
        thinking.is_hidden = !fields.bool("include_reasoning")?.unwrap_or(true);
        // SGLang's name: thoughts that are not separated stay in the text.
        thinking.is_raw = !fields.bool("separate_reasoning")?.unwrap_or(true);
        if let Some(format) = fields.string("reasoning_format")? {
            thinking.is_raw |= match format.as_str() {
                "none" => true,
                "auto" | "deepseek" => false,
                _ => {
                    let got = Value::from(format).to_string();
                    return Err(wrong("reasoning_format", "none, auto or deepseek", &got));
                }
            };
        }
        Ok(thinking)
    }

    /// Writes the fields into the options of a conversation.
    pub(crate) fn over(self, options: &mut ChatOptions) {
        options.template_args = self.template_args;
        options.reasoning_effort = self.effort;
        options.thinking_budget = self.budget;
        options.raw_thoughts = self.is_raw;
    }
}

/// Leaves out what the template of the model does not know, in a lenient server.
pub(crate) fn forgive(options: &mut ChatOptions, llm: &Llm) {
    if options.template.is_some() {
        return;
    }
    let knows = |variable: &str| llm.template_mentions(variable);
    let is_known = |name: &String| knows(name) || !ignores(&format!("chat_template_kwargs.{name}"));
    options.template_args.retain(|name, _| is_known(name));
    options.documents.take_if(|_| !knows("documents") && ignores("documents"));
    let can = llm.thoughts();
    let has_effort = can.has_effort || !can.switches.is_empty();
    options.reasoning_effort.take_if(|_| !has_effort && ignores("reasoning_effort"));
    options.thinking_budget.take_if(|_| !can.is_read && ignores("thinking_budget"));
}

fn effort(fields: &mut Fields<'_>) -> Result<Option<String>, ApiError> {
    effort_of(fields, "reasoning_effort")
}

fn effort_of(fields: &mut Fields<'_>, name: &str) -> Result<Option<String>, ApiError> {
    let Some(effort) = fields.string(name)? else { return Ok(None) };
    if EFFORTS.contains(&effort.as_str()) {
        return Ok(Some(effort));
    }
    let expected = format!("one of {}", EFFORTS.join(", "));
    Err(wrong(&fields.path(name), &expected, &Value::from(effort).to_string()))
}

fn template_args(sent: &str, value: Value) -> Result<Map<String, Value>, ApiError> {
    let name = "chat_template_kwargs";
    let Value::Object(args) = value else {
        return Err(wrong(name, "an object of variables of the chat template", sent));
    };
    if let Some(own) = args.keys().find(|arg| OWN.contains(&arg.as_str())) {
        let path = format!("{name}.{own}");
        let message = format!("`{path}` is set by the server and cannot be overridden");
        return Err(ApiError::param(path, message));
    }
    Ok(args)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(body: Value) -> Result<Thinking, ApiError> {
        let text = body.to_string();
        let mut fields = Fields::of_body(text.as_bytes())?;
        let thinking = Thinking::read(&mut fields)?;
        fields.finish()?;
        Ok(thinking)
    }

    #[test]
    fn thoughts_are_asked_for_in_every_dialect() {
        let thinking = read(json!({
            "chat_template_kwargs": {"enable_thinking": false}, "reasoning": {"effort": "low"},
            "thinking_token_budget": 64, "include_reasoning": false, "reasoning_format": "none"
        }))
        .expect("valid");
        assert_eq!(thinking.template_args["enable_thinking"], false);
        assert_eq!((thinking.effort.as_deref(), thinking.budget), (Some("low"), Some(64)));
        assert!(thinking.is_hidden && thinking.is_raw);
        let plain = read(json!({"reasoning_effort": "high", "reasoning_format": "auto"}));
        let plain = plain.expect("valid");
        assert_eq!(plain.effort.as_deref(), Some("high"));
        assert!(!plain.is_hidden && !plain.is_raw && plain.budget.is_none());
    }

    #[test]
    fn a_field_that_is_wrong_is_named() {
        for (param, body) in [
            ("chat_template_kwargs", json!({"chat_template_kwargs": [1]})),
            ("chat_template_kwargs.messages", json!({"chat_template_kwargs": {"messages": []}})),
            ("reasoning_effort", json!({"reasoning_effort": "much"})),
            ("reasoning", json!({"reasoning": "low"})),
            ("reasoning.x", json!({"reasoning": {"x": 1}})),
            ("reasoning.summary", json!({"reasoning": {"summary": "detailed"}})),
            (
                "reasoning.effort",
                json!({"reasoning": {"effort": "low"}, "reasoning_effort": "high"}),
            ),
            ("thinking_budget", json!({"thinking_budget": -1})),
            ("thinking_token_budget", json!({"thinking_budget": 1, "thinking_token_budget": 2})),
            ("reasoning_format", json!({"reasoning_format": "xml"})),
            ("include_reasoning", json!({"include_reasoning": "no"})),
        ] {
            let error = read(body).map(drop).expect_err(param);
            assert_eq!(error.body.param.as_deref(), Some(param), "{}", error.body.message);
        }
    }
}
