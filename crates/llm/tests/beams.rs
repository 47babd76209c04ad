//! Beam search through the library: texts, scores, usage, refusals, aborts.

use crate::common::{CONTEXT, END, Gate, gated_parrot, parrot};
use pelton_base::{FinishReason, SamplingParams, TokenId};
use pelton_engine::Fault;
use pelton_llm::{
    BeamAnswer, BeamParams, BeamRequest, BeamSearch, ChatRequest, CompletionRequest, EarlyStopping,
    Generation, Llm, LlmError, Prompt, Service, Speculation,
};
use pelton_text::Message;

fn texts(prompts: &[&str]) -> Vec<Prompt> {
    prompts.iter().map(|text| Prompt::Text((*text).to_owned())).collect()
}

fn begin(
    llm: &Llm,
    prompts: &[&str],
    params: BeamParams,
    max_tokens: usize,
) -> Result<BeamSearch, LlmError> {
    let generation = Generation { max_tokens: Some(max_tokens), ..Generation::default() };
    llm.beam_search(BeamRequest { prompts: texts(prompts), params, generation })
}

fn search(llm: &Llm, prompts: &[&str], params: BeamParams, n: usize) -> Vec<Vec<BeamAnswer>> {
    begin(llm, prompts, params, n).expect("taken").blocking_finish().expect("no answer fails")
}

#[test]
fn the_answers_to_each_prompt_come_best_first_with_their_scores() {
    let llm = parrot();
    let params = BeamParams { n: 3, ..BeamParams::of_width(4) };
    let mut searching = begin(&llm, &["abcdef", "xyz!"], params, 6).expect("taken");
    let found = searching.blocking_finish().expect("no answer fails");
    assert_eq!(found.iter().map(Vec::len).collect::<Vec<_>>(), [3, 3]);
    // The parrot repeats its prompt; after `!` it ends.
    assert_eq!(found[0][0].text, "abcdef");
    assert_eq!(found[0][0].finish.reason, FinishReason::Length);
    assert_eq!(found[1][0].text, "xyz!", "the end token has no text");
    assert_eq!(found[1][0].finish.reason, FinishReason::Stop);
    assert_eq!(found[1][0].tokens.last().expect("tokens").id, END);
    for answers in &found {
        assert!(answers.is_sorted_by(|a, b| a.score.score >= b.score.score));
        for answer in answers {
            let n_prompt = answer.finish.usage.prompt_tokens;
            let is_stopped = answer.finish.reason == FinishReason::Stop;
            let length = n_prompt + answer.tokens.len() - usize::from(is_stopped);
            let score = answer.score.cumulative_logprob / length as f64;
            assert_eq!(answer.score.score, score);
            assert_eq!(answer.finish.usage.completion_tokens, answer.tokens.len());
            assert!(answer.tokens.iter().all(|token| token.logprob.is_none()), "not asked for");
        }
    }
    let usage = searching.usage();
    let n_tokens: usize = found.iter().flatten().map(|answer| answer.tokens.len()).sum();
    assert_eq!((usage.prompt_tokens, usage.completion_tokens), (6 + 4, n_tokens));
    assert_eq!(searching.n_tokens(), 5, "steps before the last");
    assert_eq!(searching.prompt_progress(), (10, 10));
    let timings = searching.timings();
    assert!(timings.ttft_seconds.is_some_and(|ttft| ttft <= timings.total_seconds), "{timings:?}");
}

#[test]
fn a_generating_with_beams_has_one_event_for_each_answer() {
    let llm = parrot();
    let generation = Generation {
        n: 2,
        beams: Some(BeamParams::of_width(3)),
        max_tokens: Some(4),
        sampling: SamplingParams { logprobs: Some(2), ..SamplingParams::greedy() },
        ..Generation::default()
    };
    let messages = vec![Message::new("user", "hello")];
    let mut generating = llm.chat(ChatRequest::new(messages, generation)).expect("taken");
    assert_eq!(generating.n_choices(), 2);
    let mut choices = Vec::new();
    while let Some(event) = generating.blocking_next() {
        let finish = event.finish.expect("an answer comes whole");
        let sum: f64 = event
            .tokens
            .iter()
            .map(|token| {
                let logprob = token.logprob.as_ref().expect("asked for");
                assert_eq!(logprob.top.len(), 2);
                f64::from(logprob.logprob)
            })
            .sum();
        assert_eq!(finish.beam.expect("a score").cumulative_logprob, sum);
        choices.push((event.choice, event.tokens.len()));
    }
    assert_eq!(choices, [(0, 4), (1, 4)]);
}

