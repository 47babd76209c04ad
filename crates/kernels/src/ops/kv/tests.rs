//! Stored keys and values are found in their places, rounded as the chapter says.

use half::{bf16, f16};

use super::*;
use crate::simd::{fp8_from_f32, fp8_to_f32};
use crate::testing::{Random, bits, hostile_floats, row_cpus};

fn shape(block_size: usize, head_dim: usize, dtype: KvDtype) -> KvShape {
    KvShape {
        n_layers: 2,
        n_blocks: 7,
        block_size,
        n_kv_heads: 3,
        key_dim: head_dim,
        value_dim: head_dim,
        values_in_keys: false,
        dtype,
        gap: 0,
    }
}

/// The same with keys alone, the values being their beginnings.
fn latent(block_size: usize, [key_dim, value_dim]: [usize; 2], dtype: KvDtype) -> KvShape {
    KvShape { value_dim, values_in_keys: true, ..shape(block_size, key_dim, dtype) }
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
    let (tokens, dim) = (s.block_size.next_multiple_of(16), s.value_dim.next_multiple_of(16));
    let (keys, values) = (tokens * s.key_dim * size, s.block_size * dim * size);
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
    let key = head * keys + ((place / 16 * s.key_dim + i) * 16 + place % 16) * size;
    let value = head * values + (place * dim + i) * size;
    (
        widen(s.dtype, &all_keys[key..][..size]) * scale(head),
        widen(s.dtype, &all_values[value..][..size]) * scale(s.n_kv_heads + head),
    )
}

