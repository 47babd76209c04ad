//! The engine and the tokenizer behind one face.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use pelton_base::{
    Ask, Constraint, Namespace, ParamError, SamplingParams, ServiceParams, Shape, SuppressedTokens,
    TokenId, limits,
};
use pelton_engine::spec::Verification;
use pelton_engine::{EngineHandle, EngineMetrics, Extras, LogprobsMode, Panicked};
use pelton_grammar::Layout;
use pelton_parse::ReaderOptions;
use pelton_text::{ChatTemplate, EncodeOptions, TextError, Tokenizer};
use sha2::{Digest, Sha256};

use crate::admission::{Asked, Gatehouse, Gatekeeper};
use crate::beam::{BeamParams, Searches};
use crate::border::{TOKENIZER, guard};
use crate::chat::{ChatOptions, Dialect, RENDERED, Thought, Thoughts};
use crate::error::LlmError;
use crate::event::Event;
use crate::form::Forms;
use crate::generating::{Generating, Start, TextOptions};
use crate::request::{ChatRequest, CompletionRequest, Generation};
use crate::service::{Namespaces, Service, fresh_seed};
use crate::source::check_vocabulary;
use crate::texts::{self, BreakerCache};

/// The parts of an [`Llm`].
#[derive(Debug)]
pub struct LlmParts {
    /// Facts about the model.
    pub info: LlmInfo,
    /// Text to tokens and back.
    pub tokenizer: Arc<Tokenizer>,
    /// Whether there is a tokenizer; without one texts are only the ids of tokens.
    pub has_text: bool,
    /// The chat template, or the reason why there is none.
    pub template: Result<ChatTemplate, String>,
    /// The formats of thoughts and calls.
    pub dialect: Dialect,
    /// The running engine.
    pub engine: EngineHandle,
    /// Tokens that end an answer.
    pub eos: Vec<TokenId>,
    /// Sampling that the model's authors recommend, if they recommend any.
    pub sampling: Option<SamplingParams>,
    /// Tokens that the model's authors forbid; no answer of a request has them.
    pub suppressed: SuppressedTokens,
    /// Whether tenants share cached prefixes.
    pub share_prefixes: bool,
    /// How drafts are judged; [`Verification::Match`] where there are none.
    pub verification: Verification,
}

/// Facts about a loaded model.
#[derive(Clone, Debug, Eq, PartialEq, serde::Serialize)]
pub struct LlmInfo {
    /// Its name for clients.
    pub name: String,
    /// Its family, as the checkpoint names it.
    pub architecture: String,
    /// Tokens for which the model computes logits.
    pub vocab_size: usize,
    /// Most tokens of one sequence, prompt and answer together.
    pub context_tokens: usize,
    /// Bytes of weights read per generated token.
    pub weight_bytes: u64,
    /// Bytes of all weights in memory.
    pub loaded_bytes: u64,
    /// The format that weights were rounded to while they were loaded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rounded_to: Option<&'static str>,
    /// Bytes held for keys and values.
    pub kv_bytes: u64,
    /// Bytes of keys and values of one token over all layers, which every later token reads.
    pub kv_bytes_per_token: u64,
    /// Requests of `context_tokens` tokens that the memory for keys and values holds.
    pub n_long_requests: u64,
    /// States of recurrent layers; all zero in models without such layers.
    pub states: StateInfo,
    /// Threads that compute.
    pub n_threads: usize,
}

/// Memory for the states of recurrent layers.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, serde::Serialize)]
pub struct StateInfo {
    /// Bytes of all states.
    pub n_bytes: u64,
    /// Bytes of the state of one request, which every token reads.
    pub bytes_per_request: u64,
    /// Most requests that run at once.
    pub n_running: u32,
    /// Most states that the prefix cache and preempted requests keep.
    pub n_kept: u32,
}

/// A loaded model that answers requests.
#[derive(Debug)]
pub struct Llm {
    parts: LlmParts,
    namespaces: Namespaces,
    forms: Forms,
    breakers: BreakerCache,
    gatehouse: Gatehouse,
    /// The kind of log probabilities of its answers by default.
    pub(crate) logprobs_mode: LogprobsMode,
    /// Most answers to one prompt.
    pub(crate) max_choices: usize,
    /// Tells loaded models apart, so that no answer of one is taken for that of another.
    instance: u64,
}

