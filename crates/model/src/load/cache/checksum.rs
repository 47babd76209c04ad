//! Checksums: XXH3-64, of large pieces in parallel.
//!
//! ```text
//! matrix    chunk 0 | chunk 1 | ... | rest       1 MiB each
//!              |         |              |
//!            xxh3      xxh3           xxh3        on whichever thread is free
//!              └─────────┴── le bytes ──┘
//!                        |
//!                      xxh3                       the checksum of the matrix
//! ```
//!
//! The number of threads does not show in the result.

use std::sync::atomic::{AtomicU64, Ordering};

use xxhash_rust::xxh3::xxh3_64;

/// Bytes that one thread hashes at a time: far more than waking it costs, far less than a matrix.
const CHUNK_BYTES: usize = 1 << 20;

/// Calls a closure once for each index below a number, in any order, on any threads.
pub(super) type ForEach<'a> = &'a dyn Fn(usize, &(dyn Fn(usize) + Sync));

/// Checksum of a few bytes.
pub(super) fn of_bytes(bytes: &[u8]) -> u64 {
    xxh3_64(bytes)
}

/// Checksum of a text.
pub(super) fn of_text(text: &str) -> u64 {
    xxh3_64(text.as_bytes())
}

/// Checksum of a matrix.
pub(super) fn of_matrix(bytes: &[u8], for_each: ForEach<'_>) -> u64 {
    let chunks: Vec<(&[u8], AtomicU64)> =
        bytes.chunks(CHUNK_BYTES).map(|chunk| (chunk, AtomicU64::new(0))).collect();
    for_each(chunks.len(), &|idx| {
        let (chunk, hash) = &chunks[idx];
        // The end of the run orders this before the reads below.
        hash.store(xxh3_64(chunk), Ordering::Relaxed);
    });
    let hashes: Vec<u8> =
        chunks.into_iter().flat_map(|(_, hash)| hash.into_inner().to_le_bytes()).collect();
    xxh3_64(&hashes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_checksum_sees_every_chunk_and_not_the_order_of_the_threads() {
        let mut bytes: Vec<u8> = (0..3 * CHUNK_BYTES + 5).map(|i| (i % 251) as u8).collect();
        let forwards: ForEach<'_> = &|n, f| (0..n).for_each(f);
        let backwards: ForEach<'_> = &|n, f| (0..n).rev().for_each(f);
        let whole = of_matrix(&bytes, forwards);
        assert_eq!(of_matrix(&bytes, backwards), whole);
        for at in [0, CHUNK_BYTES, 2 * CHUNK_BYTES - 1, 3 * CHUNK_BYTES + 4] {
            bytes[at] ^= 1;
            assert_ne!(of_matrix(&bytes, forwards), whole, "{at}");
            bytes[at] ^= 1;
        }
        bytes.pop();
        assert_ne!(of_matrix(&bytes, forwards), whole);
    }
}
