//! A file of 100 MB goes to the disk and back without being in memory, and one that is in memory is
//! sent without a copy.

#[path = "../../model/tests/counting/mod.rs"]
mod counting;
mod harness;

use counting::peak;
use harness::parrot::parrot;
use harness::{Running, start_with};
use pelton_server::ServeConfig;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const MB: usize = 1_000_000;
/// Connections, tasks, and pieces that are on their way.
const SLACK: u64 = 8 * MB as u64;
static PIECE: [u8; 64 << 10] = [b'x'; 64 << 10];
const BEFORE: &str = "--edge\r\ncontent-disposition: form-data; name=\"purpose\"\r\n\r\nbatch\r\n\
    --edge\r\ncontent-disposition: form-data; name=\"file\"; filename=\"in.jsonl\"\r\n\r\n";
const AFTER: &str = "\r\n--edge--\r\n";

/// Sends a file of so many bytes; returns its id.
async fn upload(server: &Running, n_bytes: usize) -> String {
    let mut stream = TcpStream::connect(server.address).await.expect("connected");
    let length = BEFORE.len() + n_bytes + AFTER.len();
    let head = format!(
        "POST /v1/files HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\
         content-type: multipart/form-data; boundary=edge\r\ncontent-length: {length}\r\n\r\n{BEFORE}"
    );
    stream.write_all(head.as_bytes()).await.expect("sent");
    let mut left = n_bytes;
    while left > 0 {
        let n = left.min(PIECE.len());
        stream.write_all(&PIECE[..n]).await.expect("sent");
        left -= n;
    }
    stream.write_all(AFTER.as_bytes()).await.expect("sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.expect("answered");
    let (_, body) = answer.split_once("\r\n\r\n").expect("a body");
    let file: serde_json::Value = serde_json::from_str(body).expect("JSON");
    assert_eq!(file["bytes"], n_bytes, "{answer}");
    file["id"].as_str().expect("an id").to_owned()
}

/// Reads a file and forgets it; returns the number of its bytes.
async fn download(server: &Running, id: &str) -> usize {
    let mut stream = TcpStream::connect(server.address).await.expect("connected");
    let head = format!(
        "GET /v1/files/{id}/content HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).await.expect("sent");
    let (mut piece, mut n_bytes) = (vec![0; 64 << 10], 0);
    loop {
        let n = stream.read(&mut piece).await.expect("answered");
        if n == 0 {
            return n_bytes;
        }
        n_bytes += piece[..n].iter().filter(|byte| **byte == b'x').count();
    }
}

fn main() {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let folder = tempfile::tempdir().expect("a folder");
    let files = Some(folder.path().to_owned());
    for (files, size) in [(files, 100 * MB), (None, 30 * MB)] {
        let is_on_disk = files.is_some();
        let config = ServeConfig { files, ..ServeConfig::default() };
        let server = runtime.block_on(start_with(parrot(), config));
        let (id, most) = peak(|| runtime.block_on(upload(&server, size)));
        if is_on_disk {
            assert!(most <= SLACK, "the upload took {most} bytes of memory");
        }
        let (n_bytes, most) = peak(|| runtime.block_on(download(&server, &id)));
        // The head has an `x` or two.
        assert!((size..size + 100).contains(&n_bytes), "{n_bytes}");
        assert!(most <= SLACK, "the download took {most} bytes of memory");
        runtime.block_on(server.stop());
    }
}
