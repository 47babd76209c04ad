//! The way in: submit, look at the numbers, shut down.

use crate::beams::{BeamParams, BeamStream, check_sampling};
use crate::mailbox::{Shared, Shutdown};
use crate::progress::Progress;
use crate::{EngineMetrics, Extras, Sources, SubmitError, TokenStream};
use pelton_base::{Ask, ParamError, TokenId, limits};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::sync::mpsc;

/// A handle to a running engine; clones share it.
///
/// When the last clone is dropped the engine finishes the requests at hand and then ends.
#[derive(Clone, Debug)]
pub struct EngineHandle {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    shared: Arc<Shared>,
    /// Longest prompt that fits, in tokens.
    max_prompt_tokens: usize,
    vocab_size: usize,
    /// The encoder that reads prompts, where there is one.
    sources: Option<Sources>,
    /// Names of the proposers.
    drafters: Vec<&'static str>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl EngineHandle {
    pub(crate) fn new(
        shared: Arc<Shared>,
        max_prompt_tokens: usize,
        vocab_size: usize,
        sources: Option<Sources>,
        drafters: Vec<&'static str>,
    ) -> Self {
        let thread = Mutex::new(None);
        let inner = Inner { shared, max_prompt_tokens, vocab_size, sources, drafters, thread };
        Self { inner: Arc::new(inner) }
    }

    /// Names the thread that [`join`](Self::join) waits for.
    pub(crate) fn run_by(&mut self, thread: JoinHandle<()>) {
        *self.inner.thread.lock().unwrap_or_else(PoisonError::into_inner) = Some(thread);
    }

    /// Checks a request, judges whether it can be served in time, and leaves it in the mailbox.
    /// Never waits for the engine.
    ///
    /// # Errors
    ///
    /// When the request is invalid, or the engine is full, too slow for the request's target, or
    /// has stopped.
    pub fn submit(&self, ask: Ask) -> Result<TokenStream, SubmitError> {
        self.submit_with(ask, Vec::new())
    }

    /// As [`submit`](Self::submit), with [`Extras`]: processors of the caller's own, which run on the
    /// engine thread, so the answers of all requests wait for them; and scores of the prompt.
    ///
    /// A prompt that is scored is computed whole: nothing of it comes from the prefix cache, and
    /// nothing of it is left there.
    ///
    /// # Errors
    ///
    /// As [`submit`](Self::submit).
    pub fn submit_with(
        &self,
        ask: Ask,
        extras: impl Into<Extras>,
    ) -> Result<TokenStream, SubmitError> {
        let extras = extras.into();
        if let Some(n) = extras.prompt_logprobs.filter(|n| *n > limits::TOP_LOGPROBS) {
            let (param, expected) = ("prompt_logprobs", "at most 20");
            return Err(ParamError { param, expected, got: n.to_string() }.into());
        }
        self.send(ask, extras, None)
    }

    /// Begins a beam search for answers to one prompt. The stop tokens, `max_tokens`, the rule,
    /// `min_tokens` and `allowed_tokens` of `ask` bound the answers; its `logprobs` ask for reports of
    /// the likeliest tokens.
    ///
    /// # Errors
    ///
    /// As [`submit`](Self::submit); and where a sampling parameter asks for something that a beam
    /// search does not do ([`check_sampling`]).
    pub fn submit_beams(&self, ask: Ask, params: BeamParams) -> Result<BeamStream, SubmitError> {
        params.validate()?;
        check_sampling(&ask.sampling)?;
        self.send(ask, Extras::default(), Some(params)).map(BeamStream::new)
    }

    fn send(
        &self,
        ask: Ask,
        extras: Extras,
        beams: Option<BeamParams>,
    ) -> Result<TokenStream, SubmitError> {
        let at = self.inner.shared.clock.now();
        self.check(&ask)?;
        let mut ask = ask;
        if let Some(sources) = &self.inner.sources {
            if extras.prompt_logprobs.is_some() {
                return Err(SubmitError::NotOfSources { param: "prompt_logprobs" });
            }
            sources.begin(&mut ask, &self.inner.shared.config)?;
        }
        let (sender, receiver) = mpsc::unbounded_channel();
        let progress = Arc::new(Progress::default());
        let news = (sender, Arc::clone(&progress));
        let id = self.inner.shared.submit(ask, (extras, beams), news, at)?;
        Ok(TokenStream::new(id, receiver, progress, Arc::clone(&self.inner.shared)))
    }

