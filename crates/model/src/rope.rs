//! Rotary position embedding (Su et al., 2021) and the ways to stretch it.
//!
//! Pair `i` of a head is rotated by `position * inv_freq[i]`, with `inv_freq[i] = theta^(-2i/d)`. A
//! scaling changes `inv_freq` once, at load time, and may scale the rotated vector by an attention
//! factor, which is folded into the cosine and sine. So [`RopeTable`] is all the decoder sees.
//!
//! Dynamic NTK and LongRoPE choose their frequencies by the length of the sequence. Following that
//! while a sequence grows would rotate old keys and new queries by different frequencies, and would
//! make a token depend on how its prompt was chunked. Here both are decided once, by the longest
//! context that will be served ([`ArchSpec::max_context`](crate::ArchSpec::max_context)), as vLLM
//! does: a model loaded for sequences within its trained length has the frequencies of a short
//! sequence, and a model loaded for longer ones has those of a sequence of exactly that length.
//! [`RopeSpec::choice`] says which ones are in use and why.

use std::f64::consts::PI;

/// Rotary embedding as a checkpoint declares it.
#[derive(Clone, Debug, PartialEq)]
pub struct RopeSpec {
    /// Leading elements of a head that are rotated; even.
    pub rotary_dim: usize,
    /// Base of the frequencies.
    pub theta: f64,
    /// `max_position_embeddings`, in tokens.
    pub n_trained: usize,
    /// How the frequencies are scaled.
    pub scaling: RopeScaling,
}

/// How frequencies are scaled to reach past the context of the first training.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum RopeScaling {
    /// Frequencies are as trained.
    Default,
    /// All frequencies are divided (Chen et al., 2023).
    Linear {
        /// The divisor.
        factor: f64,
    },
    /// The base grows with the context served once that is longer than the trained one (NTK-aware
    /// scaling).
    Dynamic {
        /// Stretch of the context.
        factor: f64,
    },
    /// Low frequencies are divided, high ones kept, with a ramp between (Peng et al., 2023).
    Yarn(Yarn),
    /// Like YaRN with a ramp over wavelengths (Llama 3.1).
    Llama3 {
        /// Divisor of low frequencies.
        factor: f64,
        /// Wavelengths above `n_original / low_freq_factor` are low frequencies.
        low_freq_factor: f64,
        /// Wavelengths below `n_original / high_freq_factor` are high frequencies.
        high_freq_factor: f64,
        /// Context of the first training, in tokens.
        n_original: usize,
    },
    /// One searched divisor per frequency (Ding et al., 2024).
    LongRope {
        /// Stretch of the context; sets the attention factor.
        factor: f64,
        /// Context of the first training, in tokens.
        n_original: usize,
        /// Overrides the attention factor.
        attention_factor: Option<f64>,
        /// Divisors where at most `n_original` tokens are served.
        short_factors: Vec<f32>,
        /// Divisors where more are served.
        long_factors: Vec<f32>,
    },
    /// The fastest pairs alone turn, and the others stay as they are (Gemma 4).
    Proportional {
        /// Part of the pairs that turn, from 0 to 1.
        turned: f64,
        /// Divisor of all frequencies.
        factor: f64,
    },
    /// One stored divisor per frequency, as GGUF files carry in `rope_freqs.weight`.
    Divisors(Vec<f32>),
}

impl RopeScaling {
    /// Name of the kind of scaling.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Default => "default",
            Self::Linear { .. } => "linear",
            Self::Dynamic { .. } => "dynamic",
            Self::Yarn(_) => "yarn",
            Self::Llama3 { .. } => "llama3",
            Self::LongRope { .. } => "longrope",
            Self::Proportional { .. } => "proportional",
            Self::Divisors(_) => "divisors",
        }
    }
}

