//! A growing answer whose outcome is counted.

use std::collections::VecDeque;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;

use pelton_base::{FinishReason, Usage};
use pelton_llm::{Event, Fault, Finish, Generating, Llm, Timings};
use tokio::task::JoinHandle;

use crate::access::Caller;
use crate::error::ApiError;
use crate::live::Open;
use crate::models::Model;
use crate::outcome::{About, Asked, Outcome};
use crate::state::{AppState, Running};

/// A [`Generating`] whose outcome is told to [`AppState::ended`], once.
///
/// Dropping it before its end aborts the request; its open answers then count as aborted.
///
/// If the engine is given up while the request has brought nothing yet, it is run again by the next
/// version of the model; if it has brought something, its open answers end with an error.
pub(crate) struct Answering {
    generating: Generating,
    app: AppState,
    about: Arc<About>,
    model: Model,
    /// Ends when the engine of `model` is given up. It is kept from event to event, because waiting
    /// for it anew costs each time.
    lost: Pin<Box<dyn Future<Output = ()> + Send>>,
    caller: Caller,
    open: Open,
    /// Asks a model for the same answers; `None` once there was an event.
    again: Option<Box<Ask>>,
    /// The same answers, asked for anew.
    renewed: Option<JoinHandle<Result<(Model, Generating), ApiError>>>,
    /// Ends of answers whose engine was given up.
    ends: VecDeque<Event>,
    /// By answer, why it ended.
    ended: Vec<Option<FinishReason>>,
    /// The same in the order of their ends.
    reasons: Vec<FinishReason>,
    is_told: bool,
    /// The last event, while the tokens of the request are written down.
    held: Option<Event>,
    /// The events so far, where answers of this request may be kept for later ones.
    recorded: Option<Vec<Event>>,
}

/// Asks a model for answers; on a thread that may block.
type Ask = dyn FnOnce(&Model) -> Result<Generating, ApiError> + Send;

impl Answering {
    pub(crate) fn new(
        app: &AppState,
        running: &Running,
        model: &Model,
        caller: Caller,
        generating: Generating,
    ) -> Self {
        Self {
            ended: vec![None; generating.n_choices()],
            generating,
            app: app.clone(),
            about: Arc::clone(running.about()),
            model: model.clone(),
            lost: Box::pin(model.lost()),
            caller,
            open: app.live().open(model.name(), caller.tenant),
            again: None,
            renewed: None,
            ends: VecDeque::new(),
            reasons: Vec::new(),
            is_told: false,
            held: None,
            recorded: app.gateway().is_recording(caller.ticket).then(Vec::new),
        }
    }

