//! Rows of an embedding table.
//!
//! ```text
//! out[i] = row ids[i] of the table, dequantized
//! ```
//!
//! A row lies in a panel beside fifteen others, a few bytes of it in each cache line. So as many lines are
//! read as for all sixteen, from places that nothing foresees: 512 rows of 896 weights in Q8_0 took 18 ms
//! on one thread of a Granite Rapids, a twenty-fifth of a prompt.

use crate::Cpu;
use crate::layout::PackedMatrix;
use crate::team::Parts;

/// A weight is about so many times the work of a copied element.
const WORK: usize = 16;

impl Cpu {
    /// Writes rows `ids` of `table` to `out`, dequantized exactly as their format specifies.
    ///
    /// # Shapes
    ///
    /// `table`: `[n, k]`; `out`: as many rows of `k` as `ids`.
    ///
    /// # Panics
    ///
    /// When an id is not below `n`, or `out` has another size.
    pub fn look_up(&self, table: &PackedMatrix, ids: &[u32], out: &mut [f32]) {
        let width = table.k();
        assert_eq!(out.len(), ids.len() * width, "invariant: a row per id");
        let parts = Parts::new(out);
        self.for_each_part(ids.len(), WORK * width, |range| {
            for i in range {
                // SAFETY: each row belongs to one tile.
                let row = unsafe { parts.part(i * width..(i + 1) * width) };
                table.unpack_row_f32(ids[i] as usize, row);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::{GROUP, WeightLayout};
    use crate::testing::{bits, row_cpus};

    #[test]
    fn rows_are_those_of_the_table_on_any_number_of_threads() {
        let (n, k) = (40, 2 * GROUP);
        let rows: Vec<Vec<u8>> = (0..n)
            .map(|row| {
                let weights = (0..k).map(|i| (row * 100 + i) as f32 - 7.5);
                weights.flat_map(f32::to_le_bytes).collect()
            })
            .collect();
        let ids: Vec<u32> = (0..100).map(|i| i * 7 % 40).collect();
        for cpu in row_cpus() {
            let table = PackedMatrix::pack(&cpu, WeightLayout::F32, n, k, &|row| &rows[row]);
            let mut out = vec![0.0; ids.len() * k];
            cpu.look_up(&table, &ids, &mut out);
            let expected: Vec<f32> = ids
                .iter()
                .flat_map(|id| (0..k).map(move |i| (*id as usize * 100 + i) as f32 - 7.5))
                .collect();
            assert_eq!(bits(&out), bits(&expected));
        }
    }
}
