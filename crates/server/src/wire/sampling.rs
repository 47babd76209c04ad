//! The parameters that choose tokens, under the names of OpenAI, vLLM and llama-server.
//!
//! Another name of a parameter (`repeat_penalty`) is accepted, and both together are refused. Texts
//! (`bad_words`, biases by text, `dry_sequence_breakers`) become tokens in the library.

use pelton_base::{ParamError, SamplingParams, TokenId, limits};
use pelton_llm::{DEFAULT_MIROSTAT, Generation, SamplerOrder};
use serde_json::Value;

use super::Fields;
use super::inputs::token_ids;
use super::json::{Kind, RawValue, each, object, string, typed, wrong};
use crate::error::ApiError;
use crate::otlp::Parameters;

/// The parameters of a request for the choice of tokens; `None` keeps the model's default.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct SamplingFields {
    temperature: Option<f32>,
    top_k: Option<i64>,
    top_p: Option<f32>,
    min_p: Option<f32>,
    typical_p: Option<f32>,
    top_n_sigma: Option<f32>,
    xtc_probability: Option<f32>,
    xtc_threshold: Option<f32>,
    dynatemp_range: Option<f32>,
    dynatemp_exponent: Option<f32>,
    mirostat: Option<u32>,
    mirostat_tau: Option<f32>,
    mirostat_eta: Option<f32>,
    min_keep: Option<usize>,
    samplers: Option<SamplerOrder>,
    repetition_penalty: Option<f32>,
    presence_penalty: Option<f32>,
    frequency_penalty: Option<f32>,
    repeat_last_n: Option<i64>,
    dry_multiplier: Option<f32>,
    dry_base: Option<f32>,
    dry_allowed_length: Option<usize>,
    dry_penalty_last_n: Option<i64>,
    dry_sequence_breakers: Option<Vec<String>>,
    allowed_token_ids: Option<Vec<TokenId>>,
    bad_words: Option<Vec<String>>,
    logit_bias: Biases,
    min_tokens: Option<usize>,
    seed: Option<u64>,
    seeds: Option<Vec<u64>>,
}

/// Biases of tokens and of texts.
#[derive(Clone, Debug, Default, PartialEq)]
struct Biases {
    tokens: Vec<(TokenId, f32)>,
    texts: Vec<(String, f32)>,
    /// Tokens and texts that never come.
    never: (Vec<TokenId>, Vec<String>),
}

impl SamplingFields {
    /// Whether some field names tokens by their numbers.
    pub(crate) fn has_token_ids(&self) -> bool {
        let Biases { tokens, never, .. } = &self.logit_bias;
        self.allowed_token_ids.is_some() || !tokens.is_empty() || !never.0.is_empty()
    }

    /// Parameters that a span repeats.
    pub(crate) fn stated(&self) -> Parameters {
        let &Self { temperature, top_p, top_k, frequency_penalty, presence_penalty, seed, .. } =
            self;
        let stop = Vec::new();
        Parameters { temperature, top_p, top_k, frequency_penalty, presence_penalty, seed, stop }
    }

    /// Reads the parameters from `fields`.
    pub(crate) fn read(fields: &mut Fields<'_>) -> Result<Self, ApiError> {
        let sent = Self {
            temperature: fields.f32("temperature")?,
            top_k: fields.i64("top_k")?,
            top_p: fields.f32("top_p")?,
            min_p: fields.f32("min_p")?,
            typical_p: fields.f32("typical_p")?,
            top_n_sigma: fields.f32("top_n_sigma")?,
            xtc_probability: fields.f32("xtc_probability")?,
            xtc_threshold: fields.f32("xtc_threshold")?,
            dynatemp_range: fields.f32("dynatemp_range")?,
            dynatemp_exponent: fields.f32("dynatemp_exponent")?,
            mirostat: fields.u32("mirostat")?,
            mirostat_tau: fields.f32("mirostat_tau")?,
            mirostat_eta: fields.f32("mirostat_eta")?,
            min_keep: fields.usize("min_keep")?,
            samplers: samplers(fields)?,
            repetition_penalty: repetition_penalty(fields)?,
            presence_penalty: fields.f32("presence_penalty")?,
            frequency_penalty: fields.f32("frequency_penalty")?,
            repeat_last_n: fields.i64("repeat_last_n")?,
            dry_multiplier: fields.f32("dry_multiplier")?,
            dry_base: fields.f32("dry_base")?,
            dry_allowed_length: fields.usize("dry_allowed_length")?,
            dry_penalty_last_n: fields.i64("dry_penalty_last_n")?,
            dry_sequence_breakers: texts(
                fields,
                "dry_sequence_breakers",
                limits::DRY_BREAKER_TEXTS,
            )?,
            allowed_token_ids: match fields.take("allowed_token_ids") {
                Some(raw) => Some(token_ids("allowed_token_ids", raw, limits::ALLOWED_TOKENS)?),
                None => None,
            },
            bad_words: texts(fields, "bad_words", limits::BAD_WORDS)?,
            logit_bias: logit_bias(fields)?,
            min_tokens: fields.usize("min_tokens")?,
            seed: seed(fields)?,
            seeds: seeds(fields)?,
        };
        if sent.seed.is_some() && sent.seeds.is_some() {
            let message = "`seeds` has a seed for each answer, so `seed` must not be given too";
            return Err(ApiError::param("seeds", message));
        }
        Ok(sent)
    }

