//! How good the quantizers are, and what they do with rows that are not like weights.

use pelton_quant::{FORMATS, WeightFormat, for_dtype};
use pelton_tensor::DType;

fn round_trip(format: &dyn WeightFormat, row: &[f32]) -> Vec<f32> {
    let mut blocks = vec![0xAA; row.len() / format.block_len() * format.block_bytes()];
    format.quantize(row, &mut blocks);
    let mut again = vec![0x55; blocks.len()];
    format.quantize(row, &mut again);
    assert_eq!(blocks, again, "{}: not a function of the weights alone", format.name());
    let mut out = vec![f32::NAN; row.len()];
    format.dequantize(&blocks, &mut out);
    out
}

/// Sums of twelve uniform numbers: close enough to a normal distribution of variance one.
fn gaussian(n: usize) -> Vec<f32> {
    let mut state = 0x9E37_79B9_7F4A_7C15_u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1 << 24) as f32 - 0.5
    };
    (0..n).map(|_| (0..12).map(|_| next()).sum()).collect()
}

fn rmse(a: &[f32], b: &[f32]) -> f64 {
    let squares = a.iter().zip(b).map(|(a, b)| f64::from(a - b).powi(2));
    (squares.sum::<f64>() / a.len() as f64).sqrt()
}

/// Rounding without a search, and with parameters that no storage rounds.
enum Plain {
    /// Integers up to the last one, zero at the smallest weight or above it.
    Affine(f32),
    /// Values of which the first stands for the weight of largest magnitude.
    Signed(&'static [f32]),
    /// Values whose scale is the power of two that puts the largest magnitude between 8 and 16.
    Power(&'static [f32]),
}

impl Plain {
    fn round(&self, group: &[f32]) -> Vec<f32> {
        let extreme =
            group.iter().fold(0.0_f32, |max, &w| if w.abs() > max.abs() { w } else { max });
        let nearest = |values: &[f32], scale: f32| {
            let distance = |w: f32, v: f32| (w - v * scale).abs();
            let best = |&w: &f32| {
                values.iter().copied().min_by(|&a, &b| distance(w, a).total_cmp(&distance(w, b)))
            };
            group.iter().map(|w| best(w).expect("values") * scale).collect()
        };
        match self {
            Plain::Affine(last) => {
                let low = group.iter().copied().fold(0.0, f32::min);
                let high = group.iter().copied().fold(f32::MIN, f32::max);
                let step = (high - low) / last;
                group.iter().map(|w| ((w - low) / step).round() * step + low).collect()
            }
            Plain::Signed(values) => nearest(values, extreme / values[0]),
            Plain::Power(values) => nearest(values, (extreme.abs().log2().floor() - 3.0).exp2()),
        }
    }
}

const EIGHT: [f32; 8] = [-4.0, -3.0, -2.0, -1.0, 0.0, 1.0, 2.0, 3.0];
const SIXTY_FOUR: [f32; 64] = {
    let mut values = [0.0; 64];
    let mut i = 0;
    while i < 64 {
        values[i] = i as f32 - 32.0;
        i += 1;
    }
    values
};
const CURVED: [f32; 16] = [
    -127.0, -104.0, -83.0, -65.0, -49.0, -35.0, -22.0, -10.0, 1.0, 13.0, 25.0, 38.0, 53.0, 69.0,
    89.0, 113.0,
];
const FLOATS: [f32; 15] =
    [-12.0, -8.0, -6.0, -4.0, -3.0, -2.0, -1.0, 0.0, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0];

#[test]
fn searching_for_scales_beats_plain_rounding_on_gaussian_rows() {
    let row = gaussian(256 * 64);
    // Largest error, as a part of that of plain rounding.
    let cases = [
        (DType::Q6K, 16, Plain::Signed(&SIXTY_FOUR), 0.94),
        (DType::Q5K, 32, Plain::Affine(31.0), 0.94),
        (DType::Q4K, 32, Plain::Affine(15.0), 0.92),
        (DType::Iq4Nl, 32, Plain::Signed(&CURVED), 0.95),
        (DType::Iq4Xs, 32, Plain::Signed(&CURVED), 0.96),
        (DType::Mxfp4, 32, Plain::Power(&FLOATS), 0.98),
        (DType::Q3K, 16, Plain::Signed(&EIGHT), 0.95),
        (DType::Q2K, 16, Plain::Affine(3.0), 0.84),
    ];
    for (dtype, group_len, plain, part) in cases {
        let format = for_dtype(dtype).expect("registered");
        let ours = rmse(&row, &round_trip(format, &row));
        let plain: Vec<f32> = row.chunks(group_len).flat_map(|group| plain.round(group)).collect();
        let plain = rmse(&row, &plain);
        assert!(ours <= part * plain, "{dtype}: {ours} against {plain}");
    }
}

#[test]
fn the_error_on_gaussian_rows_is_what_the_bits_allow() {
    // A part of the standard deviation. The reference's quantizers have, where they differ:
    // Q6_K 0.0178, Q5_K 0.0385, Q4_K 0.0721, Q3_K 0.152, Q2_K 0.303, MXFP4 0.115.
    let row = gaussian(256 * 64);
    let cases = [
        (DType::Q8_0, 0.0055),
        (DType::Q6K, 0.0178),
        (DType::Q5K, 0.0347),
        (DType::Q5_1, 0.0385),
        (DType::Q5_0, 0.0435),
        (DType::Q4K, 0.0704),
        (DType::Iq4Nl, 0.0760),
        (DType::Iq4Xs, 0.0765),
        (DType::Q4_1, 0.0790),
        (DType::Q4_0, 0.0870),
        (DType::Mxfp4, 0.1130),
        (DType::Q3K, 0.1480),
        (DType::Q2K, 0.2665),
        (DType::Iq3S, 0.1490),
        (DType::Iq3Xxs, 0.1950),
        (DType::Iq2S, 0.2690),
        (DType::Iq2Xs, 0.3160),
        (DType::Iq2Xxs, 0.3690),
        (DType::Iq1M, 0.4415),
        (DType::Iq1S, 0.4930),
        (DType::Q8K, 0.0068),
    ];
    for (dtype, most) in cases {
        let format = for_dtype(dtype).expect("registered");
        let error = rmse(&row, &round_trip(format, &row)) / rmse(&row, &vec![0.0; row.len()]);
        assert!(error <= most && error > 0.9 * most, "{dtype}: {error}");
    }
}

#[test]
fn zeros_stay_zero() {
    for format in FORMATS {
        for zero in [0.0_f32, -0.0] {
            assert!(
                round_trip(*format, &[zero; 512]).iter().all(|w| *w == 0.0),
                "{}",
                format.name()
            );
        }
    }
}

#[test]
fn constant_rows_stay_within_the_bound() {
    for format in FORMATS {
        for constant in [1.0_f32, -1.0, 0.37, -0.37, 1000.0, -1000.0] {
            let bound = format.relative_error() * constant.abs();
            for got in round_trip(*format, &[constant; 256]) {
                assert!((got - constant).abs() <= bound, "{}: {constant} {got}", format.name());
            }
        }
    }
}

/// Rows that tempt a search to leave single weights far behind.
fn lopsided() -> Vec<Vec<f32>> {
    let spread = gaussian(256);
    let with = |edit: &dyn Fn(usize, f32) -> f32| {
        spread.iter().enumerate().map(|(i, &w)| edit(i, w)).collect::<Vec<f32>>()
    };
    vec![
        with(&|i, w| if i % 32 == 7 { 100.0 } else { w }),
        with(&|i, w| if i % 32 == 7 { -100.0 } else { w }),
        with(&|i, w| if i == 77 { 1e4 } else { w }),
        with(&|i, w| {
            if i % 16 == 3 {
                10.0
            } else if i % 16 == 4 {
                -9.0
            } else {
                w * 1e-3
            }
        }),
        with(&|_, w| 5.0 + w * 0.01),
        with(&|_, w| -5.0 + w * 0.01),
        with(&|_, w| 1.0 + w * 1e-7),
        with(&|i, w| w * 10.0_f32.powi(i as i32 / 32 - 4)),
        with(&|i, _| if i % 2 == 0 { 1.0 } else { -1.0 }),
        with(&|i, _| i as f32 - 128.0),
        with(&|_, w| w.powi(5)),
        with(&|_, w| w.abs()),
        with(&|_, w| -w.abs()),
    ]
}

#[test]
fn no_weight_of_a_lopsided_row_is_left_behind() {
    for format in FORMATS {
        for (case, row) in lopsided().iter().enumerate() {
            let got = round_trip(*format, row);
            let n = format.block_len();
            for (row, got) in row.chunks(n).zip(got.chunks(n)) {
                let amax = row.iter().fold(2.0_f32.powi(-7), |amax, w| amax.max(w.abs()));
                for (w, g) in row.iter().zip(got) {
                    let error = (w - g).abs() / amax;
                    let name = format.name();
                    assert!(error <= format.relative_error(), "{name}, {case}: {w} became {g}");
                }
            }
        }
    }
}

#[test]
fn any_finite_magnitude_comes_back_finite() {
    // Formats that store the scale in half precision as every writer does overflow to infinity.
    let overflow = [DType::F16, DType::Q8_0, DType::Q4_0];
    for format in FORMATS.iter().filter(|format| !overflow.contains(&format.dtype())) {
        for exponent in [-149, -140, -126, -60, -30, -24, -16, -8, 0, 8, 16, 24, 40, 60, 100, 126] {
            let row: Vec<f32> =
                gaussian(256).iter().map(|w| (w / 4.0) * 2.0_f32.powi(exponent)).collect();
            let amax = row.iter().fold(0.0_f32, |amax, w| amax.max(w.abs()));
            for (w, g) in row.iter().zip(round_trip(*format, &row)) {
                let name = format.name();
                assert!(g.is_finite(), "{name}, 2^{exponent}: {w} became {g}");
                assert!(g.abs() <= 2.0 * amax + 1e-6, "{name}, 2^{exponent}: {w} became {g}");
            }
        }
    }
}

#[test]
fn the_importance_of_inputs_moves_errors_to_where_they_do_not_matter() {
    let row = gaussian(4096);
    // A few inputs matter much more.
    let importance: Vec<f32> =
        (0..row.len()).map(|i| if i % 9 == 4 { 50.0 } else { 0.5 }).collect();
    let error = |out: &[f32]| -> f64 {
        let errors = row.iter().zip(out).zip(&importance);
        errors.map(|((a, b), u)| f64::from(*u) * f64::from(a - b).powi(2)).sum()
    };
    let mut n_weighted = 0;
    for format in FORMATS {
        let Some(weighted) = format.weighted() else { continue };
        n_weighted += 1;
        let mut blocks = vec![0; row.len() / format.block_len() * format.block_bytes()];
        let mut plain = blocks.clone();
        format.quantize(&row, &mut plain);
        let [mut equal, mut larger] = [blocks.clone(), blocks.clone()];
        weighted(&row, &vec![1.0; row.len()], &mut equal);
        weighted(&row, &vec![4.0; row.len()], &mut larger);
        assert!(
            equal == larger,
            "{}: a common factor of all inputs changes nothing",
            format.name()
        );
        weighted(&row, &importance, &mut blocks);
        let read = |blocks: &[u8]| {
            let mut out = vec![0.0; row.len()];
            format.dequantize(blocks, &mut out);
            out
        };
        let ratio = error(&read(&blocks)) / error(&read(&plain));
        println!("{}: {ratio:.3}", format.name());
        assert!(ratio < 0.95, "{}: {ratio:.3}", format.name());
        // Inputs that do not matter at all.
        weighted(&row, &vec![1e-6; row.len()], &mut blocks);
        assert!(read(&blocks).iter().all(|w| w.is_finite()));
    }
    assert_eq!(n_weighted, 7);
}
