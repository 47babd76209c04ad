//! Decays and update factors of recurrent layers, head by head.
//!
//! ```text
//! delta_gates   decay = rate · softplus(a + dt_bias)                beta = sigmoid(b)
//! channel_gates the same with a decay for each channel of a head, and its bias
//! step_gates    step  = clamp(softplus(dt + dt_bias))              decay = rate · step
//!
//! softplus(x) = x for x > 20, else ln(1 + eˣ)
//! ```
//!
//! An element per row and head, about fifty operations each: scalar code of the standard library, the
//! same for every table of kernels. Channels are as many as elements of a key, and have kernels: about
//! 30 operations for sixteen of them.

use crate::Cpu;
use crate::ops::kv::StridedRows;
use crate::simd::{LANES, Simd, math, shells};
use crate::team::Parts;

/// Learned parameters of the decays of one layer.
#[derive(Clone, Copy, Debug)]
pub struct DecayParams<'a> {
    /// Decay rate of each head, `-exp(A_log)`.
    pub rates: &'a [f32],
    /// Added to the time step of each head before its softplus.
    pub dt_bias: &'a [f32],
}

/// Log decays of the channels of a head: inputs, biases, rate of the head.
pub(super) type ChannelKernel = unsafe fn([&[f32]; 2], f32, &mut [f32]);

/// `out = rate · softplus(a + bias)`, of equal lengths.
#[inline(always)]
fn channel_decays<S: Simd>(s: S, [a, bias]: [&[f32]; 2], rate: f32, out: &mut [f32]) {
    let rate = s.splat(rate);
    let (xs, x_tail) = a.as_chunks::<LANES>();
    let (biases, bias_tail) = bias.as_chunks::<LANES>();
    let (outs, out_tail) = out.as_chunks_mut::<LANES>();
    for ((a, bias), out) in xs.iter().zip(biases).zip(outs) {
        let step = math::softplus(s, s.add(s.load(a), s.load(bias)));
        s.store(s.mul(rate, step), out);
    }
    if !x_tail.is_empty() {
        let (a, bias) = (s.load_part(x_tail, 0.0), s.load_part(bias_tail, 0.0));
        s.store_part(s.mul(rate, math::softplus(s, s.add(a, bias))), out_tail);
    }
}

shells! {
    pub(super) mod channel_decays_shells =
        channel_decays(inputs: [&[f32]; 2], rate: f32, out: &mut [f32])
}

fn softplus(x: f32) -> f32 {
    if x > 20.0 { x } else { x.exp().ln_1p() }
}

impl Cpu {
    /// Log decays and update factors of Gated DeltaNet.
    ///
    /// # Shapes
    ///
    /// `a`, `b`: rows of a head each; `decay`, `beta`: `[m, n_heads]`.
    ///
    /// # Panics
    ///
    /// When the shapes disagree.
    pub fn delta_gates(
        &self,
        a: StridedRows<'_>,
        b: StridedRows<'_>,
        params: &DecayParams<'_>,
        decay: &mut [f32],
        beta: &mut [f32],
    ) {
        self.gates(params, [decay, beta], |row, head| {
            let n_heads = params.rates.len();
            let step = softplus(a.row(row, n_heads)[head] + params.dt_bias[head]);
            let b = b.row(row, n_heads)[head];
            [params.rates[head] * step, 1.0 / (1.0 + (-b).exp())]
        });
    }

