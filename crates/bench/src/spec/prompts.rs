//! Texts to go on from: built-in ones by their kind, or those of a file.
//!
//! Built-in texts cover easy and hard cases of drafting: a list that repeats itself, code to be
//! written again with a change, questions whose answer stands in the text, a new story, and the
//! story under a [`rule`] that changes at every step and in a JSON schema. The first three have a given
//! answer, and the model is held to it. Whether drafts are right then depends on the task and not on the abilities
//! of the model.

use std::path::Path;

use pelton_base::{Constraint, Shape, TokenId, limits};
use pelton_llm::Llm;
use pelton_text::{EncodeOptions, Message, RenderOptions};
use serde_json::Value;

use super::rule;
use crate::{BenchError, Result};

/// Texts to go on from, each with the answer of a model that was trained for it.
const REPETITIVE: [(&str, &str); 2] = [
    (
        "One green bottle stood on the wall, and one green bottle fell. Two green bottles stood on \
         the wall, and two green bottles fell. Three green bottles stood on the wall, and three green \
         bottles fell.",
        " Four green bottles stood on the wall, and four green bottles fell. Five green bottles stood \
         on the wall, and five green bottles fell. Six green bottles stood on the wall, and six green \
         bottles fell. Seven green bottles stood on the wall, and seven green bottles fell. Eight \
         green bottles stood on the wall, and eight green bottles fell.",
    ),
    (
        "Name: Tom. Likes: the red ball. Name: Lily. Likes: the blue ball. Name: Ben. Likes: the \
         green ball.",
        " Name: Anna. Likes: the white ball. Name: Max. Likes: the black ball. Name: Mia. Likes: the \
         yellow ball. Name: Jack. Likes: the brown ball. Name: Rose. Likes: the little ball. Name: \
         Sam. Likes: the old ball. Name: Kate. Likes: the new ball.",
    ),
];
const EDITING: [(&str, &str); 2] = [
    (
        "Write this again with every `count` renamed to `total`:\n\ndef add_all(values, first):\n    \
         count = first\n    for value in values:\n        if value < 0:\n            continue\n        \
         count = count + value\n        print(value, count)\n    print(count)\n    return count\n\n",
        "def add_all(values, first):\n    total = first\n    for value in values:\n        if value < \
         0:\n            continue\n        total = total + value\n        print(value, total)\n    \
         print(total)\n    return total\n",
    ),
    (
        "Write this again and give the function a second argument:\n\nfn area(width: u32) -> u32 {\n    \
         let height = width;\n    let area = width * height;\n    println!(\"the width is {width}\");\n    \
         println!(\"the height is {height}\");\n    println!(\"the area is {area}\");\n    area\n}\n\n",
        "fn area(width: u32, height: u32) -> u32 {\n    let area = width * height;\n    \
         println!(\"the width is {width}\");\n    println!(\"the height is {height}\");\n    \
         println!(\"the area is {area}\");\n    area\n}\n",
    ),
];
const RETRIEVAL: [(&str, &str); 2] = [
    (
        "The little owl lived in the old oak tree behind the mill. Every night it flew to the river, \
         and in the morning it came home with a silver spoon. The miller never knew who took his \
         spoons. Tell where the owl lived and what it brought home, in the words of the text:",
        " The owl lived in the old oak tree behind the mill. In the morning it came home with a silver \
         spoon. The miller never knew who took his spoons.",
    ),
    (
        "Rule one: shut the gate behind you when you leave the farm. Rule two: feed the hens before \
         the cows, and the cows before the horses. Rule three: never wake the old dog in the yard. \
         What are the last two rules?",
        " The last two rules are: feed the hens before the cows, and the cows before the horses; and \
         never wake the old dog in the yard.",
    ),
];
/// Texts that the model goes on with by itself.
const FREE: [&str; 2] = [
    "Once upon a time there was a girl who found a small door in the garden wall.",
    "The rain had stopped, and the boy looked at the sky and said",
];

/// The form of the built-in texts that have one: the story is a string in it.
const SCHEMA: &str = r#"{"type":"object","required":["title","story"],"additionalProperties":false,
    "properties":{"title":{"type":"string","maxLength":40},"story":{"type":"string","minLength":1000}}}"#;

