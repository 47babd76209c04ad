//! Chat templates: messages to prompt text, as Hugging Face renders them.
//!
//! A template is a Jinja program that came with the model, and hostile like every other file. It
//! runs under three limits: steps ([`limits::TEMPLATE_FUEL`]), bytes of output and of any one text
//! ([`limits::TEMPLATE_OUTPUT_BYTES`]), and bytes touched in total
//! ([`limits::TEMPLATE_WORK_BYTES`]). Steps alone are not enough: forty times `x + x` is forty
//! steps and a terabyte. So the compiled program is rewritten (`program`) until everything that can
//! copy text goes through functions of this module (`guard`) that pay for it first.

mod budget;
mod builtin;
mod clock;
mod cost;
mod guard;
mod jinja;
mod message;
mod names;
mod program;
mod python;

use std::path::Path;
use std::sync::Arc;

use minijinja::{AutoEscape, Environment, ErrorKind, Value};
use pelton_base::limits;
use serde_json::Map;

use crate::companions::Companions;
use crate::error::{TextError, read_optional};
use budget::Budget;

pub use message::Message;

/// Arguments of a template besides the messages.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RenderOptions {
    /// Ends the prompt with the opening of the assistant's turn.
    pub add_generation_prompt: bool,
    /// Ends the prompt within the last message, which the answer continues; the opening of a new
    /// turn would contradict it, so there is none.
    pub continue_final_message: bool,
    /// Documents that the answer may draw on, as the template reads them.
    pub documents: Option<serde_json::Value>,
    /// Tools that the model may call, as JSON schemas.
    pub tools: Option<serde_json::Value>,
    /// Any other argument of the template; these win over the special tokens' names.
    pub extra: Map<String, serde_json::Value>,
    /// The time that `strftime_now` reads, in seconds since 1970 UTC; the clock's when absent.
    pub now_unix_seconds: Option<i64>,
}

/// The special tokens as templates name them, such as `("bos_token", "<s>")`.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct TemplateTokens {
    /// Pairs of variable and text.
    pub tokens: Vec<(String, String)>,
}

/// Where a template came from.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct TemplateSource {
    /// The file, for errors.
    pub origin: String,
    /// The variant's name where a file holds several: `default`, `tool_use`, ...
    pub name: String,
    /// The template itself.
    pub text: String,
}

/// A template that cannot be used, or that failed on these messages.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum TemplateError {
    /// The template is larger than its limit.
    #[error("{origin}: the chat template has {n_bytes} bytes; the limit is {limit}")]
    TooLarge {
        /// The file.
        origin: String,
        /// Its size, in bytes.
        n_bytes: usize,
        /// Most bytes allowed.
        limit: usize,
    },
    /// The template is not valid Jinja, or uses a feature that is not supported.
    #[error("{origin}: chat template: {}{reason}", at_line(*line))]
    Syntax {
        /// The file.
        origin: String,
        /// The line, from 1; zero when unknown.
        line: usize,
        /// The fault.
        reason: String,
    },
    /// The template refuses these messages by `raise_exception`.
    #[error("the chat template refuses these messages: {message}")]
    Raised {
        /// The template's own words.
        message: String,
    },
    /// The template ran into a limit.
    #[error("{origin}: the chat template exceeds its limit of {limit} {unit}")]
    Limit {
        /// The file.
        origin: String,
        /// The limit.
        limit: u64,
        /// Its unit.
        unit: &'static str,
    },
    /// The template failed while it ran.
    #[error("{origin}: chat template: {}{reason}", at_line(*line))]
    Failed {
        /// The file.
        origin: String,
        /// The line, from 1; zero when unknown.
        line: usize,
        /// The failure.
        reason: String,
    },
    /// The last message cannot be continued, because it has no text, or its text is not in the prompt.
    #[error("the last message cannot be continued: {reason}")]
    NotContinued {
        /// The reason.
        reason: &'static str,
    },
    /// The file has no variant of this name.
    #[error("no chat template is named `{name}`; there are {known}")]
    NoSuchTemplate {
        /// The name of the variant.
        name: String,
        /// The names of the existing variants.
        known: String,
    },
}

