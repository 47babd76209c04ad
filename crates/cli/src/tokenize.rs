//! `pelton tokenize`: text to ids and back, one JSON value per line.
//!
//! Works without a model's weights: a folder with the tokenizer's files is enough.

use std::io::{BufRead, Read, Write};

use pelton_base::{TokenId, limits};
use pelton_text::{ChatTemplate, EncodeOptions, Message, RenderOptions};
use serde_json::{Map, Value, json};

use crate::args::TokenizeArgs;
use crate::failure::{Failure, Result};
use crate::model;
use crate::texts::Texts;

/// Runs the command.
pub(crate) fn tokenize(args: &TokenizeArgs) -> Result<()> {
    let place = model::resolve(&model::reference(args.model.as_deref())?)?;
    let texts = Texts::open(&place)?.choose(&args.template.chosen().llm)?;
    let mut stdout = std::io::BufWriter::new(std::io::stdout().lock());
    let mut stdin = std::io::stdin().lock();
    for line_idx in 0.. {
        let line = read_line(&mut stdin);
        if matches!(line, Ok(None)) {
            break;
        }
        let output = line
            .and_then(|line| texts.line(&line.unwrap_or_default(), args))
            .map_err(|failure| failure.at(&format!("line {} of standard input", line_idx + 1)));
        let output = match output {
            Ok(output) => output,
            Err(failure) => {
                // The lines before the bad line have been answered.
                stdout.flush().map_err(|error| Failure::stdout(&error))?;
                return Err(failure);
            }
        };
        writeln!(stdout, "{output}").map_err(|error| Failure::stdout(&error))?;
    }
    stdout.flush().map_err(|error| Failure::stdout(&error))
}

/// The next line without its end, or `None` after the last one.
pub(crate) fn read_line(input: &mut impl BufRead) -> Result<Option<String>> {
    // A JSON string can need six bytes for one byte of the text.
    const MOST: u64 = 6 * limits::PROMPT_BYTES as u64;
    let mut bytes = Vec::new();
    input.take(MOST + 1).read_until(b'\n', &mut bytes)?;
    if bytes.is_empty() {
        return Ok(None);
    }
    if bytes.last() == Some(&b'\n') {
        bytes.pop();
    }
    if bytes.len() as u64 > MOST {
        return Err(Failure::new(format!("expected at most {MOST} bytes")));
    }
    let line = String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        Failure::new(format!("expected UTF-8: bad byte at offset {at}"))
    })?;
    Ok(Some(line))
}

/// One line of `--chat`: these fields, and any other argument of the template.
#[derive(Debug, serde::Deserialize)]
struct ChatLine {
    messages: Vec<Message>,
    #[serde(default)]
    tools: Option<Value>,
    #[serde(default)]
    add_generation_prompt: bool,
    #[serde(default)]
    continue_final_message: bool,
    #[serde(default)]
    documents: Option<Value>,
    /// Arguments of the template as servers take them; those beside it win.
    #[serde(default)]
    chat_template_kwargs: Map<String, Value>,
    #[serde(flatten)]
    extra: Map<String, Value>,
}

impl Texts {
    /// Answers one line.
    fn line(&self, line: &str, args: &TokenizeArgs) -> Result<Value> {
        if args.decode {
            let tokens: Vec<TokenId> = parse(line, "an array of token ids")?;
            let n_tokens = self.tokenizer.vocab_size();
            if let Some(token) = tokens.iter().find(|token| token.0 as usize >= n_tokens) {
                return Err(Failure::new(format!(
                    "{token} is no token: expected ids below {n_tokens}"
                )));
            }
            return Ok(Value::String(self.tokenizer.decode(&tokens, false)));
        }
        if args.chat {
            return self.render(parse(line, "an object with `messages`")?);
        }
        let text: String = parse(line, "a JSON string")?;
        Ok(json!(self.tokenizer.encode(&text, !args.no_special)?))
    }

    fn render(&self, line: ChatLine) -> Result<Value> {
        let template = self
            .template
            .as_ref()
            .ok_or_else(|| ChatTemplate::why_none(&self.tokenizer).replacen("it", "this model", 1))
            .map_err(Failure::new)?;
        if line.add_generation_prompt && line.continue_final_message {
            return Err(Failure::new(
                "`continue_final_message` and `add_generation_prompt` contradict each other",
            ));
        }
        let mut extra = line.chat_template_kwargs;
        extra.extend(line.extra);
        let options = RenderOptions {
            add_generation_prompt: line.add_generation_prompt,
            continue_final_message: line.continue_final_message,
            documents: line.documents,
            tools: line.tools,
            extra,
            ..RenderOptions::default()
        };
        let text = template.render(&line.messages, &options)?;
        // The template writes the special tokens itself.
        let encode = EncodeOptions { add_special: false, parse_special: true };
        let ids = self.tokenizer.encode_with(&text, encode)?;
        Ok(json!({ "text": text, "ids": ids }))
    }
}

fn parse<T: serde::de::DeserializeOwned>(line: &str, expected: &str) -> Result<T> {
    serde_json::from_str(line)
        .map_err(|error| Failure::new(format!("expected {expected}: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chat_line_keeps_the_arguments_it_does_not_know() {
        let line = r#"{"messages": [{"role": "user", "content": "x"}], "enable_thinking": false}"#;
        let line: ChatLine = parse(line, "an object").expect("parses");
        assert_eq!(line.messages, [Message::new("user", "x")]);
        assert_eq!(line.extra.get("enable_thinking"), Some(&Value::Bool(false)));
        assert!(!line.add_generation_prompt && line.tools.is_none());
    }

    #[test]
    fn a_line_of_another_kind_says_what_was_expected() {
        let line = parse::<String>("[1]", "a JSON string").expect_err("an array").line();
        assert!(line.expect("a line").contains("expected a JSON string"));
    }
}
