//! The recurrence of RWKV-7 against its formula in f64, and in every cut.

use super::case::{Case, Rows, shape, tokens};
use super::{distance, floats};
use crate::testing::{Random, row_cpus};
use crate::{Cpu, StateDtype, StateSeq, StateStore, WkvInput, WkvWeights};

/// Further inputs, by token, and the vectors of a layer; receptance, key and value are q, k and v
/// of the case.
pub(super) struct Wkv {
    decay: Vec<Vec<f32>>,
    rate: Vec<Vec<f32>>,
    gate: Vec<Vec<f32>>,
    /// Values of the first layer and how much of them is mixed in; `None` in the first layer.
    residual: Option<[Vec<Vec<f32>>; 2]>,
    removal_scale: Vec<f32>,
    rate_scale: Vec<f32>,
    bonus: Vec<f32>,
    norm: [Vec<f32>; 2],
}

/// Added to the variance of a head's output.
const EPS: f32 = 64e-5;

impl Case {
    /// The recurrence of RWKV-7 over heads of `dim`.
    pub(super) fn wkv(
        random: &mut Random,
        n_tokens: usize,
        [n_heads, dim]: [usize; 2],
        has_residual: bool,
    ) -> Self {
        let width = n_heads * dim;
        let mut case = Self::new(random, n_tokens, shape([n_heads, n_heads, dim, dim], false));
        let mut rows =
            || -> Vec<Vec<f32>> { (0..n_tokens).map(|_| random.normals(width)).collect() };
        (case.q, case.k) = (rows(), rows());
        let [mut decay, rate, gate, first, mix] = [rows(), rows(), rows(), rows(), rows()];
        // Decays from the least that there can be to nearly 1.
        decay.iter_mut().flatten().for_each(|w| *w = 3.0 * *w - 1.0);
        case.wkv = Some(Wkv {
            decay,
            rate,
            gate,
            residual: has_residual.then_some([first, mix]),
            removal_scale: random.normals(width),
            rate_scale: random.normals(width),
            bonus: random.normals(width),
            norm: [random.normals(width), random.normals(width)],
        });
        case
    }

    /// The recurrence in f64, token by token: `[m][n_heads * dim]`.
    pub(super) fn wkv_recurrence(&self) -> Vec<Vec<f64>> {
        let wkv = self.wkv.as_ref().expect("a recurrence of RWKV-7");
        let n = self.shape.key_dim;
        let mut outs = vec![Vec::new(); self.n_tokens()];
        for head in 0..self.shape.n_key_heads {
            let of = |x: &[f32]| -> Vec<f64> {
                x[head * n..(head + 1) * n].iter().map(|x| f64::from(*x)).collect()
            };
            let mut state = vec![vec![0.0_f64; n]; n];
            for (t, out) in outs.iter_mut().enumerate() {
                out.extend(self.wkv_row(wkv, t, &of, &mut state));
            }
        }
        outs
    }

    /// One row of one head, of which `of` takes the part; `state[value][key]` moves on.
    fn wkv_row(
        &self,
        wkv: &Wkv,
        t: usize,
        of: &dyn Fn(&[f32]) -> Vec<f64>,
        state: &mut [Vec<f64>],
    ) -> Vec<f64> {
        let n = state.len();
        let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
        let (r, k, mut v) = (of(&self.q[t]), of(&self.k[t]), of(&self.v[t]));
        if let Some([first, mix]) = &wkv.residual {
            let both = of(&first[t]).into_iter().zip(of(&mix[t]));
            v.iter_mut().zip(both).for_each(|(v, (first, mix))| *v += (first - *v) * sigmoid(mix));
        }
        let w: Vec<f64> =
            of(&wkv.decay[t]).iter().map(|w| (-(-0.5_f64).exp() * sigmoid(*w)).exp()).collect();
        let rate: Vec<f64> = of(&wkv.rate[t]).iter().map(|a| sigmoid(*a)).collect();
        let scaled: Vec<f64> =
            k.iter().zip(of(&wkv.removal_scale)).map(|(k, scale)| k * scale).collect();
        let length = scaled.iter().map(|x| x * x).sum::<f64>().sqrt().max(1e-12);
        let unit: Vec<f64> = scaled.iter().map(|x| x / length).collect();
        let amount = rate.iter().zip(of(&wkv.rate_scale));
        let key: Vec<f64> =
            k.iter().zip(amount).map(|(k, (a, scale))| k * (1.0 + (a - 1.0) * scale)).collect();
        let mut y = Vec::new();
        for (state, v) in state.iter_mut().zip(&v) {
            let known: f64 = state.iter().zip(&unit).map(|(s, kk)| s * kk).sum();
            for d in 0..n {
                state[d] = state[d] * w[d] - known * unit[d] * rate[d] + v * key[d];
            }
            y.push(state.iter().zip(&r).map(|(s, r)| s * r).sum::<f64>());
        }
        let mean = y.iter().sum::<f64>() / n as f64;
        let variance = y.iter().map(|y| (y - mean) * (y - mean)).sum::<f64>() / n as f64;
        let own: f64 = (0..n).map(|d| r[d] * key[d] * of(&wkv.bonus)[d]).sum();
        let [weight, bias] = [of(&wkv.norm[0]), of(&wkv.norm[1])];
        let gate = of(&wkv.gate[t]);
        let normed = |e: usize| (y[e] - mean) / (variance + f64::from(EPS)).sqrt();
        (0..n).map(|e| (normed(e) * weight[e] + bias[e] + own * v[e]) * gate[e]).collect()
    }
}

