//! Fields of `quantization_config`, checked as they are read.

use serde_json::Value;

use crate::{QuantError, Result};

/// One named value, possibly absent; `null` counts as absent.
#[derive(Clone, Debug)]
pub(super) struct Setting<'a> {
    name: String,
    value: Option<&'a Value>,
}

impl<'a> Setting<'a> {
    pub(super) fn new(name: impl Into<String>, value: &'a Value) -> Self {
        Self { name: name.into(), value: Some(value).filter(|value| !value.is_null()) }
    }

    /// The member `key` of an object; absent when this is no object.
    pub(super) fn get(&self, key: &str) -> Self {
        let value = self.value.and_then(|value| value.get(key)).filter(|value| !value.is_null());
        Self { name: format!("{}.{key}", self.name), value }
    }

    /// The members of an object with their names; none where absent.
    pub(super) fn members(&self) -> Result<Vec<(&'a str, Self)>> {
        match self.value {
            None => Ok(Vec::new()),
            Some(Value::Object(members)) => Ok(members
                .iter()
                .map(|(key, value)| {
                    (key.as_str(), Self::new(format!("{}.{key}", self.name), value))
                })
                .collect()),
            Some(_) => Err(self.error("an object")),
        }
    }

    /// The member `key`, or `older` where only that is there.
    pub(super) fn either(&self, key: &str, older: &str) -> Self {
        let (field, older) = (self.get(key), self.get(older));
        if !field.is_present() && older.is_present() { older } else { field }
    }

    pub(super) fn is_present(&self) -> bool {
        self.value.is_some()
    }

    /// An error about this field.
    pub(super) fn error(&self, expected: impl Into<String>) -> QuantError {
        const MOST_CHARS: usize = 80;
        let found = match self.value {
            None => "nothing (it is missing)".to_owned(),
            Some(value) => value.to_string().chars().take(MOST_CHARS).collect(),
        };
        QuantError::Setting { field: self.name.clone(), expected: expected.into(), found }
    }

    /// A text, or `None` where absent.
    pub(super) fn text(&self) -> Result<Option<&'a str>> {
        match self.value {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(_) => Err(self.error("a text")),
        }
    }

    /// The text if it is one of `known`; the first of `known` where the field is absent.
    pub(super) fn one_of<'k>(&self, known: &[&'k str]) -> Result<&'k str> {
        let Some(text) = self.text()? else { return Ok(known[0]) };
        let found = known.iter().copied().find(|word| word.eq_ignore_ascii_case(text));
        found.ok_or_else(|| self.error(format!("one of {}", known.join(", "))))
    }

    /// `true` or `false`; `default` where absent.
    pub(super) fn flag(&self, default: bool) -> Result<bool> {
        match self.value {
            None => Ok(default),
            Some(Value::Bool(flag)) => Ok(*flag),
            Some(_) => Err(self.error("true or false")),
        }
    }

    /// A whole number, or `None` where absent.
    pub(super) fn whole(&self) -> Result<Option<i64>> {
        match self.value {
            None => Ok(None),
            Some(value) => value.as_i64().map(Some).ok_or_else(|| self.error("a whole number")),
        }
    }

    /// A number above 0; `None` where the field is absent or not above 0, which means the same.
    pub(super) fn positive(&self) -> Result<Option<f64>> {
        match self.value {
            None => Ok(None),
            Some(value) => match value.as_f64() {
                Some(x) => Ok(Some(x).filter(|x| *x > 0.0)),
                None => Err(self.error("a number")),
            },
        }
    }

    /// Inputs that share a scale: a number from 1 up, or a whole row where it is -1.
    pub(super) fn group_size(&self) -> Result<GroupSize> {
        match self.whole()? {
            Some(-1) => Ok(GroupSize::Row),
            Some(n @ 1..=MOST_GROUP) => Ok(GroupSize::Inputs(n as usize)),
            _ => Err(self.error(format!("-1 or a number of inputs from 1 to {MOST_GROUP}"))),
        }
    }

    /// A list of texts; empty where absent.
    pub(super) fn texts(&self) -> Result<Vec<String>> {
        let expected = || self.error("a list of names");
        match self.value {
            None => Ok(Vec::new()),
            Some(Value::Array(items)) => items
                .iter()
                .map(|item| item.as_str().map(str::to_owned).ok_or_else(expected))
                .collect(),
            Some(_) => Err(expected()),
        }
    }

    /// Two whole numbers from 1 to `max`, or `None` where absent.
    pub(super) fn pair(&self, max: usize) -> Result<Option<[usize; 2]>> {
        let Some(value) = self.value else { return Ok(None) };
        let number = |i: usize| {
            let n = value.get(i).and_then(Value::as_u64).map(|n| n as usize);
            n.filter(|n| (1..=max).contains(n))
        };
        match (value.as_array().map(Vec::len), number(0), number(1)) {
            (Some(2), Some(a), Some(b)) => Ok(Some([a, b])),
            _ => Err(self.error(format!("two whole numbers from 1 to {max}"))),
        }
    }
}

/// Most inputs of a group: no row is longer.
pub(super) const MOST_GROUP: i64 = 1 << 20;

/// How many inputs share a scale.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum GroupSize {
    /// All inputs of a row share one scale.
    Row,
    /// This number of inputs share one scale.
    Inputs(usize),
}

impl GroupSize {
    /// Inputs per group of rows of `k`.
    pub(super) fn of(self, k: usize) -> usize {
        match self {
            Self::Row => k.max(1),
            Self::Inputs(n) => n,
        }
    }
}

impl std::fmt::Display for GroupSize {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Row => f.write_str("one group per row"),
            Self::Inputs(n) => write!(f, "groups of {n}"),
        }
    }
}
