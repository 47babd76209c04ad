//! Where a server is.

use std::net::IpAddr;

use hyper::Uri;
use tokio_rustls::rustls::pki_types::ServerName;

use crate::{BenchError, Result};

/// The address of a server: host, port, and the path before `/v1`.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Address {
    host: String,
    port: u16,
    prefix: String,
    is_https: bool,
}

impl Address {
    /// Reads an address: with or without its scheme, and with `/v1` as other clients have it.
    ///
    /// # Errors
    ///
    /// Text that names no host, and every scheme but `http` and `https`.
    pub fn parse(url: &str) -> Result<Self> {
        const EXAMPLE: &str = "an address looks like http://127.0.0.1:8000";
        let wrong = |why: &str| {
            BenchError::invalid_with_hint(format!("--url: `{url}` {why}"), EXAMPLE.to_owned())
        };
        let trimmed = url.trim();
        let full = match trimmed.contains("://") {
            true => trimmed.to_owned(),
            false => format!("http://{trimmed}"),
        };
        let uri: Uri = full.parse().map_err(|_| wrong("is no address"))?;
        let is_https = match uri.scheme_str() {
            Some("http") => false,
            Some("https") => true,
            _ => return Err(wrong("has another scheme than http and https")),
        };
        let host = uri.host().filter(|host| !host.is_empty());
        let host = host.ok_or_else(|| wrong("names no host"))?.to_owned();
        // A port that is no port is skipped by the parser.
        let authority = uri.authority().map_or("", |authority| authority.as_str());
        if uri.port_u16().is_none() && authority.len() > host.len() {
            return Err(wrong("has no number from 0 to 65535 as its port, or a user"));
        }
        if uri.query().is_some() {
            return Err(wrong("has a query"));
        }
        let path = uri.path().trim_end_matches('/');
        let prefix = path.strip_suffix("/v1").unwrap_or(path).trim_end_matches('/');
        let port = uri.port_u16().unwrap_or(if is_https { 443 } else { 80 });
        Ok(Self { host, port, prefix: prefix.to_owned(), is_https })
    }

    /// Whether the server is on this machine, as far as the address says.
    pub fn is_here(&self) -> bool {
        let (host, _) = self.socket();
        let is_loopback = |address: IpAddr| address.is_loopback();
        host.eq_ignore_ascii_case("localhost") || host.parse().is_ok_and(is_loopback)
    }

    /// The host and port that a socket connects to.
    pub(super) fn socket(&self) -> (&str, u16) {
        (self.host.trim_start_matches('[').trim_end_matches(']'), self.port)
    }

    /// The name that the certificate of the server must have; `None` without HTTPS.
    ///
    /// # Errors
    ///
    /// A host that no certificate can name.
    pub(super) fn certified_name(&self) -> Result<Option<ServerName<'static>>> {
        if !self.is_https {
            return Ok(None);
        }
        let (host, _) = self.socket();
        let name = ServerName::try_from(host.to_owned());
        let name = name.map_err(|_| {
            BenchError::invalid(format!("--url: no certificate can be for the host `{host}`"))
        });
        name.map(Some)
    }

    /// The value of the header `Host`.
    pub(super) fn authority(&self) -> String {
        format!("{}:{}", self.host, self.port)
    }

    /// The path of a route, such as `/v1/models`.
    pub(super) fn path(&self, route: &str) -> String {
        format!("{}{route}", self.prefix)
    }
}

impl std::fmt::Display for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let scheme = if self.is_https { "https" } else { "http" };
        write!(f, "{scheme}://{}:{}{}", self.host, self.port, self.prefix)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_read_in_the_ways_that_people_write_it() {
        for (text, expected) in [
            ("127.0.0.1:8000", "http://127.0.0.1:8000"),
            ("http://localhost", "http://localhost:80"),
            (" http://host:1/v1/ ", "http://host:1"),
            ("http://host:1/proxy/v1", "http://host:1/proxy"),
            ("http://[::1]:9/", "http://[::1]:9"),
            ("https://host/v1", "https://host:443"),
        ] {
            let address = Address::parse(text).unwrap_or_else(|error| panic!("{text}: {error}"));
            assert_eq!(address.to_string(), expected);
        }
        let address = Address::parse("http://[::1]:9/a").expect("an address");
        assert_eq!(address.socket(), ("::1", 9));
        assert_eq!(address.path("/v1/models"), "/a/v1/models");
    }

    #[test]
    fn an_address_that_cannot_be_asked_is_refused_by_its_reason() {
        for (text, reason) in [
            ("", "is no address"),
            ("http://", "is no address"),
            ("ftp://host", "another scheme"),
            ("ftp://host", "scheme"),
            ("http://host?x=1", "query"),
            ("http://host:99999", "port"),
            ("http://me@host", "user"),
        ] {
            let error = Address::parse(text).expect_err(text).to_string();
            assert!(error.contains(reason), "{text}: {error}");
        }
    }

    #[test]
    fn only_the_names_of_this_machine_are_here() {
        for (url, is_here) in [
            ("localhost:8000", true),
            ("http://127.0.0.1:8000/v1", true),
            ("http://127.1.2.3", true),
            ("http://[::1]:9", true),
            ("http://10.0.0.7:8000", false),
            ("https://localhost.example.com", false),
        ] {
            assert_eq!(Address::parse(url).expect(url).is_here(), is_here, "{url}");
        }
    }
}
