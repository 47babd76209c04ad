//! Model folders without a `tokenizer.json`, and what hostile ones say.

use std::path::{Path, PathBuf};

use pelton_base::TokenId;
use pelton_tensor::{Gguf, GgufWriter};
use pelton_text::{GgufVocab, TokenKind, Tokenizer};
use serde_json::{Value, json};

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/vocab").join(name)
}

fn json_of(name: &str) -> Value {
    serde_json::from_slice(&std::fs::read(fixture(name)).expect(name)).expect(name)
}

fn ids(value: &Value) -> Vec<TokenId> {
    let list = value.as_array().expect("ids");
    list.iter().map(|id| TokenId(id.as_u64().expect("an id") as u32)).collect()
}

/// A folder with these files.
fn folder(files: &[(&str, Vec<u8>)]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    for (name, bytes) in files {
        std::fs::write(folder.path().join(name), bytes).expect("a file");
    }
    folder
}

/// The tokenizer of these files, whose vocabulary is the same once it was written to a GGUF file.
fn load(files: &[(&str, Vec<u8>)]) -> Tokenizer {
    let folder = folder(files);
    if let Some(vocab) = GgufVocab::from_folder(folder.path()).expect("a vocabulary") {
        let out = folder.path().join("vocab.gguf");
        let mut writer = GgufWriter::new();
        for (key, value) in vocab.metadata() {
            writer.metadata(key, value);
        }
        writer.create(&out).and_then(|data| data.finish()).expect("written");
        let written = GgufVocab::from_gguf(&Gguf::open(&out).expect("a file")).expect("read");
        let without_origin = |vocab: GgufVocab| GgufVocab { origin: String::new(), ..vocab };
        let [written, vocab] = [written, vocab].map(without_origin);
        assert_eq!(format!("{written:?}"), format!("{vocab:?}"));
    }
    Tokenizer::from_folder(folder.path()).expect("a tokenizer")
}

fn error_of(files: &[(&str, Vec<u8>)]) -> String {
    Tokenizer::from_folder(folder(files).path()).map(|_| ()).expect_err("an error").to_string()
}

fn text_of(value: &Value) -> Vec<u8> {
    value.to_string().into_bytes()
}

/// Checks the ids of a fixture's cases.
fn check(tokenizer: &Tokenizer, name: &str) {
    let texts: Vec<String> = serde_json::from_value(json_of("texts.json")).expect("texts");
    for (text, case) in texts.iter().zip(json_of(name).as_array().expect("cases")) {
        let got = tokenizer.encode(text, true).expect("ids");
        assert_eq!(got, ids(&case[0]), "{text:?}");
        assert_eq!(tokenizer.decode(&got, true), case[1].as_str().expect("a text"), "{text:?}");
    }
}

#[test]
fn a_sentencepiece_file_gives_the_ids_of_sentencepiece() {
    let model = std::fs::read(fixture("bpe.model")).expect("the model");
    let tokenizer = load(&[("tokenizer.model", model)]);
    let mut wrong = Vec::new();
    for case in json_of("bpe_model.cases.json").as_array().expect("cases") {
        let text = case[0].as_str().expect("a text");
        // SentencePiece itself looks for no control tokens in a text.
        let options = pelton_text::EncodeOptions { add_special: false, parse_special: false };
        let got = tokenizer.encode_with(text, options).expect("ids");
        let decoded = tokenizer.decode(&got, true);
        // SentencePiece drops spaces that the text itself spelled `▁`.
        let is_back = text.contains('▁') || decoded == case[2].as_str().expect("a text");
        if got != ids(&case[1]) || !is_back {
            wrong.push(format!("{text:?}: {got:?} {decoded:?}, expected {case}"));
        }
    }
    assert!(wrong.is_empty(), "{} differ:\n{}", wrong.len(), wrong.join("\n"));
    assert_eq!((tokenizer.bos(), tokenizer.eos()), (Some(TokenId(1)), Some(TokenId(2))));
    assert_eq!(tokenizer.encode("a", true).expect("ids")[0], TokenId(1));
}

#[test]
fn a_unigram_sentencepiece_file_gives_what_its_tokenizer_json_gives() {
    let model = std::fs::read(fixture("unigram.model")).expect("the model");
    check(&load(&[("tokenizer.model", model)]), "unigram.cases.json");
}

