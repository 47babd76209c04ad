//! `POST /v1/rerank`, `/v1/score` and `/classify` in the shapes of Jina, Cohere and vLLM.

use crate::harness::house::{House, get, header, request};
use crate::harness::parrot::parrot;
use crate::harness::ranker::{serve_vectors, start_ranker};
use crate::harness::{Answer, post_text, start};
use pelton_gateway::Limit;
use pelton_server::ServeConfig;
use pelton_testkit::TinyEncoder;
use pelton_testkit::golden::ranker_named;
use serde_json::{Value, json};

fn refused(answer: &Answer, param: &str, word: &str) {
    assert_eq!(answer.status, 400, "{}", answer.body);
    let error = &answer.json()["error"];
    assert_eq!(error["param"], param, "{error}");
    assert!(error["message"].as_str().expect("a message").contains(word), "{error}");
}

#[tokio::test]
async fn documents_come_best_first_with_the_scores_of_the_reference() {
    let golden = ranker_named("xlm-roberta");
    let (_folder, server) = start_ranker("xlm-roberta").await;
    let query = "w3 w4";
    let documents = ["w5", "w6 w7 w8", "w9 w10", "w11"];
    let body = json!({"model": "ranker", "query": query, "documents": documents});
    let answer = server.post("/v1/rerank", body.clone()).await.json();
    let results = answer["results"].as_array().expect("results");
    let score = |result: &Value| result["relevance_score"].as_f64().expect("a number");
    assert!(results.windows(2).all(|pair| score(&pair[0]) >= score(&pair[1])), "{answer}");
    let mut seen: Vec<u64> = results.iter().map(|r| r["index"].as_u64().expect("one")).collect();
    seen.sort_unstable();
    assert_eq!(seen, [0, 1, 2, 3]);
    for result in results {
        let index = result["index"].as_u64().expect("an index") as usize;
        assert_eq!(result["document"]["text"], documents[index]);
    }
    // <s> a </s></s> b </s>
    assert_eq!(answer["usage"], json!({"prompt_tokens": 4 * 6 + 7, "total_tokens": 4 * 6 + 7}));
    assert_eq!(answer["meta"]["billed_units"]["search_units"], 1);
    assert_eq!(server.post("/rerank", body).await.json()["results"], answer["results"]);
    let pair = &golden.pairs[1];
    let body = json!({"query": pair.a, "documents": [pair.b]});
    let one = server.post("/v2/rerank", body).await.json();
    let expected = pair.score.expect("of the reference");
    assert!((score(&one["results"][0]) - expected).abs() < 1e-2, "{one} {expected}");
    assert_eq!(one["results"][0].get("document"), None, "Cohere's second version");
    assert_eq!(one["meta"]["api_version"]["version"], "2");
}

#[tokio::test]
async fn objects_come_back_as_they_were_and_only_so_many_as_asked_for() {
    let (_folder, server) = start_ranker("bert").await;
    let documents = json!(["w1", {"text": "w2", "id": 7, "tags": ["x"]}, {"text": "w3 w4"}]);
    let body = json!({"query": "w9", "documents": documents, "top_n": 2, "return_documents": true});
    let answer = server.post("/v2/rerank", body).await.json();
    let results = answer["results"].as_array().expect("results");
    assert_eq!(results.len(), 2, "{answer}");
    for result in results {
        let index = result["index"].as_u64().expect("an index") as usize;
        let expected = match index {
            0 => json!({"text": "w1"}),
            _ => documents[index].clone(),
        };
        assert_eq!(result["document"], expected);
    }
    let body = json!({"query": "w9", "documents": ["w1", "w1", "w1"], "top_n": 0});
    let answer = server.post("/v1/rerank", body).await.json();
    let order: Vec<&Value> =
        answer["results"].as_array().expect("all").iter().map(|result| &result["index"]).collect();
    assert_eq!(order, [0, 1, 2], "0 stands for all, and the first of equal ones comes first");
    let body = json!({"query": {"text": "w9"}, "documents": ["w1"], "return_documents": false});
    let answer = server.post("/v1/rerank", body).await.json();
    assert_eq!(answer["results"][0].get("document"), None, "{answer}");
}

