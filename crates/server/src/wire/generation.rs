//! The parameters that shape an answer, the same for every generating endpoint.

use std::time::Duration;

use pelton_base::{Shape, Slo, TokenId, limits};
use pelton_llm::{Generation, InputOptions, SpecMethod, Speculation, Truncation};
use serde_json::Value;

use super::form::{Form, form};
use super::inputs::token_ids;
use super::json::{Kind, RawValue, each, string, typed, wrong};
use super::sampling::SamplingFields;
use super::{Accept, BeamFields, Fields, check_unhonoured, fresh_id, lenient};
use crate::error::ApiError;
use crate::otlp::Parameters;

/// Shaping parameters of a request; `None` keeps the model's default.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct GenerationFields {
    sampling: SamplingFields,
    stop: Vec<String>,
    stop_tokens: Vec<TokenId>,
    ignore_eos: bool,
    include_stop: bool,
    keep_special: bool,
    input: InputOptions,
    prompt_logprobs: Option<usize>,
    n: Option<u32>,
    priority: Option<i32>,
    slo: Slo,
    cache_salt: Option<String>,
    cache_prompt: Option<bool>,
    speculation: Speculation,
    beams: BeamFields,
    form: Form,
}

impl GenerationFields {
    /// Reads the shaping parameters from `fields`.
    pub(crate) fn read(fields: &mut Fields<'_>) -> Result<Self, ApiError> {
        Ok(Self {
            sampling: SamplingFields::read(fields)?,
            stop: stop(fields)?,
            stop_tokens: stop_tokens(fields)?,
            ignore_eos: fields.bool("ignore_eos")?.unwrap_or(false),
            include_stop: include_stop(fields)?,
            keep_special: !fields.bool("skip_special_tokens")?.unwrap_or(true),
            input: input(fields)?,
            prompt_logprobs: prompt_logprobs(fields)?,
            n: fields.u32("n")?,
            priority: fields.i32("priority")?,
            slo: slo(fields)?,
            cache_salt: fields.string("cache_salt")?,
            cache_prompt: fields.bool("cache_prompt")?,
            speculation: speculation(fields)?,
            beams: BeamFields::read(fields)?,
            form: form(fields)?,
        })
    }

    /// Whether some field names tokens by their numbers.
    pub(crate) fn has_token_ids(&self) -> bool {
        !self.stop_tokens.is_empty() || self.sampling.has_token_ids()
    }

    /// Whether some field asks for what not every model can do.
    pub(crate) fn is_particular(&self) -> bool {
        self.prompt_logprobs.is_some() || self.speculation != Speculation::default()
    }

    /// Sets the form of the answer, if field `name` asks for one.
    ///
    /// # Errors
    ///
    /// When another field asks for a form, too.
    pub(crate) fn set_form(&mut self, name: &str, form: Option<Shape>) -> Result<(), ApiError> {
        if form.is_some() {
            if self.form.shape.is_some() {
                let message = format!("`{name}` and another field both ask for a form");
                return Err(ApiError::param(name, message));
            }
            (self.form.shape, self.form.field) = (form, name.to_owned());
        }
        Ok(())
    }

    /// Parameters that a span repeats.
    pub(crate) fn stated(&self) -> Parameters {
        Parameters { stop: self.stop.clone(), ..self.sampling.stated() }
    }

    /// Answers per prompt.
    pub(crate) fn n(&self) -> u32 {
        self.n.unwrap_or(1)
    }

    /// Likeliest tokens to report in each place of the prompt, where its tokens are scored.
    pub(crate) fn prompt_logprobs(&self) -> Option<usize> {
        self.prompt_logprobs
    }

    /// The beam search that is asked for.
    pub(crate) fn beams(&self) -> BeamFields {
        self.beams
    }
}

