//! Activations: alone, as the middle of a perceptron without a gate; `gated.rs` multiplies them.
//!
//! ```text
//! silu(x)         = x / (1 + e⁻ˣ)
//! gelu_tanh(x)    = ½ x (1 + tanh u) = x / (1 + e⁻²ᵘ)      u = √(2/π) (x + 0.044715 x³)
//! quick_gelu(x)   = x / (1 + e^(-1.702 x))
//! gelu(x)         = x Φ(x) = max(x, 0) - |x| · c            c = ½ erfc(|x| / √2), |x| up to 30
//!     c           = t (a1 + t (a2 + t (a3 + t (a4 + t a5)))) · exp(-x² / 2) / 2
//!     t           = 1 / (1 + p |x| / √2)
//! relu(x)         = max(x, 0)              relu_squared(x) = relu(x)²
//! ```
//!
//! 8 bytes and 1 to 25 operations per element. Big rows are cut by columns too, like the gated
//! ones. The error of `gelu` is below 2e-7 in Φ; the form with `max` needs no comparison of lanes,
//! gives 0 far on the left, and keeps infinities and NaN.
//!
//! Tried and dropped: `gelu_tanh` through `tanh` (one more cancellation, no faster); `erf` as two
//! polynomials by size (a choice per lane, for an error that no checkpoint notices).
//!
//! # Paper
//!
//! Hendrycks and Gimpel, *Gaussian Error Linear Units*, 2016; the polynomial is 7.1.26 of
//! Abramowitz and Stegun, *Handbook of Mathematical Functions*, 1964; So et al., *Primer*, 2021
//! (squared).

use pelton_base::Act;

use crate::Cpu;
use crate::ops::activations::Activations;
use crate::simd::math::{exp, times_sigmoid};
use crate::simd::shells;
use crate::simd::{LANES, Simd};

#[inline(always)]
pub(super) fn silu<S: Simd>(s: S, x: S::F) -> S::F {
    times_sigmoid(s, x, x)
}

#[inline(always)]
pub(super) fn gelu_tanh<S: Simd>(s: S, x: S::F) -> S::F {
    // 2 √(2/π), and 0.044715 times that.
    const A: f32 = 1.595_769;
    const B: f32 = 0.071_354_814;
    let square = s.mul(x, x);
    let twice_u = s.mul(x, s.fma(square, s.splat(B), s.splat(A)));
    times_sigmoid(s, x, twice_u)
}

#[inline(always)]
pub(super) fn gelu<S: Simd>(s: S, x: S::F) -> S::F {
    /// `p / √2`.
    const P: f32 = 0.231_641_89;
    /// Half of the handbook's coefficients.
    const A: [f32; 5] = [0.127_414_8, -0.142_248_37, 0.710_706_9, -0.726_576, 0.530_702_7];
    // Beyond this bound Φ is 0 or 1, and it excludes infinity times zero. A NaN passes through.
    let size = s.min(s.splat(30.0), s.max(x, s.sub(s.splat(0.0), x)));
    let t = s.div(s.splat(1.0), s.fma(size, s.splat(P), s.splat(1.0)));
    let mut c = s.splat(A[4]);
    c = s.fma(c, t, s.splat(A[3]));
    c = s.fma(c, t, s.splat(A[2]));
    c = s.fma(c, t, s.splat(A[1]));
    c = s.fma(c, t, s.splat(A[0]));
    let c = s.mul(s.mul(c, t), exp(s, s.mul(s.mul(size, size), s.splat(-0.5))));
    s.sub(relu(s, x), s.mul(size, c))
}

#[inline(always)]
pub(super) fn quick_gelu<S: Simd>(s: S, x: S::F) -> S::F {
    times_sigmoid(s, x, s.mul(x, s.splat(1.702)))
}

/// `max(x, 0)`. A NaN stays a NaN, because `max` returns its right side for it.
#[inline(always)]
pub(super) fn relu<S: Simd>(s: S, x: S::F) -> S::F {
    s.max(s.splat(0.0), x)
}

#[inline(always)]
pub(super) fn relu_squared<S: Simd>(s: S, x: S::F) -> S::F {
    let x = relu(s, x);
    s.mul(x, x)
}

/// Kernel that writes the activation of its first slice to its second.
pub(super) type Kernel = unsafe fn(&[f32], &mut [f32]);

