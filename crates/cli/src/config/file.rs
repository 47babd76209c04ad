//! The YAML file of `pelton serve --config`: values of flags, tenants, and where API keys are.

use std::fmt;
use std::num::{NonZeroU32, NonZeroUsize};
use std::path::{Path, PathBuf};
use std::time::Duration;

use pelton_base::{Slo, limits};
use pelton_gateway::{Limit, Limits};
use pelton_sched::TenantConfig;
use pelton_server::Routing;
use serde::de::{Deserialize, DeserializeSeed, Deserializer, Error, MapAccess, Visitor};

use super::models::ModelEntry;
use super::secret::{Secrets, Sources};
use crate::failure::{Failure, Result};
use crate::flags::{Flag, Kind, Value, table};
use crate::units;
use crate::usage::nearest;

/// Keys of the file that are no flags of the table.
const OTHER_KEYS: &[&str] =
    &["api_keys", "api_keys_file", "api_keys_env", "tenants", "models", "auto", "degrade"];

/// Values from a configuration file.
#[derive(Debug, Default)]
pub(crate) struct ConfigFile {
    /// Values of flags, in the order of the file.
    pub(super) values: Vec<(&'static Flag, Value)>,
    /// Keys of the tenant `default`.
    keys: KeyEntries,
    pub(super) tenants: Vec<TenantEntry>,
    pub(super) models: Vec<ModelEntry>,
    pub(super) routing: Routing,
}

/// Where API keys are.
#[derive(Debug, Default)]
struct KeyEntries {
    api_keys: Secrets,
    api_keys_file: Option<PathBuf>,
    api_keys_env: Option<String>,
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
    limits: LimitsEntry,
    #[serde(default)]
    api_keys: Secrets,
    api_keys_file: Option<PathBuf>,
    api_keys_env: Option<String>,
}

/// Limits of a tenant.
#[derive(Debug, Default)]
struct LimitsEntry(Limits);

impl<'de> Deserialize<'de> for LimitsEntry {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        struct Pairs;
        impl<'de> Visitor<'de> for Pairs {
            type Value = LimitsEntry;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("limits, as in `{requests_per_minute: 60}`")
            }

            fn visit_map<A: MapAccess<'de>>(
                self,
                mut map: A,
            ) -> std::result::Result<LimitsEntry, A::Error> {
                let mut limits = Limits::default();
                while let Some(name) = map.next_key::<String>()? {
                    let limit = Limit::from_name(&name).ok_or_else(|| {
                        let known = Limit::ALL.map(Limit::name).join(", ");
                        A::Error::custom(format!("unknown limit `{name}`; expected one of {known}"))
                    })?;
                    limits.set(limit, Some(map.next_value()?));
                }
                Ok(LimitsEntry(limits))
            }
        }
        deserializer.deserialize_map(Pairs)
    }
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

/// An error of the reader of YAML, without the names of its own types and settings.
fn in_words(why: String) -> String {
    const WORDS: [(&str, &str); 5] = [
        ("invalid u32", "expected a whole number from 0 to 4294967295"),
        ("invalid u64", "expected a whole number that is not negative"),
        ("invalid i32", "expected a whole number"),
        ("invalid boolean", "expected true or false"),
        (", set DuplicateKeyPolicy in Options if acceptable", ""),
    ];
    WORDS.into_iter().fold(why, |why, (theirs, ours)| why.replace(theirs, ours))
}

impl ConfigFile {
    /// Reads a file.
    ///
    /// # Errors
    ///
    /// Names the file, the line and the key.
    pub(super) fn read(path: &Path) -> Result<Self> {
        let form = "`pelton serve --check-config` prints a file of the right form";
        let fail = |why: String| Failure::new(format!("{}: {why}", path.display())).hint(form);
        let text = pelton_tensor::read_limited_text(path, limits::CONFIG_BYTES)
            .map_err(|error| fail(error.to_string()))?;
        Self::parse(&text).map_err(|why| {
            let says_more = why.contains("expected") || why.contains("; ");
            let failure = Failure::new(format!("{}{why}", path.display()));
            if says_more { failure } else { failure.hint(form) }
        })
    }

    /// Reads a text; an error begins with where it is, as `:line:column: `.
    pub(super) fn parse(text: &str) -> std::result::Result<Self, String> {
        // A snippet would show the lines around the error, which may hold keys.
        let options = serde_saphyr::options! { with_snippet: false };
        serde_saphyr::from_str_with_options(text, options).map_err(|error| {
            let why = in_words(error.without_snippet().to_string());
            let Some(at) = error.location() else { return format!(": {why}") };
            // The location stands once, where editors look for it.
            let again = format!(" at line {}, column {}", at.line(), at.column());
            format!(":{}:{}: {}", at.line(), at.column(), why.trim_end_matches(&again))
        })
    }

