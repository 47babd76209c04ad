//! Calls of tools in chat completions, by a parrot that repeats a call which stands in its prompt.

use crate::harness::parrot::parrot;
use crate::harness::start;
use serde_json::{Value, json};

/// A call in the form that models without a form of their own are asked for.
const CALL: &str = r#"<tool_call>{"name": "ping", "arguments": {"to": "me"}}</tool_call>"#;

fn body(choice: &str) -> Value {
    let to = json!({"type": "object", "properties": {"to": {"type": "string"}}});
    let ping = json!({"type": "function", "function": {"name": "ping", "parameters": to}});
    let said = format!("{CALL}!");
    json!({"messages": [{"role": "user", "content": said}], "tools": [ping], "tool_choice": choice,
        "max_tokens": CALL.len()})
}

#[tokio::test]
async fn a_call_is_answered_with_its_name_and_its_arguments() {
    let server = start(parrot()).await;
    let answer = server.chat(body("auto")).await;
    let message = &answer.json()["choices"][0]["message"];
    let call = &message["tool_calls"][0];
    assert_eq!((&call["type"], &call["function"]["name"]), (&json!("function"), &json!("ping")));
    let arguments = call["function"]["arguments"].as_str().expect("text");
    let arguments: Value = serde_json::from_str(arguments).expect("JSON");
    assert_eq!((arguments, &message["content"]), (json!({"to": "me"}), &Value::Null));
    assert!(call["id"].as_str().is_some_and(|id| id.starts_with("call_")), "{call}");
    server.stop().await;
}

#[tokio::test]
async fn without_a_choice_of_tools_a_call_is_text() {
    let server = start(parrot()).await;
    let answer = server.chat(body("none")).await.json();
    let message = &answer["choices"][0]["message"];
    assert_eq!((&message["content"], message.get("tool_calls")), (&json!(CALL), None), "{answer}");
    server.stop().await;
}
