//! The figures of a text under a model, as a table or as JSON.

use serde::Serialize;

use super::interval::N_DRAWS;
use super::{Config, Interval, Sums};

/// Figures of a model on one text.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// Name of the model.
    pub model: String,
    /// Tokens that were scored.
    pub n_tokens: usize,
    /// Bytes of their text.
    pub n_bytes: usize,
    /// Tokens of a window.
    pub window: usize,
    /// Tokens from one window to the next.
    pub stride: usize,
    /// Windows that were scored.
    pub n_windows: usize,
    /// Tokens that each window begins with before those of the text.
    pub n_prefix: usize,
    /// `exp` of the mean negative log likelihood of a token.
    pub perplexity: Interval,
    /// The same per byte of the text.
    pub perplexity_per_byte: Interval,
    /// Negative log likelihood per byte in bits.
    pub bits_per_byte: Interval,
    /// The distance from a reference.
    pub against: Option<Against>,
    /// How the intervals were made.
    pub intervals: String,
    /// Time of the scoring.
    pub seconds: f64,
    /// Scored tokens per second.
    pub tokens_per_second: f64,
    /// Whether some windows are missing.
    pub interrupted: bool,
    /// Divergence of each window in nats per token, in the order of the text; empty without a
    /// reference.
    #[serde(skip)]
    pub(super) kl_by_window: Vec<f64>,
}

/// The distance from a reference model on the same tokens.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Against {
    /// Name of the reference.
    pub reference: String,
    /// Its perplexity per token.
    pub perplexity: Interval,
    /// How much higher the model's perplexity per token is, in percent.
    pub perplexity_increase_percent: Interval,
    /// Mean divergence of the model from the reference, in nats per token.
    pub kl_divergence: Interval,
    /// Share of the tokens where both hold the same token for the likeliest.
    pub top1_agreement: Interval,
}

/// The model, the text and the windows that the figures are about.
pub(super) struct Facts {
    pub(super) model: String,
    pub(super) reference: Option<String>,
    pub(super) n_prefix: usize,
    pub(super) n_windows_planned: usize,
    pub(super) seconds: f64,
}

/// Perplexity per token of these windows.
pub(super) fn perplexity(windows: &[Sums]) -> f64 {
    let nats: f64 = windows.iter().map(|window| window.nats).sum();
    let n_tokens: usize = windows.iter().map(|window| window.n_tokens).sum();
    (nats / n_tokens as f64).exp()
}

impl Report {
    pub(super) fn new(facts: Facts, config: &Config, windows: &[Sums]) -> Self {
        let n_tokens = windows.iter().map(|window| window.n_tokens).sum();
        let per_byte = |sums: &Sums| sums.nats / sums.n_bytes as f64;
        let kl_by_window = match &facts.reference {
            Some(_) => windows.iter().map(|sums| sums.kl / sums.n_tokens as f64).collect(),
            None => Vec::new(),
        };
        let against = facts.reference.map(|reference| {
            let change = |sums: &Sums| (sums.nats - sums.reference_nats) / sums.n_tokens as f64;
            let share = |part: f64, sums: &Sums| part / sums.n_tokens as f64;
            Against {
                reference,
                perplexity: Interval::new(windows, |s| share(s.reference_nats, s).exp()),
                perplexity_increase_percent: Interval::new(windows, |s| change(s).exp_m1() * 100.0),
                kl_divergence: Interval::new(windows, |s| share(s.kl, s)),
                top1_agreement: Interval::new(windows, |s| share(s.n_agreed as f64, s)),
            }
        });
        Self {
            model: facts.model,
            n_tokens,
            n_bytes: windows.iter().map(|window| window.n_bytes).sum(),
            window: config.window,
            stride: config.stride,
            n_windows: windows.len(),
            n_prefix: facts.n_prefix,
            perplexity: Interval::new(windows, |s| (s.nats / s.n_tokens as f64).exp()),
            perplexity_per_byte: Interval::new(windows, |s| per_byte(s).exp()),
            bits_per_byte: Interval::new(windows, |s| per_byte(s) / std::f64::consts::LN_2),
            against,
            intervals: format!("95 %, bootstrap over windows, {N_DRAWS} draws"),
            seconds: facts.seconds,
            tokens_per_second: n_tokens as f64 / facts.seconds.max(1e-9),
            interrupted: windows.len() < facts.n_windows_planned,
            kl_by_window,
        }
    }

