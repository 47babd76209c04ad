//! Solvers on layers with planted outliers: inputs that depend on each other, a few of which are
//! much larger than the others. Errors are measured on inputs that no solver has seen.

use pelton_kernels::{Cpu, Kernels};
use pelton_quant::solve::{
    Grid, Group, Hessian, SolveError, Solved, Weights, aqlm, awq, fp4, fp8, gptq, int8,
    output_error, quip, rtn, sampled_error, ternary,
};

const N_THREADS: usize = 2;

fn cpu(n_threads: usize) -> Cpu {
    Cpu::with(Kernels::best(), n_threads)
}

/// SplitMix64, and normal numbers by Box and Muller.
struct Random(u64);

impl Random {
    fn next(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((x ^ (x >> 31)) >> 11) as f64 / (1_u64 << 53) as f64
    }

    fn normal(&mut self) -> f32 {
        let (u, v) = (1.0 - self.next(), self.next());
        ((-2.0 * u.ln()).sqrt() * (std::f64::consts::TAU * v).cos()) as f32
    }
}

/// A layer and two samples of its inputs.
struct Layer {
    shape: [usize; 2],
    weights: Vec<f32>,
    seen: Hessian,
    held_out: Hessian,
}

impl Layer {
    /// Inputs are mixtures of a few causes, with noise; every 37th is 30 times as large.
    fn planted(seed: u64, [n, k]: [usize; 2]) -> Self {
        let mut random = Random(seed);
        let n_causes = k / 4;
        let mixture: Vec<f32> = (0..n_causes * k).map(|_| random.normal()).collect();
        let mut sample = |n_rows: usize| {
            let mut hessian = Hessian::new(k, &cpu(N_THREADS));
            for _ in 0..n_rows {
                let causes: Vec<f32> = (0..n_causes).map(|_| random.normal()).collect();
                let mut row = vec![0.0_f32; k];
                for (cause, mixture) in causes.iter().zip(mixture.chunks_exact(k)) {
                    row.iter_mut().zip(mixture).for_each(|(x, part)| *x += cause * part);
                }
                for (j, x) in row.iter_mut().enumerate() {
                    *x += 0.5 * random.normal();
                    *x *= if j % 37 == 5 { 30.0 } else { 1.0 };
                }
                hessian.add(&row).expect("numbers");
            }
            hessian.finish()
        };
        let (seen, held_out) = (sample(8 * k), sample(2 * k));
        let mut weights: Vec<f32> = (0..n * k).map(|_| 0.05 * random.normal()).collect();
        weights.iter_mut().step_by(997).for_each(|w| *w *= 8.0);
        Self { shape: [n, k], weights, seen, held_out }
    }

    fn weights(&self) -> Weights<'_> {
        Weights { shape: self.shape, values: &self.weights }
    }

    /// Relative error of the output on inputs that were not seen.
    fn error(&self, solved: &Solved) -> f64 {
        output_error(self.weights(), &solved.weights(), &self.held_out)
    }

    fn rtn(&self, grid: &Grid) -> f64 {
        self.error(&rtn::solve(self.weights(), grid, N_THREADS).expect("rounds"))
    }

    fn gptq(&self, grid: &Grid, options: gptq::Options) -> f64 {
        let factor = gptq::Factor::new(&self.seen, options).expect("a factor");
        self.error(&gptq::solve(self.weights(), grid, &factor, N_THREADS).expect("solves"))
    }

    fn awq(&self, grid: &Grid) -> (f64, awq::Scales) {
        let scales = awq::scales(&[self.weights()], grid, &self.seen).expect("scales");
        let solved = awq::solve(self.weights(), grid, &self.seen, &scales).expect("solves");
        let mut weights = solved.weights();
        for (at, w) in weights.iter_mut().enumerate() {
            *w /= scales.factors[at % self.shape[1]];
        }
        (output_error(self.weights(), &weights, &self.held_out), scales)
    }
}

fn grid(bits: usize, symmetric: bool) -> Grid {
    Grid { bits, group: Group::Inputs(32), symmetric }
}