#[tokio::test]
async fn scores_are_for_one_to_one_and_for_one_to_many() {
    let golden = ranker_named("bert-identity");
    let (_folder, server) = start_ranker("bert-identity").await;
    let pairs = &golden.pairs[..3];
    let side = |text: fn(&pelton_testkit::golden::GoldenPair) -> &String| -> Vec<String> {
        pairs.iter().map(|pair| text(pair).clone()).collect()
    };
    let (a, b) = (side(|pair| &pair.a), side(|pair| &pair.b));
    let answer = server.post("/v1/score", json!({"text_1": a, "text_2": b})).await.json();
    assert_eq!(answer["object"], "list");
    for (i, pair) in pairs.iter().enumerate() {
        let item = &answer["data"][i];
        assert_eq!((&item["index"], &item["object"]), (&json!(i), &json!("score")));
        let score = item["score"].as_f64().expect("a number");
        assert!((score - f64::from(pair.logits[0])).abs() < 5e-2, "{score} {:?}", pair.logits);
    }
    let one = server.post("/score", json!({"text_1": a[0], "text_2": b[0]})).await.json();
    assert_eq!(one["data"][0]["score"], answer["data"][0]["score"]);
    let many = server.post("/score", json!({"queries": a[0], "items": b})).await.json();
    assert_eq!(many["data"][0]["score"], answer["data"][0]["score"]);
    assert_eq!(many["data"].as_array().expect("a list").len(), 3);
    let sigmoid = json!({"text_1": a[0], "text_2": b[0], "use_activation": true});
    let sigmoid = server.post("/score", sigmoid).await.json();
    let between = sigmoid["data"][0]["score"].as_f64().expect("a number");
    let raw = one["data"][0]["score"].as_f64().expect("a number");
    assert!((between - 1.0 / (1.0 + (-raw).exp())).abs() < 1e-9, "{between} {raw}");
    let uneven = server.post("/score", json!({"text_1": [a[0], a[1]], "text_2": b})).await;
    refused(&uneven, "text_1", "2 texts");
    let both = json!({"text_1": "w1", "text_2": "w2", "use_activation": false, "activation": true});
    refused(&server.post("/v1/score", both).await, "use_activation", "contradict each other");
    let twice = json!({"text_1": "w1", "query": "w1", "text_2": "w2"});
    refused(&server.post("/score", twice).await, "query", "mean the same");
}

#[tokio::test]
async fn labels_have_probabilities_that_sum_to_one() {
    let (_folder, server) = start_ranker("bert-labels").await;
    let answer = server.post("/classify", json!({"input": ["w1 w2", "w3"]})).await.json();
    for (i, n) in [(0, 4), (1, 3)] {
        let item = &answer["data"][i];
        let probs: Vec<f64> = item["probs"]
            .as_array()
            .expect("a list")
            .iter()
            .map(|p| p.as_f64().expect("a number"))
            .collect();
        assert!((probs.iter().sum::<f64>() - 1.0).abs() < 1e-9 && n > 0, "{item}");
        let best = (0..3).max_by(|a, b| probs[*a].total_cmp(&probs[*b])).expect("three");
        assert_eq!(item["label"], format!("LABEL_{best}"));
        assert_eq!(item["num_classes"], 3);
    }
    assert_eq!(answer["usage"]["total_tokens"], 7);
    let answer = server.post("/v1/rerank", json!({"query": "a", "documents": ["b"]})).await;
    refused(&answer, "model", "3 labels");
    let answer = server.post("/v1/embeddings", json!({"input": "a"})).await;
    refused(&answer, "model", "makes no vectors");
}

#[tokio::test]
async fn a_model_of_vectors_ranks_by_cosine_and_a_model_of_text_does_not() {
    let folder = tempfile::tempdir().expect("a folder");
    TinyEncoder::default().write_folder(folder.path());
    let (_folder, server) = serve_vectors(folder, ServeConfig::default()).await;
    let body = json!({"query": "cat", "documents": ["dog", "query: cat", "cow"]});
    let answer = server.post("/v1/rerank", body).await.json();
    assert_eq!(answer["results"][0]["index"], 1, "the text that the prompt makes: {answer}");
    let best = answer["results"][0]["relevance_score"].as_f64().expect("a number");
    assert!((best - 1.0).abs() < 1e-6, "{best}");
    refused(&server.post("/classify", json!({"input": "a"})).await, "model", "no labels");
    let text = start(parrot()).await;
    let answer = text.post("/v1/rerank", json!({"query": "a", "documents": ["b"]})).await;
    assert_eq!(answer.status, 400, "{}", answer.body);
    assert!(answer.body.contains("makes no vectors"), "{}", answer.body);
}

