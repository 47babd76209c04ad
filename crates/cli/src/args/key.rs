//! Flags of `pelton key`.

use std::num::NonZeroU64;
use std::path::PathBuf;

use clap::{Args, Subcommand};
use pelton_base::limits;
use pelton_gateway::{Limit, Limits, Scope, Scopes, is_key_id, parse_date_time, parse_span};

pub(super) const HELP_END: &str = "\
Examples:
  pelton key new --key-file keys                          prints a key, once
  pelton key new --key-file keys --expires 30d --tokens-per-day 100000
  pelton key new --key-file keys --scope metrics          for a monitor
  pelton key new --key-file keys --id alice --ask         a secret of your own
  pelton key list --key-file keys
  pelton key revoke --key-file keys 7f3kq2ab

The file holds hashes, and its mode is 600. A server that runs with --key-file reads it again within
two seconds after each change.";

/// Commands for the keys of a file.
#[derive(Debug, Subcommand)]
pub(crate) enum KeyCommand {
    /// Make a key and print it, once
    New(Box<NewKeyArgs>),
    /// List the keys of a file; a key itself cannot be shown again
    List(ListKeysArgs),
    /// Revoke keys for good
    Revoke(RevokeKeysArgs),
}

/// Where the keys are.
#[derive(Args, Debug)]
pub(crate) struct KeyFileArgs {
    /// File of hashed keys
    #[arg(long, env = "PELTON_KEY_FILE", value_name = "FILE")]
    pub(crate) key_file: PathBuf,
    /// JSON on stdout
    #[arg(long)]
    pub(crate) json: bool,
}

/// Flags of `pelton key new`.
#[derive(Args, Debug)]
pub(crate) struct NewKeyArgs {
    /// Where the keys are.
    #[command(flatten)]
    pub(crate) file: KeyFileArgs,
    /// Name of the key in lists, logs and reports [default: eight random letters and digits]
    #[arg(long, value_name = "ID", value_parser = id)]
    pub(crate) id: Option<String>,
    /// Routes that it opens: `user` for models, `metrics` for the load of the server, `admin` for
    /// everything; with commas
    #[arg(long, value_name = "SCOPES", default_value = Scope::User.name(), value_parser = scopes)]
    pub(crate) scope: Scopes,
    /// Tenant of its requests
    #[arg(long, value_name = "NAME", default_value = "default", value_parser = tenant)]
    pub(crate) tenant: String,
    /// When it expires: after a time such as 12h or 30d, or at a time in UTC such as 2027-01-01
    #[arg(long, value_name = "WHEN", value_parser = expiry)]
    pub(crate) expires: Option<Expiry>,
    /// Read the secret from standard input instead of making a random one; it is hashed with
    /// argon2id
    #[arg(long, requires = "id")]
    pub(crate) ask: bool,
    /// Its limits.
    #[command(flatten)]
    limits: LimitArgs,
}

/// Limits of a key; without one it has no limit of that kind.
#[derive(Args, Debug)]
struct LimitArgs {
    /// Most requests that begin within 60 seconds
    #[arg(long, value_name = "N")]
    requests_per_minute: Option<NonZeroU64>,
    /// Most tokens, of prompts and answers, within 60 seconds
    #[arg(long, value_name = "N")]
    tokens_per_minute: Option<NonZeroU64>,
    /// Most requests at the same time
    #[arg(long, value_name = "N")]
    concurrent_requests: Option<NonZeroU64>,
    /// Most tokens per day in UTC
    #[arg(long, value_name = "N")]
    tokens_per_day: Option<NonZeroU64>,
    /// Most tokens per calendar month in UTC
    #[arg(long, value_name = "N")]
    tokens_per_month: Option<NonZeroU64>,
    /// Most tokens ever
    #[arg(long, value_name = "N")]
    tokens_total: Option<NonZeroU64>,
}

impl NewKeyArgs {
    /// The limits that the flags set.
    pub(crate) fn limits(&self) -> Limits {
        let given = &self.limits;
        let mut limits = Limits::default();
        for limit in Limit::ALL {
            let most = match limit {
                Limit::RequestsPerMinute => given.requests_per_minute,
                Limit::TokensPerMinute => given.tokens_per_minute,
                Limit::ConcurrentRequests => given.concurrent_requests,
                Limit::TokensPerDay => given.tokens_per_day,
                Limit::TokensPerMonth => given.tokens_per_month,
                Limit::TokensTotal => given.tokens_total,
            };
            limits.set(limit, most);
        }
        limits
    }
}

/// Flags of `pelton key list`.
#[derive(Args, Debug)]
pub(crate) struct ListKeysArgs {
    /// Where the keys are.
    #[command(flatten)]
    pub(crate) file: KeyFileArgs,
}

/// Flags of `pelton key revoke`.
#[derive(Args, Debug)]
pub(crate) struct RevokeKeysArgs {
    /// Where the keys are.
    #[command(flatten)]
    pub(crate) file: KeyFileArgs,
    /// Ids from `pelton key list`
    #[arg(value_name = "ID", required = true)]
    pub(crate) ids: Vec<String>,
}

/// When a key expires.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Expiry {
    /// This many seconds after it was made.
    After(u64),
    /// At this second since 1970.
    At(u64),
}

impl Expiry {
    /// The time for a key that is made now, in seconds since 1970.
    pub(crate) fn from(self, now: u64) -> u64 {
        match self {
            Self::After(seconds) => now.saturating_add(seconds),
            Self::At(at) => at,
        }
    }
}

fn id(text: &str) -> Result<String, String> {
    let expected = "expected 1 to 32 lower-case letters, digits and dashes";
    is_key_id(text).then(|| text.to_owned()).ok_or_else(|| expected.to_owned())
}

fn tenant(text: &str) -> Result<String, String> {
    let is_name = (1..=limits::TENANT_NAME_BYTES).contains(&text.len())
        && text.bytes().all(|b| b.is_ascii_graphic());
    let expected = "expected 1 to 64 visible ASCII letters without blanks";
    is_name.then(|| text.to_owned()).ok_or_else(|| expected.to_owned())
}

fn scopes(text: &str) -> Result<Scopes, String> {
    let expected = "expected `user`, `metrics` or `admin`, with commas between them";
    Scopes::parse(text).ok_or_else(|| expected.to_owned())
}

fn expiry(text: &str) -> Result<Expiry, String> {
    let after = parse_span(text).map(|span| Expiry::After(span.as_secs()));
    let at = || parse_date_time(text).map(Expiry::At);
    after.or_else(at).ok_or_else(|| {
        "expected a span such as 45m, 12h, 30d or 2w, or a time in UTC such as 2027-01-01 or \
         2027-01-01T12:00:00Z"
            .to_owned()
    })
}
