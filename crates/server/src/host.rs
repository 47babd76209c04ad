//! Checks of each request before it reaches a route: the host that it names, and the form
//! of its body.
//!
//! ```text
//!   Host missing in HTTP/1.1, doubled or malformed     400 (RFC 9112, section 3.2)
//!   Host that is none of the server's names            403
//!   Transfer-Encoding other than `chunked`             501 (RFC 9112, section 6.1)
//! ```
//!
//! **Why names matter.** A page from anywhere may let its own name resolve to 127.0.0.1 (DNS
//! rebinding). Its scripts then reach, from inside a browser on this machine, a server that only
//! this machine can reach, and read the answers. The browser sends the page's name as `Host`, so a
//! server that is reachable from this machine only, and asks for no key, answers to its own names
//! alone.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::str::FromStr;

use axum::extract::{Request, State};
use axum::http::{Version, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use crate::ServeConfig;
use crate::error::ApiError;
use crate::state::AppState;

/// Name of the flag's value that allows every host.
const ANY: &str = "*";

/// A host without a port: a name in lower case, an IPv4 address, or an IPv6 address in brackets.
///
/// `*` among the allowed hosts allows every host. Without allowed hosts, a server with API keys or
/// on an address that is not a loopback address answers to every host, and any other server to
/// `localhost`, `127.0.0.1`, `[::1]`, and the address on which it listens.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct HostName(String);

impl FromStr for HostName {
    type Err = &'static str;

    /// Reads `localhost`, `127.0.0.1` or `[::1]`.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let error = "expected a host without a port, such as pelton.example or [::1]";
        match split(text) {
            Some((host, None)) => Ok(host),
            _ => Err(error),
        }
    }
}

impl fmt::Display for HostName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl From<IpAddr> for HostName {
    fn from(address: IpAddr) -> Self {
        match address {
            IpAddr::V4(address) => Self(address.to_string()),
            IpAddr::V6(address) => Self(format!("[{address}]")),
        }
    }
}

/// Host and port of a `Host` header: `uri-host [ ":" port ]` of RFC 9110, section 7.2.
fn split(text: &str) -> Option<(HostName, Option<&str>)> {
    if let Some(rest) = text.strip_prefix('[') {
        let (address, rest) = rest.split_once(']')?;
        let address: Ipv6Addr = address.parse().ok()?;
        let port = if rest.is_empty() { None } else { Some(port(rest.strip_prefix(':')?)?) };
        return Some((IpAddr::V6(address).into(), port));
    }
    let (name, port) = match text.split_once(':') {
        None => (text, None),
        Some((name, digits)) => (name, Some(port(digits)?)),
    };
    // The dot at the end says that the name is complete, which it is without the dot as well.
    let name = name.strip_suffix('.').unwrap_or(name);
    let is_name = !name.is_empty() && name.bytes().all(is_of_name);
    is_name.then(|| (HostName(name.to_ascii_lowercase()), port))
}

/// A port, which may be empty.
fn port(digits: &str) -> Option<&str> {
    let is_port = digits.bytes().all(|b| b.is_ascii_digit())
        && (digits.is_empty() || digits.parse::<u16>().is_ok());
    is_port.then_some(digits)
}

/// `unreserved`, `sub-delims` and the parts of `pct-encoded` of RFC 3986.
fn is_of_name(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-._~!$&'()*+,;=%".contains(&byte)
}

/// Attached to a request that came through the Unix socket.
///
/// No web page reaches that, so these requests may name any host, unless hosts are chosen.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ByUnixSocket;

/// The hosts to which a server answers.
#[derive(Debug)]
pub(crate) struct AllowedHosts {
    /// `None` for every host.
    names: Option<Vec<HostName>>,
    /// Whether they hold for requests through the Unix socket, too.
    are_chosen: bool,
}

impl AllowedHosts {
    /// The hosts of a server that listens on `address`, or on a Unix socket alone.
    pub(crate) fn new(config: &ServeConfig, address: Option<SocketAddr>) -> Self {
        let named = &config.allowed_hosts;
        let are_chosen = !named.is_empty();
        let Some(address) = address.filter(|_| !are_chosen) else {
            let names = named.iter().all(|name| name.0 != ANY).then(|| named.clone());
            return Self { names: names.filter(|_| are_chosen), are_chosen };
        };
        let names = if config.access.has_keys() || !address.ip().is_loopback() {
            None
        } else {
            let own = ["localhost", "127.0.0.1", "[::1]"].into_iter().chain(config.host.as_deref());
            let own = own.filter_map(|name| name.parse().ok());
            Some(own.chain([HostName::from(address.ip())]).collect())
        };
        Self { names, are_chosen }
    }