    /// Overrides the model's defaults by the parameters of the request; ranges are checked with the
    /// rest of the generation.
    ///
    /// # Errors
    ///
    /// Names the first parameter that no range can be told of later.
    pub(crate) fn over(self, generation: &mut Generation) -> Result<(), ApiError> {
        self.over_numbers(&mut generation.sampling)?;
        self.over_mirostat(&mut generation.sampling)?;
        let sampling = &mut generation.sampling;
        sampling.logit_bias = self.logit_bias.tokens;
        generation.texts.logit_bias = self.logit_bias.texts;
        let (tokens, texts) = self.logit_bias.never;
        sampling.bad_words = tokens.into_iter().map(|token| vec![token]).collect();
        generation.texts.banned = texts;
        generation.texts.bad_words = self.bad_words.unwrap_or_default();
        generation.texts.dry_breakers = self.dry_sequence_breakers;
        sampling.allowed_tokens = self.allowed_token_ids;
        generation.seeds = self.seeds.unwrap_or_default();
        if let Some(seed) = self.seed {
            sampling.seed = seed;
        }
        if let Some(order) = self.samplers {
            order.over(sampling);
        }
        Ok(())
    }

    fn over_numbers(&self, sampling: &mut SamplingParams) -> Result<(), ApiError> {
        let set = |place: &mut f32, value: Option<f32>| *place = value.unwrap_or(*place);
        set(&mut sampling.temperature, self.temperature);
        set(&mut sampling.top_p, self.top_p);
        set(&mut sampling.min_p, self.min_p);
        set(&mut sampling.typical_p, self.typical_p);
        set(&mut sampling.top_n_sigma, self.top_n_sigma);
        set(&mut sampling.xtc.probability, self.xtc_probability);
        set(&mut sampling.xtc.threshold, self.xtc_threshold);
        set(&mut sampling.dynatemp.range, self.dynatemp_range);
        set(&mut sampling.dynatemp.exponent, self.dynatemp_exponent);
        set(&mut sampling.repetition_penalty, self.repetition_penalty);
        set(&mut sampling.presence_penalty, self.presence_penalty);
        set(&mut sampling.frequency_penalty, self.frequency_penalty);
        set(&mut sampling.dry.multiplier, self.dry_multiplier);
        set(&mut sampling.dry.base, self.dry_base);
        if let Some(n) = self.dry_allowed_length {
            sampling.dry.allowed_length = n;
        }
        if let Some(n) = self.dry_penalty_last_n {
            sampling.dry.last_n = window("dry_penalty_last_n", n)?;
        }
        if let Some(n) = self.repeat_last_n {
            sampling.repeat_last_n = window("repeat_last_n", n)?;
        }
        match self.top_k {
            None => {}
            // Some clients write "all" as -1.
            Some(-1) => sampling.top_k = 0,
            Some(top_k) => {
                sampling.top_k = u32::try_from(top_k).map_err(|_| {
                    wrong("top_k", "-1, 0 or a positive number", &top_k.to_string())
                })?;
            }
        }
        sampling.min_keep = self.min_keep.unwrap_or(sampling.min_keep);
        sampling.min_tokens = self.min_tokens.unwrap_or(sampling.min_tokens);
        Ok(())
    }

