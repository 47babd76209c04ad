//! The W3C `traceparent` header: `00-TRACE-SPAN-FLAGS`.
//!
//! Source: W3C, "Trace Context", level 1.

use std::hash::{BuildHasher, RandomState};

use axum::http::HeaderMap;

/// The span of a client that a request belongs to.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Parent {
    pub(crate) trace: u128,
    pub(crate) span: u64,
    pub(crate) is_sampled: bool,
}

/// The trace of a request.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Traced {
    /// Its client's, or a new one.
    pub(crate) trace: u128,
    pub(crate) parent: Option<Parent>,
}

impl Traced {
    /// The trace of a request with this head.
    pub(crate) fn of(headers: &HeaderMap) -> Self {
        let parent = Parent::of(headers);
        let trace = parent.map(|parent| parent.trace);
        let new = || u128::from(fresh()) << 64 | u128::from(fresh());
        Self { trace: trace.unwrap_or_else(new), parent }
    }

    /// Whether a span is to be sent: its client, where it is traced itself, samples this trace.
    pub(super) fn is_wanted(&self) -> bool {
        self.parent.is_none_or(|parent| parent.is_sampled)
    }

    /// The trace in hexadecimal digits.
    pub(crate) fn id(&self) -> String {
        format!("{:032x}", self.trace)
    }
}

/// A random number that is not zero.
pub(super) fn fresh() -> u64 {
    // The keys of the standard hasher are random, so the hash of nothing is random too.
    RandomState::new().hash_one(()).max(1)
}

impl Parent {
    /// The parent that the head of a request names; `None` without one, or where it is malformed,
    /// which begins a new trace, as the standard says.
    pub(crate) fn of(headers: &HeaderMap) -> Option<Self> {
        Self::read(headers.get("traceparent")?.to_str().ok()?)
    }

    fn read(text: &str) -> Option<Self> {
        let mut parts = text.trim().split('-');
        let version = hex(parts.next()?, 2)?;
        let (trace, span) = (hex(parts.next()?, 32)?, hex(parts.next()?, 16)?);
        let flags = hex(parts.next()?, 2)?;
        // Later versions may add parts; 255 is no version.
        let is_whole = version != 0 || parts.next().is_none();
        let is_valid = version != 255 && trace != 0 && span != 0 && is_whole;
        let span = u64::try_from(span).ok()?;
        is_valid.then_some(Self { trace, span, is_sampled: flags & 1 == 1 })
    }
}

/// A number of exactly this many lower-case digits.
fn hex(text: &str, n_digits: usize) -> Option<u128> {
    let is_hex = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    let is_it = text.len() == n_digits && text.bytes().all(is_hex);
    is_it.then(|| u128::from_str_radix(text, 16).ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_is_read_as_the_standard_says_or_ignored() {
        let text = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        let parent = Parent::read(text).expect("the example of the standard");
        assert_eq!(parent.trace, 0x4bf9_2f35_77b3_4da6_a3ce_929d_0e0e_4736);
        assert_eq!((parent.span, parent.is_sampled), (0x00f0_67aa_0ba9_02b7, true));
        assert!(!Parent::read(&text.replace("-01", "-00")).expect("valid").is_sampled);
        assert!(Parent::read(&text.replacen("00-", "cc-", 1).replace("-01", "-01-x")).is_some());
        for bad in [
            "".to_owned(),
            text.to_uppercase(),
            text.replacen("00-", "ff-", 1),
            text.replace("-01", "-01-x"),
            text.replace("00f067aa0ba902b7", "0000000000000000"),
            text.replace("4bf92f3577b34da6a3ce929d0e0e4736", &"0".repeat(32)),
            text.replace("4bf9", "4bf"),
            text.replace("-01", ""),
        ] {
            assert_eq!(Parent::read(&bad), None, "{bad}");
        }
    }
}