#[test]
fn gptq_cuts_the_error_of_rounding_by_30_percent_at_4_bits_and_by_half_at_3() {
    for seed in [1, 2] {
        let layer = Layer::planted(seed, [96, 256]);
        for symmetric in [true, false] {
            for (bits, most) in [(4, 0.7), (3, 0.5)] {
                let grid = grid(bits, symmetric);
                let rtn = layer.rtn(&grid);
                for act_order in [false, true] {
                    let options = gptq::Options { act_order, ..gptq::Options::default() };
                    let ratio = layer.gptq(&grid, options) / rtn;
                    assert!(ratio <= most, "{bits} bits, act-order {act_order}: {ratio:.3}");
                }
                // The updates do most of it, and not the search for scales.
                let options = gptq::Options { search: false, ..gptq::Options::default() };
                let ratio = layer.gptq(&grid, options) / rtn;
                assert!(ratio <= most, "{bits} bits without a search: {ratio:.3}");
            }
        }
    }
}

#[test]
fn awq_cuts_the_error_of_rounding_by_30_percent_at_4_bits() {
    for seed in [1, 2] {
        let layer = Layer::planted(seed, [96, 256]);
        let grid = grid(4, false);
        let (error, scales) = layer.awq(&grid);
        let ratio = error / layer.rtn(&grid);
        assert!(ratio <= 0.7, "{ratio:.3}");
        // Large inputs get large factors, none of which is zero.
        assert!(scales.alpha > 0.0, "{scales:?}");
        let (large, small) = (scales.factors[5], scales.factors[6]);
        assert!(large > 1.5 * small && small > 0.0, "{large} {small}");
    }
}

#[test]
fn errors_of_floats_and_int8_rows_are_made_good_by_later_inputs() {
    let layer = Layer::planted(6, [96, 256]);
    let weights = layer.weights();
    let error = |found: Vec<f32>| output_error(weights, &found, &layer.held_out);
    let options = |act_order| gptq::Options { act_order, ..gptq::Options::default() };
    let factor = |act_order| gptq::Factor::new(&layer.seen, options(act_order)).expect("a factor");
    let [plain, ordered] = [false, true].map(factor);
    let squares = layer.seen.squares();
    let check = |name: &str, rounded: Vec<f32>, compensated: Vec<f32>| {
        let ratio = error(compensated) / error(rounded);
        assert!(ratio < 0.7, "{name}: {ratio:.3}");
    };
    for kind in [fp8::Kind::E4m3, fp8::Kind::E5m2] {
        for (group, factor) in [
            (Group::Row, &ordered),
            (Group::Tensor, &ordered),
            (Group::Inputs(128), &plain),
            (Group::Inputs(40), &plain),
        ] {
            let layout = fp8::Layout { kind, group };
            let rounded = fp8::solve(weights, layout, None, N_THREADS).expect("rounds");
            let own = fp8::compensated(weights, layout, &squares, factor, N_THREADS);
            check(&format!("{layout:?}"), rounded.weights(), own.expect("solves").weights());
        }
    }
    for kind in [fp4::Kind::Mx, fp4::Kind::Nv] {
        let rounded = fp4::solve(weights, kind, N_THREADS).expect("rounds");
        let own = fp4::compensated(weights, kind, &plain, N_THREADS).expect("solves");
        check(&format!("{kind:?}"), rounded.weights(), own.weights());
    }
    for group in [Group::Row, Group::Tensor] {
        let rounded = int8::solve(weights, group, N_THREADS).expect("rounds");
        let own = int8::compensated(weights, group, &ordered, N_THREADS).expect("solves");
        check(&format!("int8, {group}"), rounded.weights(), own.weights());
    }
    let rounded = ternary::solve(weights, N_THREADS).expect("rounds");
    let own = ternary::compensated(weights, &layer.seen, &ordered, N_THREADS).expect("solves");
    check("ternary", rounded.weights(), own.weights());
}

#[test]
fn vectors_of_a_lattice_cut_the_error_of_gptq_at_2_bits_by_30_percent() {
    for seed in [1, 2] {
        let layer = Layer::planted(seed, [96, 256]);
        let factor = quip::factor(&layer.seen, gptq::Options::default()).expect("a factor");
        let error = |bits, is_calibrated: bool| {
            let calibrated = is_calibrated.then_some((&layer.seen, &factor));
            let solved = quip::solve(layer.weights(), bits, calibrated, N_THREADS).expect("solves");
            output_error(layer.weights(), &solved.weights(), &layer.held_out)
        };
        // GPTQ has 2.5 bits with its scales.
        let gptq = layer.gptq(&grid(2, true), gptq::Options::default());
        let gptq = gptq.min(layer.gptq(&grid(2, false), gptq::Options::default()));
        let [two, three, four] = [2, 3, 4].map(|bits| error(bits, true));
        println!(
            "gptq {gptq:.4}, quip {two:.4} {three:.4} {four:.4}, nearest {:.4}",
            error(2, false)
        );
        assert!(two < 0.7 * gptq, "{:.3}", two / gptq);
        assert!(three < 0.4 * two && four < 0.4 * three, "{two} {three} {four}");
        assert!(two < 0.7 * error(2, false), "{:.3}", two / error(2, false));
    }
}

