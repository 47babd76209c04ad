//! The texts that formats allow, token by token, over a vocabulary of single bytes.

use std::sync::Arc;

use pelton_base::{Namespace, TokenId};
use pelton_grammar::{Grammars, Limits, Vocabulary};
use pelton_text::Tokenizer;
use serde_json::{Value, json};

use super::super::json::RawValue;
use super::formats::format;
use crate::error::ApiError;

struct Bytes {
    tokenizer: Arc<Tokenizer>,
    grammars: Grammars,
    end: TokenId,
}

impl Bytes {
    fn new() -> Self {
        let json = pelton_testkit::tokenizer_json().to_string();
        let tokenizer = Arc::new(Tokenizer::from_bytes(json.as_bytes()).expect("a tokenizer"));
        let limits = Limits::default();
        let vocabulary = Vocabulary::new(&tokenizer, &limits).expect("a vocabulary");
        let mut all = (0..tokenizer.vocab_size() as u32).map(TokenId);
        let end = all.find(|token| tokenizer.is_special(*token)).expect("a control token");
        Self { grammars: Grammars::new(vocabulary, limits), tokenizer, end }
    }

    /// Whether the form of a format allows a text as a whole; `~` stands for a control token.
    fn allows(&self, format: &Value, text: &str) -> bool {
        let shape = read(format).unwrap_or_else(|error| panic!("{format}: {error:?}"));
        let rule = self.grammars.compile(&shape, &[self.end], Namespace::default());
        let rule = rule.unwrap_or_else(|error| panic!("{format}: {error}"));
        let mut state = rule.begin();
        let mut rest = text.as_bytes();
        while !rest.is_empty() {
            let bytes_of = |token: &TokenId| match self.tokenizer.is_special(*token) {
                true => b"~",
                false => self.tokenizer.token_bytes(*token).unwrap_or_default(),
            };
            let mut fitting = Vec::new();
            state.forced(&mut fitting);
            fitting.truncate(1);
            if fitting.is_empty() {
                fitting.extend((0..self.tokenizer.vocab_size() as u32).map(TokenId));
            }
            fitting
                .retain(|token| !bytes_of(token).is_empty() && rest.starts_with(bytes_of(token)));
            fitting.sort_by_key(|token| std::cmp::Reverse(bytes_of(token).len()));
            let Some(token) = fitting.into_iter().find(|token| state.accept(*token)) else {
                return false;
            };
            rest = &rest[bytes_of(&token).len()..];
        }
        state.accept(self.end)
    }
}

fn read(value: &Value) -> Result<pelton_base::Shape, ApiError> {
    let raw = RawValue::from_string(value.to_string()).expect("JSON");
    format("format", &raw)
}

fn tag(begin: &str, content: Value, end: Value) -> Value {
    json!({"type": "tag", "begin": begin, "content": content, "end": end})
}

fn text(value: &str) -> Value {
    json!({"type": "const_string", "value": value})
}

fn any() -> Value {
    json!({"type": "any_text"})
}

fn number() -> Value {
    json!({"type": "json_schema", "json_schema": {"type": "integer", "minimum": 0, "maximum": 9}})
}