macro_rules! plain {
    ($name:ident, $act:ident, $shells:ident) => {
        /// `out = act(x)`, of equal lengths.
        #[inline(always)]
        fn $name<S: Simd>(s: S, x: &[f32], out: &mut [f32]) {
            let (xs, x_tail) = x.as_chunks::<LANES>();
            let (outs, out_tail) = out.as_chunks_mut::<LANES>();
            for (x, out) in xs.iter().zip(outs) {
                s.store($act(s, s.load(x)), out);
            }
            if !x_tail.is_empty() {
                s.store_part($act(s, s.load_part(x_tail, 0.0)), out_tail);
            }
        }
        shells! { pub(super) mod $shells = $name(x: &[f32], out: &mut [f32]) }
    };
}
plain!(silu_rows, silu, silu_shells);
plain!(gelu_tanh_rows, gelu_tanh, gelu_tanh_shells);
plain!(gelu_rows, gelu, gelu_shells);
plain!(quick_gelu_rows, quick_gelu, quick_gelu_shells);
plain!(relu_rows, relu, relu_shells);
plain!(relu_squared_rows, relu_squared, relu_squared_shells);

impl Cpu {
    /// `act(x)` of each element, in the forms of `out`.
    ///
    /// # Shapes
    ///
    /// `x`: `[m, width]`; `out`: rows of `width`.
    ///
    /// # Panics
    ///
    /// When `x` is not whole rows.
    pub fn activate(&self, act: Act, x: &[f32], out: &mut Activations) {
        let width = out.width();
        assert!(x.len().is_multiple_of(width), "invariant: whole rows of x");
        let kernel = self.kernels.rows.plain[act as usize];
        let out = out.writer(self, x.len() / width);
        out.fill(self, |row, columns, out| {
            let x = &x[row * width + columns.start..row * width + columns.end];
            // SAFETY: the kernels of a `Cpu` are available on this machine.
            unsafe { kernel(x, out) };
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::activations::Forms;
    use crate::testing::{Random, bits, hostile_floats, row_cpus};

    fn run(cpu: &Cpu, act: Act, x: &[f32], width: usize) -> Vec<f32> {
        let mut out = Activations::new(width, Forms::F32);
        cpu.activate(act, x, &mut out);
        out.floats().to_vec()
    }

    /// `Φ(x)` by integrating the density from 0, in f64.
    fn phi(x: f64) -> f64 {
        const N: usize = 2000;
        let h = x / N as f64;
        let density = |i: usize| (-(i as f64 * h).powi(2) / 2.0).exp();
        let odd: f64 = (1..N).step_by(2).map(density).sum();
        let even: f64 = (2..N).step_by(2).map(density).sum();
        let sum = density(0) + 4.0 * odd + 2.0 * even + density(N);
        0.5 + sum * h / 3.0 / (2.0 * std::f64::consts::PI).sqrt()
    }

    #[test]
    fn gelu_is_close_to_the_integral_of_the_density() {
        let cpu = &row_cpus()[0];
        for i in -900..900 {
            let x = i as f32 * 0.01;
            let exact = f64::from(x) * phi(f64::from(x));
            let got = f64::from(run(cpu, Act::Gelu, &[x], 1)[0]);
            let bound = 2e-7 * (0.1 + f64::from(x).abs());
            assert!((got - exact).abs() < bound, "{x}: {got} is not {exact}");
        }
    }

    #[test]
    fn the_ends_of_every_activation_are_what_they_should_be() {
        let cpu = &row_cpus()[0];
        for act in Act::ALL {
            let ends = run(cpu, act, &[f32::INFINITY, 1e30, 0.0, -1e4, f32::NAN], 5);
            assert_eq!(ends[0], f32::INFINITY, "{act:?}");
            assert!(ends[1] >= 1e30, "{act:?}");
            assert!(ends[2] == 0.0 && ends[3] == 0.0, "{act:?}: {ends:?}");
            assert!(ends[4].is_nan(), "{act:?}");
        }
        assert_eq!(run(cpu, Act::ReluSquared, &[3.0, -3.0], 2), [9.0, 0.0]);
        let quick = run(cpu, Act::QuickGelu, &[1.0], 1)[0];
        assert!((f64::from(quick) - 1.0 / (1.0 + (-1.702_f64).exp())).abs() < 1e-6);
    }

    #[test]
    fn an_activation_alone_is_the_gated_one_with_an_up_of_one_on_every_instruction_set() {
        let mut random = Random::new(9);
        let hostile = hostile_floats();
        for (m, width) in [(1, 1), (2, 15), (3, 33), (1, 14_337), (20, 2048)] {
            let mut x: Vec<f32> = random.normals(m * width);
            x.iter_mut().for_each(|x| *x *= 6.0);
            for (x, &bad) in x.iter_mut().step_by(5).zip(&hostile) {
                *x = bad;
            }
            let mut gate_up = Vec::new();
            for row in x.chunks(width) {
                gate_up.extend_from_slice(row);
                gate_up.resize(gate_up.len() + width, 1.0);
            }
            let cpus = row_cpus();
            for act in Act::ALL {
                let mut gated = Activations::new(width, Forms::F32);
                cpus[0].gated_mul(act, &gate_up, &mut gated);
                for cpu in &cpus {
                    let got = bits(&run(cpu, act, &x, width));
                    assert_eq!(got, bits(gated.floats()), "{} {act:?}", cpu.kernels.name);
                }
            }
        }
    }
}
