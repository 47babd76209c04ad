//! JSON of `POST /v1/messages` and `POST /v1/messages/count_tokens`: requests.

use pelton_base::{Shape, limits};
use pelton_llm::{ChatOptions, Generation};
use pelton_text::Message;

use super::blocks::{cache_control, conversation};
use super::thinking::Thinking;
use super::tools::tools;
use crate::error::ApiError;
use crate::models::Traits;
use crate::otlp::Parameters;
use crate::routes::conversation::missing;
use crate::wire::json::{Kind, string, wrong};
use crate::wire::{
    Accept, Fields, GenerationFields, Ignored, THOUGHTS, check_unhonoured, generation, json_form,
};

/// Parameters of both endpoints that are not honoured.
const UNHONOURED: &[(&str, Accept)] = &[
    ("container", Accept::Nothing),
    ("inference_geo", Accept::Text),
    ("mcp_servers", Accept::Empty),
    ("service_tier", Accept::OneOf(&["\"auto\"", "\"standard_only\""])),
    ("speed", Accept::Only("\"standard\"")),
    ("thread", Accept::Only("false")),
];

/// Parameters of other dialects, which have names of their own here.
const FOREIGN: &[(&str, Accept)] = &[
    ("n", Accept::Only("1")),
    ("best_of", Accept::Only("1")),
    ("use_beam_search", Accept::Only("false")),
    ("stop", Accept::Empty),
    ("response_format", Accept::Nothing),
];

/// The parts of a request that make its prompt.
#[derive(Debug)]
pub(crate) struct Conversation {
    pub(crate) model: Option<String>,
    pub(crate) messages: Vec<Message>,
    /// Tools and the choice among them.
    pub(crate) options: ChatOptions,
    pub(crate) thinking: Thinking,
    pub(crate) form: Option<Shape>,
    pub(crate) ignored: Ignored,
}

impl Conversation {
    /// Reads a whole body of `count_tokens`.
    pub(crate) fn read_alone(bytes: &[u8]) -> Result<Self, ApiError> {
        let mut fields = Fields::of_body(bytes)?;
        let conversation = Self::read(&mut fields)?;
        check_unhonoured(&mut fields, UNHONOURED)?;
        fields.finish()?;
        Ok(conversation)
    }

    /// The facts that rules ask for which choose a model.
    pub(crate) fn traits(&self) -> Traits {
        let has_tools = !self.options.tools.is_empty();
        Traits { has_tools, ..Traits::of_messages(&self.messages) }
    }

    fn read(fields: &mut Fields<'_>) -> Result<Self, ApiError> {
        let turns = conversation(fields)?;
        if matches!(turns.last_role(), None | Some("system")) {
            let message = "`messages` has no content: expected at least one block";
            return Err(ApiError::param("messages", message));
        }
        let mut options = ChatOptions::default();
        tools(fields, &mut options)?;
        cache_control(fields)?;
        context_management(fields)?;
        let mut thinking = Thinking::read(fields)?;
        let form = form(fields, &mut thinking)?;
        let (model, messages) = (fields.string("model")?, turns.finish());
        if let Some(last) = messages.last().filter(|last| last.role == "assistant") {
            if last.extra.contains_key("tool_calls") {
                let message = "`messages`: the last call has no result, so no answer can follow it";
                return Err(ApiError::param("messages", message));
            }
            options.continue_final = true;
        }
        Ok(Self { model, messages, options, thinking, form, ignored: Ignored::default() })
    }
}

/// A request as it was sent; types are right.
#[derive(Debug)]
pub(crate) struct MessagesBody {
    pub(crate) conversation: Conversation,
    pub(crate) max_tokens: usize,
    pub(crate) is_stream: bool,
    generation: GenerationFields,
    stop: Vec<String>,
}

impl MessagesBody {
    /// Reads every field, and refuses unknown parameters and parameters that are not honoured.
    pub(crate) fn read(bytes: &[u8]) -> Result<Self, ApiError> {
        let mut fields = Fields::of_body(bytes)?;
        let conversation = Conversation::read(&mut fields)?;
        let max_tokens = fields.usize("max_tokens")?.ok_or_else(|| missing("max_tokens"))?;
        if max_tokens == 0 {
            return Err(wrong("max_tokens", "at least 1", "0"));
        }
        conversation.thinking.check(max_tokens)?;
        let is_stream = fields.bool("stream")?.unwrap_or(false);
        let stop = stop_sequences(&mut fields)?;
        check_unhonoured(&mut fields, UNHONOURED)?;
        check_unhonoured(&mut fields, FOREIGN)?;
        check_unhonoured(&mut fields, THOUGHTS)?;
        let generation = GenerationFields::read(&mut fields)?;
        fields.finish()?;
        Ok(Self { conversation, max_tokens, is_stream, generation, stop })
    }

