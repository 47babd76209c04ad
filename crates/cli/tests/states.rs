//! Models with recurrent layers through the real binary: a conversation of many turns, and a state
//! that is not a number.

use std::path::Path;

use pelton_model::{ModelFiles, StateLayer, StateShape};
use pelton_testkit::golden::decoders;
use serde_json::{Value, json};

use crate::common::pelton;
use crate::common::server::Server;

/// Positions of a chunk of a recurrent layer.
const CHUNK: u64 = 64;
/// A token of the vocabulary whose embedding is not a number.
const POISON: u32 = 200;
const TURNS: u64 = 20;

/// A prompt of `n` tokens that differs from the prompts of other seeds; without [`POISON`].
fn prompt(seed: u64, n: u64) -> Vec<u32> {
    (0..n).map(|i| 2 + (i * (7 + seed) + 13 * seed + i * i % 11) as u32 % 190).collect()
}

/// Calls `check` with the folder of each golden model that has recurrent layers.
fn each_recurrent(check: impl Fn(&str, &Path)) {
    let mut n_checked = 0;
    for golden in decoders() {
        let folder = tempfile::tempdir().expect("a folder");
        golden.checkpoint.write_folder(folder.path());
        let files = ModelFiles::open(folder.path()).expect("a golden model");
        if !files.spec().expect("a spec").is_recurrent() {
            continue;
        }
        lengthen(folder.path());
        check(golden.checkpoint.name(), folder.path());
        n_checked += 1;
    }
    assert!(n_checked > 15, "only {n_checked} models have recurrent layers");
}

/// Gives a model room for a long conversation.
fn lengthen(folder: &Path) {
    let path = folder.join("config.json");
    let config = std::fs::read_to_string(&path).expect("config.json");
    let mut config: Value = serde_json::from_str(&config).expect("JSON");
    for name in ["max_position_embeddings", "model_max_length"] {
        for inner in ["", "/text_config"] {
            if let Some(length) = config.pointer_mut(&format!("{inner}/{name}")) {
                *length = json!(4096);
            }
        }
    }
    std::fs::write(&path, config.to_string()).expect("written");
}

/// Fills the embedding of [`POISON`] with NaN.
fn poison(folder: &Path) {
    let path = folder.join("model.safetensors");
    let mut bytes = std::fs::read(&path).expect("weights");
    let n = u64::from_le_bytes(*bytes.first_chunk().expect("a length")) as usize;
    let header: Value = serde_json::from_slice(&bytes[8..8 + n]).expect("a header");
    let tables = header.as_object().expect("an object").iter().filter(|(name, tensor)| {
        name.contains("embed") && tensor["shape"].as_array().is_some_and(|shape| shape.len() == 2)
    });
    let mut n_tables = 0;
    for (_, table) in tables {
        let number = |value: &Value| value.as_u64().expect("a number") as usize;
        let (first, end) = (number(&table["data_offsets"][0]), number(&table["data_offsets"][1]));
        let row = (end - first) / number(&table["shape"][0]);
        let place = 8 + n + first + POISON as usize * row;
        // All bits set are NaN in each of the formats of floats.
        bytes[place..place + row].fill(0xff);
        n_tables += 1;
    }
    assert_eq!(n_tables, 1, "one table of embeddings");
    std::fs::write(&path, bytes).expect("written");
}

/// A request for tokens other than [`POISON`], which a model may well answer with.
fn body(prompt: &[u32], n_most: u32) -> Value {
    json!({ "prompt": prompt, "max_tokens": n_most, "temperature": 0, "ignore_eos": true,
        "return_token_ids": true, "logit_bias": { POISON.to_string(): -100 } })
}

fn tokens(answer: &Value) -> Vec<u32> {
    let tokens = answer["choices"][0]["token_ids"].clone();
    serde_json::from_value(tokens).expect("token ids")
}

