//! Requirements on every weight format; a line in the registry enrols a format here.

use std::path::Path;

use pelton_kernels::{Cpu, Kernels, WeightLayout};
use pelton_quant::{
    Compute, FORMATS, QuantError, WeightFormat, dequantize_tensor, fitting, for_dtype, for_name,
    pack, pack_rounded, packed_size, quantize_tensor, supported_names,
};
use pelton_tensor::{DType, TensorView};
use proptest::prelude::*;

fn quantize(format: &dyn WeightFormat, row: &[f32]) -> Vec<u8> {
    let mut out = vec![0xAA; row.len() / format.block_len() * format.block_bytes()];
    format.quantize(row, &mut out);
    out
}

fn dequantize(format: &dyn WeightFormat, blocks: &[u8]) -> Vec<f32> {
    let mut out = vec![f32::NAN; blocks.len() / format.block_bytes() * format.block_len()];
    format.dequantize(blocks, &mut out);
    out
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|x| x.to_bits()).collect()
}

fn cpu() -> Cpu {
    Cpu::with(Kernels::by_name("scalar").expect("always there"), 2)
}

/// Weights of both signs, with a scale that changes from block to block.
fn weights(n: usize) -> Vec<f32> {
    let mut state = 0x9E37_79B9_7F4A_7C15_u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1 << 24) as f32 - 0.5
    };
    (0..n).map(|i| next() * (1 << (i / 32 % 5)) as f32).collect()
}

#[test]
fn every_format_is_registered_once_under_its_type() {
    for format in FORMATS {
        let found = for_dtype(format.dtype()).expect("registered");
        assert_eq!(found.name(), format.name());
        assert_eq!(FORMATS.iter().filter(|other| other.dtype() == format.dtype()).count(), 1);
        assert!(supported_names().contains(format.name()));
        let is_free = format.layout() == WeightLayout::F32 || format.rewrite().is_some();
        assert!(
            is_free || format.layout().row_bytes(format.block_len()) == format.block_bytes(),
            "{}: the kernel layout must hold the format's own bytes",
            format.name()
        );
    }
    assert!(for_dtype(DType::Q8_1).is_none());
}

#[test]
fn rows_that_are_no_whole_blocks_fall_back_to_eight_bits_and_then_to_floats() {
    let stored_as = |name, row_len| fitting(for_name(name).expect(name), row_len).name();
    for (name, row_len, expected) in [
        ("q4_k", 2048, "Q4_K"),
        ("q4_k", 896, "Q8_0"),
        ("q4_k", 80, "F32"),
        ("Q4_0", 896, "Q4_0"),
        ("Q4_0", 80, "F32"),
        ("bf16", 3, "BF16"),
    ] {
        assert_eq!(stored_as(name, row_len), expected, "{name}, {row_len}");
    }
    assert!(for_name("q9_0").is_none());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn the_error_of_every_weight_is_within_the_stated_bound(
        row in prop::collection::vec(-100.0_f32..100.0, 256),
    ) {
        for format in FORMATS {
            let got = dequantize(*format, &quantize(*format, &row));
            let block_len = format.block_len();
            for (weights, got) in row.chunks(block_len).zip(got.chunks(block_len)) {
                let amax = weights.iter().fold(0.0_f32, |amax, w| amax.max(w.abs()));
                // Below this the spacing of half precision is constant.
                let bound = format.relative_error() * amax.max(2.0_f32.powi(-7));
                for (w, g) in weights.iter().zip(got) {
                    prop_assert!((w - g).abs() <= bound, "{}: {w} became {g}", format.name());
                }
            }
        }
    }
}

#[test]
fn a_packed_row_unpacks_to_the_bits_that_the_format_specifies() {
    let cpu = cpu();
    let [n, k] = [37, 768]; // A last panel that is not full.
    for format in FORMATS {
        let data = quantize(*format, &weights(n * k));
        let expected = dequantize(*format, &data);
        let shape = [n, k];
        let view = TensorView { name: "w", dtype: format.dtype(), shape: &shape, data: &data };
        for compute in [Compute::Auto, Compute::F32] {
            let packed = pack(&cpu, &[view], compute).expect("a sound matrix");
            assert_eq!([packed.n(), packed.k()], shape);
            let mut row = vec![0.0; k];
            for (row_idx, expected) in expected.chunks(k).enumerate() {
                packed.unpack_row_f32(row_idx, &mut row);
                assert_eq!(bits(&row), bits(expected), "{}, row {row_idx}", format.name());
            }
        }
        assert_eq!(bits(&dequantize_tensor(&view).expect("sound")), bits(&expected));
    }
}

