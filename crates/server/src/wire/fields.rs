//! Reading fields one by one, so that an error can name the field that is wrong.

use serde_json::{Map, Value};

use crate::error::ApiError;

/// The fields of an object that have not been read yet.
///
/// `null` is the same as absence. Fields that are left at the end are unknown, and
/// [`finish`](Self::finish) refuses them by name.
#[derive(Debug)]
pub(crate) struct Fields {
    map: Map<String, Value>,
    /// Path of the object, empty or ending with a dot.
    path: String,
}

impl Fields {
    pub(crate) fn new(map: Map<String, Value>) -> Self {
        Self { map, path: String::new() }
    }

    /// The fields of an object inside the body; `path` names it.
    pub(crate) fn nested(path: &str, value: Value) -> Result<Self, ApiError> {
        match value {
            Value::Object(map) => Ok(Self { map, path: format!("{path}.") }),
            other => Err(wrong(path, "an object", &other)),
        }
    }

    /// The full name of a field.
    pub(crate) fn path(&self, name: &str) -> String {
        format!("{}{name}", self.path)
    }

    pub(crate) fn take(&mut self, name: &str) -> Option<Value> {
        self.map.remove(name).filter(|value| !value.is_null())
    }

    pub(crate) fn bool(&mut self, name: &str) -> Result<Option<bool>, ApiError> {
        self.typed(name, "true or false", |value| value.as_bool())
    }

    pub(crate) fn f32(&mut self, name: &str) -> Result<Option<f32>, ApiError> {
        self.typed(name, "a number", |value| value.as_f64().map(|x| x as f32))
    }

    pub(crate) fn usize(&mut self, name: &str) -> Result<Option<usize>, ApiError> {
        self.typed(name, "a whole number that is not negative", |value| {
            usize::try_from(value.as_u64()?).ok()
        })
    }

    pub(crate) fn u32(&mut self, name: &str) -> Result<Option<u32>, ApiError> {
        self.typed(name, "a whole number from 0 to 4294967295", |value| {
            u32::try_from(value.as_u64()?).ok()
        })
    }

    pub(crate) fn i64(&mut self, name: &str) -> Result<Option<i64>, ApiError> {
        self.typed(name, "a whole number", Value::as_i64)
    }

    pub(crate) fn i32(&mut self, name: &str) -> Result<Option<i32>, ApiError> {
        self.typed(name, "a whole number from -2147483648 to 2147483647", |value| {
            i32::try_from(value.as_i64()?).ok()
        })
    }

    /// A whole number of 64 bits, with or without sign.
    pub(crate) fn bits64(&mut self, name: &str) -> Result<Option<u64>, ApiError> {
        self.typed(name, "a whole number of 64 bits", |value| {
            value.as_u64().or_else(|| value.as_i64().map(i64::cast_unsigned))
        })
    }

    pub(crate) fn string(&mut self, name: &str) -> Result<Option<String>, ApiError> {
        self.typed(name, "a string", |value| value.as_str().map(str::to_owned))
    }

    pub(crate) fn array(&mut self, name: &str) -> Result<Option<Vec<Value>>, ApiError> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::Array(items)) => Ok(Some(items)),
            Some(other) => Err(wrong(&self.path(name), "an array", &other)),
        }
    }

    /// Refuses fields that were not read.
    pub(crate) fn finish(self) -> Result<(), ApiError> {
        match self.map.into_iter().find(|(_, value)| !value.is_null()) {
            None => Ok(()),
            Some((name, _)) => {
                let param = format!("{}{name}", self.path);
                let message = format!("unknown parameter `{param}`");
                Err(ApiError::param(param, message))
            }
        }
    }

    fn typed<T>(
        &mut self,
        name: &str,
        expected: &str,
        read: impl FnOnce(&Value) -> Option<T>,
    ) -> Result<Option<T>, ApiError> {
        let Some(value) = self.take(name) else { return Ok(None) };
        read(&value).map(Some).ok_or_else(|| wrong(&self.path(name), expected, &value))
    }
}

/// A field of the wrong type.
pub(crate) fn wrong(param: &str, expected: &str, got: &Value) -> ApiError {
    let mut got = got.to_string();
    if got.chars().count() > 80 {
        got = got.chars().take(80).chain("...".chars()).collect();
    }
    ApiError::param(param, format!("`{param}` must be {expected}, got {got}"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn fields(value: Value) -> Fields {
        Fields::new(value.as_object().expect("object").clone())
    }

    #[test]
    fn a_wrong_type_names_the_field_and_null_is_absence() {
        let mut fields = fields(json!({"a": "x", "b": null, "c": -1, "d": 1.5}));
        let error = fields.usize("a").expect_err("a string");
        assert_eq!(error.body.param.as_deref(), Some("a"));
        assert_eq!(fields.usize("b").expect("null"), None);
        assert_eq!(fields.usize("c").expect_err("negative").body.param.as_deref(), Some("c"));
        assert!(fields.usize("d").is_err());
        assert!(fields.finish().is_ok());
    }

    #[test]
    fn what_is_left_is_refused_by_its_full_name() {
        let inner = Fields::nested("stream_options", json!({"x": 1})).expect("object");
        let error = inner.finish().expect_err("unknown");
        assert_eq!(error.body.param.as_deref(), Some("stream_options.x"));
        assert!(fields(json!({"x": null})).finish().is_ok());
    }

    #[test]
    fn seeds_may_be_negative() {
        let mut fields = fields(json!({"a": -1, "b": u64::MAX}));
        assert_eq!(fields.bits64("a").expect("signed"), Some(u64::MAX));
        assert_eq!(fields.bits64("b").expect("unsigned"), Some(u64::MAX));
    }
}
