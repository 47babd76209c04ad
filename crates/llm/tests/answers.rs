//! Requests in, events out, over an engine whose model is a parrot.

use crate::common::{CONTEXT, END, Gate, VOCAB, gated_parrot, parrot};
use std::time::Duration;

use pelton_base::{FinishReason, SamplingParams, Slo, TenantId, TokenId};
use pelton_llm::{
    BestOf, ChatRequest, CompletionRequest, Event, Generating, Generation, Llm, LlmError, Prompt,
    Service,
};
use pelton_text::Message;

fn completion(text: &str, generation: Generation) -> CompletionRequest {
    CompletionRequest { prompts: vec![Prompt::Text(text.to_owned())], generation }
}

fn greedy(max_tokens: usize) -> Generation {
    Generation {
        sampling: SamplingParams::greedy(),
        max_tokens: Some(max_tokens),
        ..Generation::default()
    }
}

/// The text of each choice and the last event of each.
fn gather(mut generating: Generating) -> Vec<(String, Event)> {
    let mut texts = vec![(String::new(), None); generating.n_choices()];
    while let Some(event) = generating.blocking_next() {
        let (text, last) = &mut texts[event.choice];
        assert!(last.is_none(), "an event after the last");
        text.push_str(&event.text);
        if event.finish.is_some() {
            *last = Some(event);
        }
    }
    texts.into_iter().map(|(text, last)| (text, last.expect("finished"))).collect()
}

fn one(llm: &Llm, text: &str, generation: Generation) -> (String, FinishReason, usize) {
    let generating = llm.complete(completion(text, generation)).expect("accepted");
    let (text, last) = gather(generating).remove(0);
    let finish = last.finish.expect("the last");
    (text, finish.reason, finish.usage.completion_tokens)
}

#[test]
fn an_answer_ends_by_length_or_by_the_end_token_whose_text_is_hidden() {
    let llm = parrot();
    assert_eq!(one(&llm, "abc", greedy(5)), ("abcab".into(), FinishReason::Length, 5));
    assert_eq!(one(&llm, "abc!", greedy(50)), ("abc!".into(), FinishReason::Stop, 5));
    let on = Generation { ignore_eos: true, ..greedy(6) };
    assert_eq!(one(&llm, "abc!", on), ("abc!b".into(), FinishReason::Length, 6));
}

#[test]
fn without_a_limit_the_answer_fills_the_context() {
    let generation = Generation { max_tokens: None, ..greedy(1) };
    let (text, reason, _) = one(&parrot(), "abcdefgh", generation);
    assert_eq!((text.len(), reason), (CONTEXT - 8, FinishReason::Length));
}

#[test]
fn a_stop_string_over_several_tokens_is_cut_and_frees_the_request() {
    let llm = parrot();
    let stop = Generation { stop: vec!["dea".into(), "xyz".into()], ..greedy(400) };
    let generating = llm.complete(completion("abcde", stop)).expect("accepted");
    let (text, last) = gather(generating).remove(0);
    let finish = last.finish.expect("the last");
    assert_eq!((text.as_str(), finish.reason), ("abc", FinishReason::Stop));
    assert_eq!(finish.stop.as_deref(), Some("dea"));
    assert_eq!(finish.usage.completion_tokens, 6);
}

#[test]
fn text_held_back_for_a_stop_string_comes_out_at_the_end() {
    let generation = Generation { stop: vec!["deX".into()], ..greedy(5) };
    assert_eq!(one(&parrot(), "abcde", generation).0, "abcde");
}

