//! Writes GGUF files, version 3: all names and shapes first, then the data in the same order.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use super::{ALIGNMENT_KEY, DEFAULT_ALIGNMENT, GgufArray, GgufValue, MAGIC, MAX_DIMS};
use crate::error::shown;
use crate::{DType, Result, TensorError};

/// The header of a new GGUF file: metadata, and every tensor's name, type and shape.
///
/// Nothing is written until [`GgufWriter::create`] or [`GgufWriter::start`]; the data then follows
/// tensor by tensor, so that a file of any size needs the memory of one tensor.
#[derive(Debug, Default)]
pub struct GgufWriter {
    metadata: Vec<(String, GgufValue)>,
    tensors: Vec<Planned>,
}

/// A tensor whose data is still to come.
#[derive(Debug)]
struct Planned {
    name: String,
    dtype: DType,
    shape: Vec<usize>,
    n_bytes: usize,
}

impl GgufWriter {
    /// A file without metadata and tensors.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a metadata entry, or replaces the one with the same key.
    ///
    /// `general.alignment` is the writer's own and is dropped.
    pub fn metadata(&mut self, key: impl Into<String>, value: GgufValue) -> &mut Self {
        let key = key.into();
        self.metadata.retain(|(other, _)| *other != key);
        if key != ALIGNMENT_KEY {
            self.metadata.push((key, value));
        }
        self
    }

    /// Announces a tensor of row-major `shape`; the order of announcement is the order of the data.
    ///
    /// # Panics
    ///
    /// When GGUF cannot hold the tensor: a type without a GGUF number, more than four dimensions,
    /// rows that are not whole blocks, a size that overflows.
    pub fn tensor(&mut self, name: impl Into<String>, dtype: DType, shape: &[usize]) -> &mut Self {
        let name = name.into();
        assert!(dtype.gguf_id().is_some(), "`{name}`: GGUF has no type {dtype}");
        assert!(shape.len() <= MAX_DIMS, "`{name}`: GGUF holds at most {MAX_DIMS} dimensions");
        let row_len = shape.last().copied().unwrap_or(1);
        assert!(
            row_len.is_multiple_of(dtype.block_len()),
            "`{name}`: rows of {row_len} are not whole blocks of {dtype}"
        );
        let n_bytes = shape
            .iter()
            .try_fold(1_usize, |product, &dim| product.checked_mul(dim))
            .and_then(|n_elements| dtype.bytes_for(n_elements));
        let n_bytes = n_bytes.unwrap_or_else(|| panic!("`{name}`: {shape:?} overflows"));
        self.tensors.push(Planned { name, dtype, shape: shape.to_vec(), n_bytes });
        self
    }

    /// Creates the file at `path` and writes everything before the data.
    ///
    /// # Errors
    ///
    /// When the file cannot be written, or two tensors have the same name.
    pub fn create(self, path: &Path) -> Result<GgufData<BufWriter<File>>> {
        let file = File::create(path).map_err(|source| TensorError::io(path, source))?;
        self.start(BufWriter::with_capacity(1 << 20, file), path)
    }

    /// Writes everything before the data to `out`; `name` stands for the file in messages.
    ///
    /// # Errors
    ///
    /// When `out` fails, or two tensors have the same name.
    pub fn start<W: Write>(self, mut out: W, name: impl Into<PathBuf>) -> Result<GgufData<W>> {
        let file = name.into();
        let mut names = BTreeSet::new();
        if let Some(twice) = self.tensors.iter().find(|t| !names.insert(t.name.as_str())) {
            let field = format!("tensor `{}`", shown(&twice.name));
            return Err(TensorError::malformed(&file, field, "one tensor of this name", "two"));
        }
        let mut header = Vec::new();
        header.extend(MAGIC);
        header.extend(3_u32.to_le_bytes());
        put_len(&mut header, self.tensors.len());
        put_len(&mut header, self.metadata.len());
        for (key, value) in &self.metadata {
            put_bytes(&mut header, key.as_bytes());
            put_value(&mut header, value);
        }
        let mut offset = 0_usize;
        for tensor in &self.tensors {
            put_bytes(&mut header, tensor.name.as_bytes());
            header.extend((tensor.shape.len() as u32).to_le_bytes());
            tensor.shape.iter().rev().for_each(|&dim| put_len(&mut header, dim));
            let id = tensor.dtype.gguf_id().expect("invariant: checked when announced");
            header.extend(id.to_le_bytes());
            put_len(&mut header, offset);
            offset = (offset + tensor.n_bytes).next_multiple_of(DEFAULT_ALIGNMENT);
        }
        header.resize(header.len().next_multiple_of(DEFAULT_ALIGNMENT), 0);
        out.write_all(&header).map_err(|source| TensorError::io(&file, source))?;
        let mut pending = self.tensors;
        pending.reverse();
        Ok(GgufData { file, out, pending })
    }
}

