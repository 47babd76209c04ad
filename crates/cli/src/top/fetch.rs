//! Questions to a server.

use std::path::Path;
use std::time::Duration;

use pelton_base::limits;
use ureq::Agent;
use ureq::tls::{PemItem, RootCerts, TlsConfig, parse_pem};

use super::view::View;
use crate::config::Secret;
use crate::failure::{Failure, Result};

/// Longest time for one answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// Largest answer that is read, in bytes.
const MOST_BYTES: u64 = 32 << 20;

/// A way to ask one server.
#[derive(Debug)]
pub(super) struct Client {
    agent: Agent,
    url: String,
    key: Option<Secret>,
}

/// An answer.
#[derive(Debug)]
pub(super) struct Fetched {
    pub(super) view: View,
    /// The same as one line of JSON, with fields that this version does not know.
    pub(super) json: String,
}

/// No answer.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) enum Away {
    /// The server is not there, or busy; another attempt may succeed.
    Lost { url: String, why: String },
    /// The server is there and refuses; another attempt would fail, too.
    Refused { why: String, hint: &'static str },
}

impl Away {
    /// The reason in a few words.
    pub(super) fn why(&self) -> &str {
        let (Self::Lost { why, .. } | Self::Refused { why, .. }) = self;
        why
    }

    pub(super) fn into_failure(self) -> Failure {
        match self {
            Self::Lost { url, why } if why.contains("UnknownIssuer") => {
                Failure::new(format!("{url} is certified by an authority that is not trusted"))
                    .hint("`--ca FILE` trusts the certificates of a file")
            }
            Self::Lost { url, why } => Failure::new(format!("no answer from {url}: {why}"))
                .hint("`pelton serve` starts a server; `pelton top URL` looks at another one"),
            Self::Refused { why, hint } => Failure::new(why).hint(hint),
        }
    }
}

impl Client {
    /// Reads an address: with or without its scheme, and with `/v1` as other clients have it.
    /// `ca` is a file with the authorities that certify the server.
    pub(super) fn new(url: &str, key: Option<&Secret>, ca: Option<&Path>) -> Result<Self> {
        let (scheme, rest) = url.trim().split_once("://").unwrap_or(("http", url.trim()));
        if !["http", "https"].contains(&scheme) {
            let message = format!("`{scheme}://` is no scheme of a server; expected http or https");
            return Err(Failure::new(message));
        }
        let rest = rest.trim_end_matches('/');
        let rest = rest.strip_suffix("/v1").unwrap_or(rest).trim_end_matches('/');
        if rest.is_empty() {
            return Err(Failure::new(format!("`{url}` names no host"))
                .hint("an address looks like http://127.0.0.1:8000"));
        }
        let base = format!("{scheme}://{rest}");
        let agent = Agent::config_builder()
            .user_agent(concat!("pelton/", env!("CARGO_PKG_VERSION")))
            .http_status_as_error(false)
            .timeout_global(Some(PATIENCE))
            // The figures of a server on this machine are not for a proxy.
            .proxy(None)
            .tls_config(TlsConfig::builder().root_certs(roots(ca)?).build())
            .build()
            .new_agent();
        Ok(Self { agent, url: base, key: key.cloned() })
    }

    /// The address, with its scheme.
    pub(super) fn url(&self) -> &str {
        &self.url
    }

    /// Asks for the server at this moment.
    pub(super) fn ask(&self) -> std::result::Result<Fetched, Away> {
        let lost = |why: String| Away::Lost { url: self.url.clone(), why };
        let mut request = self.agent.get(format!("{}/v1/live", self.url));
        if let Some(key) = &self.key {
            request = request.header("authorization", format!("Bearer {}", key.expose()));
        }
        let mut response = request.call().map_err(|error| lost(reason(&error)))?;
        let status = response.status().as_u16();
        let body = response.body_mut().with_config().limit(MOST_BYTES).read_to_string();
        let body = body.map_err(|error| lost(reason(&error)))?;
        match status {
            200 => {}
            401 | 403 => {
                let why = format!("{} refuses the key: {}", self.url, message(&body));
                return Err(Away::Refused {
                    why,
                    hint: "`--key KEY` or PELTON_API_KEY sends a key",
                });
            }
            404 | 405 => {
                let why = format!("{} has no /v1/live", self.url);
                return Err(Away::Refused { why, hint: "`pelton top` shows servers of Pelton" });
            }
            _ => return Err(lost(format!("status {status}: {}", message(&body)))),
        }
        let value: serde_json::Value =
            serde_json::from_str(&body).map_err(|error| lost(format!("no JSON came: {error}")))?;
        let json = value.to_string();
        match serde_json::from_value(value) {
            Ok(view) => Ok(Fetched { view, json }),
            Err(error) => Err(lost(format!("the answer is none of this version: {error}"))),
        }
    }
}

/// The authorities that may certify a server: those of a file, else those that browsers trust.
fn roots(ca: Option<&Path>) -> Result<RootCerts> {
    let Some(path) = ca else { return Ok(RootCerts::WebPki) };
    let fail = |why: String| Failure::new(format!("`--ca`: {}: {why}", path.display()));
    let text = pelton_tensor::read_limited_text(path, limits::CONFIG_BYTES);
    let text = text.map_err(|error| fail(error.to_string()))?;
    let certificates: Vec<_> = parse_pem(text.as_bytes())
        .filter_map(|item| match item {
            Ok(PemItem::Certificate(certificate)) => Some(Ok(certificate)),
            Ok(_) => None,
            Err(error) => Some(Err(fail(format!("is no PEM: {error}")))),
        })
        .collect::<Result<_>>()?;
    match certificates.is_empty() {
        true => Err(fail("holds no certificate; expected PEM".to_owned())),
        false => Ok(RootCerts::from(certificates)),
    }
}

/// The innermost cause of a failure.
fn reason(error: &ureq::Error) -> String {
    let mut cause: &dyn std::error::Error = error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    cause.to_string()
}

/// The message of an error of the server, else the begin of the body.
fn message(body: &str) -> String {
    let value: Option<serde_json::Value> = serde_json::from_str(body).ok();
    let message = value.as_ref().and_then(|value| value["error"]["message"].as_str());
    let text = message.unwrap_or(body);
    text.chars().filter(|c| !c.is_control()).take(200).collect()
}