#[test]
fn the_files_of_gpt_2_and_bert_give_what_their_tokenizer_json_gives() {
    let bert = json_of("bert_cased.tokenizer.json");
    let vocab = bert["model"]["vocab"].as_object().expect("a vocabulary");
    let mut words: Vec<(&String, u64)> =
        vocab.iter().map(|(word, id)| (word, id.as_u64().expect("an id"))).collect();
    words.sort_by_key(|(_, id)| *id);
    let lines: Vec<&str> = words.iter().map(|(word, _)| word.as_str()).collect();
    let config = text_of(&json!({"do_lower_case": false}));
    let files = [("vocab.txt", lines.join("\n").into_bytes()), ("tokenizer_config.json", config)];
    check(&load(&files), "bert_cased.cases.json");

    let file = json_of("roberta.tokenizer.json");
    let merges = file["model"]["merges"].as_array().expect("merges").iter();
    let merges: Vec<String> = merges
        .map(|pair| format!("{} {}", pair[0].as_str().expect("a"), pair[1].as_str().expect("b")))
        .collect();
    let merges = format!("#version: 0.2\n{}\n", merges.join("\n")).into_bytes();
    let added = json!({"added_tokens_decoder": {
        "0": {"content": "<|endoftext|>", "special": true},
        "1": {"content": "<|im_start|>", "special": true},
        "2": {"content": "<|im_end|>", "special": true},
        "900": {"content": "<keep>", "special": false},
    }});
    let files = [
        ("vocab.json", text_of(&file["model"]["vocab"])),
        ("merges.txt", merges),
        ("tokenizer_config.json", text_of(&added)),
    ];
    let tokenizer = load(&files);
    let texts: Vec<String> = serde_json::from_value(json_of("texts.json")).expect("texts");
    let families = json_of("families.json");
    for (text, case) in texts.iter().zip(families["gpt-2"].as_array().expect("cases")) {
        assert_eq!(tokenizer.encode(text, true).expect("ids"), ids(case), "{text:?}");
    }
    let qwen = json!({"tokenizer_class": "Qwen2Tokenizer",
        "added_tokens_decoder": added["added_tokens_decoder"]});
    let files = [files[0].clone(), files[1].clone(), ("tokenizer_config.json", text_of(&qwen))];
    let tokenizer = load(&files);
    for (text, case) in texts.iter().zip(families["qwen2"].as_array().expect("cases")) {
        assert_eq!(tokenizer.encode(text, true).expect("ids"), ids(case), "{text:?}");
    }
}

