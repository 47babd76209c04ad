//! HTTPS and Unix sockets, over the wire.

use std::sync::Arc;
use std::time::Duration;

use crate::certificates::{self, House};
use crate::harness::parrot::{Gate, gated_parrot, parrot};
use crate::harness::{Running, post_text, series, start_with};
use pelton_server::{ServeConfig, TlsConfig};
use serde_json::json;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

/// A house with a pair that is valid for some months.
fn house() -> House {
    let house = House::new();
    house.install_for(90);
    house
}

fn config(house: &House) -> ServeConfig {
    let tls = TlsConfig { certificate: Some(house.cert()), key: Some(house.key()) };
    ServeConfig { tls, ..ServeConfig::default() }
}

/// A connection of a client that trusts the house.
async fn connect(house: &House, server: &Running) -> TlsStream<TcpStream> {
    let mut roots = RootCertStore::empty();
    let authority = CertificateDer::from_pem_file(house.authority()).expect("a certificate");
    roots.add(authority).expect("an authority");
    let mut config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("both versions")
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    let name = ServerName::try_from("localhost").expect("a name");
    let stream = TcpStream::connect(server.address).await.expect("connected");
    let connector = TlsConnector::from(Arc::new(config));
    connector.connect(name, stream).await.expect("a handshake")
}

/// Sends a request and reads until the server says that nothing more comes.
async fn ask(stream: &mut (impl AsyncRead + AsyncWrite + Unpin), request: &str) -> String {
    stream.write_all(request.as_bytes()).await.expect("sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.expect("an answer with its end");
    answer
}

fn get(path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
}

/// Asks over HTTPS on a connection of its own.
async fn get_tls(house: &House, server: &Running, path: &str) -> String {
    ask(&mut connect(house, server).await, &get(path)).await
}

/// The number of running requests, as `/health` has it.
async fn n_running(house: &House, server: &Running) -> u64 {
    let answer = get_tls(house, server, "/health").await;
    let (_, body) = answer.split_once("\r\n\r\n").expect("a head");
    let health: serde_json::Value = serde_json::from_str(body).expect("JSON");
    health["running"].as_u64().expect("a number")
}

fn completion(max_tokens: usize, is_stream: bool) -> String {
    let body = json!({"prompt": "abc", "max_tokens": max_tokens, "stream": is_stream});
    post_text("/v1/completions", &body.to_string())
}

/// The certificate that the server showed.
fn shown(stream: &TlsStream<TcpStream>) -> Vec<u8> {
    let (_, session) = stream.get_ref();
    session.peer_certificates().expect("the server has one")[0].to_vec()
}

#[tokio::test]
async fn whole_answers_and_streams_come_over_https() {
    let house = house();
    let server = start_with(parrot(), config(&house)).await;
    let mut stream = connect(&house, &server).await;
    assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"http/1.1"[..]));
    let answer = ask(&mut stream, &completion(6, false)).await;
    assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("\"abcabc\""), "{answer}");
    let answer = ask(&mut connect(&house, &server).await, &completion(6, true)).await;
    assert!(answer.contains("data: [DONE]"), "{answer}");
    // A body of many records, in both directions.
    let prompt = "x".repeat(400);
    let body =
        json!({"prompt": vec![prompt.as_str(); 64], "max_tokens": 1, "echo": true}).to_string();
    let request = post_text("/v1/completions", &body);
    let answer = ask(&mut connect(&house, &server).await, &request).await;
    assert_eq!(answer.matches(&prompt).count(), 64, "{answer}");
    server.stop().await;
}

#[tokio::test]
async fn one_connection_answers_several_requests_over_https() {
    let house = house();
    let server = start_with(parrot(), config(&house)).await;
    let mut stream = connect(&house, &server).await;
    for _ in 0..3 {
        stream.write_all(b"GET /ready HTTP/1.1\r\nhost: localhost\r\n\r\n").await.expect("sent");
        let mut answer = Vec::new();
        while !answer.ends_with(b"}") {
            answer.push(stream.read_u8().await.expect("an answer"));
        }
    }
    assert!(ask(&mut stream, &get("/ready")).await.starts_with("HTTP/1.1 200"));
    server.stop().await;
}

