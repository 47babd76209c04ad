//! The bytes of a file.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Cursor, Read};
use std::path::PathBuf;
use std::sync::Arc;

use axum::body::{Body, Bytes};

/// Bytes that are read from the disk at once.
const PIECE_BYTES: usize = 64 << 10;

/// The bytes of a file, where they lie; cheap to clone.
#[derive(Clone, Debug)]
pub(crate) enum Content {
    Memory(Arc<Vec<u8>>),
    Disk(PathBuf),
}

/// Bytes in memory as a reader.
struct Shared(Arc<Vec<u8>>);

impl AsRef<[u8]> for Shared {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl Content {
    /// Reads from the start.
    pub(crate) fn open(&self) -> io::Result<Box<dyn BufRead + Send>> {
        Ok(match self {
            Self::Memory(bytes) => Box::new(Cursor::new(Shared(Arc::clone(bytes)))),
            Self::Disk(path) => Box::new(BufReader::new(File::open(path)?)),
        })
    }

    /// The body of an answer, piece by piece.
    pub(crate) fn body(&self) -> io::Result<Body> {
        let input = match self {
            Self::Memory(bytes) => return Ok(in_pieces(Shared(Arc::clone(bytes)))),
            Self::Disk(path) => File::open(path)?,
        };
        let pieces = futures_util::stream::unfold(Some(input), |input| async {
            let mut input = input?;
            let read = tokio::task::spawn_blocking(move || {
                let mut piece = vec![0; PIECE_BYTES];
                let n = input.read(&mut piece);
                n.map(|n| {
                    piece.truncate(n);
                    (piece, input)
                })
            });
            match read.await {
                Ok(Ok((piece, _))) if piece.is_empty() => None,
                Ok(Ok((piece, input))) => Some((Ok(piece), Some(input))),
                Ok(Err(error)) => Some((Err(error), None)),
                Err(error) => Some((Err(io::Error::other(error)), None)),
            }
        });
        Ok(Body::from_stream(pieces))
    }
}

/// Bytes in memory as a body that points to them. Small pieces keep the connection from copying more
/// than one of them into its buffer.
fn in_pieces(bytes: Shared) -> Body {
    let mut rest = Bytes::from_owner(bytes);
    let piece = move || {
        let piece = rest.split_to(rest.len().min(PIECE_BYTES));
        (!piece.is_empty()).then_some(Ok::<_, io::Error>(piece))
    };
    Body::from_stream(futures_util::stream::iter(std::iter::from_fn(piece)))
}
