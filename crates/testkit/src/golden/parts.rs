//! Files that are drawn from a seed, or stored in parts because other fixtures hold the same bytes.
//!
//! `crates/model/tests/stored.py` writes `weights.json` and defines its format.

use std::path::Path;

use serde::Deserialize;

use super::crc32;
use super::draws::drawn;

/// The parts of a file.
#[derive(Debug, Deserialize)]
pub(super) struct Parts {
    bytes: usize,
    crc32: u32,
    /// Of the numbers that are drawn.
    #[serde(default)]
    seed: u64,
    parts: Vec<Part>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Part {
    /// File, first byte, and number of bytes.
    Stored(String, usize, usize),
    /// First number, how many, and their bounds.
    Drawn(u64, u64, f64, f64),
}

impl Parts {
    pub(super) fn read(path: &Path) -> Self {
        let text = std::fs::read(path).expect("parts of weights");
        serde_json::from_slice(&text).expect("parts are JSON")
    }

    /// The whole file, whose parts are named from `root`.
    pub(super) fn join(&self, root: &Path) -> Vec<u8> {
        let mut whole = Vec::with_capacity(self.bytes);
        for part in &self.parts {
            match part {
                Part::Stored(file, first, n) => {
                    let stored = std::fs::read(root.join(file)).expect("a file with a part");
                    whole.extend(&stored[*first..][..*n]);
                }
                Part::Drawn(first, n, low, high) => {
                    let numbers = *first..first + n;
                    whole.extend(drawn(self.seed, numbers, *low, *high).flat_map(u16::to_le_bytes));
                }
            }
        }
        assert_eq!((whole.len(), crc32(&whole)), (self.bytes, self.crc32), "not the whole file");
        whole
    }
}