/// Overrides the model's defaults by the parameters of the request.
///
/// # Errors
///
/// Names the first parameter out of its range.
pub(crate) fn generation(
    sent: GenerationFields,
    max_tokens: Option<usize>,
    logprobs: Option<usize>,
    defaults: Generation,
) -> Result<Generation, ApiError> {
    let defaults_prompt_logprobs = defaults.prompt_logprobs;
    let mut generation = sent.beams.defaults(defaults);
    let n = sent.n();
    sent.sampling.over(&mut generation)?;
    generation.sampling.logprobs = logprobs;
    generation.max_tokens = max_tokens;
    generation.stop = sent.stop;
    generation.stop_tokens = sent.stop_tokens;
    generation.ignore_eos = sent.ignore_eos;
    generation.include_stop = sent.include_stop;
    generation.keep_special = sent.keep_special;
    generation.input = sent.input;
    generation.prompt_logprobs = sent.prompt_logprobs.max(defaults_prompt_logprobs);
    generation.n = n;
    let service = &mut generation.service;
    service.priority = sent.priority.unwrap_or(service.priority);
    service.slo = sent.slo;
    service.cache_salt = sent.cache_salt;
    generation.speculation = sent.speculation;
    sent.beams.over(&mut generation)?;
    (generation.form, generation.compact_json) = (sent.form.shape, sent.form.is_compact);
    generation.form_field = sent.form.field;
    generation.validate().map_err(|error| ApiError::param(error.param, error.to_string()))?;
    if sent.cache_prompt == Some(false) {
        // No other request has this salt, so nothing that is cached fits the prompt.
        generation.service.cache_salt = Some(fresh_id("uncached-"));
        generation.service.is_uncached = true;
    }
    Ok(generation)
}

/// Options of a stream.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct StreamOptions {
    pub(crate) include_usage: bool,
    /// Whether comments say how far the prompt is computed, until the first token.
    pub(crate) prompt_progress: bool,
    /// Whether each chunk says how many tokens there are so far.
    pub(crate) continuous_usage: bool,
    /// Whether chunks have random letters beside their text.
    pub(crate) obfuscates: bool,
}

/// Reads `stream` and `stream_options`; `None` when the answer is to come in one piece.
pub(crate) fn stream_options(fields: &mut Fields<'_>) -> Result<Option<StreamOptions>, ApiError> {
    let is_stream = fields.bool("stream")?.unwrap_or(false);
    // Llama-server's name of it; without a stream there is nothing to show it in.
    let return_progress = fields.bool("return_progress")?.unwrap_or(false);
    let options = match fields.take("stream_options") {
        None => StreamOptions { prompt_progress: return_progress, ..StreamOptions::default() },
        Some(_) if !is_stream => {
            let message = "`stream_options` needs `stream` to be true";
            return Err(ApiError::param("stream_options", message));
        }
        Some(value) => {
            let mut inner = Fields::nested("stream_options", value)?;
            let include_usage = inner.bool("include_usage")?.unwrap_or(false);
            let prompt_progress = inner.bool("prompt_progress")?.unwrap_or(false);
            let continuous_usage = inner.bool("continuous_usage_stats")?.unwrap_or(false);
            let obfuscates = inner.bool("include_obfuscation")?.unwrap_or(false);
            check_unhonoured(&mut inner, &[] as &[(&str, Accept)])?;
            inner.finish()?;
            if continuous_usage && !include_usage {
                let message = "`stream_options.continuous_usage_stats` needs `include_usage`";
                return Err(ApiError::param("stream_options.continuous_usage_stats", message));
            }
            let prompt_progress = prompt_progress || return_progress;
            StreamOptions { include_usage, prompt_progress, continuous_usage, obfuscates }
        }
    };
    Ok(is_stream.then_some(options))
}

/// Whether stop strings are part of the answer: under vLLM's name or SGLang's.
fn include_stop(fields: &mut Fields<'_>) -> Result<bool, ApiError> {
    let include = fields.bool("include_stop_str_in_output")?;
    let no_trim = fields.bool("no_stop_trim")?;
    if include.is_some_and(|include| no_trim.is_some_and(|no_trim| include != no_trim)) {
        let message = "`no_stop_trim` contradicts `include_stop_str_in_output`";
        return Err(ApiError::param("no_stop_trim", message));
    }
    Ok(include.or(no_trim).unwrap_or(false))
}

/// How the prompt becomes tokens.
fn input(fields: &mut Fields<'_>) -> Result<InputOptions, ApiError> {
    let name = "truncate_prompt_tokens";
    let truncate = match fields.i64(name)? {
        None => None,
        Some(-1) => Some(Truncation::ToContext),
        Some(n) => match usize::try_from(n).ok().filter(|n| *n > 0) {
            Some(n) => Some(Truncation::Tokens(n)),
            None => {
                let expected = "a number of tokens, or -1 for as many as the context has room for";
                return Err(wrong(name, expected, &n.to_string()));
            }
        },
    };
    if let Some(side) = fields.string("truncation_side")?
        && side != "left"
        && !lenient::ignores("truncation_side")
    {
        return Err(ApiError::unsupported("truncation_side"));
    }
    Ok(InputOptions { add_special: fields.bool("add_special_tokens")?, truncate })
}

