//! Nibbles that name one of sixteen signed bytes.

use super::lines::{HALVES, half_at, nibble_quad, place_half, place_nibbles, read_nibbles};
use super::plain::source_nibbles;
use super::{Block, Bytes, Group, HALF, IntLayout, Range};
use crate::layout::GROUP;
use crate::layout::PANEL;
use crate::layout::codes::{IQ4, TWICE_E2M1, e4m3};

/// The entries of a table as signed weights are stored: with 128 added.
pub(super) const fn stored(table: [i8; 16]) -> [u8; 16] {
    let mut out = [0; 16];
    let mut i = 0;
    while i < 16 {
        out[i] = table[i].cast_unsigned() ^ 0x80;
        i += 1;
    }
    out
}

/// Two quads of entries.
///
/// # Safety
///
/// The 4 lines at `offset` are inside the block.
#[inline(always)]
unsafe fn entries<S: Bytes>(
    s: S,
    table: &[u8; 16],
    block: Block,
    offset: usize,
    pair: usize,
) -> [S::B; 2] {
    // SAFETY: the caller vouches for the lines.
    unsafe {
        [
            s.lookup(table, nibble_quad(s, block, offset, 2 * pair)),
            s.lookup(table, nibble_quad(s, block, offset, 2 * pair + 1)),
        ]
    }
}

/// The entries of a group.
fn read_entries(table: &[i8; 16], lines: &[u8], lane: usize) -> [i8; GROUP] {
    read_nibbles(lines, lane).map(|q| table[usize::from(q)])
}

/// `16 f16 scales | 4 lines of nibbles`: GGUF `IQ4_NL`.
pub(crate) struct Iq4Nl;

// SAFETY: the head and 4 lines are the whole block.
unsafe impl IntLayout for Iq4Nl {
    const LEN: usize = GROUP;
    const SOURCE_BYTES: usize = 18;
    const BLOCK_BYTES: usize = HALVES + 256;
    const RANGE: Range = Range::Signed;

    fn place(source: &[u8], block: &mut [u8], lane: usize) {
        place_half(source, block, 0, lane);
        place_nibbles(&source_nibbles(&source[2..]), &mut block[HALVES..], lane);
    }

    fn read(block: &[u8], lane: usize, _group: usize) -> Group {
        let q = read_entries(&IQ4, &block[HALVES..], lane);
        Group { q, scale: [half_at(block, 0, lane); 2], bias: [0.0; 2] }
    }

    #[inline(always)]
    unsafe fn scale<S: Bytes>(s: S, _: &[S::F; 2], block: Block, _: usize, _: usize) -> S::F {
        // SAFETY: the head of the block.
        s.halves(unsafe { block.at(0) })
    }

    #[inline(always)]
    unsafe fn weights<S: Bytes>(s: S, block: Block, _group: usize, pair: usize) -> [S::B; 2] {
        // SAFETY: the lines follow the head.
        unsafe { entries(s, &const { stored(IQ4) }, block, HALVES, pair) }
    }
}

/// `16 f16 d | 8 x ( 16 signed scales | 4 lines of nibbles )`: GGUF `IQ4_XS`, its 6-bit scales
/// (less 32) in bytes.
pub(crate) struct Iq4Xs;

impl Iq4Xs {
    const GROUP_BYTES: usize = PANEL + 256;
}

// SAFETY: the head and 8 groups of a row of scales and 4 lines are the whole block.
unsafe impl IntLayout for Iq4Xs {
    const LEN: usize = 256;
    const SOURCE_BYTES: usize = 136;
    const BLOCK_BYTES: usize = HALVES + 8 * Self::GROUP_BYTES;
    const RANGE: Range = Range::Signed;

    fn place(source: &[u8], block: &mut [u8], lane: usize) {
        place_half(source, block, 0, lane);
        let high = u16::from_le_bytes([source[2], source[3]]);
        for (g, group) in block[HALVES..].chunks_mut(Self::GROUP_BYTES).enumerate() {
            let low = source[4 + g / 2] >> (g % 2 * 4) & 15;
            let scale = low | ((high >> (2 * g) & 3) as u8) << 4;
            group[lane] = scale.wrapping_sub(32);
            let nibbles = source_nibbles(&source[8 + g * 16..]);
            place_nibbles(&nibbles, &mut group[PANEL..], lane);
        }
    }

    fn read(block: &[u8], lane: usize, group: usize) -> Group {
        let d = half_at(block, 0, lane);
        let group = &block[HALVES + group * Self::GROUP_BYTES..];
        let scale = d * f32::from(group[lane].cast_signed());
        let q = read_entries(&IQ4, &group[PANEL..], lane);
        Group { q, scale: [scale; 2], bias: [0.0; 2] }
    }

    #[inline(always)]
    unsafe fn head<S: Bytes>(s: S, block: Block) -> [S::F; 2] {
        // SAFETY: the head of the block.
        [s.halves(unsafe { block.at(0) }), s.splat(0.0)]
    }