    /// Settings of a Mirostat that is off are checked all the same.
    fn over_mirostat(&self, sampling: &mut SamplingParams) -> Result<(), ApiError> {
        let default = sampling.mirostat;
        let version =
            self.mirostat.unwrap_or(default.map_or(0, |mirostat| mirostat.version.into()));
        let mut mirostat = default.unwrap_or(DEFAULT_MIROSTAT);
        mirostat.tau = self.mirostat_tau.unwrap_or(mirostat.tau);
        mirostat.eta = self.mirostat_eta.unwrap_or(mirostat.eta);
        if version > 0 {
            mirostat.version = version.min(255) as u8;
        }
        let checked = SamplingParams { mirostat: Some(mirostat), ..SamplingParams::default() };
        checked.validate().map_err(|error| refusal(&error))?;
        sampling.mirostat = (version > 0).then_some(mirostat);
        Ok(())
    }
}

fn refusal(error: &ParamError) -> ApiError {
    ApiError::param(error.param, error.to_string())
}

/// A number of latest tokens; -1 is all.
fn window(name: &str, n: i64) -> Result<Option<usize>, ApiError> {
    match n {
        -1 => Ok(None),
        n => usize::try_from(n).map(Some).map_err(|_| {
            wrong(name, "-1 for all tokens, 0 for none, or a number of tokens", &n.to_string())
        }),
    }
}

/// `repetition_penalty`, or `repeat_penalty` as llama.cpp calls it.
fn repetition_penalty(fields: &mut Fields<'_>) -> Result<Option<f32>, ApiError> {
    let name = "repeat_penalty";
    match (fields.f32("repetition_penalty")?, fields.f32(name)?) {
        (Some(_), Some(_)) => {
            let message = "`repeat_penalty` is another name of `repetition_penalty`: give one";
            Err(ApiError::param(name, message))
        }
        (one, other) => Ok(one.or(other)),
    }
}

/// `seed`, or `sampling_seed` as SGLang calls it.
fn seed(fields: &mut Fields<'_>) -> Result<Option<u64>, ApiError> {
    let name = "sampling_seed";
    match (fields.bits64("seed")?, fields.bits64(name)?) {
        (Some(one), Some(other)) if one != other => {
            let message = "`sampling_seed` is another name of `seed`: give one";
            Err(ApiError::param(name, message))
        }
        (one, other) => Ok(one.or(other)),
    }
}

/// Names in an array, or llama.cpp's letters in a string.
fn samplers(fields: &mut Fields<'_>) -> Result<Option<SamplerOrder>, ApiError> {
    let name = "samplers";
    let Some(raw) = fields.take(name) else { return Ok(None) };
    let order = match Kind::of(raw) {
        Kind::String => SamplerOrder::lettered(&string(name, raw)?),
        _ => {
            let mut names = Vec::new();
            each(name, raw, limits::SAMPLER_STAGES, |_, item| {
                names.push(string(name, item)?);
                Ok(())
            })?;
            SamplerOrder::named(names.iter().map(String::as_str))
        }
    };
    order.map(Some).map_err(|error| refusal(&error))
}

fn texts(
    fields: &mut Fields<'_>,
    name: &str,
    most: usize,
) -> Result<Option<Vec<String>>, ApiError> {
    fields.list(name, most, |_, item| match Kind::of(item) {
        Kind::String => string(name, item),
        _ => Err(wrong(name, "an array of strings", item.get())),
    })
}

/// A seed for each answer.
fn seeds(fields: &mut Fields<'_>) -> Result<Option<Vec<u64>>, ApiError> {
    let name = "seeds";
    fields.list(name, limits::CHOICES, |_, item| {
        let signed = || item.get().parse::<i64>().map(i64::cast_unsigned);
        let seed = item.get().parse().or_else(|_| signed());
        seed.map_err(|_| wrong(name, "an array of whole numbers of 64 bits", item.get()))
    })
}

