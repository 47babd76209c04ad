//! Gated activations: the middle of a feed-forward block.
//!
//! ```text
//! gate_up  |--- gate [ffn] ---|--- up [ffn] ---|     one row, as the fused projection leaves it
//! out      |--- act(gate) · up ---|
//!
//! ```
//!
//! The activations themselves are in `act.rs`.
//!
//! 12 bytes and about 20 operations (one exponential, one division) per element of `out`. Big rows
//! are cut by columns too, so that a single decoding row of 14,336 is shared by the team.

use pelton_base::Act;

use super::act::{gelu, gelu_tanh, quick_gelu, relu, relu_squared, silu};
use crate::Cpu;
use crate::ops::activations::Activations;
use crate::simd::shells;
use crate::simd::{LANES, Simd};

/// Kernel that writes `act(gate) · up` to its last slice.
pub(super) type Kernel = unsafe fn(&[f32], &[f32], &mut [f32]);

macro_rules! gated {
    ($name:ident, $act:ident, $shells:ident) => {
        /// `out = act(gate) · up`, of equal lengths.
        #[inline(always)]
        fn $name<S: Simd>(s: S, gate: &[f32], up: &[f32], out: &mut [f32]) {
            let (gates, gate_tail) = gate.as_chunks::<LANES>();
            let (ups, up_tail) = up.as_chunks::<LANES>();
            let (outs, out_tail) = out.as_chunks_mut::<LANES>();
            for ((gate, up), out) in gates.iter().zip(ups).zip(outs) {
                s.store(s.mul($act(s, s.load(gate)), s.load(up)), out);
            }
            if !gate_tail.is_empty() {
                let (gate, up) = (s.load_part(gate_tail, 0.0), s.load_part(up_tail, 0.0));
                s.store_part(s.mul($act(s, gate), up), out_tail);
            }
        }
        shells! { pub(super) mod $shells = $name(gate: &[f32], up: &[f32], out: &mut [f32]) }
    };
}
gated!(silu_mul, silu, silu_mul_shells);
gated!(gelu_tanh_mul, gelu_tanh, gelu_tanh_mul_shells);
gated!(gelu_mul, gelu, gelu_mul_shells);
gated!(quick_gelu_mul, quick_gelu, quick_gelu_mul_shells);
gated!(relu_mul, relu, relu_mul_shells);
gated!(relu_squared_mul, relu_squared, relu_squared_mul_shells);

impl Cpu {
    /// `act(gate) · up` for each row, in the forms of `out`.
    ///
    /// # Shapes
    ///
    /// `gate_up`: `[m, 2 * ffn]`, the gate first; `out`: rows of `ffn`.
    ///
    /// # Panics
    ///
    /// When `gate_up` is not whole rows.
    pub fn gated_mul(&self, act: Act, gate_up: &[f32], out: &mut Activations) {
        let ffn = out.width();
        assert!(gate_up.len().is_multiple_of(2 * ffn), "invariant: a gate and an up per output");
        let kernel = self.kernels.rows.gated[act as usize];
        let out = out.writer(self, gate_up.len() / (2 * ffn));
        out.fill(self, |row, columns, out| {
            let (gate, up) = gate_up[row * 2 * ffn..(row + 1) * 2 * ffn].split_at(ffn);
            // SAFETY: the kernels of a `Cpu` are available on this machine.
            unsafe { kernel(&gate[columns.clone()], &up[columns], out) };
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::activations::Forms;
    use crate::testing::{Random, bits, hostile_floats, row_cpus};

    #[test]
    fn activations_are_close_to_their_formulas() {
        let cpu = &row_cpus()[0];
        for i in -800..800 {
            let g = i as f32 * 0.05;
            let x = f64::from(g);
            let mut rows = Activations::new(1, Forms::F32);
            cpu.gated_mul(Act::Silu, &[g, 1.5], &mut rows);
            let out = [rows.floats()[0]];
            let silu = x / (1.0 + (-x).exp()) * 1.5;
            assert!((f64::from(out[0]) - silu).abs() <= 1e-6 * (1e-3 + silu.abs()), "silu {g}");
            cpu.gated_mul(Act::GeluTanh, &[g, 1.5], &mut rows);
            let out = [rows.floats()[0]];
            let u = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x);
            let gelu = 0.5 * x * (1.0 + u.tanh()) * 1.5;
            assert!((f64::from(out[0]) - gelu).abs() <= 2e-6 * (1e-1 + gelu.abs()), "gelu {g}");
        }
    }

    #[test]
    fn gated_activations_have_the_same_bits_on_every_instruction_set_and_team() {
        let mut random = Random::new(9);
        let hostile = hostile_floats();
        for (m, ffn) in [(1, 1), (2, 15), (3, 33), (1, 14_337), (20, 2048)] {
            let mut gate_up: Vec<f32> = random.normals(m * 2 * ffn);
            gate_up.iter_mut().for_each(|x| *x *= 6.0);
            for (x, &bad) in gate_up.iter_mut().step_by(5).zip(&hostile) {
                *x = bad;
            }
            for act in Act::ALL {
                let run = |cpu: &Cpu| {
                    let mut out = Activations::new(ffn, Forms::F32);
                    cpu.gated_mul(act, &gate_up, &mut out);
                    bits(out.floats())
                };
                let cpus = row_cpus();
                let expected = run(&cpus[0]);
                for cpu in &cpus {
                    assert_eq!(run(cpu), expected, "{} at {m} x {ffn}", cpu.kernels.name);
                }
            }
        }
    }
}
