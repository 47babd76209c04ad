//! One line of results.

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

/// The result of a line, in OpenAI's shape with the number of the line.
#[derive(Debug, Serialize)]
pub struct ResultLine {
    id: String,
    /// Number of the line of the input, from 1.
    pub line: u64,
    /// The name of the line, where it could be read.
    pub custom_id: Option<String>,
    response: Option<Response>,
    error: Option<LineError>,
    /// Whether the line was answered with a status below 400.
    #[serde(skip)]
    pub is_success: bool,
}

#[derive(Debug, Serialize)]
struct Response {
    status_code: u16,
    request_id: String,
    body: Box<RawValue>,
}

#[derive(Debug, Serialize)]
struct LineError {
    code: &'static str,
    message: String,
}

/// The parts of a result by which a later run knows what is done.
#[derive(Debug, Deserialize)]
#[serde(expecting = "a result of a batch, an object")]
pub(super) struct Known {
    pub(super) line: u64,
    #[serde(default)]
    pub(super) custom_id: Option<String>,
    pub(super) response: Option<KnownResponse>,
}

/// The part of an answer that says which model gave it.
#[derive(Debug, Deserialize)]
pub(super) struct KnownResponse {
    pub(super) body: Option<KnownBody>,
}

#[derive(Debug, Deserialize)]
pub(super) struct KnownBody {
    pub(super) model: Option<String>,
}

impl ResultLine {
    /// The answer to a line.
    pub(super) fn answered(
        line: u64,
        custom_id: String,
        request_id: String,
        (status_code, body): (u16, Box<RawValue>),
    ) -> Self {
        Self {
            id: id(line),
            line,
            custom_id: Some(custom_id),
            response: Some(Response { status_code, request_id, body }),
            error: None,
            is_success: status_code < 400,
        }
    }

    /// A line that was not asked.
    pub(super) fn failed(
        line: u64,
        custom_id: Option<String>,
        code: &'static str,
        why: &str,
    ) -> Self {
        let error = LineError { code, message: format!("line {line}: {why}") };
        Self {
            id: id(line),
            line,
            custom_id,
            response: None,
            error: Some(error),
            is_success: false,
        }
    }

    /// The text of the line, with its end.
    pub fn to_line(&self) -> String {
        let mut text = serde_json::to_string(self).expect("invariant: plain data");
        text.push('\n');
        text
    }
}

fn id(line: u64) -> String {
    crate::wire::fresh_id(&format!("batch_req_{line}_"))
}
