//! The World tokenizer of RWKV against the package of its author, from folders and from GGUF
//! metadata.
//!
//! `fixtures/make_world.py` wrote the list of tokens and the expected ids.

use std::path::{Path, PathBuf};

use pelton_base::TokenId;
use pelton_text::{EncodeOptions, GgufVocab, TokenKind, Tokenizer};

const LIST: &str = "rwkv_vocab_v20230424.txt";
const END: &str = "<|rwkv_tokenizer_end_of_text|>";

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
}

fn cases() -> Vec<(String, Vec<TokenId>)> {
    let read = |name: &str| std::fs::read(fixture(name)).expect(name);
    let texts: Vec<String> = serde_json::from_slice(&read("vocab/texts.json")).expect("texts");
    let ids: Vec<Vec<u32>> = serde_json::from_slice(&read("world/cases.json")).expect("ids");
    assert_eq!(texts.len(), ids.len());
    let tokens = |ids: Vec<u32>| ids.into_iter().map(TokenId).collect();
    texts.into_iter().zip(ids.into_iter().map(tokens)).collect()
}

/// The vocabulary of the fixture as converters write it: the end of a text, then every token with
/// what is not ASCII escaped.
fn vocab() -> GgufVocab {
    let folder = Tokenizer::from_folder(&fixture("world")).expect("a tokenizer");
    let spelled = |id: u32| -> Vec<u8> {
        let bytes = folder.token_bytes(TokenId(id)).expect("a token");
        let spell = |byte: &u8| match byte {
            b'\\' => "\\\\".to_owned(),
            b'\'' => "\\'".to_owned(),
            b'\n' => "\\n".to_owned(),
            b' '..=b'~' => char::from(*byte).to_string(),
            byte => format!("\\x{byte:02x}"),
        };
        bytes.iter().map(spell).collect::<String>().into_bytes()
    };
    let n_tokens = folder.vocab_size() as u32;
    let tokens = [b"<s>".to_vec()].into_iter().chain((1..n_tokens).map(spelled));
    let mut kinds = vec![TokenKind::Normal; n_tokens as usize];
    kinds[0] = TokenKind::Control;
    GgufVocab {
        origin: "fixture.gguf".to_owned(),
        model: "rwkv".to_owned(),
        tokens: tokens.collect(),
        kinds,
        bos: Some(0),
        eos: Some(0),
        ..GgufVocab::default()
    }
}

#[test]
fn folders_and_metadata_give_the_ids_of_the_package() {
    let folder = Tokenizer::from_folder(&fixture("world")).expect("a tokenizer");
    let metadata = vocab().into_tokenizer().expect("a tokenizer");
    let mut n_long = 0;
    for (text, expected) in cases() {
        for tokenizer in [&folder, &metadata] {
            let options = EncodeOptions { add_special: true, parse_special: false };
            let got = tokenizer.encode_with(&text, options).expect("ids");
            assert_eq!(got, expected, "{text:?}");
            assert_eq!(tokenizer.decode(&got, true), text);
        }
        n_long += expected.iter().filter(|token| token.0 > 256).count();
    }
    assert!(n_long > 100, "{n_long} tokens of more than one byte");
}

#[test]
fn the_end_of_a_text_is_a_token_only_where_control_tokens_are_read() {
    let folder = Tokenizer::from_folder(&fixture("world")).expect("a tokenizer");
    let metadata = vocab().into_tokenizer().expect("a tokenizer");
    for (tokenizer, end) in [(&folder, END), (&metadata, "<s>")] {
        let text = format!("a{end}b");
        let with = |parse_special| {
            let options = EncodeOptions { add_special: true, parse_special };
            tokenizer.encode_with(&text, options).expect("ids")
        };
        assert_eq!(with(true)[1], TokenId(0));
        assert_eq!(with(true).len(), 3);
        assert!(!with(false).contains(&TokenId(0)));
        assert_eq!(tokenizer.decode(&with(false), true), text);
        assert_eq!((tokenizer.eos(), tokenizer.is_special(TokenId(0))), (Some(TokenId(0)), true));
    }
}

#[test]
fn a_text_without_tokens_is_an_error_that_names_the_byte() {
    let mut vocab = vocab();
    vocab.kinds[1 + usize::from(b'q')] = TokenKind::Unused;
    let tokenizer = vocab.into_tokenizer().expect("a tokenizer");
    let error = tokenizer.encode("a q", true).expect_err("no token").to_string();
    assert!(error.contains("the byte 113"), "{error}");
}

#[test]
fn tokens_of_any_length_are_no_work_for_the_reader() {
    let mut vocab = vocab();
    vocab.tokens[300] = vec![b'x'; 1025];
    let error = vocab.into_tokenizer().expect_err("too long").to_string();
    assert!(error.contains("tokenizer.ggml.tokens") && error.contains("[300]"), "{error}");
}

