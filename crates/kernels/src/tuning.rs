//! `Tuning`: how products are cut into blocks and when the team shares them, measured per machine.
//!
//! ```text
//! tune(budget)                                         until
//!   empty runs of the team; M = 1 products in cache    1/8     min_parallel_bytes = cost * rate
//!   M = 1 products through a working set               1/2     strip_panels     of 1, 2, 4, 8
//!   M = 128 products with one matrix                   1       row_block_bytes  of 64K .. 512K
//! ```
//!
//! A tuning cannot change a bit of a result: the canonical order of a product mentions neither
//! tiles nor threads (see [`matmul`](crate::ops::matmul)). So a tuning may come from anywhere, be
//! old, or be nonsense (values are clamped); at worst it costs time.
//!
//! # What is measured
//!
//! Products of 8-bit weights, `[2048, 4096]`: narrow enough that strips which are too wide for many
//! threads show. The working set is three times the last-level cache or 48 MiB, whichever is less.
//! One number decides about threads: below [`Tuning::min_parallel_bytes`] a product runs on its
//! caller, from there on with the whole team. A product of `b` bytes takes `b / rate` on one thread
//! and at best `b / (rate * t) + cost` on `t`, so sharing begins to pay at `cost * rate * t / (t -
//! 1)`; the nearest power of two is taken, so that small differences between two readings give the
//! same tuning.
//!
//! Candidates take turns, each round begins with another one, and they are compared within their
//! round, because a disturbance hits neighbouring measurements alike. A candidate replaces the
//! default only when it is more than 3 % faster in the median round and faster in three rounds of
//! four, of at least five. Before each measurement the clock says whether there is time for it, by
//! the length of the shorter ones before; when there is not, the best value so far is the answer.
//!
//! Prefetch distances and register tiles are not tuned: they are fixed when a kernel is compiled,
//! and every value would be another copy of all kernels.
//!
//! Considered and not taken (reasoned, not measured): a number of threads between one and all (the
//! rest would have to be woken for the next product again); a tuning per layout (dozens of layouts,
//! and the bytes of activations and the width of strips matter the same way to all).

use std::time::{Duration, Instant};

use pelton_tensor::PagePool;

use crate::cpu::Cpu;
use crate::layout::{PANEL, PackedMatrix, WeightLayout};
use crate::machine::last_level_cache_bytes;
use crate::ops::activations::{Activations, Forms};
use crate::ops::matmul::MatmulOutput;

/// How products are cut into blocks, and when the team shares them.
///
/// Any values give the same results; they only change the time.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Tuning {
    /// Panels of 16 outputs per strip, the width of a block; 1 to 64.
    pub strip_panels: usize,
    /// Activation bytes that a block of rows may take, so that it stays in a core's second-level
    /// cache; at most 64 MiB. A block has at least the rows of one register tile.
    pub row_block_bytes: usize,
    /// Weight bytes times rows below which waking the team costs more than it saves; at most 8 MiB.
    pub min_parallel_bytes: usize,
}

impl Default for Tuning {
    fn default() -> Self {
        Self { strip_panels: 4, row_block_bytes: 256 << 10, min_parallel_bytes: 128 << 10 }
    }
}

impl Tuning {
    /// The nearest values within the limits of each field.
    #[must_use]
    pub fn clamped(self) -> Self {
        Self {
            strip_panels: self.strip_panels.clamp(1, 64),
            row_block_bytes: self.row_block_bytes.clamp(1, 64 << 20),
            min_parallel_bytes: self.min_parallel_bytes.min(8 << 20),
        }
    }
}

const STRIP_PANELS: [usize; 4] = [1, 2, 4, 8];
const ROW_BLOCK_BYTES: [usize; 4] = [64 << 10, 128 << 10, 256 << 10, 512 << 10];
/// Least and largest measured [`Tuning::min_parallel_bytes`].
const MIN_PARALLEL_BYTES: [f64; 2] = [16_384.0, 4_194_304.0];

/// Share of the default's time below which a candidate replaces it.
const BETTER: f64 = 0.97;
pub(crate) const LEAST_ROUNDS: usize = 5;
const MOST_ROUNDS: usize = 15;
/// Least and most readings of operations that take microseconds.
const SHORT_READINGS: [usize; 2] = [64, 1 << 14];
/// Seconds that they take together, unless they are the most. A caller that runs on the core of a
/// worker is moved away by the system, but not within a few milliseconds.
const SHORT_SECONDS: f64 = 0.03;

