//! Hermes 2 Pro, Qwen 2.5 and 3, Granite 4: JSON objects between `<tool_call>` tags.

use pelton_base::Shape;

use super::{Parser, ToolFormat, Trust, calls};
use crate::read::{Next, Part, Program, Trigger, on};
use crate::shape::{Calling, json_object};
use crate::{Demand, ShapeError, Tool};

static PROGRAM: Program = Program {
    triggers: &[Trigger::mark("<tool_call>", 0)],
    parts: &[Part::Object, Part::Choice(&[on("</tool_call>", Next::Text)], Next::Text)],
};

pub(super) struct Hermes;

impl ToolFormat for Hermes {
    fn name(&self) -> &'static str {
        "hermes"
    }

    fn aliases(&self) -> &'static [&'static str] {
        &["qwen", "qwen25", "qwen3", "granite4"]
    }

    fn looks_like(&self, chat_template: &str) -> bool {
        chat_template.contains("<tool_call>")
    }

    fn control_tokens(&self) -> &'static [&'static str] {
        &["<tool_call>", "</tool_call>"]
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
            Ok(Shape::Sequence(vec![Shape::text("\n"), json_object(tool)?, Shape::text("\n")]))
        })?;
        Ok(calling.tagged(&["<tool_call>"], call, "</tool_call>", "\n"))
    }
}
