//! The YAML file of `pelton serve --config`.

use std::num::{NonZeroU32, NonZeroUsize};
use std::path::{Path, PathBuf};
use std::time::Duration;

use pelton_base::{Slo, limits};
use pelton_llm::{Pooling, Verification};
use pelton_model::KvDtype;
use pelton_sched::{
    Batching, Eviction, KvAllocation, PolicyKind, PreemptionMode, PriorityOrder, TenantConfig,
};
use serde::de::{Deserialize, Deserializer, Error};

use super::secret::{Secrets, Sources};
use crate::args::{Choice, ComputeArg, SpecChoice};
use crate::failure::{Failure, Result};
use crate::units;

/// Everything that the file may say; each field is the flag of its name.
#[derive(Debug, Default, serde::Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct ConfigFile {
    pub(super) model: Option<String>,
    pub(super) threads: Option<NonZeroUsize>,
    #[serde(deserialize_with = "choice")]
    pub(super) compute: Option<ComputeArg>,
    #[serde(deserialize_with = "choice")]
    pub(super) kv_dtype: Option<KvDtype>,
    pub(super) max_context: Option<NonZeroUsize>,
    pub(super) packed_cache: Option<String>,
    pub(super) host: Option<String>,
    pub(super) port: Option<u16>,
    pub(super) drain_timeout: Option<u64>,
    pub(super) served_name: Option<String>,
    pub(super) embeddings: Option<bool>,
    #[serde(deserialize_with = "choice")]
    pub(super) pooling: Option<Pooling>,
    pub(super) normalize: Option<bool>,
    #[serde(deserialize_with = "choice")]
    pub(super) policy: Option<PolicyKind>,
    #[serde(deserialize_with = "choice")]
    pub(super) priority_order: Option<PriorityOrder>,
    #[serde(deserialize_with = "milliseconds")]
    pub(super) ttft_target: Option<Duration>,
    #[serde(deserialize_with = "milliseconds")]
    pub(super) tpot_target: Option<Duration>,
    #[serde(deserialize_with = "seconds")]
    pub(super) max_wait: Option<Duration>,
    #[serde(deserialize_with = "choice")]
    pub(super) batching: Option<Batching>,
    #[serde(deserialize_with = "choice")]
    pub(super) kv_allocation: Option<KvAllocation>,
    pub(super) prefix_cache: Option<bool>,
    /// Whether tenants share cached prefixes.
    pub(super) share_prefixes: bool,
    #[serde(deserialize_with = "choice")]
    pub(super) cache_eviction: Option<Eviction>,
    #[serde(deserialize_with = "choice")]
    pub(super) preemption: Option<PreemptionMode>,
    #[serde(deserialize_with = "bytes")]
    pub(super) swap_memory: Option<u64>,
    #[serde(deserialize_with = "bytes")]
    pub(super) kv_memory: Option<u64>,
    #[serde(deserialize_with = "spec")]
    pub(super) spec: Option<SpecChoice>,
    pub(super) draft_model: Option<String>,
    pub(super) spec_max: Option<NonZeroUsize>,
    #[serde(deserialize_with = "choice")]
    pub(super) spec_verify: Option<Verification>,
    pub(super) spec_recent: Option<usize>,
    pub(super) max_batch_tokens: Option<NonZeroUsize>,
    pub(super) max_running: Option<NonZeroUsize>,
    pub(super) block_size: Option<NonZeroUsize>,
    /// Keys of whoever is no tenant of the list.
    api_keys: Secrets,
    api_keys_file: Option<PathBuf>,
    api_keys_env: Option<String>,
    pub(super) tenants: Vec<TenantEntry>,
}

/// One tenant.
#[derive(Debug, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct TenantEntry {
    pub(super) name: String,
    weight: Option<NonZeroU32>,
    max_waiting: Option<NonZeroUsize>,
    #[serde(default)]
    slo: SloEntry,
    #[serde(default)]
    pub(super) priority: i32,
    #[serde(default)]
    api_keys: Secrets,
    api_keys_file: Option<PathBuf>,
    api_keys_env: Option<String>,
}