    /// Log decays of every channel, and update factors, of Kimi Delta Attention.
    ///
    /// # Shapes
    ///
    /// `a`: rows of `[n_heads, channels]`; `b`: rows of a head each; `params.dt_bias`: `[n_heads,
    /// channels]`; `decay`: `[m, n_heads * channels]`; `beta`: `[m, n_heads]`.
    ///
    /// # Panics
    ///
    /// When the shapes disagree.
    pub fn channel_gates(
        &self,
        a: StridedRows<'_>,
        b: StridedRows<'_>,
        params: &DecayParams<'_>,
        decay: &mut [f32],
        beta: &mut [f32],
    ) {
        let DecayParams { rates, dt_bias } = *params;
        let (n_heads, width) = (rates.len(), dt_bias.len());
        let is_whole = n_heads > 0 && width > 0 && width.is_multiple_of(n_heads);
        assert!(is_whole, "invariant: a bias per channel");
        let n_rows = beta.len() / n_heads;
        assert_eq!(beta.len(), n_rows * n_heads, "invariant: whole rows of heads");
        assert_eq!(decay.len(), n_rows * width, "invariant: a decay per row and channel");
        for (row, beta) in beta.chunks_exact_mut(n_heads).enumerate() {
            let b = b.row(row, n_heads);
            beta.iter_mut().zip(b).for_each(|(beta, b)| *beta = 1.0 / (1.0 + (-b).exp()));
        }
        let decay = Parts::new(decay);
        let channels = width / n_heads;
        let kernel = self.kernels.rows.channel_decays;
        // An exponential and a division weigh like about four plain elements.
        self.for_each_part(n_rows * n_heads, 4 * channels, |items| {
            for item in items {
                let (row, head) = (item / n_heads, item % n_heads);
                let own = head * channels..(head + 1) * channels;
                let (a, bias) = (&a.row(row, width)[own.clone()], &dt_bias[own]);
                // SAFETY: each head of a row belongs to one tile.
                let decay = unsafe { decay.part(item * channels..(item + 1) * channels) };
                // SAFETY: the kernels of a `Cpu` are available on this machine.
                unsafe { kernel([a, bias], rates[head], decay) };
            }
        });
    }

    /// Log decays and time steps (the update factors) of Mamba 2; steps are within `limits`.
    ///
    /// # Shapes
    ///
    /// `dt`: rows of a head each; `decay`, `steps`: `[m, n_heads]`.
    ///
    /// # Panics
    ///
    /// When the shapes disagree, or the limits are in the wrong order.
    pub fn step_gates(
        &self,
        dt: StridedRows<'_>,
        params: &DecayParams<'_>,
        limits: [f32; 2],
        decay: &mut [f32],
        steps: &mut [f32],
    ) {
        assert!(limits[0] <= limits[1], "invariant: the limits of steps ascend");
        self.gates(params, [decay, steps], |row, head| {
            let dt = dt.row(row, params.rates.len())[head] + params.dt_bias[head];
            let step = softplus(dt).clamp(limits[0], limits[1]);
            [params.rates[head] * step, step]
        });
    }

