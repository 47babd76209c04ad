//! Texts of one's own to ask a server about, from a file.
//!
//! | the file has | a text is |
//! |---|---|
//! | lines | a line |
//! | lines that are objects | `prompt`, `messages` or `conversations`, and perhaps `max_tokens` |
//! | one list of objects (ShareGPT) | the same of each object |
//!
//! `conversations` are those of ShareGPT (`from`, `value`), of which the first message of a person
//! is asked. A conversation without one is left out.

use std::fmt;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;

use pelton_base::limits;
use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, SeqAccess, Visitor};
use serde_json::{Value, json};

use super::Endpoint;
use crate::{BenchError, Result};

/// Most texts of a file that are kept.
const MOST_TEXTS: usize = 1 << 20;
/// Most bytes of all texts together.
const MOST_BYTES: usize = 1 << 30;
/// Most tokens of an answer that a file may ask for.
const MOST_TOKENS: usize = 1 << 24;

/// The expected form of an object.
const EXPECTED: &str = "expected an object with `prompt` (a text), `messages` (a list of objects with \
                        `role` and `content`) or `conversations` (a list of objects with `from` and \
                        `value`), and perhaps `max_tokens` (a number from 1)";

/// The content of a request.
#[derive(Clone, Debug, PartialEq)]
enum About {
    /// A text.
    Prompt(String),
    /// A conversation, as chat completions take it.
    Messages(Value),
}

/// One text.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Text {
    about: About,
    /// Words, in place of the tokens that only the server can count.
    pub(super) n_words: usize,
    /// Most tokens of the answer, where the file says so.
    pub(super) max_tokens: Option<usize>,
}

/// The texts of a file; at least one.
#[derive(Clone, Debug)]
pub struct Texts {
    all: Vec<Text>,
}

impl Texts {
    /// Reads a file.
    ///
    /// # Errors
    ///
    /// A file that cannot be read or holds no text, and the first line that is wrong: conversations
    /// of several roles need [`Endpoint::Chat`].
    pub fn open(path: &Path, endpoint: Endpoint) -> Result<Self> {
        let named = |why: String| BenchError::invalid(format!("{}{why}", path.display()));
        let (file, _) = pelton_tensor::open_regular(path).map_err(|e| named(format!(": {e}")))?;
        let read = Self::read(BufReader::with_capacity(1 << 20, file), endpoint);
        read.map_err(|(line, why)| match line {
            0 => named(format!(": {why}")),
            line => named(format!(", line {line}: {why}")),
        })
    }

    fn read(mut reader: impl BufRead, endpoint: Endpoint) -> std::result::Result<Self, Fault> {
        let mut gathered = Gathered { all: Vec::new(), n_bytes: 0, endpoint };
        match first_byte(&mut reader).map_err(|error| (0, error.to_string()))? {
            Some(b'[') => gathered.read_list(reader)?,
            _ => gathered.read_lines(reader)?,
        }
        match gathered.all.is_empty() {
            true => Err((0, "holds no text to ask about".to_owned())),
            false => Ok(Self { all: gathered.all }),
        }
    }

    /// Number of texts.
    pub fn n_texts(&self) -> u64 {
        self.all.len() as u64
    }

    /// The text of a request; the first follows the last.
    pub(super) fn get(&self, number: u64) -> &Text {
        &self.all[(number % self.n_texts()) as usize]
    }
}

impl Text {
    /// Puts the text into the body of a request.
    pub(super) fn put(&self, endpoint: Endpoint, body: &mut Value) {
        match (&self.about, endpoint) {
            (About::Prompt(text), Endpoint::Completions) => body["prompt"] = json!(text),
            (About::Prompt(text), Endpoint::Chat) => {
                body["messages"] = json!([{"role": "user", "content": text}]);
            }
            // Reading the file refused them for completions.
            (About::Messages(messages), _) => body["messages"] = messages.clone(),
        }
    }
}

