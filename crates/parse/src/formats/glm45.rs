//! GLM 4.5 to 4.7: names and values of parameters between tags.

use pelton_base::Shape;

use super::{Parser, ToolFormat, Trust, calls};
use crate::read::{NameForm, Next, Part, Program, Trigger, at, on};
use crate::shape::{Calling, TagForm, tag_parameters};
use crate::{Demand, ShapeError, Tool};

static TAGS: TagForm = TagForm {
    before_key: "<arg_key>",
    after_key: "</arg_key>\n<arg_value>",
    before_close: "",
    close: "</arg_value>",
    after: "\n",
};

static PROGRAM: Program = Program {
    triggers: &[Trigger::mark("<tool_call>", 0)],
    parts: &[
        Part::Name(
            NameForm::Plain,
            &[
                on("\n", Next::Part(1)),
                at("<arg_key>", Next::Part(1)),
                at("</tool_call>", Next::Part(1)),
            ],
        ),
        Part::Choice(
            &[on("<arg_key>", Next::Part(2)), on("</tool_call>", Next::Part(5))],
            Next::Refuse,
        ),
        Part::Key(&[on("</arg_key>", Next::Part(3))]),
        Part::Choice(&[on("<arg_value>", Next::Part(4))], Next::Refuse),
        Part::Value { has_lines: false, arms: &[on("</arg_value>", Next::Part(1))] },
        Part::Close,
        Part::Choice(&[], Next::Text),
    ],
};

pub(super) struct Glm45;

impl ToolFormat for Glm45 {
    fn name(&self) -> &'static str {
        "glm45"
    }

    fn aliases(&self) -> &'static [&'static str] {
        &["glm", "glm47"]
    }

    fn looks_like(&self, chat_template: &str) -> bool {
        chat_template.contains("<arg_key>")
    }

    fn control_tokens(&self) -> &'static [&'static str] {
        &["<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"]
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
                Shape::Text(format!("{}\n", tool.tool.name)),
                tag_parameters(tool, &TAGS)?,
            ]))
        })?;
        Ok(calling.tagged(&["<tool_call>"], call, "</tool_call>", "\n"))
    }
}