#[test]
fn stop_tokens_and_limits_bound_the_answers() {
    let llm = parrot();
    let run = |generation: Generation, prompt: &str| {
        let params =
            BeamParams { n: 1, early_stopping: EarlyStopping::Always, ..BeamParams::of_width(2) };
        let request = BeamRequest { prompts: texts(&[prompt]), params, generation };
        let found = llm.beam_search(request).expect("taken").blocking_finish();
        found.expect("no answer fails").swap_remove(0).swap_remove(0)
    };
    let plain = || Generation { max_tokens: Some(6), ..Generation::default() };
    let stop_tokens = vec![TokenId(b'c'.into())];
    let cut = run(Generation { stop_tokens, ..plain() }, "abcdef");
    assert_eq!((cut.text.as_str(), cut.finish.reason), ("abc", FinishReason::Stop));
    let on = run(Generation { ignore_eos: true, ..plain() }, "xy!");
    assert_eq!(on.finish.reason, FinishReason::Length);
    assert_eq!(on.tokens[3].id, END, "it goes on after the end token");
    let sampling = SamplingParams { min_tokens: 5, ..SamplingParams::default() };
    let late = run(Generation { sampling, ..plain() }, "xy!");
    assert!(late.tokens.len() > 5 && late.tokens[..5].iter().all(|token| token.id != END));
    let prompt = "a".repeat(CONTEXT - 2);
    let last = run(Generation { max_tokens: None, ..Generation::default() }, &prompt);
    assert_eq!((last.tokens.len(), last.finish.reason), (2, FinishReason::Length));
}

#[test]
fn what_does_not_combine_is_refused_by_name() {
    let llm = parrot();
    let beams = || Generation { beams: Some(BeamParams::of_width(2)), ..Generation::default() };
    let sampling = |sampling| Generation { sampling, ..beams() };
    let plain = SamplingParams::default;
    for (param, generation) in [
        ("temperature", sampling(SamplingParams { temperature: 0.5, ..plain() })),
        ("top_p", sampling(SamplingParams { top_p: 0.5, ..plain() })),
        ("top_k", sampling(SamplingParams { top_k: 5, ..plain() })),
        ("logit_bias", sampling(SamplingParams { logit_bias: vec![(TokenId(1), 1.0)], ..plain() })),
        ("n", Generation { n: 3, ..beams() }),
        ("beam_width", Generation { beams: Some(BeamParams::of_width(33)), ..beams() }),
        ("best_of", Generation { best_of: Some(2), ..beams() }),
        ("stop", Generation { stop: vec!["x".to_owned()], ..beams() }),
        ("prediction", Generation { prediction: Some("x".to_owned()), ..beams() }),
        (
            "speculation",
            Generation {
                speculation: Speculation { max_drafts: Some(0), ..Speculation::default() },
                ..beams()
            },
        ),
    ] {
        let request = CompletionRequest { prompts: texts(&["abc"]), generation };
        match llm.complete(request) {
            Err(error) => assert_eq!(error.param(), Some(param), "{error}"),
            Ok(_) => panic!("{param} is taken"),
        }
    }
    let wide = BeamParams::of_width(32);
    let many = vec!["a"; 33];
    let error = begin(&llm, &many, wide, 4).expect_err("1056 beams");
    assert_eq!(error.param(), Some("n"), "{error}");
}

#[test]
fn fewer_answers_than_asked_for_is_an_error_that_counts_them() {
    let llm = parrot();
    let sampling = SamplingParams {
        allowed_tokens: Some(vec![TokenId(b'a'.into())]),
        ..SamplingParams::greedy()
    };
    let generation = Generation { sampling, max_tokens: Some(3), ..Generation::default() };
    let params = BeamParams::of_width(3);
    let request = BeamRequest { prompts: texts(&["abc"]), params, generation };
    let failed =
        llm.beam_search(request).expect("taken").blocking_finish().expect_err("one answer");
    assert_eq!(failed.reason, FinishReason::Error);
    let why = "1 answers are possible, 3 are asked for".to_owned();
    assert_eq!(failed.fault, Some(Fault::Stuck(why)));
}

#[test]
fn a_search_that_is_dropped_leaves_nothing_behind() {
    let gate = Gate::closed(3);
    let llm = gated_parrot(&gate, 1024);
    let searching = begin(&llm, &["abcdef"], BeamParams::of_width(4), 400).expect("taken");
    while llm.metrics().n_steps < 3 {
        std::thread::yield_now();
    }
    drop(searching);
    gate.open();
    llm.shutdown(true);
    llm.engine().join();
    let metrics = llm.metrics();
    assert_eq!((metrics.n_running, metrics.n_waiting), (0, 0));
    assert_eq!(metrics.n_free_blocks, metrics.n_blocks);
    assert!(metrics.n_steps < 10, "{metrics:?}");
}

#[test]
fn a_search_has_the_service_of_its_request_and_fails_alone() {
    let llm = parrot();
    let service = Service { priority: 3, ..Service::default() };
    let generation = Generation { max_tokens: Some(3), service, ..Generation::default() };
    let params = BeamParams::of_width(2);
    let request = BeamRequest { prompts: texts(&["a~c", "abc"]), params, generation };
    let failed = llm.beam_search(request).expect("taken").blocking_finish().expect_err("`~` fails");
    assert_eq!(failed.reason, FinishReason::Error);
    assert_eq!(search(&llm, &["abc"], params, 3)[0][0].text, "abc");
}