impl Llm {
    /// Puts an engine and a tokenizer together.
    ///
    /// # Errors
    ///
    /// [`LlmError::VocabMismatch`] when the tokenizer has tokens that the model lacks.
    pub fn from_parts(parts: LlmParts) -> Result<Self, LlmError> {
        check_vocabulary(&parts.info.name, &parts.tokenizer, parts.info.vocab_size)?;
        let namespaces = Namespaces::new(parts.share_prefixes);
        let forms = Forms::new(&parts.tokenizer);
        static INSTANCES: AtomicU64 = AtomicU64::new(0);
        let instance = INSTANCES.fetch_add(1, Ordering::Relaxed);
        Ok(Self {
            parts,
            namespaces,
            forms,
            breakers: BreakerCache::default(),
            gatehouse: Gatehouse::default(),
            logprobs_mode: LogprobsMode::default(),
            max_choices: limits::CHOICES,
            instance,
        })
    }

    pub(crate) fn parts(&self) -> &LlmParts {
        &self.parts
    }

    /// Facts about the model.
    pub fn info(&self) -> &LlmInfo {
        &self.parts.info
    }

    /// Text to tokens and back.
    pub fn tokenizer(&self) -> &Arc<Tokenizer> {
        &self.parts.tokenizer
    }

    /// The chat template, if the model has one.
    pub fn template(&self) -> Option<&ChatTemplate> {
        self.parts.template.as_ref().ok()
    }

    /// Why there is no template; `None` when there is one.
    pub fn template_error(&self) -> Option<&str> {
        self.parts.template.as_ref().err().map(String::as_str)
    }

    /// Tokens that end an answer.
    pub fn eos(&self) -> &[TokenId] {
        &self.parts.eos
    }

    /// Waiting and running requests, and totals since the start.
    pub fn metrics(&self) -> EngineMetrics {
        self.parts.engine.metrics()
    }

    /// How the model thinks, as far as its template shows it.
    pub fn thoughts(&self) -> Thoughts {
        self.parts.dialect.thoughts()
    }

    /// Whether the chat template of the model mentions a variable.
    pub fn template_mentions(&self, variable: &str) -> bool {
        self.parts.dialect.mentions(variable)
    }

    /// The engine, for callers that have tokens instead of text.
    pub fn engine(&self) -> &EngineHandle {
        &self.parts.engine
    }

    /// Stops the engine; with `drain` it finishes the accepted requests first.
    ///
    /// Returns at once; streams end when their answers do.
    pub fn shutdown(&self, drain: bool) {
        self.parts.engine.shutdown(drain);
    }

    /// Sampling that the model's authors recommend; `None` where they recommend nothing, which
    /// differs from recommending plain sampling.
    pub fn recommended_sampling(&self) -> Option<&SamplingParams> {
        self.parts.sampling.as_ref()
    }

    /// Prepares for requests with a form ([`Generation::form`]), so that the first one does not wait:
    /// with a vocabulary of 128,000 tokens it would for half a second. Takes that time of one
    /// thread.
    pub fn prepare_forms(&self) {
        self.forms.prepare();
    }

    /// The rule of a form, for requests that go to the [`engine`](Self::engine) directly; their answers
    /// end with one of [`eos`](Self::eos).
    ///
    /// # Errors
    ///
    /// [`LlmError::Form`] names the place in the form that cannot be enforced.
    pub fn rule_of(&self, form: &Shape) -> Result<Constraint, LlmError> {
        self.forms.compile(form, Layout::Free, self.eos(), Namespace::default())
    }

    /// The recommended sampling, else plain sampling, with a fresh seed.
    pub fn default_generation(&self) -> Generation {
        let sampling = self.parts.sampling.clone().unwrap_or_default();
        let seed = fresh_seed();
        let sampling = SamplingParams { seed, ..sampling };
        let logprobs_mode = self.logprobs_mode;
        Generation { sampling, logprobs_mode, drawn_seed: Some(seed), ..Generation::default() }
    }

    /// Asks `keeper` about every request with a ticket from now on. The first keeper stays.
    pub fn set_gatekeeper(&self, keeper: &Arc<dyn Gatekeeper>) {
        self.gatehouse.set(keeper);
    }

