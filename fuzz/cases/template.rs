//! Any text is a chat template that renders within its limits, or an error; never a panic.

use pelton_base::limits;
use pelton_text::{ChatTemplate, Message, RenderOptions, TemplateTokens};

pub(crate) fn run(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let tokens = TemplateTokens { tokens: vec![("bos_token".to_owned(), "<s>".to_owned())] };
    let Ok(template) = ChatTemplate::from_text(text, "fuzzed", tokens) else { return };
    let messages = [
        Message::new("system", "Be brief."),
        Message::new("user", "Hello, 1 + 1?"),
        Message::new("assistant", " Two.\n"),
    ];
    let options = RenderOptions {
        add_generation_prompt: true,
        now_unix_seconds: Some(1_700_000_000),
        ..RenderOptions::default()
    };
    if let Ok(prompt) = template.render(&messages, &options) {
        assert!(prompt.len() <= limits::TEMPLATE_OUTPUT_BYTES, "{} bytes", prompt.len());
    }
}
