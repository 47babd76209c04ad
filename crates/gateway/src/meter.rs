//! Tokens and requests that one key or one tenant has used.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::clock::{Day, Now};
use crate::limits::{Limit, Limits};
use crate::window::Window;

/// The use of one key or one tenant, beside its limits.
#[derive(Clone, Debug, Default)]
pub(crate) struct Meter {
    pub(crate) limits: Limits,
    requests: Window,
    tokens: Window,
    n_running: u64,
    /// Tokens that running requests may still use.
    reserved: u64,
    /// Tokens by the day on which their requests began.
    days: BTreeMap<Day, u64>,
    total: u64,
}

/// A limit that would be exceeded.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Exceeded {
    pub(crate) limit: Limit,
    pub(crate) most: u64,
    pub(crate) left: u64,
    /// Time after which it may be met; `None` if it never can be.
    pub(crate) wait: Option<Duration>,
}

/// How far a limit per minute is used.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Standing {
    /// The limit.
    pub limit: u64,
    /// Amount that is left, reserved tokens taken off.
    pub remaining: u64,
    /// Time until all of it is left, if no further request comes.
    pub reset: Duration,
}

impl Meter {
    /// Whether one more request may begin.
    pub(crate) fn check_request(&mut self, now: Now) -> Result<(), Exceeded> {
        if let Some(most) = self.limits.get(Limit::RequestsPerMinute) {
            let used = self.requests.sum(now.elapsed);
            if used >= most {
                let wait = Some(self.requests.until(now.elapsed, most - 1));
                return Err(Exceeded { limit: Limit::RequestsPerMinute, most, left: 0, wait });
            }
        }
        match self.limits.get(Limit::ConcurrentRequests) {
            Some(most) if self.n_running >= most => {
                // Nobody knows when a running request ends.
                let wait = Some(Duration::from_secs(1));
                Err(Exceeded { limit: Limit::ConcurrentRequests, most, left: 0, wait })
            }
            _ => Ok(()),
        }
    }

    pub(crate) fn begin(&mut self, now: Now) {
        self.requests.add(now.elapsed, 1);
        self.n_running += 1;
    }

    pub(crate) fn end(&mut self) {
        self.n_running = self.n_running.saturating_sub(1);
    }

    /// Tokens that every limit leaves free; the error says which limit leaves fewer than `least`.
    pub(crate) fn room(&mut self, least: u64, now: Now) -> Result<u64, Exceeded> {
        let mut room = u64::MAX;
        for limit in Limit::ALL {
            let (Some(most), Some(used)) = (self.limits.get(limit), self.used(limit, now)) else {
                continue;
            };
            let left = most.saturating_sub(used).saturating_sub(self.reserved);
            if left < least {
                let wait = self.wait(limit, most, least, now);
                return Err(Exceeded { limit, most, left, wait });
            }
            room = room.min(left);
        }
        Ok(room)
    }

    pub(crate) fn reserve(&mut self, tokens: u64) {
        self.reserved = self.reserved.saturating_add(tokens);
    }

    /// Replaces a reservation by what was used.
    pub(crate) fn settle(&mut self, reserved: u64, used: u64, day: Day, now: Now) {
        self.reserved = self.reserved.saturating_sub(reserved);
        if used > 0 {
            self.tokens.add(now.elapsed, used);
        }
        self.restore(day, used);
    }

    /// Adds the tokens of an earlier day.
    pub(crate) fn restore(&mut self, day: Day, used: u64) {
        if used > 0 {
            let of_day = self.days.entry(day).or_default();
            *of_day = of_day.saturating_add(used);
            self.total = self.total.saturating_add(used);
        }
    }

    /// How far the limits per minute are used: of requests, of tokens.
    pub(crate) fn standing(&mut self, now: Now) -> [Option<Standing>; 2] {
        let requests = self.limits.get(Limit::RequestsPerMinute).map(|limit| {
            let remaining = limit.saturating_sub(self.requests.sum(now.elapsed));
            Standing { limit, remaining, reset: self.requests.until(now.elapsed, 0) }
        });
        let tokens = self.limits.get(Limit::TokensPerMinute).map(|limit| {
            let used = self.tokens.sum(now.elapsed).saturating_add(self.reserved);
            let reset = self.tokens.until(now.elapsed, 0);
            Standing { limit, remaining: limit.saturating_sub(used), reset }
        });
        [requests, tokens]
    }

    /// Tokens that count for a limit; `None` for a limit of requests.
    fn used(&mut self, limit: Limit, now: Now) -> Option<u64> {
        match limit {
            Limit::TokensPerMinute => Some(self.tokens.sum(now.elapsed)),
            Limit::TokensPerDay => Some(self.days.get(&now.day()).copied().unwrap_or(0)),
            Limit::TokensPerMonth => Some(self.days.range(now.day().month()).map(|(_, n)| n).sum()),
            Limit::TokensTotal => Some(self.total),
            Limit::RequestsPerMinute | Limit::ConcurrentRequests => None,
        }
    }

    /// Time until `least` tokens may be free under a limit.
    fn wait(&mut self, limit: Limit, most: u64, least: u64, now: Now) -> Option<Duration> {
        let may_use = most.checked_sub(least)?;
        let until = |day: Day| Duration::from_secs(day.start().saturating_sub(now.unix_seconds));
        let is_held = self.used(limit, now)? <= may_use;
        // Running requests hold the rest, and give back what they do not use.
        let soon = Duration::from_secs(1);
        match limit {
            _ if is_held => Some(soon),
            Limit::TokensPerMinute => Some(self.tokens.until(now.elapsed, may_use)),
            Limit::TokensPerDay => Some(until(Day(now.day().0 + 1))),
            Limit::TokensPerMonth => Some(until(Day(now.day().month().end().0 + 1))),
            _ => None,
        }
    }
}
