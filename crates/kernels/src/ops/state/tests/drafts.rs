//! Drafts: rows of a tree have the bits of their path as a chain, and rejected rows leave no trace.

use super::case::{Case, Part, Seq, fading, shape, tokens};
use crate::ops::state::sequence::ancestors;
use crate::testing::{Random, row_cpus};
use crate::{StateDtype, StateSeq};

/// Parents of `n` drafts: some begin anew, some follow the one before, some any one before.
fn any_tree(random: &mut Random, n: usize) -> Vec<u32> {
    let parent = |row: usize| match random.below(6) {
        _ if row == 0 => StateSeq::ROOT,
        0 => StateSeq::ROOT,
        1..=3 => row as u32 - 1,
        _ => random.below(row) as u32,
    };
    (0..n).map(parent).collect()
}

/// The rows on the path to `row`, itself included.
fn path(tree: &[u32], row: usize) -> Vec<usize> {
    let mut nodes = [0; 64];
    let before = ancestors(tree, row, &mut nodes).iter().map(|node| usize::from(*node));
    before.chain([row]).collect()
}

#[test]
fn a_row_of_a_tree_has_the_bits_of_its_path_as_a_chain_and_the_path_goes_on() {
    let mut random = Random::new(220);
    for n_committed in [0, 1, 30, 63, 64, 65, 128, 150] {
        let (heads, n) = ([1, 2, 24, 20], n_committed + 70);
        let scanned = [shape(heads, true), shape(heads, false), fading([2, 2, 24, 20], true)];
        let mut cases = Vec::from(scanned.map(|of_case| Case::new(&mut random, n, of_case)));
        cases.push(Case::selective(&mut random, n, [70, 6]));
        cases.push(Case::wkv(&mut random, n, [2, 20], n_committed % 2 == 0));
        for (i, case) in cases.into_iter().enumerate() {
            let case = case.stored_as(StateDtype::ALL[(i + n_committed) % 2]);
            let n_drafts = (64 - n_committed % 64).min(1 + random.below(30));
            let tree = any_tree(&mut random, n_drafts);
            let committed = tokens(0..n_committed);
            let drafts = tokens(n_committed..n_committed + n_drafts);
            let rest = tokens(n_committed + 30..n_committed + 70);
            let cpus = row_cpus();
            let chain = |row: usize| -> Vec<usize> {
                let path = path(&tree, row).into_iter().map(|node| drafts[node]);
                committed.iter().copied().chain(path).collect()
            };
            let accepted = random.below(n_drafts);
            let whole = case.whole(&cpus[0], &[chain(accepted), rest.clone()].concat());
            for cpu in &cpus {
                let what = format!("{} after {n_committed}: {tree:?}", cpu.kernels.name);
                let mut store = case.store(1, 0);
                let mut seq = Seq::new(0);
                if n_committed > 0 {
                    case.run(cpu, &mut store, &mut seq, &committed, &[n_committed]);
                }
                let part =
                    Part { seq: &mut seq, tokens: &drafts, saves: &[], tree: Some(&tree[..]) };
                let got = case.step(cpu, &mut store, &mut [part]).remove(0);
                for (row, got) in got.iter().enumerate() {
                    let expected = case.whole(&cpus[0], &chain(row));
                    assert!(Some(got) == expected.last(), "{what}: row {row}");
                }
                // The accepted path becomes a chain, and the sequence goes on.
                for (depth, node) in path(&tree, accepted).into_iter().enumerate() {
                    let first = n_committed % 64;
                    store.copy_row(0, first + node, first + depth);
                    seq.n_computed += 1;
                }
                let got = case.run(cpu, &mut store, &mut seq, &rest, &[3, 40]);
                assert!(got == whole[whole.len() - 40..], "{what}: after row {accepted}");
            }
        }
    }
}

#[test]
fn rejected_drafts_leave_no_trace() {
    let mut random = Random::new(221);
    for dtype in StateDtype::ALL {
        let scan = Case::new(&mut random, 200, shape([2, 4, 16, 16], true)).stored_as(dtype);
        reject(&mut random, &scan);
        let by_channel = Case::new(&mut random, 200, fading([2, 2, 24, 20], true)).stored_as(dtype);
        reject(&mut random, &by_channel);
        let selective = Case::selective(&mut random, 200, [70, 6]).stored_as(dtype);
        reject(&mut random, &selective);
        let wkv = Case::wkv(&mut random, 200, [2, 20], true).stored_as(dtype);
        reject(&mut random, &wkv);
    }
}

fn reject(random: &mut Random, case: &Case) {
    let all = tokens(0..150);
    let expected = case.whole(&row_cpus()[0], &all);
    for cpu in row_cpus() {
        let mut store = case.store(1, 0);
        let mut seq = Seq::new(0);
        let mut got = Vec::new();
        while seq.n_computed < 150 {
            // A token and drafts up to the end of its chunk, of which some are right.
            let at = seq.n_computed;
            let left = (150 - at).min(64 - at % 64);
            let (n_right, n_wrong) = (1 + random.below(left.min(4)), random.below(4));
            let n_wrong = n_wrong.min(64 - at % 64 - n_right);
            let wrong: Vec<usize> = (0..n_wrong).map(|_| 150 + random.below(50)).collect();
            let step = [&all[at..at + n_right], &wrong].concat();
            let rows = case.run(&cpu, &mut store, &mut seq, &step, &[step.len()]);
            got.extend_from_slice(&rows[..n_right]);
            seq.n_computed = at + n_right;
        }
        assert!(got == expected, "{}", cpu.kernels.name);
    }
}

#[test]
fn rows_are_taken_back_and_lanes_begin_anew_however_far_the_running_state_is() {
    let mut random = Random::new(222);
    for dtype in StateDtype::ALL {
        take_back(&Case::selective(&mut random, 120, [70, 6]).stored_as(dtype));
        take_back(&Case::wkv(&mut random, 120, [2, 20], true).stored_as(dtype));
    }
}

fn take_back(case: &Case) {
    let one_by_one: Vec<usize> = (1..=40).collect();
    for cpu in row_cpus() {
        let (mut store, mut seq) = (case.store(1, 0), Seq::new(0));
        case.run(&cpu, &mut store, &mut seq, &tokens(0..40), &one_by_one);
        // Ten rows that the running state has are overwritten by others.
        seq.n_computed = 30;
        let list = [tokens(0..30), tokens(60..100)].concat();
        let got = case.run(&cpu, &mut store, &mut seq, &list[30..], &one_by_one);
        assert!(got == case.whole(&cpu, &list)[30..], "{}", cpu.kernels.name);
        let list = tokens(80..120);
        let got = case.run(&cpu, &mut store, &mut Seq::new(0), &list, &one_by_one);
        assert!(got == case.whole(&cpu, &list), "{} anew", cpu.kernels.name);
    }
}