/// `line 3: `, or nothing where the line is not known.
fn at_line(line: usize) -> String {
    if line == 0 { String::new() } else { format!("line {line}: ") }
}

/// A model's chat template, with its variants.
#[derive(Clone, Debug, PartialEq)]
pub struct ChatTemplate {
    /// At least one; the first is the default.
    sources: Vec<TemplateSource>,
    tokens: TemplateTokens,
    /// Arguments of every rendering; its own win over them.
    args: Map<String, serde_json::Value>,
}

impl ChatTemplate {
    /// A template from its text.
    ///
    /// # Errors
    ///
    /// When the text is larger than [`limits::TEMPLATE_BYTES`] or not a valid template; `origin`
    /// names the file.
    pub fn from_text(
        text: &str,
        origin: &str,
        tokens: TemplateTokens,
    ) -> Result<Self, TemplateError> {
        let source = TemplateSource {
            origin: origin.to_owned(),
            name: "default".to_owned(),
            text: text.to_owned(),
        };
        Self::new(vec![source], tokens)
    }

    /// The template of a model folder: `chat_template.jinja`, else the `chat_template` of
    /// `tokenizer_config.json` (a string, or a list of named ones); `None` where there is neither.
    ///
    /// # Errors
    ///
    /// Names the file that cannot be read, is malformed, or holds an invalid template.
    pub fn from_folder(folder: &Path) -> Result<Option<Self>, FolderError> {
        let companions = Companions::from_folder(folder)?;
        let path = folder.join("chat_template.jinja");
        if let Some(bytes) = read_optional(&path, limits::TEMPLATE_BYTES as u64)? {
            let origin = path.display().to_string();
            let text = String::from_utf8(bytes)
                .map_err(|_| TextError::malformed(&origin, "the template is not UTF-8"))?;
            return Ok(Some(Self::from_text(&text, &origin, tokens_of(&companions))?));
        }
        let origin = folder.join("tokenizer_config.json").display().to_string();
        Self::from_companions(&companions, &origin)
    }

    /// The template in the bytes of a `tokenizer_config.json`, if there is one.
    ///
    /// # Errors
    ///
    /// As [`ChatTemplate::from_folder`].
    pub fn from_config(config: &[u8]) -> Result<Option<Self>, FolderError> {
        let origin = "tokenizer_config.json";
        Self::from_companions(&Companions::from_config(config, origin)?, origin)
    }

    /// The template in the metadata of a GGUF file, if there is one.
    ///
    /// # Errors
    ///
    /// Names the file when the template is of the wrong type or invalid.
    pub fn from_gguf(gguf: &pelton_tensor::Gguf) -> Result<Option<Self>, FolderError> {
        let Some((origin, text, tokens)) = crate::gguf::template(gguf)? else { return Ok(None) };
        Ok(Some(Self::from_text(&text, &origin, TemplateTokens { tokens })?))
    }

    fn from_companions(companions: &Companions, origin: &str) -> Result<Option<Self>, FolderError> {
        use serde_json::Value as Json;

        let source = |name: &str, text: &str| TemplateSource {
            origin: origin.to_owned(),
            name: name.to_owned(),
            text: text.to_owned(),
        };
        let mut sources = match companions.chat_template() {
            None => return Ok(None),
            Some(Json::String(text)) => vec![source("default", text)],
            Some(Json::Array(list)) => list
                .iter()
                .map(|entry| {
                    let text = |field| entry.get(field).and_then(Json::as_str);
                    Some(source(text("name")?, text("template")?))
                })
                .collect::<Option<Vec<_>>>()
                .filter(|sources| !sources.is_empty())
                .ok_or_else(|| {
                    TextError::malformed(origin, "`chat_template` is not a list of named templates")
                })?,
            Some(_) => {
                let reason = "`chat_template` is neither a string nor a list";
                return Err(TextError::malformed(origin, reason).into());
            }
        };
        sources.sort_by_key(|source| source.name != "default");
        Ok(Some(Self::new(sources, tokens_of(companions))?))
    }

