//! Granite 3: a JSON list of calls after `<|tool_call|>` or `<tool_call>`, or as the whole answer.

use pelton_base::Shape;

use super::{Parser, ToolFormat, Trust, calls};
use crate::read::{Next, Part, Program, Trigger, on};
use crate::shape::{Calling, json_object};
use crate::{Demand, ShapeError, Tool};

static PROGRAM: Program = Program {
    triggers: &[
        Trigger::mark("<|tool_call|>", 0),
        Trigger::mark("<tool_call>", 0),
        Trigger::common("[", 1).first(),
    ],
    parts: &[
        Part::Choice(&[on("[", Next::Part(1))], Next::Refuse),
        Part::Object,
        Part::Choice(&[on(",", Next::Part(1)), on("]", Next::Text)], Next::Refuse),
    ],
};

pub(super) struct Granite;

impl ToolFormat for Granite {
    fn name(&self) -> &'static str {
        "granite"
    }

    fn aliases(&self) -> &'static [&'static str] {
        &[]
    }

    fn looks_like(&self, chat_template: &str) -> bool {
        chat_template.contains("<|tool_call|>")
    }

    fn control_tokens(&self) -> &'static [&'static str] {
        &["<|tool_call|>", "<tool_call>"]
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
        Ok(calling.listed("<|tool_call|>", list, ""))
    }
}
