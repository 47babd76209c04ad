//! Reading fields one by one, so that an error can name the field that is wrong.

use serde::de::DeserializeOwned;

use super::json::{self, RawValue};
use super::lenient;
use super::record::{Expected, note};
use crate::error::ApiError;
use crate::limits;

/// The fields of an object that have not been read yet.
///
/// `null` is the same as absence. Fields that are left at the end are unknown, and
/// [`finish`](Self::finish) refuses them by name.
#[derive(Debug)]
pub(crate) struct Fields<'a> {
    fields: Vec<(String, &'a RawValue)>,
    /// Path of the object, empty for the whole body.
    path: String,
}

impl<'a> Fields<'a> {
    /// The fields of a whole body.
    pub(crate) fn of_body(bytes: &'a [u8]) -> Result<Self, ApiError> {
        Ok(Self { fields: json::body(bytes)?, path: String::new() })
    }

    /// The fields of an object inside the body; `path` names it.
    pub(crate) fn nested(path: &str, raw: &'a RawValue) -> Result<Self, ApiError> {
        Ok(Self { fields: json::object(path, raw, limits::FIELDS)?, path: path.to_owned() })
    }

    /// The full name of a field.
    pub(crate) fn path(&self, name: &str) -> String {
        json::join(&self.path, name)
    }

    /// Whether a field is there that was not read and is not `null`.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.fields.iter().any(|(known, raw)| known == name && raw.get() != "null")
    }

    pub(crate) fn take(&mut self, name: &str) -> Option<&'a RawValue> {
        self.expect(name, Expected::Json)
    }

    /// Takes a field out, and notes what its reader expects.
    pub(super) fn expect(&mut self, name: &str, expected: Expected) -> Option<&'a RawValue> {
        note(|| self.path(name), expected);
        let i = self.fields.iter().position(|(known, _)| known == name)?;
        let (_, raw) = self.fields.remove(i);
        (raw.get() != "null").then_some(raw)
    }

    pub(crate) fn bool(&mut self, name: &str) -> Result<Option<bool>, ApiError> {
        self.typed(name, "true or false", Expected::Bool)
    }

    /// Whether scores go through their activation: `use_activation`, or `activation`, its older
    /// name.
    pub(crate) fn activation(&mut self) -> Result<Option<bool>, ApiError> {
        let (new, old) = (self.bool("use_activation")?, self.bool("activation")?);
        match new.zip(old) {
            Some((new, old)) if new != old => {
                let message = "`use_activation` and `activation` contradict each other";
                Err(ApiError::param("use_activation", message))
            }
            _ => Ok(new.or(old)),
        }
    }

    pub(crate) fn f32(&mut self, name: &str) -> Result<Option<f32>, ApiError> {
        Ok(self.typed::<f64>(name, "a number", Expected::Number)?.map(|x| x as f32))
    }

    pub(crate) fn usize(&mut self, name: &str) -> Result<Option<usize>, ApiError> {
        self.whole(name, "a whole number from 0 to 18446744073709551615", (0, u64::MAX))
    }

    pub(crate) fn u32(&mut self, name: &str) -> Result<Option<u32>, ApiError> {
        self.whole(name, "a whole number from 0 to 4294967295", (0, u32::MAX.into()))
    }

    pub(crate) fn i64(&mut self, name: &str) -> Result<Option<i64>, ApiError> {
        const EXPECTED: &str = "a whole number of 64 bits with a sign";
        self.whole(name, EXPECTED, (i64::MIN, i64::MAX.cast_unsigned()))
    }

    pub(crate) fn i32(&mut self, name: &str) -> Result<Option<i32>, ApiError> {
        const EXPECTED: &str = "a whole number from -2147483648 to 2147483647";
        self.whole(name, EXPECTED, (i32::MIN.into(), i32::MAX.cast_unsigned().into()))
    }

    /// A whole number of 64 bits, with or without sign.
    pub(crate) fn bits64(&mut self, name: &str) -> Result<Option<u64>, ApiError> {
        let number: Option<i128> =
            self.whole(name, "a whole number of 64 bits", (i64::MIN, u64::MAX))?;
        Ok(number.map(|number| number as u64))
    }

    /// A whole number from `least` to `most`, which lie within `T`; it may be written with a point or
    /// an exponent, as `8.0`.
    fn whole<T: TryFrom<i128>>(
        &mut self,
        name: &str,
        expected: &str,
        (least, most): (i64, u64),
    ) -> Result<Option<T>, ApiError> {
        let Some(raw) = self.expect(name, Expected::Whole(least, most)) else { return Ok(None) };
        let number = whole_number(raw.get()).filter(|n| (least.into()..=most.into()).contains(n));
        match number.and_then(|number| T::try_from(number).ok()) {
            Some(number) => Ok(Some(number)),
            None => Err(json::wrong(&self.path(name), expected, raw.get())),
        }
    }

    pub(crate) fn string(&mut self, name: &str) -> Result<Option<String>, ApiError> {
        let Some(raw) = self.expect(name, Expected::String) else { return Ok(None) };
        json::string(&self.path(name), raw).map(Some)
    }

    /// The elements of an array of at most `most`; `read` gets the path of each.
    pub(crate) fn list<T>(
        &mut self,
        name: &str,
        most: usize,
        mut read: impl FnMut(&str, &'a RawValue) -> Result<T, ApiError>,
    ) -> Result<Option<Vec<T>>, ApiError> {
        let Some(raw) = self.expect(name, Expected::List) else { return Ok(None) };
        let (path, mut items) = (self.path(name), Vec::new());
        json::each(&path, raw, most, |i, element| {
            items.push(read(&format!("{path}[{i}]"), element)?);
            Ok(())
        })?;
        Ok(Some(items))
    }

    /// Refuses fields that were not read; a lenient server ignores them.
    pub(crate) fn finish(self) -> Result<(), ApiError> {
        let is_refused = |(name, raw): &&(String, &RawValue)| {
            raw.get() != "null" && !lenient::ignores(&self.path(name))
        };
        match self.fields.iter().find(is_refused) {
            None => Ok(()),
            Some((name, _)) => {
                let param = self.path(name);
                let message = format!("unknown parameter `{param}`");
                Err(ApiError::param(param, message))
            }
        }
    }

    fn typed<T: DeserializeOwned>(
        &mut self,
        name: &str,
        expected: &str,
        kind: Expected,
    ) -> Result<Option<T>, ApiError> {
        let Some(raw) = self.expect(name, kind) else { return Ok(None) };
        json::typed(&self.path(name), expected, raw).map(Some)
    }
}

