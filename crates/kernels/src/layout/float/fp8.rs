//! 8-bit floats with one f32 scale per output.
//!
//! E4M3 is the form without infinities (OCP "FN"): 0x7f and 0xff are NaN. E5M2 is the upper half of
//! an IEEE half-precision number. Both widen exactly.

use super::FloatLayout;
use super::plain::place_elements;
use crate::layout::{PANEL, codes};
#[cfg(target_arch = "x86_64")]
use crate::simd::byte_floats::{self, Table};
use crate::simd::bytes::{Block, Bytes};

/// Bytes of the scales at the head of a panel.
pub(crate) const HEAD: usize = PANEL * 4;

/// Writes a source row (f32 scale, then bytes) to its lane.
fn place(row: &[u8], panel: &mut [u8], lane: usize) {
    let ((scale, row), (scales, panel)) = (row.split_at(4), panel.split_at_mut(HEAD));
    scales[lane * 4..lane * 4 + 4].copy_from_slice(scale);
    place_elements::<1>(row, panel, lane);
}

/// Sixteen E5M2 numbers.
#[inline(always)]
fn e5m2<S: Bytes>(s: S, from: &[u8; 16]) -> S::F {
    let mut halves = [0; 32];
    for i in 0..16 {
        halves[2 * i + 1] = from[i];
    }
    s.halves(&halves)
}

macro_rules! fp8 {
    ($(#[$doc:meta])* $name:ident, $table:ident, $byte:ident => $read:expr, $s:ident $from:ident => $load:expr) => {
        $(#[$doc])*
        pub(crate) struct $name;

        // SAFETY: the scales, then 16 bytes per input.
        unsafe impl FloatLayout for $name {
            const PAIR_BYTES: usize = 32;
            const ROW_SCALE: bool = true;
            const IS_BYTES: bool = true;

            #[cfg(target_arch = "x86_64")]
            fn byte_table() -> &'static Table {
                &byte_floats::$table
            }

            fn row_bytes(k: usize) -> usize {
                4 + k
            }

            fn panel_bytes(k: usize) -> usize {
                HEAD + k * 16
            }

            fn place(row: &[u8], panel: &mut [u8], lane: usize) {
                place(row, panel, lane);
            }

            fn read(panel: &[u8], lane: usize, k: usize) -> f32 {
                let $byte = panel[HEAD + k * PANEL + lane];
                $read
            }

            #[inline(always)]
            unsafe fn pair<S: Bytes>(s: S, panel: Block, pair: usize) -> [S::F; 2] {
                let at = HEAD + pair * 32;
                // SAFETY: two inputs of 16 bytes.
                unsafe { [Self::load(s, panel.at(at)), Self::load(s, panel.at(at + 16))] }
            }

            #[inline(always)]
            unsafe fn last<S: Bytes>(s: S, panel: Block, pair: usize) -> S::F {
                // SAFETY: the caller vouches for the input.
                Self::load(s, unsafe { panel.at(HEAD + pair * 32) })
            }
        }

        impl $name {
            #[inline(always)]
            fn load<S: Bytes>($s: S, $from: &[u8; 16]) -> S::F {
                $load
            }
        }
    };
}

fp8! {
    /// 4 bits of exponent, 3 of mantissa.
    Fp8E4M3, E4M3, byte => codes::e4m3(byte), s from => s.load_fp8(from)
}
fp8! {
    /// 5 bits of exponent, 2 of mantissa.
    Fp8E5M2, E5M2, byte => codes::e5m2(byte), s from => e5m2(s, from)
}
