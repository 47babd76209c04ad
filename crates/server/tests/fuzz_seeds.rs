//! The seeds of the fuzz targets of requests, and a few hundred changes of each, break no promise.

use std::path::Path;

use pelton_server::fuzzing;

const N_CHANGES: usize = 300;
/// Pieces that make a body another body.
const PIECES: &[&[u8]] = &[
    b"\"",
    b"\\",
    b"\\ud800",
    b"{",
    b"}",
    b"[",
    b"]",
    b",",
    b":",
    b"null",
    b"-1",
    b"1e999",
    b"1.5",
    b"0",
    b"4294967296",
    b"\xff",
    b"\n\n",
    b"\r",
    b"\0",
    b"\"role\":\"user\",",
    b"\"n\":2,",
    b"{\"a\":[[[]]]}",
];

/// Xorshift (Marsaglia 2003).
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % n.max(1) as u64) as usize
    }

    /// Changes a byte, removes some, repeats some, or puts a piece in.
    fn change(&mut self, bytes: &mut Vec<u8>) {
        let at = self.below(bytes.len());
        let end = (at + 1 + self.below(16)).min(bytes.len());
        let piece = PIECES[self.below(PIECES.len())];
        match self.below(4) {
            0 if !bytes.is_empty() => bytes[at] = self.below(256) as u8,
            1 if !bytes.is_empty() => drop(bytes.drain(at..end)),
            2 if !bytes.is_empty() => {
                let again = bytes[at..end].to_vec();
                drop(bytes.splice(at..at, again));
            }
            _ => drop(bytes.splice(at..at, piece.iter().copied())),
        }
    }
}

fn replay(target: &str, run: fn(&[u8])) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds").join(target);
    let mut paths: Vec<_> = std::fs::read_dir(folder)
        .expect("seeds")
        .map(|entry| entry.expect("entry").path())
        .collect();
    paths.sort();
    assert!(paths.len() >= 3, "{target}: {} seeds", paths.len());
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    for path in paths {
        let seed = std::fs::read(&path).expect("a seed");
        run(&seed);
        for n in 0..N_CHANGES {
            let mut bytes = seed.clone();
            (0..=random.below(4)).for_each(|_| random.change(&mut bytes));
            let shown = String::from_utf8_lossy(&bytes).into_owned();
            let run = std::panic::AssertUnwindSafe(|| run(&bytes));
            let settled = std::panic::catch_unwind(run);
            assert!(settled.is_ok(), "{}, change {n}: {shown:?}", path.display());
        }
    }
}

#[test]
fn bodies_of_chats() {
    replay("chat_body", fuzzing::chat);
}

#[test]
fn bodies_of_completions() {
    replay("completions_body", fuzzing::completions);
}

#[test]
fn bodies_of_messages() {
    replay("messages_body", fuzzing::messages);
}

#[test]
fn bodies_of_responses() {
    replay("responses_body", fuzzing::responses);
}

#[test]
fn bodies_of_embeddings() {
    replay("embeddings_body", fuzzing::embeddings);
}

#[test]
fn bodies_of_rankings() {
    replay("rerank_body", fuzzing::rerank);
    replay("score_body", fuzzing::score);
}

#[test]
fn streams() {
    replay("sse", fuzzing::sse);
}
