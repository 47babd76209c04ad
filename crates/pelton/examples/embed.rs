//! Compares the meanings of texts: `cargo run --release --example embed [MODEL]`.
//!
//! Encoders such as BAAI/bge-small-en-v1.5 are made for this. A model that generates text gives
//! vectors too, which say less.

use std::error::Error;

use pelton::{
    EmbedInput, EmbedOptions, EmbedRequest, Embedder, ModelRef, Runtime, RuntimeOptions, cosine,
};

fn main() -> Result<(), Box<dyn Error>> {
    run(std::env::args().nth(1).map_or(Ok(pelton::story()), |name| ModelRef::parse(&name))?)
}

/// Loads the model and prints how similar the texts are to the first.
pub(crate) fn run(model: ModelRef) -> Result<(), Box<dyn Error>> {
    let runtime = Runtime::new(RuntimeOptions::from_env(None))?;
    let embedder = Embedder::load(&runtime, &model, &EmbedOptions::default(), &mut |_| {})?;

    let texts = ["a cat", "a kitten", "the price of steel"];
    let inputs = texts.iter().map(|text| EmbedInput::Text((*text).to_owned())).collect();
    let answer = embedder.embed(EmbedRequest { inputs, ..EmbedRequest::default() })?;

    for (text, vector) in texts.iter().zip(&answer.vectors) {
        println!("{:.3}  {text}", cosine(&answer.vectors[0], vector));
    }
    Ok(())
}
