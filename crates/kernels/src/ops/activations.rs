//! `Activations`: the input of a layer, in every form that its matrices read.
//!
//! ```text
//! F32      [m, width] f32                       float matrices but bf16
//! Int8     values, scales, sums                 quantized matrices             (quantize.rs),
//!                                               once for each size of groups that they take
//! Bf16     [m, stride] bf16                     bf16 matrices, where vdpbf16ps pays or tiles exist
//! Rounded  [m, width] f32, rounded to bf16      bf16 matrices elsewhere: the same products
//! ```
//!
//! An operation that produces a layer's input (a norm, an activation) makes up to [`COLUMNS`]
//! floats at a time in the first-level cache and writes all forms from there: activations are
//! quantized once for all projections that read them, and floats that no matrix reads are never
//! stored, unless a whole row shares one scale: that scale is known last.

use std::ops::Range;

use pelton_tensor::{ActivationGroup, AlignedVec};

use crate::cpu::Cpu;
use crate::dispatch::Kernels;
use crate::layout::GROUP;
use crate::layout::{PackedMatrix, WeightLayout};
use crate::ops::matmul::MOST_INPUTS;
use crate::ops::quantize::{IntRows, QuantizedRows, RowOut};
use crate::team::Parts;

/// Floats that are made before they are written in their forms: 4 KiB, a whole number of groups.
const COLUMNS: usize = 1024;

/// Sizes of groups.
const SIZES: usize = ActivationGroup::ALL.len();

/// One way to hold activations; see the drawing at the head of the file.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Form {
    F32,
    Int8(ActivationGroup),
    Bf16,
    Rounded,
}

/// The forms that a set of rows is held in.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Forms {
    f32: bool,
    /// By size of groups.
    int8: [bool; SIZES],
    bf16: bool,
    rounded: bool,
}

impl Forms {
    /// Floats alone.
    pub const F32: Self = Self { f32: true, int8: [false; SIZES], bf16: false, rounded: false };

    /// Int8 alone, in groups of one size.
    pub const fn int8(group: ActivationGroup) -> Self {
        let mut int8 = [false; SIZES];
        int8[group as usize] = true;
        Self { f32: false, int8, bf16: false, rounded: false }
    }

    /// These forms and the one that a product with `w` reads.
    #[must_use]
    pub fn read_by(mut self, cpu: &Cpu, w: &PackedMatrix) -> Self {
        match cpu.form_for(w) {
            Form::F32 => self.f32 = true,
            Form::Int8(group) => self.int8[group as usize] = true,
            Form::Bf16 => self.bf16 = true,
            Form::Rounded => self.rounded = true,
        }
        self
    }

    /// Whether some rows have one scale each, which is known when all of a row is made.
    pub(crate) fn has_scales_of_rows(self) -> bool {
        self.int8[ActivationGroup::Row as usize]
    }

    /// Elements of a row at whose multiples parts of it begin and end, if no scale is of a whole row.
    pub(crate) fn part_unit(self) -> usize {
        let sizes = [GROUP, 64, 128].into_iter().zip(ActivationGroup::ALL);
        let held = sizes.filter(|(_, group)| self.int8[*group as usize]);
        held.map(|(size, _)| size).max().unwrap_or(GROUP)
    }

    /// Whether every form of `other` is among these.
    pub fn include(self, other: Self) -> bool {
        (self.f32 || !other.f32)
            && self.int8.iter().zip(other.int8).all(|(&own, other)| own || !other)
            && (self.bf16 || !other.bf16)
            && (self.rounded || !other.rounded)
    }
}

