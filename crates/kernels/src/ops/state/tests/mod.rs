//! Recurrent layers against the recurrence, and against themselves in every other cut.

mod case;
mod drafts;
mod lanes;
mod rounded;
mod wkv;

use case::{Case, Part, Seq, fading, shape, tokens};

use crate::ops::state::ScanShape;
use crate::testing::{Random, bits, row_cpus};
use crate::{
    ConvInput, ConvWeights, Cpu, HeadOrder, Kernels, StateDtype, StateLayer, StateSeq, StateShape,
    StateStore,
};
use crate::{ScanInput, StridedRows};

/// Key heads, value heads, key dimension, value dimension.
const SHAPES: [[usize; 4]; 9] = [
    [1, 1, 8, 5],
    [2, 2, 24, 16],
    [1, 4, 64, 64],
    [2, 4, 128, 128],
    [1, 2, 24, 80],
    [1, 1, 128, 5],
    [2, 8, 8, 37],
    [1, 1, 3, 113],
    [4, 4, 64, 16],
];

fn floats(bits: &[u32]) -> Vec<f64> {
    bits.iter().map(|bits| f64::from(f32::from_bits(*bits))).collect()
}

/// The largest distance, relative to the largest number.
fn distance(got: &[f64], exact: &[f64]) -> f64 {
    let largest = exact.iter().fold(0.0_f64, |most, x| most.max(x.abs()));
    let distances = got.iter().zip(exact).map(|(a, b)| (a - b).abs());
    // A NaN is no maximum, so it is asked for.
    assert!(got.iter().all(|x| x.is_finite()), "{got:?}");
    distances.fold(0.0, f64::max) / largest.max(1e-3)
}

#[test]
fn a_scan_is_within_five_millionths_of_the_recurrence_token_by_token() {
    let mut random = Random::new(200);
    for heads in SHAPES {
        let [n_keys, n_values, ..] = heads;
        let by_channel = (n_keys == n_values).then(|| fading(heads, true));
        for of_case in [shape(heads, true), shape(heads, false)].into_iter().chain(by_channel) {
            let case = Case::new(&mut random, 200, of_case);
            let exact = case.recurrence();
            for cpu in &row_cpus()[..1] {
                for (t, row) in case.whole(cpu, &tokens(0..200)).iter().enumerate() {
                    let off = distance(&floats(&row[case.channels..]), &exact[t]);
                    assert!(off < 5e-6, "{of_case:?}: row {t} is off by {off}");
                }
            }
        }
    }
}

/// Channels and elements of the state of each.
const SELECTIVE: [[usize; 2]; 4] = [[1, 1], [37, 16], [64, 5], [200, 8]];

#[test]
fn a_selective_scan_is_within_five_millionths_of_the_recurrence_token_by_token() {
    let mut random = Random::new(206);
    for sizes in SELECTIVE {
        let case = Case::selective(&mut random, 200, sizes);
        let exact = case.selective_recurrence().concat();
        let rows = case.whole(&row_cpus()[0], &tokens(0..200));
        let got: Vec<f64> = rows.iter().flat_map(|row| floats(&row[case.channels..])).collect();
        let off = distance(&got, &exact);
        assert!(off < 5e-6, "{sizes:?} is off by {off}");
    }
}

#[test]
fn every_cut_of_a_selective_scan_on_every_instruction_set_and_team_gives_the_same_bits() {
    let mut random = Random::new(207);
    let n: usize = 200;
    for (sizes, dtype) in
        SELECTIVE.into_iter().flat_map(|sizes| StateDtype::ALL.map(|t| (sizes, t)))
    {
        let case = Case::selective(&mut random, n, sizes).stored_as(dtype);
        let tokens = tokens(0..n);
        let cpus = row_cpus();
        let expected = case.whole(&cpus[0], &tokens);
        for cpu in &cpus {
            for step in [1, 7, 63, 64, 65, 128, 200] {
                let cuts: Vec<usize> = (1..=n.div_ceil(step)).map(|i| n.min(i * step)).collect();
                let got = case.run_in(cpu, &tokens, &cuts);
                assert!(got == expected, "{} {sizes:?} {dtype} by {step}", cpu.kernels.name);
            }
        }
    }
}

