//! GGUF files that lie: each is refused with an error that names the file and the field.

use std::fs::File;
use std::io::Write;

use pelton_tensor::{DType, Gguf, GgufValue, GgufWriter, MappedFile, TensorSource};

/// Builds the bytes of a file field by field, true or not.
#[derive(Clone, Default)]
struct Raw(Vec<u8>);

impl Raw {
    fn head(n_tensors: u64, n_metadata: u64) -> Self {
        Raw(b"GGUF".to_vec()).u32(3).u64(n_tensors).u64(n_metadata)
    }
    fn bytes(mut self, bytes: &[u8]) -> Self {
        self.0.extend(bytes);
        self
    }
    fn u32(self, n: u32) -> Self {
        self.bytes(&n.to_le_bytes())
    }
    fn u64(self, n: u64) -> Self {
        self.bytes(&n.to_le_bytes())
    }
    fn string(self, text: &[u8]) -> Self {
        self.u64(text.len() as u64).bytes(text)
    }
    fn tensor(self, name: &str, dims: &[u64], dtype: u32, offset: u64) -> Self {
        let raw = self.string(name.as_bytes()).u32(dims.len() as u32);
        dims.iter().fold(raw, |raw, &dim| raw.u64(dim)).u32(dtype).u64(offset)
    }
    fn data(mut self, n_bytes: usize) -> Self {
        let start = self.0.len().next_multiple_of(32);
        self.0.resize(start + n_bytes, 0);
        self
    }
}

fn open(bytes: Vec<u8>) -> Result<Gguf, String> {
    Gguf::from_mapped(MappedFile::from_vec("bad.gguf", bytes)).map_err(|err| err.to_string())
}

const F32: u32 = 0;
const Q8_0: u32 = 8;
const U32: u32 = 4;
const ARRAY: u32 = 9;

