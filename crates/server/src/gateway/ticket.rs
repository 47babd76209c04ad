//! One request on its way through the gateway.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::http::{HeaderMap, HeaderName, HeaderValue};
use pelton_base::{TenantId, Usage};
use pelton_gateway::{Counts, Demand, Refusal, Reservation, RowKey, Standing, Who};
use pelton_llm::{Asked, NotAdmitted};

use super::{Gateway, UsageFailures};
use crate::error::ApiError;

/// Says whether an answer was kept from an earlier request.
const RESULT_CACHE: HeaderName = HeaderName::from_static("x-pelton-result-cache");

/// One request: its key and tenant, and what it holds.
#[derive(Debug)]
pub(crate) struct Ticket {
    gateway: Arc<Gateway>,
    number: u64,
    who: Who,
    /// Id of its key; empty for none of the key file.
    key: Arc<str>,
    tenant: TenantId,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    has_begun: bool,
    has_counted: bool,
    reservation: Option<Reservation>,
    /// The round of the books that writes its tokens, where a quota needs them written.
    round: Option<u64>,
    /// The fingerprint of the request, while its answers may be kept.
    fingerprint: Option<[u8; 32]>,
    /// Whether its answers were kept from an earlier request; `None` if nobody looked.
    is_hit: Option<bool>,
}

impl Ticket {
    pub(super) fn new(
        gateway: Arc<Gateway>,
        number: u64,
        who: Who,
        key: Arc<str>,
        tenant: TenantId,
    ) -> Arc<Self> {
        Arc::new(Self { gateway, number, who, key, tenant, state: Mutex::default() })
    }

    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// Id of its key; empty for none of the key file.
    pub(crate) fn key(&self) -> &str {
        &self.key
    }

    /// Counts the request, which begins.
    ///
    /// # Errors
    ///
    /// 429 where a limit is reached, 503 where usage that a quota needs cannot be written.
    pub(crate) fn begin(self: &Arc<Self>) -> Result<(), ApiError> {
        let mut state = self.state();
        if state.has_begun {
            return Ok(());
        }
        let mut gate = self.gateway.gate();
        if gate.has_quota(self.who)
            && self.gateway.failures == UsageFailures::Refuse
            && let Some(why) = self.gateway.books.failure()
        {
            return Err(ApiError::usage_unavailable(&why));
        }
        if let Err(refusal) = gate.begin(self.who, self.gateway.now()) {
            drop(gate);
            self.note_refusal();
            return Err(ApiError::from(not_admitted(&refusal)));
        }
        state.has_begun = true;
        self.gateway.tickets().insert(self.number, Arc::clone(self));
        Ok(())
    }

    /// Reserves the tokens of the request; returns the tokens that each answer may have.
    pub(super) fn reserve(&self, asked: Asked) -> Result<u64, NotAdmitted> {
        let demand = Demand {
            prompt_tokens: asked.prompt_tokens,
            n_answers: asked.n_answers,
            least_answer_tokens: asked.least_answer_tokens,
            most_answer_tokens: asked.most_answer_tokens,
        };
        let mut state = self.state();
        let now = self.gateway.now();
        let outcome = {
            let mut gate = self.gateway.gate();
            // A request that is run again gives back what it held.
            let earlier = state.reservation.take();
            gate.settle(self.who, earlier, 0, now);
            gate.reserve(self.who, demand, now)
        };
        match outcome {
            Ok(reservation) => {
                state.reservation = Some(reservation);
                Ok(reservation.answer_tokens)
            }
            Err(refusal) => {
                drop(state);
                self.note_refusal();
                Err(not_admitted(&refusal))
            }
        }
    }

    /// Reserves the tokens of a request that has no answer of tokens, such as a vector.
    ///
    /// # Errors
    ///
    /// 429 where a limit is reached.
    pub(crate) fn reserve_prompt(&self, prompt_tokens: usize) -> Result<(), ApiError> {
        let asked = Asked {
            ticket: self.number,
            prompt_tokens: prompt_tokens as u64,
            n_answers: 0,
            least_answer_tokens: 0,
            most_answer_tokens: 0,
        };
        Ok(self.reserve(asked).map(drop)?)
    }

