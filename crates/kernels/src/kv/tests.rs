//! What is stored is found, in its place and rounded as the chapter says.

use half::{bf16, f16};

use super::*;
use crate::rows::lanes::{fp8_from_f32, fp8_to_f32};
use crate::rows::testing::{Random, all_cpus, bits, hostile_floats};

fn shape(block_size: usize, head_dim: usize, dtype: KvDtype) -> KvShape {
    KvShape { n_layers: 2, n_blocks: 7, block_size, n_kv_heads: 3, head_dim, dtype }
}

/// The stored bytes of one type, widened.
fn widen(dtype: KvDtype, bytes: &[u8]) -> f32 {
    match dtype {
        KvDtype::F32 => f32::from_ne_bytes(bytes.try_into().expect("four")),
        KvDtype::Bf16 => bf16::from_ne_bytes(bytes.try_into().expect("two")).to_f32(),
        KvDtype::F16 => f16::from_ne_bytes(bytes.try_into().expect("two")).to_f32(),
        KvDtype::Fp8 => fp8_to_f32(bytes[0]),
        KvDtype::Int8 => f32::from(bytes[0] as i8),
    }
}

/// Reads one key element and one value element back, by the drawing.
fn read(kv: &KvCache, layer: usize, slot: usize, head: usize, i: usize) -> (f32, f32) {
    let s = *kv.shape();
    let size = s.dtype.n_bytes();
    let (tokens, dim) = (s.block_size.next_multiple_of(16), s.head_dim.next_multiple_of(16));
    let (keys, values) = (tokens * s.head_dim * size, s.block_size * dim * size);
    let scales = if s.dtype == KvDtype::Int8 { tokens * 4 } else { 0 };
    let block_bytes = s.n_kv_heads * (keys + values + 2 * scales);
    let (block, place) = (slot / s.block_size, slot % s.block_size);
    let block = &kv.bytes()[(layer * s.n_blocks + block) * block_bytes..][..block_bytes];
    let (all_keys, rest) = block.split_at(s.n_kv_heads * keys);
    let (all_values, all_scales) = rest.split_at(s.n_kv_heads * values);
    let scale = |nth: usize| match scales {
        0 => 1.0,
        _ => widen(KvDtype::F32, &all_scales[nth * scales + place * 4..][..4]),
    };
    let key = head * keys + ((place / 16 * s.head_dim + i) * 16 + place % 16) * size;
    let value = head * values + (place * dim + i) * size;
    (
        widen(s.dtype, &all_keys[key..][..size]) * scale(head),
        widen(s.dtype, &all_values[value..][..size]) * scale(s.n_kv_heads + head),
    )
}

/// What a head becomes, said as plainly as can be.
pub(crate) fn rounded(dtype: KvDtype, head: &[f32]) -> Vec<f32> {
    let largest = head.iter().fold(0.0_f32, |a, x| if x.is_nan() { *x } else { a.max(x.abs()) });
    let round = |&x: &f32| match dtype {
        KvDtype::F32 => x,
        KvDtype::Bf16 => bf16::from_f32(x).to_f32(),
        KvDtype::F16 => f16::from_f32(x).to_f32(),
        KvDtype::Fp8 => fp8_to_f32(fp8_from_f32(x)),
        KvDtype::Int8 if head.iter().any(|x| !x.is_finite()) => f32::NAN,
        KvDtype::Int8 if largest < 1e-30 => 0.0,
        // An integer has one zero.
        KvDtype::Int8 => ((x * (127.0 / largest)).round_ties_even() + 0.0) * (largest / 127.0),
    };
    head.iter().map(round).collect()
}