/// The first byte that is no blank, and stays in the reader; blanks before it and the mark of files
/// that were edited on Windows are taken.
fn first_byte(reader: &mut impl BufRead) -> std::io::Result<Option<u8>> {
    loop {
        let bytes = reader.fill_buf()?;
        let n_mark = if bytes.starts_with("\u{feff}".as_bytes()) { 3 } else { 0 };
        let n_blank = bytes[n_mark..].iter().take_while(|byte| **byte == b' ').count();
        match bytes.get(n_mark + n_blank) {
            Some(&byte) => {
                reader.consume(n_mark + n_blank);
                return Ok(Some(byte));
            }
            None if bytes.is_empty() => return Ok(None),
            None => reader.consume(n_mark + n_blank),
        }
    }
}

/// The line of a fault, 0 for the whole file, and the fault.
type Fault = (u64, String);

/// Texts while they are read.
struct Gathered {
    all: Vec<Text>,
    n_bytes: usize,
    endpoint: Endpoint,
}

impl Gathered {
    /// Reads a text or an object per line.
    fn read_lines(&mut self, mut reader: impl BufRead) -> std::result::Result<(), Fault> {
        let mut bytes = Vec::new();
        for line in 1_u64.. {
            bytes.clear();
            let fail = |why: String| (line, why);
            let mut limited = (&mut reader).take(limits::PROMPT_BYTES as u64 + 1);
            if limited.read_until(b'\n', &mut bytes).map_err(|e| fail(e.to_string()))? == 0 {
                break;
            }
            if bytes.len() > limits::PROMPT_BYTES {
                return Err(fail(format!("expected at most {} bytes", limits::PROMPT_BYTES)));
            }
            let text =
                str::from_utf8(&bytes).map_err(|_| fail("expected UTF-8".to_owned()))?.trim();
            if text.is_empty() {
                continue;
            }
            let found = match text.starts_with('{') {
                true => serde_json::from_str(text)
                    .map_err(|error| format!("{EXPECTED}: {error}"))
                    .and_then(|value: Value| self.parsed(&value)),
                false => Ok(Some(Text::of_prompt(text.to_owned(), None))),
            };
            if self.keep(found.map_err(fail)?).map_err(fail)? {
                break;
            }
        }
        Ok(())
    }

    /// Reads one list of objects, an object at a time.
    fn read_list(&mut self, reader: impl Read) -> std::result::Result<(), Fault> {
        let mut json = serde_json::Deserializer::from_reader(reader);
        match json.deserialize_seq(&mut *self) {
            Ok(true) => json.end().map_err(at_line),
            Ok(false) => Ok(()),
            Err(error) => Err(at_line(error)),
        }
    }

    /// The text of an object; `None` for a conversation in which no person asks.
    fn parsed(&self, value: &Value) -> std::result::Result<Option<Text>, String> {
        let wrong = || EXPECTED.to_owned();
        let max_tokens = match &value["max_tokens"] {
            Value::Null => None,
            number => {
                let n = number.as_u64().and_then(|n| usize::try_from(n).ok());
                let n = n.filter(|n| (1..=MOST_TOKENS).contains(n));
                let expected =
                    || format!("`max_tokens`: expected from 1 to {MOST_TOKENS}, got {number}");
                Some(n.ok_or_else(expected)?)
            }
        };
        match (&value["prompt"], &value["messages"], &value["conversations"]) {
            (Value::String(text), Value::Null, Value::Null) if !text.trim().is_empty() => {
                Ok(Some(Text::of_prompt(text.clone(), max_tokens)))
            }
            (Value::Null, messages @ Value::Array(list), Value::Null) if !list.is_empty() => {
                let texts = list.iter().map(|message| {
                    message["role"].as_str()?;
                    message["content"].as_str()
                });
                let texts: Option<Vec<&str>> = texts.collect();
                let n_words = texts.ok_or_else(wrong)?.into_iter().map(words).sum();
                if self.endpoint != Endpoint::Chat {
                    return Err("`messages` are for chat completions: add `--chat`".to_owned());
                }
                Ok(Some(Text { about: About::Messages(messages.clone()), n_words, max_tokens }))
            }
            (Value::Null, Value::Null, Value::Array(list)) => {
                let is_person = |message: &&Value| {
                    message["from"].as_str().is_some_and(|from| ["human", "user"].contains(&from))
                };
                let Some(first) = list.iter().find(is_person) else { return Ok(None) };
                let text = first["value"].as_str().ok_or_else(wrong)?;
                let text = Some(text).filter(|text| !text.trim().is_empty());
                Ok(text.map(|text| Text::of_prompt(text.to_owned(), max_tokens)))
            }
            _ => Err(wrong()),
        }
    }

