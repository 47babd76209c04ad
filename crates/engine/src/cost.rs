//! The price of a step on this machine: five figures, fitted to the steps that were measured.
//!
//! ```text
//! time = base + tokens · t + samples · s + attended · a + moved · m          (`StepCost`)
//!
//! price_i = q_i · prior_i        z_i = load_i · prior_i / predicted        y = time / predicted
//!
//! observe:   A ← λ (A − (1 − μ) A z zᵀ A / zᵀ A z) + z zᵀ        b alike, so that A q stays b
//! solve:     (A + ρ/s² I) q = b + ρ/s 1,  q ≥ 0                  s = 1ᵀb / 1ᵀA1
//! ```
//!
//! This is recursive least squares over relative errors, so that a step of one millisecond says as
//! much as one of a second. Three things make it fit for a server:
//!
//! * **Directional forgetting.** Only the direction that a step measures is forgotten fast (`μ`),
//!   the rest slowly (`λ`). After an hour of decoding alone the price of a prompt is still the
//!   same.
//! * **A ridge towards the prior's proportions.** Steps that decode one request each cannot
//!   separate the price of a step from that of its token. Prices that the data leave open keep the
//!   proportions of the prior, whose scale `s` is itself fitted: one measured step is enough for
//!   sane prices of all parts.
//! * **Clipped residuals.** A step in which the thread lost its core says little about the next.
//!   An error beyond three mean errors (more, where the prediction itself is unsure by the usual
//!   `zᵀ A⁻¹ z`) counts as if it were that far. Four of them in a row on the same side are no
//!   accident: the machine changed its pace, and all prices with it.
//!
//! A step costs about 600 multiplications and no allocation.
//!
//! Tried and dropped: plain exponential forgetting (after a thousand decode steps the matrix had
//! one direction left, and a prompt was worth whatever the ridge said); the ridge in picoseconds
//! (prices differ by a million, so it was either nothing or everything); absolute errors (a single
//! prompt outweighed a thousand decode steps).
//!
//! Paper: Cao and Schwartz, "A directional forgetting algorithm based on the decomposition of the
//! information matrix", Automatica 2000.

use pelton_sched::{StepCost, StepLoad};

/// Prices: step, token, sample, attended pair, moved block.
const N: usize = 5;
type Vector = [f64; N];
type Matrix = [Vector; N];

/// Memory of the direction that a step measures: about its last fifty steps.
const KEPT_ALONG: f64 = 0.98;
/// Memory of all directions: about two thousand steps.
const KEPT: f64 = 0.9995;
/// Weight of the prior: as much as one step of which a tenth is the part in question.
const RIDGE: f64 = 0.01;
/// Mean errors beyond which a residual is clipped.
const CLIP: f64 = 3.0;
/// So many clipped residuals in a row, all on one side, are a change of pace.
const CHANGE: i32 = 4;
/// Steps that are not learned from: caches are cold, pages not there yet.
const N_COLD: u64 = 1;
/// Bounds of the mean relative error that residuals are clipped by; it begins at the upper one.
const ERROR_BOUNDS: (f64, f64) = (0.02, 0.5);
/// How fast the mean errors follow.
const ERROR_PACE: f64 = 1.0 / 32.0;

/// Prices before any step was measured: a token costs a seventh of reading all weights, its row
/// of the head a third of it, a pair of tokens a ten-thousandth, moving a block a tenth. Only the
/// proportions matter.
const USUAL: StepCost = StepCost {
    base_ps: 7_000_000_000,
    token_ps: 1_000_000_000,
    sample_ps: 300_000_000,
    attended_ps: 100_000,
    moved_block_ps: 100_000_000,
};

