//! Speculation through the library: the embedded story-teller and the draft model beside it.

use std::path::PathBuf;
use std::sync::Arc;

use crate::common::one_thread;
use pelton_base::{FinishReason, SamplingParams, TokenId};
use pelton_llm::{
    CompletionRequest, Generation, Llm, LlmError, LlmOptions, LogprobsMode, ModelRef, Prompt,
    SpecConfig, SpecMethod, Verification,
};
use pelton_sched::Choices;
use pelton_testkit::TinyModel;

/// A prompt that repeats itself, so that drafts are right.
const AGAIN: &str = "The cat sat on the mat. The cat sat on the mat. The cat sat on the";

fn story(name: &str) -> ModelRef {
    let file = format!("../cli/model/{name}-q8_0.gguf");
    ModelRef::Path(PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(file))
}

/// Every draft that can be made is made, whatever it costs.
fn forced(method: SpecMethod) -> SpecConfig {
    let exit_layers = (method == SpecMethod::EarlyExit).then_some(3);
    SpecConfig { method, exit_layers, is_forced: true, ..SpecConfig::default() }
}

fn options(spec: SpecConfig) -> LlmOptions {
    let draft = (spec.method == SpecMethod::Draft).then(|| story("story-draft"));
    LlmOptions {
        choices: Choices { max_running: 4, ..Choices::default() },
        max_context: Some(200),
        spec,
        draft,
        ..LlmOptions::default()
    }
}

fn load(spec: SpecConfig) -> Arc<Llm> {
    Llm::load(&one_thread(), &story("story"), &options(spec), &mut |_| {}).expect("loads")
}

#[derive(Debug, PartialEq)]
struct Told {
    text: String,
    tokens: Vec<TokenId>,
    reason: FinishReason,
}

/// One answer, and how many drafts of it were right and wrong.
fn tell(llm: &Llm, prompt: &str, generation: Generation) -> (Told, usize, usize) {
    let prompts = vec![Prompt::Text(prompt.to_owned())];
    let request = CompletionRequest { prompts, generation };
    let mut generating = llm.complete(request).expect("accepted");
    let (mut text, mut tokens) = (String::new(), Vec::new());
    while let Some(event) = generating.blocking_next() {
        text.push_str(&event.text);
        tokens.extend(event.tokens.iter().map(|token| token.id));
        if let Some(finish) = event.finish {
            let usage = finish.usage;
            let told = Told { text, tokens, reason: finish.reason };
            let (right, wrong) =
                (usage.accepted_prediction_tokens, usage.rejected_prediction_tokens);
            return (told, right, wrong);
        }
    }
    panic!("the answer broke off");
}

/// A text from the middle of a greedy answer, which differs between processors.
fn stop_text(plain: &Llm) -> String {
    let sampling = SamplingParams::greedy();
    let generation = Generation { sampling, max_tokens: Some(20), ..Generation::default() };
    let text = tell(plain, AGAIN, generation).0.text;
    text.chars().skip(25).take(10).collect()
}

/// Answers that end in every way that there is, within a draft more often than not.
fn endings(stop: &str) -> Vec<(&'static str, Generation)> {
    let greedy = Generation { sampling: SamplingParams::greedy(), ..Generation::default() };
    let warm = SamplingParams { temperature: 0.8, seed: 7, ..SamplingParams::default() };
    vec![
        (AGAIN, Generation { max_tokens: Some(60), ..greedy.clone() }),
        (AGAIN, Generation { max_tokens: Some(2), ..greedy.clone() }),
        (AGAIN, Generation { max_tokens: Some(1), ..greedy.clone() }),
        // A stop text that may begin and end within tokens.
        (AGAIN, Generation { stop: vec![stop.to_owned()], ..greedy.clone() }),
        (AGAIN, Generation { sampling: warm.clone(), max_tokens: Some(60), ..greedy.clone() }),
        ("Once upon a time", Generation { max_tokens: Some(50), ..greedy.clone() }),
        ("Once upon a time", Generation { sampling: warm, max_tokens: Some(50), ..greedy.clone() }),
        // The end of the context.
        (AGAIN, Generation { ignore_eos: true, ..greedy }),
    ]
}

#[test]
fn answers_end_as_they_do_without_drafts() {
    let plain = load(forced(SpecMethod::Off));
    let stop = stop_text(&plain);
    let expected: Vec<Told> =
        endings(&stop).into_iter().map(|(prompt, asked)| tell(&plain, prompt, asked).0).collect();
    assert_eq!(expected[3].reason, FinishReason::Stop, "{stop:?}: {expected:?}");
    assert!(expected[7].tokens.len() > 100, "to the end of the context");
    for &method in SpecMethod::ALL.iter().filter(|method| **method != SpecMethod::Off) {
        let llm = load(forced(method));
        let mut drafts = (0, 0);
        for ((prompt, asked), expected) in endings(&stop).into_iter().zip(&expected) {
            let (told, right, wrong) = tell(&llm, prompt, asked);
            assert_eq!(&told, expected, "{method:?}");
            drafts = (drafts.0 + right, drafts.1 + wrong);
        }
        assert!(drafts.0 > 20, "{method:?}: {drafts:?} drafts were right and wrong");
    }
}