/// Parameters of YaRN.
#[derive(Clone, Debug, PartialEq)]
pub struct Yarn {
    /// Divisor of low frequencies.
    pub factor: f64,
    /// Context of the first training, in tokens.
    pub n_original: usize,
    /// Overrides the attention factor.
    pub attention_factor: Option<f64>,
    /// Numerator's weight in the attention factor.
    pub mscale: Option<f64>,
    /// Denominator's weight in the attention factor.
    pub mscale_all_dim: Option<f64>,
    /// Rotations over `n_original` above which a frequency is kept.
    pub beta_fast: f64,
    /// Rotations over `n_original` below which a frequency is divided by `factor`.
    pub beta_slow: f64,
    /// Whether the ramp's ends are rounded outwards to whole pairs.
    pub truncate: bool,
}

/// Frequencies ready for use.
#[derive(Clone, Debug, PartialEq)]
pub struct RopeTable {
    /// Radians per token for each pair; `[rotary_dim / 2]`.
    pub inv_freq: Vec<f32>,
    /// Factor on cosine and sine.
    pub attention_factor: f32,
}

impl RopeSpec {
    /// Longest context that this embedding reaches, in tokens.
    pub fn longest_context(&self) -> usize {
        let stretched = |n: usize, factor: f64| (n as f64 * factor) as usize;
        let reach = match &self.scaling {
            RopeScaling::Linear { factor } | RopeScaling::Dynamic { factor } => {
                stretched(self.n_trained, *factor)
            }
            RopeScaling::Yarn(yarn) => stretched(yarn.n_original, yarn.factor),
            _ => self.n_trained,
        };
        reach.clamp(self.n_trained, pelton_base::limits::MODEL_CONTEXT.max(self.n_trained))
    }

    /// Frequencies for sequences of up to `max_context` tokens.
    pub fn table(&self, max_context: usize) -> RopeTable {
        let plain = self.frequencies(self.theta);
        let (inv_freq, attention_factor) = match &self.scaling {
            RopeScaling::Default => (plain, 1.0),
            RopeScaling::Linear { factor } => (plain.iter().map(|f| f / factor).collect(), 1.0),
            RopeScaling::Dynamic { factor } => {
                (self.frequencies(self.grown_theta(*factor, max_context)), 1.0)
            }
            RopeScaling::Yarn(yarn) => (yarn.scale(self, &plain), yarn.attention_factor()),
            RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, n_original } => {
                let n = *n_original as f64;
                let scale = |f: &f64| {
                    let n_rotations = n * f / (2.0 * PI);
                    let kept =
                        (n_rotations - low_freq_factor) / (high_freq_factor - low_freq_factor);
                    let kept = kept.clamp(0.0, 1.0);
                    (1.0 - kept) * f / factor + kept * f
                };
                (plain.iter().map(scale).collect(), 1.0)
            }
            RopeScaling::LongRope { factor, n_original, attention_factor, .. } => {
                let divisors =
                    self.divisors(max_context).expect("invariant: LongRoPE has divisors");
                let by_stretch = (1.0 + factor.ln() / (*n_original as f64).max(2.0).ln()).sqrt();
                (divide(&plain, divisors), attention_factor.unwrap_or(by_stretch))
            }
            RopeScaling::Proportional { turned, factor } => {
                let n_turned = (turned * self.rotary_dim as f64 / 2.0) as usize;
                let turns = |(i, f)| if i < n_turned { f / factor } else { 0.0 };
                (plain.into_iter().enumerate().map(turns).collect(), 1.0)
            }
            RopeScaling::Divisors(divisors) => (divide(&plain, divisors), 1.0),
        };
        RopeTable {
            inv_freq: inv_freq.into_iter().map(|f| f as f32).collect(),
            attention_factor: attention_factor as f32,
        }
    }

    /// Says which frequencies [`table`](Self::table) chooses and why, in words; `None` where they do not
    /// depend on the context served.
    pub fn choice(&self, max_context: usize) -> Option<String> {
        let because = |n_known: usize| match max_context > n_known {
            true => format!("because {max_context} tokens are served, more than {n_known}"),
            false => format!("because {max_context} tokens are served, no more than {n_known}"),
        };
        match &self.scaling {
            RopeScaling::Dynamic { factor } => {
                let (theta, why) = (self.theta, because(self.n_trained));
                Some(match max_context > self.n_trained {
                    true => {
                        let grown = self.grown_theta(*factor, max_context);
                        format!("dynamic NTK raises the base from {theta} to {grown:.0}, {why}")
                    }
                    false => format!("dynamic NTK keeps the base of {theta}, {why}"),
                })
            }
            RopeScaling::LongRope { n_original, .. } => {
                let length = if max_context > *n_original { "long" } else { "short" };
                Some(format!("LongRoPE uses its {length} factors, {}", because(*n_original)))
            }
            _ => None,
        }
    }

    /// The base of dynamic NTK scaling for sequences of up to `max_context` tokens.
    fn grown_theta(&self, factor: f64, max_context: usize) -> f64 {
        let (d, trained) = (self.rotary_dim as f64, self.n_trained as f64);
        let n = max_context.max(self.n_trained) as f64;
        let exponent = if d > 2.0 { d / (d - 2.0) } else { 1.0 };
        self.theta * (factor * n / trained - (factor - 1.0)).powf(exponent)
    }

    /// The stored divisors that hold for sequences of up to `max_context` tokens, if any.
    fn divisors(&self, max_context: usize) -> Option<&[f32]> {
        match &self.scaling {
            RopeScaling::LongRope { n_original, short_factors, long_factors, .. } => {
                Some(if max_context > *n_original { long_factors } else { short_factors })
            }
            RopeScaling::Divisors(divisors) => Some(divisors),
            _ => None,
        }
    }

    /// `theta^(-2i/d)` for each pair.
    pub(crate) fn frequencies(&self, theta: f64) -> Vec<f64> {
        let d = self.rotary_dim as f64;
        (0..self.rotary_dim / 2).map(|i| theta.powf(-2.0 * i as f64 / d)).collect()
    }
}

