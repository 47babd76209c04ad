//! Requests and models with code of the caller's own: logits processors and proposers.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use crate::common::one_thread;
use pelton_base::{Request, RequestId, SamplingParams, TokenId};
use pelton_engine::spec::{Abilities, Odds, Proposer, ProposerError, Row, Seen};
use pelton_llm::{
    CompletionRequest, Generation, Llm, LlmOptions, LogitsProcessor, ModelRef, Prompt, RowContext,
    SpecConfig, SpecMethod,
};
use pelton_sched::Choices;

fn load(spec: SpecConfig, proposers: Vec<fn() -> Box<dyn Proposer>>) -> Arc<Llm> {
    let story = concat!(env!("CARGO_MANIFEST_DIR"), "/../cli/model/story-q8_0.gguf");
    let options = LlmOptions {
        choices: Choices { max_running: 4, ..Choices::default() },
        max_context: Some(100),
        spec,
        proposers,
        ..LlmOptions::default()
    };
    let model = ModelRef::Path(PathBuf::from(story));
    Llm::load(&one_thread(), &model, &options, &mut |_| {}).expect("loads")
}

/// Tokens of each answer to "Once upon a time", and how many were drafted.
fn answers(llm: &Llm, generation: Generation) -> (Vec<Vec<TokenId>>, usize) {
    let prompts = vec![Prompt::Text("Once upon a time".to_owned())];
    let request = CompletionRequest { prompts, generation };
    let mut generating = llm.complete(request).expect("accepted");
    let mut answers = vec![Vec::new(); generating.n_choices()];
    while let Some(event) = generating.blocking_next() {
        answers[event.choice].extend(event.tokens.iter().map(|token| token.id));
    }
    let usage = generating.usage();
    (answers, usage.accepted_prediction_tokens + usage.rejected_prediction_tokens)
}

fn generation(n: u32) -> Generation {
    let sampling = SamplingParams { seed: 3, ..SamplingParams::default() };
    Generation { sampling, max_tokens: Some(24), n, ignore_eos: true, ..Generation::default() }
}

/// Prompt and output of each answer, once it is complete.
type Shown = Arc<Mutex<Vec<(Vec<TokenId>, Vec<TokenId>)>>>;

/// Forbids odd tokens, and remembers what it is shown.
#[derive(Clone, Debug)]
struct Even {
    prompt: Vec<TokenId>,
    output: Vec<TokenId>,
    shown: Shown,
}

impl LogitsProcessor for Even {
    fn apply(&mut self, row: &RowContext, logits: &mut [f32]) {
        assert_eq!(row.n_generated, self.output.len());
        logits.iter_mut().skip(1).step_by(2).for_each(|logit| *logit = f32::NEG_INFINITY);
    }

    fn accepted(&mut self, token: TokenId) {
        self.output.push(token);
        if self.output.len() == 24 {
            let shown = (self.prompt.clone(), self.output.clone());
            self.shown.lock().expect("not poisoned").push(shown);
        }
    }

    fn reserve(&mut self, n_tokens: usize) {
        self.output.reserve(n_tokens);
    }

    fn preserves_argmax(&self) -> bool {
        false
    }

    fn fork(&self) -> Box<dyn LogitsProcessor> {
        Box::new(self.clone())
    }
}

#[test]
fn each_answer_has_a_processor_of_its_own_that_sees_prompt_and_output() {
    let llm = load(SpecConfig::default(), Vec::new());
    let shown = Arc::new(Mutex::new(Vec::new()));
    let mut asked = generation(2);
    let sink = Arc::clone(&shown);
    asked.processors.push(move |prompt| {
        let shown = Arc::clone(&sink);
        Box::new(Even { prompt: prompt.to_vec(), output: Vec::new(), shown })
    });
    let (mut got, _) = answers(&llm, asked.clone());
    assert!(got.concat().iter().all(|token| token.0 % 2 == 0), "{got:?}");
    assert!(answers(&llm, generation(1)).0.concat().iter().any(|token| token.0 % 2 == 1));
    let mut shown = std::mem::take(&mut *shown.lock().expect("not poisoned"));
    shown.sort();
    got.sort();
    assert_eq!(shown.iter().map(|(_, output)| output.clone()).collect::<Vec<_>>(), got);
    assert!(shown.iter().all(|(prompt, _)| !prompt.is_empty() && *prompt == shown[0].0));
    // Greedy answers need the row, too, although they want only its largest logit.
    asked.sampling = SamplingParams::greedy();
    assert!(answers(&llm, asked).0.concat().iter().all(|token| token.0 % 2 == 0));
}

/// Guesses that the last token comes again.
#[derive(Debug)]
struct Again;

impl Proposer for Again {
    fn name(&self) -> &'static str {
        "again"
    }

    fn abilities(&self) -> Abilities {
        Abilities::default()
    }

    fn add(&mut self, _request: &Request) {}

    fn look(&mut self, _row: &Row<'_>, most: usize) -> (usize, usize) {
        (most.min(2), 1)
    }

    fn propose(
        &mut self,
        rows: &mut [Row<'_>],
        _odds: Option<&mut Odds>,
    ) -> Result<(), ProposerError> {
        for row in rows {
            let last = *row.tokens.last().expect("a prompt");
            row.drafts.extend(std::iter::repeat_n(last, row.n_drafts));
        }
        Ok(())
    }

    fn is_catching_up(&self, _row: &Row<'_>) -> bool {
        false
    }

    fn observe(&mut self, _seen: &Seen<'_>) {}

    fn finished(&mut self, _id: RequestId) {}
}

#[test]
fn a_proposer_of_the_caller_drafts_and_changes_no_token() {
    let forced = SpecConfig { is_forced: true, ..SpecConfig::default() };
    let (plain, none) = answers(&load(SpecConfig::default(), Vec::new()), generation(2));
    let (drafted, some) = answers(&load(forced, vec![|| Box::new(Again)]), generation(2));
    assert_eq!(plain, drafted);
    assert!(none == 0 && some > 0, "{none} and {some} drafts");
    // Processors see accepted tokens alone, also where drafts are verified.
    let shown = Arc::new(Mutex::new(Vec::new()));
    let mut asked = generation(1);
    asked.processors.push(move |prompt| {
        let shown = Arc::clone(&shown);
        Box::new(Even { prompt: prompt.to_vec(), output: Vec::new(), shown })
    });
    let ngram = SpecConfig { method: SpecMethod::Ngram, ..forced };
    let (drafted, _) = answers(&load(ngram, vec![|| Box::new(Again)]), asked.clone());
    assert_eq!(drafted, answers(&load(SpecConfig::default(), Vec::new()), asked).0);
}

#[test]
fn two_proposers_of_one_name_are_refused() {
    let options = LlmOptions {
        proposers: vec![|| Box::new(Again), || Box::new(Again)],
        ..LlmOptions::default()
    };
    let model = ModelRef::Path("nowhere.gguf".into());
    let error =
        Llm::load(&one_thread(), &model, &options, &mut |_| {}).expect_err("two").to_string();
    assert!(error.contains("`again` is taken"), "{error}");
}
