//! Reads little-endian fields from the front of a GGUF file, never past its end.

use std::path::Path;

use pelton_base::limits;

use super::value::{GgufArray, GgufValue, TYPE_NAMES};
use crate::error::{shown, shown_bytes};
use crate::{Result, TensorError};

/// A position in the metadata of one file.
pub(crate) struct Cursor<'a> {
    file: &'a Path,
    bytes: &'a [u8],
    at: usize,
    /// Whether a field needed bytes after the last one.
    ran_out: bool,
}

impl<'a> Cursor<'a> {
    /// Starts at the front of `bytes`; bytes beyond the limit on headers cannot be read.
    pub(crate) fn new(file: &'a Path, bytes: &'a [u8]) -> Self {
        Self {
            file,
            bytes: &bytes[..bytes.len().min(limits::GGUF_HEADER_BYTES)],
            at: 0,
            ran_out: false,
        }
    }

    /// Whether a field was refused because the bytes end, so that more bytes might hold it.
    pub(crate) fn ran_out(&self) -> bool {
        self.ran_out && self.bytes.len() < limits::GGUF_HEADER_BYTES
    }

    /// Bytes read so far.
    pub(crate) fn position(&self) -> usize {
        self.at
    }

    /// Bytes that can still be read.
    pub(crate) fn remaining(&self) -> usize {
        self.bytes.len() - self.at
    }

