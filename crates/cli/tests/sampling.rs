//! Every parameter of the choice of tokens through the real binary: as a flag of `pelton run` and as
//! a field of a request, with one outcome.

use crate::common::pelton;
use crate::common::server::Server;
use pelton_testkit::golden::decoder_named;
use serde_json::{Value, json};

const PROMPT: &str = "Once upon a time";

/// The text that a request is answered with; what it does not say is plain.
fn served(server: &Server, more: &Value) -> String {
    let answer = server.post("/v1/completions", &body(more)).expect("answered");
    answer["choices"][0]["text"].as_str().expect("a text").to_owned()
}

/// A short word of the text, which is a token of its own with the space before it.
fn said(text: &str) -> String {
    let mut words = text.split(' ').skip(1);
    let word = words
        .find(|word| (4..=6).contains(&word.len()) && word.bytes().all(|b| b.is_ascii_lowercase()));
    word.expect("a short word").to_owned()
}

fn body(more: &Value) -> Value {
    let mut body = json!({"prompt": PROMPT, "max_tokens": 24, "seed": 11, "ignore_eos": true,
        "temperature": 1.2, "top_k": 0, "top_p": 1, "min_p": 0, "repetition_penalty": 1});
    for (name, value) in more.as_object().expect("an object") {
        body[name] = value.clone();
    }
    body
}

/// The text of `pelton run` with the flags that say the same.
fn run(more: &Value) -> String {
    let mut flags = vec!["run".to_owned(), PROMPT.to_owned(), "--json".to_owned()];
    for (name, value) in body(more).as_object().expect("an object") {
        let flag = |value: &str| format!("--{}={value}", name.replace('_', "-"));
        match (name.as_str(), value) {
            ("prompt", _) => {}
            ("logit_bias", Value::Object(biases)) => {
                flags.extend(biases.iter().map(|(what, x)| flag(&format!("{what}={x}"))));
            }
            ("samplers", Value::Array(names)) => {
                let names: Vec<&str> = names.iter().filter_map(Value::as_str).collect();
                flags.push(flag(&names.join(";")));
            }
            ("dry_sequence_breakers", Value::Array(texts)) if texts.is_empty() => {
                flags.push(flag("none"));
            }
            (_, Value::Array(items)) => {
                let text = |item: &Value| item.as_str().map_or(item.to_string(), str::to_owned);
                flags.extend(items.iter().map(|item| flag(&text(item))));
            }
            (_, value) => flags.push(flag(&value.to_string())),
        }
    }
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    pelton(&flags).json()["text"].as_str().expect("a text").to_owned()
}

#[test]
fn a_flag_and_a_field_say_the_same_and_each_does_something() {
    let server = Server::start(&[]).expect("it listens");
    let plain = served(&server, &json!({}));
    assert_eq!(run(&json!({})), plain);
    let greedy = json!({"temperature": 0});
    let word = said(&served(&server, &greedy));
    let repetitive = json!({"temperature": 0.1});
    let hot = json!({});
    let cases = [
        (&hot, json!({"typical_p": 0.3})),
        (&hot, json!({"top_n_sigma": 0.8})),
        (&hot, json!({"xtc_probability": 1, "xtc_threshold": 0.05})),
        (&hot, json!({"dynatemp_range": 1.1, "dynatemp_exponent": 0.5})),
        (&hot, json!({"mirostat": 1, "mirostat_tau": 2})),
        (&hot, json!({"mirostat": 2, "mirostat_tau": 1, "mirostat_eta": 0.5})),
        (&json!({"top_k": 1}), json!({"min_keep": 5})),
        (&json!({"top_p": 0.4}), json!({"samplers": ["penalties", "temperature"]})),
        (&json!({"repetition_penalty": 1.8}), json!({"repeat_last_n": 3})),
        (
            &repetitive,
            json!({"dry_multiplier": 20, "dry_base": 2, "dry_allowed_length": 0,
                "dry_penalty_last_n": 100, "dry_sequence_breakers": []}),
        ),
        (&greedy, json!({"bad_words": [word, "girl"]})),
        (&greedy, json!({"allowed_token_ids": [300, 301, 302, 303]})),
        (&greedy, json!({"logit_bias": {" the": 8}})),
        (&greedy, json!({"logit_bias": {format!(" {word}"): false}})),
    ];
    for (base, more) in cases {
        let mut both = base.clone();
        for (name, value) in more.as_object().expect("an object") {
            both[name] = value.clone();
        }
        let text = served(&server, &both);
        assert_eq!(run(&both), text, "{both}");
        assert_ne!(text, served(&server, base), "{both}");
    }
}