/// Learns [`StepCost`] from measured steps.
#[derive(Clone, Debug)]
pub struct CostFit {
    /// In picoseconds.
    prior: Vector,
    /// Prices over the prior's.
    q: Vector,
    information: Matrix,
    moment: Vector,
    n_steps: u64,
    /// Tokens of the largest step that was learned from.
    n_tried_tokens: usize,
    /// Clipped residuals in a row; below zero when the steps were faster than predicted.
    surprises: i32,
    /// Mean of the clipped relative residuals.
    spread: f64,
    /// Mean relative error of predictions, as it is.
    error: f64,
    cost: StepCost,
}

impl Default for CostFit {
    fn default() -> Self {
        Self::new(None)
    }
}

impl CostFit {
    /// Nothing measured. With a `prior`, such as an earlier measurement, prices are known at once;
    /// without, all are zero until the second step.
    pub fn new(prior: Option<StepCost>) -> Self {
        let StepCost { base_ps, token_ps, sample_ps, attended_ps, moved_block_ps } =
            prior.unwrap_or(USUAL);
        let usual = [base_ps, token_ps, sample_ps, attended_ps, moved_block_ps];
        Self {
            // A part that is said to cost nothing costs a picosecond, so that it can cost more.
            prior: usual.map(|price| price.max(1) as f64),
            q: [1.0; N],
            information: [[0.0; N]; N],
            moment: [0.0; N],
            n_steps: 0,
            n_tried_tokens: if prior.is_some() { usize::MAX } else { 0 },
            surprises: 0,
            spread: ERROR_BOUNDS.1,
            error: 0.0,
            cost: prior.unwrap_or_default(),
        }
    }

    /// Takes in that a step of `load` took `time_ns` nanoseconds.
    pub fn observe(&mut self, load: &StepLoad, time_ns: u64) {
        let StepLoad { n_tokens, n_samples, n_attended, n_moved_blocks } = *load;
        self.n_steps += 1;
        if self.n_steps <= N_COLD || time_ns == 0 {
            return;
        }
        let n_tried_tokens = usize::try_from(n_tokens).unwrap_or(usize::MAX);
        self.n_tried_tokens = self.n_tried_tokens.max(n_tried_tokens);
        let time = time_ns as f64 * 1000.0;
        let counts = [1, n_tokens, n_samples, n_attended, n_moved_blocks];
        let parts: Vector = std::array::from_fn(|i| counts[i] as f64 * self.prior[i]);
        // The first step sets the prior's scale, whatever the prior would say of it.
        let predicted = if self.cost.is_known() { dot(&parts, &self.q) } else { time };
        if self.cost.is_known() {
            let error = ((time - predicted) / time).abs();
            // The first error is the mean of one.
            let pace = ERROR_PACE.max(1.0 / (self.n_steps - N_COLD) as f64);
            self.error += pace * (error - self.error);
        }
        let scale = predicted.clamp(time / 4.0, time * 4.0);
        let z = parts.map(|part| part / scale);
        let unsure = (1.0 + self.uncertainty(&z)).sqrt();
        let residual = (time - predicted) / scale;
        let most = CLIP * self.spread * unsure;
        let clipped = residual.clamp(-most, most);
        let (surprise, side) = (residual != clipped, if residual > 0.0 { 1 } else { -1 });
        self.surprises = match self.surprises * side {
            0.. if surprise => self.surprises + side,
            _ => i32::from(surprise) * side,
        };
        if self.surprises.abs() >= CHANGE {
            let pace = (time / predicted).clamp(0.25, 4.0).sqrt();
            self.moment = self.moment.map(|moment| moment * pace);
        }
        let spread = self.spread + ERROR_PACE * ((clipped / unsure).abs() * 1.3 - self.spread);
        self.spread = spread.clamp(ERROR_BOUNDS.0, ERROR_BOUNDS.1);
        self.learn(&z, predicted / scale + clipped);
        self.solve();
    }

    /// The prices as of now.
    pub fn cost(&self) -> StepCost {
        self.cost
    }

    /// Tokens of the largest step that the prices were learned from; no limit where they were
    /// measured before, zero while nothing is known.
    pub fn n_tried_tokens(&self) -> usize {
        self.n_tried_tokens
    }

