//! Compiled grammars, the least recently used one given up first.

use std::collections::HashMap;

use pelton_base::Constraint;

/// Namespace, then the hash of form, layout and end tokens.
pub(crate) type Key = (u64, u128);

/// At most `n_entries` grammars whose sources have at most `n_bytes`.
#[derive(Debug)]
pub(crate) struct Cache {
    entries: HashMap<Key, Entry>,
    n_entries: usize,
    n_bytes: usize,
    used_bytes: usize,
    clock: u64,
}

#[derive(Debug)]
struct Entry {
    constraint: Constraint,
    n_bytes: usize,
    used: u64,
}

impl Cache {
    pub(crate) fn new(n_entries: usize, n_bytes: usize) -> Self {
        Self { entries: HashMap::new(), n_entries, n_bytes, used_bytes: 0, clock: 0 }
    }

    pub(crate) fn get(&mut self, key: Key) -> Option<Constraint> {
        self.clock += 1;
        let entry = self.entries.get_mut(&key)?;
        entry.used = self.clock;
        Some(entry.constraint.clone())
    }

    /// Keeps a grammar; one larger than the whole cache is not kept.
    pub(crate) fn put(&mut self, key: Key, constraint: Constraint, n_bytes: usize) {
        if n_bytes > self.n_bytes || self.n_entries == 0 {
            return;
        }
        self.clock += 1;
        let entry = Entry { constraint, n_bytes, used: self.clock };
        if let Some(replaced) = self.entries.insert(key, entry) {
            self.used_bytes -= replaced.n_bytes;
        }
        self.used_bytes += n_bytes;
        while self.entries.len() > self.n_entries || self.used_bytes > self.n_bytes {
            let Some(oldest) = self.entries.iter().min_by_key(|(_, e)| e.used).map(|(k, _)| *k)
            else {
                break;
            };
            if let Some(gone) = self.entries.remove(&oldest) {
                self.used_bytes -= gone.n_bytes;
            }
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(crate) fn used_bytes(&self) -> usize {
        self.used_bytes
    }
}
