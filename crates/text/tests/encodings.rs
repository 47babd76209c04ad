//! Encodings against Hugging Face `tokenizers` and against SentencePiece itself.
//!
//! `fixtures/make_fixtures.py` trained the tokenizers and wrote the expected ids.

use std::path::{Path, PathBuf};

use pelton_base::TokenId;
use pelton_text::{EncodeOptions, GgufVocab, TextError, TokenKind, Tokenizer};
use serde_json::Value;

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
}

fn json(name: &str) -> Value {
    let bytes = std::fs::read(fixture(name)).expect(name);
    serde_json::from_slice(&bytes).expect(name)
}

fn strings(value: &Value) -> Vec<Vec<u8>> {
    let list = value.as_array().expect("a list");
    list.iter().map(|s| s.as_str().expect("a string").as_bytes().to_vec()).collect()
}

fn vocab(file: &Value) -> GgufVocab {
    let numbers = |field: &str| file[field].as_array().cloned().unwrap_or_default();
    GgufVocab {
        origin: "fixture.gguf".to_owned(),
        model: file["model"].as_str().expect("model").to_owned(),
        pre: file["pre"].as_str().map(str::to_owned),
        tokens: strings(&file["tokens"]),
        scores: numbers("scores").iter().map(|n| n.as_f64().expect("a score") as f32).collect(),
        kinds: numbers("kinds")
            .iter()
            .map(|n| TokenKind::from_gguf(n.as_i64().expect("a kind") as i32).expect("a kind"))
            .collect(),
        merges: file.get("merges").map(strings).unwrap_or_default(),
        add_bos: Some(false),
        add_space_prefix: file["add_space_prefix"].as_bool(),
        ..GgufVocab::default()
    }
}

fn ids(value: &Value) -> Vec<TokenId> {
    let list = value.as_array().expect("ids");
    list.iter().map(|id| TokenId(id.as_u64().expect("an id") as u32)).collect()
}

/// Checks every case of a fixture; all differences are shown at once.
fn check(name: &str, cases: &Value, tokenizer: &Tokenizer, options: EncodeOptions) {
    let mut wrong = Vec::new();
    let cases = cases.as_array().expect("cases");
    for case in cases {
        let text = case["text"].as_str().expect("text");
        let expected = ids(&case["ids"]);
        let got = tokenizer.encode_with(text, options).expect("an encoding");
        if got != expected {
            wrong.push(format!("{text:?}: got {got:?}, expected {expected:?}"));
            continue;
        }
        // SentencePiece spells an unknown token ` ⁇ `; here it is special and says nothing.
        if got.iter().any(|id| tokenizer.token_id("<unk>") == Some(*id)) {
            continue;
        }
        let decoded = tokenizer.decode(&got, true);
        if decoded != case["decoded"].as_str().expect("decoded") {
            wrong.push(format!("{text:?} decoded to {decoded:?}, expected {}", case["decoded"]));
        }
    }
    assert!(wrong.is_empty(), "{name}: {} of {}:\n{}", wrong.len(), cases.len(), wrong.join("\n"));
}

const PARSE: EncodeOptions = EncodeOptions { add_special: true, parse_special: true };
const PLAIN: EncodeOptions = EncodeOptions { add_special: true, parse_special: false };

#[test]
fn a_tokenizer_json_encodes_and_decodes_as_hugging_face_does() {
    let tokenizer = Tokenizer::from_folder(&fixture("bpe")).expect("a tokenizer");
    check("bpe", &json("bpe_cases.json"), &tokenizer, PARSE);
    assert_eq!(tokenizer.bos(), Some(TokenId(0)));
    assert_eq!(tokenizer.eos(), tokenizer.token_id("<|im_end|>"));
}

#[test]
fn a_gguf_vocabulary_encodes_as_the_tokenizer_json_it_came_from() {
    for pre in ["gpt-2", "smollm", "llama-bpe", "qwen2", "gpt-4o"] {
        let file = json(&format!("gguf_{pre}.json"));
        let tokenizer = vocab(&file).into_tokenizer().expect("a tokenizer");
        check(pre, &file["cases"], &tokenizer, PARSE);
    }
}

