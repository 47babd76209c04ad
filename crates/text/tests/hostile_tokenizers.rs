//! Tokenizers that would make the `tokenizers` crate panic or search for hours: an error each.

use std::path::Path;
use std::time::{Duration, Instant};

use pelton_text::{EncodeOptions, GgufVocab, TextError, Tokenizer};
use serde_json::{Value, json};

/// The tokenizer of a fixture with another value in this field.
fn with(name: &str, field: &str, value: Value) -> Result<Tokenizer, TextError> {
    let file = format!("tests/fixtures/vocab/{name}.tokenizer.json");
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(file);
    let json = std::fs::read(path).expect("a fixture");
    let mut json: Value = serde_json::from_slice(&json).expect("JSON");
    json[field] = value;
    Tokenizer::from_bytes(json.to_string().as_bytes())
}

fn split(regex: &str) -> Tokenizer {
    let step = json!({
        "type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": false
    });
    with("gemma", "pre_tokenizer", step).expect("well formed")
}

fn replace(pattern: Value, content: &str) -> Value {
    json!({"type": "Replace", "pattern": pattern, "content": content})
}

#[test]
fn a_replacement_of_the_empty_text_is_refused_by_name() {
    for pattern in [json!({"String": ""}), json!({"Regex": ""})] {
        let step = replace(pattern, "z");
        let nested = json!({"type": "Sequence", "normalizers": [
            {"type": "Sequence", "normalizers": [step, {"type": "Lowercase"}]}]});
        for normalizer in [step, nested] {
            let error = with("roberta", "normalizer", normalizer).map(|_| ()).expect_err("refused");
            let error = error.to_string();
            assert!(error.contains("tokenizer.json: `normalizer.pattern`"), "{error}");
        }
    }
}

/// Each of them panics in the crate on some of these texts.
#[test]
fn a_replacement_where_nothing_stood_is_made() {
    let texts = ["", "a", "abc xx\u{e9}", "\u{65e5}\u{672c} axa", "\u{e9}a"];
    for name in ["gemma", "bert_cased", "llama_first", "roberta", "unigram"] {
        for (regex, replaced) in [(r"^", "zabc xx\u{e9}"), (r"(?=a)", "zabc xx\u{e9}")] {
            let steps = [replace(json!({"Regex": regex}), "z"), json!({"type": "Lowercase"})];
            let normalizer = json!({"type": "Sequence", "normalizers": steps});
            let tokenizer = with(name, "normalizer", normalizer).expect("consistent");
            for text in texts {
                tokenizer.encode(text, true).expect(text);
            }
            let plain = with(name, "normalizer", json!({"type": "Lowercase"})).expect("consistent");
            let expected = plain.encode(replaced, true).expect("encodes");
            assert_eq!(tokenizer.encode(texts[2], true).expect("encodes"), expected, "{name}");
        }
    }
}

/// The text is long enough for hours without a bound, and the bound is far above its own seconds.
#[test]
fn a_search_without_end_is_an_error_that_names_the_expression() {
    let long = "a".repeat(100_000);
    for regex in ["(?=(a+)+b)a", "(?=a*b)a", "(a+)+b|a", "(?:a|(?=b)c|aa?)+(?=x)d"] {
        let tokenizer = split(regex);
        tokenizer.encode("aaaaaaaa", false).expect("a short text is encoded");
        let started = Instant::now();
        let error = tokenizer.encode(&long, false).expect_err("too long").to_string();
        assert!(error.contains(regex) && error.contains("takes too long"), "{error}");
        assert!(started.elapsed() < Duration::from_secs(60), "{regex}: {:?}", started.elapsed());
    }
    // As a replacement, too, where the crate drops the error.
    let normalizer = replace(json!({"Regex": "(?=(a+)+b)a"}), "c");
    let tokenizer = with("gemma", "normalizer", normalizer).expect("well formed");
    assert!(tokenizer.encode(&long, false).is_err());
    tokenizer.encode("aab", false).expect("the budget is one of each text");
}

#[test]
fn a_gguf_vocabulary_passes_the_same_border() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/vocab/byte_level.gguf");
    let gguf = pelton_tensor::Gguf::open(&path).expect("a fixture");
    let mut vocab = GgufVocab::from_gguf(&gguf).expect("a vocabulary");
    // Digits in groups of three from the right: quadratic in the digits.
    vocab.pre = Some("superbpe".to_owned());
    let tokenizer = vocab.into_tokenizer().expect("consistent");
    let options = EncodeOptions { add_special: false, parse_special: false };
    tokenizer.encode_with("1234567 apples", options).expect("encodes");
    let error = tokenizer.encode_with(&"1".repeat(400_000), options).expect_err("too long");
    assert!(error.to_string().contains("takes too long"), "{error}");
}