    /// Longest prompt that an encoder reads, in tokens; `None` where no encoder reads prompts.
    pub fn most_source_tokens(&self) -> Option<usize> {
        let Inner { shared, sources, max_prompt_tokens, .. } = &*self.inner;
        let in_step = shared.config.choices.max_batch_tokens;
        sources.as_ref().map(|_| in_step.min(*max_prompt_tokens))
    }

    /// Most tokens of an answer to a prompt of `n_prompt` tokens.
    pub fn answer_room(&self, n_prompt: usize) -> usize {
        let Inner { shared, sources, .. } = &*self.inner;
        match sources {
            Some(sources) => sources.answer_room(n_prompt, &shared.config),
            None => shared.config.context_tokens().saturating_sub(n_prompt),
        }
    }

    /// The engine's counters as of its last step.
    pub fn metrics(&self) -> EngineMetrics {
        self.inner.shared.metrics()
    }

    /// Whether the engine has ended after a panic from which it did not recover.
    pub fn has_failed(&self) -> bool {
        *self.inner.shared.has_failed().borrow()
    }

    /// Waits until the engine fails; for ever where it does not. Safe to cancel.
    pub async fn failed(&self) {
        let mut has_failed = self.inner.shared.has_failed();
        // The sender lives as long as `self` does.
        let _ = has_failed.wait_for(|has_failed| *has_failed).await;
    }

    /// How long the engine is at its current step; `None` while it waits for requests. A step that
    /// takes far longer than any before hangs.
    pub fn busy_for(&self) -> Option<Duration> {
        self.inner.shared.busy_for()
    }

    /// Longest prompt that [`submit`](Self::submit) takes, in tokens.
    pub fn max_prompt_tokens(&self) -> usize {
        self.inner.max_prompt_tokens
    }

    /// Names of the proposers, of which a request may choose one
    /// ([`Drafting::by`](pelton_base::Drafting::by)).
    pub fn drafters(&self) -> &[&'static str] {
        &self.inner.drafters
    }

    /// Asks the engine to end: at once with every stream `Aborted`, or, when `drain` is set, after
    /// finishing the requests at hand. Either way no new request is taken. Returns without waiting.
    pub fn shutdown(&self, drain: bool) {
        self.inner.shared.shut_down(if drain { Shutdown::Drain } else { Shutdown::Abort });
    }

    /// Blocks until the engine thread has ended; ask for a [`shutdown`](Self::shutdown) first.
    ///
    /// Only the first caller waits; later calls return at once.
    pub fn join(&self) {
        let thread = self.inner.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            // The thread catches its own panics and has ended every stream.
            let _ = thread.join();
        }
    }

    fn check(&self, ask: &Ask) -> Result<(), SubmitError> {
        let Inner { max_prompt_tokens: limit, vocab_size, ref drafters, .. } = *self.inner;
        ask.sampling.validate()?;
        if ask.prompt.is_empty() {
            return Err(SubmitError::EmptyPrompt);
        }
        if ask.max_tokens == 0 {
            return Err(SubmitError::NothingToGenerate);
        }
        ask.sampling.validate_length(ask.max_tokens)?;
        let n_prompt = ask.prompt.len();
        if n_prompt > limit {
            return Err(SubmitError::TooLong { n_prompt, limit });
        }
        if let Some(asked) = ask.service.drafting.by.filter(|name| !drafters.contains(name)) {
            return Err(SubmitError::NoSuchDrafter { asked, available: drafters.clone() });
        }
        let is_unknown = |token: &&TokenId| token.0 as usize >= vocab_size;
        if let Some(&token) = ask.prediction.iter().find(is_unknown) {
            return Err(SubmitError::UnknownPrediction { token, vocab_size });
        }
        match ask.prompt.iter().position(|token| is_unknown(&token)) {
            Some(position) => {
                let token = ask.prompt[position];
                Err(SubmitError::UnknownToken { token, position, vocab_size })
            }
            None => Ok(()),
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.shared.shut_down(Shutdown::Drain);
    }
}
