//! Equality of bits: every instruction set, every M, every team, against the scalar kernels.

use pelton_tensor::ActivationGroup;

use super::*;
use crate::ops::activations::Forms;
use crate::{GROUP, Kernels};

/// A small generator, so that failures repeat.
pub(super) struct Rng(pub(super) u32);

impl Rng {
    pub(super) fn next(&mut self) -> u32 {
        self.0 = self.0.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        self.0 >> 8
    }

    fn float(&mut self) -> f32 {
        self.next() as f32 / (1 << 23) as f32 - 1.0
    }
}

/// Where the half-precision numbers of a source block lie.
fn half_offsets(layout: WeightLayout) -> &'static [usize] {
    use WeightLayout::*;
    match layout {
        Q8G32 | Q4G32 | Q5G32 | Q6K | Int4G32 | Int4G64 | Int4G128 | Iq4Nl | Iq4Xs => {
            match layout {
                Q6K => &[208],
                _ => &[0],
            }
        }
        Iq1 | Iq2 | Iq3Xxs | Iq3S => &[0],
        Q4G32Min | Q5G32Min | Q4K | Q5K => &[0, 2],
        Q2K => &[80, 82],
        Q3K => &[108],
        Tq1 => &[52],
        Tq2 => &[64],
        _ => &[],
    }
}

/// Scales of a block of an affine layout, and bytes of one.
struct Affine {
    n_scales: usize,
    number_bytes: usize,
}

fn affine(layout: WeightLayout) -> Option<Affine> {
    use WeightLayout::*;
    let (n_scales, number_bytes) = match layout {
        Affine2G16 | Affine4G16 => (2, 2),
        Affine2G64 | Affine4G32 | Affine4G64 | Affine8G32 => (1, 2),
        Affine4G32Wide | Affine8G32Wide => (1, 4),
        _ => return None,
    };
    Some(Affine { n_scales, number_bytes })
}

/// Source rows of a layout: well behaved, or with every byte pattern a file may hold.
pub(super) fn source(layout: WeightLayout, n: usize, k: usize, hostile: bool) -> Vec<Vec<u8>> {
    let mut rng = Rng(n as u32 * 31 + k as u32);
    let row_bytes = layout.row_bytes(k);
    (0..n)
        .map(|_| {
            let mut row: Vec<u8> = (0..row_bytes).map(|_| (rng.next() >> 5) as u8).collect();
            if hostile && layout == WeightLayout::Bf16 {
                // One kernel takes subnormal numbers for zero, and the other kernels do not.
                row.chunks_mut(2).for_each(|half| half[1] |= 0x20);
            }
            if hostile {
                return row;
            }
            tame(layout, k, &mut row, &mut rng);
            row
        })
        .collect()
}

/// Makes random bytes a row of ordinary numbers.
fn tame(layout: WeightLayout, k: usize, row: &mut Vec<u8>, rng: &mut Rng) {
    let block_bytes = layout.row_bytes(layout.block_len());
    match layout {
        WeightLayout::F32 => {
            *row = (0..k).flat_map(|_| rng.float().to_le_bytes()).collect();
        }
        WeightLayout::F16 => {
            *row = (0..k).flat_map(|_| half::f16::from_f32(rng.float()).to_le_bytes()).collect();
        }
        WeightLayout::Bf16 => {
            *row = (0..k).flat_map(|_| half::bf16::from_f32(rng.float()).to_le_bytes()).collect();
        }
        WeightLayout::Int8Row | WeightLayout::Fp8E4M3 | WeightLayout::Fp8E5M2 => {
            // Without the largest exponents: no NaN, no infinity.
            row.iter_mut().for_each(|byte| *byte &= 0xbf);
            row[..4].copy_from_slice(&(rng.float() * 0.01).to_le_bytes());
        }
        WeightLayout::Nf4 | WeightLayout::Fp4 => {
            for block in row.chunks_mut(block_bytes) {
                block[..4].copy_from_slice(&rng.float().to_le_bytes());
            }
        }
        WeightLayout::Nvfp4 => {
            row[..4].copy_from_slice(&(rng.float() * 100.0).to_le_bytes());
            for block in row[4..].chunks_mut(18) {
                // Without the two that are no numbers.
                block[..2].iter_mut().for_each(|scale| *scale &= 0xbf);
            }
        }
        layout if affine(layout).is_some() => {
            let Affine { n_scales, number_bytes, .. } = affine(layout).expect("is one");
            for block in row.chunks_mut(block_bytes) {
                let numbers = block.chunks_exact_mut(number_bytes).take(2 * n_scales);
                for (i, bytes) in numbers.enumerate() {
                    let number = rng.float() * if i < n_scales { 0.01 } else { 16.0 };
                    match number_bytes {
                        4 => bytes.copy_from_slice(&number.to_le_bytes()),
                        _ => bytes.copy_from_slice(&half::f16::from_f32(number).to_le_bytes()),
                    }
                }
            }
        }
        WeightLayout::Mxfp4 => {
            row.chunks_mut(block_bytes).for_each(|block| block[0] = 110 + block[0] % 20);
        }
        _ => {
            for block in row.chunks_mut(block_bytes) {
                for &at in half_offsets(layout) {
                    let scale = half::f16::from_f32(rng.float() * 0.01);
                    block[at..at + 2].copy_from_slice(&scale.to_le_bytes());
                }
            }
        }
    }
}

