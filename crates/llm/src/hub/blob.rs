//! One file on its way into the cache: its announced size and hash, and the bytes that have
//! arrived.

use std::fs::File;
use std::io::{Read, Seek};
use std::path::Path;

use sha2::{Digest, Sha256};

use super::{HubError, HubId};

/// The hub's announcement of one file.
pub(crate) struct Announced {
    pub(crate) etag: String,
    pub(crate) size: Option<u64>,
    /// Whether the tag is the SHA-256 of the content.
    pub(crate) is_sha256: bool,
}

/// One blob to fetch.
pub(crate) struct Job<'a> {
    pub(crate) id: &'a HubId,
    pub(crate) file: &'a str,
    pub(crate) url: &'a str,
    pub(crate) announced: &'a Announced,
    pub(crate) blob: &'a Path,
}

impl Job<'_> {
    pub(crate) fn verify(&self, arrived: Arrived) -> Result<(), HubError> {
        let corrupt = |what, got, expected| HubError::Corrupt {
            id: self.id.to_string(),
            file: self.file.to_owned(),
            what,
            got,
            expected,
        };
        if let Some(size) = self.announced.size
            && size != arrived.n_bytes
        {
            return Err(corrupt("size", arrived.n_bytes.to_string(), size.to_string()));
        }
        let digest = arrived.hash.finalize();
        let hex: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
        if self.announced.is_sha256 && !hex.eq_ignore_ascii_case(&self.announced.etag) {
            return Err(corrupt("sha256", hex, self.announced.etag.clone()));
        }
        Ok(())
    }
}

/// The bytes of the partial file so far, and their hash.
pub(crate) struct Arrived {
    pub(crate) n_bytes: u64,
    pub(crate) hash: Sha256,
}

impl Arrived {
    /// Hashes the bytes of an earlier attempt, and leaves the file at its end.
    pub(crate) fn read(out: &mut File) -> std::io::Result<Self> {
        let mut arrived = Self { n_bytes: 0, hash: Sha256::new() };
        let mut chunk = vec![0; 1 << 20];
        loop {
            let n = out.read(&mut chunk)?;
            if n == 0 {
                return Ok(arrived);
            }
            arrived.hash.update(&chunk[..n]);
            arrived.n_bytes += n as u64;
        }
    }

    /// Empties the partial file.
    pub(crate) fn restart(out: &mut File) -> std::io::Result<Self> {
        out.set_len(0)?;
        out.rewind()?;
        Ok(Self { n_bytes: 0, hash: Sha256::new() })
    }
}
