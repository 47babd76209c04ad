//! Many products in one run of the team: the experts of a mixture, each with its own rows.
//!
//! ```text
//! x  |-- rows of expert 0 --|- rows of expert 3 -|-- rows of expert 5 --|       sorted by expert
//!           x W0ᵀ                  x W3ᵀ                  x W5ᵀ
//! y  |-- .................. |- ................ -|-- .................. |
//!
//! blocks   0: strips x row blocks | 3: strips x row blocks | 5: ..      one list, handed out once
//! ```
//!
//! Each block is one of [`Cpu::matmul`]: the same tile kernels in the same canonical order, so a
//! row has the bits that a product of its own would give it, with any other rows in its group.
//!
//! # Bytes and operations
//!
//! Reads the weights of every matrix that has rows once per block of rows, `2 * rows * n * k`
//! operations each. In prefill with `m` rows, `top_k` choices and `E` experts a matrix has `m top_k
//! / E` rows: below about 16 of them it is read at the speed of memory, and a mixture needs `E /
//! top_k` times the rows of a dense model to get as much out of the multipliers.
//!
//! At one row, each group is a product of M = 1, and bytes are all that counts: `top_k` matrices
//! out of `E`. An expert is small, tens of strips where the team may have tens of threads: one
//! product after the other would leave threads without a strip at the end of each, and would wake
//! and join the team `top_k` times. One list of all groups' strips has one such end.
//!
//! Considered and not taken (reasoned, not measured): reading rows of `x` through a list of indices
//! instead of gathering them (every kernel would have it in its inner loop; gathering is `k`
//! elements per row, a product at least `n k`); a matrix with all experts stacked and masked (`E /
//! top_k` times the operations).

use std::ops::Range;

use super::{Cut, PackedMatrix, Target};
use crate::cpu::Cpu;
use crate::ops::activations::Activations;
use crate::tuning::Tuning;

/// Rows that one matrix multiplies.
#[derive(Clone, Copy, Debug)]
pub struct MatmulGroup {
    /// First row of `x`; groups may share rows.
    pub x_row: usize,
    /// First row of `y`.
    pub y_row: usize,
    /// Rows of `x` and of `y`.
    pub n_rows: usize,
    /// First column of `y` that is written.
    pub offset: usize,
}

/// Groups of one call; its memory is kept from call to call.
#[derive(Debug, Default)]
pub struct MatmulGroups {
    groups: Vec<MatmulGroup>,
    cuts: Vec<Cut>,
    /// Blocks of all groups before each.
    first_blocks: Vec<usize>,
}

impl MatmulGroups {
    /// Removes all groups and reserves memory for `most` new ones.
    pub fn clear(&mut self, most: usize) {
        self.groups.clear();
        self.groups.reserve(most);
        self.cuts.clear();
        self.cuts.reserve(most);
        self.first_blocks.clear();
        self.first_blocks.reserve(most);
    }

    /// Appends a group.
    ///
    /// # Panics
    ///
    /// When it might overlap the group before: it begins neither below that group's last row, nor
    /// at the same rows and to the right of its first column.
    pub fn push(&mut self, group: MatmulGroup) {
        if let Some(last) = self.groups.last() {
            let is_below = group.y_row >= last.y_row + last.n_rows;
            let is_beside = (group.y_row, group.n_rows) == (last.y_row, last.n_rows)
                && group.offset > last.offset;
            assert!(is_below || is_beside, "groups do not overlap: {last:?}, {group:?}");
        }
        self.groups.push(group);
    }

    /// Number of groups.
    pub fn n_groups(&self) -> usize {
        self.groups.len()
    }

    /// The group of block `idx`, and the index of the block within its group.
    fn place(&self, idx: usize) -> (usize, usize) {
        let group = self.first_blocks.partition_point(|first| *first <= idx) - 1;
        (group, idx - self.first_blocks[group])
    }

    /// The columns that group `group` may write.
    fn columns(&self, group: usize, n: usize, stride: usize) -> Range<usize> {
        let own = self.groups[group];
        let end = match self.groups.get(group + 1) {
            Some(next) if next.y_row == own.y_row && own.n_rows > 0 => next.offset,
            _ => stride,
        };
        let columns = own.offset..own.offset.saturating_add(n);
        assert!(columns.end <= end, "columns {columns:?} of {end}");
        columns
    }
}

