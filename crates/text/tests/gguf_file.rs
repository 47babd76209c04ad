//! A vocabulary and a template that went through a real GGUF file.

use pelton_tensor::{Gguf, GgufArray, GgufValue, GgufWriter};
use pelton_text::{ChatTemplate, GgufVocab, Message, RenderOptions, Tokenizer};

fn write(path: &std::path::Path, edit: impl Fn(&mut GgufWriter)) -> Gguf {
    let mut writer = GgufWriter::new();
    let text = |s: &str| GgufValue::String(s.to_owned());
    let tokens = ["<unk>", "<s>", "</s>", "▁", "a", "▁a", "aa", "<tool>"];
    let tokens = tokens.map(|token| token.as_bytes().to_vec()).to_vec();
    let scores = vec![0.0, 0.0, 0.0, -4.0, -3.0, -1.0, -2.0, 0.0];
    writer.metadata("tokenizer.ggml.model", text("llama"));
    writer.metadata("tokenizer.ggml.tokens", GgufValue::Array(GgufArray::Strings(tokens)));
    writer.metadata("tokenizer.ggml.scores", GgufValue::Array(GgufArray::F32(scores)));
    let kinds = GgufArray::I32(vec![2, 3, 3, 1, 1, 1, 1, 4]);
    writer.metadata("tokenizer.ggml.token_type", GgufValue::Array(kinds));
    writer.metadata("tokenizer.ggml.bos_token_id", GgufValue::U32(1));
    writer.metadata("tokenizer.ggml.eos_token_id", GgufValue::U32(2));
    let template =
        "{{ bos_token }}{% for m in messages %}{{ m.content }}{{ eos_token }}{% endfor %}";
    writer.metadata("tokenizer.chat_template", text(template));
    edit(&mut writer);
    writer.create(path).expect("a file").finish().expect("finished");
    Gguf::open(path).expect("a GGUF file")
}

#[test]
fn a_gguf_file_alone_gives_tokenizer_and_template() {
    let folder = tempfile::tempdir().expect("a folder");
    let gguf = write(&folder.path().join("tiny.gguf"), |_| {});
    let tokenizer = Tokenizer::from_gguf(&gguf).expect("a tokenizer");
    let ids: Vec<u32> =
        tokenizer.encode("aaa<tool>a", true).expect("ids").iter().map(|t| t.0).collect();
    assert_eq!(ids, [1, 5, 6, 7, 4]);
    assert_eq!(tokenizer.eos().map(|t| t.0), Some(2));
    assert_eq!(tokenizer.end_tokens().len(), 1);
    let template = ChatTemplate::from_gguf(&gguf).expect("readable").expect("a template");
    let text = template.render(&[Message::new("user", "a")], &RenderOptions::default());
    assert_eq!(text, Ok("<s>a</s>".to_owned()));
}

#[test]
fn wrong_metadata_is_named_with_its_file() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("wrong.gguf");
    let text = |text: &str| GgufValue::String(text.to_owned());
    let numbers = |numbers: Vec<i32>| GgufValue::Array(GgufArray::I32(numbers));
    let cases: [(&str, GgufValue, &str); 7] = [
        ("model", GgufValue::U32(3), "tokenizer.ggml.model"),
        ("model", text("gpt2"), "`tokenizer.ggml.merges` is missing"),
        ("model", text("no_vocab"), "`tokenizer.ggml.model` says that the file has no vocabulary"),
        ("tokens", text("a"), "tokenizer.ggml.tokens"),
        ("token_type", numbers(vec![9; 8]), "tokenizer.ggml.token_type"),
        ("bos_token_id", GgufValue::U32(99), "tokenizer.ggml.bos_token_id"),
        ("precompiled_charsmap", numbers(vec![4, 0]), "an array of i32; expected bytes"),
    ];
    for (key, value, expected) in cases {
        let gguf = write(&path, |writer| {
            writer.metadata(format!("tokenizer.ggml.{key}"), value.clone());
        });
        let error = Tokenizer::from_gguf(&gguf).expect_err(key).to_string();
        assert!(error.contains(expected) && error.contains("wrong.gguf"), "{error}");
    }
}

#[test]
fn a_table_of_characters_is_read_from_bytes_with_and_without_a_sign() {
    // One node, and nothing replaced: 256 units of zero.
    let mut table = vec![0u8; 1028];
    table[1] = 4;
    table.push(b'\xc3');
    let signed: Vec<i8> = table.iter().map(|byte| *byte as i8).collect();
    let folder = tempfile::tempdir().expect("a folder");
    for array in [GgufArray::U8(table.clone()), GgufArray::I8(signed)] {
        let gguf = write(&folder.path().join("table.gguf"), |writer| {
            let value = GgufValue::Array(array.clone());
            writer.metadata("tokenizer.ggml.precompiled_charsmap", value);
        });
        let vocab = GgufVocab::from_gguf(&gguf).expect("a vocabulary");
        assert_eq!(vocab.precompiled_charsmap, table);
    }
}
