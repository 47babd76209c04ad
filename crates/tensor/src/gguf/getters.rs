//! Metadata by key and type: an absent key is `None`, a key of another type is an error.
//!
//! Integer getters accept every integer width whose value fits, since writers differ in that.

use std::borrow::Cow;

use super::{Gguf, GgufArray, GgufValue};
use crate::error::shown;
use crate::{Result, TensorError, TensorSource};

impl Gguf {
    /// The integer at `key`, if it fits a `u32`.
    ///
    /// # Errors
    ///
    /// When the value is not an integer or out of range.
    pub fn u32(&self, key: &str) -> Result<Option<u32>> {
        self.typed(key, "an integer from 0 to 4294967295", |v| v.as_i128()?.try_into().ok())
    }

    /// The integer at `key`, if it fits a `u64`.
    ///
    /// # Errors
    ///
    /// When the value is not an integer or out of range.
    pub fn u64(&self, key: &str) -> Result<Option<u64>> {
        self.typed(key, "an integer from 0 to 2^64 - 1", |v| v.as_i128()?.try_into().ok())
    }

    /// The integer at `key`, if it fits a `usize`.
    ///
    /// # Errors
    ///
    /// When the value is not an integer or out of range.
    pub fn usize(&self, key: &str) -> Result<Option<usize>> {
        self.typed(key, "an integer that is not negative", |v| v.as_i128()?.try_into().ok())
    }

    /// The number at `key`; an `f64` is rounded.
    ///
    /// # Errors
    ///
    /// When the value is not a floating-point number.
    pub fn f32(&self, key: &str) -> Result<Option<f32>> {
        self.typed(key, "a floating-point number", |v| match *v {
            GgufValue::F32(x) => Some(x),
            GgufValue::F64(x) => Some(x as f32),
            _ => None,
        })
    }

    /// The boolean at `key`.
    ///
    /// # Errors
    ///
    /// When the value is not a boolean.
    pub fn bool(&self, key: &str) -> Result<Option<bool>> {
        self.typed(key, "a boolean", |v| match *v {
            GgufValue::Bool(x) => Some(x),
            _ => None,
        })
    }

    /// The text at `key`.
    ///
    /// # Errors
    ///
    /// When the value is not a string.
    pub fn str(&self, key: &str) -> Result<Option<&str>> {
        self.typed(key, "a string", |v| match v {
            GgufValue::String(x) => Some(x.as_str()),
            _ => None,
        })
    }

    /// The array at `key`, of any element type.
    ///
    /// # Errors
    ///
    /// When the value is not an array.
    pub fn array(&self, key: &str) -> Result<Option<&GgufArray>> {
        self.typed(key, "an array", |v| match v {
            GgufValue::Array(x) => Some(x),
            _ => None,
        })
    }

    /// The array of strings at `key`, as raw bytes.
    ///
    /// # Errors
    ///
    /// When the value is not an array of strings.
    pub fn strings(&self, key: &str) -> Result<Option<&[Vec<u8>]>> {
        self.typed(key, "an array of strings", |v| match v {
            GgufValue::Array(GgufArray::Strings(x)) => Some(x.as_slice()),
            _ => None,
        })
    }

    /// The array of `f32` at `key`.
    ///
    /// # Errors
    ///
    /// When the value is not an array of `f32`.
    pub fn f32_array(&self, key: &str) -> Result<Option<&[f32]>> {
        self.typed(key, "an array of f32", |v| match v {
            GgufValue::Array(GgufArray::F32(x)) => Some(x.as_slice()),
            _ => None,
        })
    }

    /// The array of integers at `key`, if all fit an `i32`.
    ///
    /// # Errors
    ///
    /// When the value is not an array of integers, or one of them is out of range.
    pub fn i32_array(&self, key: &str) -> Result<Option<Cow<'_, [i32]>>> {
        fn fit<T: Copy + TryInto<i32>>(values: &[T]) -> Option<Cow<'_, [i32]>> {
            values.iter().map(|&x| x.try_into().ok()).collect::<Option<Vec<i32>>>().map(Cow::Owned)
        }
        self.typed(key, "an array of integers that fit 32 bits", |v| match v {
            GgufValue::Array(GgufArray::I32(x)) => Some(Cow::Borrowed(x.as_slice())),
            GgufValue::Array(GgufArray::U32(x)) => fit(x),
            GgufValue::Array(GgufArray::I64(x)) => fit(x),
            GgufValue::Array(GgufArray::U64(x)) => fit(x),
            GgufValue::Array(GgufArray::I16(x)) => fit(x),
            GgufValue::Array(GgufArray::U16(x)) => fit(x),
            GgufValue::Array(GgufArray::I8(x)) => fit(x),
            GgufValue::Array(GgufArray::U8(x)) => fit(x),
            _ => None,
        })
    }

    fn typed<'a, T>(
        &'a self,
        key: &str,
        expected: &str,
        read: impl FnOnce(&'a GgufValue) -> Option<T>,
    ) -> Result<Option<T>> {
        let Some(value) = self.metadata().get(key) else {
            return Ok(None);
        };
        let got = || match value {
            GgufValue::Array(array) => {
                format!("an array of {} {} values", array.len(), array.type_name())
            }
            GgufValue::String(text) => format!("the string `{}`", shown(text)),
            other => other.as_i128().map_or_else(
                || format!("a value of type {}", other.type_name()),
                |n| n.to_string(),
            ),
        };
        let field = || format!("metadata key `{}`", shown(key));
        read(value)
            .map(Some)
            .ok_or_else(|| TensorError::malformed(self.origin(), field(), expected, got()))
    }
}