    #[inline(always)]
    unsafe fn scale<S: Bytes>(s: S, head: &[S::F; 2], b: Block, group: usize, _: usize) -> S::F {
        // SAFETY: the scales of the group.
        s.mul(head[0], s.signed(unsafe { b.at(HALVES + group * Self::GROUP_BYTES) }))
    }

    #[inline(always)]
    unsafe fn weights<S: Bytes>(s: S, block: Block, group: usize, pair: usize) -> [S::B; 2] {
        let lines = HALVES + group * Self::GROUP_BYTES + PANEL;
        // SAFETY: the lines of the group.
        unsafe { entries(s, &const { stored(IQ4) }, block, lines, pair) }
    }
}

/// `16 exponents | 4 lines of nibbles`: GGUF `MXFP4`, half the power of two times twice the float.
pub(crate) struct Mxfp4;

impl Mxfp4 {
    /// The bits of `2^(exponent - 128)`; the two smallest are subnormal.
    #[inline(always)]
    fn scale_bits(exponent: u8) -> u32 {
        let exponent = u32::from(exponent);
        let normal = exponent.wrapping_sub(1) << 23;
        let subnormal = 0x0020_0000 << (exponent & 1);
        if exponent < 2 { subnormal } else { normal }
    }
}

// SAFETY: the head and 4 lines are the whole block.
unsafe impl IntLayout for Mxfp4 {
    const LEN: usize = GROUP;
    const SOURCE_BYTES: usize = 17;
    const BLOCK_BYTES: usize = PANEL + 256;
    const RANGE: Range = Range::Signed;

    fn place(source: &[u8], block: &mut [u8], lane: usize) {
        block[lane] = source[0];
        place_nibbles(&source_nibbles(&source[1..]), &mut block[PANEL..], lane);
    }

    fn read(block: &[u8], lane: usize, _group: usize) -> Group {
        let scale = f32::from_bits(Self::scale_bits(block[lane]));
        let q = read_entries(&TWICE_E2M1, &block[PANEL..], lane);
        Group { q, scale: [scale; 2], bias: [0.0; 2] }
    }

    #[inline(always)]
    unsafe fn scale<S: Bytes>(s: S, _: &[S::F; 2], block: Block, _: usize, _: usize) -> S::F {
        // SAFETY: the head of the block.
        let exponents: &[u8; 16] = unsafe { block.at(0) };
        let mut bits = [0; 16];
        for lane in 0..16 {
            bits[lane] = Self::scale_bits(exponents[lane]);
        }
        s.words(&bits)
    }

    #[inline(always)]
    unsafe fn weights<S: Bytes>(s: S, block: Block, _group: usize, pair: usize) -> [S::B; 2] {
        // SAFETY: the lines follow the head.
        unsafe { entries(s, &const { stored(TWICE_E2M1) }, block, PANEL, pair) }
    }
}

/// `2 x 16 E4M3 scales | 4 lines of nibbles`, one f32 divisor per output at the head of the panel:
/// NVFP4.
///
/// A weight is `scale / divisor * float`, rounded after each. The product sums with the scales as
/// they are and divides once, at the end.
pub(crate) struct Nvfp4;

impl Nvfp4 {
    /// Bytes of the scales.
    const HEAD: usize = 2 * PANEL;
}

// SAFETY: the head and 4 lines are the whole block.
unsafe impl IntLayout for Nvfp4 {
    const LEN: usize = GROUP;
    const SOURCE_BYTES: usize = 18;
    const BLOCK_BYTES: usize = Self::HEAD + 256;
    const RANGE: Range = Range::Signed;
    const SPLIT: bool = true;
    const ROW_SCALE: bool = true;
    const ROW_DIVIDES: bool = true;

    fn place(source: &[u8], block: &mut [u8], lane: usize) {
        block[lane] = source[0];
        block[PANEL + lane] = source[1];
        place_nibbles(&source_nibbles(&source[2..]), &mut block[Self::HEAD..], lane);
    }

    fn read(block: &[u8], lane: usize, _group: usize) -> Group {
        let q = read_entries(&TWICE_E2M1, &block[Self::HEAD..], lane);
        let scale = [block[lane], block[PANEL + lane]].map(|scale| e4m3(scale) * 0.5);
        Group { q, scale, bias: [0.0; 2] }
    }

    fn unpack(block: &[u8], lane: usize, group: usize, divisor: f32) -> [f32; GROUP] {
        let group = Self::read(block, lane, group);
        std::array::from_fn(|i| {
            let scale = group.scale[i / HALF] * 2.0 / divisor;
            scale * (f32::from(group.q[i]) * 0.5)
        })
    }

    #[inline(always)]
    unsafe fn scale<S: Bytes>(s: S, _: &[S::F; 2], block: Block, _: usize, half: usize) -> S::F {
        // SAFETY: a row of the head of the block.
        s.mul(s.load_fp8(unsafe { block.at(half * PANEL) }), s.splat(0.5))
    }

    #[inline(always)]
    unsafe fn weights<S: Bytes>(s: S, block: Block, _group: usize, pair: usize) -> [S::B; 2] {
        // SAFETY: the lines follow the head.
        unsafe { entries(s, &const { stored(TWICE_E2M1) }, block, Self::HEAD, pair) }
    }
}
