//! Safetensors files and indices that lie: each is refused with an error that names file and field.

use std::path::Path;

use pelton_tensor::{MappedFile, Safetensors, TensorSource};

/// A file of `header`, with its true length, and `n_bytes` of data.
fn file(header: &str, n_bytes: usize) -> Vec<u8> {
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.as_bytes());
    bytes.resize(bytes.len() + n_bytes, 0);
    bytes
}

fn open(bytes: Vec<u8>) -> Result<Safetensors, String> {
    Safetensors::from_mapped(MappedFile::from_vec("bad.safetensors", bytes))
        .map_err(|err| err.to_string())
}

/// A header of one tensor `t`.
fn one(dtype: &str, shape: &str, offsets: &str) -> String {
    format!(r#"{{"t":{{"dtype":"{dtype}","shape":{shape},"data_offsets":{offsets}}}}}"#)
}

#[test]
fn every_lie_is_refused_by_file_and_field() {
    let entry = |range: &str| format!(r#"{{"dtype":"U8","shape":[4],"data_offsets":{range}}}"#);
    let two = |a: &str, b: &str| format!(r#"{{"a":{},"b":{}}}"#, entry(a), entry(b));
    let deep = "[".repeat(100_000);
    let cases: Vec<(&str, Vec<u8>, &[&str])> = vec![
        ("empty file", vec![], &["header length", "a file of 0"]),
        ("seven bytes", vec![0; 7], &["header length", "a file of 7"]),
        ("header past the end", 99_u64.to_le_bytes().to_vec(), &["header length", "got 99"]),
        ("header of all ones", vec![0xff; 64], &["header length", "at most 104857600"]),
        ("empty header", file("", 0), &["header", "JSON"]),
        ("header not JSON", file("hello", 0), &["header", "JSON"]),
        ("header an array", file("[1,2]", 0), &["header", "object"]),
        ("header not UTF-8", [&2_u64.to_le_bytes()[..], b"{\xff"].concat(), &["header"]),
        ("header nested without end", file(&deep, 0), &["header"]),
        ("something after the object", file(r#"{}{"a":1}"#, 0), &["header", "trailing"]),
        ("tensor not an object", file(r#"{"t":3}"#, 0), &["header", "`t`"]),
        (
            "no shape",
            file(r#"{"t":{"dtype":"U8","data_offsets":[0,4]}}"#, 4),
            &["tensor `t`", "`shape`"],
        ),
        (
            "no offsets",
            file(r#"{"t":{"dtype":"U8","shape":[4]}}"#, 4),
            &["tensor `t`", "`data_offsets`"],
        ),
        ("negative size", file(&one("U8", "[-4]", "[0,4]"), 4), &["tensor `t`", "-4"]),
        ("fractional size", file(&one("U8", "[4.5]", "[0,4]"), 4), &["tensor `t`", "4.5"]),
        (
            "nine dimensions",
            file(&one("U8", "[1,1,1,1,1,1,1,1,1]", "[0,1]"), 1),
            &["tensor `t`", "8"],
        ),
        (
            "unknown type",
            file(&one("F4", "[2]", "[0,1]"), 1),
            &["tensor `t`", "type `F4`", "F8_E4M3"],
        ),
        (
            "shape that overflows",
            file(&one("F32", "[4294967296,4294967296]", "[0,4]"), 4),
            &["tensor `t`, shape"],
        ),
        (
            "bytes that overflow",
            file(&one("F64", "[2305843009213693952]", "[0,4]"), 4),
            &["tensor `t`, shape"],
        ),
        ("data past the end", file(&one("U8", "[9]", "[0,9]"), 4), &["tensor `t`, data_offsets"]),
        ("range backwards", file(&one("U8", "[4]", "[4,0]"), 4), &["tensor `t`, data_offsets"]),
        (
            "range unlike the shape",
            file(&one("F32", "[2]", "[0,4]"), 4),
            &["tensor `t`, data_offsets", "8 bytes for F32 [2]"],
        ),
        ("one tensor over another", file(&two("[0,4]", "[2,6]"), 6), &["tensor `b`, data_offsets"]),
        ("the same bytes twice", file(&two("[0,4]", "[0,4]"), 4), &["tensor `b`, data_offsets"]),
        ("a hole", file(&two("[0,4]", "[8,12]"), 12), &["tensor `b`, data_offsets", "start at 4"]),
        ("bytes left over", file(&one("U8", "[4]", "[0,4]"), 5), &["data", "4 bytes", "got 5"]),
        (
            "one name twice",
            file(&format!(r#"{{"t":{},"t":{}}}"#, entry("[0,4]"), entry("[4,8]")), 8),
            &["tensor `t`", "two"],
        ),
        (
            "metadata twice",
            file(r#"{"__metadata__":{},"__metadata__":{}}"#, 0),
            &["`__metadata__` occurs twice"],
        ),
        ("metadata not text", file(r#"{"__metadata__":{"a":1}}"#, 0), &["header", "string"]),
        (
            "a name with control characters",
            file(r#"{"t\n\u001b":{"dtype":"U8","shape":[4],"data_offsets":[1,5]}}"#, 5),
            &["tensor `t\\n\\u{1b}`, data_offsets"],
        ),
    ];
    for (case, bytes, expected) in cases {
        let message = open(bytes).err().unwrap_or_else(|| panic!("{case}: was accepted"));
        for part in ["bad.safetensors"].iter().chain(expected) {
            assert!(message.contains(part), "{case}: `{part}` is not in: {message}");
        }
        assert!(!message.contains(['\n', '\u{1b}']), "{case}: not one plain line: {message:?}");
        assert!(message.len() < 500, "{case}: too long: {message}");
    }
}

#[test]
fn no_changed_byte_makes_the_reader_panic_or_leave_the_file() {
    let whole = file(&one("F32", "[2,3]", "[0,24]"), 24);
    for at in 0..whole.len() - 24 {
        for value in 0..=255 {
            let mut bytes = whole.clone();
            bytes[at] = value;
            let Ok(tensors) = open(bytes) else { continue };
            for name in tensors.names() {
                let view = tensors.get(name).expect("a name it gave");
                assert_eq!(view.dtype.bytes_for(view.n_elements()), Some(view.data.len()));
            }
        }
    }
}

fn write(folder: &Path, name: &str, bytes: impl AsRef<[u8]>) {
    std::fs::write(folder.join(name), bytes).expect("write a test file");
}

fn index(pairs: &[(&str, &str)]) -> String {
    let pairs: Vec<String> = pairs.iter().map(|(t, f)| format!(r#""{t}":{f:?}"#)).collect();
    format!(r#"{{"metadata":{{"total_size":8}},"weight_map":{{{}}}}}"#, pairs.join(","))
}

const INDEX: &str = "model.safetensors.index.json";

#[test]
fn every_index_that_lies_is_refused() {
    let outside = tempfile::tempdir().expect("folder");
    write(outside.path(), "x.safetensors", file(&one("U8", "[4]", "[0,4]"), 4));
    let absolute = outside.path().join("x.safetensors");
    let absolute = absolute.to_str().expect("UTF-8 path");
    let cases: Vec<(&str, String, &[&str])> = vec![
        ("not JSON", "nonsense".into(), &[INDEX, "index"]),
        ("no weight_map", "{}".into(), &[INDEX, "weight_map"]),
        ("missing shard", index(&[("t", "b.safetensors")]), &["shard `b.safetensors` is missing"]),
        ("tensor that is not there", index(&[("u", "a.safetensors")]), &[INDEX, "tensor `u`"]),
        ("parent folder", index(&[("t", "../x.safetensors")]), &[INDEX, "`../x.safetensors`"]),
        ("absolute path", index(&[("t", absolute)]), &[INDEX, "tensor `t`", "same folder"]),
        ("subfolder", index(&[("t", "sub/a.safetensors")]), &[INDEX, "same folder"]),
        ("backslashes", index(&[("t", "..\\x.safetensors")]), &[INDEX, "same folder"]),
        ("dot", index(&[("t", ".")]), &[INDEX, "same folder"]),
        ("trailing slash", index(&[("t", "a.safetensors/")]), &[INDEX, "same folder"]),
        ("empty name", index(&[("t", "")]), &[INDEX, "same folder"]),
        ("other kind of file", index(&[("t", "/etc/passwd")]), &[INDEX, "same folder"]),
        (
            "one tensor twice",
            index(&[("t", "a.safetensors"), ("t", "a.safetensors")]),
            &[INDEX, "`t` occurs twice"],
        ),
        (
            "one tensor in two shards",
            index(&[("t", "a.safetensors"), ("v", "c.safetensors")]),
            &["c.safetensors", "tensor `t`", "two"],
        ),
    ];
    for (case, json, expected) in cases {
        let folder = tempfile::tempdir().expect("folder");
        write(folder.path(), "a.safetensors", file(&one("U8", "[4]", "[0,4]"), 4));
        write(folder.path(), "c.safetensors", file(&one("U8", "[4]", "[0,4]"), 4));
        write(folder.path(), INDEX, json);
        let message = Safetensors::open_folder(folder.path()).expect_err(case).to_string();
        for part in expected {
            assert!(message.contains(part), "{case}: `{part}` is not in: {message}");
        }
    }
}

#[test]
fn a_folder_without_weights_names_the_files_it_lacks() {
    let folder = tempfile::tempdir().expect("folder");
    let message = Safetensors::open_folder(folder.path()).expect_err("empty").to_string();
    assert!(message.contains("`model.safetensors` or `model.safetensors.index.json`"), "{message}");
    let message = Safetensors::open_file(folder.path()).expect_err("a folder").to_string();
    assert!(message.contains("is a folder"), "{message}");
    let missing = folder.path().join("missing.safetensors");
    let message = Safetensors::open_file(&missing).expect_err("missing").to_string();
    assert!(message.contains("missing.safetensors"), "{message}");
}

#[test]
fn shards_are_one_checkpoint() {
    let folder = tempfile::tempdir().expect("folder");
    write(folder.path(), "a.safetensors", file(&one("U8", "[4]", "[0,4]"), 4));
    let other = one("U8", "[2,2]", "[0,4]").replace(r#""t""#, r#""s""#);
    write(folder.path(), "b.safetensors", file(&other, 4));
    write(folder.path(), INDEX, index(&[("t", "a.safetensors"), ("s", "b.safetensors")]));
    let tensors = Safetensors::open_folder(folder.path()).expect("two shards");
    assert_eq!(tensors.names(), ["s", "t"]);
    assert_eq!(tensors.get("s").expect("in shard b").shape, [2, 2]);
    assert_eq!(tensors.origin(), folder.path());
}
