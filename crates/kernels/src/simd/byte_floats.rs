//! Floats of one byte by tables: AVX-512 VBMI.
//!
//! ```text
//! 64 codes [4 inputs][16]     order: of each four lanes, inputs 0 and 1, then inputs 2 and 3
//!     -> high bytes           one lookup among 128 codes, and the sign
//!     -> low bytes            one lookup
//!     -> pairs of bf16        low and high bytes interleaved:  [16](0, 1)   [16](2, 3)
//!     -> 4 x 16 floats        a shift for the first of each pair, a mask for the second
//! ```
//!
//! Fourteen instructions less than four for 64 floats; by way of half precision they are nine for
//! 16.

use std::arch::x86_64::*;

/// Codes without a sign.
const N_CODES: usize = 128;
/// Floats that are looked up together.
pub(crate) const GROUP: usize = 4;

/// The values of a type of float that has a sign and seven more bits, all of which are bf16
/// numbers.
pub(crate) struct Table {
    high: [u8; N_CODES],
    low: [u8; N_CODES],
}

impl Table {
    /// The table of a type whose code `code` has the value `value(code)`.
    pub(crate) fn of(value: fn(u8) -> f32) -> Self {
        let mut table = Self { high: [0; N_CODES], low: [0; N_CODES] };
        for (code, (high, low)) in (0..).zip(table.high.iter_mut().zip(&mut table.low)) {
            let [rest @ .., third, fourth] = value(code).to_bits().to_le_bytes();
            assert_eq!(rest, [0; 2], "invariant: values of 8 bits are those of bf16");
            (*low, *high) = (third, fourth);
        }
        table
    }
}

/// Whether this CPU has the instructions.
pub(crate) fn is_supported() -> bool {
    is_x86_feature_detected!("avx512vbmi")
}

/// A table in registers.
#[derive(Clone, Copy)]
pub(crate) struct Lookup {
    high: [__m512i; 2],
    low: [__m512i; 2],
    order: __m512i,
}

/// Place, among 64 codes `[4][16]`, of each one that is looked up.
const ORDER: [u8; 64] = {
    let mut order = [0; 64];
    let mut place = 0;
    while place < 64 {
        let (quarter, pair, lane, second) = (place / 16, place % 16 / 8, place % 8 / 2, place % 2);
        order[place] = ((2 * pair + second) * 16 + quarter * 4 + lane) as u8;
        place += 1;
    }
    order
};

impl Lookup {
    /// The table in registers.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vbmi")]
    pub(crate) fn new(table: &Table) -> Self {
        // SAFETY: each reads 64 bytes of the 128, or of the order.
        unsafe {
            let both = |bytes: &[u8; N_CODES]| {
                [0, 64].map(|start| _mm512_loadu_si512(bytes.as_ptr().add(start).cast()))
            };
            let order = _mm512_loadu_si512(ORDER.as_ptr().cast());
            Self { high: both(&table.high), low: both(&table.low), order }
        }
    }

    /// Sixteen floats of each of four inputs, whose codes follow each other.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vbmi")]
    pub(crate) fn floats(self, from: &[u8; 64]) -> [__m512; GROUP] {
        let Self { high, low, order } = self;
        // SAFETY: 64 bytes are read.
        let codes = unsafe { _mm512_loadu_si512(from.as_ptr().cast()) };
        let codes = _mm512_permutexvar_epi8(order, codes);
        let sign = _mm512_set1_epi8(i8::MIN);
        let highs = _mm512_permutex2var_epi8(high[0], codes, high[1]);
        let lows = _mm512_permutex2var_epi8(low[0], codes, low[1]);
        // highs | codes & sign
        let highs = _mm512_ternarylogic_epi32::<0xf8>(highs, codes, sign);
        let mask = _mm512_set1_epi32(0xffff_0000_u32.cast_signed());
        let mut floats = [_mm512_setzero_ps(); GROUP];
        let pairs = [_mm512_unpacklo_epi8(lows, highs), _mm512_unpackhi_epi8(lows, highs)];
        for (i, pairs) in pairs.into_iter().enumerate() {
            floats[2 * i] = _mm512_castsi512_ps(_mm512_slli_epi32::<16>(pairs));
            floats[2 * i + 1] = _mm512_castsi512_ps(_mm512_and_si512(pairs, mask));
        }
        floats
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::codes::{e4m3, e5m2};

    #[test]
    fn every_code_has_its_value_at_every_place() {
        if !is_supported() {
            return;
        }
        for value in [e4m3 as fn(u8) -> f32, e5m2] {
            let table = Table::of(value);
            for first in (0..=u8::MAX).step_by(3) {
                let codes: [u8; 64] = std::array::from_fn(|i| first.wrapping_add(i as u8));
                // SAFETY: the instructions are there.
                let floats = unsafe { Lookup::new(&table).floats(&codes) };
                // SAFETY: both are 256 bytes, and every one of them is a float.
                let floats: [f32; 64] = unsafe { std::mem::transmute(floats) };
                for (code, float) in codes.into_iter().zip(floats) {
                    let expected = value(code);
                    let same = expected.to_bits() == float.to_bits();
                    assert!(same || expected.is_nan() && float.is_nan(), "{code:#x}: {float}");
                }
            }
        }
    }
}
