//! Activations to int8: once per layer input, shared by every projection that reads it.
//!
//! ```text
//! for each row, for each group of 32 (or 64, 128, the whole row; the last may be shorter):
//!     amax  = max |x|                                     (as integers on the bit patterns: exact,
//!                                                          in any order, and NaN > inf > numbers)
//!     amax not finite  ->  scale = NaN, values = 0        the row's results become NaN, visibly
//!     amax < 1e-30     ->  scale = 0,   values = 0        (127 / amax would overflow)
//!     otherwise        ->  scale = amax / 127
//!                          value = round_half_even(x * (127 / amax))      in -127..=127
//!     sums = sum of the first and of the last 16 values       (for weights with a zero or a bias)
//!            or of all and 0, where a group has more than 32
//!
//! values [m, stride] i8     stride = k rounded up to an odd number of cache lines, so that rows
//!                           of a tile do not share cache sets when k is a power of two; zeros fill
//!                           the last 64
//! scales [m, k/group] f32   sums [m, k/group, 2] i32
//! ```
//!
//! Reads 4 bytes (twice in larger groups) and writes 1.25 per element, about 4 operations each.
//! `-128` never occurs, which the AVX2 product relies on. Rows begin at a cache line: a product on
//! tile registers is a third slower where each load of a row takes two.

use pelton_tensor::{ActivationGroup, AlignedVec};

use super::activations::IntParts;
use crate::layout::GROUP;
use crate::team::Parts;

#[cfg(target_arch = "x86_64")]
mod x86;

/// Groups whose largest magnitude is below this become zeros.
const TINY: f32 = 1e-30;

/// Activation rows in int8, with one scale per group and the sums of its values; buffers are reused.
#[derive(Clone, Debug)]
pub struct QuantizedRows {
    group: ActivationGroup,
    n_rows: usize,
    k: usize,
    stride: usize,
    values: AlignedVec<i8>,
    scales: Vec<f32>,
    sums: Vec<[i32; 2]>,
}

impl QuantizedRows {
    /// An empty set of rows.
    pub(crate) fn new(group: ActivationGroup) -> Self {
        let (values, scales, sums) = (AlignedVec::new(), Vec::new(), Vec::new());
        Self { group, n_rows: 0, k: 0, stride: 0, values, scales, sums }
    }

    /// Groups of a row.
    fn n_groups(&self) -> usize {
        self.k.div_ceil(self.group.len_in(self.k).max(1))
    }

    /// Rows held.
    pub fn n_rows(&self) -> usize {
        self.n_rows
    }

    /// Elements per row.
    pub fn k(&self) -> usize {
        self.k
    }

    /// Writes row `row` to `out`, dequantized: the values that a product with these rows
    /// multiplies.
    ///
    /// # Panics
    ///
    /// When `row` is out of range or `out` is not `k` long.
    pub fn dequantize_row(&self, row: usize, out: &mut [f32]) {
        assert_eq!(out.len(), self.k);
        let group = self.group.len_in(self.k).max(1);
        let values = &self.view().values[row * self.stride..][..self.k];
        let scales = self.scales[row * self.n_groups()..].iter();
        for ((out, values), scale) in out.chunks_mut(group).zip(values.chunks(group)).zip(scales) {
            for (out, &value) in out.iter_mut().zip(values) {
                *out = f32::from(value) * scale;
            }
        }
    }

    pub(crate) fn view(&self) -> IntRows<'_> {
        IntRows {
            values: &self.values,
            stride: self.stride,
            group: self.group.len_in(self.k),
            scales: &self.scales,
            sums: &self.sums,
            n_groups: self.n_groups(),
        }
    }

    /// Makes room for `n_rows` of `k` values and hands out the places to write them.
    pub(crate) fn parts(&mut self, n_rows: usize, k: usize) -> IntParts<'_> {
        let stride = (k.div_ceil(64) | 1) * 64;
        (self.n_rows, self.k, self.stride) = (n_rows, k, stride);
        let n_groups = self.n_groups();
        self.values.resize(n_rows * stride);
        self.scales.resize(n_rows * n_groups, 0.0);
        self.sums.resize(n_rows * n_groups, [0; 2]);
        IntParts {
            values: Parts::new(&mut self.values),
            stride,
            group: self.group.len_in(k),
            n_groups,
            scales: Parts::new(&mut self.scales),
            sums: Parts::new(&mut self.sums),
        }
    }
}

