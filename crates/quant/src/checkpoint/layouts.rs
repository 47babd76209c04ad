//! The choice of a kernel layout for a quantized matrix, and writing its rows for that layout.
//!
//! The smallest layout that loses nothing is taken. Each asks for:
//!
//! | layout | codes | scales | zero points |
//! |---|---|---|---|
//! | `Tq2` | 0 to 3 | f16, one per 256 inputs | 1 |
//! | `Int4G128` `Int4G64` `Int4G32` | 0 to 15 | f16, one per 128, 64, 32 | whole, 0 to 16 |
//! | `Affine2G16` `Affine2G64` | 0 to 3 | f16, one per 16, 64 | f16, as scales |
//! | `Affine4G16` `Affine4G32` `Affine4G64` | 0 to 15 | f16, one per 16, 32, 64 | f16, as scales |
//! | `Affine4G32Wide` | 0 to 15 | f32, one per 32 | f32, as scales |
//! | `Affine8G32` `Affine8G32Wide` | 0 to 255 | f16, f32, one per 32 | f16, f32, as scales |
//! | `Nf4` `Fp4` | of that table | f32, one per 64 | none |
//! | `Fp8E4M3` `Fp8E5M2` | of that type | f32, one per row | none |
//! | `Int8Row` | `code - zero` of 8 bits | f32, one per row | whole |
//! | `Q8G32` | `code - zero` of 8 bits | f16, one per 32 | whole |
//! | `Mxfp4` | of E2M1 | powers of two, one per 32 | none |
//! | `Nvfp4` | of E2M1 | E4M3, one per 16, by a divisor per row | none |
//! | `Bf16` | any number of up to 8 bits | powers of two | whole |
//! | `F32` | any | any | any |
//!
//! Matrices without a code per weight (`floats`) are packed as bf16 or f16 where they say that all
//! of their weights are such numbers, else as `F32`.
//!
//! Scales stored as bf16 or f32 count as f16 where every one of them is a number that f16 has too.

use half::{bf16, f16};
use pelton_kernels::WeightLayout;
use pelton_kernels::codes::{E2M1, FP4, NF4, e4m3_code};

use super::matrix::{Matrix, Meaning, Opened, Shared};

/// Inputs that share a scale of NVFP4.
const NVFP4_SHARE: usize = 16;

/// Layouts that quantized matrices are packed in, smallest first.
const CHOICES: &[WeightLayout] = &[
    WeightLayout::Tq2,
    WeightLayout::Affine2G64,
    WeightLayout::Affine2G16,
    WeightLayout::Int4G128,
    WeightLayout::Mxfp4,
    WeightLayout::Int4G64,
    WeightLayout::Affine4G64,
    WeightLayout::Nf4,
    WeightLayout::Fp4,
    WeightLayout::Nvfp4,
    WeightLayout::Int4G32,
    WeightLayout::Affine4G32,
    WeightLayout::Affine4G16,
    WeightLayout::Affine4G32Wide,
    WeightLayout::Fp8E4M3,
    WeightLayout::Fp8E5M2,
    WeightLayout::Int8Row,
    WeightLayout::Q8G32,
    WeightLayout::Affine8G32,
    WeightLayout::Affine8G32Wide,
    WeightLayout::Bf16,
    WeightLayout::F16,
    WeightLayout::F32,
];

