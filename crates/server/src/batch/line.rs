//! One line of a batch: a request, its name, and the route that answers it.

use serde_json::value::RawValue;

use crate::error::ApiError;
use crate::wire::Fields;
use crate::wire::json::{self, brief, wrong};

/// Routes that answer lines.
pub(crate) const URLS: &[&str] = &[
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/embeddings",
    "/v1/rerank",
    "/v2/rerank",
    "/rerank",
    "/v1/score",
    "/score",
    "/v1/classify",
    "/classify",
];

/// Longest name of a line, in bytes.
const CUSTOM_ID_BYTES: usize = 512;

/// A line that can be asked.
#[derive(Debug)]
pub(super) struct BatchLine {
    pub(super) custom_id: String,
    pub(super) url: &'static str,
    pub(super) body: Vec<u8>,
}

/// A line that cannot be asked, and its name where that can be read.
#[derive(Debug)]
pub(super) struct BadLine {
    pub(super) custom_id: Option<String>,
    pub(super) why: String,
}

impl BatchLine {
    /// Reads a line; `endpoint` is the only route where it is given, and `model` takes the place of
    /// a name that the body leaves out.
    pub(super) fn read(bytes: &[u8], endpoint: Option<&str>) -> Result<Self, BadLine> {
        let mut custom_id = None;
        Self::read_named(bytes, endpoint, &mut custom_id).map_err(|error| {
            let why = error.body.message.replacen("the body is", "it is", 1);
            BadLine { custom_id, why }
        })
    }

    fn read_named(
        bytes: &[u8],
        endpoint: Option<&str>,
        found: &mut Option<String>,
    ) -> Result<Self, ApiError> {
        let mut fields = Fields::of_body(bytes)?;
        let custom_id = fields.string("custom_id")?.ok_or_else(|| missing("custom_id"))?;
        if custom_id.len() > CUSTOM_ID_BYTES {
            let message = format!("`custom_id` has more than {CUSTOM_ID_BYTES} bytes");
            return Err(ApiError::param("custom_id", message));
        }
        *found = Some(custom_id.clone());
        let method = fields.string("method")?.ok_or_else(|| missing("method"))?;
        if method != "POST" {
            return Err(wrong("method", "\"POST\"", &format!("\"{method}\"")));
        }
        let url = fields.string("url")?.ok_or_else(|| missing("url"))?;
        let url = known_url(&url, endpoint)?;
        let body = fields.take("body").ok_or_else(|| missing("body"))?;
        fields.finish()?;
        check_body(body)?;
        Ok(Self { custom_id, url, body: body.get().as_bytes().to_vec() })
    }
}

fn missing(name: &str) -> ApiError {
    ApiError::param(name, format!("`{name}` is missing"))
}

fn known_url(url: &str, endpoint: Option<&str>) -> Result<&'static str, ApiError> {
    let known = URLS.iter().find(|known| **known == url);
    match (known, endpoint) {
        (Some(known), None) => Ok(known),
        (Some(known), Some(endpoint)) if *known == endpoint => Ok(known),
        (_, Some(endpoint)) => {
            let message =
                format!("`url` must be the batch's endpoint {endpoint}, got {}", brief(url));
            Err(ApiError::param("url", message))
        }
        (None, None) => {
            let message = format!("`url` must be one of {}, got {}", URLS.join(", "), brief(url));
            Err(ApiError::param("url", message))
        }
    }
}

/// Refuses a body that is no object, and one that asks for a stream.
fn check_body(body: &RawValue) -> Result<(), ApiError> {
    let fields = json::object("body", body, crate::limits::FIELDS)?;
    let stream = fields.iter().find(|(name, _)| name == "stream");
    match stream.is_some_and(|(_, value)| value.get() == "true") {
        true => {
            let message = "`body.stream` must be false: the lines of a batch are answered whole";
            Err(ApiError::param("body.stream", message))
        }
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn why(line: &str) -> (Option<String>, String) {
        let bad = BatchLine::read(line.as_bytes(), None).expect_err(line);
        (bad.custom_id, bad.why)
    }

    #[test]
    fn a_line_is_a_request_with_a_name() {
        let text = r#"{"custom_id": "a", "method": "POST", "url": "/v1/score", "body": {"x": 1}}"#;
        let line = BatchLine::read(text.as_bytes(), None).expect("well formed");
        assert_eq!((line.custom_id.as_str(), line.url), ("a", "/v1/score"));
        assert_eq!(line.body, br#"{"x": 1}"#);
        let other = BatchLine::read(text.as_bytes(), Some("/v1/completions")).expect_err("another");
        assert!(other.why.contains("/v1/completions"), "{}", other.why);
    }

    #[test]
    fn a_bad_line_tells_its_fault_and_its_name() {
        for (line, id, word) in [
            ("{", None, "not valid JSON"),
            ("[]", None, "no object"),
            (r#"{"method": "POST"}"#, None, "`custom_id` is missing"),
            (r#"{"custom_id": 7}"#, None, "`custom_id` must be a string"),
            (r#"{"custom_id": "a"}"#, Some("a"), "`method`"),
            (r#"{"custom_id": "a", "method": "GET"}"#, Some("a"), "\"POST\""),
            (r#"{"custom_id": "a", "method": "POST", "url": "/metrics"}"#, Some("a"), "/metrics"),
            (r#"{"custom_id": "a", "method": "POST", "url": "/score"}"#, Some("a"), "`body`"),
            (
                r#"{"custom_id": "a", "method": "POST", "url": "/score", "body": {}, "x": 1}"#,
                Some("a"),
                "`x`",
            ),
            (
                r#"{"custom_id": "a", "method": "POST", "url": "/score", "body": {"stream": true}}"#,
                Some("a"),
                "stream",
            ),
        ] {
            let (found, why) = why(line);
            assert_eq!(found.as_deref(), id, "{line}");
            assert!(why.contains(word), "{why}");
        }
        assert!(BatchLine::read(b"{\"custom_id\": \"\xff\"}", None).is_err());
    }
}
