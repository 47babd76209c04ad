//! States in bf16: rounded at borders and nowhere else.

use half::bf16;

use super::case::{Case, Part, Seq, fading, shape, tokens};
use super::{distance, floats};
use crate::StateDtype::{Bf16, F32};
use crate::testing::{Random, bits, row_cpus};

/// Every kind of state.
fn cases(random: &mut Random, n_tokens: usize) -> Vec<Case> {
    let heads = [2, 2, 24, 20];
    vec![
        Case::new(random, n_tokens, shape([1, 4, 64, 64], true)),
        Case::new(random, n_tokens, shape(heads, false)),
        Case::new(random, n_tokens, fading(heads, true)),
        Case::selective(random, n_tokens, [37, 16]),
        Case::wkv(random, n_tokens, [2, 20], true),
    ]
}

/// The recurrence of a case in f64.
fn exact(case: &Case) -> Vec<Vec<f64>> {
    match (&case.selective, &case.wkv) {
        (Some(_), _) => case.selective_recurrence(),
        (_, Some(_)) => case.wkv_recurrence(),
        _ => case.recurrence(),
    }
}

#[test]
fn rows_behind_rounded_states_are_within_a_hundredth_of_the_recurrence_and_no_other_row_differs() {
    let mut random = Random::new(250);
    for case in cases(&mut random, 200) {
        let (exact, all) = (exact(&case), tokens(0..200));
        let unrounded = case.whole(&row_cpus()[0], &all);
        let case = case.stored_as(Bf16);
        let rows = case.whole(&row_cpus()[0], &all);
        assert!(rows[..64] == unrounded[..64], "the first chunk reads no state");
        let got: Vec<f64> =
            rows[64..].iter().flat_map(|row| floats(&row[case.channels..])).collect();
        let off = distance(&got, &exact[64..].concat());
        assert!((2e-5..1e-2).contains(&off), "{:?} is off by {off}", case.shape);
    }
}

#[test]
fn a_snapshot_has_the_bits_of_the_exact_one_rounded_to_nearest_with_ties_to_even() {
    let mut random = Random::new(251);
    for mut case in cases(&mut random, 65) {
        let all = tokens(0..65);
        for cpu in row_cpus() {
            let [exact, rounded] = [F32, Bf16].map(|dtype| {
                case.dtype = dtype;
                let mut store = case.store(1, 1);
                let mut seq = Seq::new(0);
                let part = Part { seq: &mut seq, tokens: &all, saves: &[(64, 0)], tree: None };
                case.step(&cpu, &mut store, &mut [part]);
                let (start, n) = (store.snapshot_start(0, 1), store.layer(1).1.matrix.len());
                store.floats_mut()[start..start + n].to_vec()
            });
            assert_eq!(exact.len(), 2 * rounded.len(), "half of the memory");
            let widened: Vec<f32> = bytemuck::cast_slice::<f32, u16>(&rounded)
                .iter()
                .map(|bits| bf16::from_bits(*bits).to_f32())
                .collect();
            let expected: Vec<f32> = exact.iter().map(|x| bf16::from_f32(*x).to_f32()).collect();
            assert!(expected.iter().any(|x| *x != 0.0));
            assert!(bits(&widened) == bits(&expected), "{} {:?}", cpu.kernels.name, case.shape);
        }
    }
}
