//! Helpers of several files of tests.

use pelton_base::{Dynatemp, SamplerStage, SamplingParams};
use pelton_sampling::Philox;

/// Uniform in [-scale, scale), from the generator under test with a key no test samples with.
pub(crate) fn random_logits(n: usize, scale: f32, seed: u64) -> Vec<f32> {
    let rng = Philox::new(seed, 99);
    (0..n).map(|i| (rng.uniform(i as u64) as f32 * 2.0 - 1.0) * scale).collect()
}

/// The change of a row's parameters by its place.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Moment {
    /// Whether XTC applies.
    pub(crate) excludes: bool,
    /// Mirostat's cut; `None` for that of the first token.
    pub(crate) mu: Option<f64>,
}

/// The probabilities that the parameters ask for, after the processors: each definition word for
/// word, over lists that are sorted whole, all in f64.
pub(crate) fn naive(params: &SamplingParams, logits: &[f32], moment: Moment) -> Vec<f64> {
    let mut list = Naive::of(logits);
    let mut probabilities = vec![0.0; logits.len()];
    if list.logits.is_empty() {
        probabilities.iter_mut().take(1).for_each(|p| *p = 1.0);
        return probabilities;
    }
    if params.is_greedy() {
        list.keep(1);
    } else if let Some(mirostat) = params.mirostat {
        list.apply(SamplerStage::Temperature, params, moment);
        let mu = moment.mu.unwrap_or(2.0 * f64::from(mirostat.tau));
        list.mirostat(mirostat.version, mu, params.min_keep, logits.len());
    } else {
        let canonical = SamplerStage::ALL.to_vec();
        for stage in params.samplers.as_ref().unwrap_or(&canonical) {
            list.apply(*stage, params, moment);
        }
    }
    for (p, (id, _)) in list.probabilities().into_iter().zip(&list.logits) {
        probabilities[*id] = p;
    }
    probabilities
}

/// The tokens that are left, the largest first, and their logits.
struct Naive {
    logits: Vec<(usize, f64)>,
}

impl Naive {
    fn of(logits: &[f32]) -> Self {
        let tame = |logit: f32| if logit.is_nan() { f64::NEG_INFINITY } else { f64::from(logit) };
        let tame = |logit| tame(logit).min(f64::from(f32::MAX));
        let mut logits: Vec<_> = logits.iter().map(|&logit| tame(logit)).enumerate().collect();
        logits.retain(|(_, logit)| *logit > f64::NEG_INFINITY);
        logits.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
        Self { logits }
    }

    fn probabilities(&self) -> Vec<f64> {
        let weights: Vec<f64> =
            self.logits.iter().map(|(_, l)| (l - self.logits[0].1).exp()).collect();
        let total: f64 = weights.iter().sum();
        weights.iter().map(|weight| weight / total).collect()
    }

    /// `-p ln p`, which is 0 at 0.
    fn entropy(&self) -> f64 {
        self.probabilities().iter().map(|&p| if p > 0.0 { -p * p.ln() } else { 0.0 }).sum()
    }

    fn keep(&mut self, n: usize) {
        self.logits.truncate(n.max(1));
    }

    fn apply(&mut self, stage: SamplerStage, params: &SamplingParams, moment: Moment) {
        let n_least = params.min_keep.max(1);
        let p = self.probabilities();
        let n = self.logits.len();
        match stage {
            SamplerStage::Temperature => self.heat(params),
            SamplerStage::TopK if params.top_k > 0 => {
                self.keep((params.top_k as usize).max(n_least));
            }
            SamplerStage::TopP if params.top_p < 1.0 => {
                let reached = |n: &usize| p[..*n].iter().sum::<f64>() >= f64::from(params.top_p);
                self.keep((n_least..n).find(reached).unwrap_or(n));
            }
            SamplerStage::MinP if params.min_p > 0.0 => {
                let likely = |q: &&f64| **q >= f64::from(params.min_p) * p[0];
                self.keep(p.iter().filter(likely).count().max(n_least));
            }
            SamplerStage::TopNSigma if params.top_n_sigma > 0.0 => {
                let mean = self.logits.iter().map(|(_, l)| l).sum::<f64>() / n as f64;
                let squares = self.logits.iter().map(|(_, l)| (l - mean).powi(2)).sum::<f64>();
                let sigma = (squares / n as f64).sqrt();
                let least = self.logits[0].1 - f64::from(params.top_n_sigma) * sigma;
                self.keep(self.logits.iter().filter(|(_, l)| *l >= least).count().max(n_least));
            }
            SamplerStage::TypicalP if params.typical_p < 1.0 => {
                let entropy = self.entropy();
                let distance = |i: &usize| (-p[*i].ln() - entropy).abs();
                let mut order: Vec<usize> = (0..n).collect();
                order.sort_by(|a, b| {
                    let ids = [a, b].map(|&i| self.logits[i].0);
                    distance(a).total_cmp(&distance(b)).then(ids[0].cmp(&ids[1]))
                });
                let mass = |n: usize| order[..n].iter().map(|&i| p[i]).sum::<f64>();
                let reached = |n: &usize| mass(*n) >= f64::from(params.typical_p);
                order.truncate((n_least..n).find(reached).unwrap_or(n));
                order.sort_unstable();
                self.logits = order.iter().map(|&i| self.logits[i]).collect();
            }
            SamplerStage::Xtc if moment.excludes && params.xtc.threshold <= 0.5 => {
                let n_tops = p.iter().filter(|q| **q >= f64::from(params.xtc.threshold)).count();
                if n_tops > 1 && n + 1 - n_tops >= n_least {
                    self.logits.drain(..n_tops - 1);
                }
            }
            _ => {}
        }
    }

    fn heat(&mut self, params: &SamplingParams) {
        let Dynatemp { range, exponent } = params.dynatemp;
        let [temperature, range, exponent] = [params.temperature, range, exponent].map(f64::from);
        let mut dynamic = temperature;
        if range > 0.0 {
            if self.logits.len() < 2 {
                return;
            }
            let share = self.entropy() / (self.logits.len() as f64).ln();
            let low = (temperature - range).max(0.0);
            dynamic = low + (temperature + range - low) * share.powf(exponent);
        }
        if dynamic <= 0.0 {
            return self.keep(1);
        }
        let max = self.logits[0].1;
        self.logits.iter_mut().for_each(|(_, logit)| *logit = (*logit - max) / dynamic);
    }

    fn mirostat(&mut self, version: u8, mu: f64, min_keep: usize, n_vocab: usize) {
        let p = self.probabilities();
        let n = p.len();
        if n < 2 {
            return;
        }
        if version == 2 {
            return self.keep(p.iter().filter(|p| -p.log2() <= mu).count().max(min_keep));
        }
        let (mut products, mut squares) = (0.0, 0.0);
        for i in 0..n.min(100) - 1 {
            let t = ((i as f64 + 2.0) / (i as f64 + 1.0)).ln();
            products += t * (self.logits[i].1 - self.logits[i + 1].1);
            squares += t * t;
        }
        let s = products / squares;
        let k = ((s - 1.0) * mu.exp2() / (1.0 - (n_vocab as f64).powf(1.0 - s))).powf(1.0 / s);
        self.keep(if k < n as f64 { (k as usize).max(min_keep) } else { n });
    }
}
