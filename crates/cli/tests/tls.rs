//! HTTPS and Unix sockets of the real binary.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, ChildStderr, Command, Stdio};
use std::time::{SystemTime, UNIX_EPOCH};

use crate::certificates::{DAY, House, put};
use crate::common::{command, pelton, signal};

/// A running server whose words on standard error are read one by one; killed when it is dropped.
struct Server {
    child: Child,
    stderr: BufReader<ChildStderr>,
}

impl Server {
    /// Starts `pelton serve` and reads to the line that begins so, and returns its rest.
    fn start(flags: &[&str], until: &str) -> (Self, String) {
        let mut child = command(&[&["serve"], flags].concat())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the binary starts");
        let stderr = BufReader::new(child.stderr.take().expect("stderr is piped"));
        let mut server = Self { child, stderr };
        let line = server.line_with(until);
        let rest = line.split_once(until).expect("it is in the line").1.to_owned();
        (server, rest)
    }

    /// The next line with these words.
    fn line_with(&mut self, words: &str) -> String {
        let mut all = String::new();
        loop {
            let mut line = String::new();
            let n_bytes = self.stderr.read_line(&mut line).expect("UTF-8");
            assert!(n_bytes > 0, "`{words}` was not said, but: {all}");
            if line.contains(words) {
                return line.trim_end().to_owned();
            }
            all += &line;
        }
    }

    fn signal(&self, name: &str) {
        signal(name, self.child.id());
    }

