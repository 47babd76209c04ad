//! Drafts with code of its own: `cargo run --release --example own_proposer [MODEL]`.
//!
//! The proposer guesses that the answer goes on as it did after the last occurrence of the same
//! token. Drafts change when tokens come and never which, so a wrong guess costs only time.

use std::error::Error;

use pelton::proposer::{Abilities, Odds, Proposer, ProposerError, Request, RequestId, Row, Seen};
use pelton::{
    CompletionRequest, Llm, LlmOptions, ModelRef, Prompt, Runtime, RuntimeOptions, SpecConfig,
};

/// Copies what followed the last occurrence of the last token.
#[derive(Debug)]
struct Copy;

/// The place after an earlier occurrence of the last token.
fn place(row: &Row<'_>) -> Option<usize> {
    let (last, before) = row.tokens.split_last()?;
    before.iter().rposition(|token| token == last).map(|found| found + 1)
}

impl Proposer for Copy {
    fn name(&self) -> &'static str {
        "copy"
    }

    /// Drafts are a chain, and pay by themselves.
    fn abilities(&self) -> Abilities {
        Abilities::default()
    }

    fn add(&mut self, _request: &Request) {}

    /// How many drafts there could be, and the length of the match behind them.
    fn look(&mut self, row: &Row<'_>, most: usize) -> (usize, usize) {
        place(row).map_or((0, 0), |place| (most.min(row.tokens.len() - place), 1))
    }

    fn propose(
        &mut self,
        rows: &mut [Row<'_>],
        _odds: Option<&mut Odds>,
    ) -> Result<(), ProposerError> {
        for row in rows {
            if let Some(place) = place(row) {
                row.drafts.extend(row.tokens[place..].iter().copied().take(row.n_drafts));
            }
        }
        Ok(())
    }

    fn is_catching_up(&self, _row: &Row<'_>) -> bool {
        false
    }

    fn observe(&mut self, _seen: &Seen<'_>) {}

    fn finished(&mut self, _id: RequestId) {}
}

fn main() -> Result<(), Box<dyn Error>> {
    run(std::env::args().nth(1).map_or(Ok(pelton::story()), |name| ModelRef::parse(&name))?)
}

/// Loads the model and prints a text, and how many of its tokens were drafted.
pub(crate) fn run(model: ModelRef) -> Result<(), Box<dyn Error>> {
    let runtime = Runtime::new(RuntimeOptions::from_env(None))?;
    let options = LlmOptions {
        proposers: vec![|| Box::new(Copy)],
        // Otherwise drafts are made only where measured prices say that they pay.
        spec: SpecConfig { is_forced: true, ..SpecConfig::default() },
        ..LlmOptions::default()
    };
    let llm = Llm::load(&runtime, &model, &options, &mut |_| {})?;

    let mut generation = llm.default_generation();
    generation.max_tokens = Some(60);
    generation.sampling.temperature = 0.0;
    let prompts = vec![Prompt::Text("one two three one two three one two".to_owned())];
    let mut generating = llm.complete(CompletionRequest { prompts, generation })?;
    while let Some(event) = generating.blocking_next() {
        print!("{}", event.text);
    }
    let usage = generating.usage();
    let (right, wrong) = (usage.accepted_prediction_tokens, usage.rejected_prediction_tokens);
    println!("\n{right} drafts were right, {wrong} were wrong");
    match right + wrong {
        0 => Err("nothing was drafted".into()),
        _ => Ok(()),
    }
}
