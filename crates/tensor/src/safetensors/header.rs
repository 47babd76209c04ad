//! The header of one safetensors file.
//!
//! Read here rather than with the format's own crate, whose reader keeps the last of two tensors
//! with the same name and does not say which tensor has the wrong size. Its checks are made here
//! too: the tensors must cover the data without gap or overlap, to the last byte.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

use pelton_base::limits;
use serde::Deserialize;
use serde::de::{Deserializer, Error, MapAccess, Visitor};

use crate::error::shown;
use crate::json::{Shape, UniqueMap};
use crate::source::Entry;
use crate::{DType, Result, TensorError};

/// Bytes of the length that opens the file.
const LENGTH_BYTES: usize = 8;

/// The content of a header, checked against the file.
pub(super) struct Header {
    /// `__metadata__`.
    pub(super) metadata: BTreeMap<String, String>,
    pub(super) entries: BTreeMap<String, Entry>,
}

/// One tensor as the header gives it.
#[derive(Deserialize)]
struct Info {
    dtype: String,
    shape: Shape,
    data_offsets: (usize, usize),
}

/// The header's JSON object: tensors, and one key that is not a tensor.
struct RawHeader {
    metadata: BTreeMap<String, String>,
    tensors: Vec<(String, Info)>,
}

/// Reads and checks the header of `bytes`; entries get `file_idx`.
pub(super) fn read(file: &Path, bytes: &[u8], file_idx: usize) -> Result<Header> {
    let (header, data_len) = split(file, bytes)?;
    let raw: RawHeader = serde_json::from_slice(header).map_err(|err| {
        let expected = "a JSON object of tensors, each with `dtype`, `shape` and `data_offsets`";
        TensorError::malformed(file, "header", expected, shown(&err.to_string()))
    })?;
    let mut tensors = raw.tensors;
    tensors.sort_by_key(|(_, info)| info.data_offsets);
    let data_start = bytes.len() - data_len;
    let mut entries = BTreeMap::new();
    let mut end = 0; // Of the tensor before, from `data_start`.
    for (name, info) in tensors {
        let entry = check(file, &name, info, end, data_len)?;
        end = entry.range.end;
        let range = data_start + entry.range.start..data_start + entry.range.end;
        let label = shown(&name);
        if entries.insert(name, Entry { file_idx, range, ..entry }).is_some() {
            let field = format!("tensor `{label}`");
            return Err(TensorError::malformed(file, field, "one tensor of this name", "two"));
        }
    }
    if end != data_len {
        let expected = format!("{end} bytes, the sum of all tensors");
        return Err(TensorError::malformed(file, "data", expected, data_len.to_string()));
    }
    Ok(Header { metadata: raw.metadata, entries })
}

/// The header's bytes, and how many bytes of data follow.
fn split<'a>(file: &Path, bytes: &'a [u8]) -> Result<(&'a [u8], usize)> {
    let fail = |expected: String, got: String| {
        Err(TensorError::malformed(file, "header length", expected, got))
    };
    let Some((length, rest)) = bytes.split_first_chunk::<LENGTH_BYTES>() else {
        return fail("8 bytes".into(), format!("a file of {}", bytes.len()));
    };
    let length = u64::from_le_bytes(*length);
    if length > limits::SAFETENSORS_HEADER_BYTES as u64 {
        let expected = format!("at most {} bytes", limits::SAFETENSORS_HEADER_BYTES);
        return fail(expected, length.to_string());
    }
    match rest.split_at_checked(length as usize) {
        Some((header, data)) => Ok((header, data.len())),
        None => {
            fail(format!("at most the {} bytes that follow it", rest.len()), length.to_string())
        }
    }
}

/// Checks one tensor; its range counts from the start of the data.
fn check(file: &Path, name: &str, info: Info, free_from: usize, data_len: usize) -> Result<Entry> {
    let fail = |field: &str, expected: String, got: String| {
        let field = format!("tensor `{}`, {field}", shown(name));
        TensorError::malformed(file, field, expected, got)
    };
    let Info { dtype, shape: Shape(shape), data_offsets: (start, end) } = info;
    let dtype = DType::from_safetensors_name(&dtype).ok_or_else(|| {
        let got = format!("`{}`", shown(&dtype));
        TensorError::unknown_dtype(file, name, got, |d| d.safetensors_name().is_some())
    })?;
    let n_bytes = shape
        .iter()
        .try_fold(1_usize, |product, &dim| product.checked_mul(dim))
        .and_then(|n_elements| dtype.bytes_for(n_elements))
        .ok_or_else(|| {
            fail("shape", "a size that fits the address space".into(), format!("{shape:?}"))
        })?;
    if start > end || end > data_len {
        let expected = format!("a range inside the file's {data_len} bytes of data");
        return Err(fail("data_offsets", expected, format!("[{start}, {end}]")));
    }
    if end - start != n_bytes {
        let expected = format!("{n_bytes} bytes for {dtype} {shape:?}");
        return Err(fail("data_offsets", expected, format!("[{start}, {end}]")));
    }
    if start != free_from {
        let expected = format!("a start at {free_from}, the end of the tensor before");
        return Err(fail("data_offsets", expected, format!("[{start}, {end}]")));
    }
    Ok(Entry { file_idx: 0, dtype, shape, range: start..end })
}

impl<'de> Deserialize<'de> for RawHeader {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        struct HeaderVisitor;

        impl<'de> Visitor<'de> for HeaderVisitor {
            type Value = RawHeader;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(
                self,
                mut access: A,
            ) -> std::result::Result<RawHeader, A::Error> {
                let mut metadata = None;
                let mut tensors = Vec::new();
                while let Some(name) = access.next_key::<String>()? {
                    let at = |problem: String| {
                        A::Error::custom(format!("tensor `{}`: {problem}", shown(&name)))
                    };
                    if name.len() > limits::TENSOR_NAME_BYTES {
                        return Err(at("the name is too long".into()));
                    }
                    if name == "__metadata__" {
                        let values: UniqueMap<String> = access.next_value()?;
                        if metadata.replace(values.0).is_some() {
                            return Err(A::Error::custom("`__metadata__` occurs twice"));
                        }
                        continue;
                    }
                    if tensors.len() == limits::FILE_TENSORS {
                        return Err(at(format!("more than {} tensors", limits::FILE_TENSORS)));
                    }
                    let info = access.next_value().map_err(|err: A::Error| at(err.to_string()))?;
                    tensors.push((name, info));
                }
                Ok(RawHeader { metadata: metadata.unwrap_or_default(), tensors })
            }
        }

        deserializer.deserialize_map(HeaderVisitor)
    }
}
