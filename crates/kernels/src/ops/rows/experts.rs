//! Gathering rows for experts, and adding up what the experts return.
//!
//! ```text
//! gather       x [m, width]        -> [n, width]    row rows[i], times factors[i], in its forms
//! limit        gate = min(gate, c);  up = max(-c, min(up, c)) + 1             GPT-OSS, a NaN stays one
//! weighted sum y [n, width]        -> [m, width]    Σ over slots of weight · y[place]
//! ```
//!
//! **Canonical order.** A sum starts from 0 and adds the slots ascending, which is the order in
//! which the router chose them; each product is rounded before it is added. The result does not
//! depend on the other rows of the batch, nor on where the copies of a row were gathered.
//!
//! 4 to 8 bytes and at most two operations per element and choice, a ten-thousandth of the work of
//! the experts; the vectors that the compiler makes by itself are good enough here.

use crate::Cpu;
use crate::ops::activations::Activations;
use crate::team::Parts;

impl Cpu {
    /// Rows `rows` of `x` in the forms of `out`, each times its factor where there are factors.
    ///
    /// # Shapes
    ///
    /// `x`: `[m, out.width()]`; `factors`: as many as `rows`.
    ///
    /// # Panics
    ///
    /// When a row or a factor is missing.
    pub fn gather_rows(
        &self,
        x: &[f32],
        rows: &[u32],
        factors: Option<&[f32]>,
        out: &mut Activations,
    ) {
        let width = out.width();
        let n_factors = factors.map_or(rows.len(), <[f32]>::len);
        assert_eq!(n_factors, rows.len(), "invariant: a factor per row");
        let writer = out.writer(self, rows.len());
        self.for_each_part(rows.len(), width, |range| {
            for i in range {
                let x = &x[rows[i] as usize * width..][..width];
                // SAFETY: each row belongs to one tile.
                unsafe {
                    writer.row(i, |columns, out| match factors {
                        None => out.copy_from_slice(&x[columns]),
                        Some(factors) => {
                            let scaled = x[columns].iter().map(|x| x * factors[i]);
                            out.iter_mut().zip(scaled).for_each(|(out, x)| *out = x);
                        }
                    });
                }
            }
        });
    }

    /// Limits gates from above and ups from both sides, and adds one to each up.
    ///
    /// # Shapes
    ///
    /// `gate_up`: `[m, 2 * ffn]`, the gate first.
    ///
    /// # Panics
    ///
    /// When `gate_up` is not whole rows.
    pub fn limit_gate_up(&self, gate_up: &mut [f32], ffn: usize, limit: f32) {
        assert!(gate_up.len().is_multiple_of(2 * ffn), "invariant: a gate and an up per output");
        let n_rows = gate_up.len() / (2 * ffn);
        let parts = Parts::new(gate_up);
        self.for_each_part(n_rows, 2 * ffn, |rows| {
            for row in rows {
                // SAFETY: each row belongs to one tile.
                let row = unsafe { parts.part(row * 2 * ffn..(row + 1) * 2 * ffn) };
                let (gates, ups) = row.split_at_mut(ffn);
                let below = |x: f32| if x > limit { limit } else { x };
                gates.iter_mut().for_each(|gate| *gate = below(*gate));
                for up in ups {
                    let bounded = if *up < -limit { -limit } else { below(*up) };
                    *up = bounded + 1.0;
                }
            }
        });
    }

    /// `out[r] = Σ weights[r, slot] · y[places[r, slot]]` over the slots of row `r`, ascending.
    ///
    /// # Shapes
    ///
    /// `y`: `[n, width]`; `places`, `weights`: `[m, n_slots]`; `out`: `[m, width]`.
    ///
    /// # Panics
    ///
    /// When a row of `y` is missing or the shapes do not fit.
    pub fn weighted_sum(
        &self,
        y: &[f32],
        places: &[u32],
        weights: &[f32],
        width: usize,
        out: &mut [f32],
    ) {
        assert!(width > 0 && out.len().is_multiple_of(width), "invariant: whole rows of out");
        let n_rows = out.len() / width;
        assert_eq!(places.len(), weights.len(), "invariant: a weight per place");
        assert!(n_rows > 0 || places.is_empty(), "invariant: places are of rows");
        assert!(places.len().is_multiple_of(n_rows.max(1)), "invariant: as many slots per row");
        let n_slots = places.len() / n_rows.max(1);
        /// Columns per item of work, which stay in the first-level cache over all slots.
        const COLUMNS: usize = 1024;
        let per_row = width.div_ceil(COLUMNS);
        let parts = Parts::new(out);
        self.for_each_part(n_rows * per_row, n_slots * width.min(COLUMNS), |items| {
            for item in items {
                let (row, first) = (item / per_row, item % per_row * COLUMNS);
                let last = width.min(first + COLUMNS);
                // SAFETY: each stretch of columns belongs to one tile.
                let out = unsafe { parts.part(row * width + first..row * width + last) };
                out.fill(0.0);
                for slot in row * n_slots..(row + 1) * n_slots {
                    let y = &y[places[slot] as usize * width..][first..last];
                    let weight = weights[slot];
                    out.iter_mut().zip(y).for_each(|(out, y)| *out += weight * y);
                }
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use crate::ops::activations::{Activations, Forms};
    use crate::testing::{Random, bits, row_cpus};

    #[test]
    fn rows_are_gathered_scaled_and_summed_in_the_order_of_slots_on_every_team() {
        let mut random = Random::new(3);
        for (m, width, n_slots) in [(1, 1, 1), (3, 40, 2), (9, 2100, 4), (70, 1024, 3)] {
            let x = random.normals(m * width);
            let places: Vec<u32> = (0..m * n_slots).map(|_| random.below(m) as u32).collect();
            let weights = random.normals(m * n_slots);
            let mut gathered = vec![0.0; places.len() * width];
            for (i, row) in gathered.chunks_mut(width).enumerate() {
                let x = &x[places[i] as usize * width..][..width];
                row.iter_mut().zip(x).for_each(|(out, x)| *out = x * weights[i]);
            }
            let mut summed = vec![0.0_f32; m * width];
            for (i, row) in gathered.chunks(width).enumerate() {
                let out = &mut summed[i / n_slots * width..][..width];
                out.iter_mut().zip(row).for_each(|(out, x)| *out += x);
            }
            for cpu in row_cpus() {
                let mut rows = Activations::new(width, Forms::F32);
                cpu.gather_rows(&x, &places, Some(&weights), &mut rows);
                assert_eq!(bits(rows.floats()), bits(&gathered), "{m} x {width}");
                let mut out = vec![5.0; m * width];
                cpu.weighted_sum(&x, &places, &weights, width, &mut out);
                assert_eq!(bits(&out), bits(&summed), "{m} x {width}");
            }
        }
    }

    #[test]
    fn gates_are_bounded_above_and_ups_on_both_sides() {
        let cpu = &row_cpus()[0];
        let mut gate_up = [9.0, -9.0, f32::NAN, 8.0, -8.0, f32::NAN];
        cpu.limit_gate_up(&mut gate_up, 3, 7.0);
        assert_eq!([gate_up[0], gate_up[1], gate_up[3], gate_up[4]], [7.0, -9.0, 8.0, -6.0]);
        assert!(gate_up[2].is_nan() && gate_up[5].is_nan());
    }
}
