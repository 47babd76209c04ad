//! Whole answers, kept for the next request that is the same in every byte that matters.
//!
//! Bounded in bytes and in time. The result that was not asked for longest goes first, and an
//! answer that is older than its time to live is never given out.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

/// Bytes that an entry takes besides its value: digest, places in both maps.
const ENTRY_BYTES: usize = 192;

/// Values by the digest of the whole request.
#[derive(Debug)]
pub struct ResultCache<V> {
    most_bytes: usize,
    time_to_live: Duration,
    entries: HashMap<[u8; 32], Entry<V>>,
    /// Digests by the time of their latest use.
    by_use: BTreeMap<u64, [u8; 32]>,
    n_uses: u64,
    n_bytes: usize,
}

#[derive(Debug)]
struct Entry<V> {
    value: V,
    n_bytes: usize,
    made: Duration,
    used: u64,
}

impl<V> ResultCache<V> {
    /// A cache of at most this many bytes, whose values live this long.
    pub fn new(most_bytes: usize, time_to_live: Duration) -> Self {
        let (entries, by_use) = (HashMap::new(), BTreeMap::new());
        Self { most_bytes, time_to_live, entries, by_use, n_uses: 0, n_bytes: 0 }
    }

    /// Bytes in use.
    pub fn n_bytes(&self) -> usize {
        self.n_bytes
    }

    /// Number of values.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are no values.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The value of a digest, if it is young enough; it counts as used now.
    pub fn get(&mut self, digest: &[u8; 32], elapsed: Duration) -> Option<&V> {
        let entry = self.entries.get(digest)?;
        if elapsed.saturating_sub(entry.made) >= self.time_to_live {
            self.remove(digest);
            return None;
        }
        self.n_uses += 1;
        let entry = self.entries.get_mut(digest)?;
        self.by_use.remove(&entry.used);
        entry.used = self.n_uses;
        self.by_use.insert(self.n_uses, *digest);
        Some(&entry.value)
    }

    /// Keeps a value that takes `n_bytes`; values that were not used for longest make room. A value
    /// larger than an eighth of the cache is not kept, because it would drive out too many.
    pub fn put(&mut self, digest: [u8; 32], value: V, n_bytes: usize, elapsed: Duration) {
        let n_bytes = n_bytes.saturating_add(ENTRY_BYTES);
        if n_bytes > self.most_bytes / 8 {
            return;
        }
        self.remove(&digest);
        while self.n_bytes + n_bytes > self.most_bytes {
            let Some((_, oldest)) = self.by_use.first_key_value() else { break };
            let oldest = *oldest;
            self.remove(&oldest);
        }
        self.n_uses += 1;
        let entry = Entry { value, n_bytes, made: elapsed, used: self.n_uses };
        self.by_use.insert(self.n_uses, digest);
        self.entries.insert(digest, entry);
        self.n_bytes += n_bytes;
    }

    fn remove(&mut self, digest: &[u8; 32]) {
        if let Some(entry) = self.entries.remove(digest) {
            self.by_use.remove(&entry.used);
            self.n_bytes -= entry.n_bytes;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_value_lives_for_its_time_and_no_longer() {
        let mut cache = ResultCache::new(1 << 20, 10 * SECOND);
        cache.put([1; 32], "a", 1, SECOND);
        assert_eq!(cache.get(&[1; 32], 10 * SECOND), Some(&"a"));
        assert_eq!(cache.get(&[2; 32], 10 * SECOND), None);
        assert_eq!(cache.get(&[1; 32], 11 * SECOND), None, "use does not make it younger");
        assert_eq!((cache.len(), cache.n_bytes()), (0, 0));
    }

    #[test]
    fn the_value_that_was_not_used_for_longest_makes_room() {
        let mut cache = ResultCache::new(8 * (ENTRY_BYTES + 8), 10 * SECOND);
        (0..8).for_each(|i| cache.put([i; 32], i, 8, SECOND));
        assert_eq!((cache.len(), cache.get(&[0; 32], SECOND)), (8, Some(&0)));
        cache.put([9; 32], 9, 8, SECOND);
        assert_eq!(cache.get(&[0; 32], SECOND), Some(&0));
        assert_eq!(cache.get(&[1; 32], SECOND), None);
        cache.put([10; 32], 10, 9, SECOND);
        assert_eq!(cache.get(&[10; 32], SECOND), None, "larger than an eighth");
    }

    proptest! {
        #[test]
        fn bytes_never_exceed_the_bound(puts in prop::collection::vec((0_u8..30, 0_usize..900), 1..300)) {
            let mut cache = ResultCache::new(8192, 1000 * SECOND);
            for (i, (digest, n_bytes)) in puts.into_iter().enumerate() {
                cache.put([digest; 32], (), n_bytes, SECOND * i as u32);
                let sum: usize = cache.entries.values().map(|entry| entry.n_bytes).sum();
                prop_assert!(cache.n_bytes() <= 8192 && cache.n_bytes() == sum);
                prop_assert_eq!(cache.len(), cache.by_use.len());
            }
        }
    }
}
