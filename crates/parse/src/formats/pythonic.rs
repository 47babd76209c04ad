//! Llama 3.2 and 4: a Python list of calls, as in `[f(a=1), g(b="x")]`.

use pelton_base::{Shape, Tag};

use super::{Parser, ToolFormat, Trust, calls};
use crate::read::{NameForm, Next, Part, Program, Trigger, on};
use crate::shape::{Calling, Placed, python_call};
use crate::{Demand, ShapeError, Tool};

static PROGRAM: Program = Program {
    triggers: &[Trigger::mark("<|python_start|>", 0), Trigger::common("[", 1)],
    parts: &[
        Part::Choice(&[on("[", Next::Part(1))], Next::Refuse),
        Part::Name(NameForm::Plain, &[on("(", Next::Part(2))]),
        Part::Choice(&[on(")", Next::Part(6))], Next::Part(3)),
        Part::Key(&[on("=", Next::Part(4))]),
        Part::Python,
        Part::Choice(&[on(",", Next::Part(2)), on(")", Next::Part(6))], Next::Refuse),
        Part::Close,
        Part::Choice(&[on(",", Next::Part(1)), on("]", Next::Part(8))], Next::Refuse),
        Part::Choice(&[on("<|python_end|>", Next::Text)], Next::Text),
    ],
};

pub(super) struct Pythonic;

impl ToolFormat for Pythonic {
    fn name(&self) -> &'static str {
        "pythonic"
    }

    fn aliases(&self) -> &'static [&'static str] {
        &["llama4_pythonic"]
    }

    fn looks_like(&self, chat_template: &str) -> bool {
        // Their templates ask for `[func_name1(params_name1=params_value1, ...)]`.
        chat_template.contains("[func_name1(")
    }

    fn control_tokens(&self) -> &'static [&'static str] {
        &["<|python_start|>", "<|python_end|>"]
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
        let named = |tool: &Placed<'_>| {
            Ok(Shape::Sequence(vec![
                Shape::Text(format!("{}(", tool.tool.name)),
                python_call(tool)?,
            ]))
        };
        let call = calling.any(named)?;
        if !calling.is_auto() {
            let calls = calling.several(call, ", ");
            return Ok(Shape::Sequence(vec![Shape::text("["), calls, Shape::text("]")]));
        }
        let more = Shape::Repeat {
            item: Box::new(Shape::Sequence(vec![Shape::text(", "), call])),
            separator: String::new(),
            least: 0,
            most: if calling.parallel() { None } else { Some(0) },
        };
        let mut tags = Vec::new();
        for tool in calling.tools() {
            tags.push(Tag {
                begin: format!("[{}(", tool.tool.name),
                content: Shape::Sequence(vec![python_call(tool)?, more.clone()]),
                end: "]".to_owned(),
            });
        }
        Ok(calling.triggered(tags))
    }
}
