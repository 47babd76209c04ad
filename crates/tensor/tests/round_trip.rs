//! Every reader reads what one writer writes: ours and the formats' reference implementations.

use std::collections::BTreeMap;

use pelton_tensor::{
    DType, Gguf, GgufArray, GgufValue, GgufWriter, MappedFile, Safetensors, TensorSource,
    TensorView, write_safetensors,
};
use proptest::prelude::*;

/// Written by the reference implementation; see `fixtures/make.py`.
static SMALL_GGUF: &[u8] = include_bytes!("fixtures/small.gguf");

fn small() -> Gguf {
    Gguf::from_mapped(MappedFile::from_static("small.gguf", SMALL_GGUF)).expect("a sound file")
}

#[test]
fn the_reference_gguf_file_reads_as_it_was_meant() {
    let gguf = small();
    assert_eq!(gguf.str("general.architecture").expect("text"), Some("llama"));
    assert_eq!(gguf.u32("llama.block_count").expect("number"), Some(2));
    assert_eq!(gguf.usize("llama.block_count").expect("number"), Some(2));
    assert_eq!(gguf.f32("llama.rope.freq_base").expect("number"), Some(10_000.0));
    assert_eq!(gguf.f32("test.f64").expect("number"), Some(0.25));
    assert_eq!(gguf.bool("tokenizer.ggml.add_bos_token").expect("boolean"), Some(true));
    let tokens = gguf.strings("tokenizer.ggml.tokens").expect("strings").expect("present");
    assert_eq!(tokens, [b"<s>".to_vec(), "▁a".as_bytes().to_vec(), b"\xff\xfe".to_vec()]);
    let scores = gguf.f32_array("tokenizer.ggml.scores").expect("floats");
    assert_eq!(scores, Some(&[0.0, -1.5, -2.0][..]));
    let types = gguf.i32_array("tokenizer.ggml.token_type").expect("integers").expect("present");
    assert_eq!(*types, [3, 1, 6]);
    assert_eq!(gguf.names(), ["blocks", "matrix", "vector"]);
    let matrix = gguf.get("matrix").expect("present");
    assert_eq!((matrix.dtype, matrix.shape), (DType::F32, &[2, 3][..]));
    let values: Vec<f32> =
        matrix.data.as_chunks().0.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect();
    assert_eq!(values, [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]);
    let blocks = gguf.get("blocks").expect("present");
    assert_eq!((blocks.dtype, blocks.shape, blocks.data.len()), (DType::Q8_0, &[2, 32][..], 68));
    assert!(gguf.get("nothing").is_none());
}

#[test]
fn getters_tell_absent_from_wrong() {
    let gguf = small();
    assert_eq!(gguf.u32("nothing").expect("absent is no error"), None);
    for (key, message) in [
        (
            "test.i64",
            "small.gguf: metadata key `test.i64`: expected an integer from 0 to 4294967295, got -5",
        ),
        ("test.f64", "got a value of type f64"),
        ("general.architecture", "got the string `llama`"),
        ("tokenizer.ggml.scores", "got an array of 3 f32 values"),
    ] {
        let got = gguf.u32(key).expect_err(key).to_string();
        assert!(got.contains(message), "{got}");
    }
    assert!(gguf.strings("tokenizer.ggml.scores").is_err());
    assert!(gguf.str("llama.block_count").is_err());
}

#[test]
fn our_gguf_file_equals_the_reference_one_byte_for_byte() {
    let gguf = small();
    let mut writer = GgufWriter::new();
    for key in [
        "general.architecture",
        "llama.block_count",
        "llama.rope.freq_base",
        "tokenizer.ggml.add_bos_token",
        "tokenizer.ggml.tokens",
        "tokenizer.ggml.scores",
        "tokenizer.ggml.token_type",
        "test.i64",
        "test.f64",
    ] {
        writer.metadata(key, gguf.metadata()[key].clone());
    }
    let views = ["matrix", "vector", "blocks"].map(|name| gguf.get(name).expect("present"));
    for view in views {
        writer.tensor(view.name, view.dtype, view.shape);
    }
    let mut data = writer.start(Vec::new(), "memory").expect("memory does not fail");
    for view in views {
        data.tensor_data(view.data).expect("memory does not fail");
    }
    assert_eq!(data.finish().expect("memory does not fail"), SMALL_GGUF);
}