const LAYOUT: WeightLayout = WeightLayout::Q8G32;
/// Shape of a matrix of the working set, `[N, K]`.
const N: usize = 2048;
const K: usize = 4096;
/// Outputs of the matrix that stays in cache.
const N_IN_CACHE: usize = 32;
/// Rows of the products that choose blocks of rows.
const M: usize = 128;
const MOST_WORKING_SET: usize = 48 << 20;
/// How much slower memory may be than cache, for the expected time of a pass.
const MEMORY_SLOWDOWN: f64 = 4.0;

impl Cpu {
    /// Measures for at most `budget` which [`Tuning`] suits this machine, and uses it from now on.
    ///
    /// Takes up to 48 MiB of memory meanwhile. A value that there was no time or no memory to measure
    /// is the default one; without a budget that is every value. A single measurement takes some
    /// milliseconds, and only a machine that stops during one can exceed the budget.
    pub fn tune(&mut self, budget: Duration) -> Tuning {
        let start = Instant::now();
        self.tune_until(&Clock { elapsed: &|| start.elapsed().as_secs_f64(), end: budget });
        self.tuning
    }

    fn tune_until(&mut self, clock: &Clock<'_>) {
        self.tuning = Tuning::default();
        if !clock.has(0.0) {
            return;
        }
        let panel = panel(self);
        let Some(seconds_per_byte) = self.tune_sharing(&clock.share(0.125), &panel) else { return };
        let n_bytes = N / PANEL * panel.n_bytes();
        let set = last_level_cache_bytes().map_or(MOST_WORKING_SET, |n| n.saturating_mul(3));
        let n_matrices = (set.min(MOST_WORKING_SET) / n_bytes).max(2);
        let expected = seconds_per_byte * MEMORY_SLOWDOWN * (n_bytes * n_matrices) as f64;
        // Memory is written once at about the speed at which it is read.
        if !clock.has(2.0 * expected) {
            return;
        }
        let matrices: Option<Vec<_>> = (0..n_matrices).map(|_| matrix(&panel, N)).collect();
        let Some(matrices) = matrices else { return };

        let default = Tuning::default();
        let candidates = STRIP_PANELS.map(|strip_panels| Tuning { strip_panels, ..default });
        self.tune_among(&clock.share(0.5), candidates, expected, &matrices, 1);

        let chosen = self.tuning;
        let candidates =
            ROW_BLOCK_BYTES.map(|row_block_bytes| Tuning { row_block_bytes, ..chosen });
        let expected = seconds_per_byte * (n_bytes * M) as f64;
        self.tune_among(clock, candidates, expected, &matrices[..1], M);
    }

    /// Chooses the size from which products are shared, and returns the seconds per byte of an M =
    /// 1 product in cache on one thread, or `None` when there was no time or no memory.
    fn tune_sharing(&mut self, clock: &Clock<'_>, panel: &PackedMatrix) -> Option<f64> {
        let small = matrix(panel, N_IN_CACHE)?;
        let mut product = Product::new(self, &small, 1);
        let default = self.tuning;
        // The largest bound, so that this product stays on its caller.
        self.tuning = Tuning { min_parallel_bytes: usize::MAX, ..default }.clamped();
        let alone = clock.undisturbed(&mut || product.run(self, &small));
        self.tuning = default;
        let seconds_per_byte = alone? / small.n_bytes() as f64;

        let n_threads = self.team.n_threads();
        if n_threads > 1 {
            // As within a forward pass.
            let _awake = self.team.stay_awake();
            let empty = clock.undisturbed(&mut || self.team.run(|_| {}));
            self.tuning.min_parallel_bytes = empty.map_or(default.min_parallel_bytes, |seconds| {
                sharing_pays_from(seconds, seconds_per_byte, n_threads)
            });
        }
        Some(seconds_per_byte)
    }

    /// Sets the best of `candidates`, one of which is the tuning in use, for products of `m` rows
    /// with all `matrices`, which take `expected` seconds together at most.
    fn tune_among<const C: usize>(
        &mut self,
        clock: &Clock<'_>,
        mut candidates: [Tuning; C],
        mut expected: f64,
        matrices: &[PackedMatrix],
        m: usize,
    ) {
        let sharing = self.tuning.min_parallel_bytes;
        candidates.iter_mut().for_each(|tuning| tuning.min_parallel_bytes = sharing);
        let default = candidates.iter().position(|tuning| *tuning == self.tuning);
        let default = default.expect("invariant: the tuning in use is a candidate");
        let mut product = Product::new(self, &matrices[0], m);
        let mut pass = |tuning| {
            self.tuning = tuning;
            matrices.iter().for_each(|w| product.run(self, w));
        };
        // The first pass warms up and measures the expected time.
        if clock.has(expected) {
            expected = clock.time(&mut || pass(candidates[default]));
            let rounds = rounds::<C>(clock, expected, &mut |i| pass(candidates[i]));
            self.tuning = candidates[best_of(&rounds, default)];
        }
    }
}

