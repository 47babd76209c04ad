//! Random shapes, one after the other through the same activations, on memory that ends where it
//! must.
//!
//! ```text
//! shape        n 0 .. 80, 1 .. 3 blocks of k, m 0 .. 40        whatever layout comes next
//! weights      a heap allocation of exactly `storage_bytes`, aligned to nothing
//! activations  one `Activations` per instruction set: other widths, other forms, more rows and
//!              fewer, its memory full of NaN between two shapes
//! output       a heap allocation that ends with the last column of the last row
//! ```
//!
//! The bits are those of the scalar kernels with fresh activations. Under a memory checker
//! (`just asan`) each load and store past an end is an error besides.

use super::tests::{Rng, pack, scalar};
use super::*;
use crate::Kernels;
use crate::layout::Storage;
use crate::ops::activations::Forms;
use crate::testing::{Random, bits};

/// The same matrix in an allocation of its exact size.
fn on_heap(w: &PackedMatrix) -> PackedMatrix {
    let storage = Storage::on_heap(w.storage_bytes());
    PackedMatrix::from_storage(w.layout(), w.n(), w.k(), storage).expect("the same size")
}

/// The product with `x` by way of `rows`, whose memory held something else before.
fn product(cpu: &Cpu, w: &PackedMatrix, x: &[f32], rows: &mut Activations) -> Vec<u32> {
    rows.reset(w.k(), Forms::default().read_by(cpu, w));
    cpu.write_rows(x, rows);
    let (n, m) = (w.n(), rows.n_rows());
    // The last row ends with its last column.
    let (stride, offset) = (n + 3, 2);
    let n_outputs = if m == 0 { 0 } else { (m - 1) * stride + offset + n };
    let mut y = vec![f32::NEG_INFINITY; n_outputs];
    cpu.matmul(w, rows, MatmulOutput { data: &mut y, stride, offset });
    let columns = y.chunks(stride).flat_map(|row| bits(&row[offset..offset + n]));
    columns.collect()
}

/// Fills the memory of `rows` with NaN, in every form and beyond every row that a shape here has.
fn poison(cpu: &Cpu, rows: &mut Activations) {
    const WIDTH: usize = 1024;
    let x = vec![f32::NAN; 48 * WIDTH];
    for layout in [WeightLayout::F32, WeightLayout::Bf16, WeightLayout::Q8G32] {
        let w = pack(cpu, layout, 0, WIDTH, false);
        rows.reset(WIDTH, Forms::default().read_by(cpu, &w));
        cpu.write_rows(&x, rows);
    }
}

#[test]
fn random_shapes_through_the_same_activations_give_the_bits_of_fresh_scalar_ones() {
    let mut rng = Rng(77);
    let mut random = Random::new(78);
    let mut cpus: Vec<(Cpu, Activations)> = Kernels::available()
        .map(|kernels| (Cpu::with(kernels, 1), Activations::new(1, Forms::F32)))
        .collect();
    for round in 0..10 {
        for &layout in WeightLayout::ALL {
            let mut below = |n: u32| rng.next() as usize % n as usize;
            let k = match layout.block_len() {
                1 => 1 + below(100),
                len => (1 + below(3)) * len,
            };
            let (n, m, hostile) = (below(81), below(41), below(4) == 0);
            let w = on_heap(&pack(&scalar(), layout, n, k, hostile));
            let x = random.normals(m * k);
            let expected = product(&scalar(), &w, &x, &mut Activations::new(1, Forms::F32));
            for (cpu, rows) in &mut cpus {
                if round % 2 == 0 {
                    poison(cpu, rows);
                }
                let got = product(cpu, &w, &x, rows);
                let what = format!("{} {layout:?} m {m} n {n} k {k}", cpu.kernels.name);
                assert!(got == expected, "{what}, hostile {hostile}, round {round}");
            }
        }
    }
}

#[test]
fn rows_that_shrink_and_grow_keep_their_bits() {
    // Odd widths: bf16 rows are followed by a zero, which other rows have written over.
    let w = on_heap(&pack(&scalar(), WeightLayout::Bf16, 20, 33, false));
    let wide = on_heap(&pack(&scalar(), WeightLayout::Bf16, 20, 34, false));
    let x = Random::new(5).normals(7 * 33);
    let nan = [f32::NAN; 7 * 34];
    for kernels in Kernels::available() {
        let cpu = Cpu::with(kernels, 1);
        let fresh = |x: &[f32]| product(&cpu, &w, x, &mut Activations::new(1, Forms::F32));
        let mut rows = Activations::new(1, Forms::F32);
        for m in [7, 2, 5, 0, 1, 7] {
            product(&cpu, &wide, &nan, &mut rows);
            assert_eq!(product(&cpu, &w, &x[..m * 33], &mut rows), fresh(&x[..m * 33]));
            // And without other rows between.
            assert_eq!(product(&cpu, &w, &x, &mut rows), fresh(&x));
        }
    }
}

#[test]
fn more_threads_than_rows_or_panels_give_the_bits_of_one() {
    for (layout, n, k) in
        [(WeightLayout::F16, 17, 4096), (WeightLayout::Q4K, 30, 8192), (WeightLayout::Bf16, 1, 999)]
    {
        let w = on_heap(&pack(&scalar(), layout, n, k, false));
        let x = Random::new(9).normals(40 * k);
        for kernels in Kernels::available() {
            let run = |n_threads| {
                let cpu = Cpu::with(kernels, n_threads);
                product(&cpu, &w, &x, &mut Activations::new(1, Forms::F32))
            };
            assert_eq!(run(9), run(1), "{} {layout:?}", kernels.name);
        }
    }
}

#[test]
fn prompts_whose_rows_the_threads_share_have_the_bits_of_one_thread() {
    // 128 rows for each thread and more; the last panel is not whole.
    for (layout, n, k) in [
        (WeightLayout::Q8G32, 300, 96),
        (WeightLayout::Q4K, 40, 256),
        (WeightLayout::Bf16, 270, 70),
    ] {
        let w = on_heap(&pack(&scalar(), layout, n, k, false));
        let x = Random::new(10).normals(517 * k);
        for kernels in Kernels::available() {
            let run = |n_threads| {
                let cpu = Cpu::with(kernels, n_threads);
                product(&cpu, &w, &x, &mut Activations::new(1, Forms::F32))
            };
            let expected = run(1);
            for n_threads in [2, 3, 4] {
                assert!(run(n_threads) == expected, "{} {layout:?}, {n_threads}", kernels.name);
            }
        }
    }
}

#[test]
fn the_largest_sums_of_a_long_row_are_exact() {
    // 2^20 inputs, each product as large as it can be: sums belong to groups, so none overflows.
    let k = 1 << 20;
    let mut row = vec![0x80; 4 + k];
    row[..4].copy_from_slice(&1.0_f32.to_le_bytes());
    let w = on_heap(&PackedMatrix::pack(&scalar(), WeightLayout::Int8Row, 1, k, &|_| &row));
    let x = vec![-127.0; k];
    for kernels in Kernels::available() {
        let cpu = Cpu::with(kernels, 1);
        let got = product(&cpu, &w, &x, &mut Activations::new(1, Forms::F32));
        // After group g the sum is g · 127 · 2^12: at most 22 bits and a power of two.
        assert_eq!(got, [(127.0 * 128.0 * k as f32).to_bits()], "{}", kernels.name);
    }
}
