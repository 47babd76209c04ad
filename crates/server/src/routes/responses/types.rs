//! JSON of `POST /v1/responses` and `POST /v1/responses/input_tokens`: requests.

use pelton_base::{Shape, limits};
use pelton_llm::{ChatOptions, Generation, Thoughts};
use serde_json::Value;

use super::echo::{Echo, ReasoningEcho, TextEcho};
use super::input::Input;
use super::tools::Tools;
use crate::error::ApiError;
use crate::otlp::Parameters;
use crate::routes::conversation::{missing, turn_thoughts};
use crate::wire::json::{Kind, RawValue, each, string, wrong};
use crate::wire::{
    Accept, Fields, GenerationFields, Ignored, THOUGHTS, check_unhonoured, generation, json_form,
    metadata,
};

/// Parameters of this endpoint that are not honoured.
const UNHONOURED: &[(&str, Accept)] = &[
    ("access_programs", Accept::Nothing),
    ("client_metadata", Accept::Anything),
    ("context_management", Accept::Empty),
    ("conversation", Accept::Nothing),
    ("image", Accept::Nothing),
    ("moderation", Accept::Nothing),
    ("personality", Accept::Nothing),
    ("prompt", Accept::Nothing),
    ("prompt_cache_options", Accept::Empty),
    ("truncation", Accept::Only("\"disabled\"")),
];

/// Parameters of other dialects, which have names of their own here.
const FOREIGN: &[(&str, Accept)] = &[
    ("n", Accept::Only("1")),
    ("best_of", Accept::Only("1")),
    ("use_beam_search", Accept::Only("false")),
    ("response_format", Accept::Nothing),
];

/// Fields that an answer can be asked to include; the others are of tools that are not here.
const INCLUDED_LOGPROBS: &str = "message.output_text.logprobs";
const INCLUDED_THOUGHTS: &str = "reasoning.encrypted_content";
const INCLUDED_OF_TOOLS: [&str; 6] = [
    "code_interpreter_call.outputs",
    "computer_call_output.output.image_url",
    "file_search_call.results",
    "message.input_image.image_url",
    "web_search_call.action.sources",
    "web_search_call.results",
];
const EFFORTS: [&str; 7] = ["none", "minimal", "low", "medium", "high", "xhigh", "max"];

/// The parts of a request that make its prompt.
#[derive(Debug)]
pub(crate) struct Conversation {
    pub(crate) model: Option<String>,
    pub(crate) instructions: Option<String>,
    pub(crate) input: Input,
    pub(crate) previous: Option<String>,
    pub(crate) tools: Tools,
    pub(crate) parallel: bool,
    reasoning: ReasoningEcho,
    form: Option<Shape>,
    text: TextEcho,
    pub(crate) ignored: Ignored,
}

impl Conversation {
    /// Reads a whole body of `input_tokens`.
    pub(crate) fn read_alone(bytes: &[u8]) -> Result<Self, ApiError> {
        let mut fields = Fields::of_body(bytes)?;
        let conversation = Self::read(&mut fields)?;
        check_unhonoured(&mut fields, UNHONOURED)?;
        fields.finish()?;
        Ok(conversation)
    }

    fn read(fields: &mut Fields<'_>) -> Result<Self, ApiError> {
        let mut ignored = Ignored::default();
        let reasoning = reasoning(fields, &mut ignored)?;
        let (text, form) = text(fields, &mut ignored)?;
        Ok(Self {
            model: fields.string("model")?,
            instructions: fields.string("instructions")?,
            input: Input::read(fields, &mut ignored)?,
            previous: fields.string("previous_response_id")?,
            tools: Tools::read(fields, &mut ignored)?,
            parallel: fields.bool("parallel_tool_calls")?.unwrap_or(true),
            reasoning,
            form,
            text,
            ignored,
        })
    }

    /// Tools and thoughts for a model that thinks like this.
    pub(crate) fn options(&mut self, can: &Thoughts) -> ChatOptions {
        let mut options = ChatOptions {
            tools: std::mem::take(&mut self.tools.tools),
            tool_choice: self.tools.choice.clone(),
            parallel_tool_calls: self.parallel,
            ..ChatOptions::default()
        };
        if let Some(effort) = self.reasoning.effort.as_deref() {
            let is_on = effort != "none";
            turn_thoughts(can, is_on, &mut options);
            if can.has_effort {
                let effort = if effort == "max" { "xhigh" } else { effort };
                options.template_args.insert("reasoning_effort".to_owned(), effort.into());
            } else if is_on && can.switches.is_empty() {
                self.ignored.add("reasoning.effort");
            }
        }
        options
    }
}

/// A request as it was sent; types are right.
#[derive(Debug)]
pub(crate) struct ResponsesBody {
    pub(crate) conversation: Conversation,
    pub(crate) is_background: bool,
    pub(crate) is_stream: bool,
    /// Whether to store the response, where the request says so.
    pub(crate) store: Option<bool>,
    /// Whether thoughts are sent a second time, for clients that keep nothing else of them.
    pub(crate) shows_own_thoughts: bool,
    generation: GenerationFields,
    max_output_tokens: Option<usize>,
    logprobs: Option<usize>,
    labels: Labels,
}

