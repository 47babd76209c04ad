//! Flags that shape the choice of the next token.

use clap::Args;
use pelton_base::{SamplingParams, TokenId};
use pelton_llm::{Generation, SamplingTexts};
use serde::Serialize;

use super::RareSamplingArgs;
use crate::failure::{Failure, Result};

/// How tokens are chosen; absent flags take their values from the model's
/// `generation_config.json`.
#[derive(Args, Clone, Debug, Default, Serialize)]
#[command(next_help_heading = "Sampling")]
pub(crate) struct SamplingArgs {
    /// Randomness; 0 always takes the likeliest token [default: the model's, else 0.8]
    #[arg(long, alias = "temp", value_name = "T", allow_negative_numbers = true, value_parser = temperature)]
    pub(crate) temperature: Option<f32>,
    /// Choose among the K likeliest tokens; 0 is all [default: the model's, else 0]
    #[arg(long, value_name = "K", allow_negative_numbers = true, value_parser = top_k)]
    pub(crate) top_k: Option<u32>,
    /// Choose among the likeliest tokens that together have this probability [default: the model's, else 0.95]
    #[arg(long, value_name = "P", allow_negative_numbers = true, value_parser = top_p)]
    pub(crate) top_p: Option<f32>,
    /// Drop tokens less likely than P times the likeliest [default: the model's, else 0]
    #[arg(long, value_name = "P", allow_negative_numbers = true, value_parser = min_p)]
    pub(crate) min_p: Option<f32>,
    /// Penalty for repeated tokens; above 1 makes repetition less likely [default: the model's, else 1]
    #[arg(long, alias = "repeat-penalty", value_name = "R", allow_negative_numbers = true, value_parser = repetition_penalty)]
    pub(crate) repetition_penalty: Option<f32>,
    /// Penalty for every token that the answer has already, from -2 to 2 [default: 0]
    #[arg(long, value_name = "X", allow_negative_numbers = true, value_parser = presence_penalty)]
    pub(crate) presence_penalty: Option<f32>,
    /// Penalty for a token for each time that the answer has it, from -2 to 2 [default: 0]
    #[arg(long, value_name = "X", allow_negative_numbers = true, value_parser = frequency_penalty)]
    pub(crate) frequency_penalty: Option<f32>,
    /// Added to the score of a token, or of each token of a text, from -100 to 100; `false` is
    /// never; several with commas
    #[arg(long, value_name = "ID=BIAS", value_delimiter = ',', value_parser = logit_bias)]
    pub(crate) logit_bias: Vec<Bias>,
    #[command(flatten)]
    #[serde(flatten)]
    pub(crate) rare: RareSamplingArgs,
    /// Seed of the random choices; the same seed gives the same text [default: a new one for each
    /// run, shown in the statistics]
    #[arg(long, env = "PELTON_SEED", value_name = "N")]
    pub(crate) seed: Option<u64>,
}

/// A bias as it is typed: `7=-5`, ` the=1.5` or `7=false`.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Bias {
    /// A token, or a text.
    what: std::result::Result<TokenId, String>,
    /// `None` is never.
    bias: Option<f32>,
}

impl Serialize for Bias {
    fn serialize<S: serde::Serializer>(&self, s: S) -> std::result::Result<S::Ok, S::Error> {
        let what = self.what.as_ref().map_or_else(Clone::clone, ToString::to_string);
        let bias = self.bias.map_or_else(|| "false".to_owned(), |bias| bias.to_string());
        s.collect_str(&format_args!("{what}={bias}"))
    }
}

impl SamplingArgs {
    /// Lays the flags over `defaults`.
    ///
    /// # Errors
    ///
    /// Names the first flag that is out of range.
    pub(crate) fn over(&self, defaults: SamplingParams, seed: u64) -> Result<SamplingParams> {
        let mut params = SamplingParams {
            temperature: self.temperature.unwrap_or(defaults.temperature),
            top_k: self.top_k.unwrap_or(defaults.top_k),
            top_p: self.top_p.unwrap_or(defaults.top_p),
            min_p: self.min_p.unwrap_or(defaults.min_p),
            repetition_penalty: self.repetition_penalty.unwrap_or(defaults.repetition_penalty),
            presence_penalty: self.presence_penalty.unwrap_or(defaults.presence_penalty),
            frequency_penalty: self.frequency_penalty.unwrap_or(defaults.frequency_penalty),
            seed,
            ..defaults
        };
        if !self.logit_bias.is_empty() {
            let biases = self.logit_bias.iter();
            let token = |it: &Bias| Some((it.what.clone().ok()?, it.bias?));
            params.logit_bias = biases.clone().filter_map(token).collect();
            let never = |it: &Bias| it.what.clone().ok().filter(|_| it.bias.is_none());
            params.bad_words = biases.filter_map(never).map(|token| vec![token]).collect();
        }
        self.rare.over(&mut params);
        params.validate().map_err(|error| {
            let flag = error.param.replace('_', "-");
            Failure::new(format!("`--{flag}` must be {}, got {}", error.expected, error.got))
        })?;
        Ok(params)
    }