pub(super) fn activations(m: usize, k: usize) -> Vec<f32> {
    let mut rng = Rng(5);
    (0..m * k).map(|i| rng.float() * (1 + i % 5) as f32).collect()
}

pub(super) fn pack(
    cpu: &Cpu,
    layout: WeightLayout,
    n: usize,
    k: usize,
    hostile: bool,
) -> PackedMatrix {
    let rows = source(layout, n, k, hostile);
    PackedMatrix::pack(cpu, layout, n, k, &|row| &rows[row])
}

/// Rows in the form that `w` reads.
pub(super) fn input(cpu: &Cpu, w: &PackedMatrix, x: &[f32]) -> Activations {
    let mut rows = Activations::new(w.k(), Forms::default().read_by(cpu, w));
    cpu.write_rows(x, &mut rows);
    rows
}

/// The product as bit patterns, all NaNs alike; checks that nothing around it is written.
fn product(cpu: &Cpu, w: &PackedMatrix, x: &[f32]) -> Vec<u32> {
    const MARK: f32 = -12345.0;
    let m = x.len() / w.k();
    let (stride, offset) = (w.n() + 5, 2);
    let mut y = vec![MARK; m * stride];
    cpu.matmul(w, &input(cpu, w, x), MatmulOutput { data: &mut y, stride, offset });
    let mut bits = Vec::with_capacity(m * w.n());
    for row in y.chunks(stride) {
        let (before, rest) = row.split_at(offset);
        let (columns, after) = rest.split_at(w.n());
        assert!(before.iter().chain(after).all(|&y| y == MARK), "wrote outside its columns");
        bits.extend(columns.iter().map(|y| if y.is_nan() { u32::MAX } else { y.to_bits() }));
    }
    bits
}

pub(super) fn scalar() -> Cpu {
    Cpu::with(Kernels::by_name("scalar").expect("scalar"), 1)
}

#[test]
fn every_instruction_set_returns_the_bits_of_the_scalar_one_at_every_m() {
    let cpus: Vec<Cpu> = Kernels::available().map(|kernels| Cpu::with(kernels, 1)).collect();
    for &layout in WeightLayout::ALL {
        for (n, blocks) in [(1, 1), (15, 2), (16, 3), (33, 1), (100, 1), (150, 2)] {
            let k = match layout.block_len() {
                1 => 32 * blocks + n % 4,
                len => blocks * len,
            };
            let w = pack(&scalar(), layout, n, k, false);
            let x = activations(70, k);
            let expected = product(&scalar(), &w, &x);
            for m in 1..=70 {
                for cpu in &cpus {
                    let got = product(cpu, &w, &x[..m * k]);
                    assert!(
                        got == expected[..m * n],
                        "{} {layout:?} m {m} n {n} k {k}",
                        cpu.kernels.name
                    );
                }
            }
        }
    }
}

#[test]
fn rows_of_many_groups_and_strips_of_many_panels_give_the_bits_of_the_scalar_kernels() {
    let cpus: Vec<Cpu> = Kernels::available().map(|kernels| Cpu::with(kernels, 1)).collect();
    for &layout in WeightLayout::ALL {
        for groups in [27, 40] {
            let k = 32 * groups / layout.block_len().max(32) * layout.block_len().max(32);
            let n = 150;
            let w = pack(&scalar(), layout, n, k, false);
            let x = activations(41, k);
            let expected = product(&scalar(), &w, &x);
            for m in [16, 24, 41] {
                for cpu in &cpus {
                    let got = product(cpu, &w, &x[..m * k]);
                    let name = cpu.kernels.name;
                    assert!(got == expected[..m * n], "{name} {layout:?} m {m} k {k}");
                }
            }
        }
    }
}