#[test]
fn any_stored_bytes_have_one_meaning() {
    // Scales may be infinite or not a number in a hostile file; packing must agree even there.
    let cpu = cpu();
    for format in FORMATS {
        let [n, k] = [16, 512];
        let n_bytes = n * k / format.block_len() * format.block_bytes();
        let data: Vec<u8> = (0..n_bytes).map(|i| (i * 37 % 251) as u8 ^ 0x80).collect();
        let view = TensorView { name: "w", dtype: format.dtype(), shape: &[n, k], data: &data };
        let packed = pack(&cpu, &[view], Compute::Auto).expect("a sound matrix");
        let mut row = vec![0.0; k];
        for (row_idx, expected) in dequantize(*format, &data).chunks(k).enumerate() {
            packed.unpack_row_f32(row_idx, &mut row);
            assert_eq!(bits(&row), bits(expected), "{}, row {row_idx}", format.name());
        }
    }
}

#[test]
fn stacked_parts_are_one_matrix() {
    let cpu = cpu();
    let k = 256;
    for format in FORMATS {
        let data = quantize(*format, &weights(30 * k));
        let row_bytes = data.len() / 30;
        let view = |name, shape, rows: std::ops::Range<usize>| TensorView {
            name,
            dtype: format.dtype(),
            shape,
            data: &data[rows.start * row_bytes..rows.end * row_bytes],
        };
        let parts = [
            view("q", &[20, 256], 0..20),
            view("none", &[0, 256], 20..20),
            view("k", &[3, 256], 20..23),
            view("v", &[7, 256], 23..30),
        ];
        let stacked = pack(&cpu, &parts, Compute::Auto).expect("stacked");
        let whole = pack(&cpu, &[view("qkv", &[30, 256], 0..30)], Compute::Auto).expect("whole");
        let (mut a, mut b) = (vec![0.0; k], vec![0.0; k]);
        for row in 0..30 {
            stacked.unpack_row_f32(row, &mut a);
            whole.unpack_row_f32(row, &mut b);
            assert_eq!(bits(&a), bits(&b), "{}, row {row}", format.name());
        }
        assert_eq!((stacked.n(), stacked.n_bytes()), (30, whole.n_bytes()));
    }
}

#[test]
fn rows_rounded_while_they_are_packed_have_the_bytes_of_rows_rounded_before() {
    let cpu = cpu();
    let [n, k] = [37, 512];
    for from in [DType::F32, DType::F16, DType::Bf16] {
        let data = quantize(for_dtype(from).expect("registered"), &weights(n * k));
        let (first, rest) = data.split_at(data.len() / n * 20);
        let view = |name, shape, data| TensorView { name, dtype: from, shape, data };
        let parts = [view("a", &[20, 512], first), view("b", &[17, 512], rest)];
        for to in FORMATS {
            let before = parts.map(|part| quantize_tensor(&part, *to).expect("sound"));
            let rounded: Vec<_> = (parts.iter().zip(&before))
                .map(|(part, data)| TensorView { dtype: to.dtype(), data, ..*part })
                .collect();
            for compute in [Compute::Auto, Compute::F32] {
                let expected = pack(&cpu, &rounded, compute).expect("sound");
                let mut n_done = 0;
                let done = &mut |rows: std::ops::Range<usize>| n_done += rows.len();
                let packed = pack_rounded(&cpu, &parts, to.dtype(), compute, done);
                let packed = packed.expect("sound");
                let bytes = [&packed, &expected].map(|matrix| matrix.storage_bytes());
                assert!(bytes[0] == bytes[1], "{from} to {} {compute:?}", to.name());
                assert_eq!((packed.layout(), n_done), (expected.layout(), n));
            }
        }
    }
}

