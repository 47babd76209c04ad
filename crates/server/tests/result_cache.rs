//! The key of kept results: every field of a request that changes a token is part of it.

use std::collections::BTreeSet;

use crate::harness::house::{House, header, request};
use crate::harness::parrot::coding_parrot;
use crate::harness::{Running, start_with};
use pelton_server::{GatewayConfig, ServeConfig};
use serde_json::{Value, json};

/// Fields that change tokens or the answer's record of them, with values that no other line has;
/// `null` takes a field of the base away.
const CHANGES: &str = r#"
{"prompt": "abd"}
{"suffix": "x"}
{"max_tokens": 3}
{"max_tokens": null, "n_predict": 5}
{"min_tokens": 2}
{"temperature": 0.6}
{"dynatemp_range": 0.1}
{"dynatemp_range": 0.1, "dynatemp_exponent": 2}
{"top_k": 3}
{"top_p": 0.9}
{"min_p": 0.1}
{"typical_p": 0.9}
{"top_n_sigma": 2}
{"xtc_probability": 0.5}
{"xtc_probability": 0.5, "xtc_threshold": 0.2}
{"mirostat": 2}
{"mirostat": 2, "mirostat_tau": 4}
{"mirostat": 2, "mirostat_eta": 0.2}
{"min_keep": 2}
{"samplers": ["top_k", "temperature"]}
{"repetition_penalty": 1.1}
{"repeat_penalty": 1.2}
{"repetition_penalty": 1.1, "repeat_last_n": 2}
{"presence_penalty": 0.5}
{"frequency_penalty": 0.5}
{"dry_multiplier": 1}
{"dry_multiplier": 1, "dry_base": 2}
{"dry_multiplier": 1, "dry_allowed_length": 3}
{"dry_multiplier": 1, "dry_penalty_last_n": 9}
{"dry_multiplier": 1, "dry_sequence_breakers": ["x"]}
{"allowed_token_ids": [97, 98, 99]}
{"bad_words": ["x"]}
{"logit_bias": {"97": 1}}
{"seed": 8}
{"seed": null, "sampling_seed": 9}
{"seed": null, "seeds": [10]}
{"n": 2}
{"best_of": 2}
{"logprobs": 2}
{"n_probs": 3}
{"prompt_logprobs": 1}
{"stop": "x"}
{"stop_token_ids": [98]}
{"ignore_eos": true}
{"stop": "b", "include_stop_str_in_output": true}
{"stop": "c", "no_stop_trim": true}
{"skip_special_tokens": false}
{"add_special_tokens": false}
{"truncate_prompt_tokens": 2}
{"cache_salt": "x"}
{"guided_choice": ["a"]}
{"guided_regex": "[ab]"}
{"guided_grammar": "root ::= \"b\""}
{"guided_json": {"const": 1}}
{"grammar": "root ::= \"c\""}
{"ebnf": "root ::= \"d\""}
{"regex": "[cd]"}
{"json_schema": {"const": 2}}
{"response_format": {"type": "json_object"}}
{"structured_outputs": {"choice": ["e"]}}
{"structural_tag": {"structures": [{"begin": "a", "schema": {"const": 3}, "end": "b"}], "triggers": ["a"]}}
"#;

/// Fields that change neither, so that the answer to the base fits.
const NEUTRAL: &str = r#"
{"model": "org/parrot"}
{"stream": true}
{"stream": true, "stream_options": {"include_usage": true}}
{"stream": true, "return_progress": true}
{"priority": 3}
{"slo": {"ttft_ms": 60000}}
{"request_id": "mine"}
{"timings_per_token": true}
{"return_token_ids": true}
{"return_tokens_as_token_ids": true}
{"truncation_side": "left"}
"#;

/// Fields whose answers are never kept, or by themselves change nothing.
const OTHER: [&str; 8] = [
    "cache_prompt",
    "early_stopping",
    "echo",
    "guided_decoding_backend",
    "length_penalty",
    "speculation",
    "use_beam_search",
    "tools",
];

fn lines(text: &str) -> Vec<Value> {
    text.trim().lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

/// Whether the answer to the base with these changes was kept; `None` where nobody looked.
async fn kept(server: &Running, changes: &Value) -> Option<bool> {
    let mut body = json!({"prompt": "abc", "max_tokens": 4, "temperature": 0.5, "seed": 7});
    body.as_object_mut().expect("an object").extend(changes.as_object().expect("one").clone());
    let request = request("POST", "/v1/completions", "k", &body.to_string());
    let answer = server.raw(&request).await;
    assert_eq!(answer.status, 200, "{body}: {}", answer.body);
    header(&answer, "x-pelton-result-cache").map(|word| word == "hit")
}

#[tokio::test]
async fn every_field_that_changes_a_token_is_part_of_the_key() {
    let house = House::new();
    house.add("k", |_| {});
    let plain = house.config();
    let gateway = GatewayConfig { result_cache_bytes: Some(1 << 20), ..plain.gateway };
    let server = start_with(coding_parrot(), ServeConfig { gateway, ..plain }).await;
    assert_eq!(kept(&server, &json!({})).await, Some(false));
    for changes in lines(CHANGES) {
        assert_eq!(kept(&server, &changes).await, Some(false), "{changes} changes tokens");
        assert_eq!(kept(&server, &changes).await, Some(true), "{changes} is repeatable");
    }
    for changes in lines(NEUTRAL) {
        assert_eq!(kept(&server, &changes).await, Some(true), "{changes} changes no token");
    }
    for _ in 0..2 {
        let no_cache = json!({"cache_prompt": false});
        assert_eq!(kept(&server, &no_cache).await, None, "all of it is to be computed");
        let beams = json!({"use_beam_search": true, "temperature": null, "seed": null});
        assert_eq!(kept(&server, &beams).await, None, "beams are not kept");
    }

    // No field of the endpoint is left out.
    let document: Value = serde_json::from_str(pelton_server::openapi()).expect("JSON");
    let body = &document["paths"]["/v1/completions"]["post"]["requestBody"];
    let fields = body["content"]["application/json"]["schema"]["properties"].as_object();
    let has_effect = |schema: &Value| {
        let about = schema["description"].as_str().unwrap_or_default();
        !about.starts_with("Not honoured") && !about.starts_with("Accepted, without effect")
    };
    let fields = fields.expect("fields").iter().filter(|(_, schema)| has_effect(schema));
    let fields: BTreeSet<String> = fields.map(|(name, _)| name.clone()).collect();
    let tested = lines(CHANGES).into_iter().chain(lines(NEUTRAL));
    let names = |line: Value| line.as_object().expect("one").keys().cloned().collect::<Vec<_>>();
    let tested: BTreeSet<String> = tested.flat_map(names).chain(OTHER.map(str::to_owned)).collect();
    let missing: Vec<&String> = fields.difference(&tested).collect();
    assert!(missing.is_empty(), "whether they are part of the key is not tested: {missing:?}");
    server.stop().await;
}