    /// The next `n_bytes` bytes, which belong to `field`.
    pub(crate) fn take(&mut self, n_bytes: usize, field: &str) -> Result<&'a [u8]> {
        let Some(taken) = self.bytes[self.at..].get(..n_bytes) else {
            self.ran_out = true;
            let limit = limits::GGUF_HEADER_BYTES;
            let got = if self.bytes.len() == limit {
                format!("a header of more than {limit} bytes")
            } else {
                format!("the end of the file after {}", self.remaining())
            };
            return Err(self.malformed(
                field,
                format!("{n_bytes} bytes at offset {}", self.at),
                got,
            ));
        };
        self.at += n_bytes;
        Ok(taken)
    }

    pub(crate) fn u32(&mut self, field: &str) -> Result<u32> {
        self.array(field).map(u32::from_le_bytes)
    }

    pub(crate) fn u64(&mut self, field: &str) -> Result<u64> {
        self.array(field).map(u64::from_le_bytes)
    }

    /// A count of items that take at least `min_bytes` bytes each in what follows.
    pub(crate) fn count(&mut self, field: &str, min_bytes: usize, limit: usize) -> Result<usize> {
        let count = self.u64(field)?;
        let held = self.remaining() / min_bytes;
        self.ran_out |= count > held as u64 && count <= limit as u64;
        usize::try_from(count).ok().filter(|&count| count <= held.min(limit)).ok_or_else(|| {
            let expected = if limit <= held {
                format!("at most {limit}")
            } else {
                format!("at most {held}, as many as the file can hold")
            };
            self.malformed(field, expected, count.to_string())
        })
    }

    /// A name: UTF-8, of bounded length.
    pub(crate) fn name(&mut self, field: &str) -> Result<&'a str> {
        let bytes = self.string_bytes(field)?;
        if bytes.len() > limits::TENSOR_NAME_BYTES {
            let expected = format!("a name of at most {} bytes", limits::TENSOR_NAME_BYTES);
            return Err(self.malformed(field, expected, bytes.len().to_string()));
        }
        self.utf8(bytes, field)
    }

    /// A metadata value of the type that stands before it.
    pub(crate) fn value(&mut self, key: &str) -> Result<GgufValue> {
        let field = format!("metadata key `{}`", shown(key));
        let type_id = self.u32(&field)?;
        Ok(match type_id {
            0 => GgufValue::U8(self.array::<1>(&field)?[0]),
            1 => GgufValue::I8(i8::from_le_bytes(self.array(&field)?)),
            2 => GgufValue::U16(u16::from_le_bytes(self.array(&field)?)),
            3 => GgufValue::I16(i16::from_le_bytes(self.array(&field)?)),
            4 => GgufValue::U32(self.u32(&field)?),
            5 => GgufValue::I32(i32::from_le_bytes(self.array(&field)?)),
            6 => GgufValue::F32(f32::from_le_bytes(self.array(&field)?)),
            7 => GgufValue::Bool({
                let byte = self.array::<1>(&field)?[0];
                self.bool(byte, &field)?
            }),
            8 => GgufValue::String({
                let bytes = self.string_bytes(&field)?;
                self.utf8(bytes, &field)?.to_owned()
            }),
            9 => GgufValue::Array(self.array_value(&field)?),
            10 => GgufValue::U64(self.u64(&field)?),
            11 => GgufValue::I64(i64::from_le_bytes(self.array(&field)?)),
            12 => GgufValue::F64(f64::from_le_bytes(self.array(&field)?)),
            _ => return Err(self.unknown_type(&field, type_id)),
        })
    }

    fn array_value(&mut self, field: &str) -> Result<GgufArray> {
        let element_type = self.u32(field)?;
        let n_bytes = match element_type {
            0 | 1 | 7 => 1,
            2 | 3 => 2,
            4..=6 => 4,
            8 | 10..=12 => 8, // A string is at least its length.
            9 => {
                let expected = "an array of numbers, booleans or strings";
                return Err(self.malformed(field, expected, "an array of arrays"));
            }
            _ => return Err(self.unknown_type(field, element_type)),
        };
        let n_elements = self.count(field, n_bytes, limits::GGUF_ARRAY_ELEMENTS)?;
        if element_type == 8 {
            let strings = (0..n_elements).map(|_| self.string_bytes(field).map(<[u8]>::to_vec));
            return strings.collect::<Result<_>>().map(GgufArray::Strings);
        }
        let bytes = self.take(n_elements * n_bytes, field)?;
        Ok(match element_type {
            0 => GgufArray::U8(bytes.to_vec()),
            1 => GgufArray::I8(numbers(bytes, i8::from_le_bytes)),
            2 => GgufArray::U16(numbers(bytes, u16::from_le_bytes)),
            3 => GgufArray::I16(numbers(bytes, i16::from_le_bytes)),
            4 => GgufArray::U32(numbers(bytes, u32::from_le_bytes)),
            5 => GgufArray::I32(numbers(bytes, i32::from_le_bytes)),
            6 => GgufArray::F32(numbers(bytes, f32::from_le_bytes)),
            7 => GgufArray::Bool(
                bytes.iter().map(|&byte| self.bool(byte, field)).collect::<Result<_>>()?,
            ),
            10 => GgufArray::U64(numbers(bytes, u64::from_le_bytes)),
            11 => GgufArray::I64(numbers(bytes, i64::from_le_bytes)),
            _ => GgufArray::F64(numbers(bytes, f64::from_le_bytes)),
        })
    }

    fn string_bytes(&mut self, field: &str) -> Result<&'a [u8]> {
        let n_bytes = self.u64(field)?;
        // A length that does not fit an address does not fit the file either.
        self.take(usize::try_from(n_bytes).unwrap_or(usize::MAX), field)
    }

    fn array<const N: usize>(&mut self, field: &str) -> Result<[u8; N]> {
        let bytes = self.take(N, field)?;
        Ok(bytes.try_into().expect("invariant: `take` returns as many bytes as asked for"))
    }

    fn utf8(&self, bytes: &'a [u8], field: &str) -> Result<&'a str> {
        std::str::from_utf8(bytes)
            .map_err(|_| self.malformed(field, "UTF-8 text", format!("`{}`", shown_bytes(bytes))))
    }

    fn bool(&self, byte: u8, field: &str) -> Result<bool> {
        match byte {
            0 | 1 => Ok(byte == 1),
            _ => Err(self.malformed(field, "a boolean, 0 or 1", byte.to_string())),
        }
    }

    fn unknown_type(&self, field: &str, type_id: u32) -> TensorError {
        let known: Vec<String> =
            TYPE_NAMES.iter().enumerate().map(|(id, name)| format!("{id} {name}")).collect();
        self.malformed(field, format!("a value type ({})", known.join(", ")), type_id.to_string())
    }

    fn malformed(
        &self,
        field: &str,
        expected: impl Into<String>,
        got: impl Into<String>,
    ) -> TensorError {
        TensorError::malformed(self.file, field, expected, got)
    }
}

fn numbers<const N: usize, T>(bytes: &[u8], read: fn([u8; N]) -> T) -> Vec<T> {
    bytes.as_chunks::<N>().0.iter().map(|&chunk| read(chunk)).collect()
}
