//! Texts to go on from: built-in ones by their kind, or those of a file.
//!
//! The built-in ones are what guessing lives on and what it does not: a list that repeats itself, code
//! that is to be written again with a change, questions whose answer stands in the text, and a story
//! that nobody has told before.

use std::path::Path;

use pelton_base::{TokenId, limits};
use pelton_llm::Llm;
use pelton_text::{EncodeOptions, Message, RenderOptions};
use serde_json::Value;

use crate::failure::{Failure, Result};

const REPETITIVE: [&str; 2] = [
    "One green bottle stood on the wall, and one green bottle fell. Two green bottles stood on the \
     wall, and two green bottles fell. Three green bottles stood on the wall, and three green \
     bottles fell. Four green bottles",
    "Name: Tom. Likes: the red ball. Name: Lily. Likes: the blue ball. Name: Ben. Likes: the green \
     ball. Name: Anna. Likes: the",
];
const EDITING: [&str; 2] = [
    "Write this again with every `count` renamed to `total`:\n\ndef add_all(values):\n    count = 0\n    \
     for value in values:\n        count = count + value\n    print(count)\n    return count\n\n",
    "Write this again and give the function a second argument:\n\nfn area(width: u32) -> u32 {\n    \
     let height = width;\n    let area = width * height;\n    println!(\"{width} {height} {area}\");\n    \
     area\n}\n\n",
];
const RETRIEVAL: [&str; 2] = [
    "The little owl lived in the old oak tree behind the mill. Every night it flew to the river, and \
     in the morning it came home with a silver spoon. The miller never knew who took his spoons. \
     Tell where the owl lived and what it brought home, in the words of the text:",
    "Rule one: shut the gate behind you. Rule two: feed the hens before the cows. Rule three: never \
     wake the dog. Say all three rules again:",
];
const FREE: [&str; 2] = [
    "Once upon a time there was a girl who found a small door in the garden wall.",
    "The rain had stopped, and the boy looked at the sky and said",
];

/// Texts of one kind.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Texts<T> {
    /// What they have in common.
    pub(super) kind: String,
    /// At least one.
    pub(super) all: Vec<T>,
}

/// What is asked.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Ask {
    /// A text that is a message where the model can chat, and is continued otherwise.
    Text(String),
    /// A text that is continued.
    Raw(String),
    /// A conversation.
    Messages(Vec<Message>),
}

/// Reads the texts of a file; without one those that are built in.
///
/// # Errors
///
/// Names the file and the line.
pub(super) fn gather(file: Option<&Path>) -> Result<Vec<Texts<Ask>>> {
    let Some(path) = file else {
        let kinds = [
            ("repetitive", REPETITIVE),
            ("editing", EDITING),
            ("retrieval", RETRIEVAL),
            ("free", FREE),
        ];
        let texts = |(kind, all): (&str, [&str; 2])| Texts {
            kind: kind.to_owned(),
            all: all.map(|text| Ask::Text(text.to_owned())).to_vec(),
        };
        return Ok(kinds.map(texts).to_vec());
    };
    let fail = |why: String| Failure::new(format!("{}: {why}", path.display()));
    let size = std::fs::metadata(path).map_err(|error| fail(error.to_string()))?.len();
    if size > limits::PROMPT_BYTES as u64 {
        return Err(fail(format!("{size} bytes; expected at most {}", limits::PROMPT_BYTES)));
    }
    let text = std::fs::read_to_string(path).map_err(|error| fail(error.to_string()))?;
    let lines = (1..).zip(text.lines()).filter(|(_, line)| !line.trim().is_empty());
    let all: Vec<Ask> = lines
        .map(|(number, line)| {
            ask(line).map_err(|why| Failure::new(format!("{}:{number}: {why}", path.display())))
        })
        .collect::<Result<_>>()?;
    if all.is_empty() {
        return Err(fail("expected a text per line, got none".to_owned()));
    }
    Ok(vec![Texts { kind: "given".to_owned(), all }])
}