#[test]
fn a_decoding_row_moves_the_state_on_by_itself_alone() {
    let mut random = Random::new(208);
    let cases =
        [Case::selective(&mut random, 40, [40, 4]), Case::wkv(&mut random, 40, [2, 20], true)];
    for case in cases {
        let cpu = &row_cpus()[0];
        let (mut store, mut seq) = (case.store(1, 0), Seq::new(0));
        let all = tokens(0..40);
        let cuts: Vec<usize> = (1..=39).collect();
        case.run(cpu, &mut store, &mut seq, &all, &cuts);
        // Earlier rows of the open chunk are not read again.
        let (_, places) = store.layer(1);
        store.floats_mut()[places.updates.clone()].fill(f32::NAN);
        let last = case.run(cpu, &mut store, &mut seq, &all[39..], &[1]);
        let whole = case.whole(cpu, &all);
        assert!(last[0][case.channels..] == whole[39][case.channels..]);
    }
}

#[test]
fn a_state_that_nothing_is_added_to_fades_to_zero_and_not_to_subnormal_numbers() {
    let mut random = Random::new(210);
    let heads = [2, 2, 24, 40];
    let shapes = [shape(heads, true), shape(heads, false), fading(heads, true)];
    let mut cases = Vec::from(shapes.map(|shape| Case::new(&mut random, 150, shape)));
    cases.push(Case::selective(&mut random, 150, [40, 4]));
    for case in &mut cases {
        for t in 64..150 {
            case.decay[t].fill(-3.0);
            case.beta[t].fill(0.0);
            case.v[t].fill(0.0);
        }
        // Each token of a selective scan has a decay of its own.
        if let Some(selective) = &mut case.selective {
            selective.steps[64..].iter_mut().for_each(|steps| steps.fill(1.0));
            selective.rates.iter_mut().for_each(|rate| *rate *= 400.0);
        }
        for cpu in &row_cpus() {
            let rows = case.whole(cpu, &tokens(0..150));
            let of = |row: &Vec<u32>| floats(&row[case.channels..]);
            assert!(of(&rows[63]).iter().any(|x| *x != 0.0), "{}", cpu.kernels.name);
            for (t, row) in rows.iter().enumerate().skip(64 + 15) {
                assert!(of(row).iter().all(|x| *x == 0.0), "{}: row {t}", cpu.kernels.name);
            }
        }
    }
}

#[test]
fn several_convolutions_of_the_same_inputs_have_the_bits_of_each_alone() {
    let layer = StateLayer { channels: 20, taps: 2, ..StateLayer::default() };
    let mut random = Random::new(209);
    let (x, weights) = (random.normals(150 * 20), random.normals(3 * 2 * 20));
    for cpu in row_cpus() {
        let run = |weights: &[f32], n_filters: usize, cuts: &[usize]| -> Vec<u32> {
            let shape = StateShape {
                layers: vec![layer],
                dtype: StateDtype::F32,
                n_lanes: 1,
                n_snapshots: 0,
            };
            let (mut store, mut start) = (StateStore::new(shape), 0);
            let mut outs = vec![Vec::new(); n_filters];
            for &end in cuts {
                let sequence = StateSeq {
                    rows: 0..end - start,
                    first_position: start,
                    lane: 0,
                    border: start.saturating_sub(1) / 64 * 64,
                    saves: &[],
                    tree: None,
                };
                let x = StridedRows::dense(&x[start * 20..end * 20], 20);
                let weights = ConvWeights { weights, bias: None, taps: 2, n_filters };
                let sequences = &[sequence][..];
                let input = ConvInput { x, weights, has_silu: false, sequences };
                let mut out = vec![0.0; n_filters * (end - start) * 20];
                cpu.conv_rows(&mut store, 0, &input, &mut out);
                let parts = out.chunks((end - start) * 20);
                outs.iter_mut().zip(parts).for_each(|(all, out)| all.extend(bits(out)));
                start = end;
            }
            outs.concat()
        };
        let alone: Vec<u32> =
            weights.chunks(40).flat_map(|weights| run(weights, 1, &[150])).collect();
        for cuts in [&[150][..], &[64, 65, 150], &[10, 128, 129, 150]] {
            assert!(run(&weights, 3, cuts) == alone, "{} at {cuts:?}", cpu.kernels.name);
        }
    }
}

