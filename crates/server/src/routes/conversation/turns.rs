//! A conversation of blocks or items, gathered into the messages that a template reads.
//!
//! Neighbours of one role are one turn: Anthropic's dialect says so, and in that of OpenAI's Responses
//! one turn of the assistant is spread over several items. Texts of one turn are lines of it.

use pelton_text::Message;
use serde_json::Value;

use super::call;

/// Turns of a conversation, in order.
#[derive(Clone, Debug, Default)]
pub(crate) struct Turns {
    messages: Vec<Message>,
}

impl Turns {
    /// Adds a text of a role that has nothing but text.
    pub(crate) fn text(&mut self, role: &str, text: String) {
        let message = self.turn(role);
        match &mut message.content {
            Value::String(before) => {
                before.push('\n');
                before.push_str(&text);
            }
            content => *content = Value::String(text),
        }
    }

    /// Adds a thought of the assistant.
    pub(crate) fn thought(&mut self, text: &str) {
        let message = self.turn("assistant");
        match message.extra.get_mut(THOUGHT) {
            Some(Value::String(before)) => {
                before.push('\n');
                before.push_str(text);
            }
            _ => {
                message.extra.insert(THOUGHT.to_owned(), text.into());
            }
        }
    }

    /// Adds a call by the assistant.
    pub(crate) fn call(&mut self, id: String, name: String, arguments: Value) {
        let message = self.turn("assistant");
        let calls = message.extra.entry("tool_calls").or_insert_with(|| Value::Array(Vec::new()));
        if let Value::Array(calls) = calls {
            calls.push(call(Some(id), name, arguments));
        }
    }

    /// Adds the result of a call.
    pub(crate) fn result(&mut self, id: String, text: String) {
        let mut message = Message::new("tool", text);
        message.extra.insert("tool_call_id".to_owned(), id.into());
        self.messages.push(message);
    }

    /// Adds turns of an earlier part of the conversation.
    pub(crate) fn extend(&mut self, messages: impl IntoIterator<Item = Message>) {
        for message in messages {
            match message.content {
                Value::String(text) if message.extra.is_empty() => self.text(&message.role, text),
                _ => self.messages.push(message),
            }
        }
    }

    /// The role of the last turn.
    pub(crate) fn last_role(&self) -> Option<&str> {
        self.messages.last().map(|message| message.role.as_str())
    }

    /// The messages; a turn of thoughts alone has an empty text.
    pub(crate) fn finish(mut self) -> Vec<Message> {
        for message in &mut self.messages {
            if message.content.is_null() && !message.extra.contains_key("tool_calls") {
                message.content = "".into();
            }
        }
        self.messages
    }

    /// The last message if it has this role, else a new one without text.
    fn turn(&mut self, role: &str) -> &mut Message {
        if self.last_role() != Some(role) {
            let mut message = Message::new(role, "");
            message.content = Value::Null;
            self.messages.push(message);
        }
        self.messages.last_mut().expect("invariant: there is a last message")
    }
}

/// The field of a message that holds its thought; the template's own name for it comes later.
const THOUGHT: &str = "reasoning_content";

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn neighbours_of_one_role_are_one_turn_and_results_are_not() {
        let mut turns = Turns::default();
        turns.text("user", "a".to_owned());
        turns.text("user", "b".to_owned());
        turns.thought("hm");
        turns.call("c1".to_owned(), "f".to_owned(), json!({"x": 1}));
        turns.call("c2".to_owned(), "g".to_owned(), json!({}));
        turns.result("c1".to_owned(), "1".to_owned());
        turns.result("c2".to_owned(), "2".to_owned());
        turns.text("assistant", "so".to_owned());
        turns.text("user", "c".to_owned());
        turns.thought("only");
        let messages = turns.finish();
        let roles: Vec<&str> = messages.iter().map(|message| message.role.as_str()).collect();
        let expected = ["user", "assistant", "tool", "tool", "assistant", "user", "assistant"];
        assert_eq!(roles, expected);
        assert_eq!(messages[0].content, "a\nb");
        assert_eq!(messages[1].content, Value::Null, "calls alone have no text");
        assert_eq!(messages[1].extra["tool_calls"][1]["function"]["name"], "g");
        assert_eq!(messages[1].extra["reasoning_content"], "hm");
        assert_eq!(messages[3].extra["tool_call_id"], "c2");
        assert_eq!(messages[6].content, "", "a thought alone has an empty text");
    }
}
