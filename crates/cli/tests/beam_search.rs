//! Beam search through the real binary.

use crate::common::server::Server;
use crate::common::{pelton, pelton_with_input};
use pelton_base::TokenId;
use pelton_testkit::beams::{NaiveBeams, log_softmax};
use serde_json::{Value, json};

/// An answer of the model inside the binary, as JSON.
fn run(more: &[&str]) -> Value {
    let mut args = vec!["run", "Once upon a time", "--json", "--max-tokens", "8", "--ignore-eos"];
    args.extend(more);
    pelton(&args).json()
}

#[test]
fn one_beam_is_greedy_and_more_beams_score_no_worse() {
    let greedy = run(&["--temperature", "0"]);
    let one = run(&["--beams", "1"]);
    assert_eq!((&one["tokens"], &one["text"]), (&greedy["tokens"], &greedy["text"]));
    let score = |answer: &Value| answer["score"].as_f64().unwrap_or_else(|| panic!("{answer}"));
    let six = run(&["--beams", "6", "--length-penalty", "0"]);
    assert!(score(&six) >= score(&run(&["--beams", "1", "--length-penalty", "0"])));
    assert_eq!(six["cumulative_logprob"], six["score"], "a penalty of 0 divides by 1");
    assert_eq!(run(&["--beams", "6", "--length-penalty", "0"])["tokens"], six["tokens"]);
    assert_eq!(
        run(&["--beams", "6", "--threads", "1"])["tokens"],
        run(&["--beams", "6"])["tokens"]
    );
}

/// The definition over the logits that the binary itself prints.
#[test]
fn the_best_answer_is_that_of_the_definition() {
    let logits = |tokens: &[u32]| -> Vec<f32> {
        let list: Vec<String> = tokens.iter().map(u32::to_string).collect();
        let report = pelton(&["logits", "--tokens", &list.join(","), "--top", "1000000"]);
        let last: Value = serde_json::from_str(report.stdout.lines().last().expect("a row"))
            .unwrap_or_else(|error| panic!("{error}: {}{}", report.stdout, report.stderr));
        let top: Vec<(usize, f32)> = serde_json::from_value(last["top"].clone()).expect("a list");
        let mut row = vec![f32::NEG_INFINITY; top.len()];
        top.into_iter().for_each(|(token, logit)| row[token] = logit);
        row
    };
    let prompt = [7_u32, 9, 11, 13];
    let naive = NaiveBeams {
        width: 2,
        length_penalty: 1.0,
        stops_early: None,
        n_prompt: prompt.len(),
        n_most: 3,
        ends: &[],
    };
    let expected = naive.search(|tokens| {
        let all: Vec<u32> =
            prompt.iter().copied().chain(tokens.iter().map(|token| token.0)).collect();
        log_softmax(&logits(&all))
    });
    let found = pelton(&[
        "run",
        "--tokens",
        "7,9,11,13",
        "--beams",
        "2",
        "--max-tokens",
        "3",
        "--ignore-eos",
        "--json",
    ])
    .json();
    let tokens: Vec<TokenId> = serde_json::from_value(found["tokens"].clone()).expect("tokens");
    assert_eq!(tokens, expected[0].tokens);
    let score = found["score"].as_f64().expect("a score");
    assert!((score - expected[0].score).abs() < 1e-4, "{score} {:?}", expected[0]);
}

#[test]
fn a_server_answers_with_the_beams_that_run_shows() {
    let server = Server::start(&[]).expect("it listens");
    let body = json!({"prompt": "Once upon a time", "use_beam_search": true, "n": 3, "best_of": 6,
        "length_penalty": 0, "max_tokens": 8, "ignore_eos": true});
    let answer = server.post("/v1/completions", &body).expect("answered");
    let texts: Vec<&str> = answer["choices"]
        .as_array()
        .expect("choices")
        .iter()
        .map(|choice| choice["text"].as_str().expect("text"))
        .collect();
    assert_eq!(texts.len(), 3, "{answer}");
    let shown = run(&["--beams", "6", "--length-penalty", "0"]);
    assert_eq!(texts[0], shown["text"].as_str().expect("text"));
    let again = server.post("/v1/completions", &body).expect("answered");
    assert_eq!(again["choices"], answer["choices"], "also from a warm cache");
}

#[test]
fn every_beam_has_the_form_that_is_asked_for() {
    let run = |more: &[&str]| {
        let args = ["run", "Once upon a time", "--json", "--max-tokens", "20"];
        pelton(&[&args[..], more].concat()).json()
    };
    let code = run(&["--beams", "4", "--regex", "[0-9]{3}-[a-f]{2}"]);
    let text = code["text"].as_str().expect("text");
    let (digits, letters) = text.split_once('-').unwrap_or_else(|| panic!("{text}"));
    assert!(digits.len() == 3 && digits.bytes().all(|byte| byte.is_ascii_digit()), "{text}");
    assert!(
        letters.len() == 2 && letters.bytes().all(|byte| (b'a'..=b'f').contains(&byte)),
        "{text}"
    );
    assert_eq!(code["finish_reason"], "stop", "{code}");
    // The choice with the larger probability, found with more beams than there are answers.
    let one = run(&["--beams", "8", "--choice", " there was", "--choice", " zzz"]);
    assert_eq!(one["text"], " there was", "{one}");
}

#[test]
fn flags_that_do_not_combine_are_refused_before_a_model_is_loaded() {
    for (more, part) in [
        (&["--beams", "0"][..], "expected a whole number from 1 to 32"),
        (&["--beams", "33"], "expected a whole number from 1 to 32"),
        (&["--beams", "2", "--temperature", "0.7"], "`--temperature` must be 0, 1 or absent"),
        (&["--beams", "2", "--top-k", "5"], "`--top-k` must be absent"),
        (&["--beams", "2", "--stop", "x"], "`--stop` must be absent"),
        (&["--beams", "2", "--length-penalty", "11"], "expected a number from -10 to 10"),
        (&["--beams", "2", "--early-stopping", "soon"], "--early-stopping"),
        (&["--length-penalty", "2"], "--beams"),
    ] {
        let args = [&["run", "hello", "-m", "/no/such/model"][..], more].concat();
        let outcome = pelton(&args);
        assert_ne!(outcome.code, Some(0), "{more:?}");
        assert!(outcome.stderr.contains(part), "{more:?}: {}", outcome.stderr);
    }
    let text = pelton(&["run", "Once upon a time", "--beams", "3", "--max-tokens", "5", "--quiet"]);
    assert_eq!((text.code, text.stderr.as_str()), (Some(0), ""));
    assert!(!text.stdout.trim().is_empty());
    let chat = pelton_with_input(&["run", "--chat", "--beams", "2", "--quiet"], b"Hello");
    assert_eq!(chat.code, Some(0), "one message is no conversation: {}", chat.stderr);
}
