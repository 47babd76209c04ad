//! How weights lie in memory.

mod packed;
mod storage;
mod version;

pub use packed::{PANEL, PackedMatrix, WeightLayout};
pub(crate) use packed::{Q4_BLOCK, Q8_BLOCK, SCALE_BYTES, q4_at, q8_at};
pub use storage::Storage;
pub use version::LAYOUT_VERSION;
