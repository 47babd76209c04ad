//! The forms of formats: every text of a form is read as calls whose arguments validate.

#[path = "common/walk.rs"]
mod walk;

use std::sync::LazyLock;

use pelton_base::Shape;
use pelton_parse::{
    Demand, REASONING_FORMATS, ReaderOptions, TOOL_FORMATS, Tool, Trust, read, tool_format,
};
use serde_json::{Value, json};
use walk::{Random, fault, walk};

fn tools() -> Vec<Tool> {
    static TOOLS: LazyLock<Vec<Tool>> = LazyLock::new(made);
    TOOLS.clone()
}

fn made() -> Vec<Tool> {
    let everything = json!({
        "type": "object",
        "properties": {
            "text": {"type": "string", "description": "any"},
            "unit": {"type": "string", "enum": ["celsius", "\"k\"", "a b", ""]},
            "count": {"type": "integer", "minimum": 5},
            "ratio": {"type": "number"},
            "on": {"type": "boolean"},
            "nothing": {"type": "null"},
            "tags": {"type": "array", "items": {"type": "string"}},
            "extra": {"type": "object", "properties": {"a": {"type": "boolean"}}},
            "note": {"type": ["string", "null"]},
            "either": {"anyOf": [{"type": "string"}, {"type": "integer"}]},
            "code": {"type": "string", "pattern": "^ABC$"},
            "long": {"type": "string", "minLength": 3},
            "mixed": {"enum": ["a", 1, null, true]},
            "strict": {"anyOf": [{"type": "string", "minLength": 3}, {"type": "null"}]},
            "point": {"$ref": "#/$defs/point"},
            "free": {}
        },
        "required": ["text", "unit", "note", "code"],
        "additionalProperties": false,
        "$defs": {"point": {"type": "object", "properties": {"x": {"type": "number"}}, "required": ["x"]}}
    });
    let optional = json!({
        "type": "object",
        "properties": {"a": {"type": "string"}, "b": {"type": "boolean"}, "c": {"type": "integer"}}
    });
    vec![
        Tool::new("set_all", everything),
        Tool::new("maybe-some", optional),
        Tool::new("ping", Value::Null),
    ]
}

fn check(name: &str, shape: &Shape, trust: Trust, demand: Demand<'_>, parallel: bool) {
    let format = tool_format(name).expect("a format");
    let mut random = Random(0x2545_f491_4f6c_dd1d);
    let mut n_calls = 0;
    for _ in 0..150 {
        let mut text = String::new();
        walk(shape, &mut random, &mut text);
        let options =
            ReaderOptions { tools: Some((format, tools())), trust, ..ReaderOptions::default() };
        let answer = read(options, &text);
        let at = || format!("{name} {demand:?} {parallel}: {text}\n{answer:?}");
        assert!(!answer.cut && !answer.malformed, "{}", at());
        assert!(parallel || answer.calls.len() <= 1, "{}", at());
        assert!(demand == Demand::Auto || !answer.calls.is_empty(), "{}", at());
        for call in &answer.calls {
            let tool = tools().into_iter().find(|tool| tool.name == call.name).expect("known");
            assert!(demand != Demand::Named("ping") || tool.name == "ping", "{}", at());
            let arguments: Value = serde_json::from_str(&call.arguments).expect("JSON");
            assert!(arguments.is_object(), "{}", at());
            assert_eq!(fault(&arguments, &tool.parameters, &tool.parameters), None, "{}", at());
        }
        n_calls += answer.calls.len();
    }
    assert!(n_calls > 40, "{name} {demand:?}: {n_calls} calls");
}

#[test]
fn every_text_of_a_form_is_read_as_valid_calls() {
    for format in TOOL_FORMATS {
        for demand in
            [Demand::Auto, Demand::Required, Demand::Named("ping"), Demand::Named("set_all")]
        {
            for parallel in [true, false] {
                let shape = format.shape(&tools(), demand, parallel).expect("a form");
                check(format.name(), &shape, Trust::Checked, demand, parallel);
                check(format.name(), &shape, Trust::Enforced, demand, parallel);
                if demand != Demand::Auto {
                    check(format.name(), &shape, Trust::CallsOnly, demand, parallel);
                }
            }
        }
    }
}

