//! A tenant cannot find out what another tenant has asked.
//!
//! The time of an answer shows how many tokens of its prompt were computed, so a tenant that asks
//! for the beginning of another one's prompt must wait for all of its tokens. Time itself is no
//! matter of tests: the engine counts the tokens.

use crate::harness::parrot::parrot;
use crate::harness::{Answer, Running, series, start_with};
use pelton_server::{Access, ApiKey, ServeConfig, Tenant};
use serde_json::json;

/// Tokens of each prompt: four blocks of the cache.
const N_TOKENS: u64 = 64;
/// Prompts per server. Each begins with another token, so none shares anything with those before.
const N_PROMPTS: u64 = 250;
/// Servers, each with an empty cache.
const N_SERVERS: u64 = 4;

fn config() -> ServeConfig {
    let tenant = |name: &str, key: &str| {
        let keys = vec![ApiKey::new(key).expect("a key")];
        Tenant { name: name.to_owned(), priority: 0, keys }
    };
    let tenants = vec![tenant("default", "sk-victim"), tenant("prober", "sk-prober")];
    let access = Access::new(tenants).expect("two keys");
    ServeConfig { access, ..ServeConfig::default() }
}

async fn ask(server: &Running, key: &str, method: &str, path: &str, body: &str) -> Answer {
    let request = format!(
        "{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\
         authorization: Bearer {key}\r\ncontent-type: application/json\r\n\
         content-length: {}\r\n\r\n{body}",
        body.len()
    );
    server.raw(&request).await
}

/// The tokens of a prompt that were found in the cache.
async fn cached(server: &Running, key: &str, prompt: &[u64]) -> u64 {
    let body = json!({"prompt": prompt, "max_tokens": 1}).to_string();
    let answer = ask(server, key, "POST", "/v1/completions", &body).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    let usage = &answer.json()["usage"];
    assert_eq!(usage["prompt_tokens"], N_TOKENS);
    usage["prompt_tokens_details"]["cached_tokens"].as_u64().expect("a number")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_probes_for_prompts_of_another_tenant_find_nothing() {
    let mut n_probes = 0;
    for _ in 0..N_SERVERS {
        let llm = parrot();
        let server = start_with(llm.clone(), config()).await;
        // The parrot does something else at these letters.
        let firsts = (0..256).filter(|token| !b"~|!".map(u64::from).contains(token));
        for first in firsts.take(N_PROMPTS as usize) {
            let rest = (1..N_TOKENS).map(|place| 65 + (first + place) % 26);
            let prompt: Vec<u64> = std::iter::once(first).chain(rest).collect();
            assert_eq!(cached(&server, "sk-victim", &prompt).await, 0, "prompt {first} is new");
            assert_eq!(cached(&server, "sk-prober", &prompt).await, 0, "probe {first}");
            // The cache has it, for the tenant that asked first: all but the token that is computed
            // for the logits after it.
            assert_eq!(cached(&server, "sk-victim", &prompt).await, N_TOKENS - 1);
            n_probes += 1;
        }
        let metrics = llm.metrics();
        let metrics = loop {
            // The last answer may come before the counts of its step.
            let now = llm.metrics();
            if now.n_finished == 3 * N_PROMPTS && now.n_steps >= metrics.n_steps {
                break now;
            }
            tokio::task::yield_now().await;
        };
        assert_eq!(metrics.prompt_tokens, N_PROMPTS * (N_TOKENS + N_TOKENS + 1), "computed tokens");
        assert_eq!(metrics.n_steps, N_PROMPTS * 3, "a probe takes as many steps as any prompt");
        check_metrics(&server).await;
        server.stop().await;
    }
    assert_eq!(n_probes, 1000);
}

/// The tenants see nothing of each other's hits.
async fn check_metrics(server: &Running) {
    let probers = ask(server, "sk-prober", "GET", "/metrics", "").await.body;
    let victims = ask(server, "sk-victim", "GET", "/metrics", "").await.body;
    for prefix in ["pelton_prefix_cache_hits_total", "pelton_prefix_cache_queries_total"] {
        let of =
            |text: &str, tenant: &str| series(text, &format!("{prefix}{{tenant=\"{tenant}\"}}"));
        assert_eq!(of(&probers, "default"), None, "{prefix}");
        assert_eq!(of(&victims, "prober"), None, "{prefix}");
    }
    let hits = |text: &str, tenant: &str| {
        let hits = format!("pelton_prefix_cache_hits_total{{tenant=\"{tenant}\"}}");
        series(text, &hits).expect("a tenant sees its own hits")
    };
    assert_eq!(hits(&probers, "prober"), 0.0);
    assert_eq!(hits(&victims, "default"), (N_PROMPTS * (N_TOKENS - 1)) as f64);
    // No series of the whole server, under any name: its hits are those of the others.
    for line in probers.lines().filter(|line| !line.starts_with('#')) {
        assert!(line.contains("tenant=\"prober\""), "{line}");
    }
}