impl Cpu {
    /// The form of activations that a product with these weights reads.
    pub(crate) fn form_for(&self, w: &PackedMatrix) -> Form {
        match w.layout() {
            WeightLayout::Bf16 if self.kernels.uses_bf16_dot() => Form::Bf16,
            WeightLayout::Bf16 => Form::Rounded,
            layout if layout.needs_quantized_input() => {
                let group = self.activation_group.min(layout.widest_group());
                // No model has such rows.
                let fits = w.k() <= MOST_INPUTS;
                Form::Int8(if fits { group } else { group.min(ActivationGroup::Of128) })
            }
            _ => Form::F32,
        }
    }
}

/// Rows of activations; memory is reused from call to call.
#[derive(Clone, Debug)]
pub struct Activations {
    n_rows: usize,
    width: usize,
    forms: Forms,
    /// Held, or on their way to int8 rows with one scale each.
    floats: AlignedVec<f32>,
    /// By size of groups.
    int8: [QuantizedRows; SIZES],
    bf16: AlignedVec<u16>,
    rounded: AlignedVec<f32>,
}

impl Activations {
    /// An empty set of rows of `width` elements, to be held in `forms`.
    ///
    /// # Panics
    ///
    /// When `width` is 0, or not a multiple of 32 and one of the forms is int8.
    pub fn new(width: usize, forms: Forms) -> Self {
        assert!(width > 0, "invariant: rows are not empty");
        let is_grouped = width.is_multiple_of(GROUP);
        let is_int8 = forms.int8 != [false; SIZES];
        assert!(!is_int8 || is_grouped, "a width of {width} is not a multiple of {GROUP}");
        Self {
            n_rows: 0,
            width,
            forms,
            floats: AlignedVec::new(),
            int8: ActivationGroup::ALL.map(QuantizedRows::new),
            bf16: AlignedVec::new(),
            rounded: AlignedVec::new(),
        }
    }

    /// Makes this an empty set of rows of another width, in other forms, in the same memory.
    ///
    /// # Panics
    ///
    /// As [`new`](Self::new).
    pub fn reset(&mut self, width: usize, forms: Forms) {
        if (self.width, self.forms) != (width, forms) {
            let empty = Self::new(width, forms);
            (self.n_rows, self.width, self.forms) = (0, empty.width, empty.forms);
        }
    }

    /// Rows held.
    pub fn n_rows(&self) -> usize {
        self.n_rows
    }

    /// Elements per row.
    pub fn width(&self) -> usize {
        self.width
    }

    /// The forms held.
    pub fn forms(&self) -> Forms {
        self.forms
    }

    /// The rows as floats, `[m, width]`.
    ///
    /// # Panics
    ///
    /// When floats are not among the forms held.
    pub fn floats(&self) -> &[f32] {
        assert!(self.forms.f32, "invariant: these rows are held as floats");
        &self.floats
    }

    /// The rows as floats, to be written by the caller; `n_rows` of them.
    ///
    /// # Panics
    ///
    /// When floats are not the only form held, or `n_rows` rows do not fit in memory.
    pub fn floats_mut(&mut self, n_rows: usize) -> &mut [f32] {
        assert_eq!(self.forms, Forms::F32, "invariant: these rows are held as floats alone");
        let n_floats = n_rows.checked_mul(self.width).expect("rows that fit in memory");
        // The number of rows is set after the memory exists: the kernels rely on it, also after a
        // panic.
        self.floats.resize(n_floats);
        self.n_rows = n_rows;
        &mut self.floats
    }

    /// The int8 rows in groups of one size.
    ///
    /// # Panics
    ///
    /// When they are not among the forms held.
    pub fn int8(&self, group: ActivationGroup) -> &QuantizedRows {
        let is_held = self.forms.int8[group as usize];
        assert!(is_held, "invariant: these rows are held as int8 in groups of {group}");
        &self.int8[group as usize]
    }