    /// Fills both outputs, each `[m, n_heads]`, with what `f` makes of a row and a head.
    fn gates(
        &self,
        params: &DecayParams<'_>,
        out: [&mut [f32]; 2],
        f: impl Fn(usize, usize) -> [f32; 2] + Sync,
    ) {
        let n_heads = params.rates.len();
        assert!(n_heads > 0 && params.dt_bias.len() == n_heads, "invariant: a bias per head");
        assert_eq!(out[0].len(), out[1].len(), "invariant: outputs of one size");
        assert!(out[0].len().is_multiple_of(n_heads), "invariant: whole rows of heads");
        let n_rows = out[0].len() / n_heads;
        let [first, second] = out.map(Parts::new);
        self.for_each_part(n_rows, 16 * n_heads, |rows| {
            for row in rows {
                let own = row * n_heads..(row + 1) * n_heads;
                // SAFETY: each row belongs to one tile.
                let (first, second) = unsafe { (first.part(own.clone()), second.part(own)) };
                for (head, (first, second)) in first.iter_mut().zip(second).enumerate() {
                    [*first, *second] = f(row, head);
                }
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Random, row_cpus};

    #[test]
    fn gates_are_close_to_their_formulas_and_equal_on_every_team() {
        let mut random = Random::new(250);
        let exact = |x: f64| (1.0 + x.exp()).ln();
        for (m, n_heads) in [(1, 1), (3, 5), (200, 32)] {
            let mut x = random.normals(m * 2 * n_heads);
            x.iter_mut().for_each(|x| *x *= 12.0);
            let (mut rates, dt_bias) = (random.normals(n_heads), random.normals(n_heads));
            rates.iter_mut().for_each(|x| *x = -x.exp());
            let params = DecayParams { rates: &rates, dt_bias: &dt_bias };
            let rows = |offset| StridedRows { data: &x, stride: 2 * n_heads, offset };
            for cpu in row_cpus() {
                let mut got = [const { Vec::new() }; 4];
                got.iter_mut().for_each(|got| got.resize(m * n_heads, f32::NAN));
                let [decay, beta, slow, steps] = &mut got;
                cpu.delta_gates(rows(0), rows(n_heads), &params, decay, beta);
                cpu.step_gates(rows(0), &params, [0.5, 9.0], slow, steps);
                for row in 0..m {
                    for head in 0..n_heads {
                        let [a, b] =
                            [0, n_heads].map(|at| f64::from(x[row * 2 * n_heads + at + head]));
                        let step = exact(a + f64::from(dt_bias[head]));
                        let rate = f64::from(rates[head]);
                        let limited = step.clamp(0.5, 9.0);
                        let beta = 1.0 / (1.0 + (-b).exp());
                        let expected = [rate * step, beta, rate * limited, limited];
                        for (got, exact) in got.iter().zip(expected) {
                            let got = f64::from(got[row * n_heads + head]);
                            let bound = 3e-6 * exact.abs().max(1e-3);
                            assert!((got - exact).abs() < bound, "{got} is not {exact}");
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn channels_have_about_the_decays_of_heads_of_their_own_alike_on_every_instruction_set() {
        let mut random = Random::new(251);
        let (m, n_heads, channels) = (37, 3, 20);
        let width = n_heads * channels;
        let (a, b) = (random.normals(m * width), random.normals(m * n_heads));
        let (mut rates, dt_bias) = (random.normals(n_heads), random.normals(width));
        rates.iter_mut().for_each(|x| *x = -x.exp());
        let mut first = None;
        let of_channels: Vec<f32> = (0..width).map(|channel| rates[channel / channels]).collect();
        for cpu in row_cpus() {
            let (mut decay, mut beta) = (vec![f32::NAN; m * width], vec![f32::NAN; m * n_heads]);
            let params = DecayParams { rates: &rates, dt_bias: &dt_bias };
            let (a, b) = (StridedRows::dense(&a, width), StridedRows::dense(&b, n_heads));
            cpu.channel_gates(a, b, &params, &mut decay, &mut beta);
            let params = DecayParams { rates: &of_channels, dt_bias: &dt_bias };
            let (mut expected, mut unused) = (decay.clone(), decay.clone());
            cpu.delta_gates(a, a, &params, &mut expected, &mut unused);
            for (decay, expected) in decay.iter().zip(&expected) {
                assert!((decay - expected).abs() <= 1e-6 * expected.abs(), "{decay}, {expected}");
            }
            assert_eq!(first.get_or_insert(decay.clone()), &decay, "{}", cpu.kernels.name);
            let params = DecayParams { rates: &rates, dt_bias: &rates };
            let (mut unused, mut expected) = (beta.clone(), beta.clone());
            cpu.delta_gates(b, b, &params, &mut unused, &mut expected);
            assert_eq!(beta, expected);
        }
    }

    #[test]
    #[should_panic(expected = "invariant: a bias per head")]
    fn a_bias_of_other_heads_is_a_broken_invariant() {
        let rows = StridedRows::dense(&[0.0; 2], 2);
        let params = DecayParams { rates: &[0.0; 2], dt_bias: &[0.0; 1] };
        row_cpus()[0].delta_gates(rows, rows, &params, &mut [0.0; 2], &mut [0.0; 2]);
    }
}
