//! One runtime per process: models on several threads share one team, and get the same bits.
#![cfg(target_os = "linux")]

mod common;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use pelton_base::{SamplingParams, TokenId};
use pelton_llm::{
    CompletionRequest, EmbedInput, EmbedOptions, EmbedRequest, Embedder, Generation, Llm,
    LlmOptions, ModelRef, Prompt, Runtime, RuntimeOptions, SpecConfig, SpecMethod,
};
use pelton_sched::Choices;

const N_THREADS: usize = 3;

fn story(name: &str) -> ModelRef {
    let file = format!("../cli/model/{name}-q8_0.gguf");
    ModelRef::Path(PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(file))
}

/// The served model with its draft model.
fn llm(runtime: &Runtime) -> Arc<Llm> {
    let spec = SpecConfig { method: SpecMethod::Draft, is_forced: true, ..SpecConfig::default() };
    let options = LlmOptions {
        choices: Choices { max_running: 2, ..Choices::default() },
        max_context: Some(200),
        spec,
        draft: Some(story("story-draft")),
        ..LlmOptions::default()
    };
    Llm::load(runtime, &story("story"), &options, &mut |_| {}).expect("loads")
}

/// An embedder of the same weights.
fn embedder(runtime: &Runtime) -> Arc<Embedder> {
    Embedder::load(runtime, &story("story"), &EmbedOptions::default(), &mut |_| {}).expect("loads")
}

fn generate(llm: &Llm) -> Vec<TokenId> {
    let prompts = vec![Prompt::Text("The moth and the lamp".to_owned())];
    let generation = Generation {
        sampling: SamplingParams::greedy(),
        max_tokens: Some(24),
        ignore_eos: true,
        ..Generation::default()
    };
    let mut generating = llm.complete(CompletionRequest { prompts, generation }).expect("accepted");
    let mut ids = Vec::new();
    while let Some(event) = generating.blocking_next() {
        ids.extend(event.tokens.iter().map(|token| token.id));
    }
    assert_eq!(ids.len(), 24);
    ids
}

fn embed(embedder: &Embedder) -> Vec<Vec<f32>> {
    let inputs = ["a moth", "a lamp in the window of the house at the end of the road", "night"];
    let inputs = inputs.iter().map(|text| EmbedInput::Text((*text).to_owned())).collect();
    let request = EmbedRequest { inputs, ..EmbedRequest::default() };
    embedder.embed(request).expect("vectors").vectors
}

/// Threads of this process whose name begins with `team-`.
fn n_team_workers() -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").expect("the threads of this process");
    let names =
        tasks.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("comm")).ok());
    names.filter(|name| name.starts_with("team-")).count()
}

/// One test, because it counts the threads of the process.
#[test]
fn target_draft_model_and_embedder_share_one_team_and_get_the_bits_that_each_gets_alone() {
    let n_threads = Some(N_THREADS);
    let runtime = Runtime::new(RuntimeOptions { n_threads, ..RuntimeOptions::default() });
    let runtime = runtime.expect("kernels of this machine");
    let (llm, embedder) = (llm(&runtime), embedder(&runtime));
    let (tokens, vectors) = (generate(&llm), embed(&embedder));
    assert!(llm.metrics().spec.n_drafted > 0, "the draft model drafts");
    // The thread that runs a forward pass is one of the threads.
    assert_eq!(n_team_workers(), N_THREADS - 1);
    assert_eq!((llm.info().n_threads, embedder.info().n_threads), (N_THREADS, N_THREADS));

    // Both at once: neither waits for ever, and no bit changes.
    let end = Instant::now() + Duration::from_secs(3);
    std::thread::scope(|scope| {
        let generator = scope.spawn(|| {
            let mut n_rounds = 0;
            while Instant::now() < end || n_rounds < 2 {
                assert_eq!(generate(&llm), tokens);
                n_rounds += 1;
            }
            n_rounds
        });
        let mut n_rounds = 0;
        while Instant::now() < end || n_rounds < 2 {
            assert_eq!(embed(&embedder), vectors);
            n_rounds += 1;
        }
        assert!(n_rounds > 1 && generator.join().expect("generates") > 1);
    });
    assert_eq!(n_team_workers(), N_THREADS - 1);

    drop((llm, embedder, runtime));
    let gone = Instant::now() + Duration::from_secs(60);
    while n_team_workers() > 0 {
        assert!(Instant::now() < gone, "the team ends with the last of its users");
        std::thread::sleep(Duration::from_millis(5));
    }
    let alone = common::one_thread();
    assert_eq!(generate(&self::llm(&alone)), tokens, "the same tokens on one thread");
    assert_eq!(embed(&self::embedder(&alone)), vectors, "the same bits on one thread");
}