/// The log probabilities of an answer's tokens and of the likeliest beside them, as bits.
fn logprobs(llm: &Llm, generation: Generation) -> Vec<(u32, Vec<(TokenId, u32)>)> {
    let prompts = vec![Prompt::Text(AGAIN.to_owned())];
    let mut generating = llm.complete(CompletionRequest { prompts, generation }).expect("accepted");
    let mut all = Vec::new();
    while let Some(event) = generating.blocking_next() {
        for token in event.tokens {
            let told = token.logprob.expect("asked for");
            let top = told.top.iter().map(|one| (one.id, one.logprob.to_bits()));
            all.push((told.logprob.to_bits(), top.collect()));
        }
    }
    all
}

#[test]
fn log_probabilities_of_both_kinds_are_those_without_drafts() {
    let (plain, drafting) = (load(SpecConfig::default()), load(forced(SpecMethod::Suffix)));
    let greedy = SamplingParams { logprobs: Some(4), ..SamplingParams::greedy() };
    let drawn =
        SamplingParams { temperature: 0.7, top_k: 5, top_p: 0.9, seed: 3, ..greedy.clone() };
    for sampling in [greedy, SamplingParams { min_p: 0.05, ..drawn.clone() }, drawn] {
        let ask = |llm: &Llm, logprobs_mode| {
            let sampling = SamplingParams { repetition_penalty: 1.1, ..sampling.clone() };
            let max_tokens = Some(40);
            logprobs(
                llm,
                Generation { sampling, logprobs_mode, max_tokens, ..Generation::default() },
            )
        };
        let [raw, processed] = LogprobsMode::ALL else { panic!("two modes") };
        let told = [ask(&plain, *raw), ask(&plain, *processed)];
        assert_eq!(told, [ask(&drafting, *raw), ask(&drafting, *processed)]);
        assert_ne!(told[0], told[1], "a penalty shows in one of them");
    }
}

#[test]
fn rejection_sampling_gives_greedy_answers_as_they_are() {
    let plain = load(forced(SpecMethod::Off));
    let stop = stop_text(&plain);
    for verification in [Verification::Rejection, Verification::Typical] {
        let llm = load(SpecConfig { verification, ..forced(SpecMethod::Draft) });
        for (prompt, asked) in endings(&stop) {
            let (told, right, wrong) = tell(&llm, prompt, asked.clone());
            if asked.sampling.temperature == 0.0 {
                assert_eq!(told, tell(&plain, prompt, asked).0, "{verification:?}");
            }
            assert!(told.tokens.len() <= 200 && right + wrong < 2000);
        }
    }
}

#[test]
fn what_cannot_draft_is_refused_by_name() {
    let folder = tempfile::tempdir().expect("temp");
    let stranger = folder.path().join("stranger");
    TinyModel::default().write_folder(&stranger);
    let empty = folder.path().join("empty");
    std::fs::create_dir(&empty).expect("a folder");
    let spec = forced(SpecMethod::Draft);
    let draft = |path: &PathBuf| Some(ModelRef::Path(path.clone()));
    let off = forced(SpecMethod::Off);
    let exits = |exit_layers| SpecConfig { exit_layers, ..forced(SpecMethod::EarlyExit) };
    let cases = [
        (LlmOptions { draft: None, ..options(spec) }, "needs a model that drafts"),
        (LlmOptions { draft: draft(&stranger), ..options(spec) }, "its vocabulary is another one"),
        (LlmOptions { draft: draft(&empty), ..options(spec) }, "config.json"),
        (LlmOptions { draft: draft(&stranger), ..options(off) }, "it drafts only where"),
        (options(SpecConfig { max_drafts: 0, ..off }), "expected 1 to 64"),
        (options(SpecConfig { max_drafts: 65, ..spec }), "expected 1 to 64"),
        (options(exits(None)), "needs the number of layers"),
        (options(exits(Some(0))), "the model has"),
        (options(exits(Some(99))), "the model has"),
        (options(SpecConfig { exit_layers: Some(1), ..off }), "only `early-exit`"),
    ];
    for (options, expected) in cases {
        let loaded = Llm::load(&one_thread(), &story("story"), &options, &mut |_| {});
        let error: LlmError = loaded.err().unwrap_or_else(|| panic!("{expected}: it loads"));
        let mut text = error.to_string();
        let mut source = std::error::Error::source(&error);
        while let Some(cause) = source {
            text.push_str(&format!(": {cause}"));
            source = cause.source();
        }
        assert!(text.contains(expected), "{text}, not: {expected}");
    }
}