/// The smallest layout that holds all of these matrices, their inputs taken in `order`.
pub(super) fn choose(matrices: &[Opened<'_>], order: Option<&[u32]>) -> WeightLayout {
    let holds = |layout: &WeightLayout| matrices.iter().all(|m| m.fits(*layout, order));
    CHOICES.iter().copied().find(holds).expect("invariant: F32 holds everything")
}

impl Opened<'_> {
    fn fits(&self, layout: WeightLayout, order: Option<&[u32]>) -> bool {
        match self {
            Self::Codes(matrix) => matrix.fits(layout, order),
            Self::Floats(floats) => floats.fits(layout),
        }
    }

    /// Writes row `row`, its inputs in `order`, as a source row of `layout`, which fits.
    pub(super) fn fill(
        &self,
        layout: WeightLayout,
        order: Option<&[u32]>,
        row: usize,
        out: &mut [u8],
    ) {
        let element_bytes = match layout {
            WeightLayout::F32 => size_of::<f32>(),
            WeightLayout::Bf16 | WeightLayout::F16 => size_of::<u16>(),
            _ => {
                let Self::Codes(matrix) = self else {
                    unreachable!("invariant: floats fit no layout of codes")
                };
                return matrix.fill(layout, order, row, out);
            }
        };
        let mut weights = vec![0.0; out.len() / element_bytes];
        self.dequantize(row, &mut weights);
        let at = |j: usize| order.map_or(j, |order| order[j] as usize);
        for (j, bytes) in out.chunks_exact_mut(element_bytes).enumerate() {
            let weight = weights[at(j)];
            match layout {
                WeightLayout::F32 => bytes.copy_from_slice(&weight.to_le_bytes()),
                WeightLayout::F16 => bytes.copy_from_slice(&f16::from_f32(weight).to_le_bytes()),
                _ => bytes.copy_from_slice(&bf16::from_f32(weight).to_le_bytes()),
            }
        }
    }
}

/// Writes 4-bit codes, 32 to 16 bytes: the first 16 codes are the low nibbles.
fn put_nibbles(codes: &[u8], out: &mut [u8]) {
    for (group, bytes) in codes.chunks_exact(32).zip(out.chunks_exact_mut(16)) {
        let pairs = group[..16].iter().zip(&group[16..]);
        bytes.iter_mut().zip(pairs).for_each(|(o, (low, high))| *o = low | high << 4);
    }
}

pub(super) fn is_f16(x: f32) -> bool {
    f16::from_f32(x).to_f32().to_bits() == x.to_bits()
}

/// A power of two with which a number of 8 bits stays a normal bf16 number, or 0.
fn is_plain_power(x: f32) -> bool {
    x == 0.0 || (x.to_bits() & 0x7f_ffff == 0 && (1e-30..1e30).contains(&x.abs()))
}

/// Whether every zero point is a whole number in this range.
fn whole_within(zeros: &Shared, range: std::ops::RangeInclusive<f32>) -> bool {
    zeros.values.iter().all(|zero| zero.fract() == 0.0 && range.contains(zero))
}