fn divide(frequencies: &[f64], divisors: &[f32]) -> Vec<f64> {
    frequencies.iter().zip(divisors).map(|(f, d)| f / f64::from(*d)).collect()
}

impl Yarn {
    fn scale(&self, rope: &RopeSpec, plain: &[f64]) -> Vec<f64> {
        let d = rope.rotary_dim as f64;
        // The pair that turns `n_rotations` times over the original context.
        let pair_of = |n_rotations: f64| {
            d * (self.n_original as f64 / (n_rotations * 2.0 * PI)).ln() / (2.0 * rope.theta.ln())
        };
        let (mut low, mut high) = (pair_of(self.beta_fast), pair_of(self.beta_slow));
        if self.truncate {
            (low, high) = (low.floor(), high.ceil());
        }
        let low = low.max(0.0);
        let mut high = high.min(d - 1.0);
        if low == high {
            high += 0.001;
        }
        let scale = |(i, f): (usize, &f64)| {
            let divided = ((i as f64 - low) / (high - low)).clamp(0.0, 1.0);
            f / self.factor * divided + f * (1.0 - divided)
        };
        plain.iter().enumerate().map(scale).collect()
    }

    /// Factor by which the stretch of the context sharpens attention.
    pub(crate) fn mscale(&self, weight: f64) -> f64 {
        if self.factor <= 1.0 { 1.0 } else { 0.1 * weight * self.factor.ln() + 1.0 }
    }

    /// Factor on cosine and sine.
    pub(crate) fn attention_factor(&self) -> f64 {
        let mscale = |weight: f64| self.mscale(weight);
        let nonzero = |x: Option<f64>| x.filter(|x| *x != 0.0);
        match (self.attention_factor, nonzero(self.mscale), nonzero(self.mscale_all_dim)) {
            (Some(factor), ..) => factor,
            (None, Some(a), Some(b)) => mscale(a) / mscale(b),
            _ => mscale(1.0),
        }
    }
}

