//! Mistral up to version 7 of its tokenizer: a JSON list of calls after `[TOOL_CALLS]`.

use pelton_base::Shape;

use super::{Parser, ToolFormat, Trust, calls};
use crate::read::{NameForm, Next, Part, Program, Trigger, at, on};
use crate::shape::{Calling, json_object, mark};
use crate::{Demand, ShapeError, Tool};

static PROGRAM: Program = Program {
    triggers: &[Trigger::mark("[TOOL_CALLS]", 0)],
    parts: &[
        Part::Choice(&[on("[", Next::Part(1)), at("{", Next::Part(3))], Next::Part(5)),
        Part::Object,
        Part::Choice(&[on(",", Next::Part(1)), on("]", Next::Text)], Next::Refuse),
        Part::Object,
        Part::Choice(&[], Next::Text),
        Part::Name(
            NameForm::Plain,
            &[on("[ARGS]", Next::Part(7)), on("[CALL_ID]", Next::Part(6)), at("{", Next::Part(7))],
        ),
        Part::Skip(&[on("[ARGS]", Next::Part(7)), at("{", Next::Part(7))]),
        Part::Arguments(&["[TOOL_CALLS]"]),
        Part::Choice(&[], Next::Text),
    ],
};

pub(super) struct Mistral;

impl ToolFormat for Mistral {
    fn name(&self) -> &'static str {
        "mistral"
    }

    fn aliases(&self) -> &'static [&'static str] {
        &[]
    }

    fn looks_like(&self, chat_template: &str) -> bool {
        chat_template.contains("[TOOL_CALLS]")
    }

    fn control_tokens(&self) -> &'static [&'static str] {
        &["[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"]
    }

    fn parser(&self, tools: &[Tool], trust: Trust) -> Box<dyn Parser> {
        calls(&PROGRAM, tools, trust)
    }

    fn shape(
        &self,
        tools: &[Tool],
        demand: Demand<'_>,
        parallel: bool,
    ) -> Result<Shape, ShapeError> {
        let calling = Calling::new(tools, demand, parallel)?;
        let calls = calling.several(calling.any(json_object)?, ", ");
        let list = Shape::Sequence(vec![Shape::text("["), calls, Shape::text("]")]);
        Ok(calling.listed("[TOOL_CALLS]", list, ""))
    }
}

pub(super) struct MistralArgs;

impl ToolFormat for MistralArgs {
    fn name(&self) -> &'static str {
        "mistral_args"
    }

    fn aliases(&self) -> &'static [&'static str] {
        &["mistral_v11"]
    }

    fn looks_like(&self, chat_template: &str) -> bool {
        chat_template.contains("[TOOL_CALLS]") && chat_template.contains("[ARGS]")
    }

    fn control_tokens(&self) -> &'static [&'static str] {
        &["[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"]
    }

    fn parser(&self, tools: &[Tool], trust: Trust) -> Box<dyn Parser> {
        calls(&PROGRAM, tools, trust)
    }

    fn shape(
        &self,
        tools: &[Tool],
        demand: Demand<'_>,
        parallel: bool,
    ) -> Result<Shape, ShapeError> {
        let calling = Calling::new(tools, demand, parallel)?;
        let call = calling.any(|tool| {
            Ok(Shape::Sequence(vec![
                Shape::text(&tool.tool.name),
                mark("[ARGS]"),
                tool.arguments()?,
            ]))
        })?;
        Ok(calling.tagged(&["[TOOL_CALLS]"], call, "", ""))
    }
}
