//! DeepSeek V3.1: names and JSON arguments between marks.

use pelton_base::Shape;

use super::{Parser, ToolFormat, Trust, calls};
use crate::read::{NameForm, Next, Part, Program, Trigger, on};
use crate::shape::{Calling, mark};
use crate::{Demand, ShapeError, Tool};

const CALLS_BEGIN: &str = "<｜tool▁calls▁begin｜>";
const CALLS_END: &str = "<｜tool▁calls▁end｜>";
const CALL_BEGIN: &str = "<｜tool▁call▁begin｜>";
const CALL_END: &str = "<｜tool▁call▁end｜>";
const SEPARATOR: &str = "<｜tool▁sep｜>";

static PROGRAM: Program = Program {
    triggers: &[Trigger::mark(CALLS_BEGIN, 0), Trigger::mark(CALL_BEGIN, 1)],
    parts: &[
        Part::Choice(&[on(CALL_BEGIN, Next::Part(1))], Next::Refuse),
        Part::Name(NameForm::Plain, &[on(SEPARATOR, Next::Part(2))]),
        Part::Arguments(&[CALL_END]),
        Part::Choice(&[on(CALL_END, Next::Part(4))], Next::Part(4)),
        Part::Choice(&[on(CALL_BEGIN, Next::Part(1)), on(CALLS_END, Next::Text)], Next::Text),
    ],
};

pub(super) struct DeepSeekV31;

impl ToolFormat for DeepSeekV31 {
    fn name(&self) -> &'static str {
        "deepseek_v31"
    }

    fn aliases(&self) -> &'static [&'static str] {
        &["deepseekv31"]
    }

    fn looks_like(&self, chat_template: &str) -> bool {
        chat_template.contains(CALL_BEGIN)
    }

    fn control_tokens(&self) -> &'static [&'static str] {
        &[CALLS_BEGIN, CALLS_END, CALL_BEGIN, CALL_END, SEPARATOR]
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
                mark(CALL_BEGIN),
                Shape::text(&tool.tool.name),
                mark(SEPARATOR),
                tool.arguments()?,
                mark(CALL_END),
            ]))
        })?;
        let calls = calling.several(call, "");
        Ok(calling.listed(CALLS_BEGIN, calls, CALLS_END))
    }
}