    /// Lays the texts among the flags over those of a generation.
    pub(crate) fn over_texts(&self, texts: &mut SamplingTexts) {
        self.rare.over_texts(texts);
        if !self.logit_bias.is_empty() {
            let biases = self.logit_bias.iter();
            let text = |it: &Bias| Some((it.what.clone().err()?, it.bias?));
            texts.logit_bias = biases.clone().filter_map(text).collect();
            let banned = |it: &Bias| it.what.clone().err().filter(|_| it.bias.is_none());
            texts.banned = biases.filter_map(banned).collect();
        }
    }

    /// The flags that ask for what `generation` does.
    pub(crate) fn of(generation: &Generation) -> Self {
        let Generation { sampling: params, texts, .. } = generation;
        let bias = |what, bias| Bias { what, bias };
        let tokens = params.logit_bias.iter().map(|(token, x)| bias(Ok(*token), Some(*x)));
        let biased = texts.logit_bias.iter().map(|(text, x)| bias(Err(text.clone()), Some(*x)));
        let never = params.bad_words.iter().filter(|word| word.len() == 1);
        let never = never.map(|word| bias(Ok(word[0]), None));
        let banned = texts.banned.iter().map(|text| bias(Err(text.clone()), None));
        Self {
            temperature: Some(params.temperature),
            top_k: Some(params.top_k),
            top_p: Some(params.top_p),
            min_p: Some(params.min_p),
            repetition_penalty: Some(params.repetition_penalty),
            presence_penalty: Some(params.presence_penalty),
            frequency_penalty: Some(params.frequency_penalty),
            logit_bias: tokens.chain(biased).chain(never).chain(banned).collect(),
            rare: RareSamplingArgs::of(generation),
            seed: Some(params.seed),
        }
    }

    /// Checks the flags before anything slow happens.
    ///
    /// # Errors
    ///
    /// Names the first flag that is out of range.
    pub(crate) fn check(&self) -> Result<()> {
        let sampling = self.over(SamplingParams::default(), 0)?;
        let mut generation = Generation { sampling, ..Generation::default() };
        self.over_texts(&mut generation.texts);
        generation.validate().map_err(|error| {
            let flag = error.param.replace('_', "-");
            Failure::new(format!("`--{flag}` must be {}, got {}", error.expected, error.got))
        })
    }

    /// The seed asked for, or a fresh one of 32 bits, short enough to type again.
    pub(crate) fn seed(&self) -> u64 {
        use std::hash::{BuildHasher, Hasher};
        self.seed.unwrap_or_else(|| {
            // The standard library keys its hash maps from the system's randomness.
            let hasher = std::collections::hash_map::RandomState::new().build_hasher();
            hasher.finish() >> 32
        })
    }
}

/// Readers of parameters, which know each range from the check of requests.
macro_rules! numbers {
    ($($name:ident),+) => {$(
        fn $name(text: &str) -> std::result::Result<f32, String> {
            number(text, |params, x| params.$name = x)
        }
    )+};
}

numbers!(temperature, top_p, min_p, repetition_penalty, presence_penalty, frequency_penalty);

/// Reads a number that `set` puts among the parameters; an error says its range.
pub(super) fn number(
    text: &str,
    set: fn(&mut SamplingParams, f32),
) -> std::result::Result<f32, String> {
    // NaN is out of every range.
    let x = text.trim().parse().unwrap_or(f32::NAN);
    let mut params = SamplingParams::default();
    set(&mut params, x);
    let checked = params.validate().map(|()| x);
    checked.map_err(|error| format!("expected a number {}", error.expected))
}

/// Reads a count; -1 is 0, as some clients of the server write it.
fn top_k(text: &str) -> std::result::Result<u32, String> {
    let text = if text == "-1" { "0" } else { text };
    text.parse()
        .map_err(|_| "expected a whole number of at least 1, or 0 for all tokens".to_owned())
}

/// Reads the id of a token.
pub(super) fn token(text: &str) -> std::result::Result<TokenId, String> {
    text.trim().parse().map(TokenId).map_err(|_| "expected token ids such as 1,2,3".to_owned())
}