/// Reads biases: an object from token ids or texts to numbers, or an array of pairs.
fn logit_bias(fields: &mut Fields<'_>) -> Result<Biases, ApiError> {
    let name = "logit_bias";
    let mut biases = Biases::default();
    let Some(raw) = fields.take(name) else { return Ok(biases) };
    match Kind::of(raw) {
        Kind::Object => {
            for (key, value) in object(name, raw, limits::LOGIT_BIAS_ENTRIES)? {
                // Only the usual spelling: `+1` and `01` would be a second name of 1.
                let id = key.parse().ok().filter(|id: &u32| id.to_string() == key);
                if id.is_none() && key.parse::<i64>().is_ok() {
                    let got = Value::String(key).to_string();
                    return Err(wrong(name, "an object whose keys are token ids or texts", &got));
                }
                biases.add(id.map(TokenId).ok_or(key), value)?;
            }
        }
        Kind::Array => {
            each(name, raw, limits::LOGIT_BIAS_ENTRIES, |_, item| biases.add_pair(item))?
        }
        _ => {
            let expected = "an object from token ids or texts to numbers, or an array of pairs";
            return Err(wrong(name, expected, raw.get()));
        }
    }
    Ok(biases)
}

impl Biases {
    /// Adds a bias of a token or a text; `false` is never.
    fn add(&mut self, what: Result<TokenId, String>, bias: &RawValue) -> Result<(), ApiError> {
        if bias.get() == "false" {
            match what {
                Ok(token) => self.never.0.push(token),
                Err(text) => self.never.1.push(text),
            }
            return Ok(());
        }
        let expected = "made of biases that are numbers, or false for never";
        let bias = typed::<f64>("logit_bias", expected, bias)? as f32;
        match what {
            Ok(token) => self.tokens.push((token, bias)),
            Err(text) => self.texts.push((text, bias)),
        }
        Ok(())
    }

