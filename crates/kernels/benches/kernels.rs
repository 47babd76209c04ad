//! Speed of the matrix product as a share of what this machine can do, measured in the same run.
//!
//! `cargo bench -p pelton-kernels [-- THREADS]` (default 1). M = 1 is compared with the measured
//! read bandwidth, larger M with the measured rate of the multiply instruction of the layout.

use std::time::Instant;

use pelton_kernels::{
    Cpu, Kernels, MatmulInput, MatmulOutput, PackedMatrix, QuantizedRows, WeightLayout,
};

fn main() {
    let n_threads = std::env::args().find_map(|arg| arg.parse().ok()).unwrap_or(1);
    let kernels = match Kernels::get() {
        Ok(kernels) => kernels,
        Err(err) => {
            eprintln!("{err}");
            std::process::exit(2);
        }
    };
    let cpu = Cpu::with(kernels, n_threads);
    let bandwidth = cpu.measure_read_bandwidth(512 << 20, 1.0);
    let peak = Peak::measure(&cpu);
    println!("kernels {}, {} threads", kernels.name, cpu.team.n_threads());
    println!("read bandwidth  {:7.1} GB/s", bandwidth / 1e9);
    println!("int8 multiplies {:7.1} GOP/s   f32 {:7.1} GFLOP/s", peak.int8 / 1e9, peak.f32 / 1e9);

    println!("\ndecode, M = 1, through more memory than the caches hold");
    for layout in [WeightLayout::Q8G32, WeightLayout::Q4G32, WeightLayout::Bf16, WeightLayout::F16]
    {
        for (n, k) in [(2048, 2048), (8192, 2048), (2048, 8192)] {
            let matrices = matrices(&cpu, layout, n, k, 256 << 20);
            let n_bytes: usize = matrices.iter().map(PackedMatrix::n_bytes).sum();
            // Other programs take bandwidth too, so the ceiling is measured again each time.
            let before = cpu.measure_read_bandwidth(256 << 20, 0.2);
            let speed = n_bytes as f64 / time(&cpu, &matrices, 1, 30);
            let ceiling = before.max(cpu.measure_read_bandwidth(256 << 20, 0.2));
            println!(
                "  {:5} [{n:5}, {k:5}] {:7.1} GB/s = {:5.1} % of {:5.1}",
                layout.name(),
                speed / 1e9,
                100.0 * speed / ceiling,
                ceiling / 1e9
            );
        }
    }

    println!("\nbatches and prefill, [2048, 2048]");
    for &layout in WeightLayout::ALL {
        let matrices = matrices(&cpu, layout, 2048, 2048, 8 << 20);
        for m in [1, 2, 4, 8, 16, 64, 512] {
            let seconds = time(&cpu, &matrices, m, 20);
            let n_ops = 2 * 2048 * 2048 * m * matrices.len();
            let speed = n_ops as f64 / seconds;
            let ceiling = if layout.needs_quantized_input() { peak.int8 } else { peak.f32 };
            println!(
                "  {:5} M = {m:4} {:8.1} GOP/s = {:5.1} % of the multiplier",
                layout.name(),
                speed / 1e9,
                100.0 * speed / ceiling
            );
        }
    }
}

/// As many `[n, k]` matrices as fill `n_bytes`, at least one.
fn matrices(
    cpu: &Cpu,
    layout: WeightLayout,
    n: usize,
    k: usize,
    n_bytes: usize,
) -> Vec<PackedMatrix> {
    let row_bytes = layout.row_bytes(k);
    let row: Vec<u8> = (0..row_bytes).map(|i| (i * 7 % 59) as u8).collect();
    let n_matrices = (n_bytes / (n * row_bytes)).max(1);
    (0..n_matrices).map(|_| PackedMatrix::pack(cpu, layout, n, k, &|_| &row)).collect()
}

/// Seconds of one product with each matrix, the best of several rounds.
fn time(cpu: &Cpu, matrices: &[PackedMatrix], m: usize, n_rounds: usize) -> f64 {
    let (n, k) = (matrices[0].n(), matrices[0].k());
    let x: Vec<f32> = (0..m * k).map(|i| (i as f32 * 0.1).sin()).collect();
    let mut y = vec![0.0; m * n];
    let mut quantized = QuantizedRows::new();
    let mut best = f64::INFINITY;
    for _ in 0..n_rounds {
        let start = Instant::now();
        if matrices[0].needs_quantized_input() {
            cpu.quantize_rows(&x, k, &mut quantized);
        }
        for w in matrices {
            let quantized = w.needs_quantized_input().then_some(&quantized);
            let output = MatmulOutput { data: &mut y, stride: n, offset: 0 };
            cpu.matmul(w, MatmulInput { rows: &x, quantized }, output);
        }
        best = best.min(start.elapsed().as_secs_f64());
    }
    best
}