#[test]
fn a_turn_of_a_conversation_computes_what_is_new_and_a_chunk_at_most() {
    let n_checked = std::cell::Cell::new(0);
    each_recurrent(|name, folder| {
        n_checked.set(n_checked.get() + 1);
        let dtype = ["bf16", "f32"][n_checked.get() % 2];
        let path = folder.to_str().expect("UTF-8");
        let flags = ["-m", path, "--threads", "1", "--state-dtype", dtype];
        let name = &format!("{name}, states in {dtype}");
        let server = Server::start(&flags).expect(name);
        let fresh = Server::start(&[&flags[..], &["--no-prefix-cache"]].concat()).expect(name);
        let mut text = prompt(1, 90);
        let (mut n_new, mut n_computed) = (text.len() as u64, 0);
        for turn in 0..TURNS {
            let request = body(&text, 12);
            let answer = server.post("/v1/completions", &request).expect(name);
            let usage = &answer["usage"];
            let n_cached = usage["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap_or(0);
            let n_now = usage["prompt_tokens"].as_u64().expect("a count") - n_cached;
            assert!(n_now <= n_new + CHUNK, "{name}, turn {turn}: {n_now} for {n_new} new ones");
            n_computed += n_now;
            if turn % 6 == 5 {
                let alone = fresh.post("/v1/completions", &request).expect(name);
                assert_eq!(tokens(&answer), tokens(&alone), "{name}, turn {turn}");
            }
            let next = prompt(2 + turn, 20 + turn % 7);
            text.extend(tokens(&answer));
            text.extend(&next);
            // The last token of an answer was never put into the model.
            n_new = next.len() as u64 + 1;
        }
        let n_all = text.len() as u64;
        assert!(n_computed <= n_all + TURNS * CHUNK, "{name}: {n_computed} of {n_all}");
    });
}

#[test]
fn a_state_that_is_not_a_number_ends_its_own_request_alone() {
    each_recurrent(|name, folder| {
        poison(folder);
        let flags = ["-m", folder.to_str().expect("UTF-8"), "--threads", "1"];
        // States for two requests: the one after the failed one gets the lane that it had.
        let server = Server::start(&[&flags[..], &["--max-running", "2"]].concat()).expect(name);
        let healthy = body(&prompt(1, 100), 16);
        let expected = tokens(&server.post("/v1/completions", &healthy).expect(name));
        let mut broken = prompt(3, 150);
        broken[70] = POISON;
        let broken = body(&broken, 16);
        std::thread::scope(|scope| {
            let failing = scope.spawn(|| server.post("/v1/completions", &broken));
            let beside = body(&prompt(1, 100), 16);
            let beside = server.post("/v1/completions", &beside).expect(name);
            assert_eq!(tokens(&beside), expected, "{name}, beside it");
            let answer = failing.join().expect("no panic").expect_err(name);
            assert!(answer.starts_with("HTTP/1.1 500"), "{name}: {answer}");
            assert!(answer.contains("no finite logit"), "{name}: {answer}");
        });
        for seed in 1..4 {
            // The first has its prompt in the cache, the others are new.
            let request = body(&prompt(seed * seed, 100), 16);
            let answer = server.post("/v1/completions", &request);
            let answer = answer.unwrap_or_else(|error| panic!("{name}, prompt {seed}: {error}"));
            assert!(!tokens(&answer).is_empty() && (seed > 1 || tokens(&answer) == expected));
        }
    });
}

#[test]
fn states_in_bf16_take_half_of_the_bytes_of_states_that_are_told() {
    each_recurrent(|name, folder| {
        let path = folder.to_str().expect("UTF-8");
        let told = |command: &str, field: &str| {
            let size = |dtype| {
                let report = pelton(&[command, path, "--json", "--state-dtype", dtype]).json();
                let value = report.pointer(field).and_then(Value::as_u64);
                value.unwrap_or_else(|| panic!("{name}: {field} of {report}"))
            };
            [size("f32"), size("bf16")]
        };
        let files = ModelFiles::open(folder).expect("a golden model");
        let shape = StateShape::of(&files.spec().expect("a spec"), Default::default());
        // Values lie in whole vectors of 16.
        let elements = |layer: &StateLayer| {
            layer.n_value_heads * layer.key_dim * layer.value_dim.next_multiple_of(16)
        };
        let halved = shape.layers.iter().map(|layer| 2 * elements(layer) as u64).sum::<u64>();
        for (command, field) in [
            ("inspect", "/snapshot_bytes"),
            ("inspect", "/state_bytes"),
            ("plan", "/kv/state_bytes"),
        ] {
            let [exact, rounded] = told(command, field);
            let slack = 64 * 2 * shape.layers.len() as u64;
            assert!((exact - rounded).abs_diff(halved) <= slack, "{name}: {command} {field}");
        }
    });
}
