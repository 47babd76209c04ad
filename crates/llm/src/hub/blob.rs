//! One file on its way into the cache: its announced size and hash, and the bytes that have
//! arrived.

use std::fs::File;
use std::io::{Read, Seek, Write};
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
    /// File whose lock a process holds while it downloads the blob.
    pub(crate) lock: &'a Path,
}

impl Job<'_> {
    pub(crate) fn verify(&self, arrived: Arrived) -> Result<(), HubError> {
        if let Some(size) = self.announced.size
            && size != arrived.n_bytes
        {
            return Err(self.corrupt("size", arrived.n_bytes.to_string(), size.to_string()));
        }
        let digest = arrived.hash.finalize();
        let hex: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
        if self.announced.is_sha256 && !hex.eq_ignore_ascii_case(&self.announced.etag) {
            return Err(self.corrupt("sha256", hex, self.announced.etag.clone()));
        }
        Ok(())
    }

    pub(crate) fn corrupt(&self, what: &'static str, got: String, expected: String) -> HubError {
        let (id, file) = (self.id.to_string(), self.file.to_owned());
        HubError::Corrupt { id, file, what, got, expected }
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

    /// Appends bytes to the partial file.
    pub(crate) fn append(&mut self, bytes: &[u8], out: &mut File) -> std::io::Result<()> {
        out.write_all(bytes)?;
        self.hash.update(bytes);
        self.n_bytes += bytes.len() as u64;
        Ok(())
    }

    /// Empties the partial file.
    pub(crate) fn restart(out: &mut File) -> std::io::Result<Self> {
        out.set_len(0)?;
        out.rewind()?;
        Ok(Self { n_bytes: 0, hash: Sha256::new() })
    }
}
