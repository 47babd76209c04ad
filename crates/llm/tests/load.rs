//! Loading whole models: tiny, random, and the same every time.

use std::path::PathBuf;
use std::sync::Arc;

use crate::common::one_thread;
use pelton_base::{FinishReason, SamplingParams, TokenId};
use pelton_llm::{
    CompletionRequest, Generation, Llm, LlmError, LlmOptions, LoadProgress, ModelRef, Prompt,
};
use pelton_model::KvDtype;
use pelton_sched::Choices;
use pelton_tensor::DType;
use pelton_testkit::TinyModel;

/// Tokens of the tokenizer that tiny models carry.
const N_TOKENS: usize = 260;

/// A folder that vanishes, and a model in it.
struct Home {
    _folder: tempfile::TempDir,
    path: PathBuf,
}

impl Home {
    fn folder(model: &TinyModel) -> Self {
        let folder = tempfile::tempdir().expect("temp");
        let path = folder.path().join("tiny");
        model.write_folder(&path);
        Self { _folder: folder, path }
    }

    fn gguf(model: &TinyModel, dtype: DType) -> Self {
        let folder = tempfile::tempdir().expect("temp");
        let path = folder.path().join("tiny-file.gguf");
        model.write_gguf(&path, dtype);
        Self { _folder: folder, path }
    }

    fn write(&self, name: &str, text: &str) {
        std::fs::write(self.path.join(name), text).expect(name);
    }

    fn load(&self, options: LlmOptions) -> Result<Arc<Llm>, LlmError> {
        Llm::load(&one_thread(), &ModelRef::Path(self.path.clone()), &options, &mut |_| {})
    }
}

/// Few requests at once, so that the memory for keys and values stays small.
fn with(choices: Choices) -> LlmOptions {
    LlmOptions { choices, ..LlmOptions::default() }
}

fn small() -> LlmOptions {
    with(Choices { max_running: 4, ..Choices::default() })
}

/// The ids of one answer of up to `max_tokens` tokens.
fn ids(llm: &Llm, sampling: SamplingParams, max_tokens: Option<usize>) -> Vec<TokenId> {
    let generation = Generation { sampling, max_tokens, ignore_eos: true, ..Generation::default() };
    let prompts = vec![Prompt::Text("the moth".to_owned())];
    let request = CompletionRequest { prompts, generation };
    let mut generating = llm.complete(request).expect("accepted");
    let mut ids = Vec::new();
    while let Some(event) = generating.blocking_next() {
        ids.extend(event.tokens.iter().map(|token| token.id));
        if let Some(finish) = event.finish {
            assert_eq!(finish.reason, FinishReason::Length);
            assert_eq!(finish.usage.completion_tokens, ids.len());
        }
    }
    ids
}

fn option_at_fault(error: LlmError) -> &'static str {
    match error {
        LlmError::Option { option, .. } => option,
        LlmError::KvMemory(short) => short.option(),
        other => panic!("{other}"),
    }
}

#[test]
fn a_folder_is_loaded_with_its_name_tokenizer_template_and_end_tokens() {
    let home = Home::folder(&TinyModel::default());
    let (mut last, mut total) = (0, 0);
    let model = ModelRef::Path(home.path.clone());
    let llm = Llm::load(&one_thread(), &model, &small(), &mut |progress| {
        if let LoadProgress::Pack { done_bytes, total_bytes } = progress {
            assert!(done_bytes >= last, "progress goes back");
            (last, total) = (done_bytes, total_bytes);
        }
    })
    .expect("loads");
    assert!(total > 0 && last == total, "progress ends at {last} of {total}");
    let info = llm.info();
    assert_eq!((info.name.as_str(), info.vocab_size, info.context_tokens), ("tiny", 288, 256));
    assert_eq!(info.n_threads, 1);
    assert_eq!(llm.tokenizer().vocab_size(), N_TOKENS);
    assert!(llm.template().is_some());
    assert_eq!(llm.eos(), [TokenId(0), TokenId(2)]);
    let greedy = ids(&llm, SamplingParams::greedy(), Some(12));
    assert_eq!(greedy.len(), 12);
    assert_eq!(ids(&llm, SamplingParams::greedy(), Some(12)), greedy);
}

