//! The header that names fields which were accepted and had no effect.

use axum::http::{HeaderName, HeaderValue};
use axum::response::Response;

/// Paths of the fields of a request that had no effect on its answer.
const NAME: HeaderName = HeaderName::from_static("x-pelton-ignored");
/// Longest value of the header, in bytes; `...` stands for the rest.
const MOST_BYTES: usize = 1024;

/// Fields that were accepted and had no effect.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(crate) struct Ignored(Vec<String>);

impl Ignored {
    /// Adds a field by its path; letters that a header cannot hold become `?`.
    pub(crate) fn add(&mut self, path: impl Into<String>) {
        let is_fine = |letter: char| letter.is_ascii_graphic() && letter != ',';
        let letters = path.into().chars().map(|it| if is_fine(it) { it } else { '?' }).collect();
        self.0.push(letters);
    }

    /// Writes the header, if there is anything to say.
    pub(crate) fn mark(&self, response: &mut Response) {
        if self.0.is_empty() {
            return;
        }
        let mut text = String::new();
        for path in &self.0 {
            let gap = if text.is_empty() { "" } else { ", " };
            if text.len() + path.len() > MOST_BYTES {
                text.push_str(gap);
                text.push_str("...");
                break;
            }
            text.push_str(gap);
            text.push_str(path);
        }
        if let Ok(value) = HeaderValue::from_str(&text) {
            // Several parts of the server may have something to say.
            response.headers_mut().append(NAME, value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(paths: &[&str]) -> Option<String> {
        let mut ignored = Ignored::default();
        paths.iter().for_each(|path| ignored.add(*path));
        let mut response = Response::new(axum::body::Body::empty());
        ignored.mark(&mut response);
        response.headers().get(NAME).map(|value| value.to_str().expect("text").to_owned())
    }

    #[test]
    fn fields_are_listed_in_a_header_of_limited_length() {
        assert_eq!(header(&[]), None);
        assert_eq!(header(&["tools[1]", "speed"]).as_deref(), Some("tools[1], speed"));
        assert_eq!(header(&["a,\r\nb: é"]).as_deref(), Some("a???b:??"));
        let many = header(&["x".repeat(100).as_str(); 20]).expect("a header");
        assert!(many.len() < MOST_BYTES + 10 && many.ends_with(", ..."), "{many}");
    }
}