#[test]
fn the_longest_control_token_is_read_and_the_fields_of_a_folder_name_tokens_by_their_text() {
    let mut vocab = vocab();
    for (id, token) in [(300, &b"<s><s>"[..]), (301, b"<s>a")] {
        (vocab.tokens[id], vocab.kinds[id]) = (token.to_vec(), TokenKind::Control);
    }
    let tokenizer = vocab.into_tokenizer().expect("a tokenizer");
    let options = EncodeOptions { add_special: false, parse_special: true };
    let ids = tokenizer.encode_with("<s><s><s>ab", options).expect("ids");
    assert_eq!(ids[..2], [TokenId(300), TokenId(301)]);
    let temp = tempfile::tempdir().expect("a folder");
    let write = |name: &str, text: &str| std::fs::write(temp.path().join(name), text);
    write(LIST, "1 'a' 1\n2 '\\n\\n' 2\n").expect("written");
    let config = r#"{"eos_token": "\n\n", "added_tokens_decoder": {"3": {"content": "\\(",
        "special": false}}}"#;
    write("tokenizer_config.json", config).expect("written");
    let tokenizer = Tokenizer::from_folder(temp.path()).expect("a tokenizer");
    assert_eq!((tokenizer.bos(), tokenizer.eos()), (Some(TokenId(0)), Some(TokenId(2))));
    let vocab = GgufVocab::from_folder(temp.path()).expect("a list").expect("a vocabulary");
    assert!(vocab.origin.ends_with(LIST), "{}", vocab.origin);
    assert_eq!(tokenizer.encode("a\\(a", false).expect("ids"), [1, 3, 1].map(TokenId));
}

#[test]
fn a_text_is_refused_by_its_beginning_only_beyond_the_limits_margin() {
    let long = "b".repeat(56);
    let vocab = GgufVocab {
        model: "rwkv".to_owned(),
        tokens: vec![b"a".to_vec(), long.clone().into_bytes()],
        ..GgufVocab::default()
    };
    let tokenizer = vocab.into_tokenizer().expect("a tokenizer");
    let options = EncodeOptions { add_special: false, parse_special: false };
    let count = |text: &str, limit| {
        tokenizer.encode_at_most(text, options, limit).map(|tokens| tokens.len())
    };
    // 1024 bytes are not only the beginning; of one more, the beginning has too many tokens.
    assert_eq!(count(&"a".repeat(1024), 20).expect("encoded whole"), 1024);
    let error = count(&"a".repeat(1025), 20).expect_err("too long").to_string();
    assert!(error.contains("more than 960 tokens; at most 20"), "{error}");
    // 1024 bytes of 89 tokens: 20, a quarter of it, and 64.
    let at_margin = long.repeat(17) + &"a".repeat(72 + 5);
    assert_eq!(count(&at_margin, 20).expect("encoded whole"), 89 + 5);
    count(&at_margin, 19).expect_err("beyond the margin");
    // The length of a prompt is looked at before its tokens.
    let most = pelton_base::limits::PROMPT_BYTES;
    let error = tokenizer.encode(&"q".repeat(most), true).expect_err("no token").to_string();
    assert!(error.contains("the byte 113"), "{error}");
    let error = tokenizer.encode(&"q".repeat(most + 1), true).expect_err("too long").to_string();
    assert!(error.contains("the prompt has 16777217 bytes"), "{error}");
}

#[test]
fn a_broken_list_is_an_error_that_names_the_line() {
    let whole = std::fs::read_to_string(fixture("world").join(LIST)).expect("the list");
    let temp = tempfile::tempdir().expect("a folder");
    let error_of = |text: &str| {
        std::fs::write(temp.path().join(LIST), text).expect("written");
        Tokenizer::from_folder(temp.path()).map(drop).expect_err("an error").to_string()
    };
    let line = "300 'abc' 3";
    for (wrong, expected) in [
        ("300 'abc' 4", "line 2"),
        ("300 abc 3", "line 2"),
        ("300 'abc", "line 2"),
        ("-1 'abc' 3", "line 2"),
        ("0 'abc' 3", "the id 0"),
        ("4294967295 'abc' 3", "the id 4294967295"),
        ("7 'abc' 3", "twice"),
        ("300 b'\\u4f60' 3", "line 2"),
    ] {
        let error = error_of(&format!("7 'a' 1\n{wrong}\n"));
        assert!(error.contains(expected) && error.contains(LIST), "{wrong}: {error}");
    }
    // Cut anywhere, it is a list or an error.
    for n_bytes in (0..whole.len()).step_by(211).filter(|n| whole.is_char_boundary(*n)) {
        std::fs::write(temp.path().join(LIST), &whole[..n_bytes]).expect("written");
        drop(Tokenizer::from_folder(temp.path()));
    }
    std::fs::write(temp.path().join(LIST), format!("7 'a' 1\n{line}\n")).expect("written");
    assert!(Tokenizer::from_folder(temp.path()).is_ok());
}