#[test]
fn scores_give_the_ids_that_sentencepiece_gives() {
    for name in ["spm.json", "spm_no_bytes.json"] {
        let file = json(name);
        let tokenizer = vocab(&file).into_tokenizer().expect("a tokenizer");
        check(name, &file["cases"], &tokenizer, PLAIN);
    }
}

#[test]
fn control_tokens_in_text_are_tokens_only_when_asked() {
    let folder = Tokenizer::from_folder(&fixture("bpe")).expect("a tokenizer");
    let spm = vocab(&json("spm.json")).into_tokenizer().expect("a tokenizer");
    for tokenizer in [folder, spm] {
        let start = tokenizer.token_id("<|im_start|>").expect("a control token");
        assert!(tokenizer.is_special(start));
        let options = |parse_special| EncodeOptions { add_special: false, parse_special };
        let parsed = tokenizer.encode_with("<|im_start|>a", options(true)).expect("ids");
        let plain = tokenizer.encode_with("<|im_start|>a", options(false)).expect("ids");
        assert_eq!(parsed[0], start);
        assert!(!plain.contains(&start), "{plain:?}");
        assert_eq!(tokenizer.decode(&plain, true), "<|im_start|>a");
    }
}

#[test]
fn bos_is_added_when_the_files_say_so_and_only_then() {
    let file = json("spm.json");
    let with = |add_bos: Option<bool>| {
        let vocab = GgufVocab { bos: Some(1), eos: Some(2), add_bos, ..vocab(&file) };
        vocab.into_tokenizer().expect("a tokenizer").encode("x", true).expect("ids")
    };
    // The SentencePiece family begins every text with BOS unless the file says otherwise.
    assert_eq!(with(None)[0], TokenId(1));
    assert_eq!(with(Some(true))[0], TokenId(1));
    assert_ne!(with(Some(false))[0], TokenId(1));
}

#[test]
fn nonsense_vocabularies_are_refused_by_name() {
    let bpe = vocab(&json("gguf_gpt-2.json"));
    let spm = vocab(&json("spm.json"));
    let cases: [(&str, GgufVocab); 9] = [
        ("tokenizer.ggml.model", GgufVocab { model: "plamo2".into(), ..bpe.clone() }),
        ("known are default, gpt-2", GgufVocab { pre: Some("none".into()), ..bpe.clone() }),
        ("tokenizer.ggml.tokens", GgufVocab { tokens: Vec::new(), ..bpe.clone() }),
        ("tokenizer.ggml.token_type", GgufVocab { kinds: vec![TokenKind::Normal], ..bpe.clone() }),
        ("tokenizer.ggml.merges", GgufVocab { merges: vec![b"a".to_vec()], ..bpe.clone() }),
        ("tokenizer.ggml.merges", GgufVocab { merges: vec![b"zq zq".to_vec()], ..bpe.clone() }),
        ("tokenizer.ggml.eos_token_id", GgufVocab { eos: Some(1 << 30), ..bpe }),
        ("tokenizer.ggml.scores", GgufVocab { scores: Vec::new(), ..spm.clone() }),
        ("tokenizer.ggml.scores", GgufVocab { scores: vec![f32::NAN; 560], ..spm }),
    ];
    for (expected, vocab) in cases {
        let error = vocab.into_tokenizer().expect_err(expected).to_string();
        assert!(error.contains(expected) && error.contains("fixture.gguf"), "{error}");
    }
}