/// A product of `m` rows that is computed again and again.
struct Product {
    x: Activations,
    y: Vec<f32>,
}

impl Product {
    /// `m` rows by matrices such as `w`.
    fn new(cpu: &Cpu, w: &PackedMatrix, m: usize) -> Self {
        let mut x = Activations::new(w.k(), Forms::default().read_by(cpu, w));
        cpu.write_rows(&vec![1.0; m * w.k()], &mut x);
        Self { x, y: vec![0.0; m * w.n()] }
    }

    fn run(&mut self, cpu: &Cpu, w: &PackedMatrix) {
        cpu.matmul(w, &self.x, MatmulOutput { data: &mut self.y, stride: w.n(), offset: 0 });
        std::hint::black_box(&mut self.y);
    }
}

/// One panel of arbitrary weights, whose scales are ordinary numbers.
fn panel(cpu: &Cpu) -> PackedMatrix {
    let row = vec![0x3c; LAYOUT.row_bytes(K)];
    PackedMatrix::pack(cpu, LAYOUT, PANEL, K, &|_| &row)
}

/// A matrix of `n` outputs, a multiple of [`PANEL`], made of copies of one panel: copying is much
/// faster than packing. `None` when the system refuses the memory.
fn matrix(panel: &PackedMatrix, n: usize) -> Option<PackedMatrix> {
    let n_bytes = n / PANEL * panel.n_bytes();
    let mut buf = PagePool::default().take(n_bytes, |_| {}).ok()?;
    for copy in buf.bytes_mut().chunks_exact_mut(panel.n_bytes()) {
        copy.copy_from_slice(panel.storage_bytes());
    }
    let matrix = PackedMatrix::from_storage(LAYOUT, n, K, buf.into());
    Some(matrix.expect("invariant: as many bytes as the shape has"))
}

/// Bytes from which a product that a team shares is faster than on one thread.
fn sharing_pays_from(run_seconds: f64, seconds_per_byte: f64, n_threads: usize) -> usize {
    let n_threads = n_threads as f64;
    let n_bytes = run_seconds / seconds_per_byte * n_threads / (n_threads - 1.0);
    let [least, most] = MIN_PARALLEL_BYTES;
    // A clock that stood still makes a NaN, which `max` takes for the least.
    n_bytes.max(least).min(most).log2().round().exp2() as usize
}

/// A budget of time and a clock that measures it.
pub(crate) struct Clock<'a> {
    /// Seconds since the start.
    pub(crate) elapsed: &'a dyn Fn() -> f64,
    pub(crate) end: Duration,
}

impl Clock<'_> {
    /// The same clock with this share of the budget.
    fn share(&self, share: f64) -> Self {
        Self { elapsed: self.elapsed, end: self.end.mul_f64(share) }
    }

    /// Whether there is time for a measurement of `seconds`.
    pub(crate) fn has(&self, seconds: f64) -> bool {
        (self.elapsed)() + seconds < self.end.as_secs_f64()
    }

    pub(crate) fn time(&self, f: &mut dyn FnMut()) -> f64 {
        let start = (self.elapsed)();
        f();
        (self.elapsed)() - start
    }

    /// The time of `f` below which a tenth of its readings stay; `None` when there was no time for
    /// three. Other programs only lengthen a reading, and a tuning is kept for when they are gone:
    /// two compilers beside the first start made the median of waking the team 16 times as long,
    /// and decoding a tenth slower ever after. With 64 readings, five of six first starts on two
    /// quiet Zen 5 cores found 4 MiB in place of 256 KiB, and decoded one sequence 3 % slower.
    fn undisturbed(&self, f: &mut dyn FnMut()) -> Option<f64> {
        let [least, most] = SHORT_READINGS;
        let end = (self.elapsed)() + SHORT_SECONDS;
        let mut readings = Vec::with_capacity(most);
        loop {
            let n_enough = if (self.elapsed)() < end { most } else { least };
            let expected = readings.last().copied().unwrap_or(0.0);
            if readings.len() >= n_enough || !self.has(expected) {
                break;
            }
            readings.push(self.time(f));
        }
        readings.sort_by(f64::total_cmp);
        (readings.len() >= 3).then(|| readings[readings.len() / 10])
    }
}