#[test]
fn a_convolution_is_close_to_its_formula() {
    let mut random = Random::new(201);
    for taps in [1, 2, 3, 4, 16] {
        for has_silu in [false, true] {
            let mut case = Case::new(&mut random, 150, shape([1, 1, 4, 4], true));
            (case.taps, case.channels, case.has_silu) = (taps, 300, has_silu);
            case.weights = random.normals(300 * taps);
            case.bias = has_silu.then(|| random.normals(300));
            case.x = (0..150).map(|_| random.normals(300)).collect();
            let exact = case.convolution();
            for cpu in row_cpus() {
                let rows = case.run_in(&cpu, &tokens(0..150), &[70, 150]);
                for (t, row) in rows.iter().enumerate() {
                    let off = distance(&floats(&row[..300]), &exact[t]);
                    assert!(off < 2e-6, "{taps} taps: row {t} is off by {off}");
                }
            }
        }
    }
}

impl Case {
    /// As `run`, in a lane of its own.
    fn run_in(&self, cpu: &Cpu, tokens: &[usize], cuts: &[usize]) -> Vec<Vec<u32>> {
        self.run(cpu, &mut self.store(1, 0), &mut Seq::new(0), tokens, cuts)
    }
}

#[test]
fn every_cut_on_every_instruction_set_and_team_gives_the_same_bits() {
    let mut random = Random::new(202);
    let n: usize = 200;
    let every =
        |step: usize| -> Vec<usize> { (1..=n.div_ceil(step)).map(|i| n.min(i * step)).collect() };
    for (i, heads) in SHAPES.into_iter().enumerate() {
        let kinds: &[bool] = if i % 3 == 0 { &[true, false] } else { &[i % 3 == 1] };
        let by_channel = (heads[0] == heads[1]).then(|| fading(heads, true));
        let by_head = kinds.iter().map(|&is_delta| shape(heads, is_delta));
        let cases = by_head.chain(by_channel).flat_map(|case| StateDtype::ALL.map(|t| (case, t)));
        for (of_case, dtype) in cases {
            let case = Case::new(&mut random, n, of_case).stored_as(dtype);
            let tokens = tokens(0..n);
            let cpus = row_cpus();
            let expected = case.whole(&cpus[0], &tokens);
            for cpu in &cpus {
                let what = format!("{} on {}, {dtype}", cpu.kernels.name, cpu.team.n_threads());
                for step in [1, 7, 63, 64, 65, 128, 200] {
                    let got = case.run_in(cpu, &tokens, &every(step));
                    assert!(got == expected, "{what}, {of_case:?} by {step}");
                }
                for cuts in [vec![64, 65, 200], vec![63, 64, 128, 200], vec![128, 200]] {
                    let got = case.run_in(cpu, &tokens, &cuts);
                    assert!(got == expected, "{what}, {of_case:?} at {cuts:?}");
                }
            }
        }
    }
}

#[test]
fn the_order_of_value_heads_changes_no_bit_of_a_head() {
    let mut random = Random::new(215);
    for heads in [[2, 4, 16, 20], [3, 9, 8, 5], [1, 3, 8, 8], [2, 2, 8, 8]] {
        let [n_keys, n_values, _, dim] = heads;
        let grouped = Case::new(&mut random, 150, shape(heads, true));
        // The head that is stored at place `p` of the tiled order.
        let source = |p: usize| p % n_keys * (n_values / n_keys) + p / n_keys;
        let tiled = |rows: &[Vec<f32>], width: usize| -> Vec<Vec<f32>> {
            let row = |row: &Vec<f32>| {
                (0..n_values).flat_map(|p| row[source(p) * width..][..width].to_vec()).collect()
            };
            rows.iter().map(row).collect()
        };
        let shape = ScanShape { order: HeadOrder::Tiled, ..grouped.shape };
        let mut case = Case::new(&mut Random::new(216), 150, shape);
        (case.q, case.k) = (grouped.q.clone(), grouped.k.clone());
        case.v = tiled(&grouped.v, dim);
        (case.decay, case.beta) = (tiled(&grouped.decay, 1), tiled(&grouped.beta, 1));
        let all = tokens(0..150);
        let expected = grouped.whole(&row_cpus()[0], &all);
        for cpu in row_cpus() {
            for (row, expected) in case.run_in(&cpu, &all, &[70, 150]).iter().zip(&expected) {
                let (row, expected) = (&row[case.channels..], &expected[case.channels..]);
                for p in 0..n_values {
                    let expected = &expected[source(p) * dim..][..dim];
                    assert_eq!(&row[p * dim..][..dim], expected, "{heads:?} head {p}");
                }
            }
        }
    }
}

