//! The table of a cache file: what each matrix is and where it lies.
//!
//! ```text
//! entry     recipe: u32 length, UTF-8     layout: u32 length, UTF-8
//!           n:u64  k:u64  start:u64  n_bytes:u64  checksum:u64
//! ```
//!
//! Entries follow each other without gaps, in the order in which their matrices lie in the file. A
//! layout goes by its name, which needs no numbering that could go wrong.

use std::ops::Range;

use super::PAGE;
use super::rejected::Rejected;

/// Bytes of the shortest entry.
const MIN_ENTRY_BYTES: usize = 4 + 4 + 5 * 8;

/// One matrix.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Entry {
    pub(super) recipe: String,
    pub(super) layout: String,
    pub(super) n: usize,
    pub(super) k: usize,
    /// Where its bytes lie in the file.
    pub(super) range: Range<usize>,
    pub(super) checksum: u64,
}

impl Entry {
    /// Adds the entry to a table.
    pub(super) fn write(&self, table: &mut Vec<u8>) {
        for text in [&self.recipe, &self.layout] {
            let n_bytes = u32::try_from(text.len()).expect("invariant: names are short");
            table.extend_from_slice(&n_bytes.to_le_bytes());
            table.extend_from_slice(text.as_bytes());
        }
        for number in [self.n, self.k, self.range.start, self.range.len()] {
            table.extend_from_slice(&(number as u64).to_le_bytes());
        }
        table.extend_from_slice(&self.checksum.to_le_bytes());
    }
}

/// Reads a table of `n_entries` matrices, all of which must lie in order between the first page and
/// `data_end`.
pub(super) fn read(table: &[u8], n_entries: u64, data_end: usize) -> Result<Vec<Entry>, Rejected> {
    let most = table.len() / MIN_ENTRY_BYTES;
    let n_entries = usize::try_from(n_entries).ok().filter(|&n| n <= most).ok_or_else(|| {
        Rejected::malformed("number of matrices", format!("at most {most}"), n_entries)
    })?;
    let mut rest = table;
    let mut entries = Vec::with_capacity(n_entries);
    let mut free = PAGE;
    for idx in 0..n_entries {
        let entry = read_entry(&mut rest)
            .ok_or_else(|| Rejected::malformed("table", "a whole entry", format!("{idx}th")))?;
        let Range { start, end } = entry.range;
        if !start.is_multiple_of(PAGE) || start < free || end > data_end {
            let expected = format!("a free place of whole pages within {free}..{data_end}");
            let got = format!("{start}..{end}");
            return Err(Rejected::malformed("place of a matrix", expected, got));
        }
        free = end;
        entries.push(entry);
    }
    if !rest.is_empty() {
        return Err(Rejected::malformed("table", "nothing after its entries", rest.len()));
    }
    Ok(entries)
}

fn read_entry(rest: &mut &[u8]) -> Option<Entry> {
    let recipe = read_text(rest)?;
    let layout = read_text(rest)?;
    let [n, k, start, n_bytes] = std::array::from_fn(|_| {
        let number = rest.split_off(..8)?.try_into().ok()?;
        usize::try_from(u64::from_le_bytes(number)).ok()
    });
    let checksum = u64::from_le_bytes(rest.split_off(..8)?.try_into().ok()?);
    let (n, k, start) = (n?, k?, start?);
    Some(Entry { recipe, layout, n, k, range: start..start.checked_add(n_bytes?)?, checksum })
}

fn read_text(rest: &mut &[u8]) -> Option<String> {
    let n_bytes = u32::from_le_bytes(rest.split_off(..4)?.try_into().ok()?);
    let text = rest.split_off(..usize::try_from(n_bytes).ok()?)?;
    std::str::from_utf8(text).ok().map(str::to_owned)
}