impl Cpu {
    /// Computes `y[y_row + i, offset..] = x[x_row + i] Wᵀ` for every row `i` of every group, where
    /// `W` is `matrix(group)`.
    ///
    /// # Shapes
    ///
    /// `matrix(group)`: `[n, k]`, each with an `n` of its own; `x`: rows of `k`; `y`: rows of
    /// `stride`.
    ///
    /// # Panics
    ///
    /// When the shapes do not fit, groups overlap in `y`, or `x` is not held in the form that a
    /// matrix reads.
    pub fn matmul_groups<'w>(
        &self,
        groups: &mut MatmulGroups,
        matrix: &(dyn Fn(usize) -> &'w PackedMatrix + Sync),
        x: &Activations,
        y: &mut [f32],
        stride: usize,
    ) {
        let Tuning { strip_panels, min_parallel_bytes, .. } = self.tuning.clamped();
        let n_row_strips = (groups.groups.iter().enumerate())
            .map(|(i, group)| group.n_rows * matrix(i).n_panels().div_ceil(strip_panels))
            .sum();
        groups.cuts.clear();
        groups.first_blocks.clear();
        let (mut n_blocks, mut n_bytes) = (0, 0_usize);
        for i in 0..groups.n_groups() {
            let (group, w) = (groups.groups[i], matrix(i));
            let columns = groups.columns(i, w.n(), stride);
            assert_eq!(x.width(), w.k(), "width of the activations");
            assert!(group.x_row + group.n_rows <= x.n_rows(), "rows of x: {group:?}");
            let end = (group.y_row + group.n_rows).checked_mul(stride);
            assert!(end.is_some_and(|end| end <= y.len()), "rows of y: {group:?}");
            let cut = Cut::new(self, w, group.n_rows, n_row_strips);
            groups.cuts.push(cut);
            groups.first_blocks.push(n_blocks);
            n_blocks += if columns.is_empty() { 0 } else { cut.n_blocks() };
            n_bytes = n_bytes.saturating_add(w.n_bytes().saturating_mul(group.n_rows));
        }
        if n_blocks == 0 {
            return;
        }
        let whole = Target { ptr: y.as_mut_ptr(), stride, n_columns: 0 };
        let groups = &*groups;
        let run = |idx: usize| {
            let whole = &whole;
            let (i, block) = groups.place(idx);
            let (group, w) = (groups.groups[i], matrix(i));
            let ptr = whole.ptr.wrapping_add(group.y_row * stride + group.offset);
            let own = Target { ptr, stride, n_columns: w.n() };
            self.multiply_block(w, x, group.x_row, groups.cuts[i].block(block), &own);
        };
        if n_bytes < min_parallel_bytes {
            (0..n_blocks).for_each(run);
        } else {
            // The matrices of all groups nearly always have one layout.
            groups.cuts[0].hand_out_all(self, n_blocks, run);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::WeightLayout;
    use crate::ops::activations::Forms;
    use crate::ops::matmul::MatmulOutput;
    use crate::testing::{Random, all_cpus, bits};

    /// Outputs and rows of the groups.
    const GROUPS: [(usize, usize); 5] = [(40, 1), (40, 30), (7, 2), (40, 0), (100, 3)];
    const K: usize = 64;

    fn matrix(cpu: &Cpu, layout: WeightLayout, n: usize, random: &mut Random) -> PackedMatrix {
        let rows: Vec<f32> = random.normals(n * K);
        PackedMatrix::pack_with(cpu, layout, n, K, &|row, out| {
            let row = &rows[row * K..(row + 1) * K];
            if layout == WeightLayout::F32 {
                out.copy_from_slice(bytemuck::cast_slice(row));
                return;
            }
            for (block, x) in out.chunks_exact_mut(34).zip(row.chunks_exact(32)) {
                block[..2].copy_from_slice(&half::f16::from_f32(0.02).to_le_bytes());
                for (code, x) in block[2..].iter_mut().zip(x) {
                    *code = ((x * 40.0).clamp(-127.0, 127.0) as i8) as u8;
                }
            }
        })
    }

    #[test]
    fn each_group_has_the_bits_of_a_product_of_its_own() {
        for cpu in all_cpus() {
            for layout in [WeightLayout::F32, WeightLayout::Q8G32] {
                let mut random = Random::new(5);
                let matrices: Vec<PackedMatrix> =
                    GROUPS.iter().map(|(n, _)| matrix(&cpu, layout, *n, &mut random)).collect();
                let n_rows = GROUPS.iter().map(|(_, m)| m).sum::<usize>();
                let x = random.normals(n_rows * K);
                let write = |x: &[f32]| {
                    let forms = Forms::default().read_by(&cpu, &matrices[0]);
                    let mut rows = Activations::new(K, forms);
                    cpu.write_rows(x, &mut rows);
                    rows
                };
                let stride = 103;
                let mut groups = MatmulGroups::default();
                let mut row = 0;
                for (_, m) in GROUPS {
                    groups.push(MatmulGroup { x_row: row, y_row: row, n_rows: m, offset: 2 });
                    row += m;
                }
                let mut y = vec![7.0; n_rows * stride];
                cpu.matmul_groups(&mut groups, &|i| &matrices[i], &write(&x), &mut y, stride);
                let mut expected = vec![7.0; n_rows * stride];
                let mut row = 0;
                for ((_, m), w) in GROUPS.iter().zip(&matrices) {
                    let data = &mut expected[row * stride..];
                    let own = write(&x[row * K..(row + m) * K]);
                    cpu.matmul(w, &own, MatmulOutput { data, stride, offset: 2 });
                    row += m;
                }
                assert!(bits(&y) == bits(&expected), "{} {layout:?}", cpu.kernels.name);
            }
        }
    }

    #[test]
    fn groups_may_share_rows_and_stand_beside_each_other() {
        let cpu = &all_cpus()[0];
        let mut random = Random::new(6);
        let matrices: Vec<PackedMatrix> =
            [3, 5].map(|n| matrix(cpu, WeightLayout::F32, n, &mut random)).into();
        let mut x = Activations::new(K, Forms::F32);
        cpu.write_rows(&random.normals(2 * K), &mut x);
        let mut groups = MatmulGroups::default();
        groups.push(MatmulGroup { x_row: 0, y_row: 0, n_rows: 2, offset: 0 });
        groups.push(MatmulGroup { x_row: 0, y_row: 0, n_rows: 2, offset: 3 });
        let mut y = vec![0.0; 16];
        cpu.matmul_groups(&mut groups, &|i| &matrices[i], &x, &mut y, 8);
        let mut expected = vec![0.0; 16];
        for (w, offset) in matrices.iter().zip([0, 3]) {
            cpu.matmul(w, &x, MatmulOutput { data: &mut expected, stride: 8, offset });
        }
        assert_eq!(bits(&y), bits(&expected));
    }

    #[test]
    #[should_panic(expected = "groups do not overlap")]
    fn groups_that_would_write_the_same_rows_are_refused() {
        let mut groups = MatmulGroups::default();
        groups.push(MatmulGroup { x_row: 0, y_row: 0, n_rows: 2, offset: 0 });
        groups.push(MatmulGroup { x_row: 0, y_row: 1, n_rows: 2, offset: 0 });
    }

    #[test]
    #[should_panic(expected = "columns 0..5 of 3")]
    fn a_group_that_reaches_into_its_neighbour_is_refused() {
        let cpu = &all_cpus()[0];
        let w = matrix(cpu, WeightLayout::F32, 5, &mut Random::new(7));
        let mut x = Activations::new(K, Forms::F32);
        cpu.write_rows(&[0.0; K], &mut x);
        let mut groups = MatmulGroups::default();
        groups.push(MatmulGroup { x_row: 0, y_row: 0, n_rows: 1, offset: 0 });
        groups.push(MatmulGroup { x_row: 0, y_row: 0, n_rows: 1, offset: 3 });
        cpu.matmul_groups(&mut groups, &|_| &w, &x, &mut [0.0; 8], 8);
    }
}