    /// The same for `request`, which `ask` asks the next version of the model for if the engine is
    /// given up before it brought anything. `None` where no engine is ever given up, see
    /// [`AppState::again`].
    pub(crate) fn or_again<R: Send + 'static>(
        mut self,
        request: Option<R>,
        ask: fn(&Llm, R) -> Result<Generating, ApiError>,
    ) -> Self {
        self.again = request.map(|request| -> Box<Ask> {
            Box::new(move |model: &Model| ask(model.llm()?, request))
        });
        self
    }

    /// The next event of any answer; `None` when all have ended. May be cancelled between events.
    pub(crate) async fn next(&mut self) -> Option<Event> {
        if self.held.is_none() {
            self.held = self.counted_event().await;
        }
        if self.is_told {
            // A client that has the end of its answers may rely on their being counted.
            self.app.gateway().written(self.caller.ticket).await;
        }
        self.held.take()
    }

    /// Gives every event to `add`, to the end of the last answer.
    ///
    /// # Errors
    ///
    /// The failure of the answer with the lowest number among those that failed, whichever was first.
    pub(crate) async fn gather(
        &mut self,
        mut add: impl FnMut(Event) -> Result<(), ApiError>,
    ) -> Result<(), ApiError> {
        let mut failed: Option<(usize, ApiError)> = None;
        while let Some(event) = self.next().await {
            let choice = event.choice;
            if let Err(error) = add(event)
                && failed.as_ref().is_none_or(|(lowest, _)| choice < *lowest)
            {
                failed = Some((choice, error));
            }
        }
        failed.map_or(Ok(()), |(_, error)| Err(error))
    }

    async fn counted_event(&mut self) -> Option<Event> {
        let event = self.next_event().await;
        self.again = None;
        if let Some(event) = &event {
            self.open.tokens(event.tokens.len(), || self.generating.usage());
        }
        match &event {
            Some(Event { choice, finish: Some(finish), .. }) => {
                self.ended[*choice] = Some(finish.reason);
                self.reasons.push(finish.reason);
                if self.reasons.len() == self.n_choices() {
                    self.tell();
                }
            }
            None => self.tell(),
            Some(_) => {}
        }
        self.record(event.as_ref());
        event
    }

    async fn next_event(&mut self) -> Option<Event> {
        loop {
            if let Some(renewed) = &mut self.renewed {
                let outcome = renewed.await;
                self.renewed = None;
                match outcome {
                    Ok(Ok((model, generating))) => {
                        self.lost = Box::pin(model.lost());
                        (self.model, self.generating) = (model, generating);
                    }
                    Ok(Err(error)) => {
                        tracing::error!("the request was not run again: {}", error.body.message);
                        self.give_up();
                    }
                    Err(_) => self.give_up(),
                }
            }
            if let Some(end) = self.ends.pop_front() {
                return Some(end);
            }
            if self.reasons.len() == self.n_choices() {
                return None;
            }
            tokio::select! {
                biased;
                event = self.generating.next() => return event,
                () = &mut self.lost => match self.again.take() {
                    Some(ask) => self.renew(ask),
                    None => self.give_up(),
                },
            }
        }
    }

    /// Records an event; whole answers are kept.
    fn record(&mut self, event: Option<&Event>) {
        let (Some(events), Some(event)) = (&mut self.recorded, event) else { return };
        events.push(event.clone());
        if self.reasons.len() == self.generating.n_choices() {
            let is_whole = |reason| matches!(reason, FinishReason::Stop | FinishReason::Length);
            let events = self.recorded.take().unwrap_or_default();
            if self.reasons.iter().copied().all(is_whole) {
                self.app.gateway().keep(self.caller.ticket, events);
            }
        }
    }

    /// Asks the next version of the model.
    fn renew(&mut self, ask: Box<Ask>) {
        tracing::warn!("the engine was given up; the request is run again");
        let (app, name) = (self.app.clone(), self.model.name().to_owned());
        let span = tracing::Span::current();
        self.renewed = Some(tokio::task::spawn_blocking(move || {
            span.in_scope(|| {
                let model = app.model(Some(&name))?;
                let generating = ask(&model)?;
                Ok((model, generating))
            })
        }));
    }

    /// Ends the open answers.
    fn give_up(&mut self) {
        let usage = self.usage();
        let is_open = |(_, ended): &(usize, &Option<FinishReason>)| ended.is_none();
        let open = self.ended.iter().enumerate().filter(is_open).map(|(choice, _)| choice);
        self.ends = open
            .map(|choice| {
                let finish = Finish::new(FinishReason::Error, usage);
                let finish = Some(Finish { fault: Some(Fault::Hung), ..finish });
                Event { finish, ..Event::new(choice) }
            })
            .collect();
    }

    /// Tokens of all prompts that are computed so far, and in all.
    pub(crate) fn prompt_progress(&self) -> (usize, usize) {
        self.generating.prompt_progress()
    }

    /// Number of answers.
    pub(crate) fn n_choices(&self) -> usize {
        self.generating.n_choices()
    }

    /// Tokens of all prompts, each counted once, and of all answers so far.
    pub(crate) fn usage(&self) -> Usage {
        self.generating.usage()
    }

    /// Times of the request so far.
    pub(crate) fn timings(&self) -> Timings {
        self.generating.timings()
    }

    /// Tells the outcome, unless it is told already.
    fn tell(&mut self) {
        if std::mem::replace(&mut self.is_told, true) {
            return;
        }
        let traces = self.generating.traces();
        let outcome = Outcome {
            caller: self.caller,
            model: &self.model,
            about: &self.about,
            usage: self.usage(),
            timings: self.generating.timings(),
            n_choices: self.n_choices(),
            asked: Asked {
                max_tokens: self.generating.max_tokens(),
                longest_tokens: self.generating.longest_tokens(),
            },
            traces: &traces,
            reasons: &self.reasons,
        };
        self.open.ended(&outcome);
        self.app.ended(&outcome);
    }
}

impl fmt::Debug for Answering {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { about, model, ended, .. } = self;
        let mut out = f.debug_struct("Answering");
        out.field("about", about).field("model", model).field("ended", ended);
        out.finish_non_exhaustive()
    }
}

impl Drop for Answering {
    fn drop(&mut self) {
        self.tell();
    }
}
