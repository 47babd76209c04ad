//! The methods by name, and how an engine is told which to use.

use super::{EarlyExit, Ngram, Proposer, Suffix};

/// How drafts are made.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum SpecMethod {
    /// Not at all.
    #[default]
    Off,
    /// By whichever promises most for a row: all that need nothing but what requests say, and the
    /// draft model where there is one.
    Auto,
    /// From runs of tokens that occurred before in the prompt or the answer.
    Ngram,
    /// From the longest match in prompt, answer and prediction.
    Suffix,
    /// By a smaller model.
    Draft,
    /// By the first layers of the model itself.
    EarlyExit,
}

impl SpecMethod {
    /// Every method.
    pub const ALL: &[Self] =
        &[Self::Off, Self::Auto, Self::Ngram, Self::Suffix, Self::Draft, Self::EarlyExit];

    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Auto => "auto",
            Self::Ngram => "ngram",
            Self::Suffix => "suffix",
            Self::Draft => "draft",
            Self::EarlyExit => "early-exit",
        }
    }

    /// The proposers of a method, but for models that draft.
    pub fn proposers(self) -> Vec<Box<dyn Proposer>> {
        match self {
            Self::Off | Self::Draft => Vec::new(),
            Self::Auto => vec![Box::new(Suffix::default())],
            Self::Ngram => vec![Box::new(Ngram::default())],
            Self::Suffix => vec![Box::new(Suffix::default())],
            Self::EarlyExit => vec![Box::new(EarlyExit)],
        }
    }
}

/// By what drafts are judged.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Verification {
    /// Each place samples as plain decoding would, and goes on while the draft is what it sampled: the
    /// same tokens as without drafts, at any temperature.
    #[default]
    Match,
    /// Rejection sampling: the same distribution as without drafts, and for greedy requests the same
    /// tokens; more drafts of a draft model are accepted.
    Rejection,
    /// Whatever the model finds likely enough is accepted: **lossy**, for those who trade the model's
    /// distribution for speed.
    Typical,
}

impl Verification {
    /// Every way.
    pub const ALL: &[Self] = &[Self::Match, Self::Rejection, Self::Typical];

    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Match => "match",
            Self::Rejection => "rejection",
            Self::Typical => "typical-lossy",
        }
    }
}

/// Whether and how an engine speculates.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct SpecConfig {
    /// How drafts are made; [`SpecMethod::Draft`] needs a model besides.
    pub method: SpecMethod,
    /// Most drafts of one request in one step.
    pub max_drafts: usize,
    /// Layers after which [`SpecMethod::EarlyExit`] drafts; it needs them, and nobody else does.
    pub exit_layers: Option<usize>,
    /// By what drafts are judged.
    pub verification: Verification,
    /// Whether every draft that can be made is verified, whatever it costs; for measurements.
    pub is_forced: bool,
}

impl Default for SpecConfig {
    fn default() -> Self {
        Self {
            method: SpecMethod::Off,
            max_drafts: 8,
            exit_layers: None,
            verification: Verification::Match,
            is_forced: false,
        }
    }
}