/// Borrowed quantized rows, from some row on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct IntRows<'a> {
    pub(crate) values: &'a [i8],
    /// Elements from one row of `values` to the next.
    pub(crate) stride: usize,
    /// Values that share a scale; the last group of a row may have fewer.
    pub(crate) group: usize,
    pub(crate) scales: &'a [f32],
    pub(crate) sums: &'a [[i32; 2]],
    /// Groups per row: the stride of `scales` and `sums`.
    pub(crate) n_groups: usize,
}

impl<'a> IntRows<'a> {
    pub(crate) fn starting_at(self, row: usize) -> Self {
        Self {
            values: &self.values[row * self.stride..],
            scales: &self.scales[row * self.n_groups..],
            sums: &self.sums[row * self.n_groups..],
            ..self
        }
    }
}

/// One row to quantize: `x [k]` into `values [k]`, `scales [k/group]`, `sums [k/group, 2]`.
pub(crate) struct RowOut<'a> {
    pub(crate) values: &'a mut [i8],
    pub(crate) scales: &'a mut [f32],
    pub(crate) sums: &'a mut [[i32; 2]],
}

/// The kernels of this module for one instruction set.
#[derive(Debug)]
pub(crate) struct Table {
    /// Groups of 32.
    pub(crate) row: unsafe fn(&[f32], RowOut<'_>),
    /// Groups of the given length, a multiple of 32.
    pub(crate) wide_row: unsafe fn(&[f32], usize, RowOut<'_>),
}

pub(crate) static SCALAR: Table = Table { row: quantize_row, wide_row: quantize_wide_row };
#[cfg(target_arch = "x86_64")]
pub(crate) static AVX2: Table =
    Table { row: x86::quantize_row_avx2, wide_row: x86::quantize_wide_row_avx2 };
#[cfg(target_arch = "x86_64")]
pub(crate) static AVX512: Table =
    Table { row: x86::quantize_row_avx512, wide_row: x86::quantize_wide_row_avx512 };

/// Scale of a group and factor of its values, `(scale, 127 / amax)`, from the bits of its largest
/// magnitude.
///
/// A factor of zero means that all values become zero.
#[inline(always)]
fn scale_of(amax_bits: u32) -> (f32, f32) {
    let amax = f32::from_bits(amax_bits);
    if !amax.is_finite() {
        (f32::NAN, 0.0)
    } else if amax < TINY {
        (0.0, 0.0)
    } else {
        (amax / 127.0, 127.0 / amax)
    }
}

/// The specification.
fn quantize_row(x: &[f32], out: RowOut<'_>) {
    let groups = x.as_chunks::<GROUP>().0.iter().zip(out.values.as_chunks_mut::<GROUP>().0);
    for ((x, values), (scale, sum)) in groups.zip(out.scales.iter_mut().zip(out.sums)) {
        let amax_bits = x.iter().map(|x| x.to_bits() & 0x7FFF_FFFF).max().unwrap_or(0);
        let (group_scale, factor) = scale_of(amax_bits);
        *scale = group_scale;
        for (value, x) in values.iter_mut().zip(x) {
            *value = if factor == 0.0 { 0 } else { (x * factor).round_ties_even() as i8 };
        }
        let (first, last) = values.split_at(GROUP / 2);
        *sum = [first, last].map(|half| half.iter().map(|&value| i32::from(value)).sum());
    }
}

/// The specification for larger groups.
fn quantize_wide_row(x: &[f32], group: usize, out: RowOut<'_>) {
    let groups = x.chunks(group).zip(out.values.chunks_mut(group));
    for ((x, values), (scale, sum)) in groups.zip(out.scales.iter_mut().zip(out.sums)) {
        let amax_bits = x.iter().map(|x| x.to_bits() & 0x7FFF_FFFF).max().unwrap_or(0);
        let (group_scale, factor) = scale_of(amax_bits);
        *scale = group_scale;
        for (value, x) in values.iter_mut().zip(x) {
            *value = if factor == 0.0 { 0 } else { (x * factor).round_ties_even() as i8 };
        }
        *sum = [values.iter().map(|&value| i32::from(value)).sum(), 0];
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::activations::{Activations, Forms};
    use crate::{Cpu, Kernels};

    fn rows(m: usize, k: usize) -> Vec<f32> {
        let mut state = 99_u32;
        let mut x: Vec<f32> = (0..m * k)
            .map(|i| {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                ((state >> 8) as f32 / (1 << 23) as f32 - 1.0) * (1 + i % 7) as f32
            })
            .collect();
        // Hostile groups: zeros, subnormals, infinities, NaN, ties, the largest numbers.
        for (group, x) in x.chunks_mut(GROUP).enumerate() {
            match group % 11 {
                1 => x.fill(0.0),
                2 => x.fill(f32::from_bits(3)),
                3 => x[7] = f32::INFINITY,
                4 => x[31] = -f32::NAN,
                5 => x.iter_mut().enumerate().for_each(|(i, x)| *x = i as f32 - 15.5),
                6 => x.iter_mut().for_each(|x| *x *= f32::MAX / 8.0),
                7 => x.iter_mut().for_each(|x| *x *= 1e-29),
                8 => x[0] = -127.0,
                _ => {}
            }
        }
        x
    }

    fn quantize(cpu: &Cpu, x: &[f32], k: usize, group: ActivationGroup) -> QuantizedRows {
        let mut rows = Activations::new(k, Forms::int8(group));
        cpu.write_rows(x, &mut rows);
        rows.int8(group).clone()
    }

    #[test]
    fn every_instruction_set_quantizes_to_the_same_bits() {
        for (m, k) in [(1, 32), (3, 352), (5, 1312), (70, 2048), (0, 64)] {
            for group in ActivationGroup::ALL {
                let x = rows(m, k);
                let scalar = Kernels::by_name("scalar").expect("scalar");
                let expected = quantize(&Cpu::with(scalar, 1), &x, k, group);
                for kernels in Kernels::available() {
                    let got = quantize(&Cpu::with(kernels, 3), &x, k, group);
                    let what = format!("{}, [{m}, {k}] in groups of {group}", kernels.name);
                    assert_eq!(got.view().values, expected.view().values, "{what}");
                    assert_eq!(got.sums, expected.sums, "{what}");
                    let bits = |rows: &QuantizedRows| -> Vec<u32> {
                        rows.scales.iter().map(|scale| scale.to_bits()).collect()
                    };
                    assert_eq!(bits(&got), bits(&expected), "{what}");
                }
            }
        }
    }

    #[test]
    fn larger_groups_have_the_largest_scale_of_theirs_and_the_sum_of_their_values() {
        let (m, k) = (2, 320);
        let x: Vec<f32> =
            (0..m * k).map(|i| (i as f32 * 0.37).sin() * (1 + i / 9) as f32).collect();
        for group in ActivationGroup::ALL {
            let len = group.len_in(k);
            let got = quantize(&Cpu::with(Kernels::best(), 1), &x, k, group);
            let rows = got.view();
            assert_eq!(rows.n_groups, k.div_ceil(len));
            for (row, x) in x.chunks(k).enumerate() {
                for (i, x) in x.chunks(len).enumerate() {
                    let largest = x.iter().fold(0.0_f32, |most, x| most.max(x.abs()));
                    assert_eq!(rows.scales[row * rows.n_groups + i], largest / 127.0);
                    let values = &rows.values[row * rows.stride + i * len..][..x.len()];
                    let sum: i32 = values.iter().map(|&value| i32::from(value)).sum();
                    let [first, last] = rows.sums[row * rows.n_groups + i];
                    assert_eq!(first + last, sum, "row {row}, group {i} of {group}");
                }
            }
        }
    }

    #[test]
    fn values_come_back_within_half_a_step_and_never_reach_minus_128() {
        let k = 64;
        let x: Vec<f32> = (0..k * 5).map(|i| (i as f32 * 0.37).sin() * i as f32).collect();
        let quantized = quantize(&Cpu::with(Kernels::best(), 1), &x, k, ActivationGroup::Of32);
        assert!(quantized.view().values.iter().all(|&value| value != i8::MIN));
        let mut back = vec![0.0; k];
        for (row, x) in x.chunks(k).enumerate() {
            quantized.dequantize_row(row, &mut back);
            for (group, (x, back)) in x.chunks(GROUP).zip(back.chunks(GROUP)).enumerate() {
                let step = quantized.scales[row * (k / GROUP) + group];
                for (x, back) in x.iter().zip(back) {
                    assert!((x - back).abs() <= step * 0.501, "{x} {back} {step}");
                }
            }
        }
    }
}
