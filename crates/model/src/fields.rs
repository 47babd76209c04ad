//! Reading numbers out of files from strangers.
//!
//! Both `config.json` and GGUF metadata come down to named values of loose type. A [`Field`] is one
//! of them; its methods take the range that makes sense and otherwise answer with a [`ConfigError`]
//! that gives the name, the value found and the value expected.

use pelton_quant::QuantError;
use serde_json::Value;

/// A configuration that cannot be used.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// The text is not JSON at all.
    #[error("not valid JSON: {0}")]
    NotJson(String),
    /// The file is larger than any real configuration.
    #[error("{n_bytes} bytes is too large for a configuration, the limit is {limit}")]
    TooLarge {
        /// Size found, in bytes.
        n_bytes: u64,
        /// Largest size accepted, in bytes.
        limit: u64,
    },
    /// A field that is absent, of the wrong type, out of range, or at odds with another.
    #[error("field `{field}`: expected {expected}, found {found}")]
    Field {
        /// The field as the file spells it, with dots between levels.
        field: String,
        /// The value that it should have.
        expected: String,
        /// The value that it has.
        found: String,
    },
    /// An architecture that is not in [`ARCHS`](crate::ARCHS).
    #[error("unknown architecture `{found}`; known are {known}")]
    UnknownArchitecture {
        /// The name found.
        found: String,
        /// Every known name.
        known: String,
    },
}

impl From<QuantError> for ConfigError {
    /// A setting of `quantization_config` is a field like any other.
    fn from(error: QuantError) -> Self {
        match error {
            QuantError::Setting { field, expected, found } => {
                Self::Field { field, expected, found }
            }
            other => Self::NotJson(other.to_string()),
        }
    }
}

/// One named value, possibly absent.
#[derive(Clone, Debug)]
pub(crate) struct Field<'a> {
    name: String,
    value: Option<&'a Value>,
}

impl<'a> Field<'a> {
    pub(crate) fn new(name: impl Into<String>, value: Option<&'a Value>) -> Self {
        Self { name: name.into(), value }
    }

    /// The field of this name with another value.
    pub(crate) fn with<'b>(&self, value: &'b Value) -> Field<'b> {
        Field { name: self.name.clone(), value: Some(value) }
    }

    /// The member `key` of an object; absent when this is absent or not an object.
    pub(crate) fn get(&self, key: &str) -> Self {
        let name =
            if self.name.is_empty() { key.to_owned() } else { format!("{}.{key}", self.name) };
        Self { name, value: self.value.and_then(|v| v.get(key)) }
    }

    /// Whether the field is there, `null` included.
    pub(crate) fn is_present(&self) -> bool {
        self.value.is_some()
    }

    /// This field, or `None` where it is absent or `null`.
    pub(crate) fn non_null(&self) -> Option<&Self> {
        self.value.filter(|v| !v.is_null()).map(|_| self)
    }

    /// The raw value, unless absent or `null`.
    pub(crate) fn value(&self) -> Option<&'a Value> {
        self.value.filter(|v| !v.is_null())
    }

    /// An error about this field.
    pub(crate) fn error(&self, expected: impl Into<String>) -> ConfigError {
        let found = match self.value {
            None => "nothing (it is missing)".to_owned(),
            Some(value) => shorten(&value.to_string()),
        };
        ConfigError::Field { field: self.name.clone(), expected: expected.into(), found }
    }

    /// A whole number in `1..=max`. Floats that are whole numbers are accepted.
    pub(crate) fn count(&self, max: usize) -> Result<usize, ConfigError> {
        self.integer(1, max)
    }

    /// A whole number in `min..=max`.
    pub(crate) fn integer(&self, min: usize, max: usize) -> Result<usize, ConfigError> {
        let whole = self.value.and_then(|value| match value {
            Value::Number(n) => n.as_u64().or_else(|| {
                n.as_f64().filter(|x| x.fract() == 0.0 && (0.0..1e15).contains(x)).map(|x| x as u64)
            }),
            _ => None,
        });
        whole
            .and_then(|n| usize::try_from(n).ok())
            .filter(|n| (min..=max).contains(n))
            .ok_or_else(|| self.error(format!("a whole number from {min} to {max}")))
    }

    /// A finite number in `min..=max`.
    pub(crate) fn number(&self, min: f64, max: f64) -> Result<f64, ConfigError> {
        self.value
            .and_then(Value::as_f64)
            .filter(|x| x.is_finite() && (min..=max).contains(x))
            .ok_or_else(|| self.error(format!("a number from {min} to {max}")))
    }

    /// `true` or `false`; `default` where absent or `null`.
    pub(crate) fn flag(&self, default: bool) -> Result<bool, ConfigError> {
        match self.value() {
            None => Ok(default),
            Some(Value::Bool(b)) => Ok(*b),
            Some(_) => Err(self.error("true or false")),
        }
    }

    /// A text; `None` where absent or `null`.
    pub(crate) fn text(&self) -> Result<Option<&'a str>, ConfigError> {
        match self.value() {
            None => Ok(None),
            Some(Value::String(s)) => Ok(Some(s)),
            Some(_) => Err(self.error("a text")),
        }
    }

    /// A list of exactly `n` finite numbers in `min..=max`.
    pub(crate) fn numbers(&self, n: usize, min: f64, max: f64) -> Result<Vec<f32>, ConfigError> {
        let expected = || format!("a list of {n} numbers from {min} to {max}");
        let Some(Value::Array(items)) = self.value else { return Err(self.error(expected())) };
        let list: Option<Vec<f32>> = items
            .iter()
            .map(|item| item.as_f64().filter(|x| (min..=max).contains(x)).map(|x| x as f32))
            .collect();
        list.filter(|list| list.len() == n).ok_or_else(|| self.error(expected()))
    }
}

