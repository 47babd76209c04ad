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
//! These are ten instructions for 64 floats; by way of half precision there are nine for 16.

use std::arch::x86_64::*;

use half::f16;

use super::{LANES, fp8_to_f32};

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
    /// The table of these values, by code.
    ///
    /// # Panics
    ///
    /// When one of them is no number of bf16.
    pub(crate) const fn of(values: &[f32; N_CODES]) -> Self {
        let mut table = Self { high: [0; N_CODES], low: [0; N_CODES] };
        let mut code = 0;
        while code < N_CODES {
            let [first, second, third, fourth] = values[code].to_bits().to_le_bytes();
            assert!(first == 0 && second == 0, "invariant: values of 8 bits are those of bf16");
            (table.low[code], table.high[code]) = (third, fourth);
            code += 1;
        }
        table
    }
}

/// The table of a type with the value `$value` of the code `$code`.
macro_rules! table {
    ($code:ident => $value:expr) => {
        Table::of(&{
            let mut values = [0.0; N_CODES];
            let mut code = 0;
            while code < N_CODES {
                let $code = code as u8;
                values[code] = $value;
                code += 1;
            }
            values
        })
    };
}

/// 4 bits of exponent, 3 of mantissa.
pub(crate) static E4M3: Table = table!(code => fp8_to_f32(code));
/// 5 bits of exponent, 2 of mantissa.
pub(crate) static E5M2: Table = table!(code => f16::from_bits((code as u16) << 8).to_f32_const());

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

/// Element `n` of `low` and of `high`, which are e4m3, at places `2 n` and `2 n + 1`, as bf16.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vbmi")]
pub(crate) fn e4m3_pairs(low: &[u8; LANES], high: &[u8; LANES]) -> __m512i {
    /// Each code twice: for the low byte and for the high byte of its bf16.
    const TWICE: [u8; 64] = {
        let mut twice = [0; 64];
        let mut place = 0;
        while place < 64 {
            twice[place] = (place / 4 + place % 4 / 2 * LANES) as u8;
            place += 1;
        }
        twice
    };
    const HIGH_BYTES: u64 = 0xaaaa_aaaa_aaaa_aaaa;
    let table = Lookup::new(&E4M3);
    // SAFETY: 16 and 64 bytes are read.
    let (low, high, twice) = unsafe {
        let (low, high) = (low.as_ptr().cast(), high.as_ptr().cast());
        let twice = _mm512_loadu_si512(TWICE.as_ptr().cast());
        (_mm_loadu_si128(low), _mm_loadu_si128(high), twice)
    };
    let both = _mm512_inserti32x4::<1>(_mm512_castsi128_si512(low), high);
    let codes = _mm512_permutexvar_epi8(twice, both);
    let lows = _mm512_permutex2var_epi8(table.low[0], codes, table.low[1]);
    let highs = _mm512_permutex2var_epi8(table.high[0], codes, table.high[1]);
    let pairs = _mm512_mask_blend_epi8(HIGH_BYTES, lows, highs);
    let sign = _mm512_set1_epi16(i16::MIN);
    // pairs | codes & sign
    _mm512_ternarylogic_epi32::<0xf8>(pairs, codes, sign)
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
        for (table, value) in [(&E4M3, e4m3 as fn(u8) -> f32), (&E5M2, e5m2)] {
            for first in (0..=u8::MAX).step_by(3) {
                let codes: [u8; 64] = std::array::from_fn(|i| first.wrapping_add(i as u8));
                // SAFETY: the instructions are there.
                let floats = unsafe { Lookup::new(table).floats(&codes) };
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

    #[test]
    fn pairs_are_those_of_their_floats() {
        if !is_supported() {
            return;
        }
        for first in 0..=u8::MAX {
            let [low, high]: [[u8; LANES]; 2] = [first, first ^ 0x9c]
                .map(|first| std::array::from_fn(|i| first.wrapping_add(i as u8 * 7)));
            // SAFETY: the instructions are there; both are 64 bytes without a meaning of their own.
            let pairs: [[u16; 2]; LANES] = unsafe { std::mem::transmute(e4m3_pairs(&low, &high)) };
            for (n, pair) in pairs.into_iter().enumerate() {
                for (code, bits) in [low[n], high[n]].into_iter().zip(pair) {
                    let (expected, float) = (e4m3(code), f32::from_bits(u32::from(bits) << 16));
                    let same = expected.to_bits() == float.to_bits();
                    assert!(same || expected.is_nan() && float.is_nan(), "{code:#x}: {float}");
                }
            }
        }
    }
}
