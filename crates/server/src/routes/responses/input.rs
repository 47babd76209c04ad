//! The input of a request: a text, or items of a conversation.

use serde::Serialize;
use serde_json::Value;

use super::items::OWN_THOUGHT;
use super::record::InputItem;
use crate::error::ApiError;
use crate::limits;
use crate::routes::conversation::{Turns, arguments, function_name, missing};
use crate::wire::json::{Kind, RawValue, brief, each, string, wrong};
use crate::wire::{Accept, Fields, Ignored, check_unhonoured, fresh_id};

const TEXT_OR_PARTS: &str = "a string or an array of parts";

/// Fields of items that change no token.
const UNHONOURED: &[(&str, Accept)] = &[
    ("status", Accept::OneOf(&["\"completed\"", "\"incomplete\"", "\"in_progress\""])),
    ("phase", Accept::Text),
    ("caller", Accept::Only("{\"type\": \"direct\"}")),
    ("namespace", Accept::Text),
    ("internal_chat_message_metadata_passthrough", Accept::Anything),
];

/// An item as it is listed.
#[derive(Serialize)]
struct WithId<'a> {
    id: &'a str,
    #[serde(flatten)]
    item: Listed<'a>,
}

#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Listed<'a> {
    Message { status: &'static str, role: &'a str, content: Vec<ListedPart> },
    FunctionCall { status: &'static str, call_id: &'a str, name: &'a str, arguments: String },
    FunctionCallOutput { status: &'static str, call_id: &'a str, output: &'a str },
    Reasoning { summary: [(); 0], content: Vec<ListedPart> },
}

#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
#[allow(clippy::enum_variant_names, reason = "the names of the API")]
enum ListedPart {
    InputText { text: String },
    OutputText { text: String, annotations: [(); 0] },
    ReasoningText { text: String },
}

const COMPLETED: &str = "completed";

/// The input of a request, read.
#[derive(Debug, Default)]
pub(crate) struct Input {
    pub(crate) turns: Turns,
    /// Its items, as they are listed.
    pub(crate) items: Vec<InputItem>,
}

impl Input {
    /// Reads `input`.
    ///
    /// # Errors
    ///
    /// Names the field that is wrong.
    pub(crate) fn read(fields: &mut Fields<'_>, ignored: &mut Ignored) -> Result<Self, ApiError> {
        let raw = fields.take("input").ok_or_else(|| missing("input"))?;
        let mut input = Self::default();
        match Kind::of(raw) {
            Kind::String => {
                input.message(None, "user", vec![string("input", raw)?]);
            }
            Kind::Array => each("input", raw, limits::MESSAGES, |i, raw| {
                input.item(&format!("input[{i}]"), raw, ignored)
            })?,
            _ => return Err(wrong("input", "a string or an array of items", raw.get())),
        }
        if input.items.is_empty() {
            return Err(ApiError::param("input", "`input` is empty: expected at least one item"));
        }
        Ok(input)
    }

    fn item(&mut self, path: &str, raw: &RawValue, ignored: &mut Ignored) -> Result<(), ApiError> {
        let mut fields = Fields::nested(path, raw)?;
        let kind_path = fields.path("type");
        let kind = fields.string("type")?;
        check_unhonoured(&mut fields, UNHONOURED)?;
        let id = fields.string("id")?;
        match kind.as_deref() {
            None | Some("message") => self.read_message(&mut fields, id)?,
            Some("function_call") => self.read_call(&mut fields, id)?,
            Some("function_call_output") => self.read_result(&mut fields, id)?,
            Some("reasoning") => self.read_thought(&mut fields, id, ignored)?,
            Some("item_reference") => {
                let message = format!(
                    "`{kind_path}`: items are not kept one by one; send the item itself, or \
                     `previous_response_id`"
                );
                return Err(ApiError::param(kind_path, message));
            }
            Some(other) => {
                let other = brief(other);
                let message = format!("`{kind_path}`: items of type `{other}` are not supported");
                return Err(ApiError::param(kind_path, message));
            }
        }
        fields.finish()
    }

    fn read_message(
        &mut self,
        fields: &mut Fields<'_>,
        id: Option<String>,
    ) -> Result<(), ApiError> {
        let role_path = fields.path("role");
        let role = fields.string("role")?.ok_or_else(|| missing(&role_path))?;
        let role = match role.as_str() {
            "user" | "assistant" | "system" | "developer" => role,
            _ => {
                let expected = "user, assistant, system or developer";
                return Err(wrong(&role_path, expected, &Value::String(role).to_string()));
            }
        };
        let path = fields.path("content");
        let raw = fields.take("content").ok_or_else(|| missing(&path))?;
        let texts = texts(&path, raw)?;
        self.message(id, &role, texts);
        Ok(())
    }

    fn message(&mut self, id: Option<String>, role: &str, texts: Vec<String>) {
        let content = texts.iter().cloned().map(|text| match role {
            "assistant" => ListedPart::OutputText { text, annotations: [] },
            _ => ListedPart::InputText { text },
        });
        let content = content.collect();
        self.list(id, "msg_", Listed::Message { status: COMPLETED, role, content });
        // Templates know the older name.
        let role = if role == "developer" { "system" } else { role };
        self.turns.text(role, texts.join("\n"));
    }

    fn read_call(&mut self, fields: &mut Fields<'_>, id: Option<String>) -> Result<(), ApiError> {
        let call_id = required(fields, "call_id")?;
        let name = function_name(fields)?;
        let path = fields.path("arguments");
        let read = arguments(&path, fields.take("arguments"))?;
        let (status, text) = (COMPLETED, read.to_string());
        let item = Listed::FunctionCall { status, call_id: &call_id, name: &name, arguments: text };
        self.list(id, "fc_", item);
        self.turns.call(call_id, name, read);
        Ok(())
    }

    fn read_result(&mut self, fields: &mut Fields<'_>, id: Option<String>) -> Result<(), ApiError> {
        let call_id = required(fields, "call_id")?;
        // The call of this id has the name, too.
        fields.string("name")?;
        let path = fields.path("output");
        let raw = fields.take("output").ok_or_else(|| missing(&path))?;
        let output = texts(&path, raw)?.join("\n");
        let (status, call) = (COMPLETED, call_id.as_str());
        let item = Listed::FunctionCallOutput { status, call_id: call, output: &output };
        self.list(id, "fco_", item);
        self.turns.result(call_id, output);
        Ok(())
    }

    /// Reads a thought: its text, else the text that travelled as `encrypted_content`.
    fn read_thought(
        &mut self,
        fields: &mut Fields<'_>,
        id: Option<String>,
        ignored: &mut Ignored,
    ) -> Result<(), ApiError> {
        let (path, own_path) = (fields.path("content"), fields.path("encrypted_content"));
        let parts = match fields.take("content") {
            Some(raw) => texts(&path, raw)?,
            None => Vec::new(),
        };
        let sealed = fields.string("encrypted_content")?;
        // A summary is for people; the thought that it is of stands beside it.
        let summary_path = fields.path("summary");
        if let Some(raw) = fields.take("summary") {
            texts(&summary_path, raw)?;
        }
        let own = sealed.as_deref().and_then(|text| text.strip_prefix(OWN_THOUGHT));
        let text = match own {
            _ if !parts.is_empty() => parts.join("\n"),
            Some(own) => own.to_owned(),
            // The thought of another server, which only that one can read.
            None if sealed.is_some() => {
                ignored.add(own_path);
                String::new()
            }
            None => String::new(),
        };
        let content = vec![ListedPart::ReasoningText { text: text.clone() }];
        self.list(id, "rs_", Listed::Reasoning { summary: [], content });
        if !text.is_empty() {
            self.turns.thought(&text);
        }
        Ok(())
    }

    /// Lists an item under its own id, or under a new one.
    fn list(&mut self, id: Option<String>, prefix: &str, item: Listed<'_>) {
        let id = id.unwrap_or_else(|| fresh_id(prefix));
        let listed = WithId { id: &id, item };
        let json = serde_json::to_string(&listed).expect("invariant: items are plain data");
        self.items.push(InputItem { id, json: json.into() });
    }
}

fn required(fields: &mut Fields<'_>, name: &str) -> Result<String, ApiError> {
    fields.string(name)?.ok_or_else(|| missing(&fields.path(name)))
}

/// Texts of a content: a string, or parts of text.
fn texts(path: &str, raw: &RawValue) -> Result<Vec<String>, ApiError> {
    match Kind::of(raw) {
        Kind::String => Ok(vec![string(path, raw)?]),
        Kind::Array => {
            let mut texts = Vec::new();
            each(path, raw, limits::CONTENT_PARTS, |i, raw| {
                texts.push(part(&format!("{path}[{i}]"), raw)?);
                Ok(())
            })?;
            Ok(texts)
        }
        _ => Err(wrong(path, TEXT_OR_PARTS, raw.get())),
    }
}

fn part(path: &str, raw: &RawValue) -> Result<String, ApiError> {
    const UNHONOURED: &[(&str, Accept)] =
        &[("annotations", Accept::Anything), ("logprobs", Accept::Anything)];
    let mut fields = Fields::nested(path, raw)?;
    let kind_path = fields.path("type");
    let kind = fields.string("type")?.ok_or_else(|| missing(&kind_path))?;
    let name = match kind.as_str() {
        "input_text" | "output_text" | "text" | "reasoning_text" | "summary_text" => "text",
        "refusal" => "refusal",
        other => {
            let other = brief(other);
            let message = format!("`{kind_path}`: parts of type `{other}` are not supported yet");
            return Err(ApiError::param(kind_path, message));
        }
    };
    check_unhonoured(&mut fields, UNHONOURED)?;
    let text = required(&mut fields, name)?;
    fields.finish()?;
    Ok(text)
}
