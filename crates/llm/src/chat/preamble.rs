//! Tools for models whose chat template has no place for them.
//!
//! The tools are described in the system message, earlier calls are written into the assistant's
//! text, and results come as the user's text, all as Hermes models know it (Nous Research, 2024).
//! Whether a model that was not trained for calls makes sensible ones is another question; a call
//! that is required is well formed in any case.

use pelton_parse::Tool;
use pelton_text::Message;
use serde_json::{Value, json};

/// The tools as templates read them: OpenAI's form.
pub(crate) fn tools_json(tools: &[Tool]) -> Value {
    tools.iter().map(|tool| json!({"type": "function", "function": function(tool)})).collect()
}

fn function(tool: &Tool) -> Value {
    let mut function = json!({"name": tool.name});
    if let Some(description) = &tool.description {
        function["description"] = description.as_str().into();
    }
    function["parameters"] = match &tool.parameters {
        Value::Null => json!({"type": "object", "properties": {}}),
        schema => schema.clone(),
    };
    function
}

/// A message whose ids of calls are the last 9 letters and digits of what they were.
pub(crate) fn with_short_ids(mut message: Message) -> Message {
    let shorten = |id: &mut Value| {
        if let Value::String(text) = id {
            let plain: Vec<char> = text.chars().filter(char::is_ascii_alphanumeric).collect();
            let last = plain.len().saturating_sub(9);
            *text = format!("{:0>9}", plain[last..].iter().collect::<String>());
        }
    };
    message.extra.get_mut("tool_call_id").map(shorten);
    let calls = message.extra.get_mut("tool_calls").and_then(Value::as_array_mut);
    calls.into_iter().flatten().filter_map(|call| call.get_mut("id")).for_each(shorten);
    message
}

/// The same conversation without tools, calls and results: they are text.
pub(crate) fn as_text(messages: &[Message], tools: &[Tool]) -> Vec<Message> {
    let mut out: Vec<Message> = Vec::with_capacity(messages.len() + 1);
    let mut rest = messages;
    if !tools.is_empty() {
        let mut system = String::new();
        if let Some((first, others)) = messages.split_first()
            && first.role == "system"
        {
            system.push_str(text_of(first));
            system.push_str("\n\n");
            rest = others;
        }
        system.push_str(&description(tools));
        out.push(Message::new("system", system));
    }
    for message in rest {
        match message.role.as_str() {
            "tool" => {
                let result = format!("<tool_response>\n{}\n</tool_response>", text_of(message));
                match out.last_mut() {
                    // Several results are one turn of the user.
                    Some(last) if last.role == "user" && is_result(last) => {
                        last.content = format!("{}\n{result}", text_of(last)).into();
                    }
                    _ => out.push(Message::new("user", result)),
                }
            }
            _ => match message.extra.get("tool_calls").and_then(Value::as_array) {
                Some(calls) => {
                    out.push(Message::new(message.role.as_str(), with_calls(message, calls)))
                }
                None => out.push(message.clone()),
            },
        }
    }
    out
}

fn text_of(message: &Message) -> &str {
    message.content.as_str().unwrap_or_default()
}

fn is_result(message: &Message) -> bool {
    text_of(message).starts_with("<tool_response>")
}

fn with_calls(message: &Message, calls: &[Value]) -> String {
    let mut text = text_of(message).to_owned();
    for call in calls {
        let function = &call["function"];
        let call = json!({"name": function["name"], "arguments": function["arguments"]});
        let gap = if text.is_empty() { "" } else { "\n" };
        text.push_str(&format!("{gap}<tool_call>\n{call}\n</tool_call>"));
    }
    text
}

fn description(tools: &[Tool]) -> String {
    let mut text = "You can call these functions:\n<tools>\n".to_owned();
    for tool in tools {
        text.push_str(&format!("{}\n", function(tool)));
    }
    text.push_str(
        "</tools>\nTo call a function, write its name and arguments as JSON:\n<tool_call>\n\
         {\"name\": \"...\", \"arguments\": {...}}\n</tool_call>",
    );
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_become_nine_letters_and_digits_on_both_sides() {
        let mut call = Message::new("assistant", "");
        let id = "call_9d7429d0fccfcf960000000a";
        call.extra.insert("tool_calls".to_owned(), json!([{"id": id}, {"id": "a-1"}]));
        let mut result = Message::new("tool", "sun");
        result.extra.insert("tool_call_id".to_owned(), id.into());
        let (call, result) = (with_short_ids(call), with_short_ids(result));
        assert_eq!(call.extra["tool_calls"], json!([{"id": "60000000a"}, {"id": "0000000a1"}]));
        assert_eq!(result.extra["tool_call_id"], "60000000a");
    }

    #[test]
    fn tools_calls_and_results_become_text() {
        let tool = Tool::new("weather", json!({"type": "object"}));
        let mut answer = Message::new("assistant", "Let me see.");
        answer.content = Value::Null;
        answer.extra.insert(
            "tool_calls".to_owned(),
            json!([{"id": "1", "type": "function",
                "function": {"name": "weather", "arguments": {"city": "Rome"}}}]),
        );
        let messages = [
            Message::new("system", "Be brief."),
            Message::new("user", "Rain?"),
            answer,
            Message::new("tool", "sun"),
            Message::new("tool", "wind"),
        ];
        let text = as_text(&messages, &[tool]);
        let roles: Vec<&str> = text.iter().map(|message| message.role.as_str()).collect();
        assert_eq!(roles, ["system", "user", "assistant", "user"]);
        assert!(text_of(&text[0]).starts_with("Be brief.\n\nYou can call"));
        assert!(text_of(&text[0]).contains("{\"name\":\"weather\""));
        let call =
            "<tool_call>\n{\"name\":\"weather\",\"arguments\":{\"city\":\"Rome\"}}\n</tool_call>";
        assert_eq!(text_of(&text[2]), call);
        let result = |text: &str| format!("<tool_response>\n{text}\n</tool_response>");
        assert_eq!(text_of(&text[3]), format!("{}\n{}", result("sun"), result("wind")));
        assert_eq!(as_text(&messages[..2], &[]), messages[..2]);
    }
}
