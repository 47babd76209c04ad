//! The text that a quantization looks at: a file, a folder of files, chats, or Pelton's own sample.
//!
//! | `--calibration` | text |
//! |---|---|
//! | a file that ends in `.jsonl` | a line has `text`, `prompt`, `messages` or `conversations` |
//! | any other file | all of it, in UTF-8 |
//! | a folder | its `.txt`, `.md` and `.jsonl` files, in the order of their names |
//! | `sample` | excerpts of nine novels, which come with Pelton |
//!
//! Conversations go through the model's chat template, as they would when it is served;
//! `conversations` are those of ShareGPT (`from`, `value`). The tokens of all texts follow each
//! other, and are then cut into windows.

use std::path::{Path, PathBuf};

use pelton_base::{TokenId, limits};
use pelton_bench::quality::Tokens;
use pelton_llm::LocalModel;
use pelton_model::ModelFiles;
use pelton_quantize::Samples;
use pelton_text::{EncodeOptions, Message, RenderOptions};
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::args::QuantizeArgs;
use crate::failure::{Failure, Result};
use crate::quantize::failure;
use crate::texts::Texts;

/// Tokens of a window, where the context has as many.
const SAMPLE_LENGTH: usize = 512;
/// The name of the sample, unless a file has it.
const SAMPLE: &str = "sample";
/// The sample; out of copyright.
const SAMPLE_TEXT: &str = include_str!("../assets/calibration.txt");
/// Endings of the files of a folder that are read.
const ENDINGS: [&str; 3] = ["txt", "md", "jsonl"];
/// The time that templates are told, so that the same chats have the same tokens on every day.
const NOW: i64 = 1_767_225_600;

const EXPECTED: &str = "expected an object with `text` or `prompt` (a text), `messages` (a list of \
                        objects with `role` and `content`) or `conversations` (a list of objects with \
                        `from` and `value`)";

/// The texts of a calibration, and where they came from.
pub(crate) struct Calibration {
    pub(crate) samples: Samples,
    /// Tokens of a window.
    pub(crate) length: usize,
    /// Name of the file or folder, without the folder that it is in.
    pub(crate) name: String,
    /// SHA-256 of the file, or of all files of the folder one after the other.
    hash: String,
}

impl Calibration {
    /// Reads what `--calibration` names, and cuts it into windows.
    ///
    /// # Errors
    ///
    /// Files that cannot be read, are too large or hold no text; a line that is no text or chat;
    /// chats for a model without a template; fewer tokens than a calibration needs.
    pub(crate) fn read(
        place: &LocalModel,
        files: &ModelFiles,
        path: &Path,
        args: &QuantizeArgs,
    ) -> Result<Self> {
        let context = files.spec()?.max_context;
        let length = args.sample_length.unwrap_or(SAMPLE_LENGTH.min(context));
        if length < 2 || length > context {
            return Err(Failure::new(format!(
                "`--sample-length` is {length}: expected 2 to the context of {context} tokens"
            )));
        }
        let texts = Texts::of(place, files)?;
        let prefix = Tokens::new(&texts.tokenizer, "", None)?.prefix;
        let mut gathered =
            Gathered { texts, tokens: Vec::new(), hash: Sha256::new(), left: limits::PROMPT_BYTES };
        let at_path = |failure: Failure| failure.at(&path.display().to_string());
        if path.is_dir() {
            for file in files_of(path).map_err(at_path)? {
                gathered.file(&file).map_err(|failure| failure.at(&file.display().to_string()))?;
            }
        } else if path.as_os_str() == SAMPLE && !path.exists() {
            gathered.text(SAMPLE_TEXT)?;
            gathered.hash.update(SAMPLE_TEXT);
        } else {
            gathered.file(path).map_err(at_path)?;
        }
        let Gathered { tokens, hash, .. } = gathered;
        let samples = Samples::choose(&tokens, &prefix, length, args.n_samples(), args.seed)
            .map_err(|error| at_path(failure(error)))?;
        let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
        let hash = hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
        Ok(Self { samples, length, name, hash })
    }

