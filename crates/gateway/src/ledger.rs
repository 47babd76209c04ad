//! Usage per day, key, tenant and model, on its way to a store.
//!
//! A count is first pending, then written. A store that fails changes nothing: its counts stay
//! pending and go into the next flush, so nothing is lost while the process lives. Pending counts
//! take memory per row, not per request.

use std::collections::BTreeMap;

use crate::clock::Day;

/// Names a row of usage.
#[derive(Clone, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct RowKey {
    /// The day on which the requests began.
    pub day: Day,
    /// Id of the key; empty for requests without a key of the key file.
    pub key: String,
    /// Name of the tenant.
    pub tenant: String,
    /// Name of the model; empty for requests that were refused before they named one.
    pub model: String,
}

/// The counts of a row.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, serde::Serialize)]
pub struct Counts {
    /// Requests that ran, to their end or not.
    pub requests: u64,
    /// Requests that a limit refused.
    pub refused: u64,
    /// Tokens of prompts, cached ones included.
    pub prompt_tokens: u64,
    /// Tokens of prompts that were found in a cache.
    pub cached_tokens: u64,
    /// Tokens of answers, thoughts included.
    pub completion_tokens: u64,
    /// Tokens of thoughts.
    pub reasoning_tokens: u64,
    /// When the latest request ended, in seconds since 1970.
    pub last_used: u64,
}

impl Counts {
    /// Tokens that count for limits and quotas.
    pub fn tokens(&self) -> u64 {
        self.prompt_tokens.saturating_add(self.completion_tokens)
    }

    /// Adds other counts; of the times the later one stays.
    pub fn add(&mut self, other: &Self) {
        self.each(other, u64::saturating_add);
        self.last_used = self.last_used.max(other.last_used);
    }

    /// Takes off other counts, which were added before.
    pub fn subtract(&mut self, other: &Self) {
        self.each(other, u64::saturating_sub);
    }

    fn each(&mut self, other: &Self, change: fn(u64, u64) -> u64) {
        let pairs = [
            (&mut self.requests, other.requests),
            (&mut self.refused, other.refused),
            (&mut self.prompt_tokens, other.prompt_tokens),
            (&mut self.cached_tokens, other.cached_tokens),
            (&mut self.completion_tokens, other.completion_tokens),
            (&mut self.reasoning_tokens, other.reasoning_tokens),
        ];
        for (count, by) in pairs {
            *count = change(*count, by);
        }
    }
}

/// Why rows could not be read or written.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("{0}")]
pub struct StoreError(pub String);

/// A place where usage outlives the process.
pub trait Store: Send {
    /// Every row.
    ///
    /// # Errors
    ///
    /// When the rows cannot be read, or are not rows.
    fn load(&mut self) -> Result<BTreeMap<RowKey, Counts>, StoreError>;

    /// Adds counts to rows, all or none, and returns when they are safe from a crash.
    ///
    /// # Errors
    ///
    /// When they could not be written; then none of them is.
    fn add(&mut self, rows: &BTreeMap<RowKey, Counts>) -> Result<(), StoreError>;
}

/// Counts on their way to a store.
#[derive(Debug, Default)]
pub struct Ledger {
    pending: BTreeMap<RowKey, Counts>,
}

impl Ledger {
    /// Notes counts, to be written by the next flush.
    pub fn note(&mut self, key: RowKey, counts: &Counts) {
        self.pending.entry(key).or_default().add(counts);
    }

    /// Rows that are not written yet.
    pub fn pending(&self) -> &BTreeMap<RowKey, Counts> {
        &self.pending
    }

    /// Takes what is to be written; [`put_back`](Self::put_back) it if the store fails.
    pub fn take(&mut self) -> BTreeMap<RowKey, Counts> {
        std::mem::take(&mut self.pending)
    }

    /// Takes back rows that could not be written.
    pub fn put_back(&mut self, rows: BTreeMap<RowKey, Counts>) {
        for (key, counts) in rows {
            self.note(key, &counts);
        }
    }

    /// Writes all that is pending.
    ///
    /// # Errors
    ///
    /// The store's; then all of it is still pending.
    pub fn flush(&mut self, store: &mut dyn Store) -> Result<(), StoreError> {
        if self.pending.is_empty() {
            return Ok(());
        }
        let rows = self.take();
        store.add(&rows).inspect_err(|_| self.put_back(rows.clone()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Keeps rows in memory while it has room.
    #[derive(Default)]
    struct Memory {
        rows: BTreeMap<RowKey, Counts>,
        is_full: bool,
    }

    impl Store for Memory {
        fn load(&mut self) -> Result<BTreeMap<RowKey, Counts>, StoreError> {
            Ok(self.rows.clone())
        }

        fn add(&mut self, rows: &BTreeMap<RowKey, Counts>) -> Result<(), StoreError> {
            if self.is_full {
                return Err(StoreError("no space left on device".to_owned()));
            }
            rows.iter().for_each(|(key, counts)| {
                self.rows.entry(key.clone()).or_default().add(counts);
            });
            Ok(())
        }
    }

    fn key(model: &str) -> RowKey {
        let model = model.to_owned();
        RowKey { day: Day(20_000), key: "k".to_owned(), tenant: "t".to_owned(), model }
    }

    fn counts(prompt_tokens: u64, last_used: u64) -> Counts {
        Counts { requests: 1, prompt_tokens, last_used, ..Counts::default() }
    }

    #[test]
    fn a_full_disk_loses_no_count() {
        let (mut ledger, mut store) = (Ledger::default(), Memory::default());
        ledger.note(key("m"), &counts(5, 9));
        ledger.flush(&mut store).expect("there is room");
        store.is_full = true;
        ledger.note(key("m"), &counts(7, 8));
        ledger.flush(&mut store).expect_err("full");
        ledger.note(key("n"), &counts(1, 1));
        ledger.flush(&mut store).expect_err("still full");
        assert_eq!(store.load().expect("rows")[&key("m")].prompt_tokens, 5);
        store.is_full = false;
        ledger.flush(&mut store).expect("room again");
        assert!(ledger.pending().is_empty());
        let expected = Counts { requests: 2, prompt_tokens: 12, last_used: 9, ..Counts::default() };
        assert_eq!(store.rows, BTreeMap::from([(key("m"), expected), (key("n"), counts(1, 1))]));
    }
}