    /// Checks the `Host` of a request.
    fn check(&self, request: &Request) -> Result<(), ApiError> {
        let mut fields = request.headers().get_all(header::HOST).iter();
        let named = match (fields.next(), fields.next()) {
            (_, Some(_)) => return Err(ApiError::bad_host("the request has several Host headers")),
            (None, None) if request.version() < Version::HTTP_11 => None,
            (None, None) => {
                let message = "a request of HTTP/1.1 needs a Host header";
                return Err(ApiError::bad_host(message));
            }
            (Some(value), None) => {
                let split = value.to_str().ok().and_then(split);
                let (host, _) =
                    split.ok_or_else(|| ApiError::bad_host("the Host header is malformed"))?;
                Some(host)
            }
        };
        // A whole address in the first line of the request wins over the header.
        let named = match request.uri().host() {
            None => named,
            Some(host) => {
                let host = host.parse();
                Some(host.map_err(|_| ApiError::bad_host("the host of the request is malformed"))?)
            }
        };
        let is_exempt = !self.are_chosen && request.extensions().get::<ByUnixSocket>().is_some();
        match (self.names.as_ref().filter(|_| !is_exempt), named) {
            (Some(names), Some(host)) if !names.contains(&host) => {
                Err(ApiError::host_not_allowed(&host.0))
            }
            _ => Ok(()),
        }
    }
}

/// Checks the form of the body.
fn check_coding(request: &Request) -> Result<(), ApiError> {
    let mut codings = request.headers().get_all(header::TRANSFER_ENCODING).iter();
    match (codings.next(), codings.next()) {
        (None, _) => Ok(()),
        (Some(coding), None) if coding.as_bytes().eq_ignore_ascii_case(b"chunked") => Ok(()),
        _ => Err(ApiError::transfer_coding()),
    }
}

/// Lets requests through that are well formed and name a host of this server.
pub(crate) async fn layer(State(app): State<AppState>, request: Request, next: Next) -> Response {
    match check_coding(&request).and_then(|()| app.hosts().check(&request)) {
        Ok(()) => next.run(request).await,
        Err(error) => error.into_response(),
    }
}

#[cfg(test)]
mod tests {
    use axum::body::Body;

    use super::*;
    use crate::{Access, ApiKey, Tenant};

    fn status(hosts: &AllowedHosts, request: &Request) -> u16 {
        hosts.check(request).map_or_else(|error| error.status.as_u16(), |()| 200)
    }

    fn request(target: &str, hosts: &[&str]) -> Request {
        let mut request = Request::builder().uri(target);
        for host in hosts {
            request = request.header(header::HOST, *host);
        }
        request.body(Body::empty()).expect("a request")
    }

    /// The status for each host, of a server that listens on `address`.
    fn statuses(config: &ServeConfig, address: &str, hosts: &[&str]) -> Vec<u16> {
        let address = address.parse().expect("an address");
        let allowed = AllowedHosts::new(config, Some(address));
        hosts.iter().map(|host| status(&allowed, &request("/", &[host]))).collect()
    }

    const OWN: [&str; 6] =
        ["localhost", "LocalHost:8000", "127.0.0.1:8000", "[::1]", "[0:0::1]:1", "localhost.:"];

    #[test]
    fn a_loopback_server_without_keys_answers_to_its_own_names_alone() {
        let config = ServeConfig { host: Some("my-host".to_owned()), ..ServeConfig::default() };
        assert_eq!(statuses(&config, "127.0.0.2:8000", &OWN), [200; 6]);
        assert_eq!(statuses(&config, "127.0.0.2:8000", &["127.0.0.2:8000", "my-host"]), [200; 2]);
        let foreign = ["evil.example", "localhost.evil.example", "127.0.0.3", "[::2]", "*"];
        assert_eq!(statuses(&config, "127.0.0.2:8000", &foreign), [403; 5]);
        assert_eq!(statuses(&config, "[::1]:8000", &foreign), [403; 5]);
    }