    /// A description for the model card.
    pub(crate) fn words(&self) -> String {
        let Self { samples, length, name, hash } = self;
        let (n, n_tokens) = (samples.len(), samples.n_tokens());
        format!("{n} windows of {length} tokens, {n_tokens} in all, of `{name}`, SHA-256 {hash}")
    }
}

/// The files of a folder that are read, in the order of their names.
fn files_of(folder: &Path) -> Result<Vec<PathBuf>> {
    let failed = |error: std::io::Error| Failure::new(error.to_string());
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        let ending = path.extension().and_then(|ending| ending.to_str());
        if ending.is_some_and(|ending| ENDINGS.contains(&ending)) && path.is_file() {
            files.push(path);
        }
    }
    if files.is_empty() {
        return Err(Failure::new("expected files that end in .txt, .md or .jsonl in this folder"));
    }
    files.sort();
    Ok(files)
}

/// Texts while they are read.
struct Gathered {
    texts: Texts,
    tokens: Vec<TokenId>,
    hash: Sha256,
    /// Bytes that may still be read.
    left: usize,
}

impl Gathered {
    fn file(&mut self, path: &Path) -> Result<()> {
        let text = pelton_tensor::read_limited_text(path, self.left as u64)
            .map_err(|error| Failure::new(error.to_string()))
            .map_err(|failure| {
                failure.hint("expected text files in UTF-8, of at most 16 MiB in all")
            })?;
        self.left -= text.len();
        self.hash.update(&text);
        if path.extension().is_none_or(|ending| ending != "jsonl") {
            return self.text(&text);
        }
        for (line, text) in text.lines().enumerate().filter(|(_, text)| !text.trim().is_empty()) {
            let at_line = |why: String| Failure::new(format!("line {}: {why}", line + 1));
            let value: Value = serde_json::from_str(text)
                .map_err(|error| at_line(format!("{EXPECTED}: {error}")))?;
            match chat(&value) {
                Some(messages) => {
                    let messages = messages.map_err(|why| at_line(why.to_owned()))?;
                    self.chat(&messages)
                        .map_err(|failure| failure.at(&format!("line {}", line + 1)))?;
                }
                None => {
                    let text = value["text"].as_str().or_else(|| value["prompt"].as_str());
                    self.text(text.ok_or_else(|| at_line(EXPECTED.to_owned()))?)?;
                }
            }
        }
        Ok(())
    }

    fn text(&mut self, text: &str) -> Result<()> {
        self.tokens.extend(self.texts.tokenizer.encode(text, false)?);
        Ok(())
    }

    fn chat(&mut self, messages: &[Message]) -> Result<()> {
        let Some(template) = &self.texts.template else {
            return Err(Failure::new("the model has no chat template")
                .hint("give its chats as `text`, written as the model reads them"));
        };
        let options = RenderOptions { now_unix_seconds: Some(NOW), ..RenderOptions::default() };
        let text = template.render(messages, &options).map_err(|error| Failure::of(&error))?;
        // The template writes the special tokens itself.
        let options = EncodeOptions { add_special: false, parse_special: true };
        self.tokens.extend(self.texts.tokenizer.encode_with(&text, options)?);
        Ok(())
    }
}

/// The messages of a line, if it is a chat.
fn chat(value: &Value) -> Option<std::result::Result<Vec<Message>, &'static str>> {
    let messages = match (&value["messages"], &value["conversations"]) {
        (Value::Array(list), Value::Null) => {
            list.iter().map(|message| serde_json::from_value(message.clone()).ok()).collect()
        }
        (Value::Null, Value::Array(list)) => list.iter().map(shared).collect(),
        (Value::Null, Value::Null) => return None,
        _ => None,
    };
    Some(messages.filter(|messages: &Vec<Message>| !messages.is_empty()).ok_or(EXPECTED))
}

/// A message of ShareGPT.
fn shared(message: &Value) -> Option<Message> {
    let role = match message["from"].as_str()? {
        "human" => "user",
        "gpt" => "assistant",
        other => other,
    };
    Some(Message::new(role, message["value"].as_str()?))
}
