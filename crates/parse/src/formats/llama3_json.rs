//! Llama 3 and 4: JSON objects as they stand, with `parameters`, several after `;`.

use pelton_base::{Shape, Tag};

use super::{Parser, ToolFormat, Trust, calls};
use crate::read::{Next, Part, Program, Trigger, at, on, quoted};
use crate::shape::{Calling, Placed, json_object_with};
use crate::{Demand, ShapeError, Tool};

static PROGRAM: Program = Program {
    triggers: &[Trigger::mark("<|python_tag|>", 0), Trigger::common("{", 0).left()],
    parts: &[
        Part::Object,
        Part::Choice(&[on(";", Next::Part(2))], Next::Text),
        Part::Choice(&[at("{", Next::Part(0))], Next::Text),
    ],
};

pub(super) struct Llama3Json;

impl ToolFormat for Llama3Json {
    fn name(&self) -> &'static str {
        "llama3_json"
    }

    fn aliases(&self) -> &'static [&'static str] {
        &["llama3", "llama4_json"]
    }

    fn looks_like(&self, chat_template: &str) -> bool {
        // Their templates write earlier calls so.
        let is_llama = ["<|start_header_id|>", "<|header_start|>"].iter();
        chat_template.contains("\"parameters\": ")
            && is_llama.clone().any(|mark| chat_template.contains(*mark))
    }

    fn control_tokens(&self) -> &'static [&'static str] {
        &["<|python_tag|>"]
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
        let object = |tool: &Placed<'_>| json_object_with(tool, "parameters");
        let call = calling.any(object)?;
        if !calling.is_auto() {
            return Ok(calling.several(call, "; "));
        }
        let mut tags =
            vec![Tag { begin: "<|python_tag|>".to_owned(), content: call, end: String::new() }];
        for tool in calling.tools() {
            let begin = format!("{{\"name\": {}, \"parameters\": ", quoted(&tool.tool.name));
            tags.push(Tag { begin, content: tool.arguments()?, end: "}".to_owned() });
        }
        Ok(calling.triggered(tags))
    }
}
