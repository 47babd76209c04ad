//! Beam searches in the loop: their beams are led requests of the scheduler.

use super::{EngineLoop, Route, send};
use crate::beams::{Beam, BeamParams, Group, Moves};
use crate::{Executor, Fault, TokenEvent};
use pelton_base::{FinishReason, Request, RequestId, Usage};
use pelton_sampling::TokenLogprobs;
use pelton_sched::{SequenceUpdate, Tick};
use std::time::Instant;

impl<E: Executor> EngineLoop<E> {
    /// Introduces a search, whose route is known already, and of whose prompt the first `n_cached`
    /// tokens are expected in the cache.
    pub(super) fn begin_search(
        &mut self,
        (request, n_cached): (Request, usize),
        params: BeamParams,
        at: Tick,
    ) {
        let name = request.id;
        let room = self.scheduler.config().context_tokens() - request.ask.prompt.len();
        let n_most = request.ask.max_tokens.min(room);
        let begun = Group::new(request, params, n_most).and_then(|(group, first, probe)| {
            self.executor.add(&first, vec![probe].into())?;
            Ok((group, first))
        });
        match begun {
            Ok((group, first)) => {
                tracing::debug!(id = %name, width = params.width, "beam search taken");
                self.beams.insert(group);
                self.scheduler.add_led_at(first, at, n_cached);
            }
            Err(panicked) => {
                self.metrics.n_panicked += 1;
                self.end_route(name, FinishReason::Error, Some(panicked.into()), Vec::new());
            }
        }
    }

    /// Takes in the news of a beam of the search `name`; `true` when all of its beams are computed.
    pub(super) fn note_beam(
        &mut self,
        name: RequestId,
        update: &SequenceUpdate,
        report: Option<TokenLogprobs>,
        fault: Option<Fault>,
    ) -> bool {
        if let Some(finish) = update.finish {
            self.end_search(name, finish, fault);
            return false;
        }
        if let (true, Some(route)) = (update.id == name, self.routes.get_mut(&name)) {
            // The first beam alone computes the prompt, as far as it is not cached.
            route.usage.cached_tokens = update.usage.cached_tokens;
        }
        self.beams.rested(update.id, report)
    }

    /// Takes a search a step further, whose beams are all computed.
    pub(super) fn advance_search(&mut self, name: RequestId, at: Instant) {
        let shared = &self.shared;
        match self.beams.advance(name, || shared.new_id()) {
            Ok(Some(moves)) => self.make_moves(name, moves, at),
            Ok(None) => self.end_search(name, FinishReason::Stop, None),
            Err(panicked) => {
                self.metrics.n_panicked += 1;
                self.end_search(name, FinishReason::Error, Some(panicked.into()));
            }
        }
    }

    fn make_moves(&mut self, name: RequestId, moves: Moves, at: Instant) {
        let Moves { branches, extended, dropped } = moves;
        self.metrics.generated_tokens += (branches.len() + extended.len()) as u64;
        for id in dropped {
            self.scheduler.abort(id);
            self.executor.finished(id);
        }
        let mut branches = branches.into_iter();
        while let Some((parent, request, probe, token)) = branches.next() {
            if let Err(panicked) = self.executor.add(&request, vec![probe].into()) {
                self.metrics.n_panicked += 1;
                let unknown = branches.map(|(_, request, ..)| request.id);
                self.beams.forget(name, std::iter::once(request.id).chain(unknown));
                return self.end_search(name, FinishReason::Error, Some(panicked.into()));
            }
            self.scheduler.branch(parent, request.id, token);
        }
        for (id, token) in extended {
            self.scheduler.extend(id, token);
        }
        self.report_growth(name, at);
    }

    /// Tells the client how long the beams are, and the charts how long it took.
    fn report_growth(&mut self, name: RequestId, at: Instant) {
        let completion_tokens = self.beams.n_tokens(name);
        let route = self.routes.get_mut(&name).expect("invariant: a search has a route");
        route.usage = Usage { completion_tokens, ..route.usage };
        let (now, charts) = (self.shared.clock.tick(at), &mut self.feedback.charts);
        match route.token_at.replace(now) {
            None => charts.ttft.record(now.0, now.0 - route.submitted_at.0, 1),
            Some(last) => charts.tpot.record(now.0, now.0 - last.0, 1),
        }
        let Route { ref events, usage, started_at, .. } = *route;
        let (tokens, beams, prompt) = (Vec::new(), Vec::new(), Vec::new());
        let (finish, fault) = (None, None);
        send(events, TokenEvent { tokens, finish, fault, usage, started_at, at, beams, prompt });
    }

    /// Ends a search and all of its beams.
    fn end_search(&mut self, name: RequestId, how: FinishReason, fault: Option<Fault>) {
        let Some(group) = self.drop_beams(name) else { return };
        let answers = group.answers();
        let (how, fault) = match answers.is_empty() {
            // A rule may have left no beam and no answer.
            true => (FinishReason::Error, fault.or_else(|| group.stuck())),
            false => (how, fault),
        };
        self.end_route(name, how, fault, answers);
    }

    /// Forgets a search that its client no longer wants; `false` when there is none.
    pub(super) fn abort_search(&mut self, name: RequestId) -> bool {
        let was_here = self.drop_beams(name).is_some();
        if was_here {
            tracing::debug!(id = %name, "beam search aborted");
            self.routes.remove(&name);
            self.metrics.n_finished += 1;
        }
        was_here
    }

    /// Takes a search out of every part of the engine but its route.
    pub(super) fn drop_beams(&mut self, name: RequestId) -> Option<Group> {
        let (group, beams) = self.beams.remove(name)?;
        for id in beams {
            // The scheduler has ended those that failed.
            self.scheduler.abort(id);
            self.executor.finished(id);
        }
        Some(group)
    }

    fn end_route(
        &mut self,
        name: RequestId,
        how: FinishReason,
        fault: Option<Fault>,
        beams: Vec<Beam>,
    ) {
        self.metrics.n_finished += 1;
        let Some(route) = self.routes.remove(&name) else { return };
        let Route { events, usage, started_at, .. } = route;
        self.metrics.cached_prompt_tokens += usage.cached_tokens as u64;
        let (tokens, finish, at) = (Vec::new(), Some(how), Instant::now());
        let prompt = Vec::new();
        send(&events, TokenEvent { tokens, finish, fault, usage, started_at, at, beams, prompt });
    }
}