#[test]
fn nothing_ends_an_answer_that_is_too_short() {
    let llm = parrot();
    let at_least = |min_tokens, max_tokens, stop: &[&str]| {
        let sampling = SamplingParams { min_tokens, ..SamplingParams::greedy() };
        let stop = stop.iter().copied().map(str::to_owned).collect();
        Generation { sampling, stop, ..greedy(max_tokens) }
    };
    let said = |generation| one(&llm, "abc!", generation);
    let (stop, length) = (FinishReason::Stop, FinishReason::Length);
    // The end token is one more than there must be at least.
    for (min_tokens, text) in [(0, "abc!"), (4, "abc!"), (5, "abc!a"), (9, "abc!abc!a")] {
        let expected = (text.to_owned(), stop, text.len() + 1);
        assert_eq!(said(at_least(min_tokens, 50, &[])), expected, "at least {min_tokens}");
    }
    assert_eq!(said(at_least(7, 7, &[])), ("abc!abc".to_owned(), length, 7));
    assert_eq!(said(at_least(9, 10, &["!a"])), ("abc!abc!a".to_owned(), stop, 10));
    // One that begins too early and ends in time is cut off whole.
    let on = |min_tokens| one(&llm, "abc?", at_least(min_tokens, 50, &["?a", "bc"]));
    assert_eq!(on(8), ("abc?abc".to_owned(), stop, 9));
    assert_eq!(on(5), ("abc?a".to_owned(), stop, 7));
    // A character that lacks bytes is known at the end alone, and is the text of the last token.
    let broken = |min_tokens| one(&llm, "ab€", at_least(min_tokens, 4, &["\u{fffd}"]));
    assert_eq!(broken(4), ("ab\u{fffd}".to_owned(), length, 4));
    assert_eq!(broken(3), ("ab".to_owned(), stop, 4));
}

#[test]
fn choices_have_a_least_length_each_and_end_tokens_that_are_ignored_have_none() {
    let llm = parrot();
    let sampling = SamplingParams { min_tokens: 5, ..SamplingParams::greedy() };
    let many = Generation { sampling, n: 2, best_of: Some(3), ..greedy(50) };
    let answers = gather(llm.complete(completion("abc!", many.clone())).expect("accepted"));
    let texts: Vec<&str> = answers.iter().map(|(text, _)| text.as_str()).collect();
    assert_eq!(texts, ["abc!a"; 3]);
    let on = Generation { ignore_eos: true, n: 1, best_of: None, max_tokens: Some(8), ..many };
    assert_eq!(one(&llm, "abc!", on).1, FinishReason::Length);
}

#[test]
fn a_least_length_beyond_the_context_is_refused_by_name() {
    let llm = parrot();
    for (prompt, min_tokens, is_taken) in
        [("abc?", CONTEXT - 4, true), ("abc?", CONTEXT - 3, false), ("abc?x", CONTEXT - 4, false)]
    {
        let sampling = SamplingParams { min_tokens, ..SamplingParams::greedy() };
        let generation = Generation { sampling, ..Generation::default() };
        match llm.complete(completion(prompt, generation)) {
            Ok(_) => assert!(is_taken, "{prompt}, {min_tokens}"),
            Err(error) => assert_eq!((error.param(), is_taken), (Some("min_tokens"), false)),
        }
    }
}

#[test]
fn characters_of_several_tokens_come_whole() {
    let llm = parrot();
    let mut generating = llm.complete(completion("añ€", greedy(6))).expect("accepted");
    let mut text = String::new();
    while let Some(event) = generating.blocking_next() {
        assert!(!event.text.contains('\u{fffd}'), "a broken character in {:?}", event.text);
        text.push_str(&event.text);
    }
    assert_eq!(text, "añ€");
    // One token more is a piece of a character, and says so at the end.
    assert_eq!(one(&llm, "€a", greedy(6)).0, "€a\u{fffd}");
}

#[test]
fn choices_and_prompts_are_answered_side_by_side() {
    let sampling = SamplingParams { seed: 0, ..SamplingParams::default() };
    let request = CompletionRequest {
        prompts: vec![Prompt::Text("abc".into()), Prompt::Tokens(vec![TokenId(120), TokenId(121)])],
        generation: Generation { sampling, n: 2, max_tokens: Some(3), ..Generation::default() },
    };
    let mut generating = parrot().complete(request).expect("accepted");
    assert_eq!(generating.n_choices(), 4);
    let mut texts = vec![String::new(); 4];
    while let Some(event) = generating.blocking_next() {
        texts[event.choice].push_str(&event.text);
    }
    assert_eq!(texts, ["abc", "bca", "xyx", "yxy"]);
    let usage = generating.usage();
    assert_eq!((usage.prompt_tokens, usage.completion_tokens), (5, 12));
    assert!(generating.timings().ttft_seconds.is_some());
}