/// A GGUF file whose header is written and whose data follows.
#[derive(Debug)]
#[must_use = "the file is complete only after `finish`"]
pub struct GgufData<W: Write> {
    file: PathBuf,
    out: W,
    /// Tensors still to come; the next one last.
    pending: Vec<Planned>,
}

impl<W: Write> GgufData<W> {
    /// Writes the data of the next announced tensor.
    ///
    /// # Errors
    ///
    /// When the output fails.
    ///
    /// # Panics
    ///
    /// When no tensor is left, or `data` does not have the announced size.
    pub fn tensor_data(&mut self, data: &[u8]) -> Result<()> {
        let tensor = self.pending.pop().expect("data for more tensors than were announced");
        assert_eq!(data.len(), tensor.n_bytes, "`{}`: bytes of data", tensor.name);
        let padding = data.len().next_multiple_of(DEFAULT_ALIGNMENT) - data.len();
        self.out
            .write_all(data)
            .and_then(|()| self.out.write_all(&[0; DEFAULT_ALIGNMENT][..padding]))
            .map_err(|source| TensorError::io(&self.file, source))
    }

    /// Flushes and returns the output.
    ///
    /// # Errors
    ///
    /// When the output fails.
    ///
    /// # Panics
    ///
    /// When the data of an announced tensor is missing.
    pub fn finish(mut self) -> Result<W> {
        if let Some(tensor) = self.pending.last() {
            panic!("`{}`: announced, but its data was not written", tensor.name);
        }
        self.out.flush().map_err(|source| TensorError::io(&self.file, source))?;
        Ok(self.out)
    }
}

fn put_len(out: &mut Vec<u8>, n: usize) {
    out.extend((n as u64).to_le_bytes());
}

fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put_len(out, bytes.len());
    out.extend(bytes);
}

fn put_value(out: &mut Vec<u8>, value: &GgufValue) {
    out.extend(value.type_id().to_le_bytes());
    match value {
        GgufValue::U8(x) => out.extend(x.to_le_bytes()),
        GgufValue::I8(x) => out.extend(x.to_le_bytes()),
        GgufValue::U16(x) => out.extend(x.to_le_bytes()),
        GgufValue::I16(x) => out.extend(x.to_le_bytes()),
        GgufValue::U32(x) => out.extend(x.to_le_bytes()),
        GgufValue::I32(x) => out.extend(x.to_le_bytes()),
        GgufValue::U64(x) => out.extend(x.to_le_bytes()),
        GgufValue::I64(x) => out.extend(x.to_le_bytes()),
        GgufValue::F32(x) => out.extend(x.to_le_bytes()),
        GgufValue::F64(x) => out.extend(x.to_le_bytes()),
        GgufValue::Bool(x) => out.push((*x).into()),
        GgufValue::String(x) => put_bytes(out, x.as_bytes()),
        GgufValue::Array(array) => put_array(out, array),
    }
}

fn put_array(out: &mut Vec<u8>, array: &GgufArray) {
    out.extend(array.type_id().to_le_bytes());
    put_len(out, array.len());
    match array {
        GgufArray::U8(x) => out.extend(x),
        GgufArray::I8(x) => x.iter().for_each(|n| out.extend(n.to_le_bytes())),
        GgufArray::U16(x) => x.iter().for_each(|n| out.extend(n.to_le_bytes())),
        GgufArray::I16(x) => x.iter().for_each(|n| out.extend(n.to_le_bytes())),
        GgufArray::U32(x) => x.iter().for_each(|n| out.extend(n.to_le_bytes())),
        GgufArray::I32(x) => x.iter().for_each(|n| out.extend(n.to_le_bytes())),
        GgufArray::U64(x) => x.iter().for_each(|n| out.extend(n.to_le_bytes())),
        GgufArray::I64(x) => x.iter().for_each(|n| out.extend(n.to_le_bytes())),
        GgufArray::F32(x) => x.iter().for_each(|n| out.extend(n.to_le_bytes())),
        GgufArray::F64(x) => x.iter().for_each(|n| out.extend(n.to_le_bytes())),
        GgufArray::Bool(x) => out.extend(x.iter().map(|&b| u8::from(b))),
        GgufArray::Strings(x) => x.iter().for_each(|s| put_bytes(out, s)),
    }
}