/// A number of JSON that has no fraction; beyond 2⁵³ only without point and exponent.
fn whole_number(text: &str) -> Option<i128> {
    const EXACT: f64 = (1_u64 << 53) as f64;
    let of_float = |x: f64| (x.fract() == 0.0 && x.abs() <= EXACT).then_some(x as i128);
    text.parse().ok().or_else(|| text.parse().ok().and_then(of_float))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(text: &str) -> Fields<'_> {
        Fields::of_body(text.as_bytes()).expect("an object")
    }

    #[test]
    fn a_wrong_type_names_the_field_and_null_is_absence() {
        let mut fields = fields(r#"{"a": "x", "b": null, "c": -1, "d": 1.5}"#);
        let error = fields.usize("a").expect_err("a string");
        assert_eq!(error.body.param.as_deref(), Some("a"));
        assert_eq!(fields.usize("b").expect("null"), None);
        assert_eq!(fields.usize("c").expect_err("negative").body.param.as_deref(), Some("c"));
        assert!(fields.usize("d").is_err());
        assert!(fields.finish().is_ok());
    }

    #[test]
    fn what_is_left_is_refused_by_its_full_name() {
        let mut outer = fields(r#"{"stream_options": {"x": 1}}"#);
        let raw = outer.take("stream_options").expect("given");
        let inner = Fields::nested("stream_options", raw).expect("object");
        let error = inner.finish().expect_err("unknown");
        assert_eq!(error.body.param.as_deref(), Some("stream_options.x"));
        assert!(fields(r#"{"x": null}"#).finish().is_ok());
    }

    #[test]
    fn seeds_may_be_negative() {
        let text = format!(r#"{{"a": -1, "b": {}, "c": "7", "d": 1.5}}"#, u64::MAX);
        let mut fields = fields(&text);
        assert_eq!(fields.bits64("a").expect("signed"), Some(u64::MAX));
        assert_eq!(fields.bits64("b").expect("unsigned"), Some(u64::MAX));
        assert!(fields.bits64("c").is_err() && fields.bits64("d").is_err());
    }

    #[test]
    fn whole_numbers_have_a_range_and_may_have_a_point() {
        for (text, expected) in [
            ("8", Some(8)),
            ("8.0", Some(8)),
            ("-0.0", Some(0)),
            ("1e3", Some(1000)),
            ("4294967295", Some(u32::MAX)),
            ("4294967296", None),
            ("-1", None),
            ("8.5", None),
            ("1e300", None),
            ("99999999999999999999999999999999999999999", None),
            ("\"8\"", None),
            ("[8]", None),
        ] {
            let body = format!("{{\"a\": {text}}}");
            assert_eq!(fields(&body).u32("a").ok().flatten(), expected, "{text}");
        }
        let ends = [i64::MIN, i64::MAX];
        for end in ends {
            assert_eq!(fields(&format!("{{\"a\": {end}}}")).i64("a").expect("an end"), Some(end));
        }
        for beyond in ["-9223372036854775809", "18446744073709551616"] {
            let body = format!("{{\"a\": {beyond}}}");
            assert!(fields(&body).i64("a").is_err() && fields(&body).bits64("a").is_err());
            assert!(fields(&body).usize("a").is_err());
        }
    }

    #[test]
    fn a_body_that_is_no_object_or_says_a_thing_twice_is_refused() {
        for (text, param) in [
            ("[]", None),
            ("1", None),
            ("{\"a\": ", None),
            ("{} {}", None),
            (r#"{"a": 1, "b": 2, "a": 3}"#, Some("a")),
            (r#"{"a": 1, "a": null}"#, Some("a")),
        ] {
            let error = Fields::of_body(text.as_bytes()).expect_err(text);
            assert_eq!(
                (error.status.as_u16(), error.body.param.as_deref()),
                (400, param),
                "{text}"
            );
        }
        assert!(Fields::of_body(b"{\"a\": \"\xff\"}").is_err(), "not UTF-8");
    }
}