/// At most a line's worth of a value, for error messages.
fn shorten(text: &str) -> String {
    const MOST_CHARS: usize = 80;
    match text.char_indices().nth(MOST_CHARS) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text.to_owned(),
    }
}

/// Parses JSON as Python writes it: bare `NaN`, `Infinity` and `-Infinity` become texts, so that
/// the field that holds one can be named, instead of a line and column.
pub(crate) fn parse_json(bytes: &[u8]) -> Result<Value, ConfigError> {
    let not_json = |e: &dyn std::fmt::Display| ConfigError::NotJson(e.to_string());
    let error = match serde_json::from_slice(bytes) {
        Ok(value) => return Ok(value),
        Err(error) => error,
    };
    let text = std::str::from_utf8(bytes).map_err(|e| not_json(&e))?;
    let Some(quoted) = quote_bare_floats(text) else { return Err(not_json(&error)) };
    serde_json::from_str(&quoted).map_err(|_| not_json(&error))
}

/// Puts quotes around bare `NaN` and infinities outside of strings; `None` where there are none.
fn quote_bare_floats(text: &str) -> Option<String> {
    let mut out = String::with_capacity(text.len() + 16);
    let mut rest = text;
    let mut n_quoted = 0;
    while let Some(c) = rest.chars().next() {
        if c == '"' {
            let end = end_of_string(rest);
            out.push_str(&rest[..end]);
            rest = &rest[end..];
        } else if let Some(word) =
            ["NaN", "-Infinity", "Infinity"].into_iter().find(|word| rest.starts_with(word))
        {
            out.push('"');
            out.push_str(word);
            out.push('"');
            rest = &rest[word.len()..];
            n_quoted += 1;
        } else {
            out.push(c);
            rest = &rest[c.len_utf8()..];
        }
    }
    (n_quoted > 0).then_some(out)
}

/// Bytes of the string literal at the start of `text`, both quotes included.
fn end_of_string(text: &str) -> usize {
    let mut is_escaped = false;
    for (i, byte) in text.bytes().enumerate().skip(1) {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' => is_escaped = true,
            b'"' => return i + 1,
            _ => {}
        }
    }
    text.len()
}