impl RopeTable {
    /// Writes the cosines of one position and then its sines.
    ///
    /// The angle is rounded to f32 before the cosine, as checkpoints were trained; cosine and sine
    /// are then exact to f32.
    ///
    /// # Shapes
    ///
    /// `cos_sin`: `[rotary_dim]`.
    ///
    /// # Panics
    ///
    /// When the slice is not `rotary_dim` long.
    pub fn fill(&self, position: usize, cos_sin: &mut [f32]) {
        let half = self.inv_freq.len();
        assert_eq!(cos_sin.len(), 2 * half);
        let (cos, sin) = cos_sin.split_at_mut(half);
        let factor = f64::from(self.attention_factor);
        for ((cos, sin), inv_freq) in cos.iter_mut().zip(sin).zip(&self.inv_freq) {
            let (s, c) = f64::from(position as f32 * inv_freq).sin_cos();
            (*cos, *sin) = ((c * factor) as f32, (s * factor) as f32);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(scaling: RopeScaling) -> RopeSpec {
        RopeSpec { rotary_dim: 64, theta: 10_000.0, n_trained: 2048, scaling }
    }

    #[test]
    fn dynamic_scaling_within_the_trained_length_changes_nothing() {
        let plain = spec(RopeScaling::Default).table(2048);
        let dynamic = spec(RopeScaling::Dynamic { factor: 4.0 });
        assert_eq!(dynamic.table(100), plain);
        assert_eq!(dynamic.table(2048), plain);
        assert!(dynamic.table(4096).inv_freq[31] < plain.inv_freq[31]);
        assert_eq!(dynamic.longest_context(), 8192);
    }

    #[test]
    fn the_choice_by_context_is_said_in_words() {
        let dynamic = spec(RopeScaling::Dynamic { factor: 4.0 });
        let short = "dynamic NTK keeps the base of 10000, because 2048 tokens are served, no more \
                     than 2048";
        assert_eq!(dynamic.choice(2048).as_deref(), Some(short));
        let long = dynamic.choice(4096).expect("it depends on the context");
        assert!(long.starts_with("dynamic NTK raises the base from 10000 to 52664"), "{long}");
        assert!(long.ends_with("because 4096 tokens are served, more than 2048"), "{long}");
        let long_rope = spec(RopeScaling::LongRope {
            factor: 8.0,
            n_original: 512,
            attention_factor: None,
            short_factors: vec![1.0; 32],
            long_factors: vec![2.0; 32],
        });
        let said = |context| long_rope.choice(context).expect("it depends on the context");
        assert!(said(512).starts_with("LongRoPE uses its short factors, because 512"));
        assert!(said(513).starts_with("LongRoPE uses its long factors, because 513"));
        assert_eq!(spec(RopeScaling::Linear { factor: 2.0 }).choice(4096), None);
    }

    #[test]
    fn llama3_keeps_high_frequencies_and_divides_low_ones() {
        let scaling = RopeScaling::Llama3 {
            factor: 8.0,
            low_freq_factor: 1.0,
            high_freq_factor: 4.0,
            n_original: 2048,
        };
        let plain = spec(RopeScaling::Default).table(2048).inv_freq;
        let scaled = spec(scaling).table(2048).inv_freq;
        assert_eq!(scaled[0], plain[0]);
        assert_eq!(scaled[31], (f64::from(plain[31]) / 8.0) as f32);
    }

    #[test]
    fn position_zero_is_not_rotated() {
        let table = spec(RopeScaling::Default).table(2048);
        let mut cos_sin = [9.0; 64];
        table.fill(0, &mut cos_sin);
        assert_eq!(cos_sin[..32], [1.0; 32]);
        assert_eq!(cos_sin[32..], [0.0; 32]);
    }
}
