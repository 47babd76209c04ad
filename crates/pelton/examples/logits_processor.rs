//! Generates a text without the letter "e": `cargo run --release --example logits_processor [MODEL]`.

use std::error::Error;
use std::sync::Arc;

use pelton::{
    CompletionRequest, Llm, LlmOptions, LogitsProcessor, ModelRef, Prompt, RowContext, Runtime,
    RuntimeOptions, TokenId,
};

/// Forbids some tokens.
#[derive(Clone, Debug)]
struct Forbid(Arc<Vec<TokenId>>);

impl LogitsProcessor for Forbid {
    fn apply(&mut self, _row: &RowContext, logits: &mut [f32]) {
        for token in self.0.iter() {
            logits[token.0 as usize] = f32::NEG_INFINITY;
        }
    }

    /// A processor that depends on the text would remember the tokens here.
    fn accepted(&mut self, _token: TokenId) {}

    fn reserve(&mut self, _n_tokens: usize) {}

    /// Says that greedy answers need it, too.
    fn preserves_argmax(&self) -> bool {
        false
    }

    fn fork(&self) -> Box<dyn LogitsProcessor> {
        Box::new(self.clone())
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    run(std::env::args().nth(1).map_or(Ok(pelton::story()), |name| ModelRef::parse(&name))?)
}

/// Loads the model and prints a text without the letter.
pub(crate) fn run(model: ModelRef) -> Result<(), Box<dyn Error>> {
    let runtime = Runtime::new(RuntimeOptions::from_env(None))?;
    let llm = Llm::load(&runtime, &model, &LlmOptions::default(), &mut |_| {})?;

    let all = (0..llm.tokenizer().vocab_size() as u32).map(TokenId);
    let has_e = |token: &TokenId| {
        let bytes = llm.tokenizer().token_bytes(*token).unwrap_or_default();
        bytes.iter().any(|byte| byte.eq_ignore_ascii_case(&b'e'))
    };
    let forbidden = Arc::new(all.filter(has_e).collect::<Vec<_>>());
    println!("{} tokens have an e", forbidden.len());

    let mut generation = llm.default_generation();
    generation.max_tokens = Some(40);
    // Called once for each answer, with the tokens of its prompt.
    generation.processors.push(move |_prompt| Box::new(Forbid(Arc::clone(&forbidden))));

    let prompts = vec![Prompt::Text("A big black dog".to_owned())];
    let mut generating = llm.complete(CompletionRequest { prompts, generation })?;
    let mut text = String::new();
    while let Some(event) = generating.blocking_next() {
        text.push_str(&event.text);
    }
    println!("A big black dog{text}");
    if text.contains(['e', 'E']) {
        return Err("an e slipped through".into());
    }
    Ok(())
}