/// Fields that a response repeats and that change nothing.
#[derive(Debug)]
struct Labels {
    max_tool_calls: Option<usize>,
    metadata: Box<RawValue>,
    prompt_cache_key: Option<String>,
    safety_identifier: Option<String>,
    user: Option<String>,
}

impl ResponsesBody {
    /// Whether some field names tokens by their numbers.
    pub(crate) fn has_token_ids(&self) -> bool {
        self.generation.has_token_ids()
    }

    /// Whether some field asks for what not every model can do.
    pub(crate) fn is_particular(&self) -> bool {
        self.generation.is_particular()
    }

    /// Parameters that a span repeats.
    pub(crate) fn stated(&self) -> Parameters {
        self.generation.stated()
    }

    /// Reads every field, and refuses unknown parameters and parameters that are not honoured.
    pub(crate) fn read(bytes: &[u8]) -> Result<Self, ApiError> {
        let mut fields = Fields::of_body(bytes)?;
        let conversation = Conversation::read(&mut fields)?;
        let (includes_logprobs, shows_own_thoughts) = include(&mut fields)?;
        let top_logprobs = fields.usize("top_logprobs")?;
        let logprobs = match top_logprobs {
            Some(n @ 1..) => Some(n),
            _ => includes_logprobs.then_some(0),
        };
        let max_output_tokens = fields.usize("max_output_tokens")?;
        if max_output_tokens == Some(0) {
            return Err(wrong("max_output_tokens", "at least 1", "0"));
        }
        let is_stream = stream(&mut fields)?;
        let (store, is_background) = (fields.bool("store")?, fields.bool("background")?);
        let labels = Labels::read(&mut fields)?;
        check_unhonoured(&mut fields, UNHONOURED)?;
        check_unhonoured(&mut fields, FOREIGN)?;
        check_unhonoured(&mut fields, THOUGHTS)?;
        let generation = GenerationFields::read(&mut fields)?;
        fields.finish()?;
        Ok(Self {
            conversation,
            is_background: is_background.unwrap_or(false),
            is_stream,
            store,
            shows_own_thoughts,
            generation,
            max_output_tokens,
            logprobs,
            labels,
        })
    }

    /// Parts that make the prompt, how the answer is generated, and what the response repeats;
    /// `is_stored` says whether it will be stored.
    ///
    /// # Errors
    ///
    /// Names the first parameter out of its range.
    pub(crate) fn split(
        self,
        defaults: Generation,
        is_stored: bool,
    ) -> Result<(Conversation, Generation, Echo), ApiError> {
        let Self { mut conversation, generation: mut sent, max_output_tokens, labels, .. } = self;
        sent.set_form("text.format", conversation.form.take())?;
        let generation = generation(sent, max_output_tokens, self.logprobs, defaults)?;
        let null = || RawValue::from_string("null".to_owned()).expect("invariant: null is JSON");
        let text = TextEcho { format: null(), verbosity: conversation.text.verbosity };
        let echo = Echo {
            background: self.is_background,
            instructions: conversation.instructions.clone(),
            max_output_tokens,
            max_tool_calls: labels.max_tool_calls,
            metadata: labels.metadata,
            parallel_tool_calls: conversation.parallel,
            previous_response_id: conversation.previous.clone(),
            prompt_cache_key: labels.prompt_cache_key,
            reasoning: ReasoningEcho {
                effort: conversation.reasoning.effort.clone(),
                summary: conversation.reasoning.summary.clone(),
            },
            safety_identifier: labels.safety_identifier,
            service_tier: "default",
            store: is_stored,
            temperature: generation.sampling.temperature,
            text: std::mem::replace(&mut conversation.text, text),
            tool_choice: conversation.tools.sent_choice.clone(),
            tools: std::mem::take(&mut conversation.tools.sent),
            top_logprobs: self.logprobs.unwrap_or(0),
            top_p: generation.sampling.top_p,
            truncation: "disabled",
            user: labels.user,
        };
        Ok((conversation, generation, echo))
    }
}

impl Labels {
    fn read(fields: &mut Fields<'_>) -> Result<Self, ApiError> {
        let metadata = match metadata(fields)? {
            None => RawValue::from_string("{}".to_owned()).expect("invariant: `{}` is JSON"),
            Some(raw) => raw.to_owned(),
        };
        Ok(Self {
            // Only calls that the server itself would make count, and it makes none.
            max_tool_calls: fields.usize("max_tool_calls")?,
            metadata,
            prompt_cache_key: fields.string("prompt_cache_key")?,
            safety_identifier: fields.string("safety_identifier")?,
            user: fields.string("user")?,
        })
    }
}

