//! The head of a cache file.
//!
//! ```text
//!  0   8  magic "PELTPACK"                48   8  length of the file
//!  8   4  version of the format: 1        56   8  where the table begins
//! 12   4  version of the layouts          64   8  bytes of the table
//! 16   8  XXH3-64 of the load options     72   8  XXH3-64 of the table
//! 24   8  entries of the table            80   8  XXH3-64 of bytes 0..80
//! 32  16  fingerprint of the source       88      zeros up to 4096
//! ```

use super::identity::Identity;
use super::rejected::Rejected;
use super::{PAGE, checksum};

const MAGIC: &[u8; 8] = b"PELTPACK";
/// The version that is written, and the only one that is read.
const VERSION: u32 = 1;
/// Bytes that the last field of the head is the checksum of.
const SUMMED: usize = 80;
/// Bytes of the fields.
const HEAD_BYTES: usize = SUMMED + 8;

/// The fields of the head.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Head {
    pub(super) identity: Identity,
    pub(super) n_entries: u64,
    pub(super) file_bytes: u64,
    pub(super) table_start: u64,
    pub(super) table_bytes: u64,
    pub(super) table_checksum: u64,
}

impl Head {
    /// The first page of a file.
    pub(super) fn to_page(self) -> Vec<u8> {
        let mut page = Vec::with_capacity(PAGE);
        page.extend_from_slice(MAGIC);
        page.extend_from_slice(&VERSION.to_le_bytes());
        page.extend_from_slice(&self.identity.layouts.to_le_bytes());
        page.extend_from_slice(&self.identity.options.to_le_bytes());
        page.extend_from_slice(&self.n_entries.to_le_bytes());
        page.extend_from_slice(&self.identity.source.to_le_bytes());
        for field in [self.file_bytes, self.table_start, self.table_bytes, self.table_checksum] {
            page.extend_from_slice(&field.to_le_bytes());
        }
        debug_assert_eq!(page.len(), SUMMED);
        page.extend_from_slice(&checksum::of_bytes(&page).to_le_bytes());
        page.resize(PAGE, 0);
        page
    }

    /// Reads and checks the head of a file: its form, not whether it is the one wanted.
    pub(super) fn read(file: &[u8]) -> Result<Self, Rejected> {
        if file.len() < PAGE {
            let expected = format!("at least {PAGE} bytes");
            return Err(Rejected::malformed("length", expected, file.len()));
        }
        let field = |at: usize| {
            u64::from_le_bytes(file[at..at + 8].try_into().expect("invariant: eight bytes"))
        };
        let (low, high) = (field(8) as u32, (field(8) >> 32) as u32);
        if &file[..8] != MAGIC {
            return Err(Rejected::malformed("magic", "`PELTPACK`", file[..8].escape_ascii()));
        }
        if low != VERSION {
            return Err(Rejected::malformed("version of the format", VERSION, low));
        }
        if checksum::of_bytes(&file[..SUMMED]) != field(SUMMED) {
            return Err(Rejected::malformed("head", "bytes of its checksum", "others"));
        }
        const { assert!(HEAD_BYTES <= PAGE) };
        let source = u128::from(field(32)) | u128::from(field(40)) << 64;
        let head = Self {
            identity: Identity { layouts: high, options: field(16), source },
            n_entries: field(24),
            file_bytes: field(48),
            table_start: field(56),
            table_bytes: field(64),
            table_checksum: field(72),
        };
        if head.file_bytes != file.len() as u64 {
            return Err(Rejected::malformed("length", head.file_bytes, file.len()));
        }
        Ok(head)
    }

    /// Refuses what was made from or for something else.
    pub(super) fn check_identity(&self, wanted: &Identity) -> Result<(), Rejected> {
        let found = &self.identity;
        Err(Rejected::Other(if found.layouts != wanted.layouts {
            "it was written by a version that packs differently"
        } else if found.source != wanted.source {
            "the model's files have changed since"
        } else if found.options != wanted.options {
            "it was packed with other options"
        } else {
            return Ok(());
        }))
    }

    /// The bytes of the table.
    pub(super) fn table<'f>(&self, file: &'f [u8]) -> Result<&'f [u8], Rejected> {
        let range = || {
            let start = usize::try_from(self.table_start).ok()?;
            let end = start.checked_add(usize::try_from(self.table_bytes).ok()?)?;
            (start >= PAGE).then_some(start..end)
        };
        let table = range()
            .and_then(|range| file.get(range))
            .ok_or_else(|| Rejected::malformed("table", "a place in the file", self.table_start))?;
        if checksum::of_bytes(table) != self.table_checksum {
            return Err(Rejected::malformed("table", "bytes of its checksum", "others"));
        }
        Ok(table)
    }
}