    /// Mean of |predicted − measured| / measured over the last steps, each predicted before it was
    /// learned from; zero while there was none.
    pub fn relative_error(&self) -> f64 {
        self.error
    }

    /// Forgets along `z`, then adds it.
    fn learn(&mut self, z: &Vector, y: f64) {
        let a = &mut self.information;
        let az: Vector = std::array::from_fn(|i| dot(&a[i], z));
        let zaz = dot(z, &az);
        let qaz = dot(&self.moment, z);
        let along = if zaz > 1e-9 { (1.0 - KEPT_ALONG) / zaz } else { 0.0 };
        for i in 0..N {
            for j in 0..N {
                a[i][j] = KEPT * (a[i][j] - along * az[i] * az[j]) + z[i] * z[j];
            }
            self.moment[i] = KEPT * (self.moment[i] - along * az[i] * qaz) + z[i] * y;
        }
    }

    /// Refits the prices.
    fn solve(&mut self) {
        let total: f64 = self.information.iter().flatten().sum();
        let scale = (self.moment.iter().sum::<f64>() / total).max(1e-9);
        let ridge = RIDGE / (scale * scale);
        let mut free = [true; N];
        // At most one price is fixed at zero per round.
        for _ in 0..N {
            let mut matrix = self.information;
            let mut right = self.moment;
            for i in 0..N {
                matrix[i][i] += ridge;
                right[i] += ridge * scale;
                if !free[i] {
                    (0..N).for_each(|j| (matrix[i][j], matrix[j][i]) = (0.0, 0.0));
                    (matrix[i][i], right[i]) = (1.0, 0.0);
                }
            }
            self.q = solved(matrix, right);
            let least = (0..N).min_by(|&i, &j| self.q[i].total_cmp(&self.q[j]));
            match least {
                Some(i) if self.q[i] < 0.0 => free[i] = false,
                _ => break,
            }
        }
        self.q = self.q.map(|q| q.max(0.0));
        // Beyond 2⁶³ ps there is no step; the cast stops at the type's end anyway.
        let price = |i: usize| (self.q[i] * self.prior[i]).round() as u64;
        self.cost = StepCost {
            // Known prices are not all zero.
            base_ps: price(0).max(1),
            token_ps: price(1),
            sample_ps: price(2),
            attended_ps: price(3),
            moved_block_ps: price(4),
        };
    }

    /// Variance of the prediction over that of a measurement.
    fn uncertainty(&self, z: &Vector) -> f64 {
        let mut matrix = self.information;
        let total: f64 = matrix.iter().flatten().sum();
        let scale = if total > 0.0 { self.moment.iter().sum::<f64>() / total } else { 1.0 };
        let ridge = RIDGE / (scale * scale).max(1e-18);
        (0..N).for_each(|i| matrix[i][i] += ridge);
        dot(z, &solved(matrix, *z)).max(0.0)
    }
}

fn dot(a: &Vector, b: &Vector) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// Solves `matrix · x = right` for a positive definite matrix, by Cholesky's decomposition.
fn solved(mut matrix: Matrix, mut right: Vector) -> Vector {
    for j in 0..N {
        for k in 0..j {
            for i in j..N {
                matrix[i][j] -= matrix[i][k] * matrix[j][k];
            }
        }
        // Rounding may take a tiny pivot below zero.
        let pivot = matrix[j][j].max(1e-12).sqrt();
        matrix[j][j] = pivot;
        (j + 1..N).for_each(|i| matrix[i][j] /= pivot);
    }
    for i in 0..N {
        let known: f64 = (0..i).map(|k| matrix[i][k] * right[k]).sum();
        right[i] = (right[i] - known) / matrix[i][i];
    }
    for i in (0..N).rev() {
        let known: f64 = (i + 1..N).map(|k| matrix[k][i] * right[k]).sum();
        right[i] = (right[i] - known) / matrix[i][i];
    }
    right
}

#[cfg(test)]
mod tests;
