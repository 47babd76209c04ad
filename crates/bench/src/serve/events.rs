//! The events of a streamed answer.

use serde::Deserialize;
use serde_json::Value;

use super::report::Trouble;

/// Longest line of an event that is read, in bytes.
const MOST_LINE_BYTES: usize = 1 << 20;

/// Takes server-sent events apart as their bytes arrive.
#[derive(Debug, Default)]
pub(super) struct Events {
    /// The begin of a line.
    rest: Vec<u8>,
}

impl Events {
    /// Takes bytes, and gives the data of each line that they complete.
    ///
    /// # Errors
    ///
    /// A line that is too long, or the error of `each`.
    pub(super) fn push(
        &mut self,
        bytes: &[u8],
        mut each: impl FnMut(&[u8]) -> Result<(), Trouble>,
    ) -> Result<(), Trouble> {
        let mut lines = bytes.split(|&byte| byte == b'\n').peekable();
        while let Some(line) = lines.next() {
            if self.rest.len() + line.len() > MOST_LINE_BYTES {
                let why = format!("a line of more than {MOST_LINE_BYTES} bytes");
                return Err(Trouble::new("no event stream", why));
            }
            let is_complete = lines.peek().is_some();
            if is_complete && self.rest.is_empty() {
                data(line).map_or(Ok(()), &mut each)?;
                continue;
            }
            self.rest.extend_from_slice(line);
            if is_complete {
                let whole = std::mem::take(&mut self.rest);
                data(&whole).map_or(Ok(()), &mut each)?;
            }
        }
        Ok(())
    }
}

/// The data of a line; `None` for comments, names of events and the empty line between events.
fn data(line: &[u8]) -> Option<&[u8]> {
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    let data = line.strip_prefix(b"data:")?;
    Some(data.strip_prefix(b" ").unwrap_or(data))
}

/// One event of a stream, read.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Said {
    /// Whether it brings text.
    pub(super) has_text: bool,
    /// Why the answer ended, if it did.
    pub(super) finish: Option<String>,
    /// Tokens so far.
    pub(super) usage: Option<Usage>,
}

/// Tokens, as the server counts them.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq)]
pub(super) struct Usage {
    #[serde(default)]
    pub(super) prompt_tokens: u32,
    #[serde(default)]
    pub(super) completion_tokens: u32,
    #[serde(default)]
    prompt_tokens_details: Option<PromptDetails>,
}

#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq)]
struct PromptDetails {
    #[serde(default)]
    cached_tokens: Option<u32>,
}

impl Usage {
    /// Tokens of the prompt that were found in a cache.
    pub(super) fn cached_tokens(&self) -> u32 {
        self.prompt_tokens_details.and_then(|details| details.cached_tokens).unwrap_or(0)
    }
}

#[derive(Deserialize)]
struct Chunk {
    #[serde(default)]
    choices: Vec<Choice>,
    #[serde(default)]
    usage: Option<Usage>,
    #[serde(default)]
    error: Option<Value>,
}

#[derive(Deserialize)]
struct Choice {
    #[serde(default)]
    text: Option<String>,
    #[serde(default)]
    delta: Option<Delta>,
    #[serde(default)]
    finish_reason: Option<String>,
}

#[derive(Deserialize)]
struct Delta {
    #[serde(default)]
    content: Option<String>,
    #[serde(default)]
    reasoning: Option<String>,
    #[serde(default)]
    reasoning_content: Option<String>,
}