impl Matrix<'_> {
    /// Whether `layout` holds every weight exactly.
    fn fits(&self, layout: WeightLayout, order: Option<&[u32]>) -> bool {
        let k = self.shape[1];
        let len = layout.block_len();
        if !k.is_multiple_of(len) {
            return false;
        }
        let uniform = |shared: &Shared, len| shared.groups.are_uniform(k, len, order);
        let per = |len| uniform(&self.scales, len) && uniform(&self.zeros, len);
        let is_divided = self.divisor != 1.0;
        let half_scales = || !is_divided && self.scales.values.iter().all(|scale| is_f16(*scale));
        let powers = || !is_divided && self.scales.values.iter().all(|x| is_plain_power(*x));
        let most = match self.meaning {
            Meaning::Integer { most } => Some(f32::from(most)),
            _ => None,
        };
        let has_no_zero = || self.zeros.values.iter().all(|zero| *zero == 0.0);
        // `code - zero` between -128 and 127, whatever the code.
        let signed_bytes =
            || most.is_some_and(|most| whole_within(&self.zeros, (most - 127.0).max(0.0)..=128.0));
        match layout {
            WeightLayout::Tq2 => {
                most.is_some_and(|most| most <= 3.0)
                    && whole_within(&self.zeros, 1.0..=1.0)
                    && per(len)
                    && half_scales()
            }
            WeightLayout::Int4G128 | WeightLayout::Int4G64 | WeightLayout::Int4G32 => {
                most.is_some_and(|most| most <= 15.0)
                    && whole_within(&self.zeros, 0.0..=16.0)
                    && per(len)
                    && half_scales()
            }
            WeightLayout::Mxfp4 => {
                self.meaning == Meaning::Table(E2M1)
                    && per(len)
                    && has_no_zero()
                    && powers()
                    && self.scales.values.iter().all(|scale| *scale > 0.0)
            }
            WeightLayout::Nvfp4 => {
                self.meaning == Meaning::Table(E2M1)
                    && uniform(&self.scales, NVFP4_SHARE)
                    && has_no_zero()
                    && self.scales.values.iter().all(|scale| e4m3_code(*scale).is_some())
            }
            WeightLayout::Nf4 => self.meaning == Meaning::Table(NF4) && per(len) && has_no_zero(),
            WeightLayout::Fp4 => self.meaning == Meaning::Table(FP4) && per(len) && has_no_zero(),
            WeightLayout::Fp8E4M3 => self.meaning == Meaning::E4M3 && per(k) && has_no_zero(),
            WeightLayout::Fp8E5M2 => self.meaning == Meaning::E5M2 && per(k) && has_no_zero(),
            WeightLayout::Int8Row => signed_bytes() && uniform(&self.scales, k),
            WeightLayout::Q8G32 => signed_bytes() && uniform(&self.scales, len) && half_scales(),
            WeightLayout::Bf16 => {
                let is_short = !matches!(self.meaning, Meaning::Table(_));
                is_short && powers() && whole_within(&self.zeros, 0.0..=256.0)
            }
            WeightLayout::F32 => true,
            _ => self.fits_affine(layout, order),
        }
    }

    /// As [`Opened::fill`], for layouts of codes.
    fn fill(&self, layout: WeightLayout, order: Option<&[u32]>, row: usize, out: &mut [u8]) {
        let k = self.shape[1];
        let at = |j: usize| order.map_or(j, |order| order[j] as usize);
        let len = layout.block_len();
        let block_bytes = if len > 1 { layout.row_bytes(len) } else { 0 };
        let mut stored = vec![0; k];
        (self.codes)(row, &mut stored);
        let codes: Vec<u8> = (0..k).map(|j| stored[at(j)]).collect();
        let half_scale = |j: usize| f16::from_f32(self.scale(row, at(j))).to_le_bytes();
        // As a byte with a sign.
        let signed = |j: usize| (i32::from(codes[j]) - self.zero(row, at(j)) as i32) as u8;
        let of_block = |b: usize| &codes[b * len..][..len];
        match layout {
            WeightLayout::Tq2 => {
                for (b, block) in out.chunks_exact_mut(block_bytes).enumerate() {
                    let (bits, scale) = block.split_at_mut(len / 4);
                    bits.fill(0);
                    for (i, code) in of_block(b).iter().enumerate() {
                        bits[i / 128 * 32 + i % 32] |= code << (i % 128 / 32 * 2);
                    }
                    scale.copy_from_slice(&half_scale(b * len));
                }
            }
            WeightLayout::Int4G128 | WeightLayout::Int4G64 | WeightLayout::Int4G32 => {
                for (b, block) in out.chunks_exact_mut(block_bytes).enumerate() {
                    block[..2].copy_from_slice(&half_scale(b * len));
                    block[2] = self.zero(row, at(b * len)) as u8;
                    put_nibbles(of_block(b), &mut block[3..]);
                }
            }
            WeightLayout::Nf4 | WeightLayout::Fp4 => {
                for (b, block) in out.chunks_exact_mut(block_bytes).enumerate() {
                    block[..4].copy_from_slice(&self.scale(row, b * len).to_le_bytes());
                    let pairs = of_block(b).as_chunks::<2>().0;
                    block[4..].iter_mut().zip(pairs).for_each(|(o, [high, low])| {
                        *o = high << 4 | low;
                    });
                }
            }
            WeightLayout::Mxfp4 => {
                for (b, block) in out.chunks_exact_mut(block_bytes).enumerate() {
                    block[0] = (self.scale(row, at(b * len)).to_bits() >> 23) as u8;
                    put_nibbles(of_block(b), &mut block[1..]);
                }
            }
            WeightLayout::Nvfp4 => self.fill_nvfp4(order, (row, &codes), out),
            WeightLayout::Fp8E4M3 | WeightLayout::Fp8E5M2 | WeightLayout::Int8Row => {
                let scale = if k == 0 { 0.0 } else { self.scale(row, 0) };
                out[..4].copy_from_slice(&scale.to_le_bytes());
                let is_int = layout == WeightLayout::Int8Row;
                out[4..].iter_mut().enumerate().for_each(|(j, o)| {
                    *o = if is_int { signed(j) } else { codes[j] };
                });
            }
            WeightLayout::Q8G32 => {
                for (b, block) in out.chunks_exact_mut(block_bytes).enumerate() {
                    block[..2].copy_from_slice(&half_scale(b * len));
                    block[2..].iter_mut().enumerate().for_each(|(i, o)| *o = signed(b * len + i));
                }
            }
            _ => self.fill_affine(layout, order, (row, &codes), out),
        }
    }

    /// As [`fill`](Self::fill) for NVFP4, whose codes come in `order`.
    fn fill_nvfp4(&self, order: Option<&[u32]>, (row, codes): (usize, &[u8]), out: &mut [u8]) {
        let len = WeightLayout::Nvfp4.block_len();
        let at = |j: usize| order.map_or(j, |order| order[j] as usize);
        let (divisor, blocks) = out.split_at_mut(4);
        divisor.copy_from_slice(&self.divisor.to_le_bytes());
        for (b, block) in blocks.chunks_exact_mut(2 + len / 2).enumerate() {
            let (scales, nibbles) = block.split_at_mut(2);
            for (half, code) in scales.iter_mut().enumerate() {
                let scale = self.stored_scale(row, at(b * len + half * NVFP4_SHARE));
                *code = e4m3_code(scale).expect("invariant: the layout fits");
            }
            put_nibbles(&codes[b * len..][..len], nibbles);
        }
    }
}