    #[test]
    fn keys_other_addresses_and_the_flag_decide_which_hosts_are_allowed() {
        let any = ["evil.example", "localhost"];
        let config = ServeConfig::default();
        assert_eq!(statuses(&config, "192.0.2.1:80", &any), [200; 2]);
        let keys = vec![ApiKey::new("k").expect("a key")];
        let tenant = Tenant { name: "default".to_owned(), priority: 0, keys };
        let access = Access::new(vec![tenant]).expect("one tenant");
        let config = ServeConfig { access, ..ServeConfig::default() };
        assert_eq!(statuses(&config, "127.0.0.1:80", &any), [200; 2]);
        let allowed_hosts = vec!["A.example".parse().expect("a host")];
        let config = ServeConfig { allowed_hosts, ..config };
        assert_eq!(statuses(&config, "127.0.0.1:80", &any), [403; 2]);
        assert_eq!(statuses(&config, "192.0.2.1:80", &["a.EXAMPLE:80", "192.0.2.1"]), [200, 403]);
        let allowed_hosts = vec!["*".parse().expect("a host")];
        let config = ServeConfig { allowed_hosts, ..ServeConfig::default() };
        assert_eq!(statuses(&config, "127.0.0.1:80", &any), [200; 2]);
    }

    #[test]
    fn a_missing_doubled_or_malformed_host_is_400_everywhere() {
        let allowed = AllowedHosts { names: None, are_chosen: false };
        let asked = |target: &str, hosts: &[&str]| status(&allowed, &request(target, hosts));
        assert_eq!((asked("/", &[]), asked("/", &["a", "a"])), (400, 400));
        for bad in
            ["", " ", "a b", "a:b", "a:1:2", ":80", "a:65536", "a/b", "u@a", ".", "[::1", "[a]"]
        {
            assert_eq!(asked("/", &[bad]), 400, "{bad:?}");
        }
        for bad in ["[::1]a", "[::1]:x", "a#b", "a?b", "a\\b", "::1", "[fe80::1%eth0]", "\u{e9}"] {
            assert_eq!(asked("/", &[bad]), 400, "{bad:?}");
        }
        let mut old = request("/", &[]);
        *old.version_mut() = Version::HTTP_10;
        assert_eq!(status(&allowed, &old), 200);
        assert_eq!(asked("http://a.example/", &[]), 400, "the header is needed all the same");
    }

    #[test]
    fn a_whole_address_in_the_first_line_wins_over_the_header() {
        let allowed = AllowedHosts {
            names: Some(vec!["a.example".parse().expect("a host")]),
            are_chosen: true,
        };
        let asked = |target: &str, host: &str| status(&allowed, &request(target, &[host]));
        assert_eq!(asked("http://a.example:80/", "evil.example"), 200);
        assert_eq!(asked("http://evil.example/", "a.example"), 403);
    }

    #[test]
    fn a_unix_socket_answers_to_every_host_unless_hosts_are_chosen() {
        let asked = |allowed: &AllowedHosts, host: &str, is_unix: bool| {
            let mut request = request("/", &[host]);
            if is_unix {
                request.extensions_mut().insert(ByUnixSocket);
            }
            status(allowed, &request)
        };
        let config = ServeConfig::default();
        let beside_tcp = AllowedHosts::new(&config, "127.0.0.1:80".parse().ok());
        let alone = AllowedHosts::new(&config, None);
        let evil = "evil.example";
        assert_eq!(asked(&beside_tcp, evil, false), 403);
        assert_eq!((asked(&beside_tcp, evil, true), asked(&alone, evil, true)), (200, 200));
        assert_eq!(asked(&beside_tcp, "a b", true), 400, "a malformed host is one everywhere");
        let allowed_hosts = vec!["a.example".parse().expect("a host")];
        let config = ServeConfig { allowed_hosts, ..config };
        for address in ["127.0.0.1:80".parse().ok(), None] {
            let chosen = AllowedHosts::new(&config, address);
            assert_eq!(asked(&chosen, evil, true), 403);
            assert_eq!(asked(&chosen, "a.example", true), 200);
        }
    }

    #[test]
    fn only_chunked_bodies_are_read() {
        for (codings, is_read) in [
            (&[][..], true),
            (&["chunked"], true),
            (&["Chunked"], true),
            (&["gzip, chunked"], false),
            (&["chunked", "chunked"], false),
            (&["chunked, chunked"], false),
        ] {
            let mut request = Request::builder();
            for coding in codings {
                request = request.header(header::TRANSFER_ENCODING, *coding);
            }
            let request = request.body(Body::empty()).expect("a request");
            assert_eq!(check_coding(&request).is_ok(), is_read, "{codings:?}");
        }
    }
}