#[tokio::test]
async fn hostile_requests_are_refused_by_name() {
    let (_folder, server) = start_ranker("bert").await;
    let deep = format!(
        r#"{{"query": "w1", "documents": [{}1{}]}}"#,
        "[".repeat(100_000),
        "]".repeat(100_000)
    );
    let answer = server.raw(&post_text("/v1/rerank", &deep)).await;
    assert_eq!(answer.status, 400, "{}", answer.body);
    let long = "w1 ".repeat(100);
    let nested = (0..40).fold(json!(1), |inner, _| json!([inner]));
    for (body, param, word) in [
        (json!({"documents": ["w1"]}), "query", "missing"),
        (json!({"query": "w1"}), "documents", "missing"),
        (json!({"query": "w1", "documents": []}), "documents", "at least one"),
        (json!({"query": "w1", "documents": "w1"}), "documents", "an array"),
        (json!({"query": "w1", "documents": vec!["w1"; 10_000]}), "documents", "2048"),
        (json!({"query": "", "documents": ["w1"]}), "query", "not empty"),
        (json!({"query": "w1", "documents": ["w1", ""]}), "documents[1]", "not empty"),
        (json!({"query": "w1", "documents": [{"title": "x"}]}), "documents[0].text", "missing"),
        (json!({"query": "w1", "documents": [{"text": 7}]}), "documents[0].text", "a string"),
        (
            json!({"query": "w1", "documents": [{"text": "a", "x": nested}]}),
            "documents[0].x",
            "levels",
        ),
        (json!({"query": "w1", "documents": [7]}), "documents[0]", "a text or an object"),
        (json!({"query": "w1", "documents": ["w1", long]}), "documents[1]", "truncate"),
        (json!({"query": "w1", "documents": ["w1"], "top_n": -1}), "top_n", "whole number"),
        (
            json!({"query": "w1", "documents": ["w1"], "rank_fields": ["x"]}),
            "rank_fields",
            "not supported",
        ),
        (
            json!({"query": "w1", "documents": ["w1"], "max_tokens_per_doc": 0}),
            "max_tokens_per_doc",
            "from 1",
        ),
        (json!({"query": "w1", "documents": ["w1"], "topn": 1}), "topn", "unknown"),
    ] {
        let answer = server.post("/v1/rerank", body).await;
        // Paths of nested values go deeper.
        let error = &answer.json()["error"];
        let found = error["param"].as_str().unwrap_or_default();
        assert_eq!(answer.status, 400, "{error}");
        assert!(found.starts_with(param), "{found} for {param}");
        assert!(error["message"].as_str().expect("a message").contains(word), "{error}");
    }
    let cut = json!({"query": "w1", "documents": [long], "truncate": true});
    let answer = server.post("/v1/rerank", cut).await.json();
    assert_eq!(answer["usage"]["total_tokens"], 64);
    let cut = json!({"query": "w1", "documents": [long], "truncate_prompt_tokens": 20});
    let answer = server.post("/v1/rerank", cut).await.json();
    assert_eq!(answer["usage"]["total_tokens"], 20);
}

#[tokio::test]
async fn tokens_of_texts_count_against_the_limits_and_the_usage_of_a_key() {
    let pair = json!({"query": "w3 w4", "documents": ["w5", "w6 w7 w8"]});
    let texts = json!({"text_1": "w3 w4", "text_2": ["w5", "w6 w7 w8"]});
    for (model, path, body, n_tokens) in [
        ("xlm-roberta", "/v1/rerank", pair.clone(), 2 * 6 + 4),
        ("xlm-roberta", "/rerank", pair.clone(), 2 * 6 + 4),
        ("xlm-roberta", "/v2/rerank", pair, 2 * 6 + 4),
        ("xlm-roberta", "/v1/score", texts.clone(), 2 * 6 + 4),
        ("xlm-roberta", "/score", texts, 2 * 6 + 4),
        ("bert-labels", "/v1/classify", json!({"input": ["w1 w2", "w3"]}), 7),
        ("bert-labels", "/classify", json!({"input": ["w1 w2", "w3"]}), 7),
    ] {
        let house = House::new();
        let limit = n_tokens * 2 - 1;
        house.limited("k", &[(Limit::TokensPerMinute, limit)]);
        house.limited("q", &[(Limit::TokensTotal, n_tokens)]);
        let folder = tempfile::tempdir().expect("a folder");
        ranker_named(model).write_folder(folder.path());
        let (_folder, server) = serve_vectors(folder, house.config()).await;
        let ask =
            async |key: &str| server.raw(&request("POST", path, key, &body.to_string())).await;
        let first = ask("k").await;
        assert_eq!(first.status, 200, "{path}: {}", first.body);
        let left = (limit - n_tokens).to_string();
        let tokens = |name: &str| format!("x-ratelimit-{name}-tokens");
        assert_eq!(header(&first, &tokens("limit")), Some(limit.to_string().as_str()));
        assert_eq!(header(&first, &tokens("remaining")), Some(left.as_str()), "{path}");
        let second = ask("k").await;
        assert_eq!(second.error(), (429, None, Some("rate_limit_exceeded".to_owned())), "{path}");
        assert!(header(&second, "retry-after").is_some(), "{}", second.head);
        assert_eq!(header(&second, &tokens("remaining")), Some(left.as_str()), "{path}");
        let usage = get(&server, "/v1/usage", "k").await.json();
        assert_eq!(usage["total"]["prompt_tokens"], n_tokens, "{path}: {usage}");
        assert_eq!(
            (&usage["total"]["requests"], &usage["total"]["refused"]),
            (&json!(1), &json!(1))
        );
        assert_eq!(ask("q").await.status, 200, "{path}");
        assert_eq!(ask("q").await.error().2.as_deref(), Some("insufficient_quota"), "{path}");
    }
}