#[cfg(test)]
mod tests {
    use pelton_kernels::{Cpu, Kernels, PackedMatrix};

    use super::*;
    use crate::checkpoint::matrix::Groups;

    /// Codes of every value, a scale and zero point per group.
    fn matrix(
        k: usize,
        meaning: Meaning,
        scale: f32,
        zero: f32,
        groups: Groups,
    ) -> Matrix<'static> {
        let n = 3;
        let most = match meaning {
            Meaning::Integer { most } => u32::from(most),
            Meaning::Table(_) => 15,
            _ => 0x7e,
        };
        let n_values = (0..n)
            .flat_map(|row| (0..k).map(move |j| (row, j)))
            .map(|(row, j)| groups.index(k, row, j) + 1)
            .max();
        let values = (0..n_values.unwrap_or(0)).map(|i| scale * (1 << (i % 4)) as f32).collect();
        Matrix {
            shape: [n, k],
            codes: Box::new(move |row, out| {
                for (j, code) in out.iter_mut().enumerate() {
                    *code = ((row * 31 + j * 7) as u32 % (most + 1)) as u8;
                }
            }),
            meaning,
            scales: Shared { values, groups },
            zeros: Shared::all(zero, [n, k]),
            divisor: 1.0,
        }
    }

    fn divided(matrix: Matrix<'static>, divisor: f32) -> Matrix<'static> {
        Matrix { divisor, ..matrix }
    }

    /// The layout chosen, after a look at every weight that comes out of it.
    fn packed(matrix: Matrix<'_>, order: Option<&[u32]>) -> WeightLayout {
        let [n, k] = matrix.shape;
        let matrices = [Opened::from(matrix)];
        let layout = choose(&matrices, order);
        let cpu = Cpu::with(Kernels::by_name("scalar").expect("always there"), 1);
        let fill = |row: usize, out: &mut [u8]| matrices[0].fill(layout, order, row, out);
        let packed = PackedMatrix::pack_with(&cpu, layout, n, k, &fill);
        let (mut got, mut expected) = (vec![0.0; k], vec![0.0; k]);
        for row in 0..n {
            packed.unpack_row_f32(row, &mut got);
            matrices[0].dequantize(row, &mut expected);
            for (j, got) in got.iter().enumerate() {
                let at = order.map_or(j, |order| order[j] as usize);
                let both_nan = got.is_nan() && expected[at].is_nan();
                assert!(*got == expected[at] || both_nan, "{layout:?} {row} {at}");
            }
        }
        layout
    }

    fn blocks(columns: usize) -> Groups {
        Groups::Blocks { rows: 1, columns }
    }

    #[test]
    fn the_smallest_layout_that_holds_every_weight_is_taken() {
        use WeightLayout::*;
        let int = |most| Meaning::Integer { most };
        let whole = Groups::Blocks { rows: 3, columns: 512 };
        // Not a number of f16, and not a power of two.
        let odd = 0.1_f32;
        for (matrix, expected) in [
            (matrix(512, int(2), 0.5, 1.0, whole.clone()), Tq2),
            (matrix(512, int(3), 0.5, 1.0, blocks(256)), Tq2),
            (matrix(512, int(2), 0.5, 1.0, blocks(128)), Affine2G64),
            (matrix(512, int(3), 0.5, 1.0, blocks(32)), Affine2G16),
            (matrix(128, int(2), 0.5, 1.0, whole.clone()), Affine2G64),
            (matrix(512, int(2), odd, 1.0, whole), Affine4G32Wide),
            (matrix(256, int(15), 0.5, 8.0, blocks(256)), Int4G128),
            (matrix(256, int(15), 0.5, 16.0, blocks(64)), Int4G64),
            (matrix(96, int(15), 0.5, 0.0, blocks(96)), Int4G32),
            (matrix(64, int(7), 0.5, 3.0, blocks(32)), Int4G32),
            // A zero point that is not whole, or negative, or beyond the codes.
            (matrix(64, int(15), 0.5, 7.5, blocks(32)), Affine4G32),
            (matrix(64, int(15), 0.5, -3.25, blocks(64)), Affine4G64),
            (matrix(64, int(15), -0.5, 1e-4_f32, blocks(64)), Affine4G32Wide),
            (matrix(256, int(7), 0.5, 17.0, blocks(128)), Affine4G64),
            (matrix(64, int(3), 0.5, 1.25, blocks(16)), Affine2G16),
            (matrix(128, int(1), 0.5, 0.5, blocks(128)), Affine2G64),
            (matrix(64, int(255), 0.5, 127.25, blocks(32)), Affine8G32),
            (matrix(64, int(31), odd, 12.25, blocks(32)), Affine8G32Wide),
            (matrix(64, int(255), 0.5, 127.25, blocks(16)), F32),
            // A scale that is not f16, groups that are too short, or no whole block.
            (matrix(64, int(15), odd, 8.0, blocks(32)), Affine4G32Wide),
            (matrix(64, int(15), odd, 8.0, blocks(64)), Affine4G32Wide),
            (matrix(64, int(15), 0.5, 8.0, blocks(16)), Affine4G16),
            (matrix(64, int(15), 0.375, 8.0, blocks(16)), Affine4G16),
            (matrix(64, int(15), odd, 8.0, blocks(16)), F32),
            (matrix(64, int(15), 0.5, 8.0, blocks(8)), Bf16),
            (matrix(48, int(15), 0.375, 8.0, blocks(16)), F32),
            // Zero points whose product with a scale is infinite.
            (matrix(64, int(15), 1e30, 1e10, blocks(32)), F32),
            (matrix(70, int(15), 0.375, 8.0, blocks(70)), F32),
            // The last group is short.
            (matrix(96, int(15), 0.375, 8.0, blocks(64)), Int4G32),
            (matrix(64, int(255), 0.375, 128.0, blocks(32)), Q8G32),
            (matrix(64, int(255), 0.375, 128.0, blocks(64)), Int8Row),
            (matrix(64, int(255), 0.375, 127.0, blocks(64)), Affine8G32),
            (matrix(64, int(255), 0.5, 256.0, blocks(64)), Affine8G32),
            (matrix(64, int(63), 0.375, 32.0, blocks(32)), Q8G32),
            (matrix(65, Meaning::E4M3, odd, 0.0, blocks(65)), Fp8E4M3),
            (matrix(65, Meaning::E5M2, odd, 0.0, blocks(65)), Fp8E5M2),
            (matrix(64, Meaning::E4M3, odd, 0.0, blocks(32)), F32),
            (matrix(64, Meaning::E4M3, 0.5, 0.0, blocks(32)), Bf16),
            (matrix(64, Meaning::E4M3, 1e-32, 0.0, blocks(32)), F32),
            (matrix(128, Meaning::Table(NF4), odd, 0.0, Groups::Flat { len: 64 }), Nf4),
            (matrix(64, Meaning::Table(FP4), odd, 0.0, Groups::Flat { len: 128 }), Fp4),
            (matrix(96, Meaning::Table(FP4), odd, 0.0, Groups::Flat { len: 64 }), F32),
            (matrix(96, Meaning::Table(E2M1), 0.5, 0.0, blocks(32)), Mxfp4),
            (matrix(96, Meaning::Table(E2M1), 0.375, 0.0, blocks(32)), Nvfp4),
            (matrix(96, Meaning::Table(E2M1), -0.5, 0.0, blocks(32)), Nvfp4),
            (matrix(96, Meaning::Table(E2M1), 0.5, 0.0, blocks(16)), Nvfp4),
            (matrix(48, Meaning::Table(E2M1), 0.5, 0.0, blocks(16)), F32),
            (matrix(96, Meaning::Table(E2M1), 0.5, 0.0, blocks(8)), F32),
            (matrix(96, Meaning::Table(E2M1), odd, 0.0, blocks(16)), F32),
            (divided(matrix(96, Meaning::Table(E2M1), 0.375, 0.0, blocks(16)), 0.7), Nvfp4),
            // Scales divided by another number than 1 are no powers of two and no numbers of f16.
            (divided(matrix(96, Meaning::Table(E2M1), 0.5, 0.0, blocks(32)), 0.7), Nvfp4),
            (divided(matrix(64, int(15), 0.5, 7.5, blocks(32)), 0.7), F32),
            (divided(matrix(64, int(15), 0.5, 8.0, blocks(32)), 0.7), F32),
            (matrix(128, Meaning::Table([0.1; 16]), odd, 0.0, Groups::Flat { len: 64 }), F32),
        ] {
            let label = format!("{:?} {:?}", matrix.meaning, matrix.scales);
            assert_eq!(packed(matrix, None), expected, "{label}");
        }
    }

    #[test]
    fn scattered_groups_are_packed_side_by_side_and_uneven_ones_dequantized() {
        let mapped = |of: Vec<u32>| Groups::Mapped { of, n: 2 };
        let order: Vec<u32> = (0..64).step_by(2).chain((1..64).step_by(2)).collect();
        let scattered = mapped((0..64).map(|j| j % 2).collect());
        let int4 = |groups| matrix(64, Meaning::Integer { most: 15 }, 0.375, 8.0, groups);
        assert_eq!(packed(int4(scattered.clone()), Some(&order)), WeightLayout::Int4G32);
        assert_eq!(packed(int4(scattered), None), WeightLayout::F32, "in their own order");
        let uneven = mapped((0..64).map(|j| u32::from(j > 30)).collect());
        assert_eq!(packed(int4(uneven), None), WeightLayout::F32);
    }
}