#[test]
fn the_bytes_foretold_are_those_that_packing_takes() {
    let cpu = cpu();
    for format in FORMATS {
        for (n, k) in [(32, 512), (33, 256), (1, 768), (0, 256)] {
            let data = quantize(*format, &weights(n * k));
            for compute in [Compute::Auto, Compute::F32] {
                let (dtype, shape) = (format.dtype(), &[n, k]);
                let view = TensorView { name: "w", dtype, shape, data: &data };
                let packed = pack(&cpu, &[view], compute).expect("a sound matrix");
                let taken = (packed.layout(), packed.n_bytes() as u64);
                let told = packed_size(dtype, [n, k], compute);
                assert_eq!(told, Some(taken), "{} [{n}, {k}] {compute:?}", format.name());
            }
        }
        let is_ragged = format.block_len() > 1;
        let told = packed_size(format.dtype(), [4, 33], Compute::Auto);
        assert_eq!(told.is_none(), is_ragged, "{}: rows of 33", format.name());
    }
    assert_eq!(packed_size(DType::I32, [4, 32], Compute::Auto), None);
}

/// Formats without a search for scales: every writer of GGUF files stores the same bits.
const PLAINLY_ROUNDED: [DType; 9] = [
    DType::F16,
    DType::Bf16,
    DType::Q8_0,
    DType::Q5_1,
    DType::Q5_0,
    DType::Q4_1,
    DType::Q4_0,
    DType::Tq2_0,
    DType::Tq1_0,
];

#[test]
fn the_bits_equal_those_of_the_reference_quantizers() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
    let read = |name: &str| std::fs::read(folder.join(name)).expect(name);
    let f32_format = for_dtype(DType::F32).expect("registered");
    let weights = dequantize(f32_format, &read("weights.f32"));
    assert_eq!(weights.len(), 32 * 32);
    for dtype in PLAINLY_ROUNDED {
        let format = &for_dtype(dtype).expect("registered");
        let name = format.name();
        let stored = read(&format!("{name}.bin"));
        let got = quantize(*format, &weights);
        for (idx, (got, expected)) in
            got.chunks(format.block_bytes()).zip(stored.chunks(format.block_bytes())).enumerate()
        {
            assert_eq!(got, expected, "{name}: block {idx}");
        }
        assert_eq!(got.len(), stored.len(), "{name}");
        let expected = dequantize(f32_format, &read(&format!("{name}.f32")));
        assert_eq!(bits(&dequantize(*format, &stored)), bits(&expected), "{name}");
    }
}

#[test]
fn requantizing_to_the_same_format_changes_nothing() {
    for format in FORMATS {
        let data = quantize(*format, &weights(512));
        let view = TensorView { name: "w", dtype: format.dtype(), shape: &[2, 256], data: &data };
        assert_eq!(quantize_tensor(&view, *format).expect("sound"), data, "{}", format.name());
        for to in FORMATS {
            let bytes = quantize_tensor(&view, *to).expect("sound");
            assert_eq!(Some(bytes.len()), to.dtype().bytes_for(512));
        }
    }
}

#[test]
fn tensors_that_cannot_be_weights_are_refused_by_name() {
    let cpu = cpu();
    let data = [0_u8; 4096];
    let view = |name, dtype: DType, shape: &'static [usize]| TensorView {
        name,
        dtype,
        shape,
        data: &data[..dtype.bytes_for(shape.iter().product()).unwrap_or(0)],
    };
    let a = view("a", DType::Q8_0, &[2, 64]);
    let cases: [(&str, Vec<TensorView<'_>>, &str); 7] = [
        (
            "no format",
            vec![view("x", DType::Q8_1, &[1, 256])],
            "`x`: weights of type Q8_1 are not supported; convert the checkpoint to one of F32, F16, BF16, Q8_0, Q6_K",
        ),
        ("integers", vec![view("x", DType::I32, &[1, 4])], "`x`: weights of type I32"),
        ("a vector", vec![view("x", DType::F32, &[4])], "`x`: expected a matrix, got shape [4]"),
        (
            "broken rows",
            vec![view("x", DType::Q8_0, &[2, 16])],
            "`x`: expected rows in whole blocks of 32",
        ),
        (
            "broken rows of a K format",
            vec![view("x", DType::Q4K, &[2, 896])],
            "`x`: expected rows in whole blocks of 256 for Q4_K, got shape [2, 896]",
        ),
        ("two types", vec![a, view("b", DType::Q4_0, &[2, 64])], "`b`: expected Q8_0 like `a`"),
        (
            "two widths",
            vec![a, view("b", DType::Q8_0, &[2, 32])],
            "`b`: expected rows of 64 like `a`",
        ),
    ];
    for (case, parts, expected) in cases {
        let err: QuantError = pack(&cpu, &parts, Compute::Auto).expect_err(case);
        assert!(err.to_string().contains(expected), "{case}: {err}");
    }
}
