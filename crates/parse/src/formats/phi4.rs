//! Phi-4 and Phi-4-mini: a JSON list of calls in `functools[...]`, or between tags.

use pelton_base::Shape;

use super::{Parser, ToolFormat, Trust, calls};
use crate::read::{Next, Part, Program, Trigger, at, on};
use crate::shape::{Calling, json_object};
use crate::{Demand, ShapeError, Tool};

static PROGRAM: Program = Program {
    triggers: &[Trigger::mark("functools[", 0), Trigger::mark("<|tool_call|>", 2)],
    parts: &[
        Part::Object,
        Part::Choice(&[on(",", Next::Part(0)), on("]", Next::Text)], Next::Refuse),
        Part::Choice(&[on("[", Next::Part(3)), at("{", Next::Part(5))], Next::Refuse),
        Part::Object,
        Part::Choice(&[on(",", Next::Part(3)), on("]", Next::Part(6))], Next::Refuse),
        Part::Object,
        Part::Choice(&[on("<|/tool_call|>", Next::Text)], Next::Text),
    ],
};

pub(super) struct Phi4;

impl ToolFormat for Phi4 {
    fn name(&self) -> &'static str {
        "phi4_mini_json"
    }

    fn aliases(&self) -> &'static [&'static str] {
        &["phi4"]
    }

    fn looks_like(&self, chat_template: &str) -> bool {
        chat_template.contains("functools[")
    }

    fn control_tokens(&self) -> &'static [&'static str] {
        &["<|tool_call|>", "<|/tool_call|>"]
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
        Ok(calling.listed("functools[", calls, "]"))
    }
}

pub(super) struct Phi4Tags;

impl ToolFormat for Phi4Tags {
    fn name(&self) -> &'static str {
        "phi4_mini"
    }

    fn aliases(&self) -> &'static [&'static str] {
        &[]
    }

    fn looks_like(&self, chat_template: &str) -> bool {
        chat_template.contains("<|/tool|>") || chat_template.contains("<|/tool_call|>")
    }

    fn control_tokens(&self) -> &'static [&'static str] {
        &["<|tool_call|>", "<|/tool_call|>"]
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
        Ok(calling.listed("<|tool_call|>", list, "<|/tool_call|>"))
    }
}