/// Reads one line: a text, or an object.
fn ask(line: &str) -> std::result::Result<Ask, String> {
    if !line.trim_start().starts_with('{') {
        return Ok(Ask::Text(line.to_owned()));
    }
    const EXPECTED: &str = "expected an object with `prompt` (a text) or `messages` (a list of \
                            objects with `role` and `content`)";
    let object: Value =
        serde_json::from_str(line).map_err(|error| format!("{EXPECTED}: {error}"))?;
    match (&object["prompt"], &object["messages"]) {
        (Value::String(text), Value::Null) if !text.is_empty() => Ok(Ask::Raw(text.clone())),
        (Value::Null, Value::Array(messages)) if !messages.is_empty() => {
            let message = |message: &Value| {
                Some(Message::new(message["role"].as_str()?, message["content"].as_str()?))
            };
            let messages: Option<Vec<Message>> = messages.iter().map(message).collect();
            messages.map(Ask::Messages).ok_or_else(|| EXPECTED.to_owned())
        }
        _ => Err(EXPECTED.to_owned()),
    }
}

/// Turns texts into prompts for a model.
///
/// # Errors
///
/// A conversation for a model that cannot chat, a text that does not fit.
pub(super) fn encode(
    llm: &Llm,
    texts: &[Texts<Ask>],
    is_chat: bool,
) -> Result<Vec<Texts<Vec<TokenId>>>> {
    let of_kind = |texts: &Texts<Ask>| {
        let all = texts.all.iter().map(|ask| tokens(llm, ask, is_chat)).collect::<Result<_>>()?;
        Ok(Texts { kind: texts.kind.clone(), all })
    };
    texts.iter().map(of_kind).collect()
}

fn tokens(llm: &Llm, ask: &Ask, is_chat: bool) -> Result<Vec<TokenId>> {
    let own;
    let messages = match ask {
        Ask::Messages(messages) => messages,
        Ask::Text(text) if is_chat && llm.template().is_some() => {
            own = vec![Message::new("user", text.as_str())];
            &own
        }
        Ask::Text(text) | Ask::Raw(text) => {
            let options = EncodeOptions { add_special: true, parse_special: true };
            return fitting(llm, llm.tokenizer().encode_with(text, options)?);
        }
    };
    let Some(template) = llm.template() else {
        return Err(Failure::new("`--prompts`: there are `messages`, and the model cannot chat"));
    };
    let options = RenderOptions { add_generation_prompt: true, ..RenderOptions::default() };
    let text = template.render(messages, &options)?;
    let options = EncodeOptions { add_special: false, parse_special: true };
    fitting(llm, llm.tokenizer().encode_with(&text, options)?)
}

/// Refuses a prompt that leaves no room for two tokens.
fn fitting(llm: &Llm, tokens: Vec<TokenId>) -> Result<Vec<TokenId>> {
    let (n_tokens, most) = (tokens.len(), llm.info().context_tokens.saturating_sub(2));
    if (1..=most).contains(&n_tokens) {
        return Ok(tokens);
    }
    Err(Failure::new(format!("a prompt has {n_tokens} tokens: expected from 1 to {most}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_a_text_or_an_object() {
        assert_eq!(ask("Once {upon}"), Ok(Ask::Text("Once {upon}".to_owned())));
        assert_eq!(ask(r#"{"prompt": "a\nb"}"#), Ok(Ask::Raw("a\nb".to_owned())));
        let chat = ask(r#"{"messages": [{"role": "user", "content": "Hi"}]}"#);
        assert_eq!(chat, Ok(Ask::Messages(vec![Message::new("user", "Hi")])));
        for bad in [
            "{",
            "{}",
            r#"{"prompt": ""}"#,
            r#"{"prompt": 1}"#,
            r#"{"messages": []}"#,
            r#"{"messages": [{"role": "user"}]}"#,
            r#"{"prompt": "a", "messages": [{"role": "user", "content": "b"}]}"#,
        ] {
            let why = ask(bad).expect_err(bad);
            assert!(why.contains("`prompt`") && why.contains("`messages`"), "{why}");
        }
    }

    #[test]
    fn every_built_in_text_is_whole() {
        for texts in gather(None).expect("built in") {
            for ask in texts.all {
                let Ask::Text(text) = ask else { panic!("{ask:?}") };
                assert!(!text.contains("  ") || text.contains('\n'), "{text}");
            }
        }
    }
}
