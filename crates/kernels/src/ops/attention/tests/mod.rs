//! Attention against the formula, and against itself in every other way of asking.

mod ahead;
mod case;
mod in_turn;
mod latent;
mod many_rows;
mod random;
mod sinks;
mod spans;
mod tree;

use crate::testing::{Random, bits, row_cpus};
use crate::{AttentionSeq, Cpu, KvDtype, StridedRows};
use case::Case;

/// Shapes that meet every tail: heads, groups, dimensions, block sizes, windows, caps, types.
fn cases(random: &mut Random) -> Vec<Case> {
    let mut cases = Vec::new();
    for (n, heads, head_dim, block_size) in [
        (1, (1, 1), 1, 16),
        (5, (3, 1), 7, 4),
        (40, (4, 2), 64, 16),
        (70, (7, 1), 20, 5),
        (90, (20, 1), 32, 64),
        (300, (2, 2), 16, 1),
        (530, (3, 1), 80, 24),
        (600, (2, 1), 128, 512),
    ] {
        let mut case = Case::new(random, n, heads, head_dim);
        case.block_size = block_size;
        cases.push(case.clone());
        case.window = Some(37);
        case.dtype = KvDtype::Bf16;
        cases.push(case.clone());
        case.window = Some(1);
        case.softcap = Some(3.0);
        cases.push(case.clone());
        case.window = Some(270);
        cases.push(case);
    }
    for (n, n_heads, dims, block_size) in [
        (40, 1, (3, 1), 16),
        (70, 3, (24, 17), 5),
        (300, 20, (40, 32), 16),
        (530, 33, (48, 32), 24),
    ] {
        let mut case = Case::new(random, n, (n_heads, 1), dims.0).with_latent_values(dims.1, true);
        case.block_size = block_size;
        cases.push(case.clone());
        case.window = Some(37);
        case.dtype = KvDtype::Bf16;
        cases.push(case.clone());
        case.dtype = KvDtype::Int8;
        cases.push(case);
    }
    cases
}

#[test]
fn attention_is_close_to_the_formula() {
    let cpu = Cpu::with(crate::Kernels::best(), 1);
    for case in cases(&mut Random::new(50)) {
        let got = case.run(&cpu, case.n_tokens(), 1);
        case.assert_close(&got);
    }
}

#[test]
fn instruction_sets_and_teams_return_the_bits_of_the_scalar_kernel() {
    let cpus = row_cpus();
    for case in cases(&mut Random::new(51)) {
        let expected = bits(&case.run(&cpus[0], case.n_tokens(), 1));
        for cpu in &cpus[1..] {
            let what = format!("{} x {}: {}", cpu.kernels.name, cpu.team.n_threads(), case);
            assert!(bits(&case.run(cpu, case.n_tokens(), 1)) == expected, "{what}");
        }
    }
}

#[test]
fn a_prompt_in_chunks_on_other_pages_has_the_bits_of_the_whole() {
    let cpu = Cpu::with(crate::Kernels::best(), 2);
    for case in cases(&mut Random::new(52)) {
        let expected = bits(&case.run(&cpu, case.n_tokens(), 1));
        for (step, seed) in [(1, 1), (7, 2), (64, 3), (257, 4)] {
            let got = bits(&case.run(&cpu, step, seed));
            assert!(got == expected, "{}, in steps of {step}", case);
        }
    }
}

#[test]
fn the_block_size_leaves_no_trace() {
    let cpu = Cpu::with(crate::Kernels::best(), 1);
    let mut case = Case::new(&mut Random::new(53), 530, (4, 2), 32);
    case.window = Some(300);
    let expected = bits(&case.run(&cpu, 530, 1));
    for block_size in [1, 3, 8, 24, 32, 100, 256, 1000] {
        case.block_size = block_size;
        assert!(bits(&case.run(&cpu, 530, 2)) == expected, "blocks of {block_size}");
    }
}

#[test]
fn one_long_sequence_cut_by_chunks_has_the_bits_of_one_thread() {
    let mut random = Random::new(54);
    let mut case = Case::new(&mut random, 3000, (6, 2), 64);
    for dtype in KvDtype::ALL {
        case.dtype = dtype;
        for n_rows in [1, 3] {
            let cpus = row_cpus();
            let expected = bits(&case.run_last(&cpus[0], n_rows, 1));
            for cpu in &cpus {
                let got = bits(&case.run_last(cpu, n_rows, 9));
                assert!(got == expected, "{} x {}", cpu.kernels.name, cpu.team.n_threads());
            }
            let whole = bits(&case.run(&cpus[cpus.len() - 1], 3000, 3));
            assert!(whole[whole.len() - expected.len()..] == expected[..], "decode = prefill");
        }
    }
}