#[test]
fn required_calls_that_are_cut_off_leave_no_marks_in_the_text() {
    for format in TOOL_FORMATS {
        for demand in [Demand::Required, Demand::Named("ping")] {
            let shape = format.shape(&tools(), demand, true).expect("a form");
            let mut random = Random(0x1234_5678_9abc_def1);
            for _ in 0..10 {
                let mut text = String::new();
                walk(&shape, &mut random, &mut text);
                for end in (0..=text.len()).filter(|end| text.is_char_boundary(*end)) {
                    let trust = Trust::CallsOnly;
                    let tools = Some((*format, tools()));
                    let options = ReaderOptions { tools, trust, ..ReaderOptions::default() };
                    let answer = read(options, &text[..end]);
                    let at = || format!("{}: {}\n{answer:?}", format.name(), &text[..end]);
                    // A message may come before the calls.
                    let may_speak = text[..end].contains("commentary<|message|>");
                    let is_silent = may_speak || answer.content.trim().is_empty();
                    assert!(is_silent && !answer.malformed, "{}", at());
                }
            }
        }
    }
}

#[test]
fn a_thought_before_a_form_is_read_as_one() {
    let hermes = tool_format("hermes").expect("a format");
    for format in REASONING_FORMATS {
        let tools_format = match format.name() {
            "openai_gptoss" => continue,
            _ => hermes,
        };
        let calls = tools_format.shape(&tools(), Demand::Required, true).expect("a form");
        for starts_inside in [true, false] {
            let shape = format.before(calls.clone(), starts_inside);
            let mut random = Random(77);
            for _ in 0..200 {
                let mut text = String::new();
                walk(&shape, &mut random, &mut text);
                let options = ReaderOptions {
                    reasoning: Some(format),
                    starts_inside,
                    tools: Some((tools_format, tools())),
                    trust: Trust::Enforced,
                };
                let answer = read(options, &text);
                let is_sound = !answer.calls.is_empty() && answer.content.is_empty();
                assert!(is_sound && !answer.malformed, "{}: {text}\n{answer:?}", format.name());
            }
        }
    }
}

#[test]
fn what_no_call_can_keep_to_is_refused_by_its_place() {
    let table = [
        (json!({"type": "array"}), "tools[0].function.parameters.type"),
        (json!("x"), "tools[0].function.parameters"),
        (json!(false), "tools[0].function.parameters"),
    ];
    for format in TOOL_FORMATS {
        for (schema, path) in &table {
            let tools = [Tool::new("f", schema.clone())];
            let error = format.shape(&tools, Demand::Required, true).expect_err("no object");
            assert_eq!(error.path, *path, "{}", format.name());
        }
        let error = format.shape(&tools(), Demand::Named("pong"), true).expect_err("unknown");
        assert_eq!(error.path, "tool_choice.function.name");
        assert!(error.to_string().contains("\"pong\""), "{error}");
        let error = format.shape(&[], Demand::Auto, true).expect_err("no tools");
        assert_eq!(error.path, "tools");
        let odd = [Tool::new("f<x>", json!({}))];
        let error = format.shape(&odd, Demand::Auto, true).expect_err("an odd name");
        assert_eq!(error.path, "tools[0].function.name");
    }
    let one_by_one = [
        (json!({"minProperties": 1}), "tools[0].function.parameters.minProperties"),
        (json!({"anyOf": [{}]}), "tools[0].function.parameters.anyOf"),
        (
            json!({"properties": {"a": {"$ref": "#/properties/b"}}}),
            "tools[0].function.parameters.properties.a",
        ),
        (
            json!({"properties": {"a": false}, "required": ["a"]}),
            "tools[0].function.parameters.properties.a",
        ),
        (
            json!({"required": ["a"], "additionalProperties": false}),
            "tools[0].function.parameters.properties.a",
        ),
        (json!({"properties": {"<": {}}}), "tools[0].function.parameters.properties.<"),
    ];
    for name in ["glm45", "qwen3_coder", "pythonic"] {
        let format = tool_format(name).expect("a format");
        for (schema, path) in &one_by_one {
            let tools = [Tool::new("f", schema.clone())];
            let error = format.shape(&tools, Demand::Auto, true).expect_err("cannot be written");
            assert_eq!(error.path, *path, "{name} {schema}");
        }
    }
}

#[test]
fn a_tool_of_many_parameters_has_a_form_of_moderate_size() {
    let properties: serde_json::Map<String, Value> =
        (0..400).map(|key| (format!("p{key}"), json!({"type": "integer"}))).collect();
    let tools = [Tool::new("f", json!({"properties": properties}))];
    for format in TOOL_FORMATS {
        let shape = format.shape(&tools, Demand::Required, true).expect("a form");
        let size = format!("{shape:?}").len();
        assert!(size < 4 << 20, "{}: {size} bytes", format.name());
    }
}
