//! Series under vLLM's names, and those of routes and of the process.

use crate::harness::parrot::parrot;
use crate::harness::{Running, health_until, series, start, start_with};
use pelton_server::ServeConfig;
use serde_json::json;

/// Two requests to the parrot, of which one has two answers.
async fn metrics_of(server: &Running) -> String {
    let body = json!({"prompt": "abc", "max_tokens": 3});
    assert_eq!(server.complete(body).await.status, 200);
    let body = json!({"prompt": "hello", "max_tokens": 4, "n": 2, "temperature": 1, "seed": 1});
    assert_eq!(server.complete(body).await.status, 200);
    assert_eq!(server.get("/nothing/here").await.status, 404);
    // The engine publishes its figures after a step, and so after the step's tokens.
    health_until(server, |health| health["running"] == 0 && health["waiting"] == 0).await;
    server.get("/metrics").await.body
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_series_that_dashboards_ask_for_has_its_value() {
    let server = start(parrot()).await;
    let metrics = metrics_of(&server).await;
    let labels = "{model_name=\"org/parrot\",engine=\"0\"}";
    for (name, expected) in [
        ("num_requests_running", 0.0),
        ("num_requests_waiting", 0.0),
        // Each answer has its prompt, as in vLLM.
        ("prompt_tokens_total", 13.0),
        ("generation_tokens_total", 11.0),
        ("num_preemptions_total", 0.0),
        ("prefix_cache_queries_total", 8.0),
        ("time_to_first_token_seconds_count", 2.0),
        ("e2e_request_latency_seconds_count", 2.0),
        ("request_queue_time_seconds_count", 2.0),
        ("request_prefill_time_seconds_count", 2.0),
        ("request_decode_time_seconds_count", 2.0),
        ("request_inference_time_seconds_count", 2.0),
        // From the first token of each of the three answers to its last one.
        ("inter_token_latency_seconds_count", 8.0),
        ("time_per_output_token_seconds_count", 8.0),
        ("request_prompt_tokens_sum", 8.0),
        ("request_generation_tokens_sum", 11.0),
        ("request_max_num_generation_tokens_sum", 7.0),
        ("request_params_n_sum", 3.0),
        ("request_params_max_tokens_sum", 7.0),
        ("spec_decode_num_draft_tokens_total", 0.0),
    ] {
        let found = series(&metrics, &format!("vllm:{name}{labels}"));
        assert_eq!(found, Some(expected), "{name} in\n{metrics}");
    }
    let of_steps = |part: &str| {
        series(&metrics, &format!("vllm:iteration_tokens_total_{part}")).expect("tokens of steps")
    };
    assert!(of_steps("count") >= 4.0 && of_steps("sum") >= 8.0, "{metrics}");
    let usage = series(&metrics, "vllm:kv_cache_usage_perc").expect("a gauge");
    assert!((0.0..=1.0).contains(&usage), "{usage}");
    assert_eq!(series(&metrics, "vllm:gpu_cache_usage_perc"), Some(usage));
    let success = "vllm:request_success_total{finished_reason=\"length\"}";
    assert_eq!(series(&metrics, success), Some(3.0));
    assert_eq!(series(&metrics, &success.replace("length", "error")), Some(0.0), "all are there");
    assert_eq!(series(&metrics, "vllm:cache_config_info"), Some(1.0));
    for label in ["block_size=\"", "num_gpu_blocks=\""] {
        assert!(metrics.contains(label), "{label} is missing in\n{metrics}");
    }
    for bound in ["0.001", "2560.0"] {
        let bucket = format!("vllm:time_to_first_token_seconds_bucket{{le=\"{bound}\"}}");
        assert!(series(&metrics, &bucket).is_some(), "{bound} in\n{metrics}");
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn vllms_names_can_be_left_out() {
    let config = ServeConfig { vllm_metrics: false, ..ServeConfig::default() };
    let server = start_with(parrot(), config).await;
    let metrics = metrics_of(&server).await;
    assert!(!metrics.contains("vllm:"), "{metrics}");
    let series = series(&metrics, "pelton_generation_tokens_total{model_name=\"org/parrot\"}");
    assert_eq!(series, Some(11.0));
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn routes_and_the_process_are_counted() {
    let server = start(parrot()).await;
    let metrics = metrics_of(&server).await;
    let route = "handler=\"/v1/completions\",method=\"POST\"";
    let count = |labels: &str| series(&metrics, &format!("http_requests_total{{{labels}}}"));
    assert_eq!(count(&format!("{route},status=\"2xx\"")), Some(2.0), "{metrics}");
    assert_eq!(count("handler=\"none\",method=\"GET\",status=\"4xx\""), Some(1.0), "{metrics}");
    assert!(!metrics.contains("/nothing/here"), "clients cannot invent labels");
    let timed = format!("http_request_duration_seconds_count{{{route}}}");
    assert_eq!(series(&metrics, &timed), Some(2.0));
    assert!(series(&metrics, "process_resident_memory_bytes") > Some(1e6), "{metrics}");
    assert!(series(&metrics, "process_start_time_seconds") > Some(1.6e9), "{metrics}");
    server.stop().await;
}
