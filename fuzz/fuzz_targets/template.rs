//! Any text is a chat template that renders within its limits, or an error; never a panic.
#![no_main]

use libfuzzer_sys::fuzz_target;
use pelton_base::limits;
use pelton_text::{ChatTemplate, Message, RenderOptions, TemplateTokens};

fuzz_target!(|text: &str| {
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
        assert!(prompt.len() <= limits::TEMPLATE_OUTPUT_BYTES as usize, "{} bytes", prompt.len());
    }
});
