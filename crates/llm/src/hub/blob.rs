//! One file on its way into the cache: its announced size and hash, and the bytes that have
//! arrived.

use std::fs::File;
use std::io::{Read, Seek, Write};
use std::path::Path;

use sha1::Sha1;
use sha2::{Digest, Sha256};

use super::{HubError, HubId};

/// The hub's announcement of one file.
pub(crate) struct Announced {
    pub(crate) etag: String,
    pub(crate) size: Option<u64>,
    pub(crate) kind: TagKind,
}

/// The meaning of an entity tag.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum TagKind {
    /// The SHA-256 of the content: a file in large-file storage.
    Sha256,
    /// The name of the content in git, a SHA-1 of its length and its bytes: any other file of a hub.
    GitBlob,
    /// A name that says nothing of the content, as some mirrors give.
    Opaque,
}

impl TagKind {
    pub(crate) fn of(etag: &str, is_large_file: bool) -> Self {
        let is_hex = etag.bytes().all(|byte| byte.is_ascii_hexdigit());
        match (is_large_file, etag.len()) {
            (true, 64) if is_hex => Self::Sha256,
            (false, 40) if is_hex => Self::GitBlob,
            _ => Self::Opaque,
        }
    }
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
    /// Compares the size and the hash of a whole file with the announced ones.
    pub(crate) fn verify(&self, arrived: Arrived, file: &mut File) -> Result<(), HubError> {
        if let Some(size) = self.announced.size
            && size != arrived.n_bytes
        {
            return Err(self.corrupt("size", arrived.n_bytes.to_string(), size.to_string()));
        }
        let (what, hash) = match self.announced.kind {
            TagKind::Sha256 => ("sha256", hex(&arrived.hash.finalize())),
            TagKind::GitBlob => {
                let hash = git_blob(file, arrived.n_bytes).map_err(HubError::io(self.blob))?;
                ("sha1", hash)
            }
            TagKind::Opaque => return Ok(()),
        };
        match hash.eq_ignore_ascii_case(&self.announced.etag) {
            true => Ok(()),
            false => Err(self.corrupt(what, hash, self.announced.etag.clone())),
        }
    }

    pub(crate) fn corrupt(&self, what: &'static str, got: String, expected: String) -> HubError {
        let (id, file) = (self.id.to_string(), self.file.to_owned());
        HubError::Corrupt { id, file, what, got, expected }
    }
}

fn hex(digest: &[u8]) -> String {
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The name of a file in git. The length comes first, so the bytes are read once they are all here.
fn git_blob(file: &mut File, n_bytes: u64) -> std::io::Result<String> {
    let mut hash = Sha1::new_with_prefix(format!("blob {n_bytes}\0"));
    file.rewind()?;
    let mut chunk = vec![0; 1 << 16];
    loop {
        match file.read(&mut chunk)? {
            0 => return Ok(hex(&hash.finalize())),
            n => hash.update(&chunk[..n]),
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_file_has_its_name_in_git() {
        let mut file = tempfile::tempfile().expect("a file");
        file.write_all(b"hello\n").expect("written");
        // `echo hello | git hash-object --stdin`
        let name = "ce013625030ba8dba906f756967f9e9ca394464a";
        assert_eq!(git_blob(&mut file, 6).expect("read"), name);
        assert_eq!(TagKind::of(name, false), TagKind::GitBlob);
    }

    #[test]
    fn other_tags_say_nothing_of_the_content() {
        for (tag, is_large_file) in
            [("ce013625030ba8dba906f756967f9e9ca394464a", true), ("a-tag-of-its-own", false)]
        {
            assert_eq!(TagKind::of(tag, is_large_file), TagKind::Opaque);
        }
    }
}
