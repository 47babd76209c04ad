//! A loaded model that generates text.

use std::sync::Arc;

use numpy::PyArray1;
use pelton_base::TokenId;
use pelton_llm::{Llm, LlmError};
use pelton_text::{EncodeOptions, Message, RenderOptions};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::ask::{Job, SamplingParams, Text};
use crate::beams::{self, BeamSearchParams, Found};
use crate::crowd::{Answer, Crowd};
use crate::errors;
use crate::processor::Keep;
use crate::stream::{Piece, Stream, described, ids};
use crate::wait;

/// A loaded model.
#[pyclass(frozen, module = "pelton._pelton")]
pub(crate) struct Engine {
    llm: Arc<Llm>,
}

impl Engine {
    pub(crate) fn new(llm: Arc<Llm>) -> Self {
        Self { llm }
    }
}

/// Prompt, parameters (`None` for the model's own) and priority of a request.
type Asked = (Text, Option<SamplingParams>, i32);

#[pymethods]
impl Engine {
    /// Facts about the model.
    fn info<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let info = self.llm.info();
        let facts = PyDict::new(py);
        facts.set_item("name", &info.name)?;
        facts.set_item("architecture", &info.architecture)?;
        facts.set_item("vocab_size", info.vocab_size)?;
        facts.set_item("max_model_len", info.context_tokens)?;
        facts.set_item("weight_bytes", info.weight_bytes)?;
        facts.set_item("kv_bytes", info.kv_bytes)?;
        facts.set_item("n_threads", info.n_threads)?;
        facts.set_item("can_chat", self.llm.template().is_some())?;
        Ok(facts)
    }

    /// Waiting and running requests, requests that ended, and tokens generated.
    fn load(&self, py: Python<'_>) -> (usize, usize, u64) {
        let metrics = py.detach(|| self.llm.metrics());
        (metrics.n_waiting, metrics.n_running, metrics.n_finished)
    }

    /// Sampling that the model's authors recommend, as names and values.
    fn recommended<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let sampling = self.llm.recommended_sampling().cloned().unwrap_or_default();
        let values = PyDict::new(py);
        values.set_item("temperature", sampling.temperature)?;
        values.set_item("top_k", sampling.top_k)?;
        values.set_item("top_p", sampling.top_p)?;
        values.set_item("min_p", sampling.min_p)?;
        values.set_item("repetition_penalty", sampling.repetition_penalty)?;
        Ok(values)
    }

    /// Answers prompts together. Per prompt: its tokens, and a piece per answer.
    fn generate(&self, py: Python<'_>, asked: Vec<Asked>) -> PyResult<Vec<(Vec<u32>, Vec<Piece>)>> {
        let jobs = asked
            .into_iter()
            .map(|(prompt, params, priority)| Job::new(&self.llm, prompt, params, priority));
        let jobs: Vec<Job> = jobs.collect();
        let mut crowd = Crowd::new(&self.llm, jobs);
        let answered = wait::until(py, || crowd.advance())??;
        let whole = |(prompt, answers): (Vec<TokenId>, Vec<Answer>)| {
            (ids(&prompt), answers.into_iter().enumerate().map(piece).collect())
        };
        Ok(answered.into_iter().map(whole).collect())
    }

    /// Searches the best answers to prompts. Per prompt: its tokens, and its answers.
    fn beam_search(
        &self,
        py: Python<'_>,
        prompts: Vec<Text>,
        params: BeamSearchParams,
    ) -> PyResult<Vec<(Vec<u32>, Vec<Found>)>> {
        let jobs = prompts.into_iter().map(|prompt| params.job(&self.llm, prompt));
        let mut crowd = Crowd::new(&self.llm, jobs.collect::<PyResult<_>>()?);
        let answered = wait::until(py, || crowd.advance())??;
        let whole = |(prompt, answers): (Vec<TokenId>, Vec<Answer>)| {
            (ids(&prompt), answers.into_iter().map(beams::found).collect())
        };
        Ok(answered.into_iter().map(whole).collect())
    }

    /// Starts one request.
    fn stream(&self, py: Python<'_>, asked: Asked) -> PyResult<Stream> {
        let (prompt, params, priority) = asked;
        let job = Job::new(&self.llm, prompt, params, priority);
        if job.generation.best_of.is_some_and(|made| made > job.generation.n) {
            let words = "`best_of`: the best answer is known only at the end; use `generate`";
            return Err(PyValueError::new_err(words));
        }
        let started = py.detach(|| job.start(&self.llm));
        let (prompt, generating) = started.map_err(errors::refused)?;
        Ok(Stream::new(&prompt, generating, job.fault))
    }

    /// The logits of the token after each prompt: float32 arrays `[vocab]`, which own the memory
    /// that the engine filled.
    fn logits<'py>(
        &self,
        py: Python<'py>,
        prompts: Vec<Text>,
    ) -> PyResult<Vec<Bound<'py, PyArray1<f32>>>> {
        let mut keeps = Vec::with_capacity(prompts.len());
        let jobs = prompts.into_iter().map(|prompt| {
            let mut job = Job::new(&self.llm, prompt, None, 0);
            job.generation.max_tokens = Some(1);
            job.generation.sampling = pelton_base::SamplingParams::greedy();
            let keep = Keep::default();
            keep.push(&mut job.generation.processors);
            keeps.push(keep);
            job
        });
        let jobs: Vec<Job> = jobs.collect();
        let mut crowd = Crowd::new(&self.llm, jobs);
        wait::until(py, || crowd.advance())??;
        Ok(keeps.iter().map(|keep| PyArray1::from_vec(py, keep.take())).collect())
    }

    /// The prompt that the chat template makes of messages, which are a JSON list. `arguments` is a
    /// JSON object of further arguments of the template.
    fn render(
        &self,
        py: Python<'_>,
        messages: &str,
        add_generation_prompt: bool,
        arguments: &str,
    ) -> PyResult<String> {
        let bad = |error: serde_json::Error| PyValueError::new_err(format!("`messages`: {error}"));
        let messages: Vec<Message> = serde_json::from_str(messages).map_err(bad)?;
        let extra = serde_json::from_str(arguments).map_err(bad)?;
        let options = RenderOptions { add_generation_prompt, extra, ..RenderOptions::default() };
        let Some(template) = self.llm.template() else {
            let model = self.llm.info().name.clone();
            let why = self.llm.template_error().unwrap_or("it has no chat template").to_owned();
            return Err(errors::refused(LlmError::NoTemplate { model, why }));
        };
        py.detach(|| template.render(&messages, &options))
            .map_err(|error| errors::refused(error.into()))
    }

    /// Tokens of a text.
    fn encode(&self, py: Python<'_>, text: &str, add_special_tokens: bool) -> PyResult<Vec<u32>> {
        let options = EncodeOptions { add_special: add_special_tokens, parse_special: true };
        let tokens = py.detach(|| self.llm.tokenizer().encode_with(text, options));
        Ok(ids(&tokens.map_err(|error| errors::refused(error.into()))?))
    }

    /// The text of tokens.
    fn decode(&self, py: Python<'_>, token_ids: Vec<u32>, skip_special_tokens: bool) -> String {
        let tokens: Vec<TokenId> = token_ids.into_iter().map(TokenId).collect();
        py.detach(|| self.llm.tokenizer().decode(&tokens, skip_special_tokens))
    }

    /// Ends the engine and waits until its thread is gone.
    fn shutdown(&self, py: Python<'_>) {
        py.detach(|| {
            self.llm.shutdown(false);
            self.llm.engine().join();
        });
    }
}

/// A whole answer as one piece.
fn piece((idx, answer): (usize, Answer)) -> Piece {
    let (tokens, logprobs, texts) = described(&answer.tokens);
    let (reason, stop) = match answer.finish {
        Some(finish) => (Some(errors::reason(finish.reason)), finish.stop),
        None => (None, None),
    };
    (idx, answer.text, tokens, logprobs, texts, reason, stop)
}
