//! Files that are stored in parts, because other fixtures hold the same runs of bytes.
//!
//! `crates/model/tests/share.py` writes `weights.json` and defines its format.

use std::path::Path;

use serde::Deserialize;

use super::crc32;

/// The parts of a file.
#[derive(Debug, Deserialize)]
pub(super) struct Parts {
    bytes: usize,
    crc32: u32,
    /// File, first byte, and number of bytes.
    parts: Vec<(String, usize, usize)>,
}

impl Parts {
    pub(super) fn read(path: &Path) -> Self {
        let text = std::fs::read(path).expect("parts of weights");
        serde_json::from_slice(&text).expect("parts are JSON")
    }

    /// The whole file, whose parts are named from `root`.
    pub(super) fn join(&self, root: &Path) -> Vec<u8> {
        let mut whole = Vec::with_capacity(self.bytes);
        for (file, first, n) in &self.parts {
            let stored = std::fs::read(root.join(file)).expect("a file with a part");
            whole.extend(&stored[*first..][..*n]);
        }
        assert_eq!((whole.len(), crc32(&whole)), (self.bytes, self.crc32), "not the whole file");
        whole
    }
}
