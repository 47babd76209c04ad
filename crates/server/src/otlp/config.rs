//! Where spans are sent, by a flag and by OpenTelemetry's variables.

use std::time::Duration;

/// Where and how spans are sent.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct OtlpConfig {
    /// The whole address, such as `http://127.0.0.1:4318/v1/traces`.
    pub(super) url: String,
    /// Further headers of each request.
    pub(super) headers: Vec<(String, String)>,
    /// Longest time for one request.
    pub(super) timeout: Duration,
    /// Attributes of this process.
    pub(super) resource: Vec<(String, String)>,
}

/// Settings that cannot be honoured.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum OtlpError {
    /// An address that is none.
    #[error("`{name}` is `{value}`; expected an address such as http://127.0.0.1:4318")]
    Address {
        /// The flag or variable.
        name: &'static str,
        /// Its value.
        value: String,
    },
    /// A protocol that is not spoken.
    #[error(
        "`{name}` is `{value}`; only `http/json` is spoken, which collectors take on port 4318"
    )]
    Protocol {
        /// The variable.
        name: &'static str,
        /// Its value.
        value: String,
    },
    /// A list of pairs that is none.
    #[error("`{name}` must be NAME=VALUE with commas between pairs")]
    Pairs {
        /// The variable.
        name: &'static str,
    },
    /// A time that is none.
    #[error("`{name}` is `{value}`; expected whole milliseconds above 0")]
    Timeout {
        /// The variable.
        name: &'static str,
        /// Its value.
        value: String,
    },
}

const ENDPOINT: &str = "OTEL_EXPORTER_OTLP_ENDPOINT";
const TRACES_ENDPOINT: &str = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT";

