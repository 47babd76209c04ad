//! The limits of a key or of a tenant.

use std::num::NonZeroU64;

/// The kinds of limits.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum Limit {
    /// Requests that begin within any 60 seconds.
    RequestsPerMinute,
    /// Tokens of prompts and answers that are settled within any 60 seconds.
    TokensPerMinute,
    /// Requests that run at the same time.
    ConcurrentRequests,
    /// Tokens of the requests that begin on one day in UTC.
    TokensPerDay,
    /// Tokens of the requests that begin in one calendar month in UTC.
    TokensPerMonth,
    /// Tokens of all requests ever.
    TokensTotal,
}

impl Limit {
    /// Every kind.
    pub const ALL: [Self; 6] = [
        Self::RequestsPerMinute,
        Self::TokensPerMinute,
        Self::ConcurrentRequests,
        Self::TokensPerDay,
        Self::TokensPerMonth,
        Self::TokensTotal,
    ];

    /// Its name in files and messages.
    pub fn name(self) -> &'static str {
        match self {
            Self::RequestsPerMinute => "requests_per_minute",
            Self::TokensPerMinute => "tokens_per_minute",
            Self::ConcurrentRequests => "concurrent_requests",
            Self::TokensPerDay => "tokens_per_day",
            Self::TokensPerMonth => "tokens_per_month",
            Self::TokensTotal => "tokens_total",
        }
    }

    /// The kind of a name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|limit| limit.name() == name)
    }

    /// Whether it is a quota: it outlives the process, so usage must be written down.
    pub fn is_quota(self) -> bool {
        matches!(self, Self::TokensPerDay | Self::TokensPerMonth | Self::TokensTotal)
    }
}

/// Limits of a key or a tenant; by default there are none.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Limits([Option<NonZeroU64>; Limit::ALL.len()]);

impl Limits {
    /// The most of one kind; `None` for no limit.
    pub fn get(&self, limit: Limit) -> Option<u64> {
        self.0[limit as usize].map(NonZeroU64::get)
    }

    /// Sets the most of one kind.
    pub fn set(&mut self, limit: Limit, most: Option<NonZeroU64>) {
        self.0[limit as usize] = most;
    }

    /// The limits that are set, in the order of [`Limit::ALL`].
    pub fn iter(&self) -> impl Iterator<Item = (Limit, u64)> + '_ {
        Limit::ALL.into_iter().filter_map(|limit| Some((limit, self.get(limit)?)))
    }

    /// Whether any of them is a quota.
    pub fn has_quota(&self) -> bool {
        self.iter().any(|(limit, _)| limit.is_quota())
    }
}
