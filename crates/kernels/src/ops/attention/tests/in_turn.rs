//! Rows of decoded tokens behind so many that their heads take turns at the blocks of the cache.

use super::case::Case;
use crate::testing::{Random, bits, row_cpus};
use crate::{AttentionSeq, KvDtype};

/// Query heads and KV heads: one, a few, more KV heads than take turns at a time, and more query
/// heads of a KV head than are computed together; and elements of a head.
const SHAPES: [((usize, usize), usize); 6] =
    [((3, 1), 64), ((2, 2), 96), ((12, 3), 32), ((9, 9), 32), ((40, 20), 32), ((34, 2), 64)];

#[test]
fn heads_that_take_turns_have_the_bits_of_the_scalar_kernel() {
    let mut random = Random::new(95);
    let cpus = row_cpus();
    for (((heads, dim), dtype), n_less) in SHAPES
        .into_iter()
        .flat_map(|shape| KvDtype::ALL.map(|dtype| (shape, dtype)))
        .zip([0, 1, 17, 33, 100].into_iter().cycle())
    {
        let mut case = Case::new(&mut random, 2304 - n_less, heads, dim);
        case.dtype = dtype;
        case.sinks = (n_less == 1).then(|| random.normals(heads.0));
        case.softcap = (n_less == 17).then_some(3.0);
        case.slopes = (n_less == 33).then(|| vec![0.01; heads.0]);
        let expected = bits(&case.run_last(&cpus[0], 1, 1));
        for cpu in &cpus[1..] {
            let got = bits(&case.run_last(cpu, 1, 9));
            assert!(got == expected, "{} x {}: {case}", cpu.kernels.name, cpu.team.n_threads());
        }
    }
}

/// Windows that end within a block, beside values that are not finite.
#[test]
fn a_value_before_the_window_leaves_no_trace() {
    let mut random = Random::new(96);
    let cpus = row_cpus();
    for (window, dtype) in
        [2048, 2050, 2087].into_iter().flat_map(|window| KvDtype::ALL.map(|dtype| (window, dtype)))
    {
        let mut clean = Case::new(&mut random, 2300, (8, 2), 64);
        (clean.window, clean.dtype) = (Some(window), dtype);
        let mut hurt = clean.clone();
        let first = 2300 - window;
        hurt.v[(first - 1) * 2 * 64 + 64..first * 2 * 64].fill(f32::NAN);
        let expected = bits(&clean.run_last(&cpus[0], 1, 1));
        for cpu in &cpus {
            for case in [&clean, &hurt] {
                let got = bits(&case.run_last(cpu, 1, 9));
                assert!(got == expected, "{} x {}: {case}", cpu.kernels.name, cpu.team.n_threads());
            }
        }
    }
}

#[test]
fn decoded_tokens_of_several_sequences_have_the_bits_of_each_alone() {
    let mut random = Random::new(97);
    let all = Case::new(&mut random, 4 * 1200, (12, 3), 64);
    for dtype in KvDtype::ALL {
        let all = Case { dtype, ..all.clone() };
        for cpu in row_cpus() {
            let (mut kv, table) = all.place(5);
            all.store(&cpu, &mut kv, &table, 0..4 * 1200);
            let lengths = [1200, 3, 800, 1025];
            let sequences = [0, 1, 2, 3].map(|i| AttentionSeq {
                rows: i..i + 1,
                first_position: lengths[i] - 1,
                block_table: &table[75 * i..75 * (i + 1)],
                tree: None,
            });
            let width = all.width();
            let q = &all.q[..4 * width];
            let mut out = vec![f32::NAN; 4 * width];
            cpu.paged_attention(&kv, 1, &all.input(q, &sequences), &mut out);
            for (i, seq) in sequences.iter().enumerate() {
                let alone = [AttentionSeq { rows: 0..1, ..seq.clone() }];
                let range = i * width..(i + 1) * width;
                let mut one = vec![0.0; width];
                cpu.paged_attention(&kv, 1, &all.input(&q[range.clone()], &alone), &mut one);
                assert!(bits(&one) == bits(&out[range]), "{dtype} {}", cpu.kernels.name);
            }
        }
    }
}