    /// Answers a conversation.
    ///
    /// Renders and encodes on the calling thread; a long conversation takes milliseconds.
    ///
    /// # Errors
    ///
    /// See [`LlmError`]: no or failing template, a parameter out of range, a prompt too long, an
    /// engine that is busy or stopping.
    pub fn chat(&self, request: ChatRequest) -> Result<Generating, LlmError> {
        let ChatRequest { messages, mut generation, options } = request;
        generation.validate()?;
        self.check_choices(&generation)?;
        options.validate()?;
        let text = self.render(&messages, &options)?;
        let add_special = generation.input.add_special.unwrap_or(false);
        let encode = EncodeOptions { add_special, ..RENDERED };
        let tokens = self.encode(&text, encode, &generation)?;
        let (dialect, tokenizer) = (&self.parts.dialect, &self.parts.tokenizer);
        generation.form = dialect.form(&text, generation.form, &options)?;
        crate::form::check(&generation)?;
        let reading = Reading {
            bound: dialect.bound(&text, &options, tokenizer)?,
            reader: dialect.reader(&text, &options),
            // As models were trained to write calls, and everything but the values is forced.
            layout: if options.may_call() { Layout::Spaced } else { Layout::Free },
            options: Some(options),
        };
        self.start(vec![tokens], generation, reading)
    }

    /// Continues texts.
    ///
    /// # Errors
    ///
    /// See [`LlmError`]: an empty prompt, tokens out of range, and all of [`chat`](Self::chat)'s.
    pub fn complete(&self, request: CompletionRequest) -> Result<Generating, LlmError> {
        request.generation.validate()?;
        self.check_choices(&request.generation)?;
        let n_prompts = request.prompts.len();
        let fail = |param, expected, got: usize| {
            Err(ParamError { param, expected, got: got.to_string() }.into())
        };
        if n_prompts > limits::PROMPTS {
            return fail("prompt", "at most 64 prompts", n_prompts);
        }
        let n_answers = n_prompts * request.generation.n_sequences();
        if n_answers > limits::ANSWERS {
            return fail("n", "at most 1024 answers to all prompts together", n_answers);
        }
        let mut generation = request.generation;
        let mut prompts = Vec::with_capacity(n_prompts);
        for prompt in request.prompts {
            prompts.push(self.prompt_tokens(prompt, &mut generation)?);
        }
        self.start(prompts, generation, Reading::default())
    }

    pub(crate) fn encode_at_most(
        &self,
        text: &str,
        options: EncodeOptions,
        limit: usize,
    ) -> Result<Result<Vec<TokenId>, TextError>, Panicked> {
        guard(TOKENIZER, || self.parts.tokenizer.encode_at_most(text, options, limit))
    }

    /// Tokens of a predicted answer; at most as many as an answer can have.
    fn encode_prediction(&self, text: &str) -> Result<Vec<TokenId>, LlmError> {
        let limit = self.parts.info.context_tokens;
        let fail = |got: usize| {
            let (param, expected) = ("prediction", "at most as many tokens as the context holds");
            let got = format!("{got} where it holds {limit}");
            Err(pelton_base::ParamError { param, expected, got }.into())
        };
        // A prediction is plain text, so the names of special tokens in it are text too.
        let options = EncodeOptions { add_special: false, parse_special: false };
        match self.encode_at_most(text, options, limit)? {
            Ok(tokens) if tokens.len() > limit => fail(tokens.len()),
            Err(TextError::TooManyTokens { at_least, .. }) => fail(at_least),
            other => Ok(other?),
        }
    }

