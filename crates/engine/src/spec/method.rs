//! The methods of drafting by name, and the configuration that chooses one.

use super::{EarlyExit, Lookahead, Ngram, Proposer, Recent, Recycle, Suffix};

/// How drafts are made.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum SpecMethod {
    /// No drafts.
    #[default]
    Off,
    /// By the proposer that promises most for each row: all that need only the text of requests,
    /// and the draft model where there is one.
    Auto,
    /// From runs of tokens that occurred before in the prompt or the answer.
    Ngram,
    /// From the longest match in prompt, answer and prediction.
    Suffix,
    /// By a smaller model.
    Draft,
    /// By the first layers of the model itself.
    EarlyExit,
    /// From the likeliest tokens after each token, as last seen.
    Recycle,
    /// From n-grams that the model guesses ahead.
    Lookahead,
}

impl SpecMethod {
    /// Every method.
    pub const ALL: &[Self] = &[
        Self::Off,
        Self::Auto,
        Self::Ngram,
        Self::Suffix,
        Self::Draft,
        Self::EarlyExit,
        Self::Recycle,
        Self::Lookahead,
    ];

    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Auto => "auto",
            Self::Ngram => "ngram",
            Self::Suffix => "suffix",
            Self::Draft => "draft",
            Self::EarlyExit => "early-exit",
            Self::Recycle => "recycle",
            Self::Lookahead => "lookahead",
        }
    }

    /// The proposers of a method with its defaults, without a draft model.
    fn proposers(self) -> Vec<Box<dyn Proposer>> {
        match self {
            Self::Off | Self::Draft => Vec::new(),
            Self::Auto => vec![Box::new(Suffix::default()), Box::new(Recycle::default())],
            Self::Ngram => vec![Box::new(Ngram::default())],
            Self::Suffix => vec![Box::new(Suffix::default())],
            Self::EarlyExit => vec![Box::new(EarlyExit)],
            Self::Recycle => vec![Box::new(Recycle::default())],
            Self::Lookahead => vec![Box::new(Lookahead::default())],
        }
    }
}

/// The way in which drafts are judged.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Verification {
    /// Each place samples as plain decoding would, and goes on while the draft equals the sample:
    /// the same tokens as without drafts, at any temperature.
    #[default]
    Match,
    /// Rejection sampling: the same distribution as without drafts, and for greedy requests the
    /// same tokens; more drafts of a draft model are accepted.
    Rejection,
    /// Every draft that the model finds likely enough is accepted: **lossy**, trades the model's
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
    /// Most drafts of one request in one step; [`SpecMethod::Lookahead`] takes several times as
    /// many.
    pub max_drafts: usize,
    /// Layers after which [`SpecMethod::EarlyExit`] drafts; the only method that needs this.
    pub exit_layers: Option<usize>,
    /// The way in which drafts are judged.
    pub verification: Verification,
    /// Tokens of recent answers to requests of the same namespace that [`SpecMethod::Suffix`] and
    /// [`SpecMethod::Auto`] also search; zero for none.
    pub recent_tokens: usize,
    /// Whether every draft that can be made is verified at any price; for measurements.
    pub is_forced: bool,
}

impl SpecConfig {
    /// The proposers, without a draft model.
    pub fn proposers(&self) -> Vec<Box<dyn Proposer>> {
        let mut proposers = self.method.proposers();
        if self.recent_tokens > 0 && matches!(self.method, SpecMethod::Suffix | SpecMethod::Auto) {
            proposers.push(Box::new(Recent::new(self.recent_tokens)));
        }
        proposers
    }
}

impl Default for SpecConfig {
    fn default() -> Self {
        Self {
            method: SpecMethod::Off,
            max_drafts: 8,
            exit_layers: None,
            verification: Verification::Match,
            recent_tokens: 0,
            is_forced: false,
        }
    }
}
