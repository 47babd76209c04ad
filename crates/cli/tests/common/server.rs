//! `pelton serve` as a child process on a free port, and requests to it.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, ChildStderr, Command, ExitStatus, Stdio};

use serde_json::Value;

use super::command;

/// A running server; it is killed when this is dropped.
pub(crate) struct Server {
    child: Child,
    /// Kept open, so that the server can write to it.
    stderr: BufReader<ChildStderr>,
    /// The lines that it wrote to standard error before it listened.
    first_log: String,
    address: String,
}

impl Server {
    /// Starts a server with these flags and waits until it listens.
    pub(crate) fn start(flags: &[&str]) -> Result<Self, String> {
        Self::start_by(command(&[&["serve", "--port", "0"], flags].concat()))
    }

    /// Starts a server by a command that serves on a free port, and waits until it listens.
    pub(crate) fn start_by(mut command: Command) -> Result<Self, String> {
        let mut child = command
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the binary starts");
        let mut stderr = BufReader::new(child.stderr.take().expect("stderr is piped"));
        let mut first_log = String::new();
        let address = loop {
            let mut line = String::new();
            if stderr.read_line(&mut line).expect("stderr is UTF-8") == 0 {
                let status = child.wait().expect("the binary ends");
                return Err(format!("{status}: {}", first_log.trim_end()));
            }
            if let Some(address) = line.trim_end().strip_prefix("listening on http://") {
                break address.to_owned();
            }
            first_log.push_str(&line);
        };
        let address = address.trim_end_matches('/').to_owned();
        Ok(Self { child, stderr, first_log, address })
    }

    /// Id of the server's process.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Where it listens.
    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    /// The lines that it logged before it listened.
    pub(crate) fn first_log(&self) -> &str {
        &self.first_log
    }

    /// The lines that it logs up to the first one that holds `end`.
    pub(crate) fn log_until(&mut self, end: &str) -> Vec<String> {
        let mut lines = Vec::new();
        loop {
            let mut line = String::new();
            let n_bytes = self.stderr.read_line(&mut line).expect("stderr is UTF-8");
            assert!(n_bytes > 0, "it ended without `{end}`: {lines:#?}");
            let is_end = line.contains(end);
            lines.push(line);
            if is_end {
                return lines;
            }
        }
    }

    /// Waits until it has ended.
    pub(crate) fn wait(&mut self) -> ExitStatus {
        self.child.wait().expect("the binary ends")
    }

    /// Connects, and sends these bytes.
    pub(crate) fn send(&self, bytes: &str) -> TcpStream {
        let mut connection = TcpStream::connect(&self.address).expect("it listens");
        connection.write_all(bytes.as_bytes()).expect("the request is sent");
        connection
    }

    /// Sends a request, with lines for its head, and returns the whole answer.
    pub(crate) fn get(&self, path: &str, lines: &str) -> String {
        let request = format!("GET {path} HTTP/1.1\r\n{lines}connection: close\r\n\r\n");
        let mut answer = String::new();
        self.send(&request).read_to_string(&mut answer).expect("an answer");
        answer
    }

    /// Posts a JSON body and returns the JSON answer; an answer that is not 200 is an error.
    pub(crate) fn post(&self, path: &str, body: &Value) -> Result<Value, String> {
        let body = body.to_string();
        let (address, n) = (&self.address, body.len());
        let request = format!(
            "POST {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\
             content-type: application/json\r\ncontent-length: {n}\r\n\r\n{body}"
        );
        let mut connection = TcpStream::connect(address).map_err(|error| error.to_string())?;
        connection.write_all(request.as_bytes()).map_err(|error| error.to_string())?;
        let mut answer = String::new();
        connection.read_to_string(&mut answer).map_err(|error| error.to_string())?;
        let (head, body) = answer.split_once("\r\n\r\n").ok_or("no answer")?;
        if !head.starts_with("HTTP/1.1 200") {
            return Err(answer);
        }
        serde_json::from_str(body).map_err(|error| format!("{error} in: {body}"))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