    /// Counts the tokens that the request has used, in place of those that it reserved.
    pub(super) fn settle(&self, model: &str, usage: Usage) {
        let mut state = self.state();
        let now = self.gateway.now();
        let reservation = state.reservation.take();
        let day = reservation.map_or(now.day(), |held| held.day());
        let counts = Counts {
            requests: u64::from(!std::mem::replace(&mut state.has_counted, true)),
            refused: 0,
            prompt_tokens: usage.prompt_tokens as u64,
            cached_tokens: usage.cached_tokens as u64,
            completion_tokens: usage.completion_tokens as u64,
            reasoning_tokens: usage.reasoning_tokens as u64,
            last_used: now.unix_seconds,
        };
        let has_quota = {
            let mut gate = self.gateway.gate();
            gate.settle(self.who, reservation, counts.tokens(), now);
            gate.has_quota(self.who)
        };
        let row = self.row(day, model);
        let round = self.gateway.books.note(row, &counts, has_quota);
        state.round = has_quota.then_some(round);
    }

    /// The round of the books in which its tokens are written, if that is to be waited for.
    pub(super) fn round(&self) -> Option<u64> {
        self.state().round
    }

    /// Gives back what the request holds.
    pub(crate) fn end(&self) {
        let mut state = self.state();
        if !std::mem::replace(&mut state.has_begun, false) {
            return;
        }
        let (now, reservation) = (self.gateway.now(), state.reservation.take());
        let mut gate = self.gateway.gate();
        if reservation.is_some() {
            gate.settle(self.who, reservation, 0, now);
        }
        gate.end(self.who);
        drop(gate);
        self.gateway.tickets().remove(&self.number);
    }

    /// Notes whether the answers were kept from an earlier request.
    pub(super) fn looked_up(&self, fingerprint: [u8; 32], is_hit: bool) {
        let mut state = self.state();
        state.is_hit = Some(is_hit);
        state.fingerprint = (!is_hit).then_some(fingerprint);
    }

    pub(super) fn is_recording(&self) -> bool {
        self.state().fingerprint.is_some()
    }

    pub(super) fn take_fingerprint(&self) -> Option<[u8; 32]> {
        self.state().fingerprint.take()
    }

    /// Adds the headers that tell how far limits are used.
    pub(crate) fn mark(&self, headers: &mut HeaderMap) {
        let standing = self.gateway.gate().standing(self.who, self.gateway.now());
        for (kind, standing) in ["requests", "tokens"].into_iter().zip(standing) {
            let Some(Standing { limit, remaining, reset }) = standing else { continue };
            let values = [
                ("limit", limit.to_string()),
                ("remaining", remaining.to_string()),
                ("reset", duration(reset)),
            ];
            for (what, value) in values {
                let name = HeaderName::try_from(format!("x-ratelimit-{what}-{kind}"));
                if let (Ok(name), Ok(value)) = (name, HeaderValue::try_from(value)) {
                    headers.insert(name, value);
                }
            }
        }
        if let Some(is_hit) = self.state().is_hit {
            let word = HeaderValue::from_static(if is_hit { "hit" } else { "miss" });
            headers.insert(RESULT_CACHE, word);
        }
    }

    fn note_refusal(&self) {
        let now = self.gateway.now();
        let counts = Counts { refused: 1, last_used: now.unix_seconds, ..Counts::default() };
        self.gateway.books.note(self.row(now.day(), ""), &counts, false);
    }

    fn row(&self, day: pelton_gateway::Day, model: &str) -> RowKey {
        let tenant = self.gateway.tenant_name(self.tenant).to_owned();
        RowKey { day, key: self.key.to_string(), tenant, model: model.to_owned() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A refusal in the form of a gatekeeper.
fn not_admitted(refusal: &Refusal) -> NotAdmitted {
    let is_quota = refusal.limit.is_quota();
    let code = if is_quota { "insufficient_quota" } else { "rate_limit_exceeded" };
    NotAdmitted { why: refusal.to_string(), code, retry_after: refusal.wait, is_fault: false }
}

/// A time in the form of OpenAI's headers: `6m0s`, `20s`.
fn duration(time: Duration) -> String {
    let seconds = time.as_secs() + u64::from(time.subsec_nanos() > 0);
    match seconds / 60 {
        0 => format!("{seconds}s"),
        minutes => format!("{minutes}m{}s", seconds % 60),
    }
}