/// Reads the data of an event of completions or of chat completions.
///
/// # Errors
///
/// Data that is no JSON of these endpoints, and an error that the server sends.
pub(super) fn read(data: &[u8]) -> Result<Said, Trouble> {
    let chunk: Chunk = serde_json::from_slice(data).map_err(|error| {
        let shown: String = String::from_utf8_lossy(data).chars().take(80).collect();
        Trouble::new("not the JSON of an answer", format!("{error}: {shown}"))
    })?;
    if let Some(error) = chunk.error.filter(|error| !error.is_null()) {
        return Err(Trouble::new("error in the stream", message(&error)));
    }
    let mut said = Said { usage: chunk.usage, ..Said::default() };
    for choice in chunk.choices {
        let delta = choice.delta.map(|d| [d.content, d.reasoning, d.reasoning_content]);
        let mut texts = [choice.text].into_iter().chain(delta.into_iter().flatten()).flatten();
        said.has_text |= texts.any(|text| !text.is_empty());
        said.finish = said.finish.or(choice.finish_reason);
    }
    Ok(said)
}

/// The message of an error, in OpenAI's form or another.
pub(super) fn message(error: &Value) -> String {
    let message = error.get("message").and_then(Value::as_str);
    let text = message.or(error.as_str()).map_or_else(|| error.to_string(), str::to_owned);
    text.chars().filter(|c| !c.is_control()).take(200).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(pieces: &[&[u8]]) -> Vec<String> {
        let (mut events, mut found) = (Events::default(), Vec::new());
        for piece in pieces {
            let each = |data: &[u8]| {
                found.push(String::from_utf8(data.to_vec()).expect("UTF-8"));
                Ok(())
            };
            events.push(piece, each).expect("short lines");
        }
        found
    }

    #[test]
    fn events_are_the_same_however_their_bytes_are_cut() {
        let stream = b": hello\n\ndata: {\"a\":1}\r\n\r\nevent: x\ndata:two\n\ndata: [DONE]\n\n";
        let expected = ["{\"a\":1}", "two", "[DONE]"];
        assert_eq!(lines(&[stream]), expected);
        for cut in 0..stream.len() {
            assert_eq!(lines(&[&stream[..cut], &stream[cut..]]), expected, "cut at {cut}");
        }
        let bytes: Vec<&[u8]> = stream.chunks(1).collect();
        assert_eq!(lines(&bytes), expected);
    }

    #[test]
    fn a_line_without_end_is_refused() {
        let mut events = Events::default();
        let piece = vec![b'x'; 1 << 19];
        let mut push = || events.push(&piece, |_| Ok(()));
        assert!(push().is_ok() && push().is_ok());
        assert_eq!(push().expect_err("too long").kind, "no event stream");
    }

    #[test]
    fn text_thoughts_endings_and_counts_are_read_in_both_dialects() {
        let completion = read(br#"{"choices":[{"text":"a","finish_reason":null}],"usage":null}"#);
        assert_eq!(completion.ok(), Some(Said { has_text: true, ..Said::default() }));
        let chat = read(br#"{"choices":[{"delta":{"role":"assistant","content":""}}]}"#);
        assert_eq!(chat.ok(), Some(Said::default()));
        let thought = read(br#"{"choices":[{"delta":{"reasoning_content":"hm"}}]}"#);
        assert!(thought.is_ok_and(|said| said.has_text));
        let end = br#"{"choices":[{"text":"","finish_reason":"length"}],
            "usage":{"prompt_tokens":7,"completion_tokens":3,"prompt_tokens_details":{"cached_tokens":5}}}"#;
        let end = read(end).expect("an event");
        assert_eq!((end.has_text, end.finish.as_deref()), (false, Some("length")));
        let usage = end.usage.expect("usage");
        let found = (usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens());
        assert_eq!(found, (7, 3, 5));
    }

    #[test]
    fn errors_and_nonsense_are_told_apart() {
        let error = read(br#"{"error":{"message":"out of memory","code":500}}"#).expect_err("one");
        assert_eq!(
            (error.kind.as_str(), error.example.as_str()),
            ("error in the stream", "out of memory")
        );
        for nonsense in ["", "[1]", "{\"choices\":7}", "<html>"] {
            let error = read(nonsense.as_bytes()).expect_err(nonsense);
            assert_eq!(error.kind, "not the JSON of an answer");
        }
    }
}
