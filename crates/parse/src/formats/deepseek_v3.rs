//! DeepSeek V3 and R1: names after marks, arguments in fences of JSON.

use pelton_base::Shape;

use super::{Parser, ToolFormat, Trust, calls};
use crate::read::{NameForm, Next, Part, Program, Trigger, at, on};
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
        // The kind of the tool: `function`.
        Part::Skip(&[on(SEPARATOR, Next::Part(2))]),
        Part::Name(NameForm::Plain, &[on("\n", Next::Part(3)), at("```", Next::Part(3))]),
        Part::Choice(&[on("```json", Next::Part(4)), at("{", Next::Part(4))], Next::Refuse),
        Part::Arguments(&["```"]),
        Part::Choice(&[on("```", Next::Part(6))], Next::Part(6)),
        Part::Choice(&[on(CALL_END, Next::Part(7))], Next::Part(7)),
        Part::Choice(&[on(CALL_BEGIN, Next::Part(1)), on(CALLS_END, Next::Text)], Next::Text),
    ],
};

pub(super) struct DeepSeekV3;

impl ToolFormat for DeepSeekV3 {
    fn name(&self) -> &'static str {
        "deepseek_v3"
    }

    fn aliases(&self) -> &'static [&'static str] {
        &["deepseekv3", "deepseek_r1"]
    }

    fn looks_like(&self, chat_template: &str) -> bool {
        chat_template.contains(CALL_BEGIN) && chat_template.contains("```json")
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
                Shape::text("function"),
                mark(SEPARATOR),
                Shape::Text(format!("{}\n```json\n", tool.tool.name)),
                tool.arguments()?,
                Shape::text("\n```"),
                mark(CALL_END),
            ]))
        })?;
        let calls = calling.several(call, "\n");
        Ok(calling.listed(CALLS_BEGIN, calls, CALLS_END))
    }
}