/// Operations per second of multiplications on registers alone: the ceiling of arithmetic.
struct Peak {
    int8: f64,
    f32: f64,
}

impl Peak {
    fn measure(cpu: &Cpu) -> Self {
        Self { int8: rate(cpu, int8_ops), f32: rate(cpu, f32_ops) }
    }
}

/// Runs `ops(kernels, n_steps)`, which returns the operations it did, on all threads.
fn rate(cpu: &Cpu, ops: fn(&str, usize) -> usize) -> f64 {
    let mut best = 0.0_f64;
    for _ in 0..20 {
        let start = Instant::now();
        let n_ops = std::sync::atomic::AtomicUsize::new(0);
        cpu.team.run(|_| {
            let done = ops(cpu.kernels.name, 1_000_000);
            n_ops.fetch_add(done, std::sync::atomic::Ordering::Relaxed);
        });
        best = best.max(n_ops.into_inner() as f64 / start.elapsed().as_secs_f64());
    }
    best
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;
    use std::hint::black_box;

    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
    pub(crate) fn vnni(n_steps: usize) -> usize {
        let (a, b) = (_mm512_set1_epi32(black_box(3)), _mm512_set1_epi32(black_box(5)));
        let mut acc = [_mm512_setzero_si512(); 16];
        for _ in 0..n_steps {
            for acc in &mut acc {
                *acc = _mm512_dpbusd_epi32(*acc, a, b);
            }
            acc = black_box_regs(acc);
        }
        black_box(acc);
        n_steps * 16 * 128
    }

    /// Keeps the compiler from folding the loop, without going through memory.
    #[inline(always)]
    fn black_box_regs<T>(acc: T) -> T {
        // SAFETY: an empty instruction that claims nothing but not to be pure.
        unsafe { std::arch::asm!("", options(nomem, nostack, preserves_flags)) };
        acc
    }

    #[target_feature(enable = "avx2,fma")]
    pub(crate) fn maddubs(n_steps: usize) -> usize {
        let (a, b) = (_mm256_set1_epi8(black_box(3)), _mm256_set1_epi16(1));
        let mut acc = [_mm256_set1_epi8(black_box(5)); 12];
        for _ in 0..n_steps {
            for acc in &mut acc {
                *acc = _mm256_madd_epi16(_mm256_maddubs_epi16(*acc, a), b);
            }
            acc = black_box_regs(acc);
        }
        black_box(acc);
        n_steps * 12 * 64
    }

    #[target_feature(enable = "avx512f")]
    pub(crate) fn fma512(n_steps: usize) -> usize {
        let (a, b) = (_mm512_set1_ps(black_box(0.5)), _mm512_set1_ps(black_box(0.25)));
        let mut acc = [_mm512_setzero_ps(); 16];
        for _ in 0..n_steps {
            for acc in &mut acc {
                *acc = _mm512_fmadd_ps(*acc, a, b);
            }
            acc = black_box_regs(acc);
        }
        black_box(acc);
        n_steps * 16 * 32
    }

    #[target_feature(enable = "avx2,fma")]
    pub(crate) fn fma256(n_steps: usize) -> usize {
        let (a, b) = (_mm256_set1_ps(black_box(0.5)), _mm256_set1_ps(black_box(0.25)));
        let mut acc = [_mm256_setzero_ps(); 12];
        for _ in 0..n_steps {
            for acc in &mut acc {
                *acc = _mm256_fmadd_ps(*acc, a, b);
            }
            acc = black_box_regs(acc);
        }
        black_box(acc);
        n_steps * 12 * 16
    }
}

fn int8_ops(kernels: &str, n_steps: usize) -> usize {
    match kernels {
        // SAFETY: these kernels are in use, so this CPU has their target features.
        #[cfg(target_arch = "x86_64")]
        "avx512" => unsafe { x86::vnni(n_steps) },
        // SAFETY: as above.
        #[cfg(target_arch = "x86_64")]
        "avx2" => unsafe { x86::maddubs(n_steps) },
        _ => f32_ops(kernels, n_steps),
    }
}

fn f32_ops(kernels: &str, n_steps: usize) -> usize {
    match kernels {
        // SAFETY: these kernels are in use, so this CPU has their target features.
        #[cfg(target_arch = "x86_64")]
        "avx512" => unsafe { x86::fma512(n_steps) },
        // SAFETY: as above.
        #[cfg(target_arch = "x86_64")]
        "avx2" => unsafe { x86::fma256(n_steps) },
        _ => {
            let mut acc = [1.0_f32; 8];
            for _ in 0..n_steps / 16 {
                for acc in &mut acc {
                    *acc = std::hint::black_box(*acc) * 0.5 + 0.25;
                }
            }
            std::hint::black_box(acc);
            n_steps / 16 * 16
        }
    }
}
