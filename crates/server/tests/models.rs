//! Several models in one server: names, loading, unloading, replacing, and their memory.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::harness::loading::{Encoders, Parrots, WEIGHT_BYTES, encoder, spec};
use crate::harness::parrot::{Gate, heavy_parrot};
use crate::harness::{self, Running, post_text, start_models, start_renewed};
use pelton_server::{
    Catalog, ModelSpec, ModelsError, Renew, Renewed, Routing, ServeConfig, ServeError,
};
use serde_json::{Value, json};

/// A server of the models `a` and `b`, neither of which is loaded.
async fn two(budget: Option<u64>) -> (Running, Arc<Parrots>, Arc<Parrots>) {
    let (a, b) = (Arc::<Parrots>::default(), Arc::<Parrots>::default());
    let catalog = Catalog::new(vec![spec("a", &a), spec("b", &b)], budget).expect("names differ");
    (start_models(catalog, ServeConfig::default()).await, a, b)
}

async fn state(server: &Running, name: &str) -> Value {
    let answer = server.get(&format!("/v1/models/{name}")).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    answer.json()
}

async fn until(server: &Running, name: &str, expected: &str) {
    for _ in 0..1000 {
        let answer = server.get(&format!("/v1/models/{name}")).await;
        if answer.status == 200 && answer.json()["state"] == expected {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("{name} never was {expected}: {}", state(server, name).await);
}

fn ask(model: &str) -> Value {
    json!({"model": model, "prompt": "abc", "max_tokens": 4})
}

#[test]
fn a_model_shows_its_name_and_not_its_settings() {
    let mut model = spec("a", &Arc::default());
    model.settings = "secret: yes".to_owned();
    let shown = format!("{model:?}");
    assert!(shown.contains("\"a\"") && shown.contains("a-alias"), "{shown}");
    assert!(!shown.contains("secret"), "{shown}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_finds_its_model_by_name_or_alias_and_loads_it() {
    let (server, a, b) = two(None).await;
    assert_eq!(server.get("/ready").await.status, 200, "a model can be loaded");
    for (asked, name) in [("b", "b"), ("b-alias", "b"), ("a-alias", "a")] {
        let answer = server.complete(ask(asked)).await.json();
        assert_eq!(answer["model"], name, "{answer}");
        assert_eq!(answer["usage"]["completion_tokens"], 4, "{answer}");
    }
    let unnamed = server.complete(json!({"prompt": "abc", "max_tokens": 4})).await.json();
    assert_eq!(unnamed["model"], "a", "the first one is for requests that name none");
    assert_eq!((a.n_loads.load(Ordering::SeqCst), b.n_loads.load(Ordering::SeqCst)), (1, 1));
    let wrong = server.complete(ask("c")).await;
    let code = Some("model_not_found".to_owned());
    assert_eq!(wrong.error(), (404, Some("model".to_owned()), code));
    assert!(wrong.body.contains("`a`, `b`"), "{}", wrong.body);
    let list = server.get("/v1/models").await.json();
    let ids: Vec<&Value> =
        list["data"].as_array().expect("a list").iter().map(|m| &m["id"]).collect();
    assert_eq!(ids, ["a", "b"]);
    let found = state(&server, "b-alias").await;
    assert_eq!(
        (&found["id"], &found["state"], &found["version"]),
        (&json!("b"), &json!("loaded"), &json!(1))
    );
    assert_eq!(found["memory_bytes"], WEIGHT_BYTES);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_that_has_begun_ends_on_the_version_that_it_began_with() {
    let (server, a, _b) = two(None).await;
    let gate = Gate::closed(0);
    *a.gate.lock().expect("no panic") = gate.clone();
    let old = server.raw_later(post_text("/v1/completions", &ask("a").to_string()));
    harness::health_until(&server, |health| health["running"] == 1).await;
    *a.gate.lock().expect("no panic") = Gate::default();
    let reloaded = server.post("/models/reload", json!({"model": "a-alias"})).await.json();
    assert_eq!((&reloaded["id"], &reloaded["version"]), (&json!("a"), &json!(2)), "{reloaded}");
    let new = server.complete(ask("a")).await;
    assert_eq!(new.status, 200, "the new version answers while the old one is still at work");
    gate.open();
    let old = old.await.expect("no panic");
    assert_eq!(old.json()["choices"], new.json()["choices"], "{}", old.body);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broken_checkpoint_leaves_the_old_version_in_place() {
    let (server, a, _b) = two(None).await;
    assert_eq!(server.complete(ask("a")).await.status, 200);
    a.is_broken.store(true, Ordering::SeqCst);
    let refused = server.post("/models/reload", json!({"model": "a"})).await;
    assert_eq!(refused.error(), (503, None, Some("model_not_loaded".to_owned())));
    assert!(refused.body.contains("model.gguf: the file ends early"), "{}", refused.body);
    assert_eq!(server.complete(ask("a")).await.status, 200);
    let now = state(&server, "a").await;
    assert_eq!((&now["state"], &now["version"]), (&json!("loaded"), &json!(1)));
    assert_eq!(now["trouble"], "model.gguf: the file ends early");
    // Unloaded, it cannot come back until its file is whole again.
    assert_eq!(
        server.post("/models/unload", json!({"model": "a"})).await.json()["state"],
        "failed"
    );
    assert_eq!(server.complete(ask("a")).await.error().0, 503);
    a.is_broken.store(false, Ordering::SeqCst);
    assert_eq!(server.complete(ask("a")).await.status, 200);
    assert_eq!(state(&server, "a").await["version"], 2);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn idle_models_make_room_and_busy_ones_do_not() {
    let (server, a, _b) = two(Some(WEIGHT_BYTES * 3 / 2)).await;
    assert_eq!(server.complete(ask("a")).await.status, 200);
    assert_eq!(server.complete(ask("b")).await.status, 200);
    assert_eq!(state(&server, "a").await["state"], "unloaded", "it made room for b");
    let gate = Gate::closed(0);
    *a.gate.lock().expect("no panic") = gate.clone();
    let busy = server.raw_later(post_text("/v1/completions", &ask("a").to_string()));
    harness::health_until(&server, |health| health["running"] == 1).await;
    let refused = server.post("/models/load", json!({"model": "b"})).await;
    assert_eq!(refused.error(), (503, None, Some("model_not_loaded".to_owned())));
    assert!(
        refused.body.contains("need 100 MiB of memory, and 50 MiB are left"),
        "{}",
        refused.body
    );
    gate.open();
    assert_eq!(busy.await.expect("no panic").status, 200);
    assert_eq!(server.post("/models/load", json!({"model": "b"})).await.json()["state"], "loaded");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_model_that_is_too_large_alone_is_refused_for_good_and_unloads_none() {
    let (server, _a, b) = two(Some(WEIGHT_BYTES * 3 / 2)).await;
    assert_eq!(server.complete(ask("a")).await.status, 200);
    b.is_large.store(true, Ordering::SeqCst);
    let refused = server.complete(ask("b")).await;
    assert_eq!(refused.error(), (503, None, Some("model_not_loaded".to_owned())));
    assert!(refused.body.contains("`models_memory` is 150 MiB"), "{}", refused.body);
    assert!(refused.head.contains("x-should-retry: false"), "{}", refused.head);
    assert_eq!(state(&server, "a").await["state"], "loaded");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_model_without_requests_is_unloaded_after_its_time() {
    let loader = Arc::<Parrots>::default();
    let keep_alive = Some(Duration::ZERO);
    let specs = vec![ModelSpec { keep_alive, ..spec("a", &loader) }, spec("b", &loader)];
    let catalog = Catalog::new(specs, None).expect("names differ");
    let server = start_models(catalog, ServeConfig::default()).await;
    assert_eq!(server.complete(ask("b")).await.status, 200);
    let gate = Gate::closed(0);
    *loader.gate.lock().expect("no panic") = gate.clone();
    let busy = server.raw_later(post_text("/v1/completions", &ask("a").to_string()));
    harness::health_until(&server, |health| health["running"] == 1).await;
    // Longer than the time between two looks at the models.
    tokio::time::sleep(Duration::from_millis(1500)).await;
    assert_eq!(state(&server, "a").await["state"], "loaded", "it has a request");
    gate.open();
    assert_eq!(busy.await.expect("no panic").status, 200);
    until(&server, "a", "unloaded").await;
    assert_eq!(state(&server, "b").await["state"], "loaded", "it has no such time");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_for_a_model_that_is_being_loaded_hold_up_no_other_model() {
    let (server, a, _b) = two(None).await;
    assert_eq!(server.complete(ask("b")).await.status, 200);
    a.is_slow.store(true, Ordering::SeqCst);
    let waiting: Vec<_> = (0..80)
        .map(|_| server.raw_later(post_text("/v1/completions", &ask("a").to_string())))
        .collect();
    until(&server, "a", "loading").await;
    assert_eq!(server.complete(ask("b")).await.status, 200);
    a.is_slow.store(false, Ordering::SeqCst);
    let mut counts = (0, 0);
    for answer in waiting {
        let answer = answer.await.expect("no panic");
        if answer.status == 200 {
            counts.0 += 1;
        } else {
            assert_eq!(answer.error(), (503, None, Some("model_loading".to_owned())));
            assert!(answer.head.contains("retry-after"), "{}", answer.head);
            counts.1 += 1;
        }
    }
    assert!(counts.0 >= 64 && counts.0 + counts.1 == 80, "{counts:?}");
    assert_eq!(a.n_loads.load(Ordering::SeqCst), 1, "they waited for one load");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_model_that_has_failed_is_loaded_anew_while_the_other_one_answers() {
    let (server, a, _b) = two(None).await;
    assert_eq!(server.complete(ask("b")).await.status, 200);
    for _ in 0..2 {
        let body = json!({"model": "a", "prompt": "ab|"});
        assert_eq!(server.complete(body).await.error().0, 500, "the engine panics");
    }
    assert_eq!(server.get("/health").await.status, 200, "another model answers");
    assert_eq!(server.complete(ask("b")).await.status, 200);
    for _ in 0..1000 {
        if a.n_loads.load(Ordering::SeqCst) == 2 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    until(&server, "a", "loaded").await;
    assert_eq!(server.complete(ask("a")).await.status, 200);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn other_settings_load_a_model_anew_and_leave_the_others_alone() {
    let loaders: [Arc<Parrots>; 4] = std::array::from_fn(|_| Arc::default());
    let [a, b, c, d] = &loaders;
    let catalog = Catalog::new(vec![spec("a", a), spec("b", b), spec("c", c)], None);
    let next = Arc::new(std::sync::Mutex::new(Vec::new()));
    let read = Arc::clone(&next);
    let renew: Renew = Arc::new(move || {
        let models: Vec<ModelSpec> = read.lock().expect("no panic").clone();
        match models.is_empty() {
            true => Err("serve.yaml:1: unknown key".to_owned()),
            false => Ok(Renewed {
                models,
                routing: Routing::default(),
                needs_restart: vec!["port".to_owned()],
            }),
        }
    });
    let server = start_renewed(catalog.expect("names differ"), renew).await;
    for name in ["a", "b", "c"] {
        assert_eq!(server.complete(ask(name)).await.status, 200);
    }
    // Settings that cannot be read change nothing, nor do those of a broken model.
    server.signals.hang_up();
    let broken = Arc::<Parrots>::default();
    broken.is_broken.store(true, Ordering::SeqCst);
    let other =
        |name: &str, loader| ModelSpec { settings: "other".to_owned(), ..spec(name, loader) };
    let gate = Gate::closed(0);
    *b.gate.lock().expect("no panic") = gate.clone();
    let specs =
        vec![other("a", a), other("b", &broken), ModelSpec { preload: true, ..spec("d", d) }];
    *next.lock().expect("no panic") = specs;
    server.signals.hang_up();
    until(&server, "d", "loaded").await;
    let version = |name: &'static str| {
        let server = &server;
        async move { state(server, name).await["version"].clone() }
    };
    assert_eq!(version("a").await, 2, "its settings differ");
    assert_eq!(version("b").await, 1, "it cannot be loaded with the other ones");
    for name in ["a", "b", "d"] {
        assert_eq!(server.complete(ask(name)).await.status, 200, "{name}");
    }
    assert_eq!(server.complete(ask("c")).await.error().0, 404, "it is not named any more");
    assert_eq!((a.n_loads.load(Ordering::SeqCst), b.n_loads.load(Ordering::SeqCst)), (2, 1));
    gate.open();
    server.stop().await;
}

/// A server of a model that may take half a second for a step.
async fn start_watched(spec: ModelSpec) -> Running {
    let catalog = Catalog::new(vec![spec], None).expect("a name");
    let step_timeout = Duration::from_millis(500);
    start_models(catalog, ServeConfig { step_timeout, ..ServeConfig::default() }).await
}

/// A watched server of parrots, and their gate.
async fn watched() -> (Running, Arc<Parrots>, Gate) {
    let a = Arc::<Parrots>::default();
    let server = start_watched(spec("a", &a)).await;
    let gate = Gate::closed(0);
    *a.gate.lock().expect("no panic") = gate.clone();
    (server, a, gate)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_that_an_engine_hangs_on_are_run_again_by_another_one() {
    for body in [ask("a"), json!({"model": "a", "prompt": "abc", "max_tokens": 4, "stream": true})]
    {
        let (server, a, gate) = watched().await;
        let hung = server.raw_later(post_text("/v1/completions", &body.to_string()));
        harness::health_until(&server, |health| health["running"] == 1).await;
        *a.gate.lock().expect("no panic") = Gate::default();
        let answer = hung.await.expect("no panic");
        assert_eq!(answer.status, 200, "{}", answer.body);
        let expected = server.complete(ask("a")).await.json();
        let text = expected["choices"][0]["text"].as_str().expect("a text");
        let streamed = answer.body.contains("data: ");
        let answered: String = match streamed {
            false => answer.json()["choices"][0]["text"].as_str().expect("a text").to_owned(),
            true => {
                answer.chunks().iter().filter_map(|c| c["choices"][0]["text"].as_str()).collect()
            }
        };
        assert_eq!(answered, text);
        assert_eq!(state(&server, "a").await["version"], 2);
        assert_eq!(a.n_abandoned.load(Ordering::SeqCst), 1, "with threads of its own");
        gate.open();
        server.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_that_has_begun_ends_with_an_error_when_its_engine_hangs() {
    let (server, a, gate) = watched().await;
    gate.step();
    gate.step();
    let body = json!({"model": "a", "prompt": "abc", "max_tokens": 40, "stream": true});
    let hung = server.raw_later(post_text("/v1/completions", &body.to_string()));
    harness::health_until(&server, |health| health["running"] == 1).await;
    *a.gate.lock().expect("no panic") = Gate::default();
    let hung = hung.await.expect("no panic");
    assert!(hung.body.contains("a step of the engine hung"), "{}", hung.body);
    assert!(hung.body.contains("server_error") && hung.body.contains("[DONE]"), "{}", hung.body);
    assert_eq!(server.get("/health").await.status, 200);
    assert_eq!(server.complete(ask("a")).await.status, 200);
    gate.open();
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_model_that_cannot_be_loaded_anew_ends_the_server_when_its_engine_hangs() {
    let gate = Gate::closed(0);
    let step_timeout = Duration::from_millis(500);
    let config = ServeConfig { step_timeout, ..ServeConfig::default() };
    let server = harness::start_with(heavy_parrot(&gate, 0), config).await;
    let hung = server.complete(json!({"prompt": "abc", "max_tokens": 4})).await;
    assert_eq!(hung.error().0, 500, "{}", hung.body);
    assert!(hung.body.contains("a step of the engine hung"), "{}", hung.body);
    assert_eq!(
        server.complete(ask("org/parrot")).await.error().2,
        Some("engine_failed".to_owned())
    );
    assert_eq!(server.get("/health").await.status, 503);
    server.signals.send();
    let outcome = server.task.await.expect("no panic");
    assert!(matches!(outcome, Err(ServeError::EngineFailed)), "{outcome:?}");
    gate.open();
}

/// A watched server of an embedding model, and its gate.
async fn watched_encoder() -> (Running, Arc<Encoders>, Gate) {
    let loader = Arc::<Encoders>::default();
    let server = start_watched(encoder("e", &loader)).await;
    let gate = Gate::closed(0);
    *loader.gate.lock().expect("no panic") = gate.clone();
    (server, loader, gate)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_that_an_embedding_model_hangs_on_are_run_again_by_another_one() {
    for (path, body) in [
        ("/v1/embeddings", json!({"model": "e", "input": ["abc", "de"]})),
        ("/v1/rerank", json!({"model": "e", "query": "abc", "documents": ["de", "ab"]})),
        ("/v1/score", json!({"model": "e", "text_1": "abc", "text_2": ["de", "ab"]})),
        ("/classify", json!({"model": "e", "input": ["w1 w2", "w3"]})),
    ] {
        let (server, loader, gate) = watched_encoder().await;
        loader.are_classifiers.store(path == "/classify", Ordering::SeqCst);
        let hung = server.raw_later(post_text(path, &body.to_string()));
        until(&server, "e", "loaded").await;
        // The next version works.
        *loader.gate.lock().expect("no panic") = Gate::default();
        let answer = hung.await.expect("no panic");
        assert_eq!(answer.status, 200, "{path}: {}", answer.body);
        let mut expected = server.post(path, body).await.json();
        let mut answer = answer.json();
        for answer in [&mut expected, &mut answer] {
            // They differ from answer to answer.
            answer
                .as_object_mut()
                .expect("an object")
                .retain(|key, _| key != "id" && key != "created");
        }
        assert_eq!(answer, expected, "{path}");
        assert_eq!(state(&server, "e").await["version"], 2);
        assert_eq!(loader.n_abandoned.load(Ordering::SeqCst), 1, "with threads of its own");
        server.stop().await;
        gate.open();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_that_two_versions_of_an_embedding_model_hang_on_ends_with_an_error() {
    let (server, loader, gate) = watched_encoder().await;
    let body = json!({"model": "e", "input": "abc"});
    let hung = server.post("/v1/embeddings", body.clone()).await;
    assert_eq!(hung.error().0, 500, "{}", hung.body);
    assert!(hung.body.contains("a step of the engine hung"), "{}", hung.body);
    assert_eq!(loader.n_loads.load(Ordering::SeqCst), 3);
    assert_eq!(server.get("/health").await.status, 200);
    gate.open();
    assert_eq!(server.post("/v1/embeddings", body).await.status, 200);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_embedding_model_that_hangs_and_cannot_be_loaded_anew_refuses_its_requests() {
    let (server, loader, gate) = watched_encoder().await;
    let body = json!({"model": "e", "input": "abc"});
    let hung = server.raw_later(post_text("/v1/embeddings", &body.to_string()));
    until(&server, "e", "loaded").await;
    loader.is_broken.store(true, Ordering::SeqCst);
    let hung = hung.await.expect("no panic");
    assert_eq!(hung.error().0, 500, "{}", hung.body);
    assert!(hung.body.contains("a step of the engine hung"), "{}", hung.body);
    let refused = server.post("/v1/embeddings", body.clone()).await;
    assert_eq!(refused.status, 503, "{}", refused.body);
    assert!(refused.body.contains("the file ends early"), "{}", refused.body);
    loader.is_broken.store(false, Ordering::SeqCst);
    gate.open();
    server.stop().await;
}

#[test]
fn names_that_a_request_could_not_tell_apart_are_refused() {
    let loader = Arc::<Parrots>::default();
    let error = |specs| Catalog::new(specs, None).map(drop).expect_err("refused");
    assert_eq!(error(Vec::new()), ModelsError::None);
    let shared = |name: &str| ModelsError::SharedName { name: name.to_owned() };
    assert_eq!(error(vec![spec("a", &loader), spec("a", &loader)]), shared("a"));
    let clash = ModelSpec { aliases: vec!["a".to_owned()], ..spec("b", &loader) };
    assert_eq!(error(vec![spec("a", &loader), clash]), shared("a"));
    for bad in ["", "a\nb", &"x".repeat(257)] {
        let error = error(vec![spec(bad, &loader)]);
        assert!(matches!(error, ModelsError::BadName { .. }), "{error}");
    }
    let error = error((0..257).map(|i| spec(&format!("m{i}"), &loader)).collect());
    assert_eq!(error, ModelsError::TooMany { n: 257 });
}

#[test]
fn a_model_that_is_to_be_there_from_the_start_says_why_it_is_not() {
    let loader = Arc::<Parrots>::default();
    loader.is_broken.store(true, Ordering::SeqCst);
    let specs = vec![ModelSpec { preload: true, ..spec("a", &loader) }];
    let error = Catalog::new(specs, None).expect("a name").preload().expect_err("broken");
    assert_eq!(error.to_string(), "model `a`: model.gguf: the file ends early");
}
