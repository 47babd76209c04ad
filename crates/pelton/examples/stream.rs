//! Prints a text while it is generated, and ends it early:
//! `cargo run --release --example stream [MODEL]`.

use std::error::Error;
use std::io::Write;

use pelton::{CompletionRequest, Llm, LlmOptions, ModelRef, Prompt, Runtime, RuntimeOptions};

/// Most sentences of the text.
const N_SENTENCES: usize = 2;

fn main() -> Result<(), Box<dyn Error>> {
    run(std::env::args().nth(1).map_or(Ok(pelton::story()), |name| ModelRef::parse(&name))?)
}

/// Loads the model and prints the first sentences that it generates.
pub(crate) fn run(model: ModelRef) -> Result<(), Box<dyn Error>> {
    let runtime = Runtime::new(RuntimeOptions::from_env(None))?;
    let llm = Llm::load(&runtime, &model, &LlmOptions::default(), &mut |_| {})?;

    let mut generation = llm.default_generation();
    generation.max_tokens = Some(200);
    let prompts = vec![Prompt::Text("There was a king who".to_owned())];
    let mut generating = llm.complete(CompletionRequest { prompts, generation })?;

    let mut n_sentences = 0;
    // `next` does the same in async code.
    while let Some(event) = generating.blocking_next() {
        print!("{}", event.text);
        std::io::stdout().flush()?;
        n_sentences += event.text.matches('.').count();
        if n_sentences >= N_SENTENCES {
            break;
        }
    }
    println!();
    // The engine stops computing a text when nobody can read the rest of it.
    drop(generating);
    Ok(())
}