#[test]
fn each_parameter_does_what_its_name_says() {
    let server = Server::start(&[]).expect("it listens");
    let text = |more: Value| served(&server, &more);
    let greedy = text(json!({"temperature": 0}));
    assert_eq!(text(json!({"top_k": 1})), greedy);
    assert_ne!(text(json!({"top_k": 1, "min_keep": 5})), greedy);
    assert_eq!(
        text(json!({"top_n_sigma": 0.0001})),
        greedy,
        "only the largest is so near to itself"
    );
    assert_eq!(text(json!({"mirostat": 2, "mirostat_tau": 0.0001})), greedy);
    assert_eq!(
        text(json!({"temperature": 0.3, "dynatemp_range": 0.3, "dynatemp_exponent": 99})),
        greedy
    );
    // The order of llama.cpp's letters: top-k of one token, whatever comes later.
    assert_eq!(text(json!({"top_k": 1, "samplers": "kpt"})), greedy);
    assert_ne!(text(json!({"top_k": 1, "samplers": "pt"})), greedy, "top-k is not in it");
    let word = &said(&greedy);
    let spaced = &format!(" {word}");
    let banned = |more: Value| !text(more).contains(spaced);
    assert!(!banned(json!({"temperature": 0})), "{greedy}");
    assert!(banned(json!({"temperature": 0, "bad_words": [word]})));
    assert!(banned(json!({"temperature": 0, "logit_bias": [[spaced, false]]})));
    assert!(banned(json!({"temperature": 0, "logit_bias": [[spaced, -100]]})));

    let mut both = body(&json!({"n": 2, "seeds": [5, 6]}));
    both.as_object_mut().expect("an object").remove("seed");
    let both = server.post("/v1/completions", &both).expect("answered");
    for (idx, seed) in [5, 6].into_iter().enumerate() {
        assert_eq!(both["choices"][idx]["text"], text(json!({"seed": seed})), "seed {seed}");
    }
}

#[test]
fn log_probabilities_are_the_models_or_those_that_tokens_are_drawn_by() {
    let ask = json!({"temperature": 1.2, "top_k": 1, "logprobs": 2});
    let told = |server: &Server| {
        let answer = server.post("/v1/completions", &body(&ask)).expect("answered");
        let logprobs = answer["choices"][0]["logprobs"]["token_logprobs"].clone();
        let logprobs = logprobs.as_array().expect("a list").clone();
        logprobs.iter().map(|one| one.as_f64().expect("a number")).collect::<Vec<f64>>()
    };
    let raw = Server::start(&[]).expect("it listens");
    assert!(told(&raw).iter().any(|one| *one < -0.01), "the model is not sure");
    let processed = Server::start(&["--logprobs-mode", "processed_logprobs"]).expect("it listens");
    assert!(told(&processed).iter().all(|one| *one == 0.0), "one token is left of each row");
    let beams = json!({"prompt": PROMPT, "max_tokens": 4, "use_beam_search": true, "n": 2});
    let mut scored = beams.clone();
    scored["logprobs"] = json!(1);
    assert!(raw.post("/v1/completions", &scored).is_ok());
    assert!(processed.post("/v1/completions", &beams).is_ok());
    let refused = processed.post("/v1/completions", &scored).expect_err("not the scores of beams");
    assert!(format!("{refused:?}").contains("logprobs"), "{refused:?}");
    pelton(&["serve", "--logprobs-mode", "raw_logits"]).assert_refused(&[
        "--logprobs-mode",
        "raw_logprobs",
        "processed_logprobs",
    ]);
}

