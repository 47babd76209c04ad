//! The number of the packed layouts, for whoever keeps packed bytes beyond the life of a process.

/// Version of all layouts together: **raise it whenever packing gives other bytes than before.**
///
/// Packed weights that were kept under another number are packed again. A new layout that leaves
/// the others as they are needs no new number, only a line in the test below.
pub const LAYOUT_VERSION: u32 = 1;

#[cfg(test)]
mod tests {
    use super::LAYOUT_VERSION;
    use crate::{Cpu, Kernels, PackedMatrix, WeightLayout};

    /// Layout, and FNV-1a of the packed bytes of the matrix below, under this version.
    const PINNED: (u32, &[(&str, u64)]) = (
        1,
        &[
            ("f32", 0xa161_1033_376c_ff32),
            ("f16", 0x8323_b1a2_9151_1e19),
            ("bf16", 0x4f62_558c_0e21_8d4d),
            ("q8", 0x7a78_6cd4_c4d8_8f62),
            ("q4", 0xaa64_fb5c_f579_86bc),
        ],
    );

    fn fnv1a(bytes: &[u8]) -> u64 {
        let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3);
        bytes.iter().fold(0xcbf2_9ce4_8422_2325, step)
    }

    #[test]
    fn no_layout_changes_without_a_new_version() {
        let cpu = Cpu::with(Kernels::best(), 1);
        let (n, k) = (21, 512);
        let found: Vec<_> = WeightLayout::ALL
            .iter()
            .map(|&layout| {
                let mut state = 9_u32;
                let source: Vec<u8> = (0..n * layout.row_bytes(k))
                    .map(|_| {
                        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                        (state >> 24) as u8
                    })
                    .collect();
                let row_bytes = layout.row_bytes(k);
                let row = |i: usize| &source[i * row_bytes..][..row_bytes];
                let packed = PackedMatrix::pack(&cpu, layout, n, k, &row);
                (layout.name(), fnv1a(packed.storage_bytes()))
            })
            .collect();
        assert_eq!(
            (LAYOUT_VERSION, found.as_slice()),
            PINNED,
            "a layout has changed: raise LAYOUT_VERSION and pin the new bytes"
        );
    }
}
