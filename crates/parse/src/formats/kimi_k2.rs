//! Kimi K2: numbered calls with JSON arguments, in a section of their own.

use pelton_base::Shape;

use super::{Parser, ToolFormat, Trust, calls};
use crate::read::{NameForm, Next, Part, Program, Trigger, on};
use crate::shape::{Calling, mark};
use crate::{Demand, ShapeError, Tool};

const SECTION_BEGIN: &str = "<|tool_calls_section_begin|>";
const SECTION_END: &str = "<|tool_calls_section_end|>";
const CALL_BEGIN: &str = "<|tool_call_begin|>";
const CALL_END: &str = "<|tool_call_end|>";
const ARGUMENT_BEGIN: &str = "<|tool_call_argument_begin|>";

static PROGRAM: Program = Program {
    triggers: &[
        Trigger::mark(SECTION_BEGIN, 0),
        Trigger::mark("<|tool_call_section_begin|>", 0),
        Trigger::mark(CALL_BEGIN, 1),
    ],
    parts: &[
        Part::Choice(&[on(CALL_BEGIN, Next::Part(1))], Next::Refuse),
        Part::Name(NameForm::Numbered, &[on(ARGUMENT_BEGIN, Next::Part(2))]),
        Part::Arguments(&[CALL_END]),
        Part::Choice(&[on(CALL_END, Next::Part(4))], Next::Part(4)),
        Part::Choice(
            &[
                on(CALL_BEGIN, Next::Part(1)),
                on(SECTION_END, Next::Text),
                on("<|tool_call_section_end|>", Next::Text),
            ],
            Next::Text,
        ),
    ],
};

pub(super) struct KimiK2;

impl ToolFormat for KimiK2 {
    fn name(&self) -> &'static str {
        "kimi_k2"
    }

    fn aliases(&self) -> &'static [&'static str] {
        &["kimi"]
    }

    fn looks_like(&self, chat_template: &str) -> bool {
        // The first versions of the template only declare tools.
        chat_template.contains(SECTION_BEGIN) || chat_template.contains("<|im_system|>tool_declare")
    }

    fn control_tokens(&self) -> &'static [&'static str] {
        &[
            SECTION_BEGIN,
            SECTION_END,
            CALL_BEGIN,
            CALL_END,
            ARGUMENT_BEGIN,
            "<|tool_call_section_begin|>",
            "<|tool_call_section_end|>",
        ]
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
        let number = if calling.parallel() { "0|[1-9][0-9]{0,2}" } else { "0" };
        let call = calling.any(|tool| {
            Ok(Shape::Sequence(vec![
                mark(CALL_BEGIN),
                Shape::Text(format!("functions.{}:", tool.tool.name)),
                Shape::Regex(number.to_owned()),
                mark(ARGUMENT_BEGIN),
                tool.arguments()?,
                mark(CALL_END),
            ]))
        })?;
        let calls = calling.several(call, "");
        Ok(calling.listed(SECTION_BEGIN, calls, SECTION_END))
    }
}