#[test]
fn a_sequence_has_the_same_bits_in_any_batch() {
    let mut random = Random::new(203);
    let heads = [2, 2, 16, 40];
    let scanned = [shape([1, 4, 24, 16], true), shape(heads, true), fading(heads, true)];
    let mut cases = Vec::from(scanned.map(|of_case| Case::new(&mut random, 600, of_case)));
    cases.push(Case::selective(&mut random, 600, [70, 8]));
    cases.push(Case::wkv(&mut random, 600, [3, 20], true));
    for (i, case) in cases.into_iter().enumerate() {
        let case = case.stored_as(StateDtype::ALL[(i + 1) % 2]);
        let lists = [tokens(0..170), tokens(170..300), tokens(300..301), tokens(301..600)];
        let expected = lists.each_ref().map(|list| case.whole(&row_cpus()[0], list));
        for cpu in row_cpus() {
            for round in 0..4 {
                let mut store = case.store(5, 0);
                let mut seqs = [2, 0, 4, 3].map(Seq::new);
                let mut got = [const { Vec::new() }; 4];
                while seqs.iter().zip(&lists).any(|(seq, list)| seq.n_computed < list.len()) {
                    let mut parts = Vec::new();
                    let mut present = Vec::new();
                    for (i, seq) in seqs.iter_mut().enumerate() {
                        let start = seq.n_computed;
                        let most = [1, 3, 40, 150][random.below(4)];
                        let end = lists[i].len().min(start + most);
                        // Now and then a sequence has no rows in a step.
                        if random.below(4) > 0 || round == 0 {
                            present.push(i);
                            let tokens = &lists[i][start..end];
                            parts.push(Part { seq, tokens, saves: &[], tree: None });
                        }
                    }
                    let rows = case.step(&cpu, &mut store, &mut parts);
                    for (i, rows) in present.into_iter().zip(rows) {
                        got[i].extend(rows);
                    }
                }
                assert!(got == expected, "{} {:?}", cpu.kernels.name, case.shape);
            }
        }
    }
}

#[test]
fn keys_that_fade_at_once_leave_finite_rows() {
    // Sums of a chunk reach -25,600, and differences to later slots are as large the other way.
    let mut random = Random::new(217);
    let mut case = Case::new(&mut random, 150, fading([1, 1, 16, 16], true));
    for (t, row) in case.decay.iter_mut().enumerate() {
        row.iter_mut().step_by(2).for_each(|g| *g = if t % 3 == 0 { -400.0 } else { -0.01 });
    }
    let exact = case.recurrence();
    for cpu in row_cpus() {
        let rows = case.run_in(&cpu, &tokens(0..150), &[10, 70, 150]);
        for (t, row) in rows.iter().enumerate() {
            let off = distance(&floats(&row[case.channels..]), &exact[t]);
            assert!(off < 1e-3, "{}: row {t} is off by {off}", cpu.kernels.name);
        }
    }
}

#[test]
fn hostile_rows_harm_no_other_sequence_and_no_earlier_row() {
    let mut random = Random::new(204);
    hostile_rows(Case::new(&mut random, 160, shape([1, 2, 16, 20], true)));
    hostile_rows(Case::selective(&mut random, 160, [70, 4]));
    hostile_rows(Case::wkv(&mut random, 160, [2, 20], true));
}

fn hostile_rows(mut case: Case) {
    let clean = case.whole(&row_cpus()[0], &tokens(0..80));
    case.v[100][3] = f32::NAN;
    case.k[100][0] = f32::INFINITY;
    case.x[100][0] = f32::NAN;
    for cpu in row_cpus() {
        let mut store = case.store(2, 0);
        let (a, b) = (&mut Seq::new(0), &mut Seq::new(1));
        let (mine, hostile) = (tokens(0..80), tokens(80..160));
        let mut parts = [
            Part { seq: a, tokens: &mine, saves: &[], tree: None },
            Part { seq: b, tokens: &hostile, saves: &[], tree: None },
        ];
        let got = case.step(&cpu, &mut store, &mut parts);
        assert!(got[0] == clean, "{}", cpu.kernels.name);
        let alone = case.whole(&cpu, &tokens(80..100));
        assert!(got[1][..20] == alone[..], "{}", cpu.kernels.name);
        // Nothing that the lane held before matters.
        let mut again = Seq::new(1);
        assert!(case.run(&cpu, &mut store, &mut again, &mine, &[80]) == clean);
    }
}

