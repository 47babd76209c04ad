//! The few HTTP requests that the hub needs: an agent, retries, and the headers of a `HEAD`.

use std::time::Duration;

use pelton_base::limits;
use pelton_tensor::read_limited;
use ureq::http::{HeaderMap, Response};
use ureq::{Agent, Body};

use super::{HubConfig, HubError};

/// Longest wait between two attempts.
const LONGEST_WAIT: Duration = Duration::from_secs(30);
/// Longest time until the hub takes a connection.
const LONGEST_CONNECT: Duration = Duration::from_secs(10);

/// The fault of a hub that keeps a connection and sends nothing.
const STALLED: &str = "the hub stopped sending";

/// The fault of a name that leads nowhere.
const UNKNOWN_HOST: &str = "there is no such host, or no network";

/// Failure of one attempt.
pub(crate) enum Failure {
    /// Another attempt may succeed; the server may have said when.
    Transient { why: String, wait: Option<Duration> },
    /// Another attempt would fail too.
    Fatal(HubError),
}

/// The fault of an answer that is a page for people, as a proxy or a login page sends.
pub(crate) const WEB_PAGE: &str = "a web page came instead of the hub's answer: is there a proxy \
                                   or a login page in between, or a wrong HF_ENDPOINT?";

/// An agent for the hub; redirects are followed up to `max_redirects`, without the token.
pub(crate) fn agent(config: &HubConfig, max_redirects: u32) -> Agent {
    let HubConfig { endpoint, patience, .. } = config;
    let mut builder = Agent::config_builder()
        .user_agent(concat!("pelton/", env!("CARGO_PKG_VERSION")))
        .http_status_as_error(false)
        .max_redirects(max_redirects)
        .max_redirects_will_error(max_redirects > 0)
        .timeout_connect(Some(LONGEST_CONNECT.min(*patience)))
        .timeout_recv_response(Some(*patience))
        .timeout_per_read(Some(*patience));
    let host = endpoint.split_once("://").map_or(endpoint.as_str(), |(_, rest)| rest);
    if ["127.0.0.1", "localhost", "[::1]"].iter().any(|local| host.starts_with(local)) {
        // A proxy cannot reach a server on this machine.
        builder = builder.proxy(None);
    }
    if let Some(certificates) = extra_roots() {
        builder = builder.tls_config(
            ureq::tls::TlsConfig::builder()
                .root_certs(ureq::tls::RootCerts::Specific(certificates.into()))
                .build(),
        );
    }
    builder.build().new_agent()
}

/// The certificates of `SSL_CERT_FILE`, for networks with certificates of their own.
fn extra_roots() -> Option<Vec<ureq::tls::Certificate<'static>>> {
    let path = std::env::var_os("SSL_CERT_FILE")?;
    let pem = read_limited(path.as_ref(), limits::CONFIG_BYTES).ok()?;
    let certificates: Vec<_> = ureq::tls::parse_pem(&pem)
        .filter_map(|item| match item {
            Ok(ureq::tls::PemItem::Certificate(certificate)) => Some(certificate),
            _ => None,
        })
        .collect();
    (!certificates.is_empty()).then_some(certificates)
}

/// Runs `attempt` until it succeeds, fails for good, or no attempts are left.
///
/// The flag of `attempt` says whether it made progress; progress starts the count again.
pub(crate) fn with_retries<T>(
    config: &HubConfig,
    url: &str,
    mut attempt: impl FnMut(&mut bool) -> Result<T, Failure>,
) -> Result<T, HubError> {
    let mut n_failed = 0;
    let mut wait = config.first_wait;
    loop {
        let mut made_progress = false;
        let (why, asked) = match attempt(&mut made_progress) {
            Ok(value) => return Ok(value),
            Err(Failure::Fatal(error)) => return Err(error),
            Err(Failure::Transient { why, wait }) => (why, wait),
        };
        if made_progress {
            n_failed = 0;
            wait = config.first_wait;
        }
        n_failed += 1;
        if n_failed >= config.n_attempts {
            return Err(HubError::Network { url: url.to_owned(), why, n_attempts: n_failed });
        }
        tracing::warn!("{url}: {why}; trying again");
        std::thread::sleep(asked.unwrap_or(wait).min(LONGEST_WAIT));
        wait *= 2;
    }
}

/// Turns a failed send or an error status into the right kind of failure.
pub(crate) fn check(
    url: &str,
    has_token: bool,
    response: Result<Response<Body>, ureq::Error>,
) -> Result<Response<Body>, Failure> {
    let response = response.map_err(|error| match error {
        ureq::Error::BadUri(_) | ureq::Error::Http(_) | ureq::Error::TooManyRedirects => {
            Failure::Fatal(HubError::Protocol { url: url.to_owned(), why: error.to_string() })
        }
        error => Failure::Transient { why: words(&error), wait: None },
    })?;
    let status = response.status().as_u16();
    let hint = match status {
        401 | 403 | 404 if !has_token => {
            "no such model or file, or it is private or gated: then set HF_TOKEN"
        }
        401 | 403 => "the token of HF_TOKEN may not read this model; accept its terms on the hub",
        404 => "no such model, revision or file",
        408 | 429 | 500..=599 => {
            let wait = header(response.headers(), "retry-after")
                .and_then(|text| text.parse().ok())
                .map(Duration::from_secs);
            return Err(Failure::Transient { why: format!("status {status}"), wait });
        }
        400..=499 => "the hub does not accept this request",
        _ => return Ok(response),
    };
    Err(Failure::Fatal(HubError::Refused { url: url.to_owned(), status, hint }))
}