/// The files of `fixtures/tiktoken`, the configuration as `change` leaves it.
fn tiktoken_files(change: impl FnOnce(&mut Value)) -> [(&'static str, Vec<u8>); 2] {
    let read = |name: &str| std::fs::read(fixture("../tiktoken").join(name)).expect(name);
    let mut config = serde_json::from_slice(&read("tokenizer_config.json")).expect("an object");
    change(&mut config);
    [("tiktoken.model", read("tiktoken.model")), ("tokenizer_config.json", text_of(&config))]
}

#[test]
fn a_tiktoken_file_gives_the_ids_of_tiktoken() {
    let tokenizer = load(&tiktoken_files(|_| ()));
    let cases = json_of("../tiktoken/cases.json");
    for case in cases.as_array().expect("cases") {
        let text = case[0].as_str().expect("a text");
        let got = tokenizer.encode(text, true).expect("ids");
        assert_eq!(got, ids(&case[1]), "{text:?}");
        assert_eq!(tokenizer.decode(&got, false), text);
    }
    let named = |text: &str| tokenizer.token_id(text).expect(text);
    assert_eq!(tokenizer.bos(), Some(named("[BOS]")));
    assert_eq!(tokenizer.eos(), Some(named("[EOS]")));
    assert!(tokenizer.is_special(named("<|reserved_token_610|>")));
    assert!(!tokenizer.is_special(named("<keep>")));
}

#[test]
fn a_tiktoken_file_whose_splits_are_not_known_is_refused_by_its_code() {
    let class = |class: Value| {
        tiktoken_files(|config| config["auto_map"] = json!({ "AutoTokenizer": class }))
    };
    for known in [
        json!("tokenization_moonshot.TikTokenTokenizer"),
        json!(["moonshotai/Kimi-Linear--tokenization_kimi.TikTokenTokenizer", null]),
    ] {
        load(&class(known));
    }
    let alone = |class: Value| tiktoken_files(|config| *config = class);
    load(&alone(json!({ "tokenizer_class": "TikTokenTokenizer" })));
    for (config, found) in [
        (json!({}), "tokenizer_config.json: expected `tokenizer_class`"),
        (json!({ "tokenizer_class": "X" }), "tokenizer_class `X`"),
    ] {
        let error = error_of(&alone(config));
        assert!(error.contains(found) && error.contains("TikTokenTokenizer"), "{error}");
    }
    let error = error_of(&class(json!(["tokenization_other.TikTokenTokenizer", null])));
    for part in [
        "auto_map.AutoTokenizer",
        "tokenization_other.TikTok",
        "tokenization_kimi",
        "tokenizer.json",
    ] {
        assert!(error.contains(part), "{part}: {error}");
    }
}

#[test]
fn a_broken_tiktoken_file_is_an_error_that_names_the_line() {
    let [(name, whole), config] = tiktoken_files(|_| ());
    let with_config = |bytes: &[u8]| [(name, bytes.to_vec()), config.clone()];
    let long = format!("YQ== 0\n{} 1", "YWFh".repeat(171));
    for (text, expected) in [
        ("YQ== 0\nYg== 2", "line 2: `Yg== 2` has a rank that is not one of 0 to 1"),
        ("YQ== 0\nYg== 0", "line 2: `Yg== 0` has a rank"),
        ("YQ== 0\nYQ== 1", "line 2: `YQ== 1` is a token that has another rank already"),
        ("YQ== 0\n\nYg== -1", "line 3: `Yg== -1` is no token"),
        ("YQ==0", "line 1: `YQ==0` is no token"),
        ("?? 0", "line 1: `?? 0` is no token"),
        (" 0", "line 1: ` 0` is no token"),
        (long.as_str(), "has more than 512 bytes"),
    ] {
        let error = error_of(&with_config(text.as_bytes()));
        assert!(
            error.contains(expected) && error.contains("tiktoken.model"),
            "{expected}: {error}"
        );
    }
    // Cut anywhere, the real file is an error or a smaller vocabulary, and never a panic.
    for n_bytes in (0..whole.len()).step_by(61) {
        let folder = folder(&with_config(&whole[..n_bytes]));
        let _ = Tokenizer::from_folder(folder.path()).map(|t| t.encode("aﬁ b", true));
    }
    for (bytes, expected) in [(vec![0xff], "expected UTF-8"), (vec![b'\n'], "there is no token")] {
        let error = error_of(&with_config(&bytes));
        assert!(error.contains(expected) && error.contains("tiktoken.model"), "{error}");
    }
}

#[test]
fn a_folder_has_a_tokenizer_where_a_kind_of_files_is_whole() {
    for (names, is_in) in [
        (&["config.json", "tokenizer_config.json"][..], false),
        (&["tokenizer.json"], true),
        (&["tokenizer.model"], true),
        (&["vocab.txt"], true),
        (&["tekken.json"], true),
        (&["vocab.json"], false),
        (&["merges.txt"], false),
        (&["vocab.json", "merges.txt"], true),
        (&["rwkv_vocab_v20230424.txt"], true),
    ] {
        let files: Vec<_> = names.iter().map(|name| (*name, Vec::new())).collect();
        assert_eq!(Tokenizer::is_in(folder(&files).path()), is_in, "{names:?}");
    }
}

/// The pair of files of a small vocabulary of bytes, with this configuration.
fn pair_of_files(config: Value) -> [(&'static str, Vec<u8>); 3] {
    let vocab = json!({"a": 0, "b": 1, "ab": 2, "<s>": 3, "</s>": 4});
    let merges = b"#version: 0.2\n\na b\n\n".to_vec();
    [
        ("vocab.json", text_of(&vocab)),
        ("merges.txt", merges),
        ("tokenizer_config.json", text_of(&config)),
    ]
}

#[test]
fn the_class_of_a_pair_of_files_says_what_is_between_two_texts() {
    let with = |class: Option<&str>| {
        let mut config = json!({"bos_token": "<s>", "eos_token": {"content": "</s>"},
            "sep_token": "</s>", "add_bos_token": true, "add_eos_token": true});
        if let Some(class) = class {
            config["tokenizer_class"] = class.into();
        }
        load(&pair_of_files(config))
    };
    let joined = |tokenizer: &Tokenizer| {
        let pair = tokenizer.pair_frame().expect("a frame").join(&[TokenId(2)], &[TokenId(0)]);
        (pair.tokens.iter().map(|token| token.0).collect::<Vec<_>>(), pair.kinds)
    };
    // A second separator begins the second text of RoBERTa alone.
    for class in ["RobertaTokenizer", "RobertaTokenizerFast"] {
        let roberta = with(Some(class));
        assert_eq!(joined(&roberta), (vec![3, 2, 4, 4, 0, 4], vec![0; 6]));
        assert_eq!(roberta.encode("ab", true).expect("ids"), [3, 2, 4].map(TokenId));
    }
    for class in [None, Some("GPT2Tokenizer"), Some("Qwen2TokenizerFast")] {
        assert_eq!(joined(&with(class)), (vec![3, 2, 4, 0, 4], vec![0, 0, 0, 1, 1]));
    }
    let own = load(&pair_of_files(json!({"tokenizer_class": "RobertaTokenizer",
        "bos_token": "<s>", "add_bos_token": false, "add_eos_token": false})));
    assert_eq!(own.encode("ab", true).expect("ids"), [TokenId(2)]);
}

#[test]
fn the_words_of_a_list_keep_case_accents_and_special_tokens_as_the_configuration_says() {
    let lines = "[UNK]\n[CLS]\n[SEP]\ncaf\u{e9}\ncafe\nCaf\u{e9}\nx\n##y\n<c>";
    let ids = |config: Value| {
        let files =
            [("vocab.txt", lines.as_bytes().to_vec()), ("tokenizer_config.json", text_of(&config))];
        let tokenizer = load(&files);
        let ids = tokenizer.encode("Caf\u{e9} xy", false).expect("ids");
        let special = tokenizer.token_id("<c>").expect("a token");
        (ids[0].0, ids[1..].to_vec(), tokenizer.is_special(special))
    };
    let rest = || [6, 7].map(TokenId).to_vec();
    assert_eq!(ids(json!({})), (4, rest(), false));
    assert_eq!(ids(json!({"strip_accents": false})), (3, rest(), false));
    assert_eq!(ids(json!({"do_lower_case": false})), (5, rest(), false));
    assert_eq!(ids(json!({"mask_token": "<c>"})), (4, rest(), true));
    let folder = folder(&[("vocab.txt", lines.as_bytes().to_vec())]);
    let vocab = GgufVocab::from_folder(folder.path()).expect("a list").expect("a vocabulary");
    assert!(vocab.origin.ends_with("vocab.txt"), "{}", vocab.origin);
}

#[test]
fn added_tokens_extend_a_sentencepiece_file_and_leave_the_unknown_token_unknown() {
    let model = std::fs::read(fixture("bpe.model")).expect("the model");
    let n_tokens = load(&[("tokenizer.model", model.clone())]).vocab_size() as u32;
    let added = json!({"<more>": n_tokens, "<most>": n_tokens + 1});
    let config = json!({"added_tokens_decoder": {
        "0": {"content": "<unk>", "special": true},
        (n_tokens + 1).to_string(): {"content": "<kept>", "special": false},
    }});
    let map = json!({"bos_token": "<more>", "eos_token": {"content": "<kept>"}});
    let files = [
        ("tokenizer.model", model),
        ("added_tokens.json", text_of(&added)),
        ("tokenizer_config.json", text_of(&config)),
        ("special_tokens_map.json", text_of(&map)),
    ];
    let tokenizer = load(&files);
    let [more, kept] = ["<more>", "<kept>"].map(|token| tokenizer.token_id(token).expect(token));
    assert_eq!((more.0, kept.0), (n_tokens, n_tokens + 1));
    assert_eq!((tokenizer.bos(), tokenizer.eos()), (Some(more), Some(kept)));
    assert!(tokenizer.is_special(more) && !tokenizer.is_special(kept));
    assert!(tokenizer.encode("<kept><more>", false).expect("ids").ends_with(&[kept, more]));
    let folder = folder(&files);
    let vocab = GgufVocab::from_folder(folder.path()).expect("files").expect("a vocabulary");
    assert_eq!(vocab.kind(0), TokenKind::Unknown);
}

/// A field of a protocol buffer that holds bytes.
fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
    [&[number << 3 | 2, u8::try_from(bytes.len()).expect("short")], bytes].concat()
}

#[test]
fn the_fields_of_a_sentencepiece_file_become_those_of_the_vocabulary() {
    let piece = |text: &[u8]| field(1, &field(1, text));
    let pieces = [piece(b"<unk>"), piece(b"a"), piece(b"b")].concat();
    let read = |fields: &[&[u8]]| {
        let folder = folder(&[("tokenizer.model", [&pieces, &fields.concat()[..]].concat())]);
        GgufVocab::from_folder(folder.path()).expect("a model").expect("a vocabulary")
    };
    let id = |number: u16, id: &[u8]| {
        let tag = number << 3;
        [&[tag as u8 & 0x7f | 0x80, (tag >> 7) as u8], id].concat()
    };
    let minus_one = [&[0xff; 9][..], &[1]].concat();
    let plain = read(&[]);
    assert!(plain.origin.ends_with("tokenizer.model"), "{}", plain.origin);
    assert_eq!((plain.model.as_str(), plain.tokens.len()), ("t5", 3));
    assert_eq!((plain.unknown, plain.bos, plain.eos), (Some(0), Some(1), Some(2)));
    assert_eq!(plain.add_space_prefix, Some(true));
    assert_eq!(plain.remove_extra_whitespaces, Some(true));
    // Ids, one of them behind the last token and one of no token; a suffix that is not asked for;
    // fields of every type that say nothing here.
    let trainer = [
        vec![3 << 3, 2],
        id(24, &[0]),
        id(40, &[2]),
        id(41, &[3]),
        id(42, &minus_one),
        [&[9 << 3 | 1][..], &[7; 8]].concat(),
        [&[9 << 3 | 5][..], &[7; 4]].concat(),
        field(9, b"abc"),
    ];
    let own = read(&[&field(2, &trainer.concat())]);
    assert_eq!(own.model, "llama");
    assert_eq!((own.unknown, own.bos, own.eos), (Some(2), None, None));
    let own = read(&[&field(2, &[id(41, &[0]), id(42, &[1])].concat())]);
    assert_eq!((own.unknown, own.bos, own.eos), (Some(0), Some(0), Some(1)));
    let spaces = read(&[&field(3, &[3 << 3, 0, 4 << 3, 0, 5 << 3, 1])]);
    assert_eq!(spaces.add_space_prefix, Some(false));
    assert_eq!(spaces.remove_extra_whitespaces, Some(false));
    let spaces = read(&[&field(3, &[3 << 3, 1, 4 << 3, 1])]);
    assert_eq!(
        (spaces.add_space_prefix, spaces.remove_extra_whitespaces),
        (Some(true), Some(true))
    );
    assert_eq!(read(&[&field(5, &field(2, b""))]).tokens.len(), 3);
}

#[test]
fn a_broken_sentencepiece_file_is_an_error_that_names_the_field() {
    let piece = |fields: &[Vec<u8>]| field(1, &fields.concat());
    let plain = piece(&[field(1, b"a")]);
    let score = |score: f32| [&[2 << 3 | 5][..], &score.to_le_bytes()].concat();
    let cases: [(&str, Vec<u8>); 15] = [
        ("`pieces` is empty", Vec::new()),
        ("`pieces` is empty", field(2, &[3 << 3, 2])),
        ("in the middle", b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\x7f".to_vec()),
        ("in the middle", b"\x0a\x80\x80\x80\x80\x80\x80\x80\x80\x80\x80\x80\x01".to_vec()),
        ("in the middle", plain[..plain.len() - 1].to_vec()),
        ("in the middle", b"\x0b\x0c".to_vec()),
        ("`pieces`[0] ends in the middle", field(1, b"\x0a\x09a")),
        ("`pieces`[1] is not UTF-8", [plain.clone(), piece(&[field(1, b"\xff")])].concat()),
        ("`pieces`[0] has no text", piece(&[score(1.0)])),
        ("`pieces`[0] has the score NaN", piece(&[field(1, b"a"), score(f32::NAN)])),
        ("`pieces`[0] is of kind 9", piece(&[field(1, b"a"), vec![3 << 3, 9]])),
        ("`trainer_spec.model_type` is 3", [plain.clone(), field(2, &[3 << 3, 3])].concat()),
        ("treat_whitespace_as_suffix", [plain.clone(), field(2, &[0xc0, 1, 1])].concat()),
        ("`normalizer_spec` does not escape", [plain.clone(), field(3, &[5 << 3, 0])].concat()),
        ("`denormalizer_spec`", [plain.clone(), field(5, &field(2, b"x"))].concat()),
    ];
    for (expected, bytes) in cases {
        let error = error_of(&[("tokenizer.model", bytes)]);
        assert!(error.contains(expected) && error.contains("tokenizer.model"), "{error}");
    }
    let table = [plain, field(3, &field(2, b"\x04\0\0\0\0\0\0\0"))].concat();
    assert!(error_of(&[("tokenizer.model", table)]).contains("precompiled_charsmap"));
    // Cut anywhere, the real file is an error or a smaller model, and never a panic.
    let whole = std::fs::read(fixture("unigram.model")).expect("the model");
    for n_bytes in (0..whole.len()).step_by(61) {
        let folder = folder(&[("tokenizer.model", whole[..n_bytes].to_vec())]);
        let _ = Tokenizer::from_folder(folder.path()).map(|t| t.encode("aﬁ b", true));
    }
}

#[test]
fn a_broken_pair_of_vocabulary_and_merges_is_an_error_that_names_the_file() {
    let vocab = |text: &str| ("vocab.json", text.as_bytes().to_vec());
    let merges = |text: &str| ("merges.txt", text.as_bytes().to_vec());
    let config = |text: &str| ("tokenizer_config.json", text.as_bytes().to_vec());
    let good = || vocab(r#"{"a": 0, "b": 1, "ab": 2}"#);
    type Case = (&'static str, Vec<(&'static str, Vec<u8>)>);
    let cases: Vec<Case> = vec![
        ("vocab.json", vec![vocab("[1]"), merges("")]),
        ("vocab.json", vec![vocab(r#"{"a": -1}"#), merges("")]),
        ("`b` has the id 7", vec![vocab(r#"{"a": 0, "b": 7}"#), merges("")]),
        ("has the id 0", vec![vocab(r#"{"a": 0, "b": 0}"#), merges("")]),
        ("tokenizer.ggml.tokens", vec![vocab("{}"), merges("")]),
        ("tokenizer.ggml.merges", vec![good(), merges("#version: 1\na z")]),
        ("merges.txt", vec![good(), ("merges.txt", vec![0xff])]),
        ("tokenizer_class", vec![good(), merges("a b"), config(r#"{"tokenizer_class": "X"}"#)]),
        ("tokenizer_config.json", vec![good(), merges("a b"), config("{")]),
        ("added_tokens.json", vec![good(), merges(""), ("added_tokens.json", b"[]".to_vec())]),
        ("gap", vec![good(), merges(""), ("added_tokens.json", br#"{"<x>": 9}"#.to_vec())]),
        (
            "added_tokens_decoder",
            vec![
                good(),
                merges(""),
                config(r#"{"added_tokens_decoder": {"x": {"content": "c"}}}"#),
            ],
        ),
        ("vocab.txt", vec![("vocab.txt", vec![0xff])]),
        ("[UNK]", vec![("vocab.txt", b"a\nb".to_vec())]),
        ("tekken.json", vec![("tekken.json", b"{}".to_vec())]),
        (
            "tokenize_chinese_chars",
            vec![
                ("vocab.txt", b"[UNK]\na".to_vec()),
                config(r#"{"tokenize_chinese_chars": false}"#),
            ],
        ),
        ("vocab.json", vec![good(), merges("a z")]),
        ("tokenizer.json", vec![]),
        ("tokenizer.json", vec![good()]),
        ("tokenizer.json", vec![merges("a b")]),
    ];
    for (expected, files) in cases {
        let error = error_of(&files);
        assert!(error.replace('`', "").contains(&expected.replace('`', "")), "{expected}: {error}");
    }
}