/// The stored form of a head, in the plainest code.
pub(crate) fn rounded(dtype: KvDtype, head: &[f32]) -> Vec<f32> {
    let largest = head.iter().fold(0.0_f32, |a, x| if x.is_nan() { *x } else { a.max(x.abs()) });
    let round = |&x: &f32| match dtype {
        KvDtype::F32 => x,
        KvDtype::Bf16 if x.abs() < 2_f32.powi(-50) => 0.0,
        KvDtype::Bf16 => bf16::from_f32(x).to_f32(),
        KvDtype::F16 => f16::from_f32(x).to_f32(),
        KvDtype::Fp8 => fp8_to_f32(fp8_from_f32(x)),
        KvDtype::Int8 if head.iter().any(|x| !x.is_finite()) => f32::NAN,
        KvDtype::Int8 if largest < 127.0 * 2_f32.powi(-50) => 0.0,
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
            for cpu in row_cpus() {
                let mut kv = KvCache::new(shape);
                cpu.store_kv(&mut kv, 1, &StoreKv { k, v: Some(v), slots: &slots });
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

/// A token that moved is in every byte what it would be had it been stored there, and nothing else
/// has changed: also where keys and values have different widths, or where values are in the keys.
#[test]
fn a_token_that_moves_is_as_if_it_had_been_stored_there() {
    let mut random = Random::new(41);
    let cpu = &row_cpus()[0];
    for dtype in KvDtype::ALL {
        let shapes = [
            shape(16, 8, dtype),
            shape(5, 24, dtype),
            shape(32, 16, dtype),
            KvShape { value_dim: 20, ..shape(5, 40, dtype) },
            KvShape { value_dim: 33, ..shape(16, 12, dtype) },
            latent(16, [24, 16], dtype),
            latent(5, [20, 7], dtype),
            latent(32, [9, 9], dtype),
        ];
        for shape in shapes {
            let data = random.normals(3 * (shape.key_dim + shape.value_dim) + 9);
            let store = |kv: &mut KvCache, slots: &[u32]| {
                for (layer, offset) in [(0, 0), (1, 9)] {
                    let k = StridedRows { data: &data, stride: 0, offset };
                    let offset = 3 * shape.key_dim + 9 - offset;
                    let v = StridedRows { data: &data, stride: 0, offset };
                    let v = (!shape.values_in_keys).then_some(v);
                    cpu.store_kv(kv, layer, &StoreKv { k, v, slots });
                }
            };
            let size = shape.block_size as u32;
            let last = 7 * size - 1;
            for (src, dst) in [(3, 1), (last, 2), (size, 0), (size + 1, 2 * size - 1), (2, 2)] {
                let (mut moved, mut stored) = (KvCache::new(shape), KvCache::new(shape));
                store(&mut moved, &[src]);
                for layer in 0..2 {
                    moved.copy_slot(layer, src, dst);
                }
                store(&mut stored, &[src, dst]);
                assert!(moved.bytes() == stored.bytes(), "{shape:?}, {src} to {dst}");
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
            for cpu in row_cpus() {
                let mut kv = KvCache::new(shape);
                cpu.store_kv(&mut kv, 0, &StoreKv { k: rows, v: Some(rows), slots: &[33] });
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
        let cpu = &row_cpus()[0];
        let data = random.normals(28 * 24);
        let rows = StridedRows::dense(&data, 24);
        let slots: Vec<u32> = (0..28).collect();
        for layer in 0..2 {
            cpu.store_kv(&mut kv, layer, &StoreKv { k: rows, v: Some(rows), slots: &slots });
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
fn a_cache_of_latents_holds_their_keys_and_nothing_else() {
    for (dtype, bytes_per_token) in [
        (KvDtype::F32, 4 * 576),
        (KvDtype::Bf16, 2 * 576),
        (KvDtype::F16, 2 * 576),
        (KvDtype::Fp8, 576),
        (KvDtype::Int8, 576 + 4),
    ] {
        let shape = KvShape { n_kv_heads: 1, ..latent(16, [576, 512], dtype) };
        assert_eq!(shape.bytes_per_block(), 2 * 16 * bytes_per_token, "{dtype}");
        for shape in [shape, latent(5, [20, 7], dtype), latent(1, [1, 1], dtype)] {
            let mut kv = KvCache::new(shape);
            assert_eq!(kv.n_bytes(), 7 * shape.bytes_per_block(), "{shape:?}");
            let width = 3 * shape.key_dim;
            let data = Random::new(43).normals(width);
            let k = StridedRows::dense(&data, width);
            let slot = 6 * shape.block_size as u32;
            row_cpus()[0].store_kv(&mut kv, 1, &StoreKv { k, v: None, slots: &[slot] });
            // Each key is found where keys lie, and the last block of the last layer ends with
            // them.
            let group = shape.key_group(6, shape.n_kv_heads - 1, 0);
            let n_elements = 7 * shape.block_elements();
            assert!(group.end <= n_elements && n_elements * dtype.n_bytes() * 2 == kv.n_bytes());
            for head in 0..shape.n_kv_heads {
                let expected = rounded(dtype, &data[head * shape.key_dim..][..shape.key_dim]);
                for (i, expected) in expected.into_iter().enumerate() {
                    let at =
                        (n_elements + shape.key_group(6, head, 0).start + i * 16) * dtype.n_bytes();
                    let stored = widen(dtype, &kv.bytes()[at..][..dtype.n_bytes()]);
                    let scales = shape.value_scales(6, head, 0..1);
                    let scale = match dtype {
                        KvDtype::Int8 => {
                            widen(KvDtype::F32, &kv.bytes()[n_elements + scales.start..][..4])
                        }
                        _ => 1.0,
                    };
                    assert_eq!(stored * scale, expected, "{shape:?} head {head} {i}");
                }
            }
        }
    }
}

#[test]
#[should_panic(expected = "invariant: values are stored or in the keys")]
fn values_for_a_cache_that_has_them_in_its_keys_are_a_broken_invariant() {
    let mut kv = KvCache::new(latent(4, [8, 8], KvDtype::F32));
    let rows = StridedRows::dense(&[0.0; 24], 24);
    let input = StoreKv { k: rows, v: Some(rows), slots: &[0] };
    row_cpus()[0].store_kv(&mut kv, 0, &input);
}

#[test]
#[should_panic(expected = "invariant: values of 9 are within keys of 8")]
fn values_longer_than_the_keys_that_hold_them_are_a_broken_invariant() {
    KvCache::new(latent(4, [8, 9], KvDtype::F32));
}

#[test]
#[should_panic(expected = "invariant: slot 28 of 28")]
fn a_slot_that_does_not_exist_is_a_broken_invariant() {
    let mut kv = KvCache::new(shape(4, 8, KvDtype::F32));
    let rows = StridedRows::dense(&[0.0; 24], 24);
    row_cpus()[0].store_kv(&mut kv, 0, &StoreKv { k: rows, v: Some(rows), slots: &[28] });
}

#[test]
#[should_panic(expected = "invariant: copy to block 7 of 7")]
fn a_block_that_does_not_exist_is_a_broken_invariant() {
    KvCache::new(shape(4, 8, KvDtype::F32)).copy_block(0, 7);
}

#[test]
#[should_panic(expected = "invariant: a KV block fits in the address space")]
fn a_shape_whose_size_would_wrap_around_is_refused() {
    // 2^64 elements: unchecked arithmetic would take them for none.
    KvCache::new(shape(16, 1 << 60, KvDtype::F32));
}

/// Two layers in the blocks of a wider one, the second of which is overwritten last: each holds, moves and
/// gives back what it does in a cache of its own.
#[test]
fn narrower_layers_that_share_blocks_are_as_in_caches_of_their_own() {
    let mut random = Random::new(47);
    let cpu = &row_cpus()[0];
    for dtype in KvDtype::ALL {
        let own = KvShape { n_layers: 1, n_kv_heads: 1, ..shape(16, 24, dtype) };
        // Room for both, and some left over where heads have scales.
        let n = 2 * own.block_elements();
        let wide = KvShape { key_dim: 48, value_dim: 48, ..own };
        let wide = KvShape { n_layers: 2, gap: n - n.min(wide.block_elements()), ..wide };
        let mut shared = KvCache::new(wide);
        let part = |nth| {
            let part = KvPart { nth, n_kv_heads: 1, key_dim: 24, value_dim: 24 };
            KvLayer { layer: 1, part: Some(part) }
        };
        let slots: Vec<u32> = (0..20).map(|i| 5 * 16 - i).collect();
        let width = 24;
        let mut alone: Vec<KvCache> = Vec::new();
        for nth in 0..2 {
            let data = random.normals(20 * width);
            let rows = StridedRows::dense(&data, width);
            let store = StoreKv { k: rows, v: Some(rows), slots: &slots };
            alone.push(KvCache::new(own));
            cpu.store_kv(&mut alone[nth], 0, &store);
            cpu.store_kv(&mut shared, part(nth), &store);
            alone[nth].copy_slot(0, 80, 3);
            shared.copy_slot(part(nth), 80, 3);
        }
        let mut bytes = vec![0; wide.bytes_per_block()];
        for block in 0..7 {
            shared.read_block(block, &mut bytes);
            let (first, second) = bytes.split_at(bytes.len() / 2);
            assert!(first.iter().all(|byte| *byte == 0), "{dtype}: a layer that is not stored");
            for (nth, cache) in alone.iter().enumerate() {
                let mut expected = vec![0; own.bytes_per_block()];
                cache.read_block(block, &mut expected);
                let found = &second[nth * expected.len()..][..expected.len()];
                assert!(found == expected, "{dtype}: block {block} of layer {nth}");
            }
        }
        let q = random.normals(24);
        let sequence = crate::AttentionSeq {
            rows: 0..1,
            first_position: 19,
            block_table: &[4, 3],
            tree: None,
        };
        let input = crate::AttentionInput {
            q: StridedRows::dense(&q, 24),
            n_heads: 1,
            sequences: &[sequence],
            scale: 0.2,
            window: None,
            ahead: 0,
            segment: None,
            softcap: None,
            slopes: None,
            bias: None,
            sinks: None,
        };
        for (nth, cache) in alone.iter().enumerate() {
            let (mut expected, mut found) = ([0.0; 24], [0.0; 24]);
            cpu.paged_attention(cache, 0, &input, &mut expected);
            cpu.paged_attention(&shared, part(nth), &input, &mut found);
            assert!(found == expected && found[0] != 0.0, "{dtype}: attention of layer {nth}");
        }
    }
}