fn logit_bias(text: &str) -> std::result::Result<Bias, String> {
    const EXPECTED: &str =
        "expected ID=BIAS or TEXT=BIAS with a number from -100 to 100 or `false`";
    let bias = |text| number(text, |params, x| params.logit_bias = vec![(TokenId(0), x)]);
    let (what, x) = text.rsplit_once('=').ok_or(EXPECTED)?;
    let bias = match x {
        "false" => None,
        x => Some(bias(x).map_err(|_| EXPECTED)?),
    };
    let what = match token(what) {
        Ok(token) => Ok(token),
        Err(_) if what.is_empty() => return Err(EXPECTED.to_owned()),
        Err(_) => Err(what.to_owned()),
    };
    Ok(Bias { what, bias })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_sampling_parameter_of_a_request_has_a_flag() {
        use clap::CommandFactory;
        // A new parameter needs a line here, and a flag.
        let SamplingParams {
            temperature: _,
            top_k: _,
            top_p: _,
            min_p: _,
            typical_p: _,
            top_n_sigma: _,
            xtc: pelton_base::Xtc { probability: _, threshold: _ },
            dynatemp: pelton_base::Dynatemp { range: _, exponent: _ },
            mirostat: _,
            min_keep: _,
            samplers: _,
            dry:
                pelton_base::Dry { multiplier: _, base: _, allowed_length: _, last_n: _, breakers: _ },
            allowed_tokens: _,
            // The model says what they are.
            suppressed: _,
            bad_words: _,
            repetition_penalty: _,
            presence_penalty: _,
            frequency_penalty: _,
            repeat_last_n: _,
            logit_bias: _,
            min_tokens: _,
            seed: _,
            // It shapes what is reported, and not the text.
            logprobs: _,
        } = SamplingParams::default();
        let root = crate::args::Cli::command();
        let run = root.find_subcommand("run").expect("a command");
        for flag in [
            "temperature",
            "top-k",
            "top-p",
            "min-p",
            "typical-p",
            "top-n-sigma",
            "xtc-probability",
            "xtc-threshold",
            "dynatemp-range",
            "dynatemp-exponent",
            "mirostat",
            "mirostat-tau",
            "mirostat-eta",
            "min-keep",
            "samplers",
            "dry-multiplier",
            "dry-base",
            "dry-allowed-length",
            "dry-penalty-last-n",
            "dry-sequence-breakers",
            "allowed-token-ids",
            "bad-words",
            "repeat-last-n",
            "repetition-penalty",
            "presence-penalty",
            "frequency-penalty",
            "logit-bias",
            "min-tokens",
            "seed",
            "stop",
            "stop-token",
            "ignore-eos",
        ] {
            assert!(run.get_arguments().any(|arg| arg.get_long() == Some(flag)), "{flag}");
        }
    }

    #[test]
    fn numbers_say_their_range_and_biases_their_form() {
        assert_eq!(temperature("0.5"), Ok(0.5));
        for (why, part) in [
            (temperature("hot"), "from 0 to 100"),
            (top_p("0"), "above 0 and at most 1"),
            (presence_penalty("3"), "from -2 to 2"),
            (min_p("nan"), "from 0 to 1"),
        ] {
            assert!(why.as_ref().is_err_and(|why| why.contains(part)), "{why:?}");
        }
        assert_eq!((top_k("-1"), top_k("40")), (Ok(0), Ok(40)));
        let bias = |what, bias| Ok(Bias { what, bias });
        assert_eq!(logit_bias("7=-100"), bias(Ok(TokenId(7)), Some(-100.0)));
        assert_eq!(logit_bias(" a=b=1"), bias(Err(" a=b".to_owned()), Some(1.0)));
        assert_eq!(logit_bias("the=false"), bias(Err("the".to_owned()), None));
        for bad in ["7", "x=y", "7=101", "7=", "=1"] {
            assert!(logit_bias(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn flags_win_over_the_models_defaults() {
        let defaults = SamplingParams { temperature: 0.6, top_k: 20, ..Default::default() };
        let args = SamplingArgs { temperature: Some(0.0), ..Default::default() };
        let params = args.over(defaults, 7).expect("in range");
        assert_eq!((params.temperature, params.top_k, params.seed), (0.0, 20, 7));
    }

    #[test]
    fn a_flag_out_of_range_is_named_as_it_is_typed() {
        let args = SamplingArgs { top_p: Some(1.5), ..Default::default() };
        let line = args.check().expect_err("out of range").line().expect("a line");
        assert!(line.contains("`--top-p` must be above 0 and at most 1, got 1.5"), "{line}");
        let args = SamplingArgs { temperature: Some(f32::NAN), ..Default::default() };
        assert!(args.check().is_err());
    }

    #[test]
    fn fresh_seeds_differ_and_a_given_one_stays() {
        let fresh = SamplingArgs::default();
        let seeds: std::collections::HashSet<u64> = (0..8).map(|_| fresh.seed()).collect();
        assert!(seeds.len() > 1);
        assert_eq!(SamplingArgs { seed: Some(5), ..Default::default() }.seed(), 5);
    }
}