#[test]
fn every_lie_is_refused_by_file_and_field() {
    let one = || Raw::head(1, 0);
    let key = || Raw::head(0, 1).string(b"a.key");
    let spare = [0_u8; 64];
    let cases: Vec<(&str, Raw, &[&str])> = vec![
        ("empty file", Raw::default(), &["magic"]),
        ("wrong magic", Raw(b"GGML\x03\0\0\0".to_vec()), &["magic", "`GGUF`", "`GGML`"]),
        ("no version", Raw(b"GGUF".to_vec()), &["version"]),
        ("version 1", Raw(b"GGUF".to_vec()).u32(1).u64(0), &["version", "2 or 3", "got 1, whose"]),
        ("version 9", Raw(b"GGUF".to_vec()).u32(9), &["version", "got 9"]),
        ("big endian", Raw(b"GGUF\0\0\0\x03".to_vec()), &["version", "big-endian"]),
        ("no counts", Raw(b"GGUF".to_vec()).u32(3).u32(0), &["tensor count"]),
        ("more tensors than bytes", Raw::head(1 << 40, 0), &["tensor count", "1099511627776"]),
        ("tensor count of all ones", Raw::head(u64::MAX, 0), &["tensor count"]),
        ("more keys than bytes", Raw::head(0, u64::MAX), &["metadata count"]),
        ("key past the end", Raw::head(0, 1).u64(1 << 50).bytes(&spare), &["metadata key 0 of 1"]),
        ("key of all ones", Raw::head(0, 1).u64(u64::MAX).bytes(&spare), &["metadata key 0 of 1"]),
        (
            "key that is not text",
            Raw::head(0, 1).string(b"\xff\xfe").bytes(&spare),
            &["metadata key 0 of 1", "UTF-8"],
        ),
        ("value missing", key().bytes(&spare[..3]), &["`a.key`"]),
        ("value of unknown type", key().u32(13).u64(0), &["`a.key`", "12 f64", "got 13"]),
        ("boolean of two", key().u32(7).bytes(&[2]).bytes(&spare), &["`a.key`", "boolean"]),
        ("string past the end", key().u32(8).u64(1 << 60).bytes(&spare), &["`a.key`"]),
        ("string not text", key().u32(8).string(b"\xc3\x28"), &["`a.key`", "UTF-8"]),
        ("array past the end", key().u32(ARRAY).u32(U32).u64(1 << 62).bytes(&spare), &["`a.key`"]),
        (
            "array too long for its strings",
            key().u32(ARRAY).u32(8).u64(9).bytes(&spare),
            &["`a.key`", "at most 8"],
        ),
        (
            "array whose strings end early",
            key().u32(ARRAY).u32(8).u64(2).string(b"x").u64(77),
            &["`a.key`", "77 bytes"],
        ),
        (
            "array of arrays",
            key().u32(ARRAY).u32(ARRAY).u64(1).u32(ARRAY).u64(1),
            &["`a.key`", "array of arrays"],
        ),
        ("array of unknown type", key().u32(ARRAY).u32(99).u64(0), &["`a.key`", "got 99"]),
        (
            "one key twice",
            Raw::head(0, 2).string(b"k").u32(U32).u32(1).string(b"k").u32(U32).u32(2),
            &["metadata key `k`", "a second one"],
        ),
        (
            "alignment of zero",
            Raw::head(0, 1).string(b"general.alignment").u32(U32).u32(0),
            &["`general.alignment`", "power of two", "got 0"],
        ),
        (
            "alignment of 48",
            Raw::head(0, 1).string(b"general.alignment").u32(U32).u32(48),
            &["`general.alignment`", "got 48"],
        ),
        (
            "alignment that is text",
            Raw::head(0, 1).string(b"general.alignment").u32(8).string(b"32"),
            &["`general.alignment`", "got string"],
        ),
        (
            "one part of several",
            Raw::head(0, 1).string(b"split.count").u32(2).bytes(&[3, 0]),
            &["`split.no`", "the number of this part of 3"],
        ),
        (
            "one part of several, numbered",
            Raw::head(0, 2)
                .string(b"split.count")
                .u32(U32)
                .u32(3)
                .string(b"split.no")
                .u32(U32)
                .u32(1),
            &["`split.count`", "one of 3 parts"],
        ),
        (
            "more parts than anybody has",
            Raw::head(0, 1).string(b"split.count").u32(U32).u32(u32::MAX),
            &["`split.count`", "from 0 to 1024", "got 4294967295"],
        ),
        (
            "parts that are text",
            Raw::head(0, 1).string(b"split.count").u32(8).string(b"3"),
            &["`split.count`", "got string"],
        ),
        (
            "name past the end",
            one().u64(9_999).bytes(&spare),
            &["name of tensor 0 of 1", "9999 bytes"],
        ),
        (
            "five dimensions",
            one().tensor("t", &[1; 5], F32, 0).data(64),
            &["tensor `t`, dimensions", "at most 4", "got 5"],
        ),
        (
            "four billion dimensions",
            one().string(b"t").u32(u32::MAX).bytes(&spare),
            &["tensor `t`, dimensions"],
        ),
        (
            "shape that overflows",
            one().tensor("t", &[1 << 32, 1 << 32, 4], F32, 0).data(64),
            &["tensor `t`, shape"],
        ),
        (
            "bytes that overflow",
            one().tensor("t", &[u64::MAX / 2], F32, 0).data(64),
            &["tensor `t`, shape"],
        ),
        (
            "unknown element type",
            one().tensor("t", &[1], 4, 0).data(64),
            &["tensor `t`", "type 4", "Q4_0", "MXFP4"],
        ),
        (
            "broken block",
            one().tensor("t", &[33], Q8_0, 0).data(640),
            &["tensor `t`, shape", "blocks of 32 (Q8_0)", "rows of 33"],
        ),
        (
            "whole blocks but broken rows",
            one().tensor("t", &[16, 2], Q8_0, 0).data(640),
            &["tensor `t`, shape", "rows of 16"],
        ),
        (
            "data past the end",
            one().tensor("t", &[17], F32, 0).data(64),
            &["tensor `t`, offset", "64 bytes of tensor data", "68 bytes at offset 0"],
        ),
        (
            "offset past the end",
            one().tensor("t", &[1], F32, 1 << 40).data(64),
            &["tensor `t`, offset"],
        ),
        (
            "offset that overflows",
            one().tensor("t", &[64], F32, u64::MAX - 31).data(64),
            &["tensor `t`, offset"],
        ),
        (
            "offset not aligned",
            one().tensor("t", &[1], F32, 8).data(64),
            &["tensor `t`, offset", "multiple of 32", "got 8"],
        ),
        (
            "one tensor over another",
            Raw::head(2, 0).tensor("a", &[16], F32, 0).tensor("b", &[8], F32, 32).data(96),
            &["tensor `b`, offset", "expected 64, where", "got 32"],
        ),
        (
            "one name twice",
            Raw::head(2, 0).tensor("a", &[8], F32, 0).tensor("a", &[8], F32, 32).data(64),
            &["tensor `a`", "two"],
        ),
        (
            "a name with control characters",
            one().tensor("t\n\u{1b}[2J", &[1], F32, 8).data(64),
            &["tensor `t\\n\\u{1b}[2J`, offset"],
        ),
    ];
    for (case, raw, expected) in cases {
        let message = open(raw.0).err().unwrap_or_else(|| panic!("{case}: was accepted"));
        for part in ["bad.gguf"].iter().chain(expected) {
            assert!(message.contains(part), "{case}: `{part}` is not in: {message}");
        }
        assert!(!message.contains(['\n', '\u{1b}']), "{case}: not one plain line: {message:?}");
    }
}