#[test]
fn rows_beyond_the_second_level_cache_give_the_bits_of_the_scalar_kernels() {
    // Pairs of panels and one panel alone; several chunks of inputs, the last of them short.
    let (n, k) = (680, 700);
    let plain = scalar();
    let w = pack(&plain, WeightLayout::Bf16, n, k, false);
    let x = activations(205, k);
    let expected = product(&plain, &w, &x);
    for kernels in Kernels::available() {
        let mut cpu = Cpu::with(kernels, 1);
        cpu.tuning.row_block_bytes = usize::MAX;
        for m in [159, 160, 161, 192, 205] {
            let got = product(&cpu, &w, &x[..m * k]);
            assert!(got == expected[..m * n], "{} m {m}", kernels.name);
        }
    }
}

#[test]
fn hostile_weights_give_the_same_bits_everywhere() {
    for &layout in WeightLayout::ALL {
        for (n, k) in [(17, 768), (64, 256)] {
            let w = pack(&scalar(), layout, n, k, true);
            let mut x = activations(37, k);
            x[k..k + GROUP].fill(0.0);
            x[3 * k] = f32::NAN;
            x[4 * k + 40] = f32::NEG_INFINITY;
            let expected = product(&scalar(), &w, &x);
            for kernels in Kernels::available() {
                for m in [1, 2, 3, 5, 14, 16, 37] {
                    let got = product(&Cpu::with(kernels, 2), &w, &x[..m * k]);
                    assert!(got == expected[..m * n], "{} {layout:?} m {m}", kernels.name);
                }
            }
        }
    }
}

#[test]
fn the_lowest_q8_weights_with_the_largest_activations_do_not_saturate() {
    let k = 64;
    let row: Vec<u8> = (0..k / GROUP)
        .flat_map(|_| half::f16::ONE.to_le_bytes().into_iter().chain([0x80; GROUP]))
        .collect();
    let w = PackedMatrix::pack(&scalar(), WeightLayout::Q8G32, 16, k, &|_| &row);
    for sign in [1.0, -1.0] {
        let x = vec![127.0 * sign; k];
        for kernels in Kernels::available() {
            let expected = (-128.0 * 127.0 * k as f32 * sign).to_bits();
            assert_eq!(product(&Cpu::with(kernels, 1), &w, &x), [expected; 16], "{}", kernels.name);
        }
    }
}

#[test]
fn the_bits_do_not_depend_on_the_number_of_threads() {
    // Large enough to be shared: several strips and several blocks of rows.
    for &layout in WeightLayout::ALL {
        let (n, k) = (272, 1024);
        let w = pack(&scalar(), layout, n, k, false);
        let x = activations(150, k);
        let expected = product(&Cpu::with(Kernels::best(), 1), &w, &x);
        for n_threads in [2, 3, 7] {
            let cpu = Cpu::with(Kernels::best(), n_threads);
            assert!(product(&cpu, &w, &x) == expected, "{layout:?} on {n_threads} threads");
            let first = product(&cpu, &w, &x[..k]);
            assert!(first == expected[..n], "{layout:?} m 1 on {n_threads} threads");
        }
    }
}

#[test]
fn the_bits_do_not_depend_on_the_tuning() {
    let mut rng = Rng(11);
    // Ordinary values and hostile ones.
    let mut size = |most: usize| match rng.next() % 8 {
        0 => 0,
        1 => usize::MAX,
        _ => rng.next() as usize % most,
    };
    for &layout in WeightLayout::ALL {
        for kernels in Kernels::available() {
            for n_threads in [1, 2, 5] {
                let k = layout.block_len().max(64) * (1 + size(3).min(3));
                let (n, m) = (1 + size(300).min(300), 1 + size(80).min(80));
                let w = pack(&scalar(), layout, n, k, false);
                let x = activations(m, k);
                let mut cpu = Cpu::with(kernels, n_threads);
                let expected = product(&cpu, &w, &x);
                for _ in 0..4 {
                    cpu.tuning = Tuning {
                        strip_panels: size(10),
                        row_block_bytes: size(100_000),
                        min_parallel_bytes: size(100_000),
                    };
                    let what = format!("{layout:?} {}, {n_threads} threads", kernels.name);
                    let got = product(&cpu, &w, &x);
                    assert!(got == expected, "{what}, [{n}, {k}] x {m}: {:?}", cpu.tuning);
                }
            }
        }
    }
}

