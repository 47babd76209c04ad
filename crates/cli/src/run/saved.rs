//! Conversations in files: `/save` and `/load`.
//!
//! ```json
//! {
//!   "pelton_chat": 1,
//!   "model": "story",
//!   "settings": {"temperature": "0.2"},
//!   "messages": [{"role": "system", "content": "..."}, {"role": "user", "content": "..."}, ...]
//! }
//! ```
//!
//! Only `messages` is needed to load a file, so a request of a chat completion can be loaded too.
//! A file is hostile until it is read: its size is limited, and a message of another kind is
//! refused with its number.

use std::io::Write;
use std::path::{Path, PathBuf};

use pelton_base::limits;
use pelton_tensor::PendingFile;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::turns::{Turn, Turns};
use crate::failure::{Failure, Result};

/// The conversation of a file.
#[derive(Debug)]
pub(crate) struct Saved {
    /// Name of the model that answered, if the file says so.
    pub(crate) model: Option<String>,
    /// Changes by `/set`.
    pub(crate) settings: Map<String, Value>,
    /// Instructions, questions and answers.
    pub(crate) turns: Turns,
}

/// Fields of a file; others are passed over.
#[derive(Deserialize)]
#[serde(expecting = "a saved conversation, an object")]
struct Fields {
    #[serde(default)]
    model: Option<String>,
    #[serde(default)]
    settings: Map<String, Value>,
    messages: Vec<Said>,
}

#[derive(Deserialize, Serialize)]
struct Said {
    role: String,
    content: String,
}

/// A path as it is typed: `~/` begins in the home folder, as in a shell.
pub(crate) fn path(words: &str) -> PathBuf {
    match (words.strip_prefix("~/"), std::env::var_os("HOME")) {
        (Some(rest), Some(home)) => PathBuf::from(home).join(rest),
        _ => PathBuf::from(words),
    }
}

/// Writes a conversation; an interrupted write leaves an older file as it is.
///
/// # Errors
///
/// When the file cannot be written, or exists and is no saved conversation.
pub(crate) fn save(
    path: &Path,
    model: &str,
    settings: &Map<String, Value>,
    turns: &Turns,
) -> Result<()> {
    if path.exists() && load(path).is_err() {
        return Err(fail(path, "exists and is no saved conversation: expected another name"));
    }
    let mut messages = Vec::new();
    let mut say = |role: &str, content: &str| {
        messages.push(Said { role: role.to_owned(), content: content.to_owned() });
    };
    if let Some(system) = turns.system() {
        say("system", system);
    }
    for Turn { question, answer } in turns.all() {
        say("user", question);
        say("assistant", answer);
    }
    let object = json!({
        "pelton_chat": 1, "model": model, "settings": settings, "messages": messages,
    });
    let text = serde_json::to_string_pretty(&object).expect("invariant: texts in an object");
    let write = || -> std::io::Result<()> {
        let mut file = PendingFile::create(path)?;
        file.write_all(text.as_bytes())?;
        file.write_all(b"\n")?;
        file.publish()
    };
    write().map_err(|error| Failure::write(path, &error))
}

/// Reads a conversation.
///
/// # Errors
///
/// Names the file, and the message that is wrong.
pub(crate) fn load(path: &Path) -> Result<Saved> {
    let bytes = pelton_tensor::read_limited(path, limits::PROMPT_BYTES as u64)
        .map_err(|error| fail(path, error))?;
    parse(&bytes).map_err(|why| fail(path, why))
}

fn fail(path: &Path, why: impl std::fmt::Display) -> Failure {
    Failure::new(format!("{}: {why}", path.display()))
}