#[test]
fn every_kind_of_metadata_survives_a_gguf_file() {
    let values = [
        GgufValue::U8(200),
        GgufValue::I8(-2),
        GgufValue::U16(60_000),
        GgufValue::I16(-3),
        GgufValue::U32(u32::MAX),
        GgufValue::I32(-4),
        GgufValue::U64(u64::MAX),
        GgufValue::I64(i64::MIN),
        GgufValue::F32(0.1),
        GgufValue::F64(0.1),
        GgufValue::Bool(false),
        GgufValue::String("text\0é".into()),
        GgufValue::Array(GgufArray::U8(vec![1, 2])),
        GgufValue::Array(GgufArray::I8(vec![-1])),
        GgufValue::Array(GgufArray::U16(vec![60_000])),
        GgufValue::Array(GgufArray::I16(vec![-1])),
        GgufValue::Array(GgufArray::U32(vec![])),
        GgufValue::Array(GgufArray::I32(vec![-1])),
        GgufValue::Array(GgufArray::U64(vec![u64::MAX])),
        GgufValue::Array(GgufArray::I64(vec![-1])),
        GgufValue::Array(GgufArray::F32(vec![1.5])),
        GgufValue::Array(GgufArray::F64(vec![1.5])),
        GgufValue::Array(GgufArray::Bool(vec![true, false])),
        GgufValue::Array(GgufArray::Strings(vec![vec![], b"\xff".to_vec()])),
    ];
    let mut writer = GgufWriter::new();
    for (idx, value) in values.iter().enumerate() {
        writer.metadata(format!("key.{idx}"), value.clone());
    }
    let bytes = writer.start(Vec::new(), "memory").and_then(|data| data.finish()).expect("memory");
    let gguf = Gguf::from_mapped(MappedFile::from_vec("memory", bytes)).expect("a sound file");
    for (idx, value) in values.iter().enumerate() {
        assert_eq!(&gguf.metadata()[&format!("key.{idx}")], value);
    }
    assert!(gguf.names().is_empty());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_tensors_survive_both_kinds_of_file(
        shapes in prop::collection::btree_map("[a-z.]{1,8}", (0_usize..3, prop::collection::vec(0_usize..4, 0..4)), 0..6),
    ) {
        let dtypes = [DType::F32, DType::Bf16, DType::I8];
        let tensors: Vec<(&str, DType, &[usize], Vec<u8>)> = shapes
            .iter()
            .map(|(name, (dtype, shape))| {
                let n_bytes = dtypes[*dtype].bytes_for(shape.iter().product()).expect("small");
                let data = (0..n_bytes).map(|i| (i * 7 + name.len()) as u8).collect();
                (name.as_str(), dtypes[*dtype], shape.as_slice(), data)
            })
            .collect();
        let views: Vec<TensorView<'_>> = tensors
            .iter()
            .map(|(name, dtype, shape, data)| TensorView { name, dtype: *dtype, shape, data })
            .collect();
        let folder = tempfile::tempdir().expect("folder");

        let path = folder.path().join("model.safetensors");
        let metadata = BTreeMap::from([("format".to_owned(), "pt".to_owned())]);
        write_safetensors(&path, &views, &metadata).expect("written");
        let ours = Safetensors::open_folder(folder.path()).expect("read back");
        prop_assert_eq!(ours.metadata(), &metadata);
        let bytes = std::fs::read(&path).expect("read back");
        let theirs = safetensors::SafeTensors::deserialize(&bytes).expect("the reference agrees");
        prop_assert_eq!(theirs.len(), views.len());

        let path = folder.path().join("model.gguf");
        let mut writer = GgufWriter::new();
        for view in &views {
            writer.tensor(view.name, view.dtype, view.shape);
        }
        let mut data = writer.create(&path).expect("created");
        for view in &views {
            data.tensor_data(view.data).expect("written");
        }
        data.finish().expect("finished");
        let gguf = Gguf::open(&path).expect("read back");

        for view in &views {
            for source in [&ours as &dyn TensorSource, &gguf] {
                let got = source.get(view.name).expect("present");
                prop_assert_eq!((got.dtype, got.shape, got.data), (view.dtype, view.shape, view.data));
            }
            let got = theirs.tensor(view.name).expect("present");
            prop_assert_eq!((got.shape(), got.data()), (view.shape, view.data));
        }
    }
}

#[test]
fn two_tensors_of_one_name_are_not_written() {
    let view = TensorView { name: "t", dtype: DType::U8, shape: &[1], data: &[0] };
    let folder = tempfile::tempdir().expect("folder");
    let path = folder.path().join("twice.safetensors");
    assert!(write_safetensors(&path, &[view, view], &BTreeMap::new()).is_err());
    assert!(!path.exists());
    let mut writer = GgufWriter::new();
    writer.tensor("t", DType::I8, &[1]).tensor("t", DType::I8, &[1]);
    assert!(writer.start(Vec::new(), "memory").is_err());
}
