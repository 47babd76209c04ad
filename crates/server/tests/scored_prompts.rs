//! Prompts in answers: echoed, as tokens, and with the log probability of each of their tokens.
//!
//! The parrot scores the token at place `n` of a prompt with `-n / 8` and ranks it `n`-th, behind `T`;
//! a token of an answer has -0.5.

use crate::harness::parrot::parrot;
use crate::harness::{Running, start};
use serde_json::{Value, json};

const COMPLETIONS: &str = "/v1/completions";
const CHAT: &str = "/v1/chat/completions";

async fn ask(server: &Running, path: &str, body: Value) -> Value {
    let answer = server.post(path, body.clone()).await;
    assert_eq!(answer.status, 200, "{body}: {}", answer.body);
    answer.json()
}

async fn refusal(server: &Running, path: &str, body: Value) -> String {
    let answer = server.post(path, body.clone()).await;
    assert_eq!(answer.status, 400, "{body}: {}", answer.body);
    answer.error().1.expect("a parameter")
}

#[tokio::test]
async fn an_echoed_prompt_has_the_log_probability_of_every_token_but_the_first() {
    let server = start(parrot()).await;
    let body = json!({"prompt": "abc", "echo": true, "logprobs": 2, "max_tokens": 2});
    let answer = ask(&server, COMPLETIONS, body).await;
    let choice = &answer["choices"][0];
    assert_eq!(choice["text"], "abcab");
    let logprobs = &choice["logprobs"];
    assert_eq!(logprobs["tokens"], json!(["a", "b", "c", "a", "b"]));
    assert_eq!(logprobs["token_logprobs"], json!([null, -0.125, -0.25, -0.5, -0.5]));
    assert_eq!(logprobs["text_offset"], json!([0, 1, 2, 3, 4]));
    let top = &logprobs["top_logprobs"];
    assert_eq!((&top[0], &top[1]), (&Value::Null, &json!({"b": -0.125, "T": 0.0})));
    assert_eq!(answer["usage"]["completion_tokens"], 2);

    let plain = ask(&server, COMPLETIONS, json!({"prompt": "abc", "echo": true, "max_tokens": 2}));
    let plain = plain.await;
    assert_eq!(
        (&plain["choices"][0]["text"], &plain["choices"][0]["logprobs"]),
        (&json!("abcab"), &Value::Null)
    );
    // Without an echo nothing of the prompt is there.
    let body = json!({"prompt": "abc", "logprobs": 0, "max_tokens": 1});
    let answer = ask(&server, COMPLETIONS, body).await;
    assert_eq!(answer["choices"][0]["logprobs"]["tokens"], json!(["a"]));
}

/// Control tokens, too: clients cut off the last entry as that of the answer.
#[tokio::test]
async fn behind_an_echoed_prompt_every_token_of_the_answer_is_listed() {
    let server = start(parrot()).await;
    let body = json!({"prompt": [256, 33], "echo": true, "logprobs": 0, "max_tokens": 9});
    let choice = ask(&server, COMPLETIONS, body).await["choices"][0].clone();
    assert_eq!(choice["text"], "!", "control tokens have no text");
    let tokens = json!(["<|end|>", "!", "<|end|>"]);
    assert_eq!(
        (&choice["logprobs"]["tokens"], &choice["finish_reason"]),
        (&tokens, &json!("stop"))
    );
    assert_eq!(choice["logprobs"]["text_offset"], json!([0, 0, 1]));
}

/// The sum of the log probabilities of a continuation, and whether it is the likeliest, as
/// lm-evaluation-harness computes them from a choice whose last token was generated.
fn judged(choice: &Value, n_context: usize, n_generated: usize) -> (f64, bool, usize) {
    let list = |name: &str| choice["logprobs"][name].as_array().expect(name).clone();
    let (own, top) = (list("token_logprobs"), list("top_logprobs"));
    let scored = n_context..own.len() - n_generated;
    let own: Vec<f64> = own[scored.clone()].iter().map(|x| x.as_f64().expect("a number")).collect();
    let is_likeliest = own.iter().zip(&top[scored]).all(|(own, top)| {
        let top = top.as_object().expect("an object").values().filter_map(Value::as_f64);
        *own >= top.fold(f64::MIN, f64::max)
    });
    (own.iter().sum(), is_likeliest, own.len())
}

