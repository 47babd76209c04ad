//! The 12 bytes of `Q4_K` and `Q5_K` that hold 8 scales and 8 minima of 6 bits.
//!
//! ```text
//! byte j        scale[j]         upper two bits: those of scale[j + 4]      j = 0..4
//! byte j + 4    min[j]           upper two bits: those of min[j + 4]
//! byte j + 8    low nibble: that of scale[j + 4]; high nibble: that of min[j + 4]
//! ```

/// Weights that share a scale.
pub(super) const SUB_LEN: usize = 32;
/// Such groups in a block.
pub(super) const N_SUBS: usize = 8;
/// Bytes of all scales and minima.
pub(super) const N_BYTES: usize = 12;
/// The largest scale and minimum.
pub(super) const MAX: f32 = 63.0;

/// The bytes of scales and minima below 64.
pub(super) fn store(scales: &[u8; N_SUBS], mins: &[u8; N_SUBS]) -> [u8; N_BYTES] {
    let mut bytes = [0; N_BYTES];
    for j in 0..4 {
        bytes[j] = scales[j] | scales[j + 4] >> 4 << 6;
        bytes[j + 4] = mins[j] | mins[j + 4] >> 4 << 6;
        bytes[j + 8] = scales[j + 4] & 15 | mins[j + 4] << 4;
    }
    bytes
}

/// Scales and minima.
pub(super) fn load(bytes: &[u8; N_BYTES]) -> ([u8; N_SUBS], [u8; N_SUBS]) {
    let (mut scales, mut mins) = ([0; N_SUBS], [0; N_SUBS]);
    for j in 0..4 {
        scales[j] = bytes[j] & 63;
        mins[j] = bytes[j + 4] & 63;
        scales[j + 4] = bytes[j + 8] & 15 | bytes[j] >> 6 << 4;
        mins[j + 4] = bytes[j + 8] >> 4 | bytes[j + 4] >> 6 << 4;
    }
    (scales, mins)
}
