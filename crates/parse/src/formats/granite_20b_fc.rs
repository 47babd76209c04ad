//! Granite 20B for function calling: a JSON object after each `<function_call>`.

use pelton_base::Shape;

use super::{Parser, ToolFormat, Trust, calls};
use crate::read::{Next, Part, Program, Trigger};
use crate::shape::{Calling, json_object};
use crate::{Demand, ShapeError, Tool};

static PROGRAM: Program = Program {
    triggers: &[Trigger::mark("<function_call>", 0)],
    parts: &[Part::Object, Part::Choice(&[], Next::Text)],
};

pub(super) struct Granite20bFc;

impl ToolFormat for Granite20bFc {
    fn name(&self) -> &'static str {
        "granite-20b-fc"
    }

    fn aliases(&self) -> &'static [&'static str] {
        &[]
    }

    fn looks_like(&self, chat_template: &str) -> bool {
        chat_template.contains("<function_call>")
    }

    fn control_tokens(&self) -> &'static [&'static str] {
        &["<function_call>"]
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
        let call =
            calling.any(|tool| Ok(Shape::Sequence(vec![Shape::text(" "), json_object(tool)?])))?;
        Ok(calling.tagged(&["<function_call>"], call, "", "\n"))
    }
}
