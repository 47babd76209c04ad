//! Flags that few users need: further truncations, DRY, Mirostat, an order of samplers, masks.

use clap::Args;
use pelton_base::{SamplingParams, TokenId};
use pelton_llm::{DEFAULT_MIROSTAT, Generation, SamplerOrder, SamplingTexts};
use serde::Serialize;

use super::sampling::{number, token};

/// How tokens are chosen, with names of llama.cpp and vLLM.
#[derive(Args, Clone, Debug, Default, Serialize)]
#[command(next_help_heading = "Sampling")]
pub(crate) struct RareSamplingArgs {
    /// Keep the tokens whose surprise is closest to the expected one, up to this probability; 1 is
    /// off [default: the model's, else 1]
    #[arg(long, alias = "typical", value_name = "P", allow_negative_numbers = true, value_parser = typical_p)]
    pub(crate) typical_p: Option<f32>,
    /// Keep scores within N standard deviations of the best; 0 is off [default: the model's, else 0]
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = top_n_sigma)]
    pub(crate) top_n_sigma: Option<f32>,
    /// Chance that the top choices of a token are excluded, but for the last of them [default: the model's, else 0]
    #[arg(long, value_name = "P", allow_negative_numbers = true, value_parser = xtc_probability)]
    pub(crate) xtc_probability: Option<f32>,
    /// Least probability of a top choice [default: 0.1]
    #[arg(long, value_name = "P", allow_negative_numbers = true, value_parser = xtc_threshold)]
    pub(crate) xtc_threshold: Option<f32>,
    /// Let the temperature follow the entropy, within R of `--temperature`; 0 is off [default: 0]
    #[arg(long, value_name = "R", allow_negative_numbers = true, value_parser = dynatemp_range)]
    pub(crate) dynatemp_range: Option<f32>,
    /// Exponent of the entropy in the dynamic temperature [default: 1]
    #[arg(long, alias = "dynatemp-exp", value_name = "X", allow_negative_numbers = true, value_parser = dynatemp_exponent)]
    pub(crate) dynatemp_exponent: Option<f32>,
    /// Sample at a constant surprise, in place of all truncations: 0 is off, else version 1 or 2 [default: the model's, else 0]
    #[arg(long, value_name = "VERSION", value_parser = clap::value_parser!(u8).range(0..=2))]
    pub(crate) mirostat: Option<u8>,
    /// Surprise that Mirostat aims at, in bits [default: 5]
    #[arg(long, alias = "mirostat-ent", value_name = "BITS", allow_negative_numbers = true, value_parser = mirostat_tau)]
    pub(crate) mirostat_tau: Option<f32>,
    /// How fast Mirostat follows the surprise of the text [default: 0.1]
    #[arg(long, alias = "mirostat-lr", value_name = "RATE", allow_negative_numbers = true, value_parser = mirostat_eta)]
    pub(crate) mirostat_eta: Option<f32>,
    /// Least tokens that each truncation leaves; one is always left [default: 0]
    #[arg(long, value_name = "N")]
    pub(crate) min_keep: Option<usize>,
    /// Steps that choose a token, in their order, such as `penalties;dry;top_k;temperature`; one
    /// that is left out does not apply [default: penalties;dry;temperature;top_n_sigma;top_k;typ_p;top_p;min_p;xtc]
    #[arg(long, value_name = "NAMES", value_parser = samplers)]
    pub(crate) samplers: Option<String>,
    /// Latest tokens in which the penalties count; -1 is all, 0 none [default: the model's, else -1]
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = window)]
    pub(crate) repeat_last_n: Option<i64>,
    /// Penalty of a token that continues a repetition ("DRY"); 0 is off [default: 0]
    #[arg(long, value_name = "X", allow_negative_numbers = true, value_parser = dry_multiplier)]
    pub(crate) dry_multiplier: Option<f32>,
    /// Growth of the DRY penalty with each repeated token [default: 1.75]
    #[arg(long, value_name = "X", allow_negative_numbers = true, value_parser = dry_base)]
    pub(crate) dry_base: Option<f32>,
    /// Longest repetition without a DRY penalty, in tokens [default: 2]
    #[arg(long, value_name = "N")]
    pub(crate) dry_allowed_length: Option<usize>,
    /// Latest tokens in which DRY looks for repetitions; -1 is all, 0 none [default: -1]
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = window)]
    pub(crate) dry_penalty_last_n: Option<i64>,
    /// Text that ends a repetition; may be given several times, `none` for no such text [default: a new line, `:`, `"` and `*`]
    #[arg(long, alias = "dry-sequence-breaker", value_name = "TEXT")]
    pub(crate) dry_sequence_breakers: Vec<String>,
    /// Token that may occur, all other tokens may not; several with commas
    #[arg(long, value_name = "ID", value_delimiter = ',', value_parser = token)]
    pub(crate) allowed_token_ids: Vec<TokenId>,
    /// Text that must not occur in the answer; may be given several times
    #[arg(long, value_name = "TEXT")]
    pub(crate) bad_words: Vec<String>,
}