fn parse(bytes: &[u8]) -> std::result::Result<Saved, String> {
    let fields: Fields = serde_json::from_slice(bytes)
        .map_err(|error| format!("expected a saved conversation: {error}"))?;
    let mut system = None;
    let mut turns: Vec<Turn> = Vec::new();
    let mut question = None;
    for (idx, Said { role, content }) in fields.messages.into_iter().enumerate() {
        match (role.as_str(), question.take()) {
            ("system", None) if idx == 0 => system = Some(content),
            ("user", None) => question = Some(content),
            ("assistant", Some(question)) => turns.push(Turn { question, answer: content }),
            (_, asked) => {
                let expected = if asked.is_some() { "assistant" } else { "user" };
                let role = super::command::first_line(&role);
                return Err(format!(
                    "message {}: expected the role `{expected}`, got `{role}`",
                    idx + 1
                ));
            }
        }
    }
    if question.is_some() {
        return Err("the last question has no answer".to_owned());
    }
    let turns = Turns::of(system, turns);
    Ok(Saved { model: fields.model, settings: fields.settings, turns })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn turns() -> Turns {
        let turn = |n: usize| Turn { question: format!("q{n}\n\"x\""), answer: format!("ä{n}") };
        Turns::of(Some("be brief".to_owned()), vec![turn(0), turn(1)])
    }

    #[test]
    fn a_saved_conversation_is_loaded_as_it_was() {
        let folder = tempfile::tempdir().expect("temp");
        let path = folder.path().join("chat.json");
        let settings: Map<String, Value> =
            serde_json::from_str(r#"{"temperature": "0.2"}"#).expect("an object");
        for _ in 0..2 {
            save(&path, "story", &settings, &turns()).expect("saved, and saved again");
        }
        let saved = load(&path).expect("loaded");
        assert_eq!((saved.turns, saved.model.as_deref()), (turns(), Some("story")));
        assert_eq!(saved.settings, settings);
        assert_eq!(std::fs::read_dir(folder.path()).expect("a folder").count(), 1);
    }

    #[test]
    fn another_file_is_not_overwritten() {
        let folder = tempfile::tempdir().expect("temp");
        let path = folder.path().join("thesis.txt");
        std::fs::write(&path, "years of work").expect("written");
        let failure = save(&path, "story", &Map::new(), &turns()).expect_err("another file");
        assert!(failure.line().expect("a line").contains("thesis.txt"));
        assert_eq!(std::fs::read(&path).expect("there"), b"years of work");
        let lost = folder.path().join("missing/chat.json");
        assert!(save(&lost, "story", &Map::new(), &turns()).is_err());
    }

    #[test]
    fn a_hostile_file_is_refused_by_message() {
        let deep = "[".repeat(100_000);
        let cases: [(&str, &str); 12] = [
            ("", "expected a saved conversation"),
            ("{", "line 1"),
            ("[]", "expected"),
            ("{}", "messages"),
            (&deep, "expected"),
            (r#"{"messages": 5}"#, "expected a sequence"),
            (r#"{"messages": [{"role": "user", "content": [1]}]}"#, "string"),
            (r#"{"messages": [{"role": "user", "content": "x"}]}"#, "no answer"),
            (r#"{"messages": [{"role": "assistant", "content": "x"}]}"#, "message 1"),
            (r#"{"messages": [{"role": "tool\u001b[2J", "content": "x"}]}"#, "`tool[2J`"),
            (
                r#"{"messages": [{"role": "user", "content": "x"}, {"role": "system", "content": ""}]}"#,
                "message 2: expected the role `assistant`",
            ),
            (r#"{"messages": [], "settings": [1]}"#, "expected"),
        ];
        for (text, part) in cases {
            let why = parse(text.as_bytes()).expect_err(part);
            assert!(why.contains(part), "{why}");
        }
        assert!(parse(b"{\"messages\": [{\"role\": \"user\", \"content\": \"\xff\"}]}").is_err());
        let empty = parse(br#"{"messages": [], "temperature": 1}"#).expect("a request");
        assert_eq!(empty.turns, Turns::default());
    }

    #[test]
    fn only_regular_files_are_read() {
        let folder = tempfile::tempdir().expect("temp");
        for path in [Path::new("/dev/zero"), folder.path(), &folder.path().join("missing")] {
            assert!(load(path).is_err(), "{}", path.display());
        }
    }
}