/// Likeliest tokens in each place of the prompt; vLLM's -1 for all of them would be gigabytes.
fn prompt_logprobs(fields: &mut Fields<'_>) -> Result<Option<usize>, ApiError> {
    let name = "prompt_logprobs";
    let Some(n) = fields.i64(name)? else { return Ok(None) };
    match usize::try_from(n) {
        Ok(n) if n <= limits::TOP_LOGPROBS => Ok(Some(n)),
        _ => Err(wrong(name, "from 0 to 20", &n.to_string())),
    }
}

/// An id that the client chose for its answer.
pub(crate) fn request_id(fields: &mut Fields<'_>) -> Result<Option<String>, ApiError> {
    let name = "request_id";
    let Some(id) = fields.string(name)? else { return Ok(None) };
    if (1..=128).contains(&id.len()) && id.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Ok(Some(id));
    }
    let expected = "1 to 128 visible ASCII characters";
    Err(wrong(name, expected, &Value::String(id).to_string()))
}

/// llama-server's `n_predict`: the outer `None` where it is absent, the inner one for no limit.
pub(crate) fn n_predict(fields: &mut Fields<'_>) -> Result<Option<Option<usize>>, ApiError> {
    let name = "n_predict";
    match fields.i64(name)? {
        None => Ok(None),
        Some(-1) => Ok(Some(None)),
        Some(n) => match usize::try_from(n) {
            Ok(n) => Ok(Some(Some(n))),
            Err(_) => Err(wrong(name, "a number of tokens, or -1 for no limit", &n.to_string())),
        },
    }
}

/// Latency targets, in milliseconds.
fn slo(fields: &mut Fields<'_>) -> Result<Slo, ApiError> {
    let Some(value) = fields.take("slo") else { return Ok(Slo::default()) };
    let mut inner = Fields::nested("slo", value)?;
    let mut target = |name: &str| -> Result<Option<Duration>, ApiError> {
        const EXPECTED: &str = "a number of milliseconds above 0 and at most 86400000";
        let Some(raw) = inner.take(name) else { return Ok(None) };
        let path = inner.path(name);
        let ms: f64 = typed(&path, EXPECTED, raw)?;
        let is_in_range = ms > 0.0 && ms <= limits::SLO_MS;
        let target = is_in_range.then(|| Duration::from_secs_f64(ms / 1000.0));
        // A target below a nanosecond counts as zero.
        match target.filter(|target| !target.is_zero()) {
            Some(target) => Ok(Some(target)),
            None => Err(wrong(&path, EXPECTED, raw.get())),
        }
    };
    let slo = Slo { ttft: target("ttft_ms")?, tpot: target("tpot_ms")? };
    inner.finish()?;
    Ok(slo)
}

/// Reads how tokens are drafted.
fn speculation(fields: &mut Fields<'_>) -> Result<Speculation, ApiError> {
    let default = Speculation::default();
    let Some(value) = fields.take("speculation") else { return Ok(default) };
    let mut inner = Fields::nested("speculation", value)?;
    let method = match inner.string("method")? {
        None => default.method,
        Some(name) => {
            let named = SpecMethod::ALL.iter().copied().find(|method| method.name() == name);
            named.ok_or_else(|| {
                let names: Vec<&str> = SpecMethod::ALL.iter().map(|known| known.name()).collect();
                let expected = format!("one of {}", names.join(", "));
                wrong(&inner.path("method"), &expected, &Value::String(name).to_string())
            })?
        }
    };
    let max_drafts = inner.usize("max_drafts")?;
    let always = inner.bool("always")?.unwrap_or(false);
    inner.finish()?;
    Ok(Speculation { method, max_drafts, always })
}

fn stop(fields: &mut Fields<'_>) -> Result<Vec<String>, ApiError> {
    const EXPECTED: &str = "a string or an array of strings";
    let Some(raw) = fields.take("stop") else { return Ok(Vec::new()) };
    let text = |raw: &RawValue| match Kind::of(raw) {
        Kind::String => string("stop", raw),
        _ => Err(wrong("stop", EXPECTED, raw.get())),
    };
    if Kind::of(raw) != Kind::Array {
        return Ok(vec![text(raw)?]);
    }
    let mut texts = Vec::new();
    each("stop", raw, limits::STOP_STRINGS, |_, item| {
        texts.push(text(item)?);
        Ok(())
    })?;
    Ok(texts)
}

