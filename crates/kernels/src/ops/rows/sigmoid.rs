//! Gates of attention: rows multiplied by the sigmoid of other rows.
//!
//! ```text
//! x[r][i] = x[r][i] / (1 + exp(-gate[r][i]))      12 bytes, about 20 operations per element
//! ```
//!
//! There is no order of summation: each element is computed alone.

use crate::Cpu;
use crate::ops::kv::StridedRows;
use crate::simd::math::times_sigmoid;
use crate::simd::shells;
use crate::simd::{LANES, Simd};
use crate::team::Parts;

/// `x /= 1 + exp(-gate)`, of equal lengths.
#[inline(always)]
fn sigmoid_mul<S: Simd>(s: S, x: &mut [f32], gate: &[f32]) {
    let (xs, x_tail) = x.as_chunks_mut::<LANES>();
    let (gates, gate_tail) = gate.as_chunks::<LANES>();
    for (x, gate) in xs.iter_mut().zip(gates) {
        s.store(times_sigmoid(s, s.load(x), s.load(gate)), x);
    }
    if !x_tail.is_empty() {
        let (y, gate) = (s.load_part(x_tail, 0.0), s.load_part(gate_tail, 0.0));
        s.store_part(times_sigmoid(s, y, gate), x_tail);
    }
}

shells! { pub(super) mod sigmoid_mul_shells = sigmoid_mul(x: &mut [f32], gate: &[f32]) }

impl Cpu {
    /// Multiplies rows by the sigmoid of their gates.
    ///
    /// # Shapes
    ///
    /// `x`: `[m, width]`; `gate`: rows of as many elements.
    ///
    /// # Panics
    ///
    /// When `x` is not whole rows, or there are fewer gates.
    pub fn sigmoid_mul(&self, x: &mut [f32], gate: StridedRows<'_>, width: usize) {
        assert!(width > 0 && x.len().is_multiple_of(width), "invariant: whole rows of x");
        let kernel = self.kernels.rows.sigmoid_mul;
        let n_rows = x.len() / width;
        let parts = Parts::new(x);
        // An exponential and a division weigh like about four plain elements.
        self.for_each_part(n_rows, 4 * width, |rows| {
            for row in rows {
                // SAFETY: each row belongs to one tile; the kernels of a `Cpu` are available.
                let x = unsafe { parts.part(row * width..(row + 1) * width) };
                // SAFETY: the kernels of a `Cpu` are available on this machine.
                unsafe { kernel(x, gate.row(row, width)) };
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Random, bits, row_cpus};

    #[test]
    fn gates_are_close_to_the_sigmoid_and_equal_on_every_instruction_set_and_team() {
        let mut random = Random::new(77);
        for (m, width) in [(1, 1), (3, 16), (2, 77), (40, 1000)] {
            let (x, gates) = (random.normals(m * width), random.normals(m * (width + 5)));
            let gate = StridedRows { data: &gates, stride: width + 5, offset: 3 };
            let run = |cpu: &Cpu| {
                let mut got = x.clone();
                cpu.sigmoid_mul(&mut got, gate, width);
                got
            };
            let cpus = row_cpus();
            let expected = run(&cpus[0]);
            for (i, (x, got)) in x.iter().zip(&expected).enumerate() {
                let gate = f64::from(gate.row(i / width, width)[i % width]);
                let exact = f64::from(*x) / (1.0 + (-gate).exp());
                assert!((f64::from(*got) - exact).abs() <= 1e-6 * (1e-3 + exact.abs()), "{i}");
            }
            for cpu in &cpus {
                assert_eq!(
                    bits(&run(cpu)),
                    bits(&expected),
                    "{} at {m} x {width}",
                    cpu.kernels.name
                );
            }
        }
    }
}
