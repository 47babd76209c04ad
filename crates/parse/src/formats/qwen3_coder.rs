//! Qwen3-Coder: a function and its parameters as tags with their names.

use pelton_base::Shape;

use super::{Parser, ToolFormat, Trust, calls};
use crate::read::{NameForm, Next, Part, Program, Trigger, at, on};
use crate::shape::{Calling, TagForm, tag_parameters};
use crate::{Demand, ShapeError, Tool};

static TAGS: TagForm = TagForm {
    before_key: "<parameter=",
    after_key: ">\n",
    before_close: "\n",
    close: "</parameter>",
    after: "\n",
};

static PROGRAM: Program = Program {
    triggers: &[Trigger::mark("<tool_call>", 0), Trigger::mark("<function=", 1)],
    parts: &[
        Part::Choice(&[on("<function=", Next::Part(1))], Next::Refuse),
        Part::Name(NameForm::Plain, &[on(">", Next::Part(2))]),
        Part::Choice(
            &[
                on("<parameter=", Next::Part(3)),
                on("</function>", Next::Part(5)),
                at("</tool_call>", Next::Part(5)),
            ],
            Next::Refuse,
        ),
        Part::Key(&[on(">", Next::Part(4))]),
        Part::Value { has_lines: true, arms: &[on("</parameter>", Next::Part(2))] },
        Part::Close,
        Part::Choice(
            &[on("<function=", Next::Part(1)), on("</tool_call>", Next::Text)],
            Next::Text,
        ),
    ],
};

pub(super) struct Qwen3Coder;

impl ToolFormat for Qwen3Coder {
    fn name(&self) -> &'static str {
        "qwen3_coder"
    }

    fn aliases(&self) -> &'static [&'static str] {
        &["qwen3_xml", "mimo", "step3p5"]
    }

    fn looks_like(&self, chat_template: &str) -> bool {
        chat_template.contains("<function=") && chat_template.contains("<parameter=")
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
            Ok(Shape::Sequence(vec![
                Shape::Text(format!("\n<function={}>\n", tool.tool.name)),
                tag_parameters(tool, &TAGS)?,
                Shape::text("</function>\n"),
            ]))
        })?;
        Ok(calling.tagged(&["<tool_call>"], call, "</tool_call>", "\n"))
    }
}