    /// The figures as lines of text.
    pub fn render(&self) -> String {
        let mut lines = vec![
            ("model", self.model.clone()),
            ("text", format!("{} tokens scored, {} bytes", self.n_tokens, self.n_bytes)),
            ("windows", self.windows_in_words()),
            ("perplexity", words(self.perplexity, 4)),
            ("per byte", words(self.perplexity_per_byte, 4)),
            ("bits per byte", words(self.bits_per_byte, 4)),
        ];
        if let Some(against) = &self.against {
            let percent = against.perplexity_increase_percent;
            let agreed = against.top1_agreement;
            let agreed =
                [Some(agreed.value), agreed.low, agreed.high].map(|x| x.map(|x| 100.0 * x));
            let agreed =
                Interval { value: agreed[0].unwrap_or(0.0), low: agreed[1], high: agreed[2] };
            lines.extend([
                ("reference", against.reference.clone()),
                ("  its perplexity", words(against.perplexity, 4)),
                ("  increase", words(percent, 3).replacen(' ', " % ", 1)),
                ("  KL divergence", words(against.kl_divergence, 6)),
                ("  same top token", words(agreed, 2).replacen(' ', " % ", 1)),
            ]);
        }
        lines.push(("intervals", self.intervals.clone()));
        let (seconds, rate) = (self.seconds, self.tokens_per_second);
        lines.push(("time", format!("{seconds:.1} s, {rate:.0} tokens per second")));
        let mut text: String =
            lines.iter().map(|(name, value)| format!("{name:<18}{value}\n")).collect();
        if self.interrupted {
            text.push_str("(interrupted: the figures are those of the first windows)\n");
        }
        text
    }

    fn windows_in_words(&self) -> String {
        let Self { n_windows, window, stride, n_prefix, .. } = self;
        let prefix = match n_prefix {
            0 => String::new(),
            n => format!(", each begins with {n} special"),
        };
        format!("{n_windows} of {window} tokens, {stride} apart{prefix}")
    }
}

/// A figure with its interval, such as `1.50 (1.40 to 1.61)`.
pub(super) fn words(interval: Interval, digits: usize) -> String {
    let Interval { value, low, high } = interval;
    match (low, high) {
        (Some(low), Some(high)) => format!("{value:.digits$} ({low:.digits$} to {high:.digits$})"),
        _ => format!("{value:.digits$} (one window: no interval)"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_follow_from_the_sums() {
        let window = Sums {
            n_tokens: 10,
            n_bytes: 40,
            nats: 20.0,
            reference_nats: 10.0,
            kl: 1.0,
            n_agreed: 9,
        };
        let facts = Facts {
            model: "a".to_owned(),
            reference: Some("b".to_owned()),
            n_prefix: 1,
            n_windows_planned: 3,
            seconds: 2.0,
        };
        let report = Report::new(facts, &Config { window: 8, stride: 4 }, &[window, window]);
        assert_eq!(report.perplexity.value, 2.0_f64.exp());
        assert_eq!(report.perplexity_per_byte.value, 0.5_f64.exp());
        assert!(report.interrupted && report.tokens_per_second == 10.0);
        let against = report.against.as_ref().expect("a reference");
        assert!((against.perplexity_increase_percent.value - 171.828).abs() < 1e-3);
        assert_eq!((against.kl_divergence.value, against.top1_agreement.value), (0.1, 0.9));
        let text = report.render();
        for part in ["2 of 8 tokens, 4 apart", "171.828 % (", "90.00 % (", "interrupted"] {
            assert!(text.contains(part), "`{part}` is missing in: {text}");
        }
    }
}
