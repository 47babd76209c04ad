//! Web pages whose scripts may read the server's answers (CORS).
//!
//! A browser lets a script read an answer from another origin only if the answer allows the script's
//! origin. This protects the users of browsers; it keeps no other client out.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;
use std::time::Duration;

use axum::http::{HeaderName, HeaderValue, Method, Uri, header};
use tower_http::cors::{AllowHeaders, AllowOrigin, CorsLayer};

/// How long a browser may remember what it may send.
const MAX_AGE: Duration = Duration::from_secs(3600);

/// The pages whose scripts may read answers.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub enum CorsOrigins {
    /// Pages of this machine: `localhost`, loopback addresses, with any port.
    #[default]
    Localhost,
    /// Every page.
    Any,
    /// No page.
    None,
    /// Pages of these origins, such as `https://chat.example`.
    These(Vec<String>),
}

impl FromStr for CorsOrigins {
    type Err = String;

    /// Reads `localhost`, `*`, `none`, or origins with commas between them.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "localhost" => Ok(Self::Localhost),
            "*" => Ok(Self::Any),
            "none" => Ok(Self::None),
            _ => text
                .split(',')
                .map(|origin| read(origin.trim()))
                .collect::<Result<_, _>>()
                .map(Self::These),
        }
    }
}

/// An origin in the form in which browsers send it.
fn read(text: &str) -> Result<String, String> {
    let wrong = || {
        format!(
            "expected localhost, none, *, or origins such as https://chat.example:8443, got `{text}`"
        )
    };
    let uri: Uri = text.parse().map_err(|_| wrong())?;
    let (Some(scheme), Some(authority)) = (uri.scheme_str(), uri.authority()) else {
        return Err(wrong());
    };
    let origin = format!("{scheme}://{authority}").to_ascii_lowercase();
    let is_whole =
        text.trim_end_matches('/').len() == origin.len() && !authority.as_str().contains('@');
    if is_whole { Ok(origin) } else { Err(wrong()) }
}

impl fmt::Display for CorsOrigins {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Localhost => f.write_str("localhost"),
            Self::Any => f.write_str("*"),
            Self::None => f.write_str("none"),
            Self::These(origins) => f.write_str(&origins.join(",")),
        }
    }
}

impl CorsOrigins {
    /// Whether pages of `origin` may read answers.
    fn allows(&self, origin: &[u8]) -> bool {
        match self {
            Self::Any => true,
            Self::None => false,
            Self::These(origins) => origins.iter().any(|known| known.as_bytes() == origin),
            Self::Localhost => std::str::from_utf8(origin).is_ok_and(is_local),
        }
    }

    /// Answers what browsers ask beforehand, and marks the answers that scripts may read.
    pub(crate) fn layer(&self) -> CorsLayer {
        let origins = self.clone();
        let allows = move |origin: &HeaderValue, _: &_| origins.allows(origin.as_bytes());
        CorsLayer::new()
            .allow_origin(AllowOrigin::predicate(allows))
            .allow_methods([Method::GET, Method::POST, Method::DELETE])
            .allow_headers(AllowHeaders::mirror_request())
            .expose_headers(exposed())
            .max_age(MAX_AGE)
    }
}

/// Headers of answers that scripts may read.
fn exposed() -> Vec<HeaderName> {
    let names = [
        "x-request-id",
        "x-pelton-ignored",
        "x-pelton-result-cache",
        "x-pelton-routed",
        "x-ratelimit-limit-requests",
        "x-ratelimit-remaining-requests",
        "x-ratelimit-reset-requests",
        "x-ratelimit-limit-tokens",
        "x-ratelimit-remaining-tokens",
        "x-ratelimit-reset-tokens",
    ];
    names.into_iter().map(HeaderName::from_static).chain([header::RETRY_AFTER]).collect()
}

/// Whether an origin is a page that this machine serves.
fn is_local(origin: &str) -> bool {
    let Ok(uri) = origin.parse::<Uri>() else { return false };
    let host = uri.host().unwrap_or("").trim_start_matches('[').trim_end_matches(']');
    let is_loopback = host.parse().is_ok_and(|address: IpAddr| address.is_loopback());
    matches!(uri.scheme_str(), Some("http" | "https")) && (host == "localhost" || is_loopback)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allowed(flag: &str, origin: &str) -> bool {
        flag.parse::<CorsOrigins>().expect(flag).allows(origin.as_bytes())
    }

    #[test]
    fn pages_of_this_machine_are_those_of_loopback_addresses() {
        for origin in ["http://localhost", "https://localhost:3000", "http://127.0.0.2:80"] {
            assert!(allowed("localhost", origin), "{origin}");
        }
        assert!(allowed("localhost", "http://[::1]:5173"));
        for origin in [
            "http://localhost.evil.example",
            "http://evil.example",
            "null",
            "file://",
            "",
            "localhost",
        ] {
            assert!(!allowed("localhost", origin), "{origin}");
        }
        assert!(!allowed("localhost", "http://192.168.0.1"));
        assert!(!allowed("localhost", "chrome-extension://localhost"));
    }

    #[test]
    fn named_origins_are_allowed_alone() {
        let flag = "https://Chat.example, http://b.example:8080";
        assert!(allowed(flag, "https://chat.example"));
        assert!(allowed(flag, "http://b.example:8080"));
        assert!(!allowed(flag, "http://chat.example"), "another scheme");
        assert!(!allowed(flag, "http://b.example"), "another port");
        assert!(!allowed(flag, "http://localhost"));
        assert!(allowed("*", "https://any.example") && !allowed("none", "http://localhost"));
        let read: CorsOrigins = flag.parse().expect("origins");
        assert_eq!(read.to_string(), "https://chat.example,http://b.example:8080");
    }

    #[test]
    fn an_origin_is_a_scheme_and_a_host() {
        let bad = [
            "",
            "chat.example",
            "https://",
            "https://a.example/path",
            "https://u@a.example",
            "a,b",
        ];
        for text in bad {
            assert!(text.parse::<CorsOrigins>().is_err(), "{text:?}");
        }
        assert!("https://a.example/".parse::<CorsOrigins>().is_ok(), "as browsers show it");
    }
}
