//! Sequences that go on in other lanes.

use super::case::{Case, Part, Seq, fading, shape, tokens};
use crate::StateDtype::{Bf16, F32};
use crate::testing::{Random, row_cpus};

#[test]
fn a_sequence_goes_on_from_a_snapshot_of_any_border() {
    let mut random = Random::new(210);
    for dtype in [F32, Bf16] {
        let scan = Case::new(&mut random, 300, shape([2, 4, 16, 21], true));
        go_on_from_snapshots(&scan.stored_as(dtype));
        go_on_from_snapshots(&Case::selective(&mut random, 300, [70, 6]).stored_as(dtype));
        go_on_from_snapshots(&Case::wkv(&mut random, 300, [2, 20], true).stored_as(dtype));
    }
}

fn go_on_from_snapshots(case: &Case) {
    let all = tokens(0..300);
    let expected = case.whole(&row_cpus()[0], &all);
    for cpu in row_cpus() {
        let mut store = case.store(2, 5);
        // Snapshots are taken on the way, in steps that fold none, one or several chunks.
        let mut seq = Seq::new(0);
        for (range, saves) in [
            (0..64, &[(64, 0)][..]),
            (64..70, &[(64, 1), (192, 4)]),
            (70..280, &[(128, 2), (256, 3)]),
        ] {
            let part = Part { seq: &mut seq, tokens: &all[range], saves, tree: None };
            case.step(&cpu, &mut store, &mut [part]);
        }
        for (snapshot, border) in [(1, 64), (2, 128), (3, 256)] {
            store.load(snapshot, 1);
            let mut seq = Seq { lane: 1, border, n_computed: border };
            let got = case.run(&cpu, &mut store, &mut seq, &all[border..], &[300 - border]);
            assert!(got == expected[border..], "{} from {border}", cpu.kernels.name);
        }
        // A snapshot that is saved later is that of the lane's border.
        store.save(0, 0);
        store.load(0, 1);
        let mut seq = Seq { lane: 1, border: 256, n_computed: 256 };
        let got = case.run(&cpu, &mut store, &mut seq, &all[256..], &[44]);
        assert!(got == expected[256..], "{} saved", cpu.kernels.name);
    }
}

#[test]
fn a_step_without_a_fold_saves_nothing() {
    let mut random = Random::new(211);
    let case = Case::new(&mut random, 64, shape([1, 1, 8, 8], true));
    let cpu = &row_cpus()[0];
    let mut store = case.store(1, 1);
    let all = tokens(0..64);
    let part = Part { seq: &mut Seq::new(0), tokens: &all, saves: &[(64, 0)], tree: None };
    case.step(cpu, &mut store, &mut [part]);
    let start = store.snapshot_start(0, 0);
    assert!(store.floats_mut()[start..].iter().all(|x| x.is_nan()));
}

#[test]
fn a_fork_goes_on_as_its_original_does() {
    let mut random = Random::new(212);
    let at = [(1, F32), (63, Bf16), (64, Bf16), (65, Bf16), (80, F32), (100, F32), (128, Bf16)];
    for (n, dtype) in at {
        let scan = Case::new(&mut random, 260, shape([1, 2, 24, 16], true));
        go_on_from_a_fork(&scan.stored_as(dtype), n);
        let by_channel = Case::new(&mut random, 260, fading([2, 2, 24, 20], true));
        go_on_from_a_fork(&by_channel.stored_as(dtype), n);
        go_on_from_a_fork(&Case::selective(&mut random, 260, [70, 6]).stored_as(dtype), n);
        go_on_from_a_fork(&Case::wkv(&mut random, 260, [2, 20], true).stored_as(dtype), n);
    }
}

fn go_on_from_a_fork(case: &Case, n: usize) {
    // The two go on with tokens of their own.
    let a = tokens(0..200);
    let b = [tokens(0..n), tokens(200..260)].concat();
    let expected = [&a, &b].map(|list| case.whole(&row_cpus()[0], list));
    for cpu in row_cpus() {
        let mut store = case.store(3, 0);
        let mut seq = Seq::new(2);
        case.run(&cpu, &mut store, &mut seq, &a, &[n]);
        store.fork(2, 0);
        let mut fork = Seq { lane: 0, ..seq.clone() };
        let rest = case.run(&cpu, &mut store, &mut seq, &a[n..], &[200 - n]);
        assert!(rest == expected[0][n..], "{} original at {n}", cpu.kernels.name);
        let rest = case.run(&cpu, &mut store, &mut fork, &b[n..], &[7, 60]);
        assert!(rest == expected[1][n..], "{} fork at {n}", cpu.kernels.name);
    }
}

#[test]
#[should_panic(expected = "invariant: lane 3 of 3")]
fn a_lane_that_does_not_exist_is_a_broken_invariant() {
    let case = Case::new(&mut Random::new(213), 0, shape([1, 1, 8, 8], true));
    case.store(3, 0).fork(0, 3);
}

#[test]
#[should_panic(expected = "invariant: snapshot 1 of 1")]
fn a_snapshot_that_does_not_exist_is_a_broken_invariant() {
    let case = Case::new(&mut Random::new(214), 0, shape([1, 1, 8, 8], true));
    case.store(1, 1).load(1, 0);
}