impl RareSamplingArgs {
    /// Lays the flags over `params`.
    pub(super) fn over(&self, params: &mut SamplingParams) {
        let set = |place: &mut f32, value: Option<f32>| *place = value.unwrap_or(*place);
        set(&mut params.typical_p, self.typical_p);
        set(&mut params.top_n_sigma, self.top_n_sigma);
        set(&mut params.xtc.probability, self.xtc_probability);
        set(&mut params.xtc.threshold, self.xtc_threshold);
        set(&mut params.dynatemp.range, self.dynatemp_range);
        set(&mut params.dynatemp.exponent, self.dynatemp_exponent);
        set(&mut params.dry.multiplier, self.dry_multiplier);
        set(&mut params.dry.base, self.dry_base);
        let version =
            self.mirostat.unwrap_or(params.mirostat.map_or(0, |mirostat| mirostat.version));
        let mut mirostat = params.mirostat.unwrap_or(DEFAULT_MIROSTAT);
        set(&mut mirostat.tau, self.mirostat_tau);
        set(&mut mirostat.eta, self.mirostat_eta);
        mirostat.version = version;
        params.mirostat = (version > 0).then_some(mirostat);
        params.min_keep = self.min_keep.unwrap_or(params.min_keep);
        // Every number but -1 is a window.
        let window = |n: i64| usize::try_from(n).ok();
        params.repeat_last_n = self.repeat_last_n.map_or(params.repeat_last_n, window);
        params.dry.last_n = self.dry_penalty_last_n.map_or(params.dry.last_n, window);
        params.dry.allowed_length = self.dry_allowed_length.unwrap_or(params.dry.allowed_length);
        if !self.allowed_token_ids.is_empty() {
            params.allowed_tokens = Some(self.allowed_token_ids.clone());
        }
        if let Some(Ok(order)) = self.samplers.as_deref().map(order) {
            order.over(params);
        }
    }

    /// Lays the texts over those of a generation.
    pub(super) fn over_texts(&self, texts: &mut SamplingTexts) {
        if !self.bad_words.is_empty() {
            texts.bad_words.clone_from(&self.bad_words);
        }
        match self.dry_sequence_breakers.as_slice() {
            [] => {}
            [none] if none == "none" => texts.dry_breakers = Some(Vec::new()),
            own => texts.dry_breakers = Some(own.to_vec()),
        }
    }

    /// The flags that ask for what `generation` does.
    pub(super) fn of(generation: &Generation) -> Self {
        let Generation { sampling: params, texts, .. } = generation;
        let latest = |n: Option<usize>| Some(n.map_or(-1, |n| n as i64));
        Self {
            typical_p: Some(params.typical_p),
            top_n_sigma: Some(params.top_n_sigma),
            xtc_probability: Some(params.xtc.probability),
            xtc_threshold: Some(params.xtc.threshold),
            dynatemp_range: Some(params.dynatemp.range),
            dynatemp_exponent: Some(params.dynatemp.exponent),
            mirostat: Some(params.mirostat.map_or(0, |mirostat| mirostat.version)),
            mirostat_tau: params.mirostat.map(|mirostat| mirostat.tau),
            mirostat_eta: params.mirostat.map(|mirostat| mirostat.eta),
            min_keep: Some(params.min_keep),
            samplers: params.samplers.as_ref().map(|stages| {
                let names: Vec<&str> = stages.iter().map(|stage| stage.name()).collect();
                ["penalties", "dry"].into_iter().chain(names).collect::<Vec<_>>().join(";")
            }),
            repeat_last_n: latest(params.repeat_last_n),
            dry_multiplier: Some(params.dry.multiplier),
            dry_base: Some(params.dry.base),
            dry_allowed_length: Some(params.dry.allowed_length),
            dry_penalty_last_n: latest(params.dry.last_n),
            dry_sequence_breakers: match texts.dry_breakers.as_deref() {
                None => Vec::new(),
                Some([]) => vec!["none".to_owned()],
                Some(own) => own.to_vec(),
            },
            allowed_token_ids: params.allowed_tokens.clone().unwrap_or_default(),
            bad_words: texts.bad_words.clone(),
        }
    }
}

/// Readers of parameters, which know each range from the check of requests.
macro_rules! numbers {
    ($($name:ident: $($place:ident).+),+ $(,)?) => {$(
        fn $name(text: &str) -> Result<f32, String> {
            number(text, |params, x| params.$($place).+ = x)
        }
    )+};
}

numbers! {
    typical_p: typical_p,
    top_n_sigma: top_n_sigma,
    xtc_probability: xtc.probability,
    xtc_threshold: xtc.threshold,
    dynatemp_range: dynatemp.range,
    dynatemp_exponent: dynatemp.exponent,
    dry_multiplier: dry.multiplier,
    dry_base: dry.base,
}

fn mirostat_tau(text: &str) -> Result<f32, String> {
    number(text, |params, tau| {
        params.mirostat = Some(pelton_base::Mirostat { tau, ..DEFAULT_MIROSTAT });
    })
}

fn mirostat_eta(text: &str) -> Result<f32, String> {
    number(text, |params, eta| {
        params.mirostat = Some(pelton_base::Mirostat { eta, ..DEFAULT_MIROSTAT });
    })
}

/// Reads a number of latest tokens; -1 is all.
fn window(text: &str) -> Result<i64, String> {
    let n = text.trim().parse().ok().filter(|n: &i64| *n >= -1);
    n.ok_or_else(|| "expected -1 for all tokens, 0 for none, or a number of tokens".to_owned())
}

fn samplers(text: &str) -> Result<String, String> {
    order(text).map(|_| text.to_owned())
}

/// Names with semicolons or commas between them.
fn order(text: &str) -> Result<SamplerOrder, String> {
    let order = SamplerOrder::named(text.split([';', ',']));
    order.map_err(|error| format!("{} is not among the expected: {}", error.got, error.expected))
}