#[test]
fn a_gguf_file_is_loaded_in_every_format_and_carries_its_tokenizer() {
    for dtype in [DType::F32, DType::F16, DType::Bf16, DType::Q8_0, DType::Q4_0] {
        let home = Home::gguf(&TinyModel::default(), dtype);
        let llm = home.load(LlmOptions { name: Some("mine".to_owned()), ..small() });
        let llm = llm.unwrap_or_else(|error| panic!("{dtype:?}: {error}"));
        assert_eq!(llm.info().name, "mine");
        assert!(llm.template().is_some(), "{dtype:?}");
        assert!(llm.eos().contains(&TokenId(0)) && llm.eos().contains(&TokenId(2)), "{dtype:?}");
        assert_eq!(ids(&llm, SamplingParams::greedy(), Some(5)).len(), 5, "{dtype:?}");
    }
    let home = Home::gguf(&TinyModel::default(), DType::F32);
    assert_eq!(home.load(small()).expect("loads").info().name, "tiny-file");
}

#[test]
fn little_memory_cuts_the_context_and_less_is_refused() {
    let home = Home::folder(&TinyModel::default());
    let whole = home.load(small()).expect("loads");
    let per_token = whole.info().kv_bytes_per_token;
    assert_eq!(whole.info().kv_bytes, per_token * (4 * 256 + 16), "4 sequences and a block");

    let cut = home.load(LlmOptions { kv_bytes: Some(per_token * 100), ..small() }).expect("loads");
    assert_eq!(cut.info().context_tokens, 96, "whole blocks of 16 tokens");
    assert_eq!(cut.info().kv_bytes, per_token * 96);
    let n_prompt = cut.tokenizer().encode("the moth", true).expect("encodes").len();
    assert_eq!(ids(&cut, SamplingParams::greedy(), None).len(), 96 - n_prompt, "it is all used");

    let none = LlmOptions { kv_bytes: Some(per_token * 15), ..small() };
    assert_eq!(option_at_fault(home.load(none).expect_err("no block")), "kv_bytes");
}

#[test]
fn the_context_can_be_shortened_and_what_does_not_fit_is_refused_by_name() {
    let home = Home::folder(&TinyModel::default());
    let short = home.load(LlmOptions { max_context: Some(40), ..small() }).expect("loads");
    assert_eq!(short.info().context_tokens, 40);
    let prompts = vec![Prompt::Tokens(vec![TokenId(5); 40])];
    let request = CompletionRequest { prompts, generation: Generation::default() };
    let error = short.complete(request).expect_err("no room for an answer");
    assert!(matches!(error, LlmError::ContextLength { limit: 39, context: 40, .. }), "{error}");

    let per_token = short.info().kv_bytes_per_token;
    let wish = LlmOptions { max_context: Some(200), kv_bytes: Some(per_token * 64), ..small() };
    let error = home.load(wish).expect_err("no room");
    let LlmError::KvMemory(short) = &error else { panic!("{error}") };
    assert_eq!((short.asked_tokens, short.fitting_tokens, short.is_limited), (200, 64, true));
    assert_eq!((short.needed_bytes, short.room_bytes), (per_token * 208, per_token * 64));
    assert_eq!(short.fitting_dtypes, [], "a byte per element is a half, and a third is needed");
    assert_eq!(option_at_fault(error), "max_context");
    let wish = LlmOptions { max_context: Some(100), kv_bytes: Some(per_token * 64), ..small() };
    let LlmError::KvMemory(short) = home.load(wish).expect_err("no room") else { panic!() };
    assert_eq!(short.fitting_dtypes, [KvDtype::Fp8], "and scales make int8 too large");
    for (option, options) in [
        ("max_context", LlmOptions { max_context: Some(1), ..small() }),
        ("block_size", LlmOptions { block_size: 0, ..small() }),
        ("block_size", LlmOptions { block_size: 1 << 40, ..small() }),
        ("max_running", with(Choices { max_running: 0, ..Choices::default() })),
        ("max_waiting", LlmOptions { max_waiting: 0, ..small() }),
        ("max_choices", LlmOptions { max_choices: 0, ..small() }),
        ("max_batch_tokens", with(Choices { max_batch_tokens: 0, ..Choices::default() })),
    ] {
        assert_eq!(option_at_fault(home.load(options).expect_err(option)), option);
    }
}

