//! Texts in, vectors out, from a folder of sentence-transformers.

use std::sync::{Arc, mpsc};

use crate::common::one_thread;
use pelton_base::TokenId;
use pelton_llm::{
    EmbedInput, EmbedOptions, EmbedRequest, Embedder, Embeddings, Llm, LlmError, LlmOptions,
    LocalModel, ModelRef, Pooling, cosine,
};
use pelton_testkit::{TinyEncoder, TinyModel};

fn open(folder: &tempfile::TempDir, options: EmbedOptions) -> Result<Arc<Embedder>, LlmError> {
    let model = ModelRef::parse(folder.path().to_str().expect("UTF-8")).expect("a folder");
    Embedder::load(&one_thread(), &model, &options, &mut |_| {})
}

fn tiny(encoder: &TinyEncoder) -> (tempfile::TempDir, Arc<Embedder>) {
    let folder = tempfile::tempdir().expect("a folder");
    encoder.write_folder(folder.path());
    let embedder = open(&folder, EmbedOptions::default()).expect("loads");
    (folder, embedder)
}

fn texts(texts: &[&str]) -> EmbedRequest {
    let inputs = texts.iter().map(|text| EmbedInput::Text((*text).to_owned())).collect();
    EmbedRequest { inputs, ..EmbedRequest::default() }
}

fn length(vector: &[f32]) -> f64 {
    vector.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>().sqrt()
}

#[test]
fn a_text_stands_between_the_special_tokens_of_its_model() {
    let (_folder, embedder) = tiny(&TinyEncoder::default());
    let got = embedder.embed(texts(&["cat", "A cat"])).expect("embedded");
    assert_eq!(got.n_tokens, [5, 6], "[CLS] c ##a ##t [SEP]");
    let tokens = [2, 6, 40, 59, 3].map(TokenId).to_vec();
    let request = EmbedRequest { inputs: vec![EmbedInput::Tokens(tokens)], ..Default::default() };
    assert_eq!(embedder.embed(request).expect("embedded").vectors[0], got.vectors[0]);
    assert_eq!(got.vectors[0].len(), TinyEncoder::DIMENSIONS);
    assert!((length(&got.vectors[0]) - 1.0).abs() < 1e-6);
    assert!(cosine(&got.vectors[0], &got.vectors[0]) > 0.999_999);
}

#[test]
fn many_texts_have_the_bits_of_each_alone() {
    let (_folder, embedder) = tiny(&TinyEncoder::default());
    let all: Vec<String> = (0..300).map(|i| "abc ".repeat(i % 15 + 1) + &i.to_string()).collect();
    let all: Vec<&str> = all.iter().map(String::as_str).collect();
    let together = embedder.embed(texts(&all)).expect("embedded");
    assert!(embedder.metrics().n_steps > 1, "{:?}", embedder.metrics());
    for (i, text) in all.iter().enumerate().step_by(37) {
        let alone = embedder.embed(texts(&[text])).expect("embedded");
        assert_eq!(alone.vectors[0], together.vectors[i], "{text}");
    }
}

#[test]
fn fewer_dimensions_are_the_first_ones_at_length_one() {
    let (_folder, embedder) = tiny(&TinyEncoder::default());
    let whole = embedder.embed(texts(&["abc"])).expect("embedded").vectors.remove(0);
    let request = EmbedRequest { dimensions: Some(8), ..texts(&["abc"]) };
    let cut = embedder.embed(request).expect("embedded").vectors.remove(0);
    assert_eq!(cut.len(), 8);
    assert!((length(&cut) - 1.0).abs() < 1e-6);
    assert!(cosine(&cut, &whole[..8]) > 0.999_999);
    for bad in [0, 33] {
        let request = EmbedRequest { dimensions: Some(bad), ..texts(&["abc"]) };
        let error = embedder.embed(request).expect_err("out of range");
        assert_eq!(error.param(), Some("dimensions"), "{error}");
    }
}

#[test]
fn a_prompt_is_put_before_a_text_and_an_unknown_one_is_named() {
    let (_folder, embedder) = tiny(&TinyEncoder::default());
    let named = EmbedRequest { prompt_name: Some("query".to_owned()), ..texts(&["cat"]) };
    let by_hand = embedder.embed(texts(&["query: cat"])).expect("embedded");
    assert_eq!(embedder.embed(named).expect("embedded"), by_hand);
    let unknown = EmbedRequest { prompt_name: Some("poem".to_owned()), ..texts(&["cat"]) };
    let error = embedder.embed(unknown).expect_err("unknown");
    assert_eq!(error.param(), Some("prompt_name"));
    assert!(error.to_string().contains("poem") && error.to_string().contains("query"), "{error}");
}