#[test]
fn what_is_stored_is_found_in_its_slot_rounded_to_nearest_even() {
    let mut random = Random::new(40);
    for (block_size, head_dim) in [(16, 64), (5, 20), (32, 16), (1, 100)] {
        for dtype in KvDtype::ALL {
            let shape = shape(block_size, head_dim, dtype);
            let width = 3 * head_dim;
            let (m, stride) = (6, 2 * width + 9);
            let data = random.normals(m * stride);
            let k = StridedRows { data: &data, stride, offset: 4 };
            let v = StridedRows { data: &data, stride, offset: 4 + width };
            let mut slots: Vec<u32> = vec![6, 0, 3, 5, 1, 2];
            slots.iter_mut().for_each(|slot| *slot *= block_size as u32);
            for cpu in all_cpus() {
                let mut kv = KvCache::new(shape);
                cpu.store_kv(&mut kv, 1, &StoreKv { k, v, slots: &slots });
                let half = kv.n_bytes() / 2;
                assert!(kv.bytes()[..half].iter().all(|&x| x == 0), "layer 0 is clean");
                for (row, &slot) in slots.iter().enumerate() {
                    for head in 0..3 {
                        let columns = head * head_dim..(head + 1) * head_dim;
                        let keys = rounded(dtype, &k.row(row, width)[columns.clone()]);
                        let values = rounded(dtype, &v.row(row, width)[columns]);
                        for i in 0..head_dim {
                            let got = read(&kv, 1, slot as usize, head, i);
                            assert_eq!(got, (keys[i], values[i]), "{shape:?} row {row} {head} {i}");
                        }
                    }
                }
            }
        }
    }
}

/// A token that moved is in every byte what it would be had it been stored there, and nothing else has
/// changed.
#[test]
fn a_token_that_moves_is_as_if_it_had_been_stored_there() {
    let mut random = Random::new(41);
    let cpu = &all_cpus()[0];
    for (block_size, head_dim) in [(16, 8), (5, 24), (32, 16)] {
        for dtype in KvDtype::ALL {
            let data = random.normals(2 * 3 * head_dim);
            let store = |kv: &mut KvCache, slots: &[u32]| {
                for (layer, offset) in [(0, 0), (1, 3 * head_dim)] {
                    let k = StridedRows { data: &data, stride: 0, offset };
                    let v = StridedRows { data: &data, stride: 0, offset: 3 * head_dim - offset };
                    cpu.store_kv(kv, layer, &StoreKv { k, v, slots });
                }
            };
            let (size, last) = (block_size as u32, 7 * block_size as u32 - 1);
            for (src, dst) in [(3, 1), (last, 2), (size, 0), (size + 1, 2 * size - 1), (2, 2)] {
                let mut moved = KvCache::new(shape(block_size, head_dim, dtype));
                let mut stored = KvCache::new(shape(block_size, head_dim, dtype));
                store(&mut moved, &[src]);
                moved.copy_slot(src, dst);
                store(&mut stored, &[src, dst]);
                assert!(moved.bytes() == stored.bytes(), "{dtype}, {src} to {dst}");
            }
        }
    }
}

#[test]
fn hostile_heads_are_stored_alike_everywhere_and_harm_no_other() {
    let hostile = hostile_floats();
    let mut random = Random::new(42);
    for dtype in KvDtype::ALL {
        let shape = KvShape { n_layers: 1, ..shape(16, 20, dtype) };
        for round in 0..60 {
            let mut data = random.normals(60);
            for x in &mut data[20..40] {
                if random.below(6) == 0 {
                    *x = hostile[random.below(hostile.len())];
                }
            }
            let rows = StridedRows::dense(&data, 60);
            for cpu in all_cpus() {
                let mut kv = KvCache::new(shape);
                cpu.store_kv(&mut kv, 0, &StoreKv { k: rows, v: rows, slots: &[33] });
                for head in 0..3 {
                    let expected = rounded(dtype, &data[20 * head..20 * (head + 1)]);
                    let (keys, values): (Vec<f32>, Vec<f32>) =
                        (0..20).map(|i| read(&kv, 0, 33, head, i)).unzip();
                    let what = format!("{dtype} {} round {round}", cpu.kernels.name);
                    assert_eq!(bits(&keys), bits(&expected), "{what}");
                    assert_eq!(bits(&values), bits(&expected), "{what}");
                }
            }
        }
    }
}