#[test]
fn the_product_is_the_product() {
    for &layout in WeightLayout::ALL {
        let (n, k) = (20, 512);
        let w = pack(&scalar(), layout, n, k, false);
        let x = activations(3, k);
        let mut seen = x.clone();
        if w.needs_quantized_input() {
            let rows = input(&scalar(), &w, &x);
            for (row, seen) in seen.chunks_mut(k).enumerate() {
                rows.int8(ActivationGroup::Of32).dequantize_row(row, seen);
            }
        } else if layout == WeightLayout::Bf16 {
            for seen in &mut seen {
                *seen = half::bf16::from_f32(*seen).to_f32();
            }
        }
        let bits = product(&Cpu::with(Kernels::best(), 1), &w, &x);
        let mut weights = vec![0.0; k];
        for col in 0..n {
            w.unpack_row_f32(col, &mut weights);
            for (row, x) in seen.chunks(k).enumerate() {
                let products = x.iter().zip(&weights).map(|(&x, &w)| f64::from(x) * f64::from(w));
                let (sum, size) =
                    products.fold((0.0, 0.0), |(sum, size), p| (sum + p, size + p.abs()));
                let got = f64::from(f32::from_bits(bits[row * n + col]));
                // Scales and biases enter by themselves, and may be larger than their sum.
                assert!((got - sum).abs() <= size * 3e-6, "{layout:?}: {got} for {sum}");
            }
        }
    }
}

/// Layouts that take larger groups of activations than 32, with the sizes that they take.
fn wide_layouts() -> impl Iterator<Item = (WeightLayout, ActivationGroup)> {
    WeightLayout::ALL.iter().flat_map(|&layout| {
        let groups = ActivationGroup::ALL.into_iter().skip(1);
        groups
            .filter(move |&group| group <= layout.widest_group())
            .map(move |group| (layout, group))
    })
}

fn with_group(mut cpu: Cpu, group: ActivationGroup) -> Cpu {
    cpu.activation_group = group;
    cpu
}

