//! Positions of the bits of a group in its lines, for placing, reading and loading.
//!
//! The three views of one drawing (see the parent): `place_*` writes the integers of one output,
//! `read_*` reads them back one by one, `*_quad` loads a quad of all sixteen outputs.

use half::f16;

use super::{Block, Bytes};
use crate::layout::GROUP;
use crate::layout::PANEL;

/// Byte of a line that belongs to input `k` (of its quad) of output `lane`.
fn at(line: usize, lane: usize, k: usize) -> usize {
    line * 64 + lane * 4 + k % 4
}

/// Writes the quads of output `lane`, one to each line.
pub(super) fn place_quads(quads: &[u8], lines: &mut [u8], lane: usize) {
    for (quad, line) in quads.as_chunks::<4>().0.iter().zip(lines.as_chunks_mut::<64>().0) {
        line.as_chunks_mut::<4>().0[lane] = *quad;
    }
}

/// Eight bits: 8 lines.
pub(super) fn place_bytes(q: &[u8; GROUP], lines: &mut [u8], lane: usize) {
    place_quads(q, lines, lane);
}

/// Four bits: 4 lines.
pub(super) fn place_nibbles(q: &[u8; GROUP], lines: &mut [u8], lane: usize) {
    let bytes: [u8; 16] = std::array::from_fn(|k| q[k] & 15 | q[k + 16] << 4);
    place_quads(&bytes, lines, lane);
}

/// Two bits: 2 lines.
pub(super) fn place_pairs(q: &[u8; GROUP], lines: &mut [u8], lane: usize) {
    let bytes: [u8; 8] = std::array::from_fn(|k| {
        q[k] & 3 | (q[k + 8] & 3) << 2 | (q[k + 16] & 3) << 4 | q[k + 24] << 6
    });
    place_quads(&bytes, lines, lane);
}

/// One bit: 1 line.
pub(super) fn place_bits(q: &[u8; GROUP], lines: &mut [u8], lane: usize) {
    let bytes: [u8; 4] =
        std::array::from_fn(|k| (0..8).fold(0, |byte, quad| byte | (q[4 * quad + k] & 1) << quad));
    place_quads(&bytes, lines, lane);
}

/// The inverse of [`place_bytes`].
pub(super) fn read_bytes(lines: &[u8], lane: usize) -> [u8; GROUP] {
    std::array::from_fn(|k| lines[at(k / 4, lane, k)])
}

/// The inverse of [`place_nibbles`].
pub(super) fn read_nibbles(lines: &[u8], lane: usize) -> [u8; GROUP] {
    std::array::from_fn(|k| lines[at(k / 4 % 4, lane, k)] >> (k / 16 * 4) & 15)
}

/// The inverse of [`place_pairs`].
pub(super) fn read_pairs(lines: &[u8], lane: usize) -> [u8; GROUP] {
    std::array::from_fn(|k| lines[at(k / 4 % 2, lane, k)] >> (k / 8 * 2) & 3)
}

/// The inverse of [`place_bits`].
pub(super) fn read_bits(lines: &[u8], lane: usize) -> [u8; GROUP] {
    std::array::from_fn(|k| lines[at(0, lane, k)] >> (k / 4) & 1)
}

/// Half-precision number of `lane` in a row of sixteen at `offset`.
pub(super) fn half_at(block: &[u8], offset: usize, lane: usize) -> f32 {
    let at = offset + lane * 2;
    f16::from_le_bytes([block[at], block[at + 1]]).to_f32()
}

/// Writes a half-precision number of `lane` to a row of sixteen at `offset`.
pub(super) fn place_half(source: &[u8], block: &mut [u8], offset: usize, lane: usize) {
    let at = offset + lane * 2;
    block[at..at + 2].copy_from_slice(&source[..2]);
}

/// Bytes of a row of sixteen half-precision numbers.
pub(super) const HALVES: usize = PANEL * 2;

/// Quad `quad` (of 8), from 4 lines of nibbles at `offset`.
///
/// # Safety
///
/// The 4 lines are inside the block.
#[inline(always)]
pub(super) unsafe fn nibble_quad<S: Bytes>(s: S, block: Block, offset: usize, quad: usize) -> S::B {
    // SAFETY: there are 4 lines.
    let line = s.bytes(unsafe { block.at(offset + quad % 4 * 64) });
    s.and(if quad < 4 { line } else { s.shr(line, 4) }, 15)
}

/// Quad `quad` (of 8), from 2 lines of bit pairs at `offset`, moved up by `up` bits.
///
/// # Safety
///
/// The 2 lines are inside the block.
#[inline(always)]
pub(super) unsafe fn pair_quad<S: Bytes>(
    s: S,
    block: Block,
    [offset, up]: [usize; 2],
    quad: usize,
) -> S::B {
    // SAFETY: there are 2 lines.
    let line = s.bytes(unsafe { block.at(offset + quad % 2 * 64) });
    shifted(s, line, quad / 2 * 2, up, 3)
}

/// Two quads, from 2 lines of bit pairs at `offset`.
///
/// # Safety
///
/// The 2 lines are inside the block.
#[inline(always)]
pub(super) unsafe fn pair_quads<S: Bytes>(
    s: S,
    block: Block,
    offset: usize,
    pair: usize,
) -> [S::B; 2] {
    // SAFETY: the caller vouches for the lines.
    unsafe {
        [pair_quad(s, block, [offset, 0], 2 * pair), pair_quad(s, block, [offset, 0], 2 * pair + 1)]
    }
}

/// Quad `quad` (of 8), from a line of bits at `offset`, moved up by `up` bits.
///
/// # Safety
///
/// The line is inside the block.
#[inline(always)]
pub(super) unsafe fn bit_quad<S: Bytes>(
    s: S,
    block: Block,
    [offset, up]: [usize; 2],
    quad: usize,
) -> S::B {
    // SAFETY: the caller vouches for the line.
    let line = s.bytes(unsafe { block.at(offset) });
    shifted(s, line, quad, up, 1)
}

/// The bits `mask << from` of every byte, brought to `mask << to`.
#[inline(always)]
fn shifted<S: Bytes>(s: S, line: S::B, from: usize, to: usize, mask: u8) -> S::B {
    let moved = if from >= to { s.shr(line, from - to) } else { s.shl(line, to - from) };
    s.and(moved, mask << to)
}