/// A correct file with a bit of everything.
fn sound() -> Vec<u8> {
    let mut writer = GgufWriter::new();
    writer.metadata("general.architecture", GgufValue::String("llama".into()));
    writer.metadata("n", GgufValue::U32(7));
    writer.tensor("a", DType::F32, &[2, 3]).tensor("b", DType::Q4_0, &[2, 32]);
    let mut data = writer.start(Vec::new(), "memory").expect("start");
    data.tensor_data(&[1; 24]).expect("a");
    data.tensor_data(&[2; 36]).expect("b");
    data.finish().expect("finish")
}

#[test]
fn a_file_cut_anywhere_is_refused() {
    let whole = sound();
    // The padding after the last tensor is not needed.
    let needed = whole.len().next_multiple_of(32) - 64 + 36;
    for n_bytes in 0..needed {
        assert!(open(whole[..n_bytes].to_vec()).is_err(), "cut to {n_bytes} bytes");
    }
    assert_eq!(open(whole[..needed].to_vec()).expect("whole").names(), ["a", "b"]);
}

#[test]
fn no_changed_byte_makes_the_reader_panic_or_leave_the_file() {
    let whole = sound();
    for at in 0..whole.len() {
        for value in [0, 1, 0x7f, 0x80, 0xff, whole[at] ^ 1, whole[at] ^ 0x20] {
            let mut bytes = whole.clone();
            bytes[at] = value;
            let Ok(gguf) = open(bytes) else { continue };
            for name in gguf.names() {
                let view = gguf.get(name).expect("a name it gave");
                assert_eq!(view.dtype.bytes_for(view.n_elements()), Some(view.data.len()));
            }
        }
    }
}

#[test]
fn a_huge_sparse_file_buys_no_memory() {
    // 64 GiB of zeros that take no room on the disk, behind claims that such a file could hold.
    let key = || Raw::head(0, 1).string(b"a.key");
    let cases: [(&str, Raw, &str); 4] = [
        ("array", key().u32(ARRAY).u32(0).u64(1 << 34), "at most 4194304, got 17179869184"),
        ("string", key().u32(8).u64(1 << 34), "a header of more than 268435456 bytes"),
        ("metadata", Raw::head(0, 1 << 30), "at most 65536, got 1073741824"),
        ("tensors", Raw::head(1 << 30, 0), "got 1073741824"),
    ];
    let folder = tempfile::tempdir().expect("folder");
    for (case, raw, expected) in cases {
        let path = folder.path().join("huge.gguf");
        let mut file = File::create(&path).expect("create");
        file.write_all(&raw.0).expect("write");
        if file.set_len(64 << 30).is_err() {
            return; // A file system without sparse files cannot be attacked with one.
        }
        let message = Gguf::open(&path).expect_err(case).to_string();
        assert!(message.contains(expected), "{case}: {message}");
    }
}

#[test]
fn a_beginning_of_a_file_says_whether_the_header_is_whole() {
    let file = std::path::Path::new("start.gguf");
    let strings = |raw: Raw| raw.u32(ARRAY).u32(8).u64(2).string(b"one").string(b"");
    let header = strings(Raw::head(1, 1).string(b"a.key")).tensor("t", &[32], F32, 0).0;
    let whole = Raw(header.clone()).data(128).0;
    for n_bytes in 0..=whole.len() {
        let is_whole = Gguf::has_whole_header(file, &whole[..n_bytes]).expect("no lie");
        assert_eq!(is_whole, n_bytes >= header.len(), "{n_bytes} of {}", header.len());
    }
    for lie in [
        Raw(b"<html>".to_vec()),
        Raw::head(u64::MAX, 0),
        Raw::head(0, 1).string(b"a.key").u32(99),
        Raw::head(1, 0).tensor("t", &[33], Q8_0, 0),
    ] {
        let error = Gguf::has_whole_header(file, &lie.0).expect_err("a lie").to_string();
        assert!(error.starts_with("start.gguf"), "{error}");
    }
}