#[test]
fn sums_of_codebooks_cut_the_error_of_gptq_at_2_bits_by_30_percent() {
    // Codebooks are worth their size in larger matrices.
    let layer = Layer::planted(1, [384, 256]);
    let options = gptq::Options::default();
    let error = |bits, is_calibrated: bool| {
        let seen = is_calibrated.then_some(&layer.seen);
        let solved = aqlm::solve(layer.weights(), bits, seen, options, N_THREADS);
        output_error(layer.weights(), &solved.expect("solves").weights(), &layer.held_out)
    };
    let gptq = layer.gptq(&grid(2, true), options).min(layer.gptq(&grid(2, false), options));
    let ([two, three], nearest) = ([2, 3].map(|bits| error(bits, true)), error(2, false));
    println!("gptq {gptq:.4}, aqlm {two:.4} {three:.4}, nearest {nearest:.4}");
    assert!(two < 0.7 * gptq, "{:.3}", two / gptq);
    assert!(three < 0.5 * two, "{two} {three}");
    assert!(two < 0.7 * nearest, "{:.3}", two / nearest);
}

#[test]
fn ranges_are_clipped_for_the_output_of_a_row_and_on_either_side() {
    let layer = Layer::planted(5, [96, 256]);
    let grid = grid(3, false);
    let factors = vec![1.0; 256];
    let solved =
        awq::solve(layer.weights(), &grid, &layer.seen, &awq::Scales { factors, alpha: 0.0 });
    let (clipped, rounded) = (layer.error(&solved.expect("solves")), layer.rtn(&grid));
    assert!(clipped < 0.6 * rounded, "{:.3}", clipped / rounded);
}

#[test]
fn results_do_not_depend_on_threads() {
    let layer = Layer::planted(3, [70, 128]);
    let grid = Grid { bits: 3, group: Group::Inputs(64), symmetric: false };
    let factor = gptq::Factor::new(&layer.seen, gptq::Options::default()).expect("a factor");
    let [one, many] =
        [1, 5].map(|n| gptq::solve(layer.weights(), &grid, &factor, n).expect("solves"));
    assert_eq!(one, many);
    let [one, many] = [1, 5].map(|n| rtn::solve(layer.weights(), &grid, n).expect("rounds"));
    assert_eq!(one, many);
    let factor = quip::factor(&layer.seen, gptq::Options::default()).expect("a factor");
    let weights = Weights { shape: [64, 128], values: &layer.weights[..64 * 128] };
    let [one, many] = [1, 5].map(|n| {
        quip::solve(weights, 2, Some((&layer.seen, &factor)), n).expect("solves").weights()
    });
    assert_eq!(one, many);
    let [one, many] = [1, 5].map(|n| {
        aqlm::solve(weights, 2, Some(&layer.seen), gptq::Options::default(), n).expect("solves")
    });
    assert_eq!(one, many);
    let [one, many] = [1, 5].map(|n| {
        let mut seen = Hessian::new(128, &cpu(n));
        (0..512_u32).for_each(|i| {
            let input = |j: u32| ((i * 7919 + j * 104_729) % 1009) as f32 / 504.5 - 1.0;
            seen.add(&(0..128).map(input).collect::<Vec<f32>>()).expect("numbers");
        });
        let seen = seen.finish();
        let scales = awq::scales(&[layer.weights()], &grid, &seen).expect("scales");
        awq::solve(layer.weights(), &grid, &seen, &scales).expect("solves")
    });
    assert_eq!(one, many);
}

