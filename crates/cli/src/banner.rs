//! The words of `pelton serve` once it listens: the model, its limits, and a request to try.

use std::fmt::{self, Write as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;

use pelton_bench::bytes;
use pelton_llm::{Embedder, Llm, StateInfo};
use pelton_server::Served;

/// Placeholder for the key of a user.
const KEY: &str = "$PELTON_API_KEY";

/// Where a server listens.
#[derive(Debug)]
pub(crate) struct Places {
    /// Its address, if it has one.
    pub(crate) address: Option<SocketAddr>,
    /// Whether it speaks HTTPS there.
    pub(crate) is_tls: bool,
    /// Its Unix socket, if it has one.
    pub(crate) socket: Option<PathBuf>,
}

impl Places {
    fn scheme(&self) -> &'static str {
        if self.is_tls { "https" } else { "http" }
    }

    /// Arguments of curl that lead to the server, without a path.
    fn to_ask(&self) -> String {
        let Some(mut address) = self.address else {
            let socket = self.socket.as_deref().unwrap_or("".as_ref()).display();
            return format!("--unix-socket '{socket}' http://localhost");
        };
        // A server on every interface is asked at this machine's own address.
        match address.ip() {
            IpAddr::V4(ip) if ip.is_unspecified() => address.set_ip(Ipv4Addr::LOCALHOST.into()),
            IpAddr::V6(ip) if ip.is_unspecified() => address.set_ip(Ipv6Addr::LOCALHOST.into()),
            _ => {}
        }
        format!("{}://{address}", self.scheme())
    }
}

/// A line for each.
impl fmt::Display for Places {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(address) = self.address {
            writeln!(f, "listening on {}://{address}", self.scheme())?;
        }
        if let Some(socket) = &self.socket {
            writeln!(f, "listening on unix:{}", socket.display())?;
        }
        Ok(())
    }
}

/// Facts about the first model, the names of all others, and a request to try.
pub(crate) fn of(served: &[Served], names: &[String], places: &Places, needs_key: bool) -> String {
    let facts = match served.first() {
        Some(Served::Text(llm)) => text(llm, places, needs_key),
        Some(Served::Vectors(embedder)) => vectors(embedder, places, needs_key),
        None => {
            let body =
                format!(r#"{{"model": "{}", "prompt": "Once", "max_tokens": 64}}"#, names[0]);
            curl(places, "completions", &body, needs_key)
        }
    };
    if names.len() < 2 {
        return facts;
    }
    let is_loaded = |name: &String| served.iter().any(|served| served.name() == name);
    let name = |name: &String| match is_loaded(name) {
        true => name.clone(),
        false => format!("{name} (loaded when asked for)"),
    };
    let names: Vec<String> = names.iter().map(name).collect();
    format!("models   {}\n{facts}", names.join(", "))
}

/// Facts about a model that generates text, and a request for it.
fn text(llm: &Llm, places: &Places, needs_key: bool) -> String {
    let info = llm.info();
    let mut text = String::new();
    let _ = writeln!(
        text,
        "model    {} ({}), {}",
        info.name,
        info.architecture,
        weights(info.loaded_bytes, info.rounded_to)
    );
    let _ = writeln!(
        text,
        "context  {} tokens; {} for keys and values hold {} tokens of all requests, or \
         {} requests of that length",
        info.context_tokens,
        bytes(info.kv_bytes),
        info.kv_bytes / info.kv_bytes_per_token.max(1),
        info.n_long_requests
    );
    let StateInfo { n_bytes, n_running, n_kept, .. } = info.states;
    if n_bytes > 0 {
        let size = bytes(n_bytes);
        let _ = writeln!(
            text,
            "states   {size} for {n_running} running requests and {n_kept} states that are kept"
        );
    }
    let (path, body) = if llm.template().is_some() {
        let message = r#"{"role": "user", "content": "Tell me a story."}"#;
        ("chat/completions", format!(r#"{{"messages": [{message}]}}"#))
    } else {
        ("completions", r#"{"prompt": "Once upon a time", "max_tokens": 64}"#.to_owned())
    };
    text + &curl(places, path, &body, needs_key)
}

/// The size of the weights, and the format that they were rounded to.
fn weights(n_bytes: u64, rounded_to: Option<&str>) -> String {
    let rounded = rounded_to.map_or_else(String::new, |to| format!(", rounded to {to}"));
    format!("{} of weights{rounded}", bytes(n_bytes))
}

/// The same for a model that makes vectors, or finds labels.
fn vectors(embedder: &Embedder, places: &Places, needs_key: bool) -> String {
    let info = embedder.info();
    let (gives, route) = match info.labels.len() {
        0 => (format!("vectors  of {} numbers", info.n_dimensions), "embeddings"),
        1 => ("scores   of pairs of texts".to_owned(), "rerank"),
        n => (format!("labels   {n} of them"), "classify"),
    };
    let body = match route {
        "rerank" => r#"{"query": "Where is the cat?", "documents": ["A cat sat on the mat."]}"#,
        _ => r#"{"input": "A cat sat on the mat."}"#,
    };
    let facts = format!(
        "model    {} ({}), {}\n{gives}, from texts of up to {} tokens\n",
        info.name,
        info.architecture,
        weights(info.weight_bytes, info.rounded_to),
        info.max_tokens
    );
    facts + &curl(places, route, body, needs_key)
}

/// A command that asks the server.
fn curl(places: &Places, path: &str, body: &str, needs_key: bool) -> String {
    let at = places.to_ask();
    let key =
        if needs_key { format!(" -H \"Authorization: Bearer {KEY}\"") } else { String::new() };
    format!("try it   curl {at}/v1/{path}{key} -d '{body}'")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_asks_an_address_that_can_be_reached() {
        let places = |at: &str| {
            let address = Some(at.parse().expect("an address"));
            Places { address, is_tls: false, socket: None }
        };
        let ask = |at: &str, key| curl(&places(at), "embeddings", "{}", key);
        let open = "try it   curl http://127.0.0.1:80/v1/embeddings -d '{}'";
        assert_eq!(ask("0.0.0.0:80", false), open);
        assert_eq!(ask("127.0.0.1:80", false), open);
        assert!(ask("[::]:80", false).contains("http://[::1]:80/"));
        assert!(
            ask("192.0.2.1:80", true).contains("192.0.2.1:80/v1/embeddings -H \"Authorization")
        );
        let places = Places { is_tls: true, socket: Some("/run/s".into()), ..places("[::]:80") };
        assert_eq!(places.to_string(), "listening on https://[::]:80\nlistening on unix:/run/s\n");
        assert_eq!(places.to_ask(), "https://[::1]:80");
        let alone = Places { address: None, is_tls: false, ..places };
        assert_eq!(alone.to_string(), "listening on unix:/run/s\n");
        assert_eq!(alone.to_ask(), "--unix-socket '/run/s' http://localhost");
    }
}
