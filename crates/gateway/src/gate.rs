//! The gate: whether a request may begin, and how many tokens it may use.
//!
//! ```text
//!   begin     one request more, for its key and its tenant, or a Refusal
//!   reserve   prompt + longest answer, before the request runs, or a Refusal
//!   settle    the tokens that were used in place of the reservation
//!   end       one running request less
//! ```
//!
//! A request counts for its key and for its tenant. Both are checked before either changes, so a
//! refused request has changed nothing. Used and reserved tokens together never exceed a limit, so
//! any number of clients of a key exceed it by no token.
//!
//! An answer without a stated length may be as long as the limits leave room when it begins: it
//! ends with `length` there. Otherwise a chat, whose answer may fill the context, could begin under
//! no small limit.

use std::collections::HashMap;
use std::fmt;
use std::time::Duration;

use crate::clock::{Day, Now};
use crate::limits::{Limit, Limits};
use crate::meter::{Exceeded, Meter, Standing};

/// A kind of owner of limits.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum Party {
    /// A key.
    Key,
    /// A tenant.
    Tenant,
}

/// A key or a tenant of one [`Gate`].
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct PartyId(u32);

/// The parties of a request.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Who {
    /// Its key; `None` for a request without a key of its own.
    pub key: Option<PartyId>,
    /// Its tenant.
    pub tenant: PartyId,
}

impl Who {
    fn parties(self) -> impl Iterator<Item = PartyId> {
        self.key.into_iter().chain([self.tenant])
    }
}

/// Tokens that a request may need.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Demand {
    /// Tokens of all prompts.
    pub prompt_tokens: u64,
    /// Answers, at least one.
    pub n_answers: u64,
    /// Fewest tokens of an answer for which the request is worth to be let in: the longest answer
    /// where the request states its length, else the shortest.
    pub least_answer_tokens: u64,
    /// Most tokens of an answer; it may be cut to what is left, but not below the least.
    pub most_answer_tokens: u64,
}

/// Tokens that a request may use.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[must_use = "a reservation holds its tokens until it is settled"]
pub struct Reservation {
    /// Tokens of each answer.
    pub answer_tokens: u64,
    tokens: u64,
    day: Day,
}

impl Reservation {
    /// The day that the tokens are counted for: that on which they were reserved.
    pub fn day(&self) -> Day {
        self.day
    }
}

/// A limit that a request would exceed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Refusal {
    /// The limit.
    pub limit: Limit,
    /// Whether it is that of the key or that of its tenant.
    pub party: Party,
    /// The most that it allows.
    pub most: u64,
    /// The amount that is left.
    pub left: u64,
    /// The amount that the request needs.
    pub needed: u64,
    /// Time after which the request may be let in; `None` if it never will be.
    pub wait: Option<Duration>,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { limit, most, left, needed, .. } = self;
        let party = match self.party {
            Party::Key => "the API key",
            Party::Tenant => "the tenant of the API key",
        };
        let name = limit.name();
        match limit {
            Limit::RequestsPerMinute => {
                write!(f, "{party} may begin {most} requests per minute (`{name}`)")
            }
            Limit::ConcurrentRequests => {
                write!(f, "{party} may run {most} requests at the same time (`{name}`)")
            }
            _ => write!(
                f,
                "{party} has {left} of {most} tokens left (`{name}`), and this request may need \
                 {needed}: the tokens of its prompt and of its longest answer"
            ),
        }?;
        match self.wait {
            None if needed > most => {
                f.write_str("; a shorter request, or a smaller `max_tokens`, may pass")
            }
            _ => Ok(()),
        }
    }
}

/// Limits and use of every key and tenant.
#[derive(Debug, Default)]
pub struct Gate {
    meters: Vec<(Party, Meter)>,
    by_name: HashMap<(Party, String), PartyId>,
}