#[test]
fn log_probabilities_carry_the_bytes_of_tokens() {
    let sampling = SamplingParams { logprobs: Some(1), ..SamplingParams::greedy() };
    let generation = Generation { sampling, ..greedy(50) };
    let mut generating = parrot().complete(completion("é!", generation)).expect("accepted");
    let mut tokens = Vec::new();
    while let Some(event) = generating.blocking_next() {
        tokens.extend(event.tokens);
    }
    let bytes: Vec<u8> =
        tokens.iter().filter(|t| !t.is_special).flat_map(|t| t.bytes.clone()).collect();
    assert_eq!(bytes, "é!".as_bytes());
    assert_eq!(tokens.last().map(|t| (t.id, t.is_special)), Some((END, true)));
    let logprob = tokens[0].logprob.as_ref().expect("asked for");
    assert_eq!((logprob.logprob, logprob.top.len()), (-0.5, 1));
}

#[test]
fn a_chat_goes_through_the_template() {
    let request = ChatRequest::new(vec![Message::new("user", "hello!")], greedy(50));
    let (text, _) = gather(parrot().chat(request).expect("accepted")).remove(0);
    assert_eq!(text, "hello!");
}

#[test]
fn bad_requests_are_refused_with_their_reason() {
    let llm = parrot();
    let complete = |prompt: Prompt, generation: Generation| {
        llm.complete(CompletionRequest { prompts: vec![prompt], generation }).expect_err("refused")
    };
    let text = |text: &str| Prompt::Text(text.to_owned());
    assert!(matches!(complete(text(""), greedy(1)), LlmError::EmptyPrompt));
    assert!(matches!(complete(Prompt::Tokens(vec![]), greedy(1)), LlmError::EmptyPrompt));
    let long = complete(text(&"x".repeat(CONTEXT)), greedy(1));
    let LlmError::ContextLength { n_prompt, limit, context } = long else { panic!("{long}") };
    assert_eq!((n_prompt, limit, context), (CONTEXT, CONTEXT - 1, CONTEXT));
    let unknown = TokenId(VOCAB as u32);
    let error = complete(Prompt::Tokens(vec![unknown]), greedy(1));
    assert!(matches!(error, LlmError::TokenOutOfRange { param: "prompt", .. }), "{error}");
    let stop = Generation { stop_tokens: vec![unknown], ..greedy(1) };
    assert_eq!(complete(text("a"), stop).param(), Some("stop_token_ids"));
    let hot = SamplingParams { temperature: f32::NAN, ..SamplingParams::default() };
    let hot = Generation { sampling: hot, ..greedy(1) };
    assert_eq!(complete(text("a"), hot).param(), Some("temperature"));
}

#[test]
fn a_request_that_fails_ends_with_an_error_and_its_neighbour_does_not() {
    let llm = parrot();
    let bad = llm.complete(completion("a~", greedy(5))).expect("accepted");
    let good = llm.complete(completion("abc", greedy(5))).expect("accepted");
    let finish = gather(bad).remove(0).1.finish.expect("the last");
    assert_eq!(finish.reason, FinishReason::Error);
    assert_eq!(gather(good).remove(0).0, "abcab");
}

#[test]
fn a_request_is_taken_with_all_its_answers_or_not_at_all() {
    let gate = Gate::closed(0);
    let llm = gated_parrot(&gate, 3);
    let many = |n| CompletionRequest {
        prompts: vec![Prompt::Text("abc".to_owned()), Prompt::Text("xyz".to_owned())],
        generation: Generation { n, ..greedy(4) },
    };
    let first = llm.complete(many(5)).expect("nothing waits yet");
    // The engine takes some of them out of its mailbox; all others wait.
    let error = llm.complete(many(1)).expect_err("too many wait");
    assert_eq!(error.retry_after_seconds(), Some(1));
    gate.open();
    assert_eq!(gather(first).len(), 10);
}