    /// Checks the tokens and submits one engine request per answer.
    fn start(
        &self,
        prompts: Vec<Vec<TokenId>>,
        mut generation: Generation,
        reading: Reading,
    ) -> Result<Generating, LlmError> {
        if prompts.is_empty() {
            return Err(LlmError::EmptyPrompt);
        }
        for prompt in &prompts {
            self.check_prompt(prompt)?;
            self.check_length(prompt.len(), generation.sampling.min_tokens)?;
        }
        if let Some(events) = self.admit(&prompts, &mut generation, &reading)? {
            let per_prompt = generation.n_made() as usize;
            let max_tokens = generation.max_tokens;
            let tokenizer = &self.parts.tokenizer;
            return Ok(Generating::replay(tokenizer, events, prompts, per_prompt, max_tokens));
        }
        let common = self.common(&mut generation, reading.bound, reading.layout)?;
        let n_made = generation.n_made();
        let (min_tokens, with_logprobs) =
            (common.sampling.min_tokens, common.sampling.logprobs.is_some());
        let submitted = Instant::now();
        let mut streams = Vec::with_capacity(prompts.len() * n_made as usize);
        let mut searches = Vec::new();
        // Where the first part of a request is taken, all others are.
        let mut is_further = false;
        for prompt in &prompts {
            let room = self.parts.info.context_tokens - prompt.len();
            let (mut first, mut is_first) = (None, true);
            for choice in 0..n_made {
                let (seed, choice) = match generation.seeds.get(choice as usize) {
                    Some(&seed) => (seed, 0),
                    None => (common.sampling.seed, choice),
                };
                // An early return drops the streams that exist, which aborts their requests.
                let ask = Ask {
                    prompt: prompt.clone(),
                    sampling: SamplingParams { seed, ..common.sampling.clone() },
                    choice,
                    // Without any the engine makes one, which is thrown away.
                    max_tokens: generation.max_tokens.map_or(room, |most| most.clamp(1, room)),
                    service: ServiceParams { fork_of: first, is_further, ..common.service },
                    ..common.clone()
                };
                is_further = true;
                if let Some(params) = generation.beams {
                    let params = BeamParams { n: n_made as usize, ..params };
                    searches.push(self.parts.engine.submit_beams(ask, params)?);
                    break;
                }
                let processors = generation.processors.begin(prompt);
                // One answer brings the scores; it shares no KV, so the others do not go on from it.
                let prompt_logprobs = generation.prompt_logprobs.filter(|_| is_first);
                // The model's own rank the choices of `best_of`.
                let ranks = generation.n_made() > generation.n;
                let logprobs_mode =
                    if ranks { LogprobsMode::Raw } else { generation.logprobs_mode };
                let extras = Extras { processors, prompt_logprobs, logprobs_mode };
                let stream = self.parts.engine.submit_with(ask, extras)?;
                if prompt_logprobs.is_none() {
                    first.get_or_insert(stream.id());
                }
                is_first = false;
                streams.push(stream);
            }
        }
        Ok(Generating::new(Start {
            tokenizer: Arc::clone(&self.parts.tokenizer),
            eos: if generation.ignore_eos { Vec::new() } else { self.parts.eos.clone() },
            stop: generation.stop,
            texts: TextOptions {
                include_stop: generation.include_stop,
                keep_special: generation.keep_special,
                is_empty: generation.max_tokens == Some(0),
            },
            min_tokens,
            streams,
            searches: Searches::new(searches, n_made as usize, with_logprobs),
            prompts,
            is_scored: generation.prompt_logprobs.is_some(),
            submitted,
            per_prompt: n_made as usize,
            max_tokens: generation.max_tokens,
            control: self.control_tokens(reading.reader.as_ref()),
            reader: reading.reader,
        }))
    }

    /// Asks the gatekeeper, where there is one: it may shorten the answers, or know them.
    fn admit(
        &self,
        prompts: &[Vec<TokenId>],
        generation: &mut Generation,
        reading: &Reading,
    ) -> Result<Option<Arc<Vec<Event>>>, LlmError> {
        let ticket = generation.service.ticket;
        let Some(keeper) = self.gatehouse.keeper(ticket) else { return Ok(None) };
        let longest = |prompt: &Vec<TokenId>| self.parts.info.context_tokens - prompt.len();
        let room = prompts.iter().map(longest).max().unwrap_or(0);
        let most = generation.max_tokens.map_or(room, |most| most.min(room));
        let least = match generation.max_tokens {
            Some(_) => most,
            None => generation.sampling.min_tokens.max(1),
        };
        let granted = keeper.admit(Asked {
            ticket,
            prompt_tokens: prompts.iter().map(|prompt| prompt.len() as u64).sum(),
            n_answers: prompts.len() as u64 * u64::from(generation.n_made()),
            least_answer_tokens: least as u64,
            most_answer_tokens: most as u64,
        })?;
        if granted < most as u64 {
            generation.max_tokens = Some(granted as usize);
        }
        if generation.service.is_uncached
            || !generation.is_repeatable_with(self.parts.verification)
            || !keeper.wants_fingerprint(ticket)
        {
            return Ok(None);
        }
        Ok(keeper.recorded(ticket, self.fingerprint(prompts, generation, reading)))
    }

