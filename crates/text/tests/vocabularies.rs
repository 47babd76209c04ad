//! Every kind of vocabulary, from every file it may come in, against Hugging Face.
//!
//! `fixtures/make_vocabularies.py` trained them and wrote the expected ids and texts.

use std::path::{Path, PathBuf};

use pelton_base::TokenId;
use pelton_tensor::Gguf;
use pelton_text::{EncodeOptions, GgufVocab, TokenKind, Tokenizer};
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

/// Differences between a tokenizer and the cases of a fixture, line by line.
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
fn ids_that_no_text_has_decode_as_in_hugging_face() {
    let mut wrong = Vec::new();
    for (name, cases) in json("decodes.json").as_object().expect("kinds") {
        let mut tokenizers = vec![from_json(name)];
        if fixture(&format!("{name}.gguf")).exists() {
            tokenizers.push(vocab(name).into_tokenizer().expect(name));
        }
        for case in cases.as_array().expect("cases") {
            for tokenizer in &tokenizers {
                for (skip_special, expected) in [(true, &case[1]), (false, &case[2])] {
                    let got = tokenizer.decode(&ids(&case[0]), skip_special);
                    if got != expected.as_str().expect("a text") {
                        wrong.push(format!("{name} {}: {got:?}, expected {expected}", case[0]));
                    }
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{} differ:\n{}", wrong.len(), wrong.join("\n"));
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
fn metadata_that_contradicts_itself_is_named_with_its_key() {
    let (t5, bert, gemma) = (vocab("unigram"), vocab("bert_uncased"), vocab("gemma"));
    let n_tokens = t5.tokens.len();
    let table = |bytes: &[u8]| GgufVocab { precompiled_charsmap: bytes.to_vec(), ..t5.clone() };
    let mut not_text = t5.clone();
    not_text.tokens[7] = vec![0xff];
    let mut infinite = t5.clone();
    infinite.scores[3] = f32::NEG_INFINITY;
    let mut nameless = bert.clone();
    (nameless.unknown, nameless.tokens[1]) = (None, b"x".to_vec());
    let cases: [(&str, GgufVocab); 16] = [
        ("`tokenizer.ggml.model` says", GgufVocab { model: "none".into(), ..t5.clone() }),
        ("`tokenizer.ggml.model` says", GgufVocab { model: "no_vocab".into(), ..t5.clone() }),
        ("tokenizer.ggml.model `plamo2`", GgufVocab { model: "plamo2".into(), ..t5.clone() }),
        ("tokenizer.ggml.scores", GgufVocab { scores: Vec::new(), ..t5.clone() }),
        ("tokenizer.ggml.scores", GgufVocab { scores: vec![0.0; 3], ..t5.clone() }),
        ("tokenizer.ggml.scores", infinite),
        ("tokenizer.ggml.tokens", not_text),
        ("tokenizer.ggml.token_type", GgufVocab { kinds: t5.kinds[1..].to_vec(), ..t5.clone() }),
        ("tokenizer.ggml.precompiled_charsmap", table(b"abc")),
        ("tokenizer.ggml.precompiled_charsmap", table(&[9, 0, 0, 0, 1])),
        ("tokenizer.ggml.precompiled_charsmap", table(&[4, 0, 0, 0, 0, 0, 0, 0])),
        (
            "tokenizer.ggml.unknown_token_id",
            GgufVocab { unknown: Some(n_tokens as u32), ..t5.clone() },
        ),
        ("tokenizer.ggml.cls_token_id", GgufVocab { class: Some(1 << 20), ..bert.clone() }),
        ("tokenizer.ggml.seperator_token_id", GgufVocab { separator: Some(1 << 20), ..bert }),
        ("[UNK]", nameless),
        ("tokenizer.ggml.merges", GgufVocab { merges: vec![b"q".to_vec()], ..gemma }),
    ];
    for (expected, vocab) in cases {
        let error = vocab.into_tokenizer().expect_err(expected).to_string();
        assert!(error.contains(expected) && error.contains(".gguf"), "{expected}: {error}");
    }
}

#[test]
fn a_hostile_tokenizer_json_of_any_kind_is_an_error_that_names_the_field() {
    let edited = |name: &str, pointer: &str, value: Value| {
        let mut file = json(&format!("{name}.tokenizer.json"));
        *file.pointer_mut(pointer).expect(pointer) = value;
        file.to_string().into_bytes()
    };
    let precompiled = |table: &str| {
        serde_json::json!({"type": "Sequence", "normalizers": [
            {"type": "Precompiled", "precompiled_charsmap": table}]})
    };
    let replace = serde_json::json!(
        {"type": "Replace", "pattern": {"Regex": ""}, "content": "x".repeat(99)}
    );
    let cases = [
        ("precompiled_charsmap", edited("unigram", "/normalizer", precompiled("AAAA"))),
        ("precompiled_charsmap", edited("unigram", "/normalizer", precompiled("BAAAAAAAAAA="))),
        ("precompiled_charsmap", edited("unigram", "/normalizer", precompiled("#"))),
        ("normalizer", edited("unigram", "/normalizer", replace)),
        ("UnkId", edited("unigram", "/model/unk_id", 1_000_000.into())),
        ("tokenizer.json", edited("unigram", "/model/vocab", serde_json::json!([["a"]]))),
        ("tokenizer.json", edited("unigram", "/model/vocab", serde_json::json!({"a": 1}))),
        ("decoder", edited("unigram", "/decoder", serde_json::json!({"type": "CTC"}))),
        ("decoder", edited("unigram", "/decoder", serde_json::json!({"type": "BPEDecoder"}))),
        ("decoder", edited("unigram", "/decoder", serde_json::json!(7))),
        ("model.type", edited("bert_cased", "/model/type", "Abacus".into())),
        ("tokenizer.json", edited("bert_cased", "/model/vocab", serde_json::json!([]))),
        (
            "tokenizer.json",
            edited("bert_cased", "/pre_tokenizer", serde_json::json!({"type": "?"})),
        ),
        (
            "tokenizer.json",
            edited("bert_cased", "/post_processor", serde_json::json!({"type": "?"})),
        ),
        ("merges", edited("gemma", "/model/merges", serde_json::json!([["a", "\u{1}"]]))),
        ("tokenizer.json", edited("gemma", "/model/merges", serde_json::json!(7))),
        ("tokenizer.json", edited("roberta", "/added_tokens", serde_json::json!([{"id": -1}]))),
    ];
    for (expected, bytes) in cases {
        let error = Tokenizer::from_bytes(&bytes).map(|_| ()).expect_err(expected).to_string();
        assert!(
            error.contains(expected) && error.contains("tokenizer.json"),
            "{expected}: {error}"
        );
    }
}

#[test]
fn a_vocabulary_smaller_than_the_models_decodes_its_padding_to_nothing() {
    let tokenizer = from_json("unigram");
    let padding = TokenId(tokenizer.vocab_size() as u32 + 7);
    assert_eq!(tokenizer.token_bytes(padding), None);
    assert!(!tokenizer.is_special(padding));
    let mut ids = tokenizer.encode("water falls", false).expect("ids");
    let text = tokenizer.decode(&ids, true);
    ids.insert(0, padding);
    ids.push(padding);
    assert_eq!(tokenizer.decode(&ids, true), text);
}

#[test]
fn a_message_that_ends_is_not_an_answer_that_ends_in_harmony() {
    let ends = |texts: &[&str]| {
        let mut vocab = vocab("byte_level");
        for text in texts {
            vocab.tokens.push(text.as_bytes().to_vec());
            vocab.kinds.push(TokenKind::Control);
        }
        let tokenizer = vocab.into_tokenizer().expect("a tokenizer");
        let is_end = |text: &&&str| {
            tokenizer.end_tokens().contains(&tokenizer.token_id(text).expect("a token"))
        };
        texts.iter().filter(is_end).map(|text| (*text).to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(ends(&["<|end|>"]), ["<|end|>"]);
    assert_eq!(ends(&["<|end|>", "<|return|>", "<|call|>"]), ["<|return|>", "<|call|>"]);
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
fn what_has_no_token_is_the_unknown_token_where_the_metadata_names_one() {
    let tokens = ["<unk>", "▁", "a", "b", "ab"].map(|token| token.as_bytes().to_vec()).to_vec();
    let ids = |unknown, kind| {
        let vocab = GgufVocab {
            model: "gemma4".to_owned(),
            tokens: tokens.clone(),
            kinds: vec![kind; 1].into_iter().chain(vec![TokenKind::Normal; 4]).collect(),
            merges: vec![b"a b".to_vec()],
            unknown,
            ..GgufVocab::default()
        };
        let tokenizer = vocab.into_tokenizer().expect("a tokenizer");
        let ids = tokenizer.encode("abx a", false).expect("ids");
        ids.iter().map(|id| id.0).collect::<Vec<_>>()
    };
    assert_eq!(ids(Some(0), TokenKind::Normal), [4, 0, 1, 2]);
    assert_eq!(ids(None, TokenKind::Unknown), [4, 0, 1, 2]);
    assert_eq!(ids(None, TokenKind::Normal), [4, 1, 2]);
    let unigram = vocab("unigram");
    assert_eq!(unigram.kinds.iter().filter(|kind| **kind == TokenKind::Unknown).count(), 1);
    check("unigram", &GgufVocab { unknown: None, ..unigram }.into_tokenizer().expect("its kind"));
}

#[test]
fn a_pair_of_texts_is_joined_as_the_metadata_says() {
    let joined = |vocab: GgufVocab| {
        let frame = vocab.into_tokenizer().expect("a tokenizer").pair_frame().expect("a frame");
        let pair = frame.join(&[TokenId(70), TokenId(71)], &[TokenId(80)]);
        (pair.tokens.iter().map(|token| token.0).collect::<Vec<_>>(), pair.kinds)
    };
    let bert = || vocab("bert_uncased");
    assert_eq!(joined(bert()), (vec![2, 70, 71, 3, 80, 3], vec![0, 0, 0, 0, 1, 1]));
    let asked = GgufVocab { add_separator: Some(true), ..bert() };
    assert_eq!(joined(asked), joined(bert()));
    let none = GgufVocab { add_bos: Some(false), add_separator: Some(false), ..bert() };
    assert_eq!(joined(none), (vec![70, 71, 80], vec![0; 3]));
    let bytes = |add_bos, add_eos, separator, add_separator| {
        joined(GgufVocab {
            bos: Some(60),
            eos: Some(61),
            separator,
            add_bos,
            add_eos,
            add_separator,
            ..vocab("byte_level")
        })
    };
    let yes = Some(true);
    assert_eq!(bytes(yes, yes, Some(62), yes), (vec![60, 70, 71, 61, 62, 80, 61], vec![0; 7]));
    let two_kinds = (vec![60, 70, 71, 61, 80, 61], vec![0, 0, 0, 0, 1, 1]);
    assert_eq!(bytes(yes, yes, Some(62), None), two_kinds);
    assert_eq!(bytes(yes, yes, None, yes), two_kinds);
    assert_eq!(bytes(yes, None, None, None), (vec![60, 70, 71, 80], vec![0; 4]));
    assert_eq!(bytes(None, yes, Some(62), yes), (vec![70, 71, 61, 62, 80, 61], vec![0; 6]));
}

#[test]
fn a_text_begins_with_a_token_where_the_metadata_asks_for_one() {
    let beginning = |vocab: GgufVocab| {
        let tokenizer = vocab.into_tokenizer().expect("a tokenizer");
        tokenizer.beginning().expect("ids").map(|token| token.0)
    };
    assert_eq!(beginning(vocab("bert_uncased")), Some(2));
    let with = |add_bos| GgufVocab { bos: Some(2), add_bos, ..vocab("unigram") };
    assert_eq!(beginning(with(Some(true))), Some(2));
    // Its only token of the empty text ends it.
    assert_eq!(beginning(with(None)), None);
    assert_eq!(beginning(GgufVocab { add_eos: Some(false), ..with(None) }), None);
    assert_eq!(from_json("llama_first").beginning().expect("ids"), None);
}

#[test]
fn a_text_that_continues_another_has_no_space_before_it_and_no_special_tokens() {
    for name in ["llama_first", "llama_legacy", "gemma"] {
        let tokenizer = from_json(name);
        for text in ["water falls", " water", "a\n b", "<s>", "<|im_start|>a", ""] {
            let tokens = tokenizer.encode_continuing(text, 99).expect(text);
            let bytes: Vec<u8> = tokens
                .iter()
                .flat_map(|token| tokenizer.token_bytes(*token).expect("a token"))
                .copied()
                .collect();
            assert_eq!(String::from_utf8_lossy(&bytes), text, "{name}");
            assert!(!tokens.iter().any(|token| tokenizer.is_special(*token)), "{name} {text}");
        }
        let error = tokenizer.encode_continuing(&"water ".repeat(999), 9).expect_err("too long");
        assert!(error.to_string().contains("at most 9 fit"), "{name}: {error}");
    }
}

#[test]
fn the_end_of_a_turn_is_the_token_that_the_files_name() {
    let tokenizer = GgufVocab { eos: Some(60), eot: Some(50), ..vocab("byte_level") };
    let tokenizer = tokenizer.into_tokenizer().expect("a tokenizer");
    assert_eq!(tokenizer.eot(), Some(TokenId(50)));
    assert!(tokenizer.end_tokens().contains(&TokenId(50)), "{:?}", tokenizer.end_tokens());
    let json = std::fs::read(fixture("gemma.tokenizer.json")).expect("a fixture");
    let config =
        br#"{"bos_token": "<s>", "eos_token": {"content": "</s>"}, "eot_token": "<keep>"}"#;
    let tokenizer = Tokenizer::from_bytes_with_config(&json, config).expect("a tokenizer");
    let named = |name: &str| tokenizer.token_id(name);
    assert_eq!((tokenizer.bos(), tokenizer.eos()), (named("<s>"), named("</s>")));
    assert_eq!((tokenizer.eot(), named("<keep>").is_some()), (named("<keep>"), true));
    assert_eq!(from_json("gemma").eot(), None);
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
    assert_eq!(decode(None, Some(false)), "a the");
    assert!(decode(Some(false), None).ends_with("a  the "));
    assert_eq!(decode(Some(true), Some(false)), " a the".trim_start());
    assert_eq!(decode(Some(false), Some(false)), "  a  the ");
}