#[test]
fn a_batch_of_eight_sequences_is_eight_batches_of_one() {
    let mut random = Random::new(55);
    let all = Case::new(&mut random, 8 * 700, (4, 2), 32);
    for cpu in row_cpus() {
        let (mut kv, table) = all.place(5);
        all.store(&cpu, &mut kv, &table, 0..8 * 700);
        // Eight sequences of different lengths and numbers of new rows, in one cache: sequence `i`
        // owns the 43 blocks from `43 * i` on.
        let width = all.width();
        let lengths = [1, 17, 256, 257, 300, 512, 600, 650];
        let n_rows = [1, 5, 1, 2, 20, 1, 1, 40];
        let mut sequences = Vec::new();
        let mut row = 0;
        for i in 0..8 {
            sequences.push(AttentionSeq {
                rows: row..row + n_rows[i],
                first_position: lengths[i] - n_rows[i],
                block_table: &table[43 * i..43 * (i + 1)],
                tree: None,
            });
            row += n_rows[i] + 1;
        }
        // A row between sequences belongs to none.
        let q = &all.q[..row * width];
        let mut out = vec![7.0; row * width];
        cpu.paged_attention(&kv, 1, &all.input(q, &sequences), &mut out);
        for seq in &sequences {
            let range = seq.rows.start * width..seq.rows.end * width;
            let alone = [AttentionSeq { rows: 0..seq.rows.len(), ..seq.clone() }];
            let mut one = vec![0.0; range.len()];
            cpu.paged_attention(&kv, 1, &all.input(&q[range.clone()], &alone), &mut one);
            assert!(bits(&one) == bits(&out[range]), "{} {:?}", cpu.kernels.name, seq.rows);
            let gap = seq.rows.end * width..(seq.rows.end + 1) * width;
            assert!(out[gap].iter().all(|&x| x == 7.0), "a row of no sequence is left alone");
        }
    }
}

#[test]
fn queries_inside_a_wider_matrix_are_the_same_queries() {
    let case = Case::new(&mut Random::new(56), 50, (4, 2), 16);
    let cpu = Cpu::with(crate::Kernels::best(), 1);
    let expected = case.run_last(&cpu, 50, 1);
    let (mut kv, table) = case.place(1);
    case.store(&cpu, &mut kv, &table, 0..50);
    let (stride, offset) = (64 + 40, 13);
    let mut q = vec![f32::NAN; 50 * stride];
    for row in 0..50 {
        q[row * stride + offset..][..64].copy_from_slice(&case.q[row * 64..(row + 1) * 64]);
    }
    let sequences =
        [AttentionSeq { rows: 0..50, first_position: 0, block_table: &table, tree: None }];
    let mut input = case.input(&q, &sequences);
    input.q = StridedRows { data: &q, stride, offset };
    let mut out = vec![0.0; 50 * 64];
    cpu.paged_attention(&kv, 1, &input, &mut out);
    assert_eq!(bits(&out), bits(&expected));
}

#[test]
fn a_row_that_sees_nothing_gives_zeros() {
    for cpu in row_cpus() {
        let mut case = Case::new(&mut Random::new(57), 20, (4, 2), 16);
        case.window = Some(0);
        assert!(case.run(&cpu, 20, 1).iter().all(|x| x.to_bits() == 0));
    }
}

#[test]
fn scores_of_minus_infinity_alone_give_zeros() {
    for cpu in row_cpus() {
        let mut case = Case::new(&mut Random::new(58), 20, (1, 1), 4);
        case.q.fill(f32::MAX);
        case.k.fill(f32::MIN);
        assert!(case.run(&cpu, 20, 1).iter().all(|&x| x == 0.0));
    }
}

#[test]
fn hostile_keys_and_values_harm_only_the_rows_that_see_them() {
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, f32::MAX] {
        for dtype in KvDtype::ALL {
            let mut case = Case::new(&mut Random::new(59), 300, (6, 2), 32);
            case.dtype = dtype;
            let cpus = row_cpus();
            let clean = case.run(&cpus[0], 300, 1);
            let at = 261 * 2 * 32;
            case.k[at..at + 32].fill(bad);
            case.v[at..at + 64].fill(bad);
            let expected = case.run(&cpus[0], 300, 1);
            for cpu in &cpus {
                for step in [300, 13] {
                    let got = case.run(cpu, step, 2);
                    assert!(bits(&got) == bits(&expected), "{} {bad} {dtype}", cpu.kernels.name);
                    let before = 261 * 6 * 32;
                    assert!(bits(&got[..before]) == bits(&clean[..before]), "{bad} leaked back");
                }
            }
        }
    }
}

#[test]
#[should_panic(expected = "invariant: 50 tokens in 3 blocks")]
fn a_block_table_that_is_too_short_is_a_broken_invariant() {
    let case = Case::new(&mut Random::new(60), 50, (4, 2), 16);
    let (kv, table) = case.place(1);
    let sequences =
        [AttentionSeq { rows: 0..50, first_position: 0, block_table: &table[..3], tree: None }];
    let mut out = vec![0.0; 50 * 64];
    row_cpus()[0].paged_attention(&kv, 1, &case.input(&case.q, &sequences), &mut out);
}

#[test]
#[should_panic(expected = "invariant: block 99 of 7")]
fn a_block_that_does_not_exist_is_a_broken_invariant() {
    let case = Case::new(&mut Random::new(61), 50, (4, 2), 16);
    let (kv, mut table) = case.place(1);
    table[2] = 99;
    let sequences =
        [AttentionSeq { rows: 0..50, first_position: 0, block_table: &table, tree: None }];
    let mut out = vec![0.0; 50 * 64];
    row_cpus()[0].paged_attention(&kv, 1, &case.input(&case.q, &sequences), &mut out);
}

#[test]
#[should_panic(expected = "invariant: rows of sequences ascend")]
fn sequences_that_share_a_row_are_a_broken_invariant() {
    let case = Case::new(&mut Random::new(62), 50, (4, 2), 16);
    let (kv, table) = case.place(1);
    let seq = AttentionSeq { rows: 0..50, first_position: 0, block_table: &table, tree: None };
    let sequences = [seq.clone(), seq];
    let mut out = vec![0.0; 50 * 64];
    row_cpus()[0].paged_attention(&kv, 1, &case.input(&case.q, &sequences), &mut out);
}