/// The cause in words.
fn words(error: &ureq::Error) -> String {
    match error {
        ureq::Error::Timeout(ureq::Timeout::Connect | ureq::Timeout::Resolve) => {
            "no connection in time".to_owned()
        }
        ureq::Error::Timeout(_) => STALLED.to_owned(),
        error if is_unknown_host(error) => UNKNOWN_HOST.to_owned(),
        error => error.to_string(),
    }
}

/// Whether the system's resolver does not know the host; its error has no kind of its own.
fn is_unknown_host(error: &ureq::Error) -> bool {
    matches!(error, ureq::Error::HostNotFound)
        || matches!(error, ureq::Error::Io(error) if error.to_string().contains("lookup address"))
}

/// The fault of a body that does not come, for a person.
pub(crate) fn body_failure(error: std::io::Error) -> Failure {
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<ureq::Error>());
    let why = match inner {
        Some(inner) => words(inner),
        None if error.kind() == std::io::ErrorKind::UnexpectedEof => {
            "the hub closed the connection too soon".to_owned()
        }
        None => error.to_string(),
    };
    Failure::Transient { why, wait: None }
}

/// Whether no connection came about at all, so that another attempt at once is useless.
pub(crate) fn is_unreachable(error: &ureq::Error) -> bool {
    use std::io::ErrorKind;
    match error {
        error if is_unknown_host(error) => true,
        ureq::Error::ConnectionFailed => true,
        ureq::Error::Timeout(ureq::Timeout::Connect | ureq::Timeout::Resolve) => true,
        ureq::Error::Io(error) => matches!(
            error.kind(),
            ErrorKind::ConnectionRefused
                | ErrorKind::NetworkUnreachable
                | ErrorKind::HostUnreachable
                | ErrorKind::NetworkDown
        ),
        _ => false,
    }
}

/// The failure of a request whose connection did not come about.
pub(crate) fn unreachable(url: &str, error: &ureq::Error) -> Failure {
    Failure::Fatal(HubError::Network { url: url.to_owned(), why: words(error), n_attempts: 1 })
}

/// Whether the body of an answer is a page for people.
pub(crate) fn is_web_page(headers: &HeaderMap) -> bool {
    header(headers, "content-type").is_some_and(|kind| kind.starts_with("text/html"))
}

/// A header as text, if it is there and is text.
pub(crate) fn header<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name)?.to_str().ok().map(str::trim)
}

/// The first byte and the total size of `bytes 5-9/10`.
pub(crate) fn content_range(text: &str) -> Option<(u64, Option<u64>)> {
    let (range, total) = text.trim().strip_prefix("bytes ")?.split_once('/')?;
    let (start, end) = range.split_once('-')?;
    let (start, end): (u64, u64) = (start.trim().parse().ok()?, end.trim().parse().ok()?);
    let total: Option<u64> = match total.trim() {
        "*" => None,
        digits => Some(digits.parse().ok()?),
    };
    (start <= end && total.is_none_or(|total| end < total)).then_some((start, total))
}

/// `W/"abc"` as `abc`.
pub(crate) fn plain_etag(text: &str) -> &str {
    text.strip_prefix("W/").unwrap_or(text).trim_matches('"')
}

/// Percent-encodes the characters that a path of an address may not contain.
pub(crate) fn encode_path(path: &str) -> String {
    use std::fmt::Write as _;
    let mut out = String::with_capacity(path.len());
    for byte in path.bytes() {
        if byte.is_ascii_alphanumeric() || b"-_.~/".contains(&byte) {
            out.push(byte as char);
        } else {
            write!(out, "%{byte:02X}").expect("invariant: writing to a string succeeds");
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_well_formed_content_ranges_are_believed() {
        assert_eq!(content_range("bytes 5-9/10"), Some((5, Some(10))));
        assert_eq!(content_range("bytes 0-0/*"), Some((0, None)));
        for text in ["", "bytes", "bytes 5-4/10", "bytes 5-10/10", "items 1-2/3", "bytes -1-2/3"] {
            assert_eq!(content_range(text), None, "{text}");
        }
    }

    #[test]
    fn tags_and_paths_take_their_plain_form() {
        assert_eq!((plain_etag("W/\"a\""), plain_etag("\"b\""), plain_etag("c")), ("a", "b", "c"));
        assert_eq!(encode_path("refs/pr/1 é"), "refs/pr/1%20%C3%A9");
    }
}