/// Texts of one kind.
#[derive(Clone, Debug, PartialEq)]
pub struct Texts<T> {
    /// Name of the kind.
    pub kind: String,
    /// At least one text.
    pub all: Vec<T>,
}

/// A text as the engine is asked.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Question {
    pub(super) prompt: Vec<TokenId>,
    /// Constraint of the answer.
    pub(super) rule: Option<Constraint>,
    /// Its tokens, where it is given.
    pub(super) n_given: Option<usize>,
}

/// A prompt, and the origin of its answer.
#[derive(Clone, Debug, PartialEq)]
pub struct Ask {
    about: About,
    answer: Answer,
}

/// The origin of an answer.
#[derive(Clone, Debug, PartialEq)]
enum Answer {
    /// The model.
    Own,
    /// The model under the rule that changes at every step.
    Ruled,
    /// The model, in JSON of this schema.
    Formed(String),
    /// This text; the model is held to it.
    Given(String),
}

/// A prompt in one of its forms.
#[derive(Clone, Debug, PartialEq)]
enum About {
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
pub fn gather(file: Option<&Path>) -> Result<Vec<Texts<Ask>>> {
    let Some(path) = file else {
        let given =
            |(text, answer): (&str, &str)| (text.to_owned(), Answer::Given(answer.to_owned()));
        let told = |answer: Answer| FREE.map(|text| (text.to_owned(), answer.clone()));
        let kinds = [
            ("repetitive", REPETITIVE.map(given)),
            ("editing", EDITING.map(given)),
            ("retrieval", RETRIEVAL.map(given)),
            ("free", told(Answer::Own)),
            ("ruled", told(Answer::Ruled)),
            ("schema", told(Answer::Formed(SCHEMA.to_owned()))),
        ];
        let ask = |(text, answer)| Ask { about: About::Text(text), answer };
        let texts = |(kind, all): (&str, [(String, Answer); 2])| Texts {
            kind: kind.to_owned(),
            all: all.map(ask).to_vec(),
        };
        return Ok(kinds.map(texts).to_vec());
    };
    let fail = |why: String| BenchError::invalid(format!("{}: {why}", path.display()));
    let text = pelton_tensor::read_limited_text(path, limits::PROMPT_BYTES as u64)
        .map_err(|error| fail(error.to_string()))?;
    let lines = (1..).zip(text.lines()).filter(|(_, line)| !line.trim().is_empty());
    let all: Vec<Ask> = lines
        .map(|(number, line)| {
            ask(line)
                .map_err(|why| BenchError::invalid(format!("{}:{number}: {why}", path.display())))
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
        return Ok(Ask { about: About::Text(line.to_owned()), answer: Answer::Own });
    }
    const EXPECTED: &str = "expected an object with `prompt` (a text) or `messages` (a list of \
                            objects with `role` and `content`), and perhaps `answer` (a text) or `schema` (a JSON schema)";
    let object: Value =
        serde_json::from_str(line).map_err(|error| format!("{EXPECTED}: {error}"))?;
    let answer = match (&object["answer"], &object["schema"]) {
        (Value::Null, Value::Null) => Answer::Own,
        (Value::String(text), Value::Null) if !text.is_empty() => Answer::Given(text.clone()),
        (Value::Null, schema @ Value::Object(_)) => Answer::Formed(schema.to_string()),
        _ => return Err(EXPECTED.to_owned()),
    };
    let about = match (&object["prompt"], &object["messages"]) {
        (Value::String(text), Value::Null) if !text.is_empty() => About::Raw(text.clone()),
        (Value::Null, Value::Array(messages)) if !messages.is_empty() => {
            let message = |message: &Value| {
                Some(Message::new(message["role"].as_str()?, message["content"].as_str()?))
            };
            let messages: Option<Vec<Message>> = messages.iter().map(message).collect();
            About::Messages(messages.ok_or_else(|| EXPECTED.to_owned())?)
        }
        _ => return Err(EXPECTED.to_owned()),
    };
    Ok(Ask { about, answer })
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
) -> Result<Vec<Texts<Question>>> {
    let of_kind = |texts: &Texts<Ask>| {
        let all = texts.all.iter().map(|ask| question(llm, ask, is_chat)).collect::<Result<_>>()?;
        Ok(Texts { kind: texts.kind.clone(), all })
    };
    texts.iter().map(of_kind).collect()
}

fn question(llm: &Llm, ask: &Ask, is_chat: bool) -> Result<Question> {
    let prompt = prompt(llm, &ask.about, is_chat)?;
    let (rule, n_given) = match &ask.answer {
        Answer::Own => (None, None),
        Answer::Ruled => (Some(rule::turns()), None),
        Answer::Formed(schema) => {
            let (schema, path) = (schema.clone(), "schema".to_owned());
            (Some(llm.rule_of(&Shape::Json { schema, path })?), None)
        }
        Answer::Given(text) => {
            let options = EncodeOptions { add_special: false, parse_special: false };
            let tokens = llm.tokenizer().encode_with(text, options)?;
            (Some(rule::script(&tokens)), Some(tokens.len()))
        }
    };
    Ok(Question { prompt, rule, n_given })
}

fn prompt(llm: &Llm, about: &About, is_chat: bool) -> Result<Vec<TokenId>> {
    let own;
    let messages = match about {
        About::Messages(messages) => messages,
        About::Text(text) if is_chat && llm.template().is_some() => {
            own = vec![Message::new("user", text.as_str())];
            &own
        }
        About::Text(text) | About::Raw(text) => {
            let options = EncodeOptions { add_special: true, parse_special: true };
            return fitting(llm, llm.tokenizer().encode_with(text, options)?);
        }
    };
    let Some(template) = llm.template() else {
        return Err(BenchError::invalid(
            "`--prompts`: there are `messages`, and the model cannot chat",
        ));
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
    Err(BenchError::invalid(format!("a prompt has {n_tokens} tokens: expected from 1 to {most}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_a_text_or_an_object() {
        let own = |about| Ok(Ask { about, answer: Answer::Own });
        assert_eq!(ask("Once {upon}"), own(About::Text("Once {upon}".to_owned())));
        assert_eq!(ask(r#"{"prompt": "a\nb"}"#), own(About::Raw("a\nb".to_owned())));
        let chat = ask(r#"{"messages": [{"role": "user", "content": "Hi"}]}"#);
        assert_eq!(chat, own(About::Messages(vec![Message::new("user", "Hi")])));
        let answer = Answer::Given("b".to_owned());
        let given = ask(r#"{"prompt": "a", "answer": "b"}"#);
        assert_eq!(given, Ok(Ask { about: About::Raw("a".to_owned()), answer }));
        let formed = ask(r#"{"prompt": "a", "schema": {"type": "string"}}"#);
        let answer = Answer::Formed(r#"{"type":"string"}"#.to_owned());
        assert_eq!(formed, Ok(Ask { about: About::Raw("a".to_owned()), answer }));
        for bad in [
            "{",
            "{}",
            r#"{"prompt": ""}"#,
            r#"{"prompt": 1}"#,
            r#"{"messages": []}"#,
            r#"{"messages": [{"role": "user"}]}"#,
            r#"{"prompt": "a", "messages": [{"role": "user", "content": "b"}]}"#,
            r#"{"prompt": "a", "answer": ""}"#,
            r#"{"prompt": "a", "answer": 7}"#,
            r#"{"prompt": "a", "schema": "string"}"#,
            r#"{"prompt": "a", "answer": "b", "schema": {}}"#,
        ] {
            let why = ask(bad).expect_err(bad);
            assert!(why.contains("`prompt`") && why.contains("`answer`"), "{why}");
        }
    }

    #[test]
    fn every_built_in_text_is_whole() {
        for texts in gather(None).expect("built in") {
            for Ask { about, answer } in texts.all {
                let About::Text(text) = about else { panic!("{about:?}") };
                let answer = if let Answer::Given(text) = answer { text } else { String::new() };
                for text in [text, answer] {
                    assert!(!text.contains("  ") || text.contains('\n'), "{text}");
                }
            }
        }
    }
}
