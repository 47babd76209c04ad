//! The detokenizer: pieces joined are the whole, for every sequence of tokens.

use std::path::Path;
use std::sync::{Arc, LazyLock};

use pelton_base::TokenId;
use pelton_tensor::Gguf;
use pelton_text::{Detokenizer, GgufVocab, TokenKind, Tokenizer};
use proptest::prelude::*;

/// A vocabulary with every byte, one token each, and a few pieces that cut characters apart.
fn byte_vocabulary() -> Arc<Tokenizer> {
    let mut tokens: Vec<Vec<u8>> = (0..=255u8).map(|b| format!("<0x{b:02X}>").into()).collect();
    let mut kinds = vec![TokenKind::Byte; 256];
    for piece in ["▁", "▁water", "水", "é", "😀", "ש\u{5b8}", "e\u{301}", "▁▁"] {
        tokens.push(piece.into());
        kinds.push(TokenKind::Normal);
    }
    for control in ["<s>", "</s>"] {
        tokens.push(control.into());
        kinds.push(TokenKind::Control);
    }
    let vocab = GgufVocab {
        model: "llama".to_owned(),
        scores: vec![0.0; tokens.len()],
        tokens,
        kinds,
        ..GgufVocab::default()
    };
    Arc::new(vocab.into_tokenizer().expect("a tokenizer"))
}

fn stream(tokenizer: &Arc<Tokenizer>, tokens: &[TokenId], skip_special: bool) -> String {
    let mut detokenizer = Detokenizer::new(tokenizer, skip_special);
    let mut text = String::new();
    for token in tokens {
        text.push_str(&detokenizer.push(*token));
        assert!(detokenizer.held_bytes().len() < 4);
    }
    text.push_str(&detokenizer.flush());
    text
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    #[test]
    fn any_tokens_stream_to_what_they_decode_to(
        ids in prop::collection::vec(0u32..270, 0..40),
        skip_special: bool,
    ) {
        let tokenizer = byte_vocabulary();
        let tokens: Vec<TokenId> = ids.into_iter().map(TokenId).collect();
        prop_assert_eq!(stream(&tokenizer, &tokens, skip_special), tokenizer.decode(&tokens, skip_special));
    }

    #[test]
    fn any_bytes_stream_to_their_lossy_text(bytes in prop::collection::vec(
        prop_oneof![any::<u8>(), prop::sample::select(vec![0xf0, 0x9f, 0x98, 0x80, 0xe6, 0xb0, 0xb4, 0xed, 0xa0])],
        0..60,
    )) {
        let tokenizer = byte_vocabulary();
        let tokens: Vec<TokenId> = bytes.iter().map(|b| TokenId(u32::from(*b))).collect();
        let expected = String::from_utf8_lossy(bytes.strip_prefix(b" ").unwrap_or(&bytes)).into_owned();
        prop_assert_eq!(stream(&tokenizer, &tokens, true), expected);
    }

    #[test]
    fn any_text_comes_back_from_encode_and_stream(text in "\\PC{0,40}|[ 水😀e\u{301}\u{5e9}\u{5b8}\u{200d}👩👧\n]{0,30}") {
        let tokenizer = byte_vocabulary();
        let tokens = tokenizer.encode(&text, false).expect("ids");
        // Text that spells a piece's own space sign reads back as a space; nothing else changes.
        prop_assert_eq!(stream(&tokenizer, &tokens, true), text.replace('▁', " "));
    }
}

/// Every kind of tokenizer, from the fixtures.
static KINDS: LazyLock<Vec<Arc<Tokenizer>>> = LazyLock::new(|| {
    let fixture =
        |name: &str| Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/vocab").join(name);
    let json = ["roberta", "llama_first", "llama_legacy", "gemma", "unigram", "bert_cased"]
        .map(|name| Tokenizer::from_file(&fixture(&format!("{name}.tokenizer.json"))));
    let gguf = ["byte_level", "gemma", "unigram", "bert_uncased"].map(|name| {
        let gguf = Gguf::open(&fixture(&format!("{name}.gguf"))).expect("a GGUF file");
        Tokenizer::from_gguf(&gguf)
    });
    json.into_iter().chain(gguf).map(|t| Arc::new(t.expect("a tokenizer"))).collect()
});

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, ..ProptestConfig::default() })]

    #[test]
    fn any_tokens_of_any_kind_stream_to_what_they_decode_to(
        kind in 0usize..10,
        ids in prop::collection::vec(prop_oneof![0u32..300, 0u32..1000], 0..40),
        skip_special: bool,
    ) {
        let tokenizer = &KINDS[kind];
        let tokens: Vec<TokenId> = ids.into_iter().map(TokenId).collect();
        let whole = tokenizer.decode(&tokens, skip_special);
        prop_assert_eq!(stream(tokenizer, &tokens, skip_special), whole.clone());
        // Nothing is written that more tokens would change.
        let mut detokenizer = Detokenizer::new(tokenizer, skip_special);
        let mut written = String::new();
        for token in &tokens {
            written.push_str(&detokenizer.push(*token));
            prop_assert!(whole.starts_with(&written), "{:?} before {:?}", written, whole);
        }
    }

    #[test]
    fn any_text_streams_back_as_it_decodes(kind in 0usize..10, text in "\\PC{0,40}") {
        let tokenizer = &KINDS[kind];
        let tokens = tokenizer.encode(&text, true).expect("ids");
        let mut detokenizer = Detokenizer::new(tokenizer, true);
        let pieces: String = tokens.iter().map(|token| detokenizer.push(*token)).collect();
        // No character is given up before its last byte could come.
        prop_assert!(text.contains('\u{fffd}') || !pieces.contains('\u{fffd}'), "{:?}", pieces);
        prop_assert_eq!(pieces + &detokenizer.flush(), tokenizer.decode(&tokens, true));
    }
}

#[test]
fn a_character_appears_with_its_last_byte_and_not_before() {
    let tokenizer = byte_vocabulary();
    let mut detokenizer = Detokenizer::new(&tokenizer, true);
    let mut held = Vec::new();
    let mut push = |b: u8| {
        let piece = detokenizer.push(TokenId(u32::from(b)));
        held.push(detokenizer.held_bytes().to_vec());
        piece
    };
    let pieces: Vec<String> = "😀".bytes().map(&mut push).collect();
    assert_eq!(pieces, ["", "", "", "😀"]);
    assert_eq!(held, [&b"\xf0"[..], b"\xf0\x9f", b"\xf0\x9f\x98", b""]);
    assert_eq!(detokenizer.flush(), "");
}

#[test]
fn only_the_start_of_a_text_loses_its_space() {
    let tokenizer = byte_vocabulary();
    let water = tokenizer.token_id("▁water").expect("a piece");
    let bos = tokenizer.token_id("<s>").expect("BOS");
    assert_eq!(stream(&tokenizer, &[bos, water, water], true), "water water");
    assert_eq!(stream(&tokenizer, &[bos, water], false), "<s> water");
    assert_eq!(Detokenizer::continuing(&tokenizer, true).push(water), " water");
}