    pub(crate) fn int8_rows(&self, group: ActivationGroup) -> IntRows<'_> {
        self.int8(group).view()
    }

    pub(crate) fn bf16_rows(&self) -> HalfRows<'_> {
        assert!(self.forms.bf16, "invariant: these rows are held as bf16");
        HalfRows { data: &self.bf16, stride: bf16_stride(self.width) }
    }

    pub(crate) fn rounded(&self) -> &[f32] {
        assert!(self.forms.rounded, "invariant: these rows are held as rounded floats");
        &self.rounded
    }

    /// Makes room for `n_rows` and hands out the places to write them.
    pub(crate) fn writer<'a>(&'a mut self, cpu: &'a Cpu, n_rows: usize) -> Writer<'a> {
        let (width, forms) = (self.width, self.forms);
        let resized = |rows: &'a mut AlignedVec<f32>, is_held: bool| {
            is_held.then(|| {
                rows.resize(n_rows * width);
                Parts::new(rows)
            })
        };
        let mut is_int8 = forms.int8.into_iter();
        let writer = Writer {
            kernels: cpu.kernels,
            n_rows,
            width,
            floats: resized(&mut self.floats, forms.f32 || forms.has_scales_of_rows()),
            rounded: resized(&mut self.rounded, forms.rounded),
            int8: self.int8.each_mut().map(|rows| {
                let is_held = is_int8.next().unwrap_or(false);
                is_held.then(|| rows.parts(n_rows, width))
            }),
            bf16: forms.bf16.then(|| {
                self.bf16.resize(n_rows * bf16_stride(width));
                Parts::new(&mut self.bf16)
            }),
        };
        // Last, as in `floats_mut`.
        self.n_rows = n_rows;
        writer
    }
}

/// Borrowed bf16 rows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HalfRows<'a> {
    pub(crate) data: &'a [u16],
    /// Elements from one row to the next; zeros fill the last block of 32 of each.
    pub(crate) stride: usize,
}

/// Elements from one bf16 row to the next: an odd number of cache lines, so that the rows of a tile
/// do not share cache sets when the width is a power of two.
fn bf16_stride(width: usize) -> usize {
    ((width * 2).div_ceil(64) | 1) * 32
}

/// Places for rows of activations, shared by the tiles of one operation.
pub(crate) struct Writer<'a> {
    kernels: &'static Kernels,
    n_rows: usize,
    width: usize,
    floats: Option<Parts<'a, f32>>,
    rounded: Option<Parts<'a, f32>>,
    int8: [Option<IntParts<'a>>; SIZES],
    bf16: Option<Parts<'a, u16>>,
}

/// Places for int8 rows.
pub(crate) struct IntParts<'a> {
    pub(crate) values: Parts<'a, i8>,
    pub(crate) stride: usize,
    /// Values that share a scale.
    pub(crate) group: usize,
    /// Groups of a row.
    pub(crate) n_groups: usize,
    pub(crate) scales: Parts<'a, f32>,
    pub(crate) sums: Parts<'a, [i32; 2]>,
}

impl IntParts<'_> {
    /// Writes columns of row `row`; they begin at a group and end at one or with the row.
    ///
    /// # Safety
    ///
    /// No other thread writes these columns of this row at the same time; the kernels are supported
    /// by this CPU.
    unsafe fn write(&self, kernels: &Kernels, row: usize, columns: Range<usize>, x: &[f32]) {
        let (first, last) = (columns.start / self.group, columns.end.div_ceil(self.group));
        let is_whole = columns.end == last * self.group || last == self.n_groups;
        assert!(columns.start == first * self.group && is_whole, "whole groups: {columns:?}");
        let groups = row * self.n_groups + first..row * self.n_groups + last;
        let values = row * self.stride + columns.start..row * self.stride + columns.end;
        // SAFETY: the caller vouches for the columns and the kernels.
        unsafe {
            let out = RowOut {
                values: self.values.part(values),
                scales: self.scales.part(groups.clone()),
                sums: self.sums.part(groups),
            };
            match self.group {
                GROUP => (kernels.quantize.row)(x, out),
                group => (kernels.quantize.wide_row)(x, group, out),
            }
            if last == self.n_groups {
                let end = row * self.stride + columns.end;
                self.values.part(end..end + columns.end.next_multiple_of(64) - columns.end).fill(0);
            }
        }
    }
}

