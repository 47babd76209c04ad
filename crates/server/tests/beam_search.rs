//! Beam search over HTTP: both endpoints, every parameter, and what does not combine.

use crate::harness::{parrot::parrot, start};
use serde_json::{Value, json};

fn texts(answer: &Value) -> Vec<String> {
    let choices = answer["choices"].as_array().unwrap_or_else(|| panic!("{answer}"));
    let text = |choice: &Value| match choice["text"].as_str() {
        Some(text) => text.to_owned(),
        None => choice["message"]["content"].as_str().expect("content").to_owned(),
    };
    choices.iter().map(text).collect()
}

#[tokio::test]
async fn n_beams_give_n_answers_the_best_first_on_both_endpoints() {
    let server = start(parrot()).await;
    let with = |mut body: Value| {
        body["use_beam_search"] = json!(true);
        body["n"] = json!(3);
        body["max_tokens"] = json!(4);
        body
    };
    let chat = json!({"messages": [{"role": "user", "content": "abcdef"}]});
    for (path, body) in
        [("/v1/completions", json!({"prompt": "abcdef"})), ("/v1/chat/completions", chat)]
    {
        let answer = server.post(path, with(body)).await.json();
        let texts = texts(&answer);
        assert_eq!((texts.len(), texts[0].as_str()), (3, "abcd"), "{answer}");
        assert!(texts[1] != texts[0] && texts[2] != texts[0] && texts[1] != texts[2], "{texts:?}");
        let indices: Vec<u64> = (0..3).collect();
        let told = answer["choices"].as_array().expect("choices").iter();
        assert!(told.map(|choice| choice["index"].as_u64()).eq(indices.into_iter().map(Some)));
        assert_eq!(answer["choices"][0]["finish_reason"], "length");
        let usage = &answer["usage"];
        assert_eq!((&usage["prompt_tokens"], &usage["completion_tokens"]), (&json!(6), &json!(12)));
    }
    server.stop().await;
}

#[tokio::test]
async fn each_parameter_of_a_search_is_taken() {
    let server = start(parrot()).await;
    let ask = |more: Value| {
        let mut body = json!({"prompt": "abc!", "use_beam_search": true, "max_tokens": 9});
        for (name, value) in more.as_object().expect("fields") {
            body[name] = value.clone();
        }
        server.complete(body)
    };
    let best = texts(&ask(json!({"n": 1, "best_of": 5})).await.json());
    assert_eq!(best, ["abc!"], "one of five, and the end token has no text");
    let two =
        ask(json!({"n": 2, "best_of": 4, "length_penalty": 0.0, "early_stopping": true})).await;
    assert_eq!(texts(&two.json()).len(), 2);
    for early_stopping in [json!(false), json!("never"), Value::Null] {
        let answer = ask(json!({"n": 2, "early_stopping": early_stopping})).await;
        assert_eq!(answer.status, 200, "{}", answer.body);
    }
    // Values that clients of vLLM send along.
    let usual =
        json!({"n": 2, "temperature": 0, "top_p": 1, "top_k": -1, "seed": 7, "ignore_eos": true});
    assert_eq!(ask(usual).await.status, 200);
    let logprobs = ask(json!({"n": 2, "logprobs": 2, "max_tokens": 3})).await.json();
    let told = &logprobs["choices"][0]["logprobs"];
    assert_eq!(told["tokens"].as_array().map(Vec::len), Some(3), "{logprobs}");
    assert!(told["token_logprobs"][0].as_f64().is_some_and(|x| x < 0.0), "{logprobs}");
    let several = ask(json!({"prompt": ["abc", "xyz"], "n": 2, "max_tokens": 3})).await.json();
    let texts = texts(&several);
    assert_eq!((texts.len(), texts[0].as_str(), texts[2].as_str()), (4, "abc", "xyz"));
    server.stop().await;
}

#[tokio::test]
async fn what_does_not_combine_is_refused_by_name_on_both_endpoints() {
    let server = start(parrot()).await;
    for (param, more) in [
        ("stream", json!({"stream": true})),
        ("stream", json!({"stream": true, "best_of": 4})),
        ("temperature", json!({"temperature": 0.7})),
        ("top_p", json!({"top_p": 0.9})),
        ("top_k", json!({"top_k": 5})),
        ("min_p", json!({"min_p": 0.1})),
        ("repetition_penalty", json!({"repetition_penalty": 1.1})),
        ("presence_penalty", json!({"presence_penalty": 0.5})),
        ("frequency_penalty", json!({"frequency_penalty": 0.5})),
        ("logit_bias", json!({"logit_bias": {"1": 5}})),
        ("stop", json!({"stop": "x"})),
        ("speculation", json!({"speculation": {"max_drafts": 0}})),
        ("n", json!({"n": 33})),
        ("best_of", json!({"n": 3, "best_of": 2})),
        ("best_of", json!({"best_of": 33})),
        ("length_penalty", json!({"length_penalty": 11})),
        ("length_penalty", json!({"length_penalty": "long"})),
        ("early_stopping", json!({"early_stopping": "soon"})),
        ("use_beam_search", json!({"use_beam_search": "yes"})),
        ("length_penalty", json!({"use_beam_search": false, "length_penalty": 2})),
        ("early_stopping", json!({"use_beam_search": false, "early_stopping": true})),
    ] {
        let chat = json!({"messages": [{"role": "user", "content": "abc"}]});
        for (path, mut body) in
            [("/v1/completions", json!({"prompt": "abc"})), ("/v1/chat/completions", chat)]
        {
            body["use_beam_search"] = json!(true);
            body["max_tokens"] = json!(4);
            for (name, value) in more.as_object().expect("fields") {
                body[name] = value.clone();
            }
            let (status, named, _) = server.post(path, body.clone()).await.error();
            assert_eq!((status, named.as_deref()), (400, Some(param)), "{path}: {body}");
        }
    }
    let many = json!({"prompt": vec!["a"; 33], "n": 32, "use_beam_search": true});
    assert_eq!(server.complete(many).await.error().1.as_deref(), Some("n"));
    let plain = json!({"messages": [{"role": "user", "content": "abc"}], "best_of": 2});
    assert_eq!(server.chat(plain).await.error().1.as_deref(), Some("best_of"));
    server.stop().await;
}

#[tokio::test]
async fn a_search_that_fails_is_an_error() {
    let server = start(parrot()).await;
    let body = json!({"prompt": "a~c", "use_beam_search": true, "n": 2});
    assert_eq!(server.complete(body).await.status, 500);
    let body = json!({"prompt": "abc", "use_beam_search": true, "n": 2, "max_tokens": 2});
    assert_eq!(server.complete(body).await.status, 200, "the server goes on");
    server.stop().await;
}