    /// The facts that rules ask for which choose a model.
    pub(crate) fn traits(&self) -> Traits {
        let has_token_ids = self.generation.has_token_ids();
        let is_particular = self.generation.is_particular();
        Traits { has_token_ids, is_particular, ..self.conversation.traits() }
    }

    /// Parameters that a span repeats.
    pub(crate) fn stated(&self) -> Parameters {
        Parameters { stop: self.stop.clone(), ..self.generation.stated() }
    }

    /// Parts that make the prompt, and how the answer is generated.
    ///
    /// # Errors
    ///
    /// Names the first parameter out of its range.
    pub(crate) fn split(
        self,
        defaults: Generation,
    ) -> Result<(Conversation, Generation), ApiError> {
        let Self { mut conversation, max_tokens, generation: mut sent, stop, .. } = self;
        sent.set_form("output_config.format", conversation.form.take())?;
        let mut generation = generation(sent, Some(max_tokens), None, defaults)?;
        generation.stop = stop;
        Ok((conversation, generation))
    }
}

fn stop_sequences(fields: &mut Fields<'_>) -> Result<Vec<String>, ApiError> {
    let texts = fields.list("stop_sequences", limits::STOP_STRINGS, |path, raw| {
        let text = string(path, raw)?;
        if !(1..=limits::STOP_STRING_BYTES).contains(&text.len()) {
            let expected = format!("a text of 1 to {} bytes", limits::STOP_STRING_BYTES);
            return Err(wrong(path, &expected, &format!("{} bytes", text.len())));
        }
        Ok(text)
    })?;
    Ok(texts.unwrap_or_default())
}

/// Reads the form of the answer: `output_config.format`, or the older `output_format`.
fn form(fields: &mut Fields<'_>, thinking: &mut Thinking) -> Result<Option<Shape>, ApiError> {
    let older = format(fields, "output_format")?;
    let Some(raw) = fields.take("output_config") else { return Ok(older) };
    let mut output = Fields::nested("output_config", raw)?;
    thinking.read_effort(&mut output)?;
    let newer = format(&mut output, "format")?;
    output.finish()?;
    if older.is_some() && newer.is_some() {
        let message = "`output_format` and `output_config.format` both ask for a form";
        return Err(ApiError::param("output_format", message));
    }
    Ok(newer.or(older))
}

fn format(fields: &mut Fields<'_>, name: &str) -> Result<Option<Shape>, ApiError> {
    let path = fields.path(name);
    let Some(raw) = fields.take(name) else { return Ok(None) };
    let mut inner = Fields::nested(&path, raw)?;
    let kind_path = inner.path("type");
    let kind = inner.string("type")?.ok_or_else(|| missing(&kind_path))?;
    if kind != "json_schema" {
        let got = serde_json::Value::from(kind).to_string();
        return Err(wrong(&kind_path, "\"json_schema\"", &got));
    }
    let schema_path = inner.path("schema");
    let raw = inner.take("schema").ok_or_else(|| missing(&schema_path))?;
    inner.finish()?;
    json_form(&schema_path, raw)
}

/// Reads edits of the conversation; the one that is accepted keeps all of it.
fn context_management(fields: &mut Fields<'_>) -> Result<(), ApiError> {
    let Some(raw) = fields.take("context_management") else { return Ok(()) };
    let mut inner = Fields::nested("context_management", raw)?;
    inner.list("edits", limits::TOOLS, |path, raw| {
        let mut edit = Fields::nested(path, raw)?;
        let kind = edit.string("type")?;
        let keep = edit.take("keep");
        let keeps_all =
            keep.is_some_and(|raw| Kind::of(raw) == Kind::String && raw.get() == "\"all\"");
        if kind.as_deref() != Some("clear_thinking_20251015") || !keeps_all {
            return Err(ApiError::unsupported(path));
        }
        edit.finish()
    })?;
    inner.finish()
}