#[test]
fn dropping_an_answer_frees_its_memory_and_a_full_mailbox_is_an_answer() {
    let gate = Gate::closed(0);
    let llm = gated_parrot(&gate, 1);
    let first = llm.complete(completion("abc", greedy(400))).expect("accepted");
    // Whether the first has left the mailbox is the engine's business; the third cannot enter.
    let mut others = Vec::new();
    let error = loop {
        match llm.complete(completion("abc", greedy(400))) {
            Ok(generating) => others.push(generating),
            Err(error) => break error,
        }
        assert!(others.len() < 40, "never full");
    };
    assert!(error.retry_after_seconds() == Some(1), "{error}");
    drop((first, others));
    gate.open();
    let metrics = loop {
        let metrics = llm.metrics();
        if metrics.n_running + metrics.n_waiting == 0 {
            break metrics;
        }
        std::thread::yield_now();
    };
    assert_eq!(metrics.n_free_blocks, metrics.n_blocks);
    assert!(metrics.generated_tokens < 100, "the dropped answers went on");
}

#[test]
fn a_stopped_engine_ends_answers_and_takes_no_more() {
    let gate = Gate::closed(1);
    let llm = gated_parrot(&gate, 8);
    let mut generating = llm.complete(completion("abc", greedy(400))).expect("accepted");
    assert_eq!(generating.blocking_next().expect("one step").text, "a");
    llm.shutdown(false);
    gate.open();
    let mut last = None;
    while let Some(event) = generating.blocking_next() {
        last = event.finish;
    }
    assert_eq!(last.expect("an end").reason, FinishReason::Aborted);
    let refused = llm.complete(completion("abc", greedy(1)));
    assert!(matches!(refused, Err(LlmError::Stopped)));
}

#[test]
fn what_an_answer_asks_of_the_scheduler_arrives_and_choices_fork_the_first() {
    let gate = Gate::default();
    let llm = gated_parrot(&gate, 64);
    let slo = Slo { ttft: Some(Duration::from_millis(200)), tpot: None };
    let ask = |salt: Option<&str>| {
        let service = Service {
            tenant: TenantId(3),
            priority: -7,
            slo,
            cache_salt: salt.map(str::to_owned),
            ..Service::default()
        };
        let generation = Generation { n: 3, service, ..greedy(2) };
        let prompts = vec![Prompt::Text("abc".to_owned()), Prompt::Text("xyz".to_owned())];
        let request = CompletionRequest { prompts, generation };
        gather(llm.complete(request).expect("accepted"));
    };
    ask(None);
    ask(Some("salt"));
    let heard = gate.heard();
    assert_eq!(heard.len(), 12);
    for (i, request) in heard.iter().enumerate() {
        let service = &request.ask.service;
        assert_eq!((service.tenant, service.priority, service.slo), (TenantId(3), -7, slo));
        let first = (i % 3 > 0).then(|| heard[i - i % 3].id);
        assert_eq!(service.fork_of, first, "request {i}");
        assert_eq!(service.namespace, heard[i - i % 6].ask.service.namespace, "request {i}");
    }
    assert_ne!(
        heard[0].ask.service.namespace, heard[6].ask.service.namespace,
        "the salt parts them"
    );
}

#[test]
fn the_likeliest_of_several_answers_are_told_by_their_log_probabilities() {
    let generation = Generation { n: 2, best_of: Some(5), ..greedy(4) };
    let mut generating = parrot().complete(completion("abc", generation)).expect("accepted");
    assert_eq!(generating.n_choices(), 5);
    let mut best = BestOf::new(1, 2, 5);
    while let Some(event) = generating.blocking_next() {
        best.add(&event);
    }
    // Choices 0 and 3 are the likeliest.
    assert_eq!(best.choices(), [0, 3]);
    assert_eq!(generating.usage().completion_tokens, 20, "what was made counts");
}