#[tokio::test]
async fn requests_of_lm_evaluation_harness_are_scored() {
    let server = start(parrot()).await;
    // `local-completions`: token ids, a batch, one token that is thrown away.
    let batch = json!({
        "model": "org/parrot", "prompt": [[97, 98, 99, 100], [84, 84, 120], [97, 98]],
        "temperature": 0, "max_tokens": 1, "logprobs": 1, "seed": 1234, "echo": true
    });
    let answer = ask(&server, COMPLETIONS, batch).await;
    let choices = answer["choices"].as_array().expect("choices");
    let got: Vec<_> =
        choices.iter().zip([2, 1, 1]).map(|(choice, n)| judged(choice, n, 1)).collect();
    assert_eq!(got, [(-0.625, false, 2), (-0.375, false, 2), (-0.125, false, 1)]);
    // The older form: no token at all.
    let older = json!({
        "model": "org/parrot", "prompt": "abcd", "temperature": 0, "max_tokens": 0,
        "logprobs": 10, "echo": true
    });
    let answer = ask(&server, COMPLETIONS, older).await;
    let choice = &answer["choices"][0];
    assert_eq!(judged(choice, 2, 0), (-0.625, false, 2));
    assert_eq!((&choice["text"], &choice["finish_reason"]), (&json!("abcd"), &json!("length")));
    assert_eq!(answer["usage"]["completion_tokens"], 0);
    assert_eq!(answer["usage"]["total_tokens"], 4);
    // Tasks that generate.
    let until = json!({
        "model": "org/parrot", "prompt": [[97, 98, 99]], "max_tokens": 9, "temperature": 0,
        "stop": ["c", "<|end|>"], "seed": 1234
    });
    let answer = ask(&server, COMPLETIONS, until).await;
    assert_eq!(answer["choices"][0]["text"], "ab");
    // No answer without a token is made for other requests.
    let nothing = json!({"prompt": "abc", "max_tokens": 0});
    assert_eq!(refusal(&server, COMPLETIONS, nothing).await, "max_tokens");
}

#[tokio::test]
async fn every_answer_to_a_prompt_shows_it_and_one_of_them_scores_it() {
    let server = start(parrot()).await;
    let body = json!({
        "prompt": ["abc", "xy"], "echo": true, "logprobs": 0, "max_tokens": 1, "n": 2, "stream": true,
        "stream_options": {"include_usage": true}
    });
    let chunks = server.post(COMPLETIONS, body).await.chunks();
    let mut texts = vec![String::new(); 4];
    let mut logprobs = vec![Vec::new(); 4];
    for choice in chunks.iter().flat_map(|chunk| chunk["choices"].as_array().expect("choices")) {
        let index = choice["index"].as_u64().expect("an index") as usize;
        texts[index].push_str(choice["text"].as_str().expect("text"));
        let new = choice["logprobs"]["token_logprobs"].as_array().expect("asked for");
        logprobs[index].extend(new.iter().cloned());
    }
    assert_eq!(texts, ["abca", "abca", "xyx", "xyx"]);
    for (index, logprobs) in logprobs.iter().enumerate() {
        let prompt = if index < 2 {
            vec![json!(null), json!(-0.125), json!(-0.25)]
        } else {
            vec![json!(null), json!(-0.125)]
        };
        assert_eq!(logprobs[..logprobs.len() - 1], prompt, "{index}");
    }
    let usage = &chunks.last().expect("usage")["usage"];
    assert_eq!((&usage["prompt_tokens"], &usage["completion_tokens"]), (&json!(5), &json!(4)));
    // The best of three is echoed once.
    let best = json!({"prompt": "abc", "echo": true, "best_of": 3, "max_tokens": 1});
    let best = ask(&server, COMPLETIONS, best).await;
    assert_eq!(best["choices"].as_array().map(Vec::len), Some(1));
    assert_eq!(best["choices"][0]["text"], "abca");
}

#[tokio::test]
async fn scores_come_in_the_shape_of_vllm_in_both_endpoints() {
    let server = start(parrot()).await;
    let expected = json!([
        null,
        {"98": {"logprob": -0.125, "rank": 1, "decoded_token": "b"},
         "84": {"logprob": 0.0, "rank": 1, "decoded_token": "T"}},
    ]);
    let body = json!({"prompt": "ab", "prompt_logprobs": 1, "max_tokens": 1, "n": 2});
    let answer = ask(&server, COMPLETIONS, body).await;
    for choice in answer["choices"].as_array().expect("two") {
        assert_eq!(choice["prompt_logprobs"], expected);
        assert_eq!((&choice["text"], &choice["logprobs"]), (&json!("a"), &Value::Null));
    }
    let messages = json!([{"role": "user", "content": "ab"}]);
    let body = json!({"messages": messages, "prompt_logprobs": 1, "max_tokens": 1});
    let answer = ask(&server, CHAT, body).await;
    assert_eq!(answer["prompt_logprobs"], expected);
    for (path, body) in [
        (COMPLETIONS, json!({"prompt": "ab", "prompt_logprobs": 1, "stream": true})),
        (CHAT, json!({"messages": messages, "prompt_logprobs": 1, "stream": true})),
        (COMPLETIONS, json!({"prompt": "ab", "prompt_logprobs": -1})),
        (
            COMPLETIONS,
            json!({"prompt": "ab", "prompt_logprobs": 1, "use_beam_search": true, "n": 2}),
        ),
    ] {
        assert_eq!(refusal(&server, path, body).await, "prompt_logprobs");
    }
}
