//! Answers of a form, tools and thoughts through the library, with the embedded story-teller: the same
//! however the engine computes them.

use std::path::PathBuf;
use std::sync::Arc;

use crate::common::one_thread;
use pelton_base::{FinishReason, SamplingParams, Shape};
use pelton_llm::{
    ChatOptions, ChatRequest, Fault, Generation, Llm, LlmError, LlmOptions, ModelRef, SpecConfig,
    SpecMethod, Tool, ToolChoice,
};
use pelton_sched::{Choices, PreemptionMode};
use pelton_text::Message;
use serde_json::json;

fn story() -> ModelRef {
    let file = "../cli/model/story-q8_0.gguf";
    ModelRef::Path(PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(file))
}

fn load(options: &LlmOptions) -> Arc<Llm> {
    Llm::load(&one_thread(), &story(), options, &mut |_| {}).expect("loads")
}

fn schema() -> Shape {
    let schema = json!({
        "type": "object",
        "properties": {
            "title": {"type": "string", "maxLength": 30},
            "pages": {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 999},
                "minItems": 2, "maxItems": 5}
        },
        "required": ["title", "pages"],
        "additionalProperties": false
    });
    Shape::Json { schema: schema.to_string(), path: "schema".to_owned() }
}

/// Answers under forms and free ones, sampled in several ways.
fn requests() -> Vec<ChatRequest> {
    let tool = Tool::new(
        "roll",
        json!({"type": "object", "properties": {"sides": {"enum": [6, 20]}},
        "required": ["sides"], "additionalProperties": false}),
    );
    let calls = ChatOptions {
        tools: vec![tool],
        tool_choice: ToolChoice::Required,
        parallel_tool_calls: false,
        ..ChatOptions::default()
    };
    let forms = [
        (Some(schema()), ChatOptions::default()),
        (None, calls),
        (Some(Shape::Regex("([a-z]{2,9} ){3}end".to_owned())), ChatOptions::default()),
        (None, ChatOptions::default()),
    ];
    let sampling = [
        SamplingParams::greedy(),
        SamplingParams { temperature: 0.9, ..SamplingParams::default() },
        SamplingParams {
            temperature: 1.5,
            top_k: 50,
            logprobs: Some(2),
            ..SamplingParams::default()
        },
    ];
    let mut requests = Vec::new();
    for (i, (form, options)) in forms.iter().cycle().take(12).enumerate() {
        let sampling = SamplingParams { seed: i as u64, ..sampling[i / 4].clone() };
        let generation = Generation {
            sampling,
            form: form.clone(),
            max_tokens: Some(250),
            // Free answers are long, so that memory runs short.
            ignore_eos: form.is_none() && options.tools.is_empty(),
            ..Generation::default()
        };
        let messages = vec![Message::new("user", format!("Tell me a story of {i} ships."))];
        requests.push(ChatRequest { messages, generation, options: options.clone() });
    }
    requests
}

#[derive(Clone, Debug, PartialEq)]
struct Told {
    text: String,
    calls: Vec<(String, String)>,
    reason: FinishReason,
    tokens: Vec<u32>,
}

/// The answers to requests that are all under way together, or one after the other.
fn answers(llm: &Llm, together: bool) -> Vec<Told> {
    let tell = |mut generating: pelton_llm::Generating| {
        let (mut text, mut calls, mut tokens) = (String::new(), Vec::new(), Vec::new());
        while let Some(event) = generating.blocking_next() {
            text.push_str(&event.text);
            tokens.extend(event.tokens.iter().map(|token| token.id.0));
            for piece in event.calls {
                if let Some(name) = piece.name {
                    calls.push((name, String::new()));
                }
                calls[piece.index].1.push_str(&piece.arguments);
            }
            if let Some(finish) = event.finish {
                return Told { text, calls, reason: finish.reason, tokens };
            }
        }
        panic!("the answer broke off");
    };
    if !together {
        return requests().into_iter().map(|ask| tell(llm.chat(ask).expect("taken"))).collect();
    }
    let asked: Vec<_> = requests().into_iter().map(|ask| llm.chat(ask).expect("taken")).collect();
    asked.into_iter().map(tell).collect()
}