fn stop_tokens(fields: &mut Fields<'_>) -> Result<Vec<TokenId>, ApiError> {
    let name = "stop_token_ids";
    let Some(raw) = fields.take(name) else { return Ok(Vec::new()) };
    token_ids(name, raw, limits::LOGIT_BIAS_ENTRIES)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(value: Value) -> Result<Generation, ApiError> {
        let text = value.to_string();
        let mut fields = Fields::of_body(text.as_bytes())?;
        let sent = GenerationFields::read(&mut fields)?;
        fields.finish()?;
        generation(sent, None, None, Generation::default())
    }

    #[test]
    fn what_is_sent_lies_over_the_defaults() {
        let generation = read(json!({
            "temperature": 0.5, "top_k": -1, "stop": "x", "seed": 7, "n": 2,
            "logit_bias": {"3": -100}, "stop_token_ids": [1], "ignore_eos": true, "min_tokens": 9
        }))
        .expect("valid");
        assert_eq!(generation.sampling.min_tokens, 9);
        assert_eq!(generation.sampling.temperature, 0.5);
        assert_eq!((generation.sampling.seed, generation.n), (7, 2));
        assert_eq!(generation.sampling.logit_bias, [(TokenId(3), -100.0)]);
        assert_eq!((generation.stop, generation.ignore_eos), (vec!["x".to_owned()], true));
    }

    #[test]
    fn every_bad_value_is_named() {
        for (name, value) in [
            ("temperature", json!("hot")),
            ("temperature", json!(-1)),
            ("top_p", json!(0)),
            ("top_k", json!(-2)),
            ("n", json!(0)),
            ("n", json!(1000)),
            ("stop", json!([1])),
            ("stop", json!("")),
            ("logit_bias", json!({"a": 1000})),
            ("logit_bias", json!({"1": "x"})),
            ("logit_bias", json!({"1": 1000})),
            ("logit_bias", json!({"+1": 1})),
            ("logit_bias", json!({"01": 1})),
            ("logit_bias", json!({"1": null})),
            ("stop", json!(vec!["x"; 17])),
            ("stop_token_ids", json!(vec![1; 1025])),
            ("cache_prompt", json!("no")),
            ("stop_token_ids", json!([-1])),
            ("seed", json!(0.5)),
            ("min_tokens", json!(-1)),
            ("min_tokens", json!(1.5)),
            ("min_tokens", json!("3")),
            ("frequency_penalty", json!(3)),
            ("truncate_prompt_tokens", json!(0)),
            ("truncate_prompt_tokens", json!(-2)),
            ("truncation_side", json!("right")),
            ("prompt_logprobs", json!(21)),
            ("prompt_logprobs", json!(-1)),
            ("skip_special_tokens", json!("no")),
            ("add_special_tokens", json!(1)),
            ("include_stop_str_in_output", json!(0)),
            ("colour", json!("red")),
        ] {
            let error = read(json!({ name: value })).expect_err(name);
            assert_eq!(error.body.param.as_deref(), Some(name), "{}", error.body.message);
        }
    }

    #[test]
    fn a_prompt_that_must_not_be_cached_has_a_salt_of_its_own() {
        let salt = |body: Value| read(body).expect("valid").service.cache_salt;
        assert_eq!(salt(json!({"cache_prompt": true})), None);
        assert_eq!(salt(json!({"cache_prompt": true, "cache_salt": "a"})).as_deref(), Some("a"));
        let uncached = json!({"cache_prompt": false, "cache_salt": "a"});
        assert_ne!(salt(uncached.clone()), salt(uncached));
        assert!(read(json!({"cache_prompt": false, "cache_salt": ""})).is_err());
    }

    #[test]
    fn stream_options_need_a_stream() {
        let options = |value: Value| {
            let text = value.to_string();
            stream_options(&mut Fields::of_body(text.as_bytes()).expect("an object"))
        };
        assert_eq!(options(json!({})).expect("absent"), None);
        let with = json!({"stream": true, "stream_options": {"include_usage": true}});
        let expected = StreamOptions { include_usage: true, ..StreamOptions::default() };
        assert_eq!(options(with).expect("both"), Some(expected));
        let with = json!({"stream": true, "stream_options": {"prompt_progress": true}});
        assert!(options(with).expect("both").is_some_and(|options| options.prompt_progress));
        assert!(options(json!({"stream_options": {}})).is_err());
        let unknown = json!({"stream": true, "stream_options": {"x": 1}});
        let error = options(unknown).expect_err("unknown");
        assert_eq!(error.body.param.as_deref(), Some("stream_options.x"));
    }
}