#[test]
fn what_is_out_of_range_is_named_by_both() {
    let server = Server::start(&[]).expect("it listens");
    for (name, value, expected) in [
        ("typical_p", "0", "above 0 and at most 1"),
        ("top_n_sigma", "-1", "from 0 to 100"),
        ("xtc_probability", "2", "from 0 to 1"),
        ("xtc_threshold", "-1", "from 0 to 1"),
        ("dynatemp_range", "-1", "from 0 to 100"),
        ("dynatemp_exponent", "-1", "from 0 to 100"),
        ("mirostat_tau", "0", "above 0 and at most 100"),
        ("mirostat_eta", "2", "from 0 to 1"),
        ("dry_multiplier", "-1", "from 0 to 100"),
        ("dry_base", "0.5", "from 1 to 100"),
        ("dry_allowed_length", "9999", "at most 1024"),
        ("dry_penalty_last_n", "-2", "-1 for all tokens"),
        ("repeat_last_n", "-2", "-1 for all tokens"),
    ] {
        let flag = format!("--{}", name.replace('_', "-"));
        let typed = format!("{flag}={value}");
        pelton(&["run", PROMPT, &typed]).assert_refused(&[&flag, expected]);
        let value: Value = serde_json::from_str(value).expect("a number");
        let error = server.post("/v1/completions", &body(&json!({ name: value }))).expect_err(name);
        assert!(error.contains(name) && error.contains(expected), "{error}");
    }
    pelton(&["run", PROMPT, "--samplers=top_k;infill"]).assert_refused(&["--samplers", "`infill`"]);
    pelton(&["run", PROMPT, "--mirostat=3"]).assert_refused(&["--mirostat"]);
    for (name, value) in [
        ("samplers", json!(["top_k", "infill"])),
        ("allowed_token_ids", json!([99_999_999])),
        ("bad_words", json!([""])),
    ] {
        let error = server.post("/v1/completions", &body(&json!({ name: value }))).expect_err(name);
        assert!(error.contains(name), "{error}");
    }
}

#[test]
fn tokens_that_the_authors_forbid_never_come_and_are_counted() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().to_str().expect("UTF-8");
    decoder_named("gemma4").checkpoint.write_folder(folder.path());
    let forbid = |config: &Value| {
        let file = folder.path().join("generation_config.json");
        std::fs::write(file, config.to_string()).expect("written");
    };
    let plain = ["run", "-m", path, "--tokens", "5,6", "--max-tokens", "8", "--ignore-eos"];
    let answer = |config: Value, more: &[&str]| -> Vec<u64> {
        forbid(&config);
        let outcome = pelton(&[&plain[..], &["--temperature", "0", "--json"], more].concat());
        let tokens = outcome.json()["tokens"].clone();
        serde_json::from_value(tokens).expect("token ids")
    };
    let usual = answer(json!({}), &[]);
    // The likeliest token is skipped, and ids that no token has are dropped.
    let config = json!({"suppress_tokens": [usual[0], usual[3], 1_000_000, -1]});
    let without = answer(config.clone(), &[]);
    let is_free = |tokens: &[u64]| !tokens.contains(&usual[0]) && !tokens.contains(&usual[3]);
    assert!(without.len() == 8 && is_free(&without), "{without:?} and {usual:?}");
    let bias = format!("--logit-bias={}=90", usual[0]);
    assert!(is_free(&answer(config.clone(), &[&bias])), "no bias brings it back");
    for method in ["ngram", "suffix"] {
        assert_eq!(answer(config.clone(), &["--spec", method]), without, "{method}");
    }
    let later = answer(json!({"begin_suppress_tokens": [usual[0]]}), &[]);
    assert_ne!(later[0], usual[0], "not as the first token");

    forbid(&config);
    let server = Server::start(&["-m", path, "--threads", "1"]).expect("a server");
    let request = json!({"prompt": [5, 6], "max_tokens": 8, "temperature": 0, "ignore_eos": true,
        "return_token_ids": true, "logit_bias": {usual[0].to_string(): 90}});
    let served = server.post("/v1/completions", &request).expect("answered");
    let served = served["choices"][0]["token_ids"].clone();
    let served: Vec<u64> = serde_json::from_value(served).expect("token ids");
    assert!(served.len() == 8 && is_free(&served), "{served:?}");

    let inspected = || pelton(&["inspect", path, "--json"]).json();
    assert_eq!(inspected()["n_suppressed_tokens"], if usual[0] == usual[3] { 1 } else { 2 });
    let words = pelton(&["inspect", path]).stdout;
    assert!(words.contains("suppressed") && words.contains("which no answer has"), "{words}");
    forbid(&json!({"suppress_tokens": []}));
    assert_eq!(inspected()["n_suppressed_tokens"], 0);
    forbid(&json!({"suppress_tokens": 7}));
    pelton(&plain).assert_refused(&[
        "generation_config.json",
        "suppress_tokens",
        "a list of up to",
    ]);
}
