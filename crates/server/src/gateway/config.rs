//! Settings of the gateway, and why it cannot be opened.

use std::path::PathBuf;
use std::time::Duration;

use pelton_gateway::{Limits, StoreError};

use super::KeysError;

/// Settings of the gateway; by default there is no key file, no limit and no usage file.
#[derive(Clone, Debug)]
pub struct GatewayConfig {
    /// File of hashed keys.
    pub key_file: Option<PathBuf>,
    /// File of usage; without one, usage is that since the start.
    pub usage_file: Option<PathBuf>,
    /// Treatment of requests with a quota while usage cannot be written.
    pub usage_failures: UsageFailures,
    /// Limits of tenants, by name.
    pub tenant_limits: Vec<(String, Limits)>,
    /// Bytes for whole answers to repeatable requests; `None` keeps none.
    pub result_cache_bytes: Option<usize>,
    /// Time for which such an answer is kept.
    pub result_cache_ttl: Duration,
}

impl Default for GatewayConfig {
    fn default() -> Self {
        Self {
            key_file: None,
            usage_file: None,
            usage_failures: UsageFailures::default(),
            tenant_limits: Vec::new(),
            result_cache_bytes: None,
            result_cache_ttl: Duration::from_secs(3600),
        }
    }
}

/// Treatment of requests with a quota while usage cannot be written.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum UsageFailures {
    /// They are refused with 503.
    #[default]
    Refuse,
    /// They run; their usage is kept in memory until it can be written.
    Accept,
}

impl UsageFailures {
    /// Every choice.
    pub const ALL: [Self; 2] = [Self::Refuse, Self::Accept];

    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Refuse => "refuse",
            Self::Accept => "accept",
        }
    }
}

/// Why the gateway cannot be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GatewayError {
    /// The key file cannot be used.
    #[error(transparent)]
    Keys(#[from] KeysError),
    /// A key is for a tenant that the server does not have.
    #[error("{}: the key `{key}` is for the tenant `{tenant}`; expected one of {known}", path.display())]
    UnknownTenant {
        /// The key file.
        path: PathBuf,
        /// Id of the key.
        key: String,
        /// Its tenant.
        tenant: String,
        /// The tenants of the server.
        known: String,
    },
    /// A quota without a place to write usage to.
    #[error("{of} has a quota of tokens, which must outlive the server: `--usage-file FILE`")]
    NoUsageFile {
        /// The tenant or key.
        of: String,
    },
    /// The usage file cannot be opened.
    #[error("usage: {0}")]
    Usage(StoreError),
}