    /// Keeps a text; returns whether there are as many as are ever kept.
    fn keep(&mut self, text: Option<Text>) -> std::result::Result<bool, String> {
        if let Some(text) = text {
            self.n_bytes += text.n_bytes();
            if self.n_bytes > MOST_BYTES {
                return Err(format!("the texts until here take more than {MOST_BYTES} bytes"));
            }
            self.all.push(text);
        }
        Ok(self.all.len() >= MOST_TEXTS)
    }
}

impl Text {
    pub(super) fn of_prompt(text: String, max_tokens: Option<usize>) -> Self {
        Self { n_words: words(&text), about: About::Prompt(text), max_tokens }
    }

    fn n_bytes(&self) -> usize {
        match &self.about {
            About::Prompt(text) => text.len(),
            About::Messages(messages) => messages.to_string().len(),
        }
    }
}

/// Words of a text, at least one.
fn words(text: &str) -> usize {
    text.split_ascii_whitespace().count().max(1)
}

/// The line of a fault of JSON.
fn at_line(error: serde_json::Error) -> Fault {
    let line = error.line() as u64;
    let why = error.to_string();
    let place = format!(" at line {line} column {}", error.column());
    (line, why.strip_suffix(&place).unwrap_or(&why).to_owned())
}

/// Reads the objects of a list; answers whether it came to the end.
impl<'de> Visitor<'de> for &mut Gathered {
    type Value = bool;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of objects")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> std::result::Result<bool, A::Error> {
        while let Some(value) = list.next_element_seed(Object)? {
            let text = self.parsed(&value).map_err(serde::de::Error::custom)?;
            if self.keep(text).map_err(serde::de::Error::custom)? {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// One object of a list, of which only the fields that are used are kept.
struct Object;

impl<'de> DeserializeSeed<'de> for Object {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, json: D) -> std::result::Result<Value, D::Error> {
        #[derive(Deserialize)]
        struct Fields {
            #[serde(default)]
            prompt: Value,
            #[serde(default)]
            messages: Value,
            #[serde(default)]
            conversations: Value,
            #[serde(default)]
            max_tokens: Value,
        }
        let Fields { prompt, messages, conversations, max_tokens } = Fields::deserialize(json)?;
        Ok(json!({
            "prompt": prompt, "messages": messages, "conversations": conversations,
            "max_tokens": max_tokens,
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: impl AsRef<[u8]>, endpoint: Endpoint) -> std::result::Result<Vec<Text>, String> {
        let texts = Texts::read(text.as_ref(), endpoint);
        Ok(texts.map_err(|(line, why)| format!("line {line}: {why}"))?.all)
    }

    fn prompts(texts: Vec<Text>) -> Vec<String> {
        let prompt = |text: Text| match text.about {
            About::Prompt(text) => text,
            About::Messages(messages) => messages.to_string(),
        };
        texts.into_iter().map(prompt).collect()
    }

    #[test]
    fn lines_objects_and_lists_are_read_alike() {
        let plain = read("\u{feff}  one two\r\n\n three \n", Endpoint::Completions).expect("lines");
        assert_eq!(plain.iter().map(|text| text.n_words).collect::<Vec<_>>(), [2, 1]);
        assert_eq!(prompts(plain), ["one two", "three"]);
        let objects = "{\"prompt\": \"a\\nb\", \"max_tokens\": 7, \"id\": 1}\nplain\n";
        let objects = read(objects, Endpoint::Completions).expect("objects");
        assert_eq!((objects[0].max_tokens, objects[1].max_tokens), (Some(7), None));
        assert_eq!(prompts(objects), ["a\nb", "plain"]);
        let messages =
            r#"[{"role":"system","content":"be brief"},{"role":"user","content":"why"}]"#;
        let line = format!("{{\"messages\": {messages}}}");
        let chat = read(&line, Endpoint::Chat).expect("messages");
        assert_eq!((chat[0].n_words, prompts(chat)[0].as_str()), (3, messages));
        let share_gpt = r#" [
            {"id": "x", "conversations": [
                {"from": "gpt", "value": "hello"}, {"from": "human", "value": "ask me"},
                {"from": "gpt", "value": "no"}]},
            {"conversations": []},
            {"conversations": [{"from": "gpt", "value": "alone"}]},
            {"prompt": "p"} ]"#;
        let listed = read(share_gpt, Endpoint::Completions).expect("a list");
        assert_eq!(prompts(listed), ["ask me", "p"]);
    }

    #[test]
    fn a_wrong_line_is_named_by_its_number() {
        let long = "x".repeat(limits::PROMPT_BYTES + 1);
        for (text, parts) in [
            ("", &["holds no text"][..]),
            ("\n \n", &["holds no text"]),
            ("[]", &["holds no text"]),
            ("fine\n{\"prompt\": 3}", &["line 2: expected an object with `prompt`"]),
            ("{\"prompt\": \"x\"", &["line 1: ", "EOF"]),
            ("{}\n", &["line 1: ", "`messages`"]),
            ("{\"prompt\": \"x\", \"messages\": []}", &["line 1: "]),
            ("{\"prompt\": \" \"}", &["line 1: "]),
            ("a\nb\n{\"prompt\": \"x\", \"max_tokens\": 0}", &["line 3: `max_tokens`", "got 0"]),
            ("{\"messages\": [{\"role\": \"user\", \"content\": [1]}]}", &["line 1: "]),
            ("{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}]}", &["line 1: ", "--chat"]),
            ("[\n{\"prompt\": \"x\"},\n{\"prompt\": 3}]", &["line 3: ", "`prompt`"]),
            ("[{\"prompt\": \"x\"}\n", &["line 2: ", "EOF"]),
            ("[{\"prompt\": \"x\"}]\nmore", &["line 2: ", "trailing"]),
            ("[1]", &["line 1: "]),
            (&long, &["line 1: ", "16777216"]),
        ] {
            let error = read(text, Endpoint::Completions).expect_err("wrong");
            let shown = &text[..text.len().min(60)];
            assert!(parts.iter().all(|part| error.contains(part)), "{shown:?}: {error}");
        }
        let error = read(b"fine\n\xff\n", Endpoint::Completions).expect_err("wrong");
        assert!(error.contains("line 2: expected UTF-8"), "{error}");
        let deep = "[".repeat(100_000);
        assert!(read(&deep, Endpoint::Completions).expect_err("deep").contains("line 1"));
    }

    #[test]
    fn requests_go_through_the_texts_again_and_again() {
        let all = ["a", "b", "c"].map(|text| Text::of_prompt(text.to_owned(), None)).to_vec();
        let texts = Texts { all };
        let asked = (1..6).map(|number| {
            let mut body = json!({});
            texts.get(number).put(Endpoint::Completions, &mut body);
            body["prompt"].clone()
        });
        assert_eq!(asked.collect::<Vec<_>>(), ["b", "c", "a", "b", "c"]);
        let mut body = json!({});
        texts.get(0).put(Endpoint::Chat, &mut body);
        assert_eq!(body, json!({"messages": [{"role": "user", "content": "a"}]}));
    }
}
