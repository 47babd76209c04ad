//! Meaning of stored bytes, against digests of the reference dequantizers; see `golden/make.py`.

use std::path::Path;

use pelton_quant::{FORMATS, WeightFormat};

/// Blocks of a golden file with the digests of their weights; `None` when there is no such file.
fn read(format: &dyn WeightFormat, suffix: &str) -> Option<Vec<(Vec<u8>, u64)>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    let bytes = std::fs::read(folder.join(format!("{}{suffix}", format.name()))).ok()?;
    let records = bytes.chunks_exact(format.block_bytes() + 8);
    assert!(records.remainder().is_empty());
    let split = |record: &[u8]| {
        let (block, digest) = record.split_last_chunk().expect("eight bytes of digest");
        (block.to_vec(), u64::from_le_bytes(*digest))
    };
    Some(records.map(split).collect())
}

/// 64-bit FNV-1a over the bits, every NaN alike.
fn digest(weights: &[f32]) -> u64 {
    let canonical = |w: &f32| if w.is_nan() { 0x7FC0_0000 } else { w.to_bits() };
    weights
        .iter()
        .map(canonical)
        .flat_map(u32::to_le_bytes)
        .fold(0xCBF2_9CE4_8422_2325, |state, byte| {
            (state ^ u64::from(byte)).wrapping_mul(0x0100_0000_01B3)
        })
}

fn check(format: &dyn WeightFormat, records: &[(Vec<u8>, u64)]) {
    let mut weights = vec![0.0; format.block_len()];
    for (idx, (block, expected)) in records.iter().enumerate() {
        format.dequantize(block, &mut weights);
        assert_eq!(digest(&weights), *expected, "{}: block {idx}: {weights:?}", format.name());
    }
}

#[test]
fn stored_blocks_mean_the_same_bits_as_to_the_reference() {
    for format in FORMATS.iter().filter(|format| format.block_len() > 1) {
        let records = read(*format, ".bin").expect("a golden file for every block format");
        assert_eq!(records.len(), 256);
        check(*format, &records);
    }
}

#[test]
fn infinite_and_undefined_scales_mean_the_same_up_to_the_payload_of_nan() {
    let with_half_scales = FORMATS.iter().filter_map(|format| {
        let records = read(*format, ".hostile.bin")?;
        Some((*format, records))
    });
    let mut n_formats = 0;
    for (format, records) in with_half_scales {
        assert_eq!(records.len(), 64);
        check(format, &records);
        n_formats += 1;
    }
    // All block formats but MXFP4, whose factor is a power of two, and Q8_K, whose scale is single.
    assert_eq!(n_formats + 2, FORMATS.iter().filter(|format| format.block_len() > 1).count());
}