#[tokio::test]
async fn a_request_in_the_clear_is_told_to_use_https() {
    let house = house();
    let server = start_with(parrot(), config(&house)).await;
    for request in [get("/health"), completion(5, false), "OPTIONS * HTTP/1.0\r\n\r\n".to_owned()] {
        let answer = server.raw(&request).await;
        assert_eq!(answer.error(), (400, None, Some("https_required".to_owned())), "{request}");
        assert!(answer.head.contains("connection: close"), "{}", answer.head);
    }
    // A connection with neither gets no answer in the clear.
    let mut client = server.connect("\x16\x03\x01\0\x05hello").await;
    let mut rest = Vec::new();
    let _ = client.read_to_end(&mut rest).await;
    assert!(!rest.starts_with(b"HTTP"), "{rest:?}");
    server.stop().await;
}

#[tokio::test]
async fn a_handshake_has_the_time_of_a_head() {
    let house = house();
    let head_timeout = Duration::from_millis(1);
    let server = start_with(parrot(), ServeConfig { head_timeout, ..config(&house) }).await;
    for begun in ["", "\x16", "\x16\x03\x01\x02\x00\x01"] {
        let mut client = server.connect(begun).await;
        let mut rest = Vec::new();
        // Closed or reset, but not kept.
        let _ = client.read_to_end(&mut rest).await;
        assert!(rest.is_empty(), "{begun:?}: {rest:?}");
    }
    server.stop().await;
}