    fn new(sources: Vec<TemplateSource>, tokens: TemplateTokens) -> Result<Self, TemplateError> {
        for source in &sources {
            if source.text.len() > limits::TEMPLATE_BYTES {
                return Err(TemplateError::TooLarge {
                    origin: source.origin.clone(),
                    n_bytes: source.text.len(),
                    limit: limits::TEMPLATE_BYTES,
                });
            }
            let text = program::prepare(&source.text).map_err(|e| syntax(source, &e))?;
            program::Program::compile(&text).map_err(|e| syntax(source, &e))?;
        }
        Ok(Self { sources, tokens, args: Map::new() })
    }

    /// The same template with arguments that every rendering has; an argument in
    /// [`RenderOptions::extra`] wins over the one here.
    #[must_use]
    pub fn with_args(mut self, args: Map<String, serde_json::Value>) -> Self {
        self.args = args;
        self
    }

    /// The special tokens as the template names them.
    pub fn tokens(&self) -> &TemplateTokens {
        &self.tokens
    }

    /// The template and its variants, the default first.
    pub fn sources(&self) -> &[TemplateSource] {
        &self.sources
    }

    /// Renders the default template; the variant `tool_use` where there are tools and it exists.
    ///
    /// # Errors
    ///
    /// When the template refuses the messages, fails, or runs into a limit.
    pub fn render(
        &self,
        messages: &[Message],
        options: &RenderOptions,
    ) -> Result<String, TemplateError> {
        let with_tools = options
            .tools
            .as_ref()
            .filter(|tools| !tools.is_null())
            .and_then(|_| self.sources.iter().find(|source| source.name == "tool_use"));
        self.render_source(with_tools.unwrap_or(&self.sources[0]), messages, options)
    }

    /// Renders a named variant.
    ///
    /// # Errors
    ///
    /// As [`ChatTemplate::render`], and when there is no such variant.
    pub fn render_named(
        &self,
        name: &str,
        messages: &[Message],
        options: &RenderOptions,
    ) -> Result<String, TemplateError> {
        match self.sources.iter().find(|source| source.name == name) {
            Some(source) => self.render_source(source, messages, options),
            None => Err(TemplateError::NoSuchTemplate {
                name: name.to_owned(),
                known: self.sources.iter().map(|s| s.name.as_str()).collect::<Vec<_>>().join(", "),
            }),
        }
    }

    fn render_source(
        &self,
        source: &TemplateSource,
        messages: &[Message],
        options: &RenderOptions,
    ) -> Result<String, TemplateError> {
        let budget = Arc::new(Budget::new());
        let failed = |error: &minijinja::Error| failure(source, error, &budget);
        let text = program::prepare(&source.text).map_err(|e| failed(&e))?;
        let program = program::Program::compile(&text).map_err(|e| failed(&e))?;
        let mut env = Environment::new();
        env.set_fuel(Some(limits::TEMPLATE_FUEL));
        env.set_unknown_method_callback(|state, value, method, args| {
            let own = value.as_str().and_then(|text| jinja::text_method(text, method, args));
            own.unwrap_or_else(|| {
                minijinja_contrib::pycompat::unknown_method_callback(state, value, method, args)
            })
        });
        jinja::install_tests(&mut env);
        guard::install(&mut env, &budget, options.now_unix_seconds);
        let rendered =
            program.run(&env, self.context(messages, options)).map_err(|e| failed(&e))?;
        match options.continue_final_message {
            true => within_final_message(rendered, messages),
            false => Ok(rendered),
        }
    }