impl Writer<'_> {
    /// Calls `make` with stretches of the columns of all rows, shared by the team, and writes what it
    /// makes. An element is some four times the work of a copy.
    pub(crate) fn fill(&self, cpu: &Cpu, make: impl Fn(usize, Range<usize>, &mut [f32]) + Sync) {
        // The scale of a row is known when all of it is made.
        let is_whole = self.scaled_by_row().is_some();
        let stretch = if is_whole { self.width } else { COLUMNS };
        let per_row = self.width.div_ceil(stretch);
        cpu.for_each_part(self.n_rows * per_row, 4 * self.width.min(stretch), |items| {
            for item in items {
                let (row, first) = (item / per_row, item % per_row * stretch);
                // SAFETY: each stretch of columns belongs to one tile.
                unsafe {
                    if is_whole {
                        self.row(row, |columns, out| make(row, columns, out));
                    } else {
                        let columns = first..self.width.min(first + stretch);
                        self.columns(row, columns.clone(), |out| make(row, columns, out));
                    }
                }
            }
        });
    }

    /// Places for int8 rows with one scale each.
    fn scaled_by_row(&self) -> Option<&IntParts<'_>> {
        self.int8[ActivationGroup::Row as usize].as_ref()
    }

    /// Calls `make` with stretches of the columns of row `row`, in order, and writes what it makes.
    ///
    /// # Safety
    ///
    /// No other thread writes this row at the same time.
    pub(crate) unsafe fn row(&self, row: usize, mut make: impl FnMut(Range<usize>, &mut [f32])) {
        for first in (0..self.width).step_by(COLUMNS) {
            let columns = first..self.width.min(first + COLUMNS);
            // SAFETY: the caller vouches for the row.
            unsafe { self.columns(row, columns.clone(), |out| make(columns, out)) };
        }
        if let (Some(int8), Some(floats)) = (self.scaled_by_row(), &self.floats) {
            // SAFETY: as above; `self.kernels` is supported by this CPU.
            unsafe {
                let made = floats.part(row * self.width..(row + 1) * self.width);
                int8.write(self.kernels, row, 0..self.width, made);
            }
        }
    }

    /// Calls `make` for the given columns of row `row` and writes what it makes, but for int8 with one
    /// scale, which [`row`](Self::row) writes.
    ///
    /// # Panics
    ///
    /// When there are more than [`COLUMNS`], or they do not begin and end at whole groups.
    ///
    /// # Safety
    ///
    /// No other thread writes these columns of this row at the same time.
    pub(crate) unsafe fn columns(
        &self,
        row: usize,
        columns: Range<usize>,
        make: impl FnOnce(&mut [f32]),
    ) {
        assert!(columns.end <= self.width, "invariant: columns of the row");
        let mut scratch = [0.0; COLUMNS];
        let at = row * self.width + columns.start..row * self.width + columns.end;
        let made: &mut [f32] = match &self.floats {
            // SAFETY: the caller vouches for these columns, here and below.
            Some(floats) => unsafe { floats.part(at.clone()) },
            None => &mut scratch[..columns.len()],
        };
        make(made);
        let made: &[f32] = made;
        for int8 in self.int8[..ActivationGroup::Row as usize].iter().flatten() {
            // SAFETY: as above; `self.kernels` is supported by this CPU.
            unsafe { int8.write(self.kernels, row, columns.clone(), made) };
        }
        if let Some(bf16) = &self.bf16 {
            let start = row * bf16_stride(self.width);
            let is_end = columns.end == self.width;
            let end = if is_end { columns.end.next_multiple_of(GROUP) } else { columns.end };
            // SAFETY: as above.
            unsafe {
                let out = bf16.part(start + columns.start..start + end);
                let (values, padding) = out.split_at_mut(made.len());
                (self.kernels.attention.kv.to_bf16)(made, values);
                padding.fill(0);
                let kernel = self.kernels.matmul.bf16.as_ref();
                if let Some(arrange) = kernel.and_then(|kernel| kernel.arrange) {
                    arrange(out);
                }
            }
        }
        if let Some(rounded) = &self.rounded {
            // SAFETY: as above.
            unsafe { (self.kernels.rows.round_to_bf16)(made, rounded.part(at)) };
        }
    }
}