    /// The limits of each tenant, by name.
    pub(super) fn tenant_limits(&self) -> Vec<(String, Limits)> {
        self.tenants.iter().map(|entry| (entry.name.clone(), entry.limits.0)).collect()
    }

    /// Where the keys of the tenant `default` are.
    pub(super) fn key_sources(&self) -> Sources {
        let KeyEntries { api_keys, api_keys_file, api_keys_env } = &self.keys;
        let (file, env) = (api_keys_file.clone(), api_keys_env.clone());
        Sources { listed: api_keys.clone(), file, env }
    }
}

impl<'de> Deserialize<'de> for ConfigFile {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        struct Keys;
        impl<'de> Visitor<'de> for Keys {
            type Value = ConfigFile;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("keys and values, as in `port: 8000`")
            }

            fn visit_map<A: MapAccess<'de>>(
                self,
                mut map: A,
            ) -> std::result::Result<ConfigFile, A::Error> {
                let mut file = ConfigFile::default();
                while let Some(key) = map.next_key::<Key>()? {
                    match key {
                        Key::Flag(flag) => {
                            let value = map.next_value_seed(ValueOf(flag))?;
                            file.values.extend(value.map(|value| (flag, value)));
                        }
                        Key::ApiKeys => file.keys.api_keys = map.next_value()?,
                        Key::ApiKeysFile => file.keys.api_keys_file = map.next_value()?,
                        Key::ApiKeysEnv => file.keys.api_keys_env = map.next_value()?,
                        Key::Tenants => file.tenants = map.next_value()?,
                        Key::Models => {
                            file.models = map.next_value()?;
                            if file.models.is_empty() {
                                let why = "`models` names no model: name one, or leave the key out";
                                return Err(serde::de::Error::custom(why));
                            }
                        }
                        Key::Auto => file.routing.auto = map.next_value()?,
                        Key::Degrade => file.routing.degrade = map.next_value()?,
                    }
                }
                Ok(file)
            }
        }
        deserializer.deserialize_struct("ConfigFile", &[], Keys)
    }
}

/// A key of the file.
enum Key {
    Flag(&'static Flag),
    ApiKeys,
    ApiKeysFile,
    ApiKeysEnv,
    Tenants,
    Models,
    Auto,
    Degrade,
}

impl<'de> Deserialize<'de> for Key {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        let key = String::deserialize(deserializer)?;
        Ok(match key.as_str() {
            "api_keys" => Self::ApiKeys,
            "api_keys_file" => Self::ApiKeysFile,
            "api_keys_env" => Self::ApiKeysEnv,
            "tenants" => Self::Tenants,
            "models" => Self::Models,
            "auto" => Self::Auto,
            "degrade" => Self::Degrade,
            key => {
                let flag = table().find(|flag| flag.key() == key);
                Self::Flag(flag.ok_or_else(|| D::Error::custom(unknown(key)))?)
            }
        })
    }
}

/// Reads the value of a flag; the parser adds the line to errors from in here.
pub(super) struct ValueOf(pub(super) &'static Flag);

impl<'de> DeserializeSeed<'de> for ValueOf {
    type Value = Option<Value>;

    fn deserialize<D: Deserializer<'de>>(
        self,
        deserializer: D,
    ) -> std::result::Result<Option<Value>, D::Error> {
        let kind = self.0.kind;
        if matches!(kind, Kind::Truth | Kind::Switch(_)) {
            return Ok(Option::<bool>::deserialize(deserializer)?.map(Value::Truth));
        }
        let text = Option::<String>::deserialize(deserializer)?;
        let value = text.map(|text| kind.parse(&text)).transpose();
        value.map_err(|why| D::Error::custom(format!("`{}`: {why}", self.0.key())))
    }
}

/// Says that there is no such key, and which is nearest.
fn unknown(key: &str) -> String {
    let known: Vec<String> =
        table().map(Flag::key).chain(OTHER_KEYS.iter().map(|&key| key.to_owned())).collect();
    unknown_among(key, known)
}

/// Says that there is no such key, and which of `known` is nearest.
pub(super) fn unknown_among(key: &str, known: Vec<String>) -> String {
    match nearest(key, known.iter().map(String::as_str)) {
        Some(known) => format!("unknown key `{key}`; did you mean `{known}`?"),
        None => format!("unknown key `{key}`; `pelton serve --check-config` prints every key"),
    }
}

impl TenantEntry {
    /// The scheduler's settings of the tenant.
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

fn milliseconds<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> std::result::Result<Option<Duration>, D::Error> {
    let ms = Option::<f64>::deserialize(deserializer)?;
    ms.map(units::milliseconds).transpose().map_err(D::Error::custom)
}