/// Latency targets.
#[derive(Debug, Default, serde::Deserialize)]
#[serde(deny_unknown_fields, default)]
struct SloEntry {
    #[serde(deserialize_with = "milliseconds")]
    ttft_ms: Option<Duration>,
    #[serde(deserialize_with = "milliseconds")]
    tpot_ms: Option<Duration>,
}

impl ConfigFile {
    /// Reads a file.
    ///
    /// # Errors
    ///
    /// Names the file, the line and the field.
    pub(super) fn read(path: &Path) -> Result<Self> {
        let fail = |why: String| Failure::new(format!("{}: {why}", path.display()));
        let size = std::fs::metadata(path).map_err(|error| fail(error.to_string()))?.len();
        if size > limits::CONFIG_BYTES {
            return Err(fail(format!("{size} bytes; expected at most {}", limits::CONFIG_BYTES)));
        }
        let text = std::fs::read_to_string(path).map_err(|error| fail(error.to_string()))?;
        Self::parse(&text).map_err(|why| Failure::new(format!("{}{why}", path.display())))
    }

    /// Reads a text; an error begins with where it is, as `:line:column: `.
    pub(super) fn parse(text: &str) -> std::result::Result<Self, String> {
        // A snippet would show the lines around the error, which may hold keys.
        let options = serde_saphyr::options! { with_snippet: false };
        serde_saphyr::from_str_with_options(text, options).map_err(|error| {
            let why = error.without_snippet().to_string();
            let Some(at) = error.location() else { return format!(": {why}") };
            // It is said once, where editors look for it.
            let again = format!(" at line {}, column {}", at.line(), at.column());
            format!(":{}:{}: {}", at.line(), at.column(), why.trim_end_matches(&again))
        })
    }

    /// Where the keys of whoever is no tenant of the list are.
    pub(super) fn key_sources(&self) -> Sources {
        let (file, env) = (self.api_keys_file.clone(), self.api_keys_env.clone());
        Sources { listed: self.api_keys.clone(), file, env }
    }
}

impl TenantEntry {
    /// What the scheduler knows about it.
    pub(super) fn config(&self) -> TenantConfig {
        let default = TenantConfig::default();
        TenantConfig {
            name: self.name.clone(),
            weight: self.weight.map_or(default.weight, NonZeroU32::get),
            max_waiting: self.max_waiting.map_or(default.max_waiting, NonZeroUsize::get),
            slo: Slo { ttft: self.slo.ttft_ms, tpot: self.slo.tpot_ms },
        }
    }

    /// Where its keys are.
    pub(super) fn key_sources(&self) -> Sources {
        let (file, env) = (self.api_keys_file.clone(), self.api_keys_env.clone());
        Sources { listed: self.api_keys.clone(), file, env }
    }
}

/// Reads a value by its name.
fn choice<'de, D: Deserializer<'de>, T: Choice>(
    deserializer: D,
) -> std::result::Result<Option<T>, D::Error> {
    let Some(name) = Option::<String>::deserialize(deserializer)? else { return Ok(None) };
    T::named(&name).map(Some).ok_or_else(|| {
        let names: Vec<&str> = T::all().iter().map(|value| value.name()).collect();
        D::Error::custom(format!("expected one of {}, got `{name}`", names.join(", ")))
    })
}

fn spec<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> std::result::Result<Option<SpecChoice>, D::Error> {
    let text = Option::<String>::deserialize(deserializer)?;
    text.as_deref().map(str::parse).transpose().map_err(D::Error::custom)
}

fn milliseconds<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> std::result::Result<Option<Duration>, D::Error> {
    let ms = Option::<f64>::deserialize(deserializer)?;
    ms.map(units::milliseconds).transpose().map_err(D::Error::custom)
}

fn seconds<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> std::result::Result<Option<Duration>, D::Error> {
    let seconds = Option::<f64>::deserialize(deserializer)?;
    seconds.map(units::seconds).transpose().map_err(D::Error::custom)
}

fn bytes<'de, D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Option<u64>, D::Error> {
    let text = Option::<String>::deserialize(deserializer)?;
    text.as_deref().map(units::parse_bytes).transpose().map_err(D::Error::custom)
}
