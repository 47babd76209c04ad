//! Values that are the beginnings of their keys.

use super::case::Case;
use crate::testing::{Random, bits, row_cpus};
use crate::{AttentionSeq, KvDtype};

/// Types without scales: with them, a key and its beginning are rounded in different ways.
const UNSCALED: [KvDtype; 4] = [KvDtype::F32, KvDtype::Bf16, KvDtype::F16, KvDtype::Fp8];

#[test]
fn values_in_keys_have_the_bits_of_values_beside_them() {
    let mut random = Random::new(80);
    for (n, n_heads, dims, block_size) in [
        (20, 1, (1, 1), 1),
        (90, 3, (20, 7), 5),
        (280, 2, (64, 64), 16),
        (300, 24, (40, 32), 24),
        (520, 16, (576, 512), 16),
    ] {
        for dtype in UNSCALED {
            for window in [None, Some(29)] {
                let mut case = Case::new(&mut random, n, (n_heads, 1), dims.0);
                (case.dtype, case.block_size, case.window) = (dtype, block_size, window);
                let beside = case.clone().with_latent_values(dims.1, false);
                let within = case.with_latent_values(dims.1, true);
                for cpu in row_cpus() {
                    let n_rows = n.min(40);
                    let expected = bits(&beside.run_last(&cpu, n_rows, 1));
                    let got = bits(&within.run_last(&cpu, n_rows, 2));
                    assert!(got == expected, "{} {within}", cpu.kernels.name);
                }
            }
        }
    }
}

#[test]
fn a_tree_of_drafts_reads_values_in_keys_along_its_paths() {
    const ROOT: u32 = AttentionSeq::ROOT;
    let mut random = Random::new(81);
    for n_before in [3, 250, 255, 300] {
        for dtype in UNSCALED {
            let tree = vec![ROOT, 0, 0, ROOT, 2, 4, 1, 5];
            let mut case = Case::new(&mut random, n_before + tree.len(), (5, 1), 40);
            (case.dtype, case.block_size, case.tree) = (dtype, 5, Some(tree));
            let beside = case.clone().with_latent_values(32, false);
            let within = case.with_latent_values(32, true);
            for cpu in row_cpus() {
                let expected = bits(&beside.run(&cpu, 64, 1));
                assert!(
                    bits(&within.run(&cpu, 64, 2)) == expected,
                    "{} {within}",
                    cpu.kernels.name
                );
            }
        }
    }
}

#[test]
fn hostile_latents_harm_only_the_rows_that_see_them() {
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, f32::MAX] {
        for dtype in KvDtype::ALL {
            let mut case = Case::new(&mut Random::new(82), 300, (3, 1), 40);
            case.dtype = dtype;
            let cpus = row_cpus();
            let clean = case.clone().with_latent_values(32, true).run(&cpus[0], 300, 1);
            case.k[261 * 40..261 * 40 + 32].fill(bad);
            let case = case.with_latent_values(32, true);
            let expected = case.run(&cpus[0], 300, 1);
            for cpu in &cpus {
                for step in [300, 13] {
                    let got = case.run(cpu, step, 2);
                    assert!(bits(&got) == bits(&expected), "{} {bad} {dtype}", cpu.kernels.name);
                    let before = 261 * case.out_width();
                    assert!(bits(&got[..before]) == bits(&clean[..before]), "{bad} leaked back");
                }
            }
        }
    }
}
