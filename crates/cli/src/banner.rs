//! The words of `pelton serve` once it listens: the model, its limits, and a request to try.

use std::fmt::Write as _;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use pelton_bench::bytes;
use pelton_llm::{Embedder, Llm};

/// Placeholder for the key of a user.
const KEY: &str = "$PELTON_API_KEY";

/// Facts about a model that generates text, and a request for it.
pub(crate) fn text(llm: &Llm, address: SocketAddr, needs_key: bool) -> String {
    let info = llm.info();
    let mut text = String::new();
    let _ = writeln!(
        text,
        "model    {} ({}), {} of weights",
        info.name,
        info.architecture,
        bytes(info.weight_bytes)
    );
    let _ = writeln!(
        text,
        "context  {} tokens; {} for keys and values hold {} tokens of all requests",
        info.context_tokens,
        bytes(info.kv_bytes),
        info.kv_bytes / info.kv_bytes_per_token.max(1)
    );
    let (path, body) = if llm.template().is_some() {
        let message = r#"{"role": "user", "content": "Tell me a story."}"#;
        ("chat/completions", format!(r#"{{"messages": [{message}]}}"#))
    } else {
        ("completions", r#"{"prompt": "Once upon a time", "max_tokens": 64}"#.to_owned())
    };
    text + &curl(address, path, &body, needs_key)
}

/// The same for a model that makes vectors.
pub(crate) fn vectors(embedder: &Embedder, address: SocketAddr, needs_key: bool) -> String {
    let info = embedder.info();
    let facts = format!(
        "model    {} ({}), {} of weights\nvectors  of {} numbers, from texts of up to {} tokens\n",
        info.name,
        info.architecture,
        bytes(info.weight_bytes),
        info.n_dimensions,
        info.max_tokens
    );
    facts + &curl(address, "embeddings", r#"{"input": "A cat sat on the mat."}"#, needs_key)
}

/// A command that asks the server.
fn curl(address: SocketAddr, path: &str, body: &str, needs_key: bool) -> String {
    let mut address = address;
    // A server on every interface is asked at this machine's own address.
    match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => address.set_ip(Ipv4Addr::LOCALHOST.into()),
        IpAddr::V6(ip) if ip.is_unspecified() => address.set_ip(Ipv6Addr::LOCALHOST.into()),
        _ => {}
    }
    let key =
        if needs_key { format!(" -H \"Authorization: Bearer {KEY}\"") } else { String::new() };
    format!("try it   curl http://{address}/v1/{path}{key} -d '{body}'")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_asks_an_address_that_can_be_reached() {
        let ask = |at: &str, key| curl(at.parse().expect("an address"), "embeddings", "{}", key);
        let open = "try it   curl http://127.0.0.1:80/v1/embeddings -d '{}'";
        assert_eq!(ask("0.0.0.0:80", false), open);
        assert_eq!(ask("127.0.0.1:80", false), open);
        assert!(ask("[::]:80", false).contains("http://[::1]:80/"));
        assert!(
            ask("192.0.2.1:80", true).contains("192.0.2.1:80/v1/embeddings -H \"Authorization")
        );
    }
}