#[test]
fn a_copied_block_is_the_same_in_every_layer_and_its_neighbours_are_not_touched() {
    let mut random = Random::new(41);
    for dtype in [KvDtype::Bf16, KvDtype::Int8] {
        let mut kv = KvCache::new(shape(4, 8, dtype));
        let cpu = &all_cpus()[0];
        let data = random.normals(28 * 24);
        let rows = StridedRows::dense(&data, 24);
        let slots: Vec<u32> = (0..28).collect();
        for layer in 0..2 {
            cpu.store_kv(&mut kv, layer, &StoreKv { k: rows, v: rows, slots: &slots });
        }
        let before = kv.bytes().to_vec();
        kv.copy_block(1, 5);
        let n = kv.shape().bytes_per_block() / 2;
        for (i, got) in kv.bytes().chunks(n).enumerate() {
            let source = if i % 7 == 5 { i - 4 } else { i };
            assert_eq!(got, &before[source * n..(source + 1) * n], "block {i}");
        }
    }
}

#[test]
fn a_block_read_and_written_elsewhere_keeps_its_bits_and_leaves_the_others_theirs() {
    let mut random = Random::new(42);
    for (block_size, head_dim) in [(16, 64), (5, 20), (1, 3)] {
        for dtype in KvDtype::ALL {
            let mut kv = KvCache::new(shape(block_size, head_dim, dtype));
            for byte in kv.buffer_mut() {
                *byte = random.below(256) as u8;
            }
            let before = kv.bytes().to_vec();
            let mut outside = vec![0; kv.shape().bytes_per_block()];
            kv.read_block(2, &mut outside);
            kv.write_block(6, &outside);
            let n = outside.len() / 2;
            for (i, got) in kv.bytes().chunks(n).enumerate() {
                let source = if i % 7 == 6 { i - 4 } else { i };
                assert_eq!(got, &before[source * n..(source + 1) * n], "{dtype}: block {i}");
            }
        }
    }
}

#[test]
#[should_panic(expected = "invariant: block 7 of 7")]
fn a_block_that_does_not_exist_is_not_written() {
    let mut kv = KvCache::new(shape(4, 8, KvDtype::F32));
    let bytes = vec![0; kv.shape().bytes_per_block()];
    kv.write_block(7, &bytes);
}

#[test]
fn a_block_costs_what_the_chapter_says_and_the_cache_is_its_blocks() {
    for (dtype, bytes_per_token_and_head) in [
        (KvDtype::F32, 8 * 64),
        (KvDtype::Bf16, 4 * 64),
        (KvDtype::F16, 4 * 64),
        (KvDtype::Fp8, 2 * 64),
        (KvDtype::Int8, 2 * (64 + 4)),
    ] {
        let whole = shape(16, 64, dtype);
        assert_eq!(whole.bytes_per_block(), 2 * 3 * 16 * bytes_per_token_and_head, "{dtype}");
        for shape in [whole, shape(5, 20, dtype), shape(1, 1, dtype)] {
            let kv = KvCache::new(shape);
            assert_eq!(kv.n_bytes(), 7 * shape.bytes_per_block(), "{shape:?}");
            assert_eq!(kv.bytes().len(), kv.n_bytes(), "{shape:?}");
        }
    }
}

#[test]
#[should_panic(expected = "invariant: slot 28 of 28")]
fn a_slot_that_does_not_exist_is_a_broken_invariant() {
    let mut kv = KvCache::new(shape(4, 8, KvDtype::F32));
    let rows = StridedRows::dense(&[0.0; 24], 24);
    all_cpus()[0].store_kv(&mut kv, 0, &StoreKv { k: rows, v: rows, slots: &[28] });
}

#[test]
#[should_panic(expected = "invariant: copy to block 7 of 7")]
fn a_block_that_does_not_exist_is_a_broken_invariant() {
    KvCache::new(shape(4, 8, KvDtype::F32)).copy_block(0, 7);
}

#[test]
#[should_panic(expected = "invariant: a KV block fits in the address space")]
fn a_shape_whose_size_would_wrap_around_is_refused() {
    // As many elements as there are numbers of 64 bits: none, if nobody looked.
    KvCache::new(shape(16, 1 << 60, KvDtype::F32));
}