    fn context(&self, messages: &[Message], options: &RenderOptions) -> Value {
        let mut context: Vec<(String, Value)> = Vec::new();
        context.extend(self.tokens.tokens.iter().map(|(k, v)| (k.clone(), Value::from(v))));
        let messages: Vec<Value> = messages.iter().map(message_value).collect();
        context.push(("messages".into(), Value::from(messages)));
        let opens_turn = options.add_generation_prompt && !options.continue_final_message;
        context.push(("add_generation_prompt".into(), opens_turn.into()));
        let tools = options.tools.as_ref().map_or_else(|| Value::from(()), value);
        context.push(("tools".into(), tools));
        let documents = options.documents.as_ref().map_or_else(|| Value::from(()), value);
        context.push(("documents".into(), documents));
        let args = self.args.iter().filter(|(name, _)| !options.extra.contains_key(*name));
        context.extend(args.map(|(k, v)| (k.clone(), value(v))));
        context.extend(options.extra.iter().map(|(k, v)| (k.clone(), value(v))));
        Value::from_pairs(context)
    }
}

/// Reason why a folder has no usable template: a file is malformed, or the template in it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FolderError {
    /// A file.
    #[error(transparent)]
    File(#[from] TextError),
    /// The template.
    #[error(transparent)]
    Template(#[from] TemplateError),
}

fn tokens_of(companions: &Companions) -> TemplateTokens {
    let fields = ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token"];
    let token = |field: &&str| Some(((*field).to_owned(), companions.token(field)?.to_owned()));
    TemplateTokens { tokens: fields.iter().filter_map(token).collect() }
}

fn message_value(message: &Message) -> Value {
    let fields = message::alias_reasoning(message.fields());
    Value::from_pairs(fields.iter().map(|(k, v)| (*k, value(v))))
}

fn value(json: &serde_json::Value) -> Value {
    use serde_json::Value as Json;

    match json {
        Json::Null => Value::from(()),
        Json::Bool(b) => Value::from(*b),
        Json::Number(n) => match (n.as_i64(), n.as_u64()) {
            (Some(n), _) => Value::from(n),
            (_, Some(n)) => Value::from(n),
            _ => Value::from(n.as_f64().unwrap_or(f64::NAN)),
        },
        Json::String(text) => Value::from(text),
        Json::Array(items) => Value::from(items.iter().map(value).collect::<Vec<_>>()),
        Json::Object(fields) => Value::from_pairs(fields.iter().map(|(k, v)| (k, value(v)))),
    }
}

fn reason(error: &minijinja::Error) -> String {
    error.detail().map_or_else(|| error.kind().to_string(), str::to_owned)
}

fn syntax(source: &TemplateSource, error: &minijinja::Error) -> TemplateError {
    TemplateError::Syntax {
        origin: source.origin.clone(),
        line: error.line().unwrap_or(0),
        reason: reason(error),
    }
}

fn failure(source: &TemplateSource, error: &minijinja::Error, budget: &Budget) -> TemplateError {
    let origin = source.origin.clone();
    if let Some(message) = budget.raised() {
        return TemplateError::Raised { message };
    }
    if let Some((limit, unit)) = budget.exceeded() {
        return TemplateError::Limit { origin, limit, unit };
    }
    match error.kind() {
        ErrorKind::OutOfFuel => {
            TemplateError::Limit { origin, limit: limits::TEMPLATE_FUEL, unit: "steps" }
        }
        _ => {
            TemplateError::Failed { origin, line: error.line().unwrap_or(0), reason: reason(error) }
        }
    }
}

/// Prompts are text, never markup.
const NO_ESCAPE: AutoEscape = AutoEscape::None;

/// Cuts a prompt off behind the text of the last message. White space at the ends of that text counts
/// only where the template has kept it.
fn within_final_message(
    mut rendered: String,
    messages: &[Message],
) -> Result<String, TemplateError> {
    let fail = |reason| Err(TemplateError::NotContinued { reason });
    let text = messages.last().and_then(|message| message.content.as_str()).unwrap_or_default();
    let core = text.trim();
    if core.is_empty() {
        return fail("it has no text");
    }
    let Some(start) = rendered.rfind(core) else {
        return fail("the chat template does not print its text as it is");
    };
    let with_end = text.trim_start();
    let is_kept = rendered[start..].starts_with(with_end);
    rendered.truncate(start + if is_kept { with_end.len() } else { core.len() });
    Ok(rendered)
}
