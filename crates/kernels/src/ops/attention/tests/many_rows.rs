//! Shapes of many rows, which have kernels of their own: tile registers, and keys and values that are
//! widened once for all rows.

use super::case::Case;
use crate::KvDtype;
use crate::testing::{Random, bits, row_cpus};

/// A case of keys of `dims.0` elements and values of `dims.1`.
fn case(random: &mut Random, n: usize, heads: (usize, usize), dims: (usize, usize)) -> Case {
    let mut case = Case::new(random, n, heads, dims.0);
    case.value_dim = dims.1;
    case.v = random.normals(n * heads.1 * dims.1);
    case
}

#[test]
fn blocks_of_every_height_and_width_have_the_bits_of_the_scalar_kernel() {
    let mut random = Random::new(90);
    let cpus = row_cpus();
    // The scalar kernel on other teams and in steps is for the tests of all kernels (`random`).
    let (scalar, others) = cpus.split_at(2);
    for (n, heads, dims, window) in [
        // One tile of rows; two; more than an item holds; the last values alone in their tile.
        (7, (6, 1), (32, 16), None),
        (40, (14, 2), (64, 64), None),
        (330, (16, 1), (64, 48), None),
        (300, (9, 1), (96, 80), Some(100)),
        (530, (2, 1), (128, 20), Some(300)),
        (600, (7, 1), (32, 33), Some(31)),
    ] {
        let mut case = case(&mut random, n, heads, dims);
        case.window = window;
        case.sinks = Some(random.normals(heads.0));
        for (dtype, block_size) in
            KvDtype::ALL.into_iter().flat_map(|dtype| [(dtype, 16), (dtype, 48)])
        {
            (case.dtype, case.block_size) = (dtype, block_size);
            let expected = case.run(&scalar[0], n, 1);
            case.assert_close(&expected);
            let expected = bits(&expected);
            for cpu in others {
                for step in [n, 100, 13] {
                    let got = bits(&case.run(cpu, step, 2));
                    let team = cpu.team.n_threads();
                    assert!(got == expected, "{} x {team}, {step}: {case}", cpu.kernels.name);
                }
            }
        }
    }
}

/// Weights near each other have exact sums in any order; these are not.
#[test]
fn weights_of_all_sizes_are_added_up_in_one_order() {
    let mut random = Random::new(93);
    let cpus = row_cpus();
    let mut case = case(&mut random, 600, (8, 1), (64, 64));
    case.q.iter_mut().for_each(|q| *q *= 6.0);
    for dtype in KvDtype::ALL {
        case.dtype = dtype;
        let expected = bits(&case.run(&cpus[0], 600, 1));
        for cpu in &cpus[1..] {
            let got = bits(&case.run(cpu, 600, 1));
            assert!(got == expected, "{}, {dtype}", cpu.kernels.name);
        }
    }
}

/// A block whose columns some rows do not see is multiplied whole, unless one of its values is not
/// finite; such a value reaches the rows that see it and no other.
#[test]
fn a_value_that_is_not_finite_reaches_only_the_rows_that_see_it() {
    let mut random = Random::new(91);
    let places = [(5, None), (40, Some(20)), (255, None), (280, Some(64))];
    for ((at, window), dtype) in
        places.into_iter().flat_map(|at| KvDtype::ALL.map(|dtype| (at, dtype)))
    {
        let mut clean = case(&mut random, 300, (8, 1), (64, 64));
        (clean.window, clean.dtype) = (window, dtype);
        let mut hurt = clean.clone();
        hurt.v[at * 64 + 7] = f32::INFINITY;
        hurt.v[at * 64 + 8] = f32::NAN;
        for cpu in row_cpus() {
            let (clean, hurt) = (clean.run(&cpu, 300, 1), hurt.run(&cpu, 300, 1));
            for row in 0..300 {
                let sees = row >= at && window.is_none_or(|window| row < at + window);
                for i in row * 8 * 64..(row + 1) * 8 * 64 {
                    let what = format!("{}: {dtype}, row {row}, element {i}", cpu.kernels.name);
                    match (i % 64, dtype) {
                        (7, KvDtype::F32 | KvDtype::F16 | KvDtype::Bf16) if sees => {
                            assert!(hurt[i] == f32::INFINITY, "{what}");
                        }
                        // The largest number of fp8 stands for infinity.
                        (7, KvDtype::Fp8) if sees => assert!(hurt[i].is_finite(), "{what}"),
                        (8, _) if sees => assert!(hurt[i].is_nan(), "{what}"),
                        // The elements of a value have one scale.
                        (_, KvDtype::Int8) if sees => assert!(hurt[i].is_nan(), "{what}"),
                        _ => assert!(hurt[i].to_bits() == clean[i].to_bits(), "{what}"),
                    }
                }
            }
        }
    }
}

/// Products and sums of the smallest factors that are stored are not subnormal, where instructions
/// would differ.
#[test]
fn tiny_queries_keys_and_values_have_the_same_bits_everywhere() {
    let mut random = Random::new(92);
    let cpus = row_cpus();
    let exponents = [-149, -126, -100, -75, -51, -50, -49, -44, -43];
    for (exponent, dtype) in
        exponents.into_iter().flat_map(|e| KvDtype::ALL.map(|dtype| (e, dtype)))
    {
        let mut case = case(&mut random, 150, (8, 1), (64, 64));
        case.dtype = dtype;
        let factor = 2_f64.powi(exponent);
        for x in case.q.iter_mut().chain(&mut case.k).chain(&mut case.v) {
            *x = (f64::from(*x) * factor) as f32;
        }
        let expected = bits(&case.run(&cpus[0], 150, 1));
        for cpu in &cpus[1..] {
            let got = bits(&case.run(cpu, 150, 1));
            assert!(got == expected, "{}: {dtype}, 2^{exponent}", cpu.kernels.name);
        }
    }
}