fn stream(fields: &mut Fields<'_>) -> Result<bool, ApiError> {
    let is_stream = fields.bool("stream")?.unwrap_or(false);
    if let Some(raw) = fields.take("stream_options") {
        let mut inner = Fields::nested("stream_options", raw)?;
        // Padding against observers of the network, which TLS in front of this server can add.
        if inner.bool("include_obfuscation")?.unwrap_or(false) {
            return Err(ApiError::unsupported(inner.path("include_obfuscation")));
        }
        inner.finish()?;
        if !is_stream {
            let message = "`stream_options` needs `stream` to be true";
            return Err(ApiError::param("stream_options", message));
        }
    }
    Ok(is_stream)
}

/// Reads `include`: whether log probabilities are asked for, and thoughts in a form to send back.
fn include(fields: &mut Fields<'_>) -> Result<(bool, bool), ApiError> {
    let (mut logprobs, mut thoughts) = (false, false);
    let Some(raw) = fields.take("include") else { return Ok((false, false)) };
    each("include", raw, limits::TOOLS, |i, raw| {
        let path = format!("include[{i}]");
        match string(&path, raw)?.as_str() {
            INCLUDED_LOGPROBS => logprobs = true,
            INCLUDED_THOUGHTS => thoughts = true,
            other if INCLUDED_OF_TOOLS.contains(&other) => {}
            _ => {
                let expected = format!("{INCLUDED_LOGPROBS} or {INCLUDED_THOUGHTS}");
                return Err(wrong(&path, &expected, raw.get()));
            }
        }
        Ok(())
    })?;
    Ok((logprobs, thoughts))
}

/// Reads `reasoning`.
fn reasoning(fields: &mut Fields<'_>, ignored: &mut Ignored) -> Result<ReasoningEcho, ApiError> {
    let Some(raw) = fields.take("reasoning") else { return Ok(ReasoningEcho::default()) };
    let mut inner = Fields::nested("reasoning", raw)?;
    let effort_path = inner.path("effort");
    let effort = inner.string("effort")?;
    if let Some(effort) = effort.as_deref().filter(|effort| !EFFORTS.contains(effort)) {
        let expected = format!("one of {}", EFFORTS.join(", "));
        return Err(wrong(&effort_path, &expected, &Value::from(effort).to_string()));
    }
    for name in ["summary", "generate_summary"] {
        let path = inner.path(name);
        match inner.string(name)?.as_deref() {
            None => {}
            // Nothing here makes a summary of a thought, which is sent as it is.
            Some("auto" | "concise" | "detailed") => ignored.add(path),
            Some(other) => {
                let got = Value::from(other).to_string();
                return Err(wrong(&path, "auto, concise or detailed", &got));
            }
        }
    }
    check_unhonoured(
        &mut inner,
        &[("context", Accept::Only("\"auto\"")), ("mode", Accept::Only("\"standard\""))],
    )?;
    inner.finish()?;
    Ok(ReasoningEcho { effort, summary: None })
}

/// Reads `text`: the form of the answer, and its verbosity, which no model here is told.
fn text(
    fields: &mut Fields<'_>,
    ignored: &mut Ignored,
) -> Result<(TextEcho, Option<Shape>), ApiError> {
    let plain = RawValue::from_string("{\"type\":\"text\"}".to_owned());
    let mut echo = TextEcho { format: plain.expect("invariant: it is JSON"), verbosity: "medium" };
    let Some(raw) = fields.take("text") else { return Ok((echo, None)) };
    let mut inner = Fields::nested("text", raw)?;
    let path = inner.path("verbosity");
    match inner.string("verbosity")?.as_deref() {
        None | Some("medium") => {}
        Some("low" | "high") => ignored.add(path),
        Some(other) => {
            let got = Value::from(other).to_string();
            return Err(wrong(&path, "low, medium or high", &got));
        }
    }
    let path = inner.path("format");
    let mut shape = None;
    if let Some(raw) = inner.take("format") {
        shape = format(&path, raw)?;
        echo.format = raw.to_owned();
    }
    inner.finish()?;
    Ok((echo, shape))
}

fn format(path: &str, raw: &RawValue) -> Result<Option<Shape>, ApiError> {
    if Kind::of(raw) != Kind::Object {
        return Err(wrong(path, "an object such as {\"type\": \"text\"}", raw.get()));
    }
    let mut fields = Fields::nested(path, raw)?;
    let kind_path = fields.path("type");
    let shape = match fields.string("type")?.as_deref() {
        Some("text") => None,
        Some("json_object") => Some(Shape::any_object()),
        Some("json_schema") => {
            // Name and description are for the client; a schema is always strict.
            fields.string("name")?;
            fields.string("description")?;
            fields.bool("strict")?;
            let path = fields.path("schema");
            let raw = fields.take("schema").ok_or_else(|| missing(&path))?;
            json_form(&path, raw)?
        }
        kind => {
            let got = kind.map_or(Value::Null, Value::from).to_string();
            return Err(wrong(&kind_path, "text, json_object or json_schema", &got));
        }
    };
    fields.finish()?;
    Ok(shape)
}