#[test]
fn a_format_allows_its_texts_and_no_others() {
    let bytes = Bytes::new();
    let call = |name: &str| tag(&format!("<f={name}>"), number(), json!("</f>"));
    let calls = |more: Value| {
        let mut format = json!({"type": "triggered_tags", "triggers": ["<f="],
            "tags": [call("a"), call("b")]});
        for (name, value) in more.as_object().expect("an object") {
            format[name] = value.clone();
        }
        format
    };
    let cases: Vec<(Value, &[&str], &[&str])> = vec![
        (text("yes"), &["yes"], &["ye", "yes!", ""]),
        (json!({"type": "regex", "pattern": "[0-9]+"}), &["07"], &["", "a"]),
        (json!({"type": "grammar", "grammar": "root ::= \"a\" | \"b\""}), &["a", "b"], &["ab"]),
        (number(), &["7"], &["77", "x"]),
        (any(), &["", "what <f=a>"], &[]),
        (json!({"type": "any_text", "excludes": ["no", "~"]}), &["", "n o"], &["a no b"]),
        (
            json!({"type": "sequence", "elements": [text("n: "), number(), text(";")]}),
            &["n: 7;"],
            &["n: ;", "7"],
        ),
        (json!({"type": "or", "elements": [text("a"), number()]}), &["a", "3"], &["a3", ""]),
        (json!({"type": "optional", "content": text("ab")}), &["", "ab"], &["abab"]),
        (json!({"type": "star", "content": text("ab")}), &["", "abab"], &["aba"]),
        (json!({"type": "plus", "content": text("ab")}), &["ab", "abab"], &[""]),
        (
            json!({"type": "repeat", "min": 1, "max": 2, "content": tag("<", number(), json!(">"))}),
            &["<1>", "<1><2>"],
            &["", "<1><2><3>"],
        ),
        (
            tag("<think>", any(), json!("</think>")),
            &["<think></think>", "<think>a < b</think>"],
            &["<think>", "<think></think>x", "<think></think></think>"],
        ),
        (
            tag("<t>", any(), json!(["</t>", "</u>"])),
            &["<t>a</t>", "<t>a<</u>"],
            &["<t>a", "<t></t></u>"],
        ),
        (
            tag("<t>", json!({"type": "any_text", "excludes": ["ab"]}), json!("</t>")),
            &["<t>a b</t>"],
            &["<t>ab</t>"],
        ),
        (
            tag("<t>", json!({"type": "sequence", "elements": [text("x"), any()]}), json!("|")),
            &["<t>x|", "<t>xyz|"],
            &["<t>|", "<t>x", "<t>x||"],
        ),
        (
            tag("<t>", json!({"type": "or", "elements": [text("x"), any()]}), json!("|")),
            &["<t>x|", "<t>yy|"],
            &["<t>x", "<t>x|y"],
        ),
        (
            calls(json!({})),
            &["", "hm", "so <f=a>1</f> and <f=b>2</f>.", "<f=a>1</f><f=a>1</f>"],
            &["<f=", "<f=c>1</f>", "<f=a>x</f>"],
        ),
        (
            calls(json!({"at_least_one": true})),
            &["<f=a>1</f>", "<f=a>1</f> so <f=b>2</f>."],
            &["", "so <f=a>1</f>"],
        ),
        (
            calls(json!({"stop_after_first": true})),
            &["", "hm", "so <f=b>2</f>"],
            &["<f=b>2</f>.", "<f=a>1</f><f=a>1</f>"],
        ),
        (
            calls(json!({"at_least_one": true, "stop_after_first": true})),
            &["<f=b>2</f>"],
            &["", "x<f=b>2</f>", "<f=b>2</f>x"],
        ),
        (
            calls(json!({"excludes": ["bad"]})),
            &["good <f=a>1</f> good"],
            &["bad", "<f=a>1</f> bad"],
        ),
        (
            tag("<r>", calls(json!({})), json!("</r>")),
            &["<r></r>", "<r>x<f=a>1</f>y</r>", "<r><f=a>1</f></r>"],
            &["<r>x", "<r></r>x", "<r><f=a>1</f>"],
        ),
        (
            json!({"type": "tags_with_separator", "tags": [call("a")], "separator": ",",
                "at_least_one": true}),
            &["<f=a>1</f>", "<f=a>1</f>,<f=a>2</f>"],
            &["", "<f=a>1</f>,", "<f=a>1</f><f=a>2</f>"],
        ),
        (
            json!({"type": "tags_with_separator", "tags": [call("a")], "separator": ",",
                "stop_after_first": true}),
            &["", "<f=a>1</f>"],
            &["<f=a>1</f>,<f=a>2</f>"],
        ),
        (
            json!({"type": "sequence", "elements": [
                tag("<think>", any(), json!("</think>")), calls(json!({}))]}),
            &["<think>x</think>", "<think></think>so <f=a>1</f>"],
            &["so", "<think>x</think><f=c>"],
        ),
    ];
    for (format, good, bad) in cases {
        for text in good {
            assert!(bytes.allows(&format, text), "{format} allows {text:?}");
        }
        for text in bad {
            assert!(!bytes.allows(&format, text), "{format} refuses {text:?}");
        }
    }
}

#[test]
fn a_name_of_a_control_token_is_the_token() {
    let bytes = Bytes::new();
    let name = bytes.tokenizer.token_bytes(bytes.end).expect("a name");
    let name = std::str::from_utf8(name).expect("UTF-8");
    let token = json!({"type": "token", "token": name});
    let format = json!({"type": "tag", "begin": token, "content": any(), "end": token});
    assert!(bytes.allows(&format, "~some text~"));
    assert!(!bytes.allows(&format, "some text~"));
    let format = tag("a", any(), json!(format!("b{name}c")));
    assert!(bytes.allows(&format, "axbb~c"));
    assert!(!bytes.allows(&format, "ax~c"));
}

#[test]
fn what_cannot_be_told_apart_or_is_not_known_is_refused_by_path() {
    let call = tag("<f>", number(), json!("</f>"));
    let triggered =
        |triggers: Value| json!({"type": "triggered_tags", "triggers": triggers, "tags": [call]});
    let mut deep = text("x");
    for _ in 0..40 {
        deep = json!({"type": "optional", "content": deep});
    }
    for (path, format) in [
        ("format.type", json!({"type": "dispatch", "rules": []})),
        ("format.type", json!({})),
        ("format.value", json!({"type": "const_string"})),
        ("format.token", json!({"type": "token", "token": 7})),
        ("format.style", json!({"type": "json_schema", "json_schema": {}, "style": "qwen_xml"})),
        ("format.any_order", json!({"type": "json_schema", "json_schema": {}, "any_order": true})),
        ("format.max_tokens", json!({"type": "any_text", "max_tokens": 5})),
        ("format.elements", json!({"type": "sequence", "elements": []})),
        ("format.elements[0]", json!({"type": "sequence", "elements": [any(), number()]})),
        ("format.content", json!({"type": "star", "content": any()})),
        ("format.max", json!({"type": "repeat", "min": 2, "max": 1, "content": text("x")})),
        ("format.content.excludes", tag("<", any(), json!(["aba", "c"]))),
        ("format.triggers", triggered(json!(["<g>"]))),
        ("format.triggers[0]", triggered(json!([""]))),
        ("format.triggers", triggered(json!(["<f>", "><"]))),
        ("format.tags", json!({"type": "triggered_tags", "triggers": ["<"], "tags": []})),
        (
            "format.tags[0]",
            json!({"type": "triggered_tags", "triggers": ["<"], "tags": [
            tag("<", any(), json!(""))]}),
        ),
        ("format.colour", json!({"type": "any_text", "colour": 1})),
    ] {
        let error = read(&format).expect_err(path);
        assert_eq!(error.body.param.as_deref(), Some(path), "{format}: {}", error.body.message);
    }
    let error = read(&deep).expect_err("deep");
    assert!(error.body.message.contains("deep"), "{}", error.body.message);
}