impl OtlpConfig {
    /// The settings of a flag and of variables, which `variable` looks up; the flag wins. `None`
    /// where no endpoint is named, and where `OTEL_SDK_DISABLED` is true.
    ///
    /// # Errors
    ///
    /// Names the variable that cannot be honoured.
    pub fn gather(
        endpoint: Option<&str>,
        variable: impl Fn(&str) -> Option<String>,
    ) -> Result<Option<Self>, OtlpError> {
        let get = |name: &str| variable(name).filter(|value| !value.trim().is_empty());
        let is_disabled = get("OTEL_SDK_DISABLED").is_some_and(|v| v.eq_ignore_ascii_case("true"));
        let url = match (endpoint, get(TRACES_ENDPOINT), get(ENDPOINT)) {
            _ if is_disabled => return Ok(None),
            (Some(base), ..) => under(base, "--otlp-endpoint")?,
            // The variable for traces is a whole address.
            (None, Some(url), _) => checked(url, TRACES_ENDPOINT)?,
            (None, None, Some(base)) => under(&base, ENDPOINT)?,
            (None, None, None) => return Ok(None),
        };
        for name in ["OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"] {
            match get(name) {
                Some(value) if value != "http/json" => {
                    return Err(OtlpError::Protocol { name, value });
                }
                _ => {}
            }
        }
        let mut headers = Vec::new();
        for name in ["OTEL_EXPORTER_OTLP_HEADERS", "OTEL_EXPORTER_OTLP_TRACES_HEADERS"] {
            headers.extend(pairs(name, get(name))?);
        }
        let timeouts = ["OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "OTEL_EXPORTER_OTLP_TIMEOUT"];
        let timeout = match timeouts.into_iter().find_map(|name| Some((name, get(name)?))) {
            None => Duration::from_secs(10),
            Some((name, value)) => match value.trim().parse() {
                Ok(ms) if ms > 0 => Duration::from_millis(ms),
                _ => return Err(OtlpError::Timeout { name, value }),
            },
        };
        let mut resource = pairs("OTEL_RESOURCE_ATTRIBUTES", get("OTEL_RESOURCE_ATTRIBUTES"))?;
        if let Some(name) = get("OTEL_SERVICE_NAME") {
            resource.retain(|(key, _)| key != "service.name");
            resource.push(("service.name".to_owned(), name));
        } else if !resource.iter().any(|(key, _)| key == "service.name") {
            resource.push(("service.name".to_owned(), "pelton".to_owned()));
        }
        resource.push(("service.version".to_owned(), env!("CARGO_PKG_VERSION").to_owned()));
        Ok(Some(Self { url, headers, timeout, resource }))
    }
}

/// The address for traces below a base address.
fn under(base: &str, name: &'static str) -> Result<String, OtlpError> {
    let base = checked(base.to_owned(), name)?;
    Ok(format!("{}/v1/traces", base.trim_end_matches('/')))
}

fn checked(url: String, name: &'static str) -> Result<String, OtlpError> {
    let url = url.trim().to_owned();
    let host = url.strip_prefix("http://").or_else(|| url.strip_prefix("https://"));
    match host.is_some_and(|host| !host.is_empty() && !host.contains(char::is_whitespace)) {
        true => Ok(url),
        false => Err(OtlpError::Address { name, value: url }),
    }
}

/// Reads `a=1,b=2`; values may be percent-encoded.
fn pairs(name: &'static str, text: Option<String>) -> Result<Vec<(String, String)>, OtlpError> {
    let pair = |pair: &str| {
        let (key, value) = pair.split_once('=').ok_or(OtlpError::Pairs { name })?;
        let key = key.trim();
        if key.is_empty() {
            Err(OtlpError::Pairs { name })
        } else {
            Ok((key.to_owned(), decoded(value.trim())))
        }
    };
    let text = text.unwrap_or_default();
    text.split(',').filter(|part| !part.trim().is_empty()).map(pair).collect()
}

/// Text without percent-encoding; what is no encoding stays.
fn decoded(text: &str) -> String {
    let bytes = text.as_bytes();
    let (mut out, mut i) = (Vec::with_capacity(bytes.len()), 0);
    while i < bytes.len() {
        let code = bytes.get(i + 1..i + 3).and_then(|code| std::str::from_utf8(code).ok());
        match code.and_then(|code| u8::from_str_radix(code, 16).ok()) {
            Some(byte) if bytes[i] == b'%' => {
                out.push(byte);
                i += 3;
            }
            _ => {
                out.push(bytes[i]);
                i += 1;
            }
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gather(
        endpoint: Option<&str>,
        variables: &[(&str, &str)],
    ) -> Result<Option<OtlpConfig>, OtlpError> {
        let find = |name: &str| {
            let found = variables.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| (*value).to_owned())
        };
        OtlpConfig::gather(endpoint, find)
    }

    #[test]
    fn the_flag_wins_over_the_variables_and_without_an_endpoint_nothing_is_sent() {
        assert_eq!(gather(None, &[("OTEL_SERVICE_NAME", "x")]), Ok(None));
        let url = |endpoint, variables: &[_]| {
            gather(endpoint, variables).map(|config| config.map(|config| config.url))
        };
        let both = [(ENDPOINT, "http://a:4318/"), (TRACES_ENDPOINT, "https://b/in")];
        for (endpoint, variables, expected) in [
            (Some("http://c"), &both[..], "http://c/v1/traces"),
            (None, &both[..], "https://b/in"),
            (None, &both[..1], "http://a:4318/v1/traces"),
        ] {
            assert_eq!(url(endpoint, variables), Ok(Some(expected.to_owned())));
        }
        assert_eq!(url(Some("http://c"), &[("OTEL_SDK_DISABLED", "True")]), Ok(None));
    }

    #[test]
    fn headers_times_and_the_resource_come_from_variables() {
        let config = gather(
            Some("http://c"),
            &[
                ("OTEL_EXPORTER_OTLP_HEADERS", "api-key=a%20b, x=1=2"),
                ("OTEL_EXPORTER_OTLP_TIMEOUT", "250"),
                ("OTEL_RESOURCE_ATTRIBUTES", "zone=eu,service.name=old"),
                ("OTEL_SERVICE_NAME", "new"),
                ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/json"),
            ],
        );
        let config = config.expect("honoured").expect("an endpoint");
        let pair = |key: &str, value: &str| (key.to_owned(), value.to_owned());
        assert_eq!(config.headers, [pair("api-key", "a b"), pair("x", "1=2")]);
        assert_eq!(config.timeout, Duration::from_millis(250));
        assert_eq!(config.resource[..2], [pair("zone", "eu"), pair("service.name", "new")]);
    }

    #[test]
    fn what_cannot_be_honoured_is_named() {
        for (endpoint, variables, part) in [
            (Some("collector:4317"), &[][..], "--otlp-endpoint"),
            (Some("http://"), &[], "--otlp-endpoint"),
            (Some("http://c"), &[("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")], "only `http/json`"),
            (Some("http://c"), &[("OTEL_EXPORTER_OTLP_HEADERS", "novalue")], "NAME=VALUE"),
            (Some("http://c"), &[("OTEL_EXPORTER_OTLP_TIMEOUT", "0")], "above 0"),
        ] {
            let error = gather(endpoint, variables).expect_err(part).to_string();
            assert!(error.contains(part), "{error}");
        }
    }
}
