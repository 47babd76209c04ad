//! Files of clients, and the batches that read and write them.
//!
//! ```text
//! without --files    in memory, all together at most MEMORY_BYTES; gone with the process
//! --files DIR        DIR/ID.data   the bytes
//!                    DIR/ID.json   name, purpose, tenant; or the state of a batch
//! ```
//!
//! A file or batch of another tenant is not there: the answer is that of an unknown id.

mod batches;
mod content;
mod record;
mod store;
mod upload;

pub(crate) use batches::Batches;
pub(crate) use content::Content;
pub(crate) use record::{BatchRecord, BatchStatus, FileRecord, Purpose};
pub(crate) use store::{Store, StoreError};
pub(crate) use upload::Upload;

/// Bytes of all files together, where they are in memory.
pub(crate) const MEMORY_BYTES: u64 = 256 << 20;
/// Bytes of all files together, where they are in a folder.
pub(crate) const FOLDER_BYTES: u64 = 1 << 40;
/// Largest file, in bytes.
pub(crate) const FILE_BYTES: u64 = 512 << 20;
/// Most files of a tenant, and most batches.
pub(crate) const MOST_ENTRIES: usize = 10_000;