#[test]
fn larger_groups_of_activations_give_the_bits_of_the_scalar_kernels_at_every_m() {
    let cpus: Vec<Cpu> = Kernels::available().map(|kernels| Cpu::with(kernels, 1)).collect();
    assert!(wide_layouts().count() >= 10, "layouts with larger groups");
    for (layout, group) in wide_layouts() {
        // More than a chunk of inputs that tiles take, and rests of groups and of tiles.
        let len = layout.block_len();
        for (n, k) in [(15, len), (33, 3 * len), (100, 1184 / len * len), (40, 672 / len * len)] {
            let plain = with_group(scalar(), group);
            for hostile in [false, true] {
                let w = pack(&plain, layout, n, k, hostile);
                let mut x = activations(70, k);
                if hostile {
                    x[k..k + GROUP].fill(0.0);
                    x[3 * k] = f32::NAN;
                    x[4 * k + 40.min(k - 1)] = f32::NEG_INFINITY;
                }
                let expected = product(&plain, &w, &x);
                for m in [1, 2, 3, 5, 8, 9, 16, 17, 31, 32, 33, 47, 48, 64, 70] {
                    for cpu in &cpus {
                        let got = product(&with_group(cpu.clone(), group), &w, &x[..m * k]);
                        let name = cpu.kernels.name;
                        assert!(
                            got == expected[..m * n],
                            "{name} {layout:?} in groups of {group}, m {m} n {n} k {k}"
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn larger_groups_of_activations_multiply_what_they_hold() {
    for (layout, group) in wide_layouts() {
        let (n, k) = (20, 768);
        let cpu = with_group(Cpu::with(Kernels::best(), 1), group);
        let w = pack(&cpu, layout, n, k, false);
        let x = activations(33, k);
        let (mut seen, mut weights) = (vec![0.0; k], vec![0.0; k]);
        let rows = input(&cpu, &w, &x);
        let bits = product(&cpu, &w, &x);
        for col in 0..n {
            w.unpack_row_f32(col, &mut weights);
            for row in [0, 32] {
                rows.int8(group).dequantize_row(row, &mut seen);
                let products =
                    seen.iter().zip(&weights).map(|(&x, &w)| f64::from(x) * f64::from(w));
                let (sum, size) =
                    products.fold((0.0, 0.0), |(sum, size), p| (sum + p, size + p.abs()));
                let got = f64::from(f32::from_bits(bits[row * n + col]));
                assert!((got - sum).abs() <= size * 3e-6, "{layout:?} {group}: {got} for {sum}");
            }
        }
    }
}

#[test]
#[should_panic(expected = "output elements")]
fn an_output_that_is_too_small_is_refused() {
    let w = pack(&scalar(), WeightLayout::F32, 16, 4, false);
    let x = input(&scalar(), &w, &[0.0; 8]);
    scalar().matmul(&w, &x, MatmulOutput { data: &mut [0.0; 31], stride: 16, offset: 0 });
}

/// Heads as one product, the heads of each row apart by `head_stride`.
fn heads_product(cpu: &Cpu, w: &PackedMatrix, n_heads: usize, x: &[f32], apart: usize) -> Vec<u32> {
    const MARK: f32 = -12345.0;
    let (n, m) = (w.n() / n_heads, x.len() / w.k() / n_heads);
    let (head_stride, offset) = (n + apart, 2);
    let stride = n_heads * head_stride + 3;
    let mut y = vec![MARK; m * stride];
    let output = MatmulOutput { data: &mut y, stride, offset };
    cpu.matmul_heads(w, n_heads, &input(cpu, w, x), output, head_stride);
    let mut bits = Vec::with_capacity(n_heads * m * n);
    for head in 0..n_heads {
        for row in 0..m {
            let columns = &mut y[row * stride + offset + head * head_stride..][..n];
            bits.extend(columns.iter().map(|y| if y.is_nan() { u32::MAX } else { y.to_bits() }));
            columns.fill(MARK);
        }
    }
    assert!(y.iter().all(|&y| y == MARK), "wrote outside its columns");
    bits
}

#[test]
fn a_product_of_heads_is_the_product_of_each() {
    for layout in [WeightLayout::F32, WeightLayout::Bf16, WeightLayout::Q8G32, WeightLayout::Q4G32]
    {
        for (n_heads, n, k, m) in
            [(1, 32, 32, 2), (3, 16, 64, 1), (5, 48, 96, 30), (8, 128, 128, 7)]
        {
            let cpus = crate::testing::all_cpus();
            let rows = source(layout, n_heads * n, k, false);
            let x = activations(n_heads * m, k);
            let mut expected = Vec::new();
            for head in 0..n_heads {
                let own = |row: usize| rows[head * n + row].as_slice();
                let w = PackedMatrix::pack(&cpus[0], layout, n, k, &own);
                expected.extend(product(&cpus[0], &w, &x[head * m * k..(head + 1) * m * k]));
            }
            for cpu in &cpus {
                let all = |row: usize| rows[row].as_slice();
                let w = PackedMatrix::pack(cpu, layout, n_heads * n, k, &all);
                for apart in [0, 64] {
                    let got = heads_product(cpu, &w, n_heads, &x, apart);
                    assert!(got == expected, "{} {layout:?} {n_heads} x {n}", cpu.kernels.name);
                }
            }
        }
    }
}

#[test]
fn the_blocks_of_rows_beside_outputs_have_about_as_many_rows() {
    for kernels in Kernels::available() {
        let cpu = Cpu::with(kernels, 2);
        let w = pack(&cpu, WeightLayout::Bf16, 320, 32, false);
        for m in [1, 100, 512, 520, 1000] {
            let cut = Cut::new(&cpu, &w, m, 1_000_000);
            let most = cut.rows_beside(1 << 11);
            let n_blocks = m.div_ceil(most);
            let last = m - (n_blocks - 1) * most;
            // The last block lacks at most what rounding up to a unit adds to every block.
            assert!(most - last <= n_blocks * 48, "{}: {m} rows by {most}", kernels.name);
            assert!(most <= cut.rows_per_block, "{}: {m} rows by {most}", kernels.name);
        }
    }
}

#[test]
fn many_rows_of_a_narrow_matrix_stay_in_one_block_for_tiles() {
    // Otherwise no test here would reach the kernel for them.
    for kernels in Kernels::available().filter(|kernels| kernels.matmul.int_many.is_some()) {
        let cpu = Cpu::with(kernels, 5);
        for layout in [WeightLayout::Q8G32, WeightLayout::Bf16] {
            let w = pack(&cpu, layout, 40, 64, false);
            let cut = Cut::new(&cpu, &w, 70, 70);
            assert_eq!(cut.rows_per_block.min(70), 70, "{}", kernels.name);
        }
    }
}
