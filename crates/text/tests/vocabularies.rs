//! Every kind of vocabulary, from every file it may come in, against Hugging Face.
//!
//! `fixtures/make_vocabularies.py` trained them and wrote the expected ids and texts.

use std::path::{Path, PathBuf};

use pelton_base::TokenId;
use pelton_tensor::Gguf;
use pelton_text::{EncodeOptions, GgufVocab, Tokenizer};
use serde_json::Value;

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/vocab").join(name)
}

fn json(name: &str) -> Value {
    let bytes = std::fs::read(fixture(name)).expect(name);
    serde_json::from_slice(&bytes).expect(name)
}

fn texts() -> Vec<String> {
    serde_json::from_value(json("texts.json")).expect("texts")
}

fn ids(value: &Value) -> Vec<TokenId> {
    let list = value.as_array().expect("ids");
    list.iter().map(|id| TokenId(id.as_u64().expect("an id") as u32)).collect()
}

fn from_json(name: &str) -> Tokenizer {
    Tokenizer::from_file(&fixture(&format!("{name}.tokenizer.json"))).expect(name)
}

fn vocab(name: &str) -> GgufVocab {
    let gguf = Gguf::open(&fixture(&format!("{name}.gguf"))).expect("a GGUF file");
    GgufVocab::from_gguf(&gguf).expect("a vocabulary")
}

/// What differs between a tokenizer and the cases of a fixture, line by line.
fn differences(name: &str, cases: &Value, tokenizer: &Tokenizer) -> Vec<String> {
    let mut wrong = Vec::new();
    for (text, case) in texts().iter().zip(cases.as_array().expect("cases")) {
        let expected = ids(&case[0]);
        let got = tokenizer.encode(text, true).expect("an encoding");
        if got != expected {
            wrong.push(format!("{name} {text:?}: got {got:?}, expected {expected:?}"));
            continue;
        }
        for (skip_special, decoded) in [(true, &case[1]), (false, &case[2])] {
            let got = tokenizer.decode(&got, skip_special);
            if got != decoded.as_str().expect("a text") {
                wrong.push(format!("{name} {text:?} decoded to {got:?}, expected {decoded}"));
            }
        }
    }
    wrong
}

fn check(name: &str, tokenizer: &Tokenizer) {
    let wrong = differences(name, &json(&format!("{name}.cases.json")), tokenizer);
    assert!(wrong.is_empty(), "{} differ:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn every_family_of_splitting_rules_gives_the_ids_of_its_own_files() {
    let whole = vocab("byte_level");
    let families = json("families.json");
    let mut wrong = Vec::new();
    for (family, cases) in families.as_object().expect("families") {
        let vocab = GgufVocab { pre: Some(family.clone()), add_bos: Some(false), ..whole.clone() };
        let tokenizer = vocab.into_tokenizer().expect("a tokenizer");
        for (text, case) in texts().iter().zip(cases.as_array().expect("cases")) {
            let (got, expected) = (tokenizer.encode(text, true).expect("ids"), ids(case));
            if got != expected {
                wrong.push(format!("{family} {text:?}: got {got:?}, expected {expected:?}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{} differ:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn every_kind_of_tokenizer_json_encodes_and_decodes_as_hugging_face_does() {
    let names = [
        "roberta",
        "llama_first",
        "llama_legacy",
        "gemma",
        "unigram",
        "bert_uncased",
        "bert_cased",
    ];
    let wrong: Vec<String> = names
        .iter()
        .flat_map(|name| differences(name, &json(&format!("{name}.cases.json")), &from_json(name)))
        .collect();
    assert!(wrong.is_empty(), "{} differ:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn every_family_of_gguf_vocabularies_gives_what_its_tokenizer_json_gives() {
    for name in ["gemma", "unigram", "bert_uncased", "bert_cased"] {
        check(name, &vocab(name).into_tokenizer().expect(name));
    }
}

#[test]
fn text_of_a_user_never_becomes_a_control_token_in_any_family() {
    let plain = EncodeOptions { add_special: false, parse_special: false };
    let mut tokenizers = vec![vocab("byte_level").into_tokenizer().expect("a tokenizer")];
    for name in ["gemma", "unigram", "bert_uncased"] {
        tokenizers.push(vocab(name).into_tokenizer().expect(name));
        tokenizers.push(from_json(name));
    }
    for tokenizer in &tokenizers {
        for text in texts() {
            for id in tokenizer.encode_with(&text, plain).expect("ids") {
                let is_unknown =
                    ["<unk>", "[UNK]"].map(|u| tokenizer.token_id(u)).contains(&Some(id));
                assert!(is_unknown || !tokenizer.is_special(id), "{text:?} became {id:?}");
            }
        }
    }
}

#[test]
fn the_ends_of_a_text_are_what_the_metadata_says() {
    let first_last = |vocab: GgufVocab| {
        let ids = vocab.into_tokenizer().expect("a tokenizer").encode("water", true).expect("ids");
        (ids[0].0, ids[ids.len() - 1].0)
    };
    let bert = || vocab("bert_uncased");
    assert_eq!(first_last(bert()), (2, 3));
    assert_ne!(first_last(GgufVocab { add_bos: Some(false), ..bert() }).0, 2);
    assert_ne!(first_last(GgufVocab { add_separator: Some(false), ..bert() }).1, 3);
    // A file that names neither class nor separator still has their tokens.
    assert_eq!(first_last(GgufVocab { class: None, separator: None, ..bert() }), (2, 3));
    assert_eq!(first_last(vocab("unigram")).1, 1);
    assert_ne!(first_last(GgufVocab { add_eos: Some(false), ..vocab("unigram") }).1, 1);
    assert_eq!(
        first_last(GgufVocab { bos: Some(0), add_bos: Some(true), ..vocab("unigram") }).0,
        0
    );
}

#[test]
fn spaces_of_a_unigram_text_are_kept_or_joined_as_the_metadata_says() {
    let decode = |remove, prefix| {
        let vocab = GgufVocab {
            remove_extra_whitespaces: remove,
            add_space_prefix: prefix,
            add_eos: Some(false),
            ..vocab("unigram")
        };
        let tokenizer = vocab.into_tokenizer().expect("a tokenizer");
        tokenizer.decode(&tokenizer.encode("  a  the ", true).expect("ids"), true)
    };
    assert_eq!(decode(None, None), "a the");
    assert_eq!(decode(Some(true), Some(false)), " a the".trim_start());
    assert_eq!(decode(Some(false), Some(false)), "  a  the ");
}
