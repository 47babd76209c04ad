//! The stored elements of states at borders: f32, or bf16 rounded to nearest, ties to even.
//!
//! The store is memory of floats; a state in bf16 takes the place of half as many.

use bytemuck::{cast_slice, cast_slice_mut};
use half::bf16;
use pelton_tensor::StateDtype;

use crate::simd::{LANES, Simd};

/// An element of a state, read and written sixteen at a time.
pub(super) trait Element: Copy {
    /// Sixteen elements, widened exactly.
    fn load<S: Simd>(s: S, x: &[Self; LANES]) -> S::F;

    /// Writes sixteen elements, rounded where the type is narrower.
    fn store<S: Simd>(s: S, x: S::F, out: &mut [Self; LANES]);
}

impl Element for f32 {
    #[inline(always)]
    fn load<S: Simd>(s: S, x: &[Self; LANES]) -> S::F {
        s.load(x)
    }

    #[inline(always)]
    fn store<S: Simd>(s: S, x: S::F, out: &mut [Self; LANES]) {
        s.store(x, out);
    }
}

/// bf16, by its bits.
impl Element for u16 {
    #[inline(always)]
    fn load<S: Simd>(s: S, x: &[Self; LANES]) -> S::F {
        s.load_bf16(x)
    }

    #[inline(always)]
    fn store<S: Simd>(s: S, x: S::F, out: &mut [Self; LANES]) {
        s.store_bf16(x, out);
    }
}

/// A state as it is stored.
#[derive(Clone, Copy)]
pub(super) enum Stored<'a> {
    F32(&'a [f32]),
    /// By their bits.
    Bf16(&'a [u16]),
}

/// A state as it is stored, to be replaced.
pub(super) enum StoredMut<'a> {
    F32(&'a mut [f32]),
    /// By their bits.
    Bf16(&'a mut [u16]),
}

impl<'a> Stored<'a> {
    /// The state that lies in these floats.
    pub(super) fn new(dtype: StateDtype, floats: &'a [f32]) -> Self {
        match dtype {
            StateDtype::F32 => Self::F32(floats),
            StateDtype::Bf16 => Self::Bf16(cast_slice(floats)),
        }
    }

    /// Writes all elements as floats.
    pub(super) fn widen(self, out: &mut [f32]) {
        match self {
            Self::F32(state) => out.copy_from_slice(state),
            Self::Bf16(state) => {
                assert_eq!(state.len(), out.len(), "invariant: a float per element");
                let floats = state.iter().map(|bits| bf16::from_bits(*bits).to_f32());
                out.iter_mut().zip(floats).for_each(|(out, x)| *out = x);
            }
        }
    }
}

impl<'a> StoredMut<'a> {
    /// The state that lies in these floats.
    pub(super) fn new(dtype: StateDtype, floats: &'a mut [f32]) -> Self {
        match dtype {
            StateDtype::F32 => Self::F32(floats),
            StateDtype::Bf16 => Self::Bf16(cast_slice_mut(floats)),
        }
    }

    /// Replaces all elements by these floats, rounded as [`Simd::store_bf16`] does.
    pub(super) fn narrow(self, floats: &[f32]) {
        match self {
            Self::F32(state) => state.copy_from_slice(floats),
            Self::Bf16(state) => {
                assert_eq!(state.len(), floats.len(), "invariant: an element per float");
                let rounded = floats.iter().map(|x| bf16::from_f32(*x).to_bits());
                state.iter_mut().zip(rounded).for_each(|(out, bits)| *out = bits);
            }
        }
    }
}
