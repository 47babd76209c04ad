//! How messages become the prompt.

use pelton_llm::{ChatOptions, ChatRequest, Generation};
use pelton_text::Message;
use serde_json::Value;

use super::types::ChatBody;
use super::validate;
use crate::error::ApiError;
use crate::wire::Fields;
use crate::wire::json::{Kind, free, wrong};

/// The fields of a request about its prompt.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Rendering {
    /// Whether the answer continues the last message.
    continues: bool,
    /// Whether the prompt ends with the opening of the answer.
    opens_answer: Option<bool>,
    template: Option<String>,
    documents: Option<Value>,
}

impl Rendering {
    /// Reads `continue_final_message`, `add_generation_prompt`, `chat_template` and `documents`.
    ///
    /// # Errors
    ///
    /// Names the field that is wrong, and two fields that contradict each other.
    pub(crate) fn read(fields: &mut Fields<'_>) -> Result<Self, ApiError> {
        let continues = fields.bool("continue_final_message")?.unwrap_or(false);
        let opens_answer = fields.bool("add_generation_prompt")?;
        if continues && opens_answer == Some(true) {
            let message = "`continue_final_message` contradicts `add_generation_prompt`: the answer \
                           is either in the last message or in a new one";
            return Err(ApiError::param("continue_final_message", message));
        }
        let documents = match fields.take("documents") {
            None => None,
            Some(raw) if Kind::of(raw) == Kind::Array => Some(free("documents", raw)?),
            Some(raw) => return Err(wrong("documents", "an array of objects", raw.get())),
        };
        let items = documents.as_ref().and_then(Value::as_array);
        if let Some(other) = items.into_iter().flatten().find(|item| !item.is_object()) {
            return Err(wrong("documents", "an array of objects", &other.to_string()));
        }
        // An empty list asks for nothing.
        let documents = documents.filter(|list| list.as_array().is_some_and(|it| !it.is_empty()));
        let template = fields.string("chat_template")?;
        Ok(Self { continues, opens_answer, template, documents })
    }

    /// Whether the request brings a template of its own.
    pub(crate) fn has_template(&self) -> bool {
        self.template.is_some()
    }

    /// Writes the fields into the options of a conversation.
    pub(crate) fn over(self, options: &mut ChatOptions) {
        options.continue_final = self.continues;
        options.opens_answer = self.opens_answer.unwrap_or(true);
        options.template = self.template;
        options.documents = self.documents;
    }
}

/// A conversation as far as its prompt goes.
pub(crate) struct Rendered {
    pub(crate) messages: Vec<Message>,
    pub(crate) options: ChatOptions,
}

impl Rendered {
    /// Reads a chat request, every field of which is checked as if it were to be answered. Beside it:
    /// the model that it names, and whether the tokenizer adds its special tokens.
    pub(crate) fn read(
        fields: Fields<'_>,
        is_trusted: bool,
    ) -> Result<(Option<String>, Self, Option<bool>), ApiError> {
        let mut body = ChatBody::of(fields)?;
        check_trust(&body.rendering, is_trusted)?;
        let model = body.model.take();
        let (request, _) = validate::check(body, Generation::default())?;
        let ChatRequest { messages, generation, options } = request;
        Ok((model, Self { messages, options }, generation.input.add_special))
    }
}

/// Refuses a template of a request where the server does not trust its clients with them.
///
/// A template runs under limits of steps, bytes and work, but it decides what the model reads: behind
/// a gateway that adds a system message, for example, it could leave that out.
pub(crate) fn check_trust(rendering: &Rendering, is_trusted: bool) -> Result<(), ApiError> {
    if is_trusted || !rendering.has_template() {
        return Ok(());
    }
    let message = "`chat_template`: this server uses the template of the model alone; \
                   `--trust-request-chat-template` lets requests bring their own";
    Err(ApiError::param("chat_template", message))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(body: Value) -> Result<Rendering, ApiError> {
        let text = body.to_string();
        let mut fields = Fields::of_body(text.as_bytes())?;
        let rendering = Rendering::read(&mut fields)?;
        fields.finish()?;
        Ok(rendering)
    }

    #[test]
    fn fields_reach_their_options_and_what_asks_for_nothing_is_nothing() {
        let mut options = ChatOptions::default();
        read(json!({"documents": [], "continue_final_message": false}))
            .expect("fine")
            .over(&mut options);
        assert_eq!(options, ChatOptions::default());
        let body = json!({
            "continue_final_message": true, "add_generation_prompt": false,
            "documents": [{"title": "a"}], "chat_template": "x"
        });
        let rendering = read(body).expect("fine");
        assert!(check_trust(&rendering, true).is_ok());
        let error = check_trust(&rendering, false).expect_err("not trusted");
        assert_eq!(error.body.param.as_deref(), Some("chat_template"));
        rendering.over(&mut options);
        assert!(options.continue_final && !options.opens_answer);
        assert_eq!(options.template.as_deref(), Some("x"));
        assert_eq!(options.documents, Some(json!([{"title": "a"}])));
    }

    #[test]
    fn a_field_that_is_wrong_is_named() {
        for (param, body) in [
            (
                "continue_final_message",
                json!({"continue_final_message": true, "add_generation_prompt": true}),
            ),
            ("continue_final_message", json!({"continue_final_message": 1})),
            ("documents", json!({"documents": {}})),
            ("documents", json!({"documents": ["text"]})),
            ("chat_template", json!({"chat_template": ["x"]})),
        ] {
            let error = read(body).map(drop).expect_err(param);
            assert_eq!(error.body.param.as_deref(), Some(param), "{}", error.body.message);
        }
    }
}
