//! Holds a conversation of two questions: `cargo run --release --example chat [MODEL]`.

use std::error::Error;

use pelton::{ChatRequest, Llm, LlmOptions, Message, ModelRef, Runtime, RuntimeOptions};

fn main() -> Result<(), Box<dyn Error>> {
    run(std::env::args().nth(1).map_or(Ok(pelton::story()), |name| ModelRef::parse(&name))?)
}

/// Loads the model and prints the conversation.
pub(crate) fn run(model: ModelRef) -> Result<(), Box<dyn Error>> {
    let runtime = Runtime::new(RuntimeOptions::from_env(None))?;
    let llm = Llm::load(&runtime, &model, &LlmOptions::default(), &mut |_| {})?;

    let mut messages = vec![Message::new("system", "You are brief.")];
    for question in ["Tell me about a wolf.", "Where did it live?"] {
        messages.push(Message::new("user", question));
        let mut generation = llm.default_generation();
        generation.max_tokens = Some(40);
        let mut generating = llm.chat(ChatRequest::new(messages.clone(), generation))?;
        let mut answer = String::new();
        while let Some(event) = generating.blocking_next() {
            answer.push_str(&event.text);
        }
        println!("> {question}\n{answer}\n");
        // The next question is computed from here on: the cache has all that came before.
        messages.push(Message::new("assistant", answer));
    }
    Ok(())
}
