//! Continues two texts at the same time: `cargo run --release --example generate [MODEL]`.

use std::error::Error;

use pelton::{CompletionRequest, Llm, LlmOptions, ModelRef, Prompt, Runtime, RuntimeOptions};

fn main() -> Result<(), Box<dyn Error>> {
    run(std::env::args().nth(1).map_or(Ok(pelton::story()), |name| ModelRef::parse(&name))?)
}

/// Loads the model and prints what it generates.
pub(crate) fn run(model: ModelRef) -> Result<(), Box<dyn Error>> {
    let runtime = Runtime::new(RuntimeOptions::from_env(None))?;
    let llm = Llm::load(&runtime, &model, &LlmOptions::default(), &mut |_| {})?;

    let mut generation = llm.default_generation();
    generation.max_tokens = Some(40);
    generation.sampling.temperature = 0.8;
    generation.sampling.seed = 7;

    let texts = ["Once upon a time", "The old house"];
    let prompts = texts.iter().map(|text| Prompt::Text((*text).to_owned())).collect();
    let mut generating = llm.complete(CompletionRequest { prompts, generation })?;

    let mut answers = texts.map(str::to_owned);
    while let Some(event) = generating.blocking_next() {
        answers[event.choice].push_str(&event.text);
    }
    for answer in answers {
        println!("{answer}\n");
    }
    println!("{:?}", generating.usage());
    Ok(())
}
