//! Tool calls under a grammar: whatever a model says, every call is read and its arguments validate.

#[path = "../../parse/tests/common/walk.rs"]
mod walk;

use crate::common::Bench;
use pelton_parse::{Demand, ReaderOptions, TOOL_FORMATS, Tool, ToolFormat, Trust, read};
use serde_json::{Value, json};
use walk::{Random, fault, walk};

/// Tools whose arguments are short, so that random walks end.
fn short() -> Vec<Tool> {
    let schema = json!({
        "type": "object",
        "properties": {
            "unit": {"type": "string", "enum": ["celsius", "kelvin"]},
            "days": {"type": "integer", "enum": [1, 2, 30]},
            "on": {"type": "boolean"},
            "mixed": {"enum": ["a", null, 7]}
        },
        "required": ["unit"],
        "additionalProperties": false
    });
    vec![Tool::new("get_weather", schema), Tool::new("ping", no_arguments())]
}

fn no_arguments() -> Value {
    json!({"type": "object", "properties": {}, "additionalProperties": false})
}

/// Tools with parameters of every kind.
fn long() -> Vec<Tool> {
    let schema = json!({
        "type": "object",
        "properties": {
            "text": {"type": "string"},
            "long": {"type": "string", "minLength": 3},
            "note": {"type": ["string", "null"]},
            "count": {"type": "integer", "minimum": 5},
            "tags": {"type": "array", "items": {"type": "string"}},
            "extra": {"type": "object", "properties": {"a": {"type": "boolean"}}}
        },
        "required": ["text"],
        "additionalProperties": false
    });
    vec![Tool::new("set_all", schema), Tool::new("ping", no_arguments())]
}

/// The calls of a text, which must all be sound.
fn n_calls(format: &'static dyn ToolFormat, tools: &[Tool], text: &str) -> usize {
    let options = ReaderOptions {
        tools: Some((format, tools.to_vec())),
        trust: Trust::Enforced,
        ..ReaderOptions::default()
    };
    let answer = read(options, text);
    assert!(!answer.malformed && !answer.cut, "{format:?}: {text}\n{answer:?}");
    for call in &answer.calls {
        let tool = tools.iter().find(|tool| tool.name == call.name).expect("a tool");
        let arguments: Value = serde_json::from_str(&call.arguments).expect("JSON");
        let fault = fault(&arguments, &tool.parameters, &tool.parameters);
        assert!(arguments.is_object() && fault.is_none(), "{format:?}: {text}\n{fault:?}");
    }
    answer.calls.len()
}

#[test]
fn random_walks_under_the_mask_are_calls_that_validate() {
    let tools = short();
    for kind in ["bytes", "bpe/tokenizer.json"] {
        let bench = Bench::new(kind);
        for format in TOOL_FORMATS.iter().copied().filter(|format| format.name() != "openai") {
            for demand in [Demand::Required, Demand::Named("ping")] {
                for parallel in [false, true] {
                    let shape = format.shape(&tools, demand, parallel).expect("a form");
                    let constraint = bench.compile(&shape);
                    let mut n_ended = 0;
                    for seed in (1..=6).map(|seed: u64| seed.wrapping_mul(0x9e37_79b9_7f4a_7c15)) {
                        let mut random = Random(seed);
                        let pick = |choices: &[_]| choices[random.below(choices.len())];
                        let (text, ended) = bench.walk(&constraint, 2_000, pick);
                        if ended {
                            n_ended += 1;
                            let n_calls = n_calls(format, &tools, &text);
                            assert!(
                                n_calls >= 1 && (parallel || n_calls == 1),
                                "{format:?}: {text}"
                            );
                        }
                    }
                    assert!(n_ended >= 3, "{format:?} {kind}: {n_ended} of 6 walks ended");
                }
            }
        }
    }
}

#[test]
fn the_texts_of_a_form_can_be_written() {
    let bench = Bench::new("bpe/tokenizer.json");
    let tools = long();
    // The marks of Harmony are control tokens in every vocabulary that has them.
    for format in TOOL_FORMATS.iter().filter(|format| format.name() != "openai") {
        for demand in [Demand::Auto, Demand::Required, Demand::Named("set_all")] {
            let shape = format.shape(&tools, demand, true).expect("a form");
            let constraint = bench.compile(&shape);
            let mut random = Random(0x2545_f491_4f6c_dd1d);
            for _ in 0..8 {
                let mut text = String::new();
                walk(&shape, &mut random, &mut text);
                n_calls(*format, &tools, &text);
                assert!(bench.writes(&constraint, &text), "{format:?} {demand:?}: {text}");
            }
        }
    }
}

#[test]
fn what_is_no_call_cannot_be_written() {
    let bench = Bench::new("bpe/tokenizer.json");
    let hermes = pelton_parse::tool_format("hermes").expect("a format");
    let call = |name: &str, arguments: &str| {
        format!("<tool_call>\n{{\"name\": \"{name}\", \"arguments\": {arguments}}}\n</tool_call>")
    };
    let sound = call("get_weather", "{\"unit\": \"kelvin\"}");
    let unsound = [
        call("get_weather", "{\"unit\": \"metre\"}"),
        call("get_weather", "{}"),
        call("nobody", "{}"),
        "<tool_call>well".to_owned(),
    ];
    for demand in [Demand::Auto, Demand::Required] {
        let shape = hermes.shape(&short(), demand, true).expect("a form");
        let constraint = bench.compile(&shape);
        assert!(bench.writes(&constraint, &sound), "{demand:?}");
        let has_text = format!("Hm. {sound}");
        assert_eq!(bench.writes(&constraint, &has_text), demand == Demand::Auto);
        for text in &unsound {
            assert!(!bench.writes(&constraint, text), "{demand:?}: {text}");
        }
    }
}
