//! JSON straight from the bytes of a body.
//!
//! ```text
//!   bytes --body--> texts of its fields --object, each--> texts of fields and elements --> values
//! ```
//!
//! The text of an object or array is read element by element, and its reader keeps what it needs. So a
//! body never becomes a tree of values, which takes up to forty times the memory of its text, and
//! reading ends at the first element that is wrong or one too many.
//!
//! `body` checks the syntax of everything; what can still be wrong in a part are types, numbers out of
//! range, and escapes in strings.

use std::fmt;

use pelton_base::limits::keeps_digits;
use serde::de::{DeserializeOwned, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::Value;
pub(crate) use serde_json::value::RawValue;

use crate::error::ApiError;
use crate::limits;

/// The kind of a JSON text, by its first letter.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Kind {
    Array,
    Object,
    String,
    Number,
    /// `true`, `false` or `null`.
    Word,
}

impl Kind {
    pub(crate) fn of(raw: &RawValue) -> Self {
        match raw.get().as_bytes().first() {
            Some(b'[') => Self::Array,
            Some(b'{') => Self::Object,
            Some(b'"') => Self::String,
            Some(b'-' | b'0'..=b'9') => Self::Number,
            _ => Self::Word,
        }
    }
}

/// Names and texts of the fields of a whole body, which must be an object.
///
/// # Errors
///
/// The place where the syntax is wrong; else as [`object`].
pub(crate) fn body(bytes: &[u8]) -> Result<Vec<(String, &RawValue)>, ApiError> {
    let fail =
        |why: &dyn fmt::Display| ApiError::malformed(format!("the body is not valid JSON: {why}"));
    let text = std::str::from_utf8(bytes).map_err(|error| fail(&error))?;
    if !text.trim_ascii_start().starts_with('{') {
        let read = serde_json::from_str::<&RawValue>(text).map_err(|error| fail(&error));
        return Err(read.err().unwrap_or_else(|| ApiError::malformed(NO_OBJECT)));
    }
    fields("", text, limits::FIELDS, fail)
}

const NO_OBJECT: &str = "the body is JSON but no object";

/// A value of one of serde's types.
pub(crate) fn typed<T: DeserializeOwned>(
    path: &str,
    expected: &str,
    raw: &RawValue,
) -> Result<T, ApiError> {
    serde_json::from_str(raw.get()).map_err(|_| wrong(path, expected, raw.get()))
}

/// A string.
pub(crate) fn string(path: &str, raw: &RawValue) -> Result<String, ApiError> {
    // The syntax of a body is right: what is wrong in a string are escapes.
    let expected = match Kind::of(raw) {
        Kind::String => "a string in which surrogates (`\\ud800` to `\\udfff`) come in pairs",
        _ => "a string",
    };
    typed(path, expected, raw)
}

/// Names and texts of the fields of an object, in order; `path` names it.
///
/// # Errors
///
/// Names the object if it is none or has more than `most` fields, and a field that is given twice.
pub(crate) fn object<'a>(
    path: &str,
    raw: &'a RawValue,
    most: usize,
) -> Result<Vec<(String, &'a RawValue)>, ApiError> {
    if Kind::of(raw) != Kind::Object {
        return Err(wrong(path, "an object", raw.get()));
    }
    fields(path, raw.get(), most, |error| unreadable(path, error))
}

/// Reads the text of an object; `fail` makes an error of what serde cannot read.
fn fields<'a>(
    path: &str,
    text: &'a str,
    most: usize,
    fail: impl Fn(&dyn fmt::Display) -> ApiError,
) -> Result<Vec<(String, &'a RawValue)>, ApiError> {
    let mut fields: Vec<(String, &'a RawValue)> = Vec::new();
    let add = |name: String, value| {
        if name.len() > limits::FIELD_NAME_BYTES {
            let most = limits::FIELD_NAME_BYTES;
            return Err(refused(path, &format!("a field whose name has more than {most} bytes")));
        }
        if fields.iter().any(|(known, _)| *known == name) {
            let param = join(path, &name);
            let message = format!("`{param}` is given twice");
            return Err(ApiError::param(param, message));
        }
        if fields.len() == most {
            return Err(refused(path, &format!("more than {most} fields")));
        }
        fields.push((name, value));
        Ok(())
    };
    let mut visitor = Fields { add, failure: None };
    let mut deserializer = serde_json::Deserializer::from_str(text);
    let read = deserializer.deserialize_map(&mut visitor).and_then(|()| deserializer.end());
    let failure = visitor.failure;
    read.map_err(|error| failure.unwrap_or_else(|| fail(&error)))?;
    Ok(fields)
}

/// Calls `read` with number and text of each element of an array.
///
/// # Errors
///
/// The errors of `read`; and one that names the value, if it is no array or has more than `most`
/// elements.
pub(crate) fn each<'a>(
    path: &str,
    raw: &'a RawValue,
    most: usize,
    mut read: impl FnMut(usize, &'a RawValue) -> Result<(), ApiError>,
) -> Result<(), ApiError> {
    if Kind::of(raw) != Kind::Array {
        return Err(wrong(path, "an array", raw.get()));
    }
    let read = |i, element| {
        if i == most {
            return Err(refused(path, &format!("more than {most} elements")));
        }
        read(i, element)
    };
    let mut visitor = Elements { read, failure: None };
    let read = serde_json::Deserializer::from_str(raw.get()).deserialize_seq(&mut visitor);
    let failure = visitor.failure;
    read.map_err(|error| failure.unwrap_or_else(|| unreadable(path, &error)))
}

/// A value of any shape, of limited size and depth, in which no name is given twice.
pub(crate) fn free(path: &str, raw: &RawValue) -> Result<Value, ApiError> {
    free_within(path, raw, FREE)?;
    serde_json::from_str(raw.get()).map_err(|error| unreadable(path, &error))
}

/// The size of a value of any shape.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Extent {
    pub(crate) bytes: usize,
    /// Nesting of objects and arrays.
    pub(crate) depth: usize,
    /// Fields of one object.
    pub(crate) fields: usize,
}