impl Cpu {
    /// Writes rows of floats in the forms of `out`.
    ///
    /// # Shapes
    ///
    /// `x`: `[m, out.width()]`.
    ///
    /// # Panics
    ///
    /// When `x` is not whole rows.
    pub fn write_rows(&self, x: &[f32], out: &mut Activations) {
        let width = out.width();
        assert!(x.len().is_multiple_of(width), "{} elements are not rows of {width}", x.len());
        let n_rows = x.len() / width;
        let writer = out.writer(self, n_rows);
        self.for_each_part(n_rows, width, |rows| {
            for row in rows {
                let x = &x[row * width..(row + 1) * width];
                // SAFETY: each row belongs to one tile.
                unsafe { writer.row(row, |columns, out| out.copy_from_slice(&x[columns])) };
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Random, all_cpus, bits};

    #[test]
    fn every_form_is_made_from_the_same_floats_whatever_else_is_held() {
        let all = Forms { f32: true, int8: [true; SIZES], bf16: true, rounded: true };
        for (m, width) in [(1, 32), (3, 1056), (40, 2048)] {
            let x = Random::new(3).normals(m * width);
            for cpu in all_cpus() {
                let mut together = Activations::new(width, all);
                cpu.write_rows(&x, &mut together);
                assert_eq!(bits(together.floats()), bits(&x));
                let rounded: Vec<f32> =
                    x.iter().map(|&x| half::bf16::from_f32(x).to_f32()).collect();
                assert_eq!(bits(together.rounded()), bits(&rounded));
                let halves = together.bf16_rows();
                let arrange = cpu.kernels.matmul.bf16.as_ref().and_then(|kernel| kernel.arrange);
                for (row, rounded) in rounded.chunks(width).enumerate() {
                    let mut expected: Vec<u16> =
                        rounded.iter().map(|x| (x.to_bits() >> 16) as u16).collect();
                    if let Some(arrange) = arrange {
                        // SAFETY: these kernels are supported by this CPU.
                        unsafe { arrange(&mut expected) };
                    }
                    assert_eq!(halves.data[row * halves.stride..][..width], expected);
                }
                for group in ActivationGroup::ALL {
                    let mut alone = Activations::new(width, Forms::int8(group));
                    cpu.write_rows(&x, &mut alone);
                    let (mut a, mut b) = (vec![0.0; width], vec![0.0; width]);
                    for row in 0..m {
                        together.int8(group).dequantize_row(row, &mut a);
                        alone.int8(group).dequantize_row(row, &mut b);
                        assert_eq!(bits(&a), bits(&b), "row {row} of {m} x {width}, {group}");
                    }
                }
            }
        }
    }

    #[test]
    fn rows_that_no_memory_holds_are_refused_and_leave_the_number_of_rows() {
        let mut rows = Activations::new(1 << 62, Forms::F32);
        // The second wraps around to no float at all, the third is more than a vector may hold.
        for n_rows in [usize::MAX, 4, 1] {
            let refused = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                rows.floats_mut(n_rows);
            }));
            assert!(refused.is_err() && rows.n_rows() == 0, "{n_rows} rows");
        }
    }

    #[test]
    #[should_panic(expected = "multiple of 32")]
    fn rows_that_are_not_whole_groups_cannot_be_int8() {
        let _ = Activations::new(33, Forms::int8(ActivationGroup::Of32));
    }
}