impl Wkv {
    /// Computes a step; `gather` makes the rows of the step from those of all tokens.
    pub(super) fn step(
        &self,
        (cpu, store): (&Cpu, &mut StateStore),
        case: &Case,
        gather: &dyn Fn(&[Vec<f32>]) -> Rows,
        sequences: &[StateSeq<'_>],
        out: &mut [f32],
    ) {
        let [r, k, v] = [&case.q, &case.k, &case.v].map(|rows| gather(rows));
        let [decay, rate, gate] = [&self.decay, &self.rate, &self.gate].map(|rows| gather(rows));
        let residual = self.residual.as_ref().map(|rows| rows.each_ref().map(|rows| gather(rows)));
        let input = WkvInput {
            dim: case.shape.key_dim,
            receptance: r.view(),
            decay: decay.view(),
            key: k.view(),
            value: v.view(),
            rate: rate.view(),
            gate: gate.view(),
            residual: residual.as_ref().map(|rows| rows.each_ref().map(Rows::view)),
            weights: WkvWeights {
                removal_scale: &self.removal_scale,
                rate_scale: &self.rate_scale,
                bonus: &self.bonus,
                norm: self.norm.each_ref().map(|x| &x[..]),
                norm_eps: EPS,
            },
            sequences,
        };
        cpu.wkv(store, 1, &input, out);
    }
}

/// Heads and their elements.
const SIZES: [[usize; 2]; 5] = [[1, 64], [3, 16], [2, 37], [1, 5], [2, 80]];

#[test]
fn rows_are_within_two_millionths_of_the_recurrence_token_by_token() {
    let mut random = Random::new(240);
    for (i, sizes) in SIZES.into_iter().enumerate() {
        let case = Case::wkv(&mut random, 200, sizes, i % 2 == 0);
        let exact = case.wkv_recurrence();
        for (t, row) in case.whole(&row_cpus()[0], &tokens(0..200)).iter().enumerate() {
            let off = distance(&floats(&row[case.channels..]), &exact[t]);
            assert!(off < 2e-6, "{sizes:?}: row {t} is off by {off}");
        }
    }
}

#[test]
fn every_cut_on_every_instruction_set_and_team_gives_the_same_bits() {
    let mut random = Random::new(241);
    let n: usize = 200;
    for (i, sizes) in SIZES.into_iter().enumerate() {
        let dtype = StateDtype::ALL[i % 2];
        let case = Case::wkv(&mut random, n, sizes, i % 2 == 1).stored_as(dtype);
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
fn a_key_of_zeros_takes_nothing_out_and_leaves_finite_rows() {
    let mut random = Random::new(242);
    let mut case = Case::wkv(&mut random, 100, [2, 16], true);
    case.k[70].fill(0.0);
    let exact = case.wkv_recurrence();
    for cpu in row_cpus() {
        for (row, exact) in case.run_in(&cpu, &tokens(0..100), &[70, 71, 100]).iter().zip(&exact) {
            assert!(distance(&floats(&row[case.channels..]), exact) < 2e-6);
        }
    }
}

#[test]
#[should_panic(expected = "invariant: the sizes are those of the layer")]
fn heads_of_another_size_are_a_broken_invariant() {
    let mut random = Random::new(243);
    let mut store = Case::wkv(&mut random, 0, [2, 16], true).store(1, 0);
    let other = Case::wkv(&mut random, 1, [1, 32], true);
    let none = |_: &[Vec<f32>]| Rows::new(Vec::new(), 32);
    let wkv = other.wkv.as_ref().expect("a recurrence of RWKV-7");
    wkv.step((&row_cpus()[0], &mut store), &other, &none, &[], &mut []);
}