#[tokio::test]
async fn slow_handshakes_keep_nobody_out() {
    let house = house();
    let limits = ServeConfig { max_connections: 2, reserved_connections: 0, ..config(&house) };
    let head_timeout = Duration::from_secs(3600);
    let server = start_with(parrot(), ServeConfig { head_timeout, ..limits }).await;
    let mut silent = Vec::new();
    for begun in ["", "\x16", "\x16\x03\x01", "\x16\x03\x01\x02", ""] {
        silent.push(server.connect(begun).await);
    }
    let answer = get_tls(&house, &server, "/ready").await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    drop(silent);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_goes_away_over_https_frees_its_request() {
    for (is_stream, is_polite) in [(true, true), (true, false), (false, true), (false, false)] {
        let house = house();
        let gate = Gate::closed(1);
        let llm = gated_parrot(&gate, 8);
        let server = start_with(llm.clone(), config(&house)).await;
        let mut client = connect(&house, &server).await;
        client.write_all(completion(500, is_stream).as_bytes()).await.expect("sent");
        if is_stream {
            client.read_u8().await.expect("the answer begins");
        }
        while n_running(&house, &server).await != 1 {}
        if is_polite {
            client.shutdown().await.expect("it says that it goes");
        }
        drop(client);
        while n_running(&house, &server).await != 0 {
            gate.step();
        }
        let n_tokens = llm.metrics().generated_tokens;
        assert!(n_tokens < 250, "stream {is_stream}, polite {is_polite}: {n_tokens} tokens");
        gate.open();
        server.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_will_send_no_more_over_https_gets_its_answer() {
    for is_stream in [true, false] {
        let house = house();
        let gate = Gate::closed(1);
        let server = start_with(gated_parrot(&gate, 8), config(&house)).await;
        let mut client = connect(&house, &server).await;
        client.write_all(completion(6, is_stream).as_bytes()).await.expect("sent");
        // Its half of TLS, and not of the socket below.
        let (_, session) = client.get_mut();
        session.send_close_notify();
        client.flush().await.expect("its half is closed");
        while n_running(&house, &server).await != 1 {}
        if !is_stream {
            let mut asked = [0; 25];
            client.read_exact(&mut asked).await.expect("an interim answer");
            assert_eq!(&asked, b"HTTP/1.1 100 Continue\r\n\r\n");
        }
        gate.open();
        let mut answer = String::new();
        client.read_to_string(&mut answer).await.expect("the answer");
        let last = if is_stream { "[DONE]" } else { "\"text\":\"abcabc\"" };
        assert!(answer.contains(last), "{answer}");
        server.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_goes_on_while_new_connections_get_the_new_certificate() {
    let house = house();
    let gate = Gate::closed(1);
    let server = start_with(gated_parrot(&gate, 8), config(&house)).await;
    let mut client = connect(&house, &server).await;
    client.write_all(completion(9, true).as_bytes()).await.expect("sent");
    client.read_u8().await.expect("the answer begins");
    let old = shown(&client);
    assert_eq!(shown(&connect(&house, &server).await), old);

    let until = house.install_for(180);
    server.signals.hang_up();
    let renewed = loop {
        let other = connect(&house, &server).await;
        if shown(&other) != old {
            break shown(&other);
        }
    };
    let expiry = "pelton_tls_certificate_expiry_seconds";
    let metrics = get_tls(&house, &server, "/metrics").await;
    assert_eq!(series(&metrics, expiry), Some(until as f64));

    // A pair that cannot be used changes nothing; the next one that can is taken.
    certificates::put(&house.key(), "no key");
    server.signals.hang_up();
    assert_eq!(shown(&connect(&house, &server).await), renewed);
    house.install_for(270);
    server.signals.hang_up();
    while shown(&connect(&house, &server).await) == renewed {
        server.signals.hang_up();
    }

    gate.open();
    let mut answer = String::new();
    client.read_to_string(&mut answer).await.expect("the stream goes on");
    assert!(answer.contains("[DONE]"), "{answer}");
    server.stop().await;
}

#[tokio::test]
async fn a_server_without_a_certificate_has_no_series_of_one() {
    let server = start_with(parrot(), ServeConfig::default()).await;
    assert!(!server.get("/metrics").await.body.contains("pelton_tls"));
    server.stop().await;
}

#[cfg(unix)]
mod unix_sockets {
    use pelton_server::{Server, Signals};
    use tokio::net::UnixStream;

    use super::*;

    #[tokio::test]
    async fn a_unix_socket_answers_alone_and_its_file_goes_at_the_end() {
        let house = House::new();
        let path = house.path("socket");
        let config = ServeConfig { unix_socket: Some(path.clone()), ..ServeConfig::default() };
        let server = Server::bind(parrot(), config).await.expect("a free path");
        assert_eq!(server.address(), None);
        let (signals, receiver) = Signals::manual();
        let task = tokio::spawn(server.run(receiver));
        let mut stream = UnixStream::connect(&path).await.expect("it listens");
        // No web page reaches it, so any host will do.
        let request = completion(6, false).replace("host: localhost", "host: any.example");
        let answer = ask(&mut stream, &request).await;
        assert!(answer.contains("\"abcabc\""), "{answer}");
        signals.send();
        task.await.expect("stopped").expect("asked to stop");
        assert!(!path.exists(), "the file stays");
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn beside_https_the_unix_socket_speaks_http_and_notices_when_a_client_goes() {
        let house = house();
        let path = house.path("socket");
        let gate = Gate::closed(1);
        let llm = gated_parrot(&gate, 8);
        let limits = ServeConfig { max_connections_per_address: Some(2), ..config(&house) };
        let config = ServeConfig { unix_socket: Some(path.clone()), ..limits };
        let server = start_with(llm.clone(), config).await;
        for (is_stream, half_closes) in [(true, false), (false, false), (false, true)] {
            let mut clients = Vec::new();
            for _ in 0..3 {
                let mut client = UnixStream::connect(&path).await.expect("it listens");
                client.write_all(completion(400, is_stream).as_bytes()).await.expect("sent");
                clients.push(client);
            }
            // More than one address may have.
            while n_running(&house, &server).await != 3 {
                gate.step();
            }
            if half_closes {
                for client in &mut clients {
                    client.shutdown().await.expect("its half is closed");
                    let mut asked = [0; 25];
                    client.read_exact(&mut asked).await.expect("an interim answer");
                    assert_eq!(&asked, b"HTTP/1.1 100 Continue\r\n\r\n");
                }
            }
            drop(clients);
            while n_running(&house, &server).await != 0 {
                gate.step();
            }
        }
        assert!(llm.metrics().generated_tokens < 9 * 250);
        gate.open();
        server.stop().await;
        assert!(!path.exists(), "the file stays");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_ends_finishes_answers_over_https() {
    let house = house();
    let gate = Gate::closed(1);
    let server = start_with(gated_parrot(&gate, 8), config(&house)).await;
    let idle = connect(&house, &server).await;
    let silent = server.connect("\x16").await;
    let mut client = connect(&house, &server).await;
    client.write_all(completion(6, true).as_bytes()).await.expect("sent");
    client.read_u8().await.expect("the answer begins");
    server.signals.send();
    while !get_tls(&house, &server, "/ready").await.starts_with("HTTP/1.1 503") {}
    gate.open();
    let mut answer = String::new();
    client.read_to_string(&mut answer).await.expect("the answer, and its end");
    assert!(answer.contains("[DONE]"), "{answer}");
    server.task.await.expect("stopped").expect("asked to stop");
    drop((idle, silent));
}
