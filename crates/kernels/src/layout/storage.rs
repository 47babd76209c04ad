//! Where the bytes of a packed matrix live: in memory of their own, or in a mapped file.
//!
//! ```text
//! Packed   ....[ matrix ][==== part ====]....           packed by this process; huge pages that the
//!                                                      matrices of a model share
//! Mapped   file ....[==== range ====].......           packed by an earlier one; the system's
//!                   ^ address a multiple of 64         cache is the only copy
//! ```
//!
//! A mapped matrix is never written to and keeps its file mapped, also when the file's name is
//! gone. Its pages are the system's ordinary 4 KiB ones, where packed ones are of 2 MiB; that
//! is the price of having no copy.

use std::ops::Range;
use std::sync::Arc;

use pelton_tensor::{ALIGNMENT, MappedFile, Part};

/// The bytes of a packed matrix, aligned to [`ALIGNMENT`].
#[derive(Clone, Debug)]
pub struct Storage(Place);

#[derive(Clone, Debug)]
enum Place {
    Packed(Arc<Part>),
    /// Invariant: the range lies in the file, and its first byte is aligned.
    Mapped {
        file: Arc<MappedFile>,
        range: Range<usize>,
    },
}

impl Storage {
    /// Bytes `range` of a file; `None` when they are not all there or not aligned.
    pub fn mapped(file: Arc<MappedFile>, range: Range<usize>) -> Option<Self> {
        let bytes = file.bytes().get(range.clone())?;
        let is_aligned = (bytes.as_ptr() as usize).is_multiple_of(ALIGNMENT);
        (bytes.is_empty() || is_aligned).then_some(Self(Place::Mapped { file, range }))
    }

    /// A copy of these bytes in an allocation that ends with them and is aligned to nothing: a
    /// memory checker sees reads beyond it. (It does not watch maps, and they end on whole pages.)
    #[cfg(test)]
    pub(crate) fn on_heap(bytes: &[u8]) -> Self {
        let range = 0..bytes.len();
        Self(Place::Mapped { file: Arc::new(MappedFile::from_vec("heap", bytes.to_vec())), range })
    }

    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        match &self.0 {
            Place::Packed(part) => part.bytes(),
            Place::Mapped { file, range } => &file.bytes()[range.clone()],
        }
    }

    /// Size in bytes.
    pub fn n_bytes(&self) -> usize {
        self.bytes().len()
    }
}

impl From<Part> for Storage {
    fn from(part: Part) -> Self {
        Self(Place::Packed(Arc::new(part)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Cpu, Kernels, PackedMatrix, WeightLayout};

    /// Bytes as a mapped file, `n_before` bytes of something else before them.
    fn mapped(n_before: usize, bytes: &[u8]) -> Arc<MappedFile> {
        let folder = tempfile::tempdir().expect("temp");
        let path = folder.path().join("file");
        std::fs::write(&path, [&vec![1; n_before], bytes].concat()).expect("written");
        // The folder goes, the map stays.
        Arc::new(MappedFile::open(&path).expect("opens"))
    }

    #[test]
    fn a_range_outside_of_the_file_or_off_the_line_is_no_storage() {
        let file = mapped(0, &[7; 500]);
        assert_eq!(Storage::mapped(file.clone(), 64..500).expect("fits").bytes(), [7; 436]);
        assert_eq!(Storage::mapped(file.clone(), 128..128).expect("empty").n_bytes(), 0);
        for range in [64..501, 501..502, usize::MAX - 1..usize::MAX, 1..65, 32..96] {
            assert!(Storage::mapped(file.clone(), range.clone()).is_none(), "{range:?}");
        }
        #[expect(clippy::reversed_empty_ranges, reason = "as a hostile file may say")]
        let reversed = 128..64;
        assert!(Storage::mapped(file, reversed).is_none());
    }

    #[test]
    fn a_mapped_matrix_is_the_packed_one_and_a_misfit_is_refused() {
        let cpu = Cpu::with(Kernels::best(), 1);
        for &layout in WeightLayout::ALL {
            let (n, k) = (33, 2 * layout.block_len().max(32));
            let row: Vec<u8> = (0..layout.row_bytes(k)).map(|i| i as u8).collect();
            let packed = PackedMatrix::pack(&cpu, layout, n, k, &|_| &row);
            let bytes = packed.storage_bytes();
            let file = mapped(4096, bytes);
            let range = 4096..4096 + bytes.len();
            let storage = Storage::mapped(file, range).expect("aligned");
            let restore = |n, k| PackedMatrix::from_storage(layout, n, k, storage.clone());
            let restored = restore(n, k).expect("fits");
            assert_eq!(restored.storage_bytes(), bytes);
            let (mut a, mut b) = (vec![0.0_f32; k], vec![0.0_f32; k]);
            for row in 0..n {
                packed.unpack_row_f32(row, &mut a);
                restored.unpack_row_f32(row, &mut b);
                assert_eq!(a.map_bits(), b.map_bits(), "{layout:?} {row}");
            }
            let step = layout.block_len();
            let misfits = [(n + 16, k), (n, k + 2 * step), (n, 33), (0, k), (n, 0)];
            let huge = [(usize::MAX, k), (n, usize::MAX), (usize::MAX, usize::MAX & !31)];
            for (n, k) in misfits.into_iter().chain(huge) {
                assert!(restore(n, k).is_none(), "{layout:?} {n} {k}");
            }
        }
    }

    trait MapBits {
        fn map_bits(&self) -> Vec<u32>;
    }

    impl MapBits for Vec<f32> {
        fn map_bits(&self) -> Vec<u32> {
            self.iter().map(|x| x.to_bits()).collect()
        }
    }
}