#[test]
fn what_is_too_long_is_named_or_cut_before_the_last_special_token() {
    let (_folder, embedder) = tiny(&TinyEncoder { max_tokens: 10, ..TinyEncoder::default() });
    let long = "a ".repeat(20);
    let error = embedder.embed(texts(&["b", &long])).expect_err("too long");
    let text = error.to_string();
    assert!(text.contains("input 1 has 22") && text.contains("truncate"), "{text}");
    let megabytes = "a ".repeat(1 << 20);
    assert_eq!(embedder.embed(texts(&[&megabytes])).expect_err("long").param(), Some("input"));
    for text in [&long, &megabytes] {
        let cut = EmbedRequest { truncate: true, ..texts(&[text]) };
        let cut = embedder.embed(cut).expect("cut");
        assert_eq!(cut, embedder.embed(texts(&["a a a a a a a a"])).expect("embedded"));
    }
}

#[test]
fn what_is_no_text_is_refused_by_its_number() {
    let (_folder, embedder) = tiny(&TinyEncoder::default());
    let error = embedder.embed(texts(&["a", ""])).expect_err("empty");
    assert!(error.to_string().contains("input 1 is empty"), "{error}");
    for tokens in [vec![], vec![TokenId(80)]] {
        let inputs = vec![EmbedInput::Tokens(tokens)];
        let request = EmbedRequest { inputs, ..Default::default() };
        assert_eq!(embedder.embed(request).expect_err("no text").param(), Some("input"));
    }
}

#[test]
fn flags_win_over_files() {
    let folder = tempfile::tempdir().expect("a folder");
    TinyEncoder::default().write_folder(folder.path());
    let cls = EmbedOptions { pooling: Some(Pooling::Cls), ..Default::default() };
    let plain = EmbedOptions { normalise: Some(false), ..Default::default() };
    let of =
        |options| open(&folder, options).expect("loads").embed(texts(&["abc"])).expect("it is");
    let (usual, cls, plain) = (of(EmbedOptions::default()), of(cls), of(plain));
    assert_ne!(usual.vectors, cls.vectors);
    assert!((length(&plain.vectors[0]) - 1.0).abs() > 1e-3);
    assert!(cosine(&plain.vectors[0], &usual.vectors[0]) > 0.999_999);
    let too_long = EmbedOptions { max_tokens: Some(65), ..Default::default() };
    assert!(open(&folder, too_long).expect_err("beyond").to_string().contains("from 1 to 64"));
}

#[test]
fn a_dropped_ticket_takes_its_request_out_and_a_closed_model_answers() {
    let (_folder, embedder) = tiny(&TinyEncoder::default());
    let prepare = || embedder.prepare(&texts(&["abc"])).expect("fine");
    let (sender, receiver) = mpsc::channel::<Result<Embeddings, LlmError>>();
    let kept = {
        let sender = sender.clone();
        embedder.submit(prepare(), move |got| sender.send(got).expect("heard")).expect("taken")
    };
    receiver.recv().expect("answered").expect("embedded");
    drop(kept);
    embedder.shutdown();
    let refused = embedder.submit(prepare(), |_| {}).map(|_| ());
    assert!(matches!(refused, Err(LlmError::Stopped)));
}

#[test]
fn each_kind_of_model_is_told_and_a_decoder_makes_vectors_too() {
    let encoder = tempfile::tempdir().expect("a folder");
    TinyEncoder::default().write_folder(encoder.path());
    let decoder = tempfile::tempdir().expect("a folder");
    TinyModel::default().write_folder(decoder.path());
    let is_one = |folder: &tempfile::TempDir| {
        LocalModel::Path(folder.path().to_owned()).is_embedding_model().expect("opens")
    };
    assert!(is_one(&encoder) && !is_one(&decoder));

    let model = ModelRef::parse(encoder.path().to_str().expect("UTF-8")).expect("a folder");
    let error = Llm::load(&one_thread(), &model, &LlmOptions::default(), &mut |_| {})
        .expect_err("no decoder");
    let text = error.to_string();
    assert!(text.contains("BertModel") && text.contains("embedding model"), "{text}");

    let embedder = open(&decoder, EmbedOptions::default()).expect("loads");
    assert_eq!(embedder.info().pooling, ["lasttoken"]);
    let got = embedder.embed(texts(&["abc", "abcd"])).expect("embedded");
    assert_eq!(got.n_tokens, [3, 4]);
    assert_ne!(got.vectors[0], got.vectors[1]);
}