    /// Adds `[token or text, bias]`.
    fn add_pair<'a>(&mut self, raw: &'a RawValue) -> Result<(), ApiError> {
        let name = "logit_bias";
        let malformed = |raw: &RawValue| {
            wrong(name, "made of pairs of a token id or a text, and a bias", raw.get())
        };
        let mut pair: Vec<&'a RawValue> = Vec::with_capacity(2);
        if Kind::of(raw) != Kind::Array {
            return Err(malformed(raw));
        }
        each(name, raw, 2, |_, item| {
            pair.push(item);
            Ok(())
        })?;
        let [what, bias] = pair[..] else { return Err(malformed(raw)) };
        let what = match Kind::of(what) {
            Kind::String => Err(string(name, what)?),
            _ => Ok(TokenId(what.get().parse().map_err(|_| malformed(raw))?)),
        };
        self.add(what, bias)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(value: Value) -> Result<Generation, ApiError> {
        let text = value.to_string();
        let mut fields = Fields::of_body(text.as_bytes())?;
        let sent = SamplingFields::read(&mut fields)?;
        fields.finish()?;
        let mut generation = Generation::default();
        sent.over(&mut generation)?;
        generation.validate().map_err(|error| refusal(&error))?;
        Ok(generation)
    }

    #[test]
    fn every_parameter_reaches_its_place() {
        let generation = read(json!({
            "typical_p": 0.5, "top_n_sigma": 1.5, "xtc_probability": 0.25, "xtc_threshold": 0.125,
            "dynatemp_range": 0.5, "dynatemp_exponent": 2, "mirostat": 1, "mirostat_tau": 4,
            "min_keep": 3, "repeat_penalty": 1.5, "repeat_last_n": 64, "dry_multiplier": 0.75,
            "dry_base": 2, "dry_allowed_length": 4, "dry_penalty_last_n": 0,
            "dry_sequence_breakers": ["x"], "allowed_token_ids": [5], "bad_words": ["no"],
            "samplers": ["penalties", "dry", "top-k", "temp"], "seeds": [-1]
        }));
        let Generation { sampling, texts, seeds, .. } = generation.expect("valid");
        use pelton_base::SamplerStage::{Temperature, TopK};
        assert_eq!((sampling.typical_p, sampling.top_n_sigma), (0.5, 1.5));
        assert_eq!((sampling.xtc.probability, sampling.xtc.threshold), (0.25, 0.125));
        assert_eq!((sampling.dynatemp.range, sampling.dynatemp.exponent), (0.5, 2.0));
        let mirostat = sampling.mirostat.expect("on");
        assert_eq!((mirostat.version, mirostat.tau, mirostat.eta), (1, 4.0, 0.1));
        assert_eq!((sampling.min_keep, sampling.repetition_penalty), (3, 1.5));
        assert_eq!((sampling.repeat_last_n, sampling.dry.last_n), (Some(64), Some(0)));
        let dry = sampling.dry;
        assert_eq!((dry.multiplier, dry.base, dry.allowed_length), (0.75, 2.0, 4));
        assert_eq!(texts.dry_breakers, Some(vec!["x".to_owned()]));
        assert_eq!(sampling.allowed_tokens, Some(vec![TokenId(5)]));
        assert_eq!((texts.bad_words, seeds), (vec!["no".to_owned()], vec![u64::MAX]));
        assert_eq!(sampling.samplers, Some(vec![TopK, Temperature]));
    }

    #[test]
    fn values_that_change_nothing_change_nothing() {
        let nothing = json!({
            "typical_p": 1, "mirostat": 0, "mirostat_tau": 5, "bad_words": [], "logit_bias": {},
            "repeat_last_n": -1, "dry_penalty_last_n": -1, "allowed_token_ids": null, "min_keep": 0
        });
        assert_eq!(read(nothing).expect("valid"), Generation::default());
    }

    #[test]
    fn biases_are_by_id_or_by_text_in_an_object_or_in_pairs() {
        let object = json!({"logit_bias": {"3": -5, " the": 1.5, "7": false}});
        let pairs = json!({"logit_bias": [[3, -5], [" the", 1.5], [7, false], ["no", false]]});
        for (body, n_banned) in [(object, 0), (pairs, 1)] {
            let Generation { sampling, texts, .. } = read(body).expect("valid");
            assert_eq!(sampling.logit_bias, [(TokenId(3), -5.0)]);
            assert_eq!(texts.logit_bias, [(" the".to_owned(), 1.5)]);
            assert_eq!(sampling.bad_words, [[TokenId(7)]]);
            assert_eq!(texts.banned.len(), n_banned);
        }
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (name, body) in [
            ("typical_p", json!({"typical_p": 0})),
            ("top_n_sigma", json!({"top_n_sigma": -1})),
            ("xtc_probability", json!({"xtc_probability": 1.5})),
            ("xtc_threshold", json!({"xtc_threshold": "x"})),
            ("dynatemp_range", json!({"dynatemp_range": -1})),
            ("dynatemp_exponent", json!({"dynatemp_exponent": 1000})),
            ("mirostat", json!({"mirostat": 3})),
            ("mirostat_tau", json!({"mirostat": 0, "mirostat_tau": -1})),
            ("mirostat_eta", json!({"mirostat": 2, "mirostat_eta": 2})),
            ("min_keep", json!({"min_keep": -1})),
            ("samplers", json!({"samplers": ["top_k", "infill"]})),
            ("samplers", json!({"samplers": "kzt"})),
            ("samplers", json!({"samplers": [1]})),
            ("repeat_penalty", json!({"repeat_penalty": 1.1, "repetition_penalty": 1.1})),
            ("repetition_penalty", json!({"repeat_penalty": 0})),
            ("repeat_last_n", json!({"repeat_last_n": -2})),
            ("dry_multiplier", json!({"dry_multiplier": -1})),
            ("dry_base", json!({"dry_base": 0.5})),
            ("dry_allowed_length", json!({"dry_allowed_length": 5000})),
            ("dry_penalty_last_n", json!({"dry_penalty_last_n": -2})),
            ("dry_sequence_breakers", json!({"dry_sequence_breakers": [""]})),
            ("dry_sequence_breakers", json!({"dry_sequence_breakers": vec!["x"; 65]})),
            ("allowed_token_ids", json!({"allowed_token_ids": []})),
            ("allowed_token_ids", json!({"allowed_token_ids": [-1]})),
            ("bad_words", json!({"bad_words": [1]})),
            ("bad_words", json!({"bad_words": [""]})),
            ("bad_words", json!({"bad_words": "no"})),
            ("logit_bias", json!({"logit_bias": [[1]]})),
            ("logit_bias", json!({"logit_bias": [[1, 2, 3]]})),
            ("logit_bias", json!({"logit_bias": [[1, true]]})),
            ("logit_bias", json!({"logit_bias": [[-1, 1]]})),
            ("logit_bias", json!({"logit_bias": {"": 1}})),
            ("logit_bias", json!({"logit_bias": {"the": 101}})),
            ("seeds", json!({"seeds": [1, 2]})),
            ("seeds", json!({"seeds": [0.5]})),
            ("seeds", json!({"seeds": [1], "seed": 1})),
        ] {
            let error = read(body.clone()).expect_err(name);
            assert_eq!(error.body.param.as_deref(), Some(name), "{body}: {}", error.body.message);
        }
    }
}