#[test]
fn a_tokenizer_larger_than_the_embedding_is_refused_with_both_sizes() {
    let home = Home::folder(&TinyModel { vocab_size: 288, ..TinyModel::default() });
    let mut tokenizer = pelton_testkit::tokenizer_json();
    let vocab = tokenizer["model"]["vocab"].as_object_mut().expect("a vocabulary");
    for id in N_TOKENS..289 {
        vocab.insert(format!("more{id}"), id.into());
    }
    home.write("tokenizer.json", &tokenizer.to_string());
    let error = home.load(small()).expect_err("one token too many");
    let LlmError::VocabMismatch { n_tokenizer, n_embedding, .. } = error else { panic!("{error}") };
    assert_eq!((n_tokenizer, n_embedding), (289, 288));
    let line = error.to_string();
    assert!(line.contains("tiny") && line.contains("289") && line.contains("288"), "{line}");
}

#[test]
fn rows_beyond_the_tokenizer_are_padding_that_is_never_sampled() {
    // Three rows out of four are padding, so that chance alone would not hide them.
    let model = TinyModel { vocab_size: 4 * N_TOKENS, ..TinyModel::default() };
    let llm = Home::folder(&model).load(small()).expect("loads");
    let hot = |seed| SamplingParams { seed, temperature: 2.0, ..SamplingParams::default() };
    for seed in 0..4 {
        let ids = ids(&llm, hot(seed), Some(100));
        assert_eq!(ids.len(), 100);
        let padding = ids.iter().find(|id| id.0 as usize >= N_TOKENS);
        assert_eq!(padding, None, "seed {seed}");
    }
    let greedy = SamplingParams { logprobs: Some(20), ..SamplingParams::greedy() };
    assert!(ids(&llm, greedy, Some(50)).iter().all(|id| (id.0 as usize) < N_TOKENS));
}

#[test]
fn what_the_authors_recommend_is_told_from_silence() {
    let home = Home::folder(&TinyModel::default());
    let recommended =
        |home: &Home| home.load(small()).expect("loads").recommended_sampling().cloned();
    assert_eq!(recommended(&home), None);
    home.write("generation_config.json", r#"{"eos_token_id": 2}"#);
    assert_eq!(recommended(&home), None, "no word of sampling");
    home.write("generation_config.json", r#"{"temperature": 1.0}"#);
    assert_eq!(recommended(&home), Some(SamplingParams::default()));
    home.write("generation_config.json", r#"{"temperature": -3}"#);
    let line = home.load(small()).expect_err("out of range").to_string();
    assert!(line.contains("generation_config.json") && line.contains("temperature"), "{line}");
}

#[test]
fn waiting_is_told_apart_from_reading() {
    let llm = Home::folder(&TinyModel::default()).load(small()).expect("loads");
    let request = CompletionRequest {
        prompts: vec![Prompt::Text("the moth".to_owned())],
        generation: Generation { max_tokens: Some(3), ..Generation::default() },
    };
    let mut generating = llm.complete(request).expect("accepted");
    assert_eq!(generating.timings().queue_seconds, None, "nothing has been heard of yet");
    while generating.blocking_next().is_some() {}
    let timings = generating.timings();
    let (queue, ttft) = (timings.queue_seconds.expect("ran"), timings.ttft_seconds.expect("ran"));
    assert!(0.0 <= queue && queue <= ttft && ttft <= timings.total_seconds, "{timings:?}");
}
