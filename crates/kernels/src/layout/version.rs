//! Version number of the packed layouts, for files that keep packed bytes between processes.

/// Version of all layouts together: **raise it whenever packing gives other bytes than before.**
///
/// Packed weights that were kept under another version are packed again. A new layout that leaves
/// the existing layouts unchanged needs no new version, only a line in the test below.
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
            ("fp8-e4m3", 0xeead_c8ac_a899_9858),
            ("fp8-e5m2", 0xeead_c8ac_a899_9858),
            ("nf4", 0x53b2_238b_b08c_aba8),
            ("fp4", 0x53b2_238b_b08c_aba8),
            ("q8", 0x8a5e_46d7_e32a_5562),
            ("int8-row", 0xfa73_1699_0505_8446),
            ("q4", 0xaa64_fb5c_f579_86bc),
            ("q4-min", 0xfa43_5efa_512c_cf09),
            ("int4-g32", 0x1455_5b8e_a3da_a382),
            ("int4-g64", 0xa8d4_b787_91ed_b53d),
            ("int4-g128", 0x7838_3324_106c_0169),
            ("affine2-g16", 0xa234_01c8_f02d_9dd6),
            ("affine2-g64", 0x330b_8177_9fe4_d966),
            ("affine4-g16", 0x8769_c284_1933_61ab),
            ("affine4-g32", 0xfa43_5efa_512c_cf09),
            ("affine4-g64", 0xc723_e3c4_53ef_2174),
            ("affine8-g32", 0xd7fb_4068_d09f_0f90),
            ("affine4-g32-f32", 0x0acc_8e18_c547_171f),
            ("affine8-g32-f32", 0x5bfb_67b3_57bd_b3e7),
            ("q5", 0xcb5a_53e0_3ff0_fdff),
            ("q5-min", 0xb456_c709_878d_a9cd),
            ("q2k", 0xc12c_344b_da6e_a3c7),
            ("q3k", 0x7cd2_e24d_f499_de30),
            ("q4k", 0x1d92_43b8_be41_31b4),
            ("q5k", 0x28ea_787b_0c8e_a494),
            ("q6k", 0xc665_0677_2978_b7f9),
            ("iq4nl", 0xaa64_fb5c_f579_86bc),
            ("iq4xs", 0xc6df_fd72_92f4_e556),
            ("mxfp4", 0x4547_d28e_fde1_8c81),
            ("nvfp4", 0x0928_9e0d_ed4b_0471),
            ("tq1", 0x6e63_5afe_a977_31c0),
            ("tq2", 0xc027_f616_1a99_83b3),
            ("iq1", 0x19f5_efb2_40e8_9b36),
            ("iq2", 0x19f5_efb2_40e8_9b36),
            ("iq3xxs", 0x0af4_d4c7_68ee_0aab),
            ("iq3s", 0x0af4_d4c7_68ee_0aab),
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
