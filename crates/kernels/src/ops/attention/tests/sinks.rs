//! Sinks take weight and give nothing.

use super::case::Case;
use crate::testing::{Random, bits, row_cpus};

#[test]
fn a_sink_of_minus_infinity_is_none() {
    for cpu in row_cpus() {
        let mut case = Case::new(&mut Random::new(90), 300, (4, 2), 16);
        let expected = case.run(&cpu, 300, 1);
        case.sinks = Some(vec![f32::NEG_INFINITY; 4]);
        assert_eq!(bits(&case.run(&cpu, 300, 1)), bits(&expected), "{}", cpu.kernels.name);
    }
}

#[test]
fn a_sink_above_all_scores_takes_the_weight_of_its_head_alone() {
    for cpu in row_cpus() {
        let mut case = Case::new(&mut Random::new(91), 40, (4, 2), 16);
        let plain = case.run(&cpu, 40, 1);
        case.sinks = Some(vec![f32::NEG_INFINITY, 1000.0, f32::NEG_INFINITY, f32::NEG_INFINITY]);
        for (i, (got, plain)) in case.run(&cpu, 40, 1).chunks(16).zip(plain.chunks(16)).enumerate()
        {
            match i % 4 {
                1 => assert!(got.iter().all(|&x| x == 0.0), "head 1 gives to its sink"),
                _ => assert_eq!(bits(got), bits(plain), "head {}", i % 4),
            }
        }
    }
}

#[test]
fn a_row_that_sees_only_its_sink_gives_zeros() {
    for cpu in row_cpus() {
        let mut case = Case::new(&mut Random::new(92), 20, (4, 2), 16);
        (case.window, case.sinks) = (Some(0), Some(vec![0.5; 4]));
        assert!(case.run(&cpu, 20, 1).iter().all(|x| x.to_bits() == 0));
    }
}

#[test]
#[should_panic(expected = "invariant: one sink per query head")]
fn sinks_of_other_heads_are_a_broken_invariant() {
    let mut case = Case::new(&mut Random::new(93), 20, (4, 2), 16);
    case.sinks = Some(vec![0.0; 2]);
    case.run(&row_cpus()[0], 20, 1);
}

#[test]
fn a_sink_as_large_as_the_only_score_takes_half() {
    for cpu in row_cpus() {
        let mut case = Case::new(&mut Random::new(94), 1, (4, 2), 16);
        case.q.fill(0.0);
        case.sinks = Some(vec![0.0; 4]);
        let heads = case.v.chunks(16).flat_map(|value| [value, value]).flatten();
        let expected: Vec<f32> = heads.map(|x| x / 2.0).collect();
        assert_eq!(bits(&case.run(&cpu, 1, 1)), bits(&expected), "{}", cpu.kernels.name);
    }
}