#[test]
fn an_answer_of_a_form_is_the_same_however_it_is_computed() {
    let plain = LlmOptions {
        max_context: Some(450),
        spec: SpecConfig { method: SpecMethod::Off, ..SpecConfig::default() },
        ..LlmOptions::default()
    };
    let alone = answers(&load(&plain), false);
    for (i, told) in alone.iter().enumerate() {
        match i % 4 {
            0 if told.reason == FinishReason::Stop => {
                let value: serde_json::Value = serde_json::from_str(&told.text).expect("JSON");
                assert!(value["pages"].as_array().is_some_and(|pages| pages.len() >= 2), "{value}");
            }
            1 => {
                assert_eq!(told.reason, FinishReason::Stop, "{told:?}");
                let [(name, arguments)] = &told.calls[..] else { panic!("{told:?}") };
                let value: serde_json::Value = serde_json::from_str(arguments).expect("JSON");
                assert!(name == "roll" && (value["sides"] == 6 || value["sides"] == 20));
            }
            2 => assert!(told.text.ends_with(" end"), "{told:?}"),
            _ => {}
        }
    }
    let drafts = |method| SpecConfig { method, is_forced: true, ..SpecConfig::default() };
    let few = |choices: Choices| LlmOptions { choices, ..plain.clone() };
    let ways = [
        ("together", plain.clone()),
        ("chunks", few(Choices { max_chunk_tokens: Some(5), ..Choices::default() })),
        ("no cache", few(Choices { prefix_cache: false, ..Choices::default() })),
        ("little memory", LlmOptions { kv_bytes: Some(1_450_000), ..plain.clone() }),
        (
            "swapped",
            LlmOptions {
                kv_bytes: Some(1_450_000),
                swap_bytes: 64 << 20,
                ..few(Choices { preemption: PreemptionMode::Swap, ..Choices::default() })
            },
        ),
        ("n-gram", LlmOptions { spec: drafts(SpecMethod::Ngram), ..plain.clone() }),
        ("recycle", LlmOptions { spec: drafts(SpecMethod::Recycle), ..plain.clone() }),
    ];
    for (way, options) in ways {
        let llm = load(&options);
        let together = answers(&llm, true);
        for (i, (told, alone)) in together.iter().zip(&alone).enumerate() {
            assert_eq!(told, alone, "{way}, request {i}");
        }
        assert!(llm.metrics().spec.n_forced > 0, "{way}");
        if way == "little memory" || way == "swapped" {
            assert!(llm.metrics().n_preemptions > 0, "{way}: memory was not short");
        }
    }
}

#[test]
fn a_form_that_is_wrong_names_its_place_and_harms_no_neighbour() {
    let llm = load(&LlmOptions { max_context: Some(300), ..LlmOptions::default() });
    let ask = |form: Shape, generation: Generation| {
        let generation = Generation { form: Some(form), max_tokens: Some(40), ..generation };
        llm.chat(ChatRequest::new(vec![Message::new("user", "Hello.")], generation))
    };
    let json = |schema: &str| Shape::Json { schema: schema.to_owned(), path: "here".to_owned() };
    for (form, part) in [
        (json("{\"enum\": []}"), "here"),
        (json("{\"$ref\": \"#\"}"), "here"),
        (json("{\"$ref\": \"https://example.com/a\"}"), "here"),
        (Shape::Regex("(".to_owned()), ""),
        (Shape::Gbnf("root ::= nothing".to_owned()), ""),
        (Shape::Lark("begin: \"a\"".to_owned()), ""),
    ] {
        match ask(form.clone(), Generation::default()).map(drop).expect_err("refused") {
            LlmError::Form { path, why } => {
                assert!(path.starts_with(part) && !why.is_empty(), "{form:?}: {path} {why}");
            }
            other => panic!("{form:?}: {other}"),
        }
    }
    // A processor that forbids all that the form allows.
    let mut generation = Generation::default();
    generation.sampling.allowed_tokens = Some(vec![pelton_base::TokenId(2000)]);
    let stuck = ask(Shape::text("yes"), generation);
    let mut stuck = stuck.expect("accepted");
    let mut fine = ask(Shape::text("yes"), Generation::default()).expect("accepted");
    let end = |generating: &mut pelton_llm::Generating| loop {
        let event = generating.blocking_next().expect("an end");
        if let Some(finish) = event.finish {
            return finish;
        }
    };
    let finish = end(&mut stuck);
    assert_eq!(finish.reason, FinishReason::Error);
    assert!(matches!(finish.fault, Some(Fault::Stuck(_))), "{:?}", finish.fault);
    assert_eq!(end(&mut fine).reason, FinishReason::Stop);
}
