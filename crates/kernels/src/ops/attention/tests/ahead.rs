//! Rows that see what follows them.

use super::case::Case;
use crate::testing::{Random, bits, row_cpus};
use crate::{AttentionSeq, Cpu, KvDtype};

/// Full and local attention over lengths below, at and beyond chunks.
fn cases(random: &mut Random) -> Vec<Case> {
    let mut cases = Vec::new();
    for (n, heads, head_dim) in
        [(1, (1, 1), 4), (17, (4, 2), 20), (256, (3, 3), 16), (257, (2, 1), 32), (530, (3, 1), 80)]
    {
        let mut case = Case::new(random, n, heads, head_dim);
        case.ahead = usize::MAX;
        cases.push(case.clone());
        case.bias = Some((random.normals(heads.0 * 61), 30));
        cases.push(case.clone());
        case.dtype = KvDtype::Bf16;
        (case.window, case.ahead) = (Some(65), 64);
        cases.push(case.clone());
        (case.window, case.ahead) = (Some(300), 1);
        cases.push(case);
    }
    cases
}

#[test]
fn rows_see_as_far_ahead_as_they_are_let() {
    let cpu = Cpu::with(crate::Kernels::best(), 1);
    for case in cases(&mut Random::new(110)) {
        case.assert_close(&case.run(&cpu, case.n_tokens(), 1));
    }
}

#[test]
fn instruction_sets_and_teams_return_the_same_bits_ahead() {
    let cpus = row_cpus();
    for case in cases(&mut Random::new(111)) {
        let expected = bits(&case.run(&cpus[0], case.n_tokens(), 1));
        for cpu in &cpus[1..] {
            let what = format!("{} x {}: {case}", cpu.kernels.name, cpu.team.n_threads());
            assert!(bits(&case.run(cpu, case.n_tokens(), 3)) == expected, "{what}");
        }
    }
}

#[test]
fn a_text_among_others_has_the_bits_of_the_text_alone() {
    let all = {
        let mut case = Case::new(&mut Random::new(112), 4 * 352, (4, 2), 32);
        (case.window, case.ahead) = (Some(200), 199);
        case
    };
    for cpu in row_cpus() {
        let (mut kv, table) = all.place(5);
        all.store(&cpu, &mut kv, &table, 0..4 * 352);
        // Each of 22 blocks of its own.
        let (width, mut row, mut sequences) = (all.width(), 0, Vec::new());
        for (i, n) in [3, 352, 256, 17].into_iter().enumerate() {
            let block_table = &table[22 * i..22 * (i + 1)];
            let rows = row..row + n;
            sequences.push(AttentionSeq { rows, first_position: 0, block_table, tree: None });
            row += n;
        }
        let q = &all.q[..row * width];
        let mut out = vec![f32::NAN; row * width];
        cpu.paged_attention(&kv, 1, &all.input(q, &sequences), &mut out);
        for sequence in &sequences {
            let range = sequence.rows.start * width..sequence.rows.end * width;
            let alone = [AttentionSeq { rows: 0..sequence.rows.len(), ..sequence.clone() }];
            let mut one = vec![f32::NAN; range.len()];
            cpu.paged_attention(&kv, 1, &all.input(&q[range.clone()], &alone), &mut one);
            assert!(bits(&one) == bits(&out[range]), "{} {:?}", cpu.kernels.name, sequence.rows);
        }
    }
}

#[test]
fn rows_of_another_text_that_see_all_of_this_one_have_the_bits_of_one_row_alone() {
    // Cross-attention: the rows end where the text ends, and so all of them see all of it.
    let mut case = Case::new(&mut Random::new(113), 300, (4, 2), 32);
    case.ahead = usize::MAX;
    for cpu in row_cpus() {
        let (mut kv, table) = case.place(6);
        case.store(&cpu, &mut kv, &table, 0..300);
        let (width, n_rows) = (case.width(), 9);
        let sequence = |n: usize| AttentionSeq {
            rows: 0..n,
            first_position: 300 - n,
            block_table: &table,
            tree: None,
        };
        let mut together = vec![f32::NAN; n_rows * width];
        let q = &case.q[..n_rows * width];
        cpu.paged_attention(&kv, 1, &case.input(q, &[sequence(n_rows)]), &mut together);
        for (row, expected) in together.chunks(width).enumerate() {
            let mut alone = vec![f32::NAN; width];
            let q = &case.q[row * width..(row + 1) * width];
            cpu.paged_attention(&kv, 1, &case.input(q, &[sequence(1)]), &mut alone);
            assert!(bits(&alone) == bits(expected), "{} row {row}", cpu.kernels.name);
        }
    }
}

#[test]
#[should_panic(expected = "invariant: no slopes ahead of a row")]
fn slopes_ahead_are_a_broken_invariant() {
    let mut case = Case::new(&mut Random::new(113), 20, (2, 2), 16);
    (case.ahead, case.slopes) = (1, Some(vec![0.5; 2]));
    case.run(&row_cpus()[0], 20, 1);
}

#[test]
#[should_panic(expected = "invariant: no row ahead in a segment")]
fn segments_ahead_are_a_broken_invariant() {
    let mut case = Case::new(&mut Random::new(114), 20, (2, 2), 16);
    (case.ahead, case.segment) = (1, Some(16));
    case.run(&row_cpus()[0], 20, 1);
}