#[test]
fn some_outputs_show_the_error_of_all() {
    let layer = Layer::planted(6, [512, 128]);
    let written = rtn::solve(layer.weights(), &grid(4, true), N_THREADS).expect("rounds").weights();
    let of = |most| sampled_error(layer.weights(), &written, &layer.seen, most);
    let all = output_error(layer.weights(), &written, &layer.seen);
    assert_eq!(of(512), all);
    assert!((of(256) / all - 1.0).abs() < 0.1, "{} {all}", of(256));
    // Outputs that are looked at, and outputs that are not.
    let mut worse = written.clone();
    worse[..128].fill(0.0);
    assert!(sampled_error(layer.weights(), &worse, &layer.seen, 256) > 1.1 * of(256));
    worse.copy_from_slice(&written);
    worse[128..256].fill(0.0);
    assert_eq!(sampled_error(layer.weights(), &worse, &layer.seen, 256), of(256));
}

#[test]
fn a_weight_on_its_grid_stays_and_codes_stay_in_range() {
    let layer = Layer::planted(4, [16, 64]);
    for bits in [2, 3, 4, 8] {
        let grid = grid(bits, true);
        let solved = rtn::solve(layer.weights(), &grid, 1).expect("rounds");
        assert!(solved.codes.iter().all(|code| u32::from(*code) < 1 << bits));
        let values = solved.weights();
        let options = gptq::Options { search: false, ..gptq::Options::default() };
        let factor = gptq::Factor::new(&layer.seen, options).expect("a factor");
        let weights = Weights { shape: [16, 64], values: &values };
        if bits == 8 {
            let again = gptq::solve(weights, &grid, &factor, 1).expect("solves").weights();
            let error = output_error(weights, &again, &layer.seen);
            assert!(error < 1e-5, "{error}");
        }
    }
}

#[test]
fn weights_and_groups_that_cannot_be_are_named() {
    let solve = |values: &[f32], group| {
        let weights = Weights { shape: [2, 4], values };
        rtn::solve(weights, &Grid { bits: 4, group: Group::Inputs(group), symmetric: true }, 1)
    };
    let mut values = vec![0.5; 8];
    assert_eq!(solve(&values, 3), Err(SolveError::Group { k: 4, group: 3 }));
    assert_eq!(solve(&values, 8), Err(SolveError::Group { k: 4, group: 8 }));
    values[6] = f32::NAN;
    assert_eq!(solve(&values, 4), Err(SolveError::Weight { row: 1, column: 2 }));
    values[6] = 1e9;
    assert_eq!(solve(&values, 4), Err(SolveError::Scale { row: 1 }));
}

#[test]
fn inputs_that_are_always_zero_or_copies_of_each_other_are_solved() {
    let (n, k) = (8, 64);
    let mut random = Random(9);
    let mut hessian = Hessian::new(k, &cpu(1));
    for _ in 0..16 {
        // Fewer rows than inputs, half of the inputs zero, and the other half pairs of copies.
        let mut row = vec![0.0; k];
        for j in (0..k / 2).step_by(2) {
            row[j] = random.normal();
            row[j + 1] = row[j];
        }
        hessian.add(&row).expect("numbers");
    }
    let hessian = hessian.finish();
    let values: Vec<f32> = (0..n * k).map(|_| random.normal()).collect();
    let weights = Weights { shape: [n, k], values: &values };
    let grid = grid(4, true);
    let rounded = rtn::solve(weights, &grid, 1).expect("rounds");
    let options = gptq::Options { search: false, ..gptq::Options::default() };
    let factor = gptq::Factor::new(&hessian, options).expect("a factor");
    let solved = gptq::solve(weights, &grid, &factor, 1).expect("solves");
    for (row, codes) in solved.codes.chunks(k).enumerate() {
        let rounded = &rounded.codes[row * k..][..k];
        assert_eq!(codes[k / 2..], rounded[k / 2..], "inputs that say nothing are rounded");
    }
    let error = |solved: &Solved| output_error(weights, &solved.weights(), &hessian);
    assert!(error(&solved) < 0.5 * error(&rounded), "{} {}", error(&solved), error(&rounded));
    // No input at all.
    let nothing = Hessian::new(k, &cpu(1)).finish();
    let factor = gptq::Factor::new(&nothing, options).expect("a factor");
    assert_eq!(gptq::solve(weights, &grid, &factor, 1).expect("solves"), rounded);
    assert_eq!(output_error(weights, &rounded.weights(), &nothing), 0.0);
    let scales = awq::scales(&[weights], &grid, &nothing).expect("scales");
    assert!(scales.factors.iter().all(|factor| factor.is_finite() && *factor > 0.0));
}