    /// The digest of everything that can change an answer. Fields are taken as they are printed, so
    /// a field that is added later is part of it.
    fn fingerprint(
        &self,
        prompts: &[Vec<TokenId>],
        generation: &Generation,
        reading: &Reading,
    ) -> [u8; 32] {
        let mut generation = generation.clone();
        let Service { tenant, cache_salt, .. } = generation.service;
        generation.service = Service { tenant, cache_salt, ..Service::default() };
        let needs_seed = generation.sampling.temperature != 0.0 && generation.seeds.is_empty();
        if !needs_seed && generation.drawn_seed.is_some() {
            // The likeliest token needs no random number, and answers may have seeds of their own.
            generation.sampling.seed = 0;
        }
        generation.drawn_seed = None;
        generation.form_field.clear();
        let whole = (self.instance, prompts, generation, &reading.options);
        Sha256::digest(format!("{whole:?}")).into()
    }

    /// The ask of every answer to a request, without its prompt: texts become tokens, and the form
    /// becomes a rule.
    fn common(
        &self,
        generation: &mut Generation,
        bound: Option<Thought>,
        layout: Layout,
    ) -> Result<Ask, LlmError> {
        self.check_texts(generation)?;
        if !self.parts.has_text {
            // The usual ones are texts.
            generation.texts.dry_breakers = Some(Vec::new());
        }
        texts::encode(&self.parts.tokenizer, &self.breakers, generation)?;
        self.check_sampling(&generation.sampling)?;
        self.check_tokens("stop_token_ids", &generation.stop_tokens)?;
        let prediction = match &generation.prediction {
            Some(text) => self.encode_prediction(text)?,
            None => Vec::new(),
        };
        let mut stop_tokens = std::mem::take(&mut generation.stop_tokens);
        if !generation.ignore_eos {
            stop_tokens.extend(self.parts.eos.iter().copied());
        }
        let drafting = generation.speculation.drafting();
        let service = ServiceParams { drafting, ..self.namespaces.params(&generation.service) };
        let layout = if generation.compact_json { Layout::Compact } else { layout };
        let compile = |form| {
            let rule = self.forms.compile(form, layout, &stop_tokens, service.namespace);
            rule.map_err(|error| error.in_form_of(&generation.form_field))
        };
        let constraint = generation.form.as_ref().map(compile).transpose()?;
        let constraint = match bound {
            Some(thought) => Some(thought.bound(constraint)),
            None => constraint,
        };
        let mut sampling = generation.sampling.clone();
        sampling.suppressed = self.parts.suppressed.clone();
        if generation.n_made() > generation.n {
            // Log probabilities rank the choices of `best_of`.
            if sampling.logprobs.is_some() && generation.logprobs_mode != LogprobsMode::Raw {
                let expected = "no more than `n` beside `logprobs` where the server reports processed \
                                log probabilities, because those of the model rank the answers";
                let got = generation.n_made().to_string();
                return Err(ParamError { param: "best_of", expected, got }.into());
            }
            sampling.logprobs.get_or_insert(0);
        }
        let (prompt, max_tokens) = (Vec::new(), 0);
        Ok(Ask {
            prompt,
            sampling,
            choice: 0,
            max_tokens,
            stop_tokens,
            service,
            prediction,
            constraint,
        })
    }

    /// Control tokens whose text a reader must see.
    fn control_tokens(&self, reader: Option<&ReaderOptions>) -> Vec<TokenId> {
        let tokenizer = &self.parts.tokenizer;
        let names = reader.map(|reader| self.parts.dialect.control_tokens(reader));
        let tokens = names.into_iter().flatten().filter_map(|name| tokenizer.token_id(name));
        tokens.filter(|&token| tokenizer.is_special(token)).collect()
    }
}

/// How the answers of a conversation are bounded and read; the default is plain text.
#[derive(Default)]
struct Reading {
    bound: Option<Thought>,
    reader: Option<ReaderOptions>,
    /// White space inside of JSON.
    layout: Layout,
    /// The options of the conversation, if it is one.
    options: Option<ChatOptions>,
}
