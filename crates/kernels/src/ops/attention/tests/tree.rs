//! A row of a tree has the bits of a chain of its path.

use super::case::Case;
use crate::testing::{Random, bits, row_cpus};
use crate::{AttentionSeq, Cpu, Kernels, KvDtype};

/// Parents of `n` drafts: some begin anew, some follow the one before, some any one before.
pub(super) fn any_tree(random: &mut Random, n: usize) -> Vec<u32> {
    let parent = |row: usize| match random.below(6) {
        _ if row == 0 => AttentionSeq::ROOT,
        0 => AttentionSeq::ROOT,
        1..=3 => row as u32 - 1,
        _ => random.below(row) as u32,
    };
    (0..n).map(parent).collect()
}

/// The committed tokens of `case`, and the path of row `row` after them.
fn chain(case: &Case, row: usize) -> Case {
    let tokens = Case { window: None, ..case.clone() }.seen(row);
    let take = |x: &[f32], width: usize| -> Vec<f32> {
        tokens.iter().flat_map(|t| &x[t * width..(t + 1) * width]).copied().collect()
    };
    let width = case.n_kv_heads * case.head_dim;
    Case {
        tree: None,
        q: take(&case.q, case.width()),
        k: take(&case.k, width),
        v: take(&case.v, width),
        ..case.clone()
    }
}

#[test]
fn a_row_of_a_tree_has_the_bits_of_its_path_as_a_chain() {
    let mut random = Random::new(80);
    for n_committed in [0, 5, 230, 250, 256, 500] {
        for dtype in KvDtype::ALL {
            let mut case = Case::new(&mut random, n_committed + 45, (6, 2), 24);
            case.dtype = dtype;
            case.tree = Some(any_tree(&mut random, 45));
            case.sinks = Some(random.normals(6));
            case.window = [None, Some(3), Some(12), Some(260)][random.below(4)];
            case.block_size = [5, 16, 24][random.below(3)];
            let cpus = row_cpus();
            let expected: Vec<f32> = (n_committed..case.n_tokens())
                .flat_map(|row| chain(&case, row).run_last(&cpus[0], 1, 2))
                .collect();
            for cpu in &cpus {
                let got = case.run(cpu, 300, 1);
                let got = &got[n_committed * case.width()..];
                assert!(bits(got) == bits(&expected), "{}: {case}", cpu.kernels.name);
            }
        }
    }
}

#[test]
fn a_tree_without_branches_is_a_chain() {
    let mut random = Random::new(81);
    // Longer than a chunk, so that paths begin and end in other chunks than their rows.
    let mut case = Case::new(&mut random, 600, (4, 2), 16);
    for cpu in row_cpus() {
        case.tree = None;
        let expected = case.run(&cpu, 600, 1);
        case.tree = Some((0..580).map(|row: u32| row.wrapping_sub(1)).collect());
        assert_eq!(bits(&case.run(&cpu, 20, 2)), bits(&expected), "{}", cpu.kernels.name);
    }
}

#[test]
fn a_hostile_draft_harms_only_its_descendants() {
    let mut random = Random::new(82);
    let tree = vec![AttentionSeq::ROOT, 0, 0, 1, 2, 4, AttentionSeq::ROOT];
    for dtype in KvDtype::ALL {
        let mut case = Case::new(&mut random, 257, (2, 1), 16);
        (case.dtype, case.tree) = (dtype, Some(tree.clone()));
        for cpu in row_cpus() {
            let clean = case.run(&cpu, 300, 1);
            let mut hurt = case.clone();
            // Row 2, at position 252; its descendants are rows 4 and 5.
            hurt.k[252 * 16..253 * 16].fill(f32::NAN);
            hurt.v[252 * 16..253 * 16].fill(f32::NAN);
            let got = hurt.run(&cpu, 300, 1);
            for row in 0..257 {
                let range = row * 32..(row + 1) * 32;
                if [252, 254, 255].contains(&row) {
                    assert!(got[range].iter().all(|x| x.is_nan()), "row {row} saw a NaN");
                } else {
                    assert_eq!(bits(&got[range.clone()]), bits(&clean[range]), "row {row}");
                }
            }
        }
    }
}

fn attend(tree: &[u32]) {
    let case = Case::new(&mut Random::new(83), 20, (1, 1), 16);
    let cpu = Cpu::with(Kernels::best(), 1);
    let (kv, table) = case.place(1);
    let tree = Some(tree);
    let sequences = [AttentionSeq { rows: 0..4, first_position: 16, block_table: &table, tree }];
    cpu.paged_attention(&kv, 1, &case.input(&case.q[..64], &sequences), &mut [0.0; 64]);
}

#[test]
#[should_panic(expected = "invariant: row 2 follows its parent 2")]
fn a_row_that_is_its_own_parent_is_a_broken_invariant() {
    attend(&[AttentionSeq::ROOT, 0, 2, 0]);
}

#[test]
#[should_panic(expected = "invariant: one parent per row")]
fn a_tree_of_other_rows_is_a_broken_invariant() {
    attend(&[AttentionSeq::ROOT, 0, 0]);
}