    /// Asks it to stop, and returns the exit code.
    fn stop(mut self) -> Option<i32> {
        self.signal("TERM");
        // It must not wait for somebody to read its words.
        let _ = self.stderr.read_to_string(&mut String::new());
        self.child.wait().expect("it ends").code()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Asks by curl, which knows TLS.
fn curl(args: &[&str]) -> Result<String, String> {
    let output =
        Command::new("curl").args(["--silent", "--show-error", "--fail"]).args(args).output();
    let output = output.expect("curl is there");
    match output.status.success() {
        true => Ok(String::from_utf8(output.stdout).expect("UTF-8")),
        false => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
    }
}

fn text(path: &Path) -> &str {
    path.to_str().expect("UTF-8")
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_secs()
}

/// Asks for a path, in trust of the house, and under the name of its certificate.
fn ask(house: &House, port: &str, path: &str) -> Result<String, String> {
    curl(&["--cacert", text(&house.authority()), &format!("https://localhost:{port}{path}")])
}

#[test]
fn a_certificate_is_renewed_by_sighup_and_a_broken_one_changes_nothing() {
    let house = House::new();
    let first = house.install_for(90);
    let (cert, key) = (house.cert(), house.key());
    let flags = ["--port", "0", "--sandbox", "required", "--tls-cert", text(&cert)];
    let flags = [&flags[..], &["--tls-key", text(&key)]].concat();
    let (mut server, address) = Server::start(&flags, "listening on https://");
    let port = address.rsplit(':').next().expect("a port").to_owned();
    let expiry = || -> u64 {
        let metrics = ask(&house, &port, "/metrics").expect("an answer");
        let line = metrics.lines().find(|line| line.starts_with("pelton_tls_certificate_expiry"));
        let (_, value) = line.expect("the series").rsplit_once(' ').expect("a value");
        value.parse::<f64>().expect("a number") as u64
    };
    assert_eq!(expiry(), first);
    assert!(curl(&[&format!("https://localhost:{port}/health")]).is_err(), "an unknown authority");
    let clear = curl(&[&format!("http://localhost:{port}/health")]).expect_err("in the clear");
    assert!(clear.contains("400"), "{clear}");

    // Without --config SIGHUP reads the certificate anew and does not end the server.
    put(&cert, "no certificate");
    server.signal("HUP");
    let line = server.line_with("the certificate stays as it was");
    assert!(line.contains("no certificate") && line.contains(text(&cert)), "{line}");
    assert_eq!(expiry(), first);
    let soon = house.install_for(10);
    server.signal("HUP");
    server.line_with("the certificate was read anew");
    let line = server.line_with("expires in");
    assert!(line.contains("10 days") || line.contains("9 days"), "{line}");
    assert_eq!(expiry(), soon);
    assert_eq!(server.stop(), Some(0));
}

#[test]
fn commands_that_ask_a_server_trust_the_authority_of_a_file() {
    let house = House::new();
    house.install_for(90);
    let (cert, key, authority) = (house.cert(), house.key(), house.authority());
    let flags =
        ["--port", "0", "--threads", "1", "--tls-cert", text(&cert), "--tls-key", text(&key)];
    let (server, address) = Server::start(&flags, "listening on https://");
    let port = address.rsplit(':').next().expect("a port");
    let url = format!("https://localhost:{port}");
    let measure = ["bench", "serve", "--url", &url, "--scale", "0.05", "-n", "4", "--rate", "50"];
    let commands: [&[&str]; 2] = [&["top", "--once", &url], &measure];
    for command in commands {
        pelton(&[command, &["--ca", text(&authority)]].concat()).assert_answered();
        pelton(command).assert_refused(&["trusted", "`--ca FILE`"]);
        pelton(&[command, &["--ca", text(&key)]].concat())
            .assert_refused(&["--ca", "no certificate"]);
        let none = house.path("none");
        pelton(&[command, &["--ca", text(&none)]].concat())
            .assert_refused(&["--ca", "No such file"]);
    }
    assert_eq!(server.stop(), Some(0));
}

#[test]
fn a_pair_that_cannot_be_used_is_refused_before_a_model_is_loaded() {
    let house = House::new();
    house.install_for(90);
    let (cert, key, none) = (house.cert(), house.key(), house.path("none"));
    let old = house.make(now() - 9 * DAY, now() - DAY);
    let (old_cert, old_key) = (house.path("old-cert"), house.path("old-key"));
    put(&old_cert, &old.0);
    put(&old_key, &old.1);
    // The model does not exist, and nobody looks.
    let serve = |args: &[&str]| pelton(&[&["serve", "-m", "/none", "--port", "0"], args].concat());
    serve(&["--tls-cert", text(&cert)]).assert_refused(&["--tls-cert", "needs `--tls-key`"]);
    serve(&["--tls-key", text(&key)]).assert_refused(&["--tls-key", "needs `--tls-cert`"]);
    for (certificate, key, words) in [
        (&none, &key, "No such file"),
        (&key, &key, "holds a private key and no certificate"),
        (&cert, &cert, "no private key"),
        (&cert, &old_key, "does not belong"),
        (&old_cert, &old_key, "the certificate expired at 20"),
    ] {
        serve(&["--tls-cert", text(certificate), "--tls-key", text(key)]).assert_refused(&[words]);
    }
    let socket = house.path("socket");
    let args = ["--unix-socket", text(&socket), "--tls-cert", text(&cert), "--tls-key", text(&key)];
    pelton(&[&["serve", "-m", "/none"], &args[..]].concat()).assert_refused(&[
        "--tls-cert",
        "--unix-socket",
        "--port",
    ]);
}

#[test]
fn a_unix_socket_is_private_and_its_file_goes_at_the_end_also_in_the_sandbox() {
    let house = House::new();
    let socket = house.path("socket");
    let flags = ["--sandbox", "required", "--unix-socket", text(&socket)];
    for (access, mode) in [("owner", 0o600), ("group", 0o660)] {
        let flags = [&flags[..], &["--unix-socket-access", access]].concat();
        let (server, rest) = Server::start(&flags, "listening on unix:");
        assert_eq!(rest, text(&socket));
        let metadata = std::fs::metadata(&socket).expect("it is there");
        assert_eq!(metadata.permissions().mode() & 0o777, mode, "{access}");
        let answer = curl(&["--unix-socket", text(&socket), "http://localhost/ready"]);
        assert_eq!(answer.expect("an answer"), r#"{"status":"ready"}"#);
        let taken = pelton(&["serve", "-m", "/none", "--unix-socket", text(&socket)]);
        taken.assert_refused(&["another server listens", text(&socket)]);
        assert_eq!(server.stop(), Some(0));
        assert!(!socket.exists(), "the file stays");
    }
}

#[test]
fn a_socket_left_by_a_killed_server_is_replaced_and_other_files_are_not() {
    let house = House::new();
    let socket = house.path("socket");
    let flags = ["--unix-socket", text(&socket), "--port", "0"];
    let (server, _) = Server::start(&flags, "listening on http://");
    drop(server);
    assert!(socket.exists(), "a killed server removes nothing");
    let (mut server, _) = Server::start(&flags, "listening on http://");
    server.line_with("listening on unix:");
    let mut stream = UnixStream::connect(&socket).expect("it listens");
    stream.write_all(b"GET /ready HTTP/1.0\r\n\r\n").expect("sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    assert!(answer.starts_with("HTTP/1.0 200") || answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert_eq!(server.stop(), Some(0));

    std::fs::write(&socket, "precious").expect("written");
    let refused = pelton(&["serve", "-m", "/none", "--unix-socket", text(&socket)]);
    refused.assert_refused(&["no socket", text(&socket)]);
    assert_eq!(std::fs::read_to_string(&socket).expect("it stays"), "precious");
}