#[test]
fn a_broken_tokenizer_json_is_an_error_that_names_the_file() {
    let whole = std::fs::read(fixture("bpe/tokenizer.json")).expect("the fixture");
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("tokenizer.json");
    let error_of = |bytes: &[u8]| {
        std::fs::write(&path, bytes).expect("a file");
        Tokenizer::from_file(&path).map(|_| ()).expect_err("an error").to_string()
    };
    let mut cases: Vec<Vec<u8>> =
        (0..whole.len()).step_by(97).map(|n_bytes| whole[..n_bytes].to_vec()).collect();
    cases.push(b"[1, 2]".to_vec());
    cases.push(br#"{"model": {"type": "BPE", "vocab": {"a": 0}, "merges": ["a a"]}}"#.to_vec());
    cases.push(br#"{"model": {"type": "BPE", "vocab": {"a": -1}, "merges": []}}"#.to_vec());
    cases.push(br#"{"model": {"type": "BPE", "vocab": {"a": 4294967295}, "merges": []}}"#.to_vec());
    cases.push("[".repeat(1 << 20).into_bytes());
    cases.push(br#"{"model": {"type": "Abacus", "vocab": {}, "merges": []}}"#.to_vec());
    let edited = |pointer: &str, value: Value| {
        let mut file: Value = serde_json::from_slice(&whole).expect("the fixture");
        *file.pointer_mut(pointer).expect("a field of the fixture") = value;
        file.to_string().into_bytes()
    };
    // A post-processor with a token that it does not define, and a normalizer that explodes.
    cases.push(edited("/post_processor/special_tokens", serde_json::json!({})));
    let step = serde_json::json!(
        {"type": "Replace", "pattern": {"String": "a"}, "content": "a".repeat(1000)}
    );
    let steps = serde_json::json!({"type": "Sequence", "normalizers": [step, step, step]});
    cases.push(edited("/normalizer", steps));
    for case in cases {
        let error = error_of(&case);
        assert!(error.contains("tokenizer.json"), "{error}");
    }
    let sparse = std::fs::File::create(&path).expect("a file");
    sparse.set_len(pelton_base::limits::TOKENIZER_BYTES + 1).expect("a sparse file");
    let error = Tokenizer::from_file(&path).expect_err("too large").to_string();
    assert!(error.contains("limit") && error.contains("tokenizer.json"), "{error}");
    std::fs::remove_file(&path).expect("removed");
    let error = Tokenizer::from_file(&path).expect_err("missing").to_string();
    assert!(error.contains("cannot read") && error.contains("tokenizer.json"), "{error}");
}

#[test]
fn only_the_post_processor_of_a_tokenizer_json_decides_about_bos() {
    let json = std::fs::read(fixture("bpe/tokenizer.json")).expect("the fixture");
    let config = br#"{"bos_token": "<|endoftext|>", "add_bos_token": false}"#;
    let tokenizer = Tokenizer::from_bytes_with_config(&json, config).expect("a tokenizer");
    assert_eq!(tokenizer.encode("x", true).expect("ids")[0], TokenId(0));
    assert_ne!(tokenizer.encode("x", false).expect("ids")[0], TokenId(0));
}

#[test]
fn a_text_that_is_far_too_long_is_refused_by_its_beginning() {
    let tokenizer = Tokenizer::from_folder(&fixture("bpe")).expect("a tokenizer");
    let options = EncodeOptions { add_special: true, parse_special: true };
    let text = "some words and more ".repeat(100);
    let tokens = tokenizer.encode(&text, true).expect("ids");
    assert_eq!(tokenizer.encode_at_most(&text, options, tokens.len()).expect("fits"), tokens);
    let error = tokenizer.encode_at_most(&text.repeat(100), options, 100).expect_err("too long");
    assert!(matches!(error, TextError::TooManyTokens { at_least, limit: 100 } if at_least > 100));
}

#[test]
fn a_prompt_beyond_the_limit_is_refused() {
    let tokenizer = Tokenizer::from_folder(&fixture("bpe")).expect("a tokenizer");
    let text = "a".repeat(pelton_base::limits::PROMPT_BYTES + 1);
    assert!(tokenizer.encode(&text, true).expect_err("too long").to_string().contains("prompt"));
}