pub(crate) fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Seconds of each of `C` candidates, round by round, as many rounds as time allows; none when it
/// does not allow [`LEAST_ROUNDS`] at `expected` seconds per candidate.
pub(crate) fn rounds<const C: usize>(
    clock: &Clock<'_>,
    mut expected: f64,
    run: &mut dyn FnMut(usize),
) -> Vec<[f64; C]> {
    let mut rounds = Vec::with_capacity(MOST_ROUNDS);
    if !clock.has(expected * (C * LEAST_ROUNDS) as f64) {
        return rounds;
    }
    while rounds.len() < MOST_ROUNDS {
        let mut round = [0.0; C];
        for turn in 0..C {
            if !clock.has(expected) {
                return rounds;
            }
            let candidate = (turn + rounds.len()) % C;
            round[candidate] = clock.time(&mut || run(candidate));
            expected = round[candidate];
        }
        rounds.push(round);
    }
    rounds
}

/// Index of the best candidate: the default unless another one is clearly faster.
pub(crate) fn best_of<const C: usize>(rounds: &[[f64; C]], default: usize) -> usize {
    if rounds.len() < LEAST_ROUNDS {
        return default;
    }
    let mut best = (default, BETTER);
    for candidate in 0..C {
        let ratio = |round: &[f64; C]| round[candidate] / round[default];
        let mut ratios: Vec<f64> = rounds.iter().map(ratio).collect();
        let middle = median(&mut ratios);
        if middle < best.1 && ratios[ratios.len() * 3 / 4] < 1.0 {
            best = (candidate, middle);
        }
    }
    best.0
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;
    use crate::Kernels;

    /// Rounds on a clock that only the candidates move: the n-th measurement takes the seconds of
    /// its candidate times `noise(n)`.
    fn fake_rounds(
        seconds: [f64; 3],
        end: u64,
        noise: impl Fn(usize) -> f64,
    ) -> (Vec<[f64; 3]>, f64) {
        let (now, n) = (Cell::new(0.0), Cell::new(0));
        let clock = Clock { elapsed: &|| now.get(), end: Duration::from_secs(end) };
        let rounds = rounds(&clock, seconds[0], &mut |candidate| {
            now.set(now.get() + seconds[candidate] * noise(n.replace(n.get() + 1)));
        });
        (rounds, now.get())
    }

    #[test]
    fn only_what_is_clearly_better_replaces_the_default() {
        for (seconds, best) in [
            ([1.0, 1.0, 1.0], 1),
            ([0.98, 1.0, 0.975], 1),
            ([0.9, 1.0, 0.96], 0),
            ([0.96, 1.0, 0.9], 2),
            ([2.0, 1.0, 0.5], 2),
        ] {
            let (rounds, _) = fake_rounds(seconds, 1000, |_| 1.0);
            assert_eq!(rounds.len(), MOST_ROUNDS);
            assert_eq!(best_of(&rounds, 1), best, "{seconds:?}");
        }
    }

    #[test]
    fn noise_does_not_flip_the_default() {
        // Every third measurement is disturbed: whose turn it is differs from round to round.
        let (rounds, _) =
            fake_rounds([0.99, 1.0, 1.0], 1000, |n| if n % 3 == 1 { 3.0 } else { 1.0 });
        assert_eq!(best_of(&rounds, 1), 1);
        // Two rounds of five in which another is much faster are no proof.
        let rounds = [[0.5, 1.0], [0.5, 1.0], [1.0, 1.0], [1.01, 1.0], [1.0, 1.0]];
        assert_eq!(best_of(&rounds, 1), 1);
        // Nor are three.
        let rounds = [[0.5, 1.0], [0.5, 1.0], [0.5, 1.0], [1.01, 1.0], [1.0, 1.0]];
        assert_eq!(best_of(&rounds, 1), 1);
        // A clock that stands still proves nothing.
        assert_eq!(best_of(&[[0.0, 0.0]; 5], 1), 1);
    }

    #[test]
    fn measurements_stay_inside_the_budget() {
        for end in 0..60 {
            let (rounds, now) = fake_rounds([1.0, 1.0, 0.5], end, |_| 1.0);
            assert!(now <= end as f64, "{now} s of {end}");
            let is_worth_it = end > 3 * LEAST_ROUNDS as u64;
            assert_eq!(rounds.len() >= LEAST_ROUNDS, is_worth_it, "{end} s");
            assert!(is_worth_it || now == 0.0, "time that can lead to nothing is not spent");
        }
        // The machine becomes slower in the middle: fewer rounds, none of them half.
        let (rounds, now) = fake_rounds([1.0; 3], 30, |n| if n < 9 { 1.0 } else { 4.0 });
        assert!(now <= 30.0 && rounds.len() == 4, "{now} s, {} rounds", rounds.len());
        assert_eq!(best_of(&rounds, 1), 1);
    }

    #[test]
    fn without_a_budget_everything_has_its_default() {
        for kernels in Kernels::available() {
            let mut cpu = Cpu::with(kernels, 2);
            cpu.tuning = Tuning { strip_panels: 9, row_block_bytes: 1, min_parallel_bytes: 0 };
            assert_eq!(cpu.tune(Duration::ZERO), Tuning::default());
            assert_eq!(cpu.tuning, Tuning::default());
        }
    }

    /// A clock that stands still never runs out: every stage runs to its end.
    #[test]
    fn every_stage_runs_and_a_clock_that_stands_still_chooses_the_default() {
        let mut cpu = Cpu::with(Kernels::best(), 1);
        let clock = Clock { elapsed: &|| 0.0, end: Duration::from_secs(1) };
        let panel = panel(&cpu);
        assert_eq!(cpu.tune_sharing(&clock, &panel), Some(0.0));
        let set = [matrix(&panel, PANEL).expect("memory")];
        let default = Tuning::default();
        let candidates = STRIP_PANELS.map(|strip_panels| Tuning { strip_panels, ..default });
        cpu.tune_among(&clock, candidates, 0.0, &set, 1);
        let candidates = ROW_BLOCK_BYTES.map(|n| Tuning { row_block_bytes: n, ..default });
        cpu.tune_among(&clock, candidates, 0.0, &set, 1);
        assert_eq!(cpu.tuning, default);
    }

    #[test]
    fn short_readings_go_on_until_a_disturbance_is_over() {
        let (now, n) = (Cell::new(0.0), Cell::new(0));
        let clock = Clock { elapsed: &|| now.get(), end: Duration::from_secs(1) };
        let mut disturbed_at_first = || {
            let seconds = if n.replace(n.get() + 1) < 200 { 1e-4 } else { 1e-6 };
            now.set(now.get() + seconds);
        };
        let seconds = clock.undisturbed(&mut disturbed_at_first).expect("time for many");
        assert!((0.9e-6..1.1e-6).contains(&seconds), "{seconds} after {} readings", n.get());
        // A clock that stands still, readings that are long, and no time for three.
        let clock = Clock { elapsed: &|| 0.0, end: Duration::from_secs(1) };
        assert_eq!(clock.undisturbed(&mut || {}), Some(0.0));
        for (end, expected, n_expected) in [(1000, Some(1.0), 64), (3, None, 2)] {
            let (now, n) = (Cell::new(0.0), Cell::new(0));
            let clock = Clock { elapsed: &|| now.get(), end: Duration::from_secs(end) };
            let long = &mut || {
                n.set(n.get() + 1);
                now.set(now.get() + 1.0);
            };
            assert_eq!((clock.undisturbed(long), n.get()), (expected, n_expected));
        }
    }

    #[test]
    fn sharing_pays_from_the_cost_of_waking_on() {
        // 4 µs at 16 GB/s: 64 KB, twice that on two threads.
        assert_eq!(sharing_pays_from(4e-6, 1.0 / 16e9, 2), 128 << 10);
        assert_eq!(sharing_pays_from(4e-6, 1.0 / 16e9, 64), 64 << 10);
        assert_eq!(sharing_pays_from(4.5e-6, 1.0 / 17e9, 2), 128 << 10);
        assert_eq!(sharing_pays_from(1.0, 1e-9, 2), 4 << 20);
        for (run, byte) in [(0.0, 1e-9), (0.0, 0.0), (-1.0, 1e-9)] {
            assert_eq!(sharing_pays_from(run, byte, 2), 16 << 10);
        }
        assert_eq!(sharing_pays_from(1.0, 0.0, 2), 4 << 20);
    }

    #[test]
    fn hostile_values_are_clamped() {
        let least = Tuning { strip_panels: 0, row_block_bytes: 0, min_parallel_bytes: 0 };
        assert_eq!((least.clamped().strip_panels, least.clamped().row_block_bytes), (1, 1));
        let most = usize::MAX;
        let most = Tuning { strip_panels: most, row_block_bytes: most, min_parallel_bytes: most };
        let most = most.clamped();
        assert!(most.strip_panels == 64 && most.row_block_bytes == 64 << 20);
        assert_eq!(most.min_parallel_bytes, 8 << 20);
        assert_eq!(Tuning::default().clamped(), Tuning::default());
    }
}