const FREE: Extent = Extent {
    bytes: limits::FREE_JSON_BYTES,
    depth: limits::FREE_JSON_DEPTH,
    fields: limits::FIELDS,
};

/// Checks that a value of any shape is at most of this size, gives no name twice, has no string that is
/// none, such as half of a surrogate pair, and no whole number that a [`Value`] would round.
pub(crate) fn free_within(path: &str, raw: &RawValue, most: Extent) -> Result<(), ApiError> {
    if raw.get().len() > most.bytes {
        return Err(refused(path, &format!("more than {} bytes", most.bytes)));
    }
    check_shape(path, raw, 0, most)
}

fn check_shape(path: &str, raw: &RawValue, depth: usize, most: Extent) -> Result<(), ApiError> {
    let kind = Kind::of(raw);
    if depth == most.depth && matches!(kind, Kind::Array | Kind::Object) {
        let most = most.depth;
        return Err(refused(path, &format!("more than {most} levels of objects and arrays")));
    }
    match kind {
        Kind::Object => object(path, raw, most.fields)?
            .into_iter()
            .try_for_each(|(name, value)| check_shape(&join(path, &name), value, depth + 1, most)),
        Kind::Array => each(path, raw, most.bytes, |i, element| {
            check_shape(&format!("{path}[{i}]"), element, depth + 1, most)
        }),
        Kind::String => string(path, raw).map(drop),
        Kind::Number if !keeps_digits(raw.get()) => Err(wrong(
            path,
            "a whole number of 64 bits, or text, which keeps all digits",
            raw.get(),
        )),
        Kind::Number | Kind::Word => Ok(()),
    }
}

/// The full name of a field.
pub(crate) fn join(path: &str, name: &str) -> String {
    if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") }
}

/// A value of the wrong type; `got` is its JSON.
pub(crate) fn wrong(param: &str, expected: &str, got: &str) -> ApiError {
    ApiError::param(param, format!("`{param}` must be {expected}, got {}", brief(got)))
}

/// The beginning of a text that a client sent, for a message.
pub(crate) fn brief(text: &str) -> String {
    match text.char_indices().nth(80) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text.to_owned(),
    }
}

/// A value with too much of something; an empty `path` is the whole body.
pub(crate) fn refused(path: &str, what: &str) -> ApiError {
    match path {
        "" => ApiError::malformed(format!("the body has {what}")),
        path => ApiError::param(path, format!("`{path}` has {what}")),
    }
}

/// A value that is JSON and cannot be read all the same, for half a surrogate pair in a name.
fn unreadable(path: &str, error: &dyn fmt::Display) -> ApiError {
    ApiError::param(path, format!("`{path}` cannot be read: {error}"))
}

/// Hands each field of an object on; the visitor's own error only ends the reading.
struct Fields<F> {
    add: F,
    failure: Option<ApiError>,
}

impl<'a, F: FnMut(String, &'a RawValue) -> Result<(), ApiError>> Visitor<'a> for &mut Fields<F> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'a>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some((name, value)) = map.next_entry::<String, &'a RawValue>()? {
            if let Err(error) = (self.add)(name, value) {
                self.failure = Some(error);
                return Err(A::Error::custom("refused"));
            }
        }
        Ok(())
    }
}

/// Hands each element of an array on; the visitor's own error only ends the reading.
struct Elements<F> {
    read: F,
    failure: Option<ApiError>,
}