#[test]
fn a_layer_with_a_convolution_alone_keeps_its_inputs() {
    let layer = StateLayer { channels: 5, taps: 3, ..StateLayer::default() };
    let shape =
        StateShape { layers: vec![layer], dtype: StateDtype::F32, n_lanes: 1, n_snapshots: 0 };
    let mut store = StateStore::new(shape);
    let by_tap = [100.0, 10.0, 1.0].map(|w| [w; 5]).concat();
    let weights = ConvWeights { weights: &by_tap, bias: None, taps: 3, n_filters: 1 };
    let cpu = Cpu::with(Kernels::best(), 1);
    for position in 0..200_usize {
        let x = [position as f32; 5];
        let border = position.saturating_sub(1) / 64 * 64;
        let sequences = [StateSeq {
            rows: 0..1,
            first_position: position,
            lane: 0,
            border,
            saves: &[],
            tree: None,
        }];
        let x = StridedRows::dense(&x, 5);
        let input = ConvInput { x, weights, has_silu: false, sequences: &sequences };
        let mut out = [0.0; 5];
        cpu.conv_rows(&mut store, 0, &input, &mut out);
        let before = |n: usize| position.saturating_sub(n) as f32;
        let expected = 100.0 * before(2) + 10.0 * before(1) + before(0);
        assert_eq!(out, [expected; 5], "position {position}");
    }
}

/// A step of one sequence of 4 rows of zeros.
fn scan(sequences: &[StateSeq<'_>], heads: [usize; 4]) {
    let case = Case::new(&mut Random::new(205), 0, shape([1, 1, 16, 16], true));
    let mut store = case.store(2, 1);
    let zeros = vec![0.0; 1024];
    let shape: ScanShape = shape(heads, true);
    let rows = StridedRows::dense(&zeros, 16);
    let (decay, beta) = (&zeros[..], &zeros[..]);
    let input = ScanInput { shape, q: rows, k: rows, v: rows, decay, beta, sequences };
    Cpu::with(Kernels::best(), 1).scan(&mut store, 1, &input, &mut [0.0; 64 * 16]);
}

const SEQ: StateSeq<'static> =
    StateSeq { rows: 0..4, first_position: 60, lane: 0, border: 0, saves: &[], tree: None };

#[test]
#[should_panic(expected = "invariant: lane 0 is used once in a step")]
fn two_sequences_in_one_lane_are_a_broken_invariant() {
    scan(&[SEQ, StateSeq { rows: 4..5, ..SEQ }], [1, 1, 16, 16]);
}

#[test]
#[should_panic(expected = "invariant: snapshot 0 is saved to once in a step")]
fn two_saves_to_one_snapshot_are_a_broken_invariant() {
    let saves = &[(64, 0), (128, 0)];
    scan(&[StateSeq { saves, ..SEQ }], [1, 1, 16, 16]);
}

#[test]
#[should_panic(expected = "invariant: position 60 continues border 64")]
fn a_border_after_the_first_row_is_a_broken_invariant() {
    scan(&[StateSeq { border: 64, ..SEQ }], [1, 1, 16, 16]);
}

#[test]
#[should_panic(expected = "invariant: border 10 ends a chunk")]
fn a_border_within_a_chunk_is_a_broken_invariant() {
    scan(&[StateSeq { border: 10, ..SEQ }], [1, 1, 16, 16]);
}

#[test]
#[should_panic(expected = "invariant: a tree lies in one chunk")]
fn a_tree_across_a_border_is_a_broken_invariant() {
    let tree = Some(&[StateSeq::ROOT, 0, 1, 2, 3][..]);
    scan(&[StateSeq { rows: 0..5, tree, ..SEQ }], [1, 1, 16, 16]);
}

#[test]
#[should_panic(expected = "invariant: the heads are those of the layer")]
fn heads_of_another_layer_are_a_broken_invariant() {
    scan(&[SEQ], [1, 1, 8, 16]);
}

#[test]
fn refused_memory_is_an_answer() {
    let layer = StateLayer { channels: 1 << 20, taps: 4, ..StateLayer::default() };
    let shape = StateShape {
        layers: vec![layer; 4],
        dtype: StateDtype::Bf16,
        n_lanes: 1 << 32,
        n_snapshots: 0,
    };
    assert!(StateStore::try_new(shape).is_err());
}