impl Gate {
    /// The party of this name, from now on with these limits; its use so far is kept.
    pub fn party(&mut self, party: Party, name: &str, limits: Limits) -> PartyId {
        let n_known = self.meters.len() as u32;
        let id = *self.by_name.entry((party, name.to_owned())).or_insert(PartyId(n_known));
        if id.0 == n_known {
            self.meters.push((party, Meter::default()));
        }
        self.meter(id).limits = limits;
        id
    }

    /// The party of this name, with the limits that it has; a new one has none.
    pub fn known_or_new(&mut self, party: Party, name: &str) -> PartyId {
        let known = self.by_name.get(&(party, name.to_owned())).copied();
        known.unwrap_or_else(|| self.party(party, name, Limits::default()))
    }

    /// Adds tokens that were used before the process began.
    pub fn restore(&mut self, id: PartyId, day: Day, tokens: u64) {
        self.meter(id).restore(day, tokens);
    }

    /// Whether a quota limits the request, so that its usage must be written down.
    pub fn has_quota(&self, who: Who) -> bool {
        who.parties().any(|id| self.meters[id.0 as usize].1.limits.has_quota())
    }

    /// Counts a request that begins.
    ///
    /// # Errors
    ///
    /// The limit that it would exceed; then nothing has changed.
    pub fn begin(&mut self, who: Who, now: Now) -> Result<(), Refusal> {
        for id in who.parties() {
            let outcome = self.meter(id).check_request(now);
            outcome.map_err(|exceeded| self.refusal(id, 1, exceeded))?;
        }
        who.parties().for_each(|id| self.meter(id).begin(now));
        Ok(())
    }

    /// Counts a request that has ended.
    pub fn end(&mut self, who: Who) {
        who.parties().for_each(|id| self.meter(id).end());
    }

    /// Reserves the tokens of a request.
    ///
    /// # Errors
    ///
    /// The limit that they would exceed; then nothing has changed.
    pub fn reserve(&mut self, who: Who, demand: Demand, now: Now) -> Result<Reservation, Refusal> {
        let Demand { prompt_tokens, n_answers, least_answer_tokens, most_answer_tokens } = demand;
        let needed = |answer: u64| prompt_tokens.saturating_add(n_answers.saturating_mul(answer));
        let mut room = u64::MAX;
        for id in who.parties() {
            let least = needed(least_answer_tokens);
            let outcome = self.meter(id).room(least, now);
            room = room.min(outcome.map_err(|exceeded| self.refusal(id, least, exceeded))?);
        }
        let answer_tokens = match room.saturating_sub(prompt_tokens).checked_div(n_answers) {
            Some(room) => most_answer_tokens.min(room),
            None => 0,
        };
        let tokens = needed(answer_tokens);
        who.parties().for_each(|id| self.meter(id).reserve(tokens));
        Ok(Reservation { answer_tokens, tokens, day: now.day() })
    }

    /// Replaces a reservation by the tokens that were used. Without one they count for today.
    pub fn settle(&mut self, who: Who, reserved: Option<Reservation>, used: u64, now: Now) {
        let (tokens, day) = reserved.map_or((0, now.day()), |held| (held.tokens, held.day));
        who.parties().for_each(|id| self.meter(id).settle(tokens, used, day, now));
    }

    /// How far the limits per minute are used, of requests and of tokens: of the key or of its
    /// tenant, whichever has less left.
    pub fn standing(&mut self, who: Who, now: Now) -> [Option<Standing>; 2] {
        let mut least = [None::<Standing>; 2];
        for id in who.parties() {
            for (least, of_party) in least.iter_mut().zip(self.meter(id).standing(now)) {
                let both = least.iter().chain(&of_party).min_by_key(|s| s.remaining).copied();
                *least = both;
            }
        }
        least
    }

    fn refusal(&self, id: PartyId, needed: u64, exceeded: Exceeded) -> Refusal {
        let Exceeded { limit, most, left, wait } = exceeded;
        Refusal { limit, party: self.meters[id.0 as usize].0, most, left, needed, wait }
    }

    fn meter(&mut self, id: PartyId) -> &mut Meter {
        &mut self.meters[id.0 as usize].1
    }
}

#[cfg(test)]
mod tests;