impl<'a, F: FnMut(usize, &'a RawValue) -> Result<(), ApiError>> Visitor<'a> for &mut Elements<F> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an array")
    }

    fn visit_seq<A: SeqAccess<'a>>(self, mut elements: A) -> Result<(), A::Error> {
        let mut n = 0;
        while let Some(element) = elements.next_element::<&'a RawValue>()? {
            if let Err(error) = (self.read)(n, element) {
                self.failure = Some(error);
                return Err(A::Error::custom("refused"));
            }
            n += 1;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn raw(text: &str) -> &RawValue {
        serde_json::from_str(text).expect("JSON")
    }

    #[test]
    fn a_name_that_is_given_twice_is_named_at_any_depth() {
        for (text, param) in [
            (r#"{"a":1,"a":1}"#, "m.a"),
            (r#"{"a":1,"\u0061":1}"#, "m.a"),
            (r#"{"b":{"a":1,"a":null}}"#, "m.b.a"),
            (r#"[0,{"x":[{"a":[],"a":{}}]}]"#, "m[1].x[0].a"),
        ] {
            let error = free("m", raw(text)).expect_err(text);
            assert_eq!(error.body.param.as_deref(), Some(param));
            assert!(error.body.message.contains("twice"), "{}", error.body.message);
        }
        free("m", raw(r#"{"a":{"a":1},"b":{"a":1}}"#)).expect("different objects");
    }

    #[test]
    fn free_values_have_limits_of_size_depth_and_fields() {
        let nested = |depth: usize| format!("{}1{}", "[".repeat(depth), "]".repeat(depth));
        free("m", raw(&nested(limits::FREE_JSON_DEPTH))).expect("deep, but not too deep");
        let deep = free("m", raw(&nested(limits::FREE_JSON_DEPTH + 1))).expect_err("too deep");
        assert!(deep.body.message.contains("32 levels"), "{}", deep.body.message);
        let long = format!("\"{}\"", "x".repeat(limits::FREE_JSON_BYTES));
        assert!(free("m", raw(&long)).is_err());
        let many = |n: usize| {
            let fields: Vec<String> = (0..n).map(|i| format!("\"{i}\":0")).collect();
            format!("{{{}}}", fields.join(","))
        };
        free("m", raw(&many(limits::FIELDS))).expect("many, but not too many");
        assert!(free("m", raw(&many(limits::FIELDS + 1))).is_err());
        let name = format!("{{\"{}\":0}}", "x".repeat(limits::FIELD_NAME_BYTES + 1));
        assert!(object("", raw(&name), 9).is_err());
    }

    #[test]
    fn reading_ends_at_the_element_that_is_one_too_many() {
        let mut n_read = 0;
        let error = each("list", raw("[0,0,0,0,0]"), 3, |_, _| {
            n_read += 1;
            Ok(())
        });
        let error = error.expect_err("five are more than three");
        assert_eq!((error.body.param.as_deref(), n_read), (Some("list"), 3));
    }

    #[test]
    fn escapes_that_are_no_text_are_an_error_of_their_field() {
        let half = r#"{"a":"\ud800"}"#;
        let fields = object("m", raw(half), 9).expect("syntax is right");
        assert_eq!(
            string("m.a", fields[0].1).expect_err("half").body.param.as_deref(),
            Some("m.a")
        );
        assert!(free("m", raw(half)).is_err());
        let error = free_within("m", raw(&format!("[{half}]")), FREE).expect_err("half");
        assert_eq!(error.body.param.as_deref(), Some("m[0].a"));
        assert!(error.body.message.contains("in pairs"), "{}", error.body.message);
        assert!(object("m", raw(r#"{"\ud800":1}"#), 9).is_err());
    }

    #[test]
    fn whole_numbers_are_never_rounded() {
        for kept in
            ["18446744073709551615", "-9223372036854775808", "-0", "1e300", "0.1234567890123456789"]
        {
            free("m", raw(kept)).expect(kept);
        }
        for rounded in ["18446744073709551616", "-9223372036854775809", "100000000000000000000000"]
        {
            let error = free("m", raw(&format!("[{{\"a\":{rounded}}}]"))).expect_err(rounded);
            assert_eq!(error.body.param.as_deref(), Some("m[0].a"));
            assert!(error.body.message.contains(rounded), "{}", error.body.message);
        }
    }

    #[test]
    fn nesting_costs_no_stack() {
        let depth = 1 << 20;
        let text = format!("{}{}", "[".repeat(depth), "]".repeat(depth));
        assert!(free("m", raw(&text)).is_err());
        assert!(body("[".repeat(depth).as_bytes()).is_err());
        assert!(body(format!("{{\"m\":{text}}}").as_bytes()).is_ok());
    }
}
