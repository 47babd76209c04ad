//! API keys on their way from wherever they are kept to their digests.

use std::path::{Path, PathBuf};

use pelton_base::limits;
use pelton_server::ApiKey;
use serde::de::{Deserialize, Deserializer, Error, SeqAccess, Visitor};

use crate::failure::{Failure, Result};

/// A text that is never shown.
#[derive(Clone, Eq, PartialEq)]
pub(crate) struct Secret(String);

impl Secret {
    pub(crate) fn new(text: &str) -> Self {
        Self(text.to_owned())
    }

    /// The text, for the one header that sends it.
    pub(crate) fn expose(&self) -> &str {
        &self.0
    }

    /// The key; `place` says where it was found.
    pub(crate) fn key(&self, place: &str) -> Result<ApiKey> {
        ApiKey::new(&self.0).map_err(|error| Failure::new(format!("{place}: {error}")))
    }
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret(not shown)")
    }
}

/// One key or a list of them, as a file spells them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Secrets(pub(crate) Vec<Secret>);

/// Written out, because a derived error would show what was found instead of a key: the key.
impl<'de> Deserialize<'de> for Secrets {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        struct Keys;
        impl<'de> Visitor<'de> for Keys {
            type Value = Secrets;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a list of API keys")
            }

            fn visit_seq<A: SeqAccess<'de>>(
                self,
                mut items: A,
            ) -> std::result::Result<Secrets, A::Error> {
                let mut secrets = Vec::new();
                // As text, so that a key of digits is one.
                let bad = |_| A::Error::custom("expected API keys as texts");
                while let Some(text) = items.next_element::<String>().map_err(bad)? {
                    secrets.push(Secret(text));
                }
                Ok(Secrets(secrets))
            }
        }
        deserializer
            .deserialize_seq(Keys)
            .map_err(|_| D::Error::custom("`api_keys`: expected a list of texts, each an API key"))
    }
}

/// Keys from a file: one per line, blank lines and what begins with `#` aside.
pub(crate) fn from_file(path: &Path) -> Result<Vec<ApiKey>> {
    let fail = |why: String| Failure::new(format!("API keys of {}: {why}", path.display()));
    let text = pelton_tensor::read_limited_text(path, limits::CONFIG_BYTES)
        .map_err(|error| fail(error.to_string()))?;
    parse_keys(&text, path)
}

/// Keys of the text of the file at `path`.
pub(super) fn parse_keys(text: &str, path: &Path) -> Result<Vec<ApiKey>> {
    let lines = text.lines().map(str::trim).enumerate();
    let keys = lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
    let keys: Result<Vec<ApiKey>> = keys
        .map(|(i, line)| Secret::new(line).key(&format!("{}:{}", path.display(), i + 1)))
        .collect();
    match keys {
        // A user who names a file wants keys: an empty one would leave the door open.
        Ok(keys) if keys.is_empty() => {
            let why = "expected at least one key";
            Err(Failure::new(format!("API keys of {}: {why}", path.display())))
        }
        keys => keys,
    }
}

/// Keys from an environment variable, with commas between them.
pub(crate) fn from_env(name: &str) -> Result<Vec<ApiKey>> {
    let place = format!("API keys of ${name}");
    let value = std::env::var(name)
        .map_err(|_| Failure::new(format!("{place}: expected a variable of this name, as text")))?;
    value.split(',').map(|key| Secret::new(key.trim()).key(&place)).collect()
}

/// Where a file says that keys are.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sources {
    pub(crate) listed: Secrets,
    pub(crate) file: Option<PathBuf>,
    pub(crate) env: Option<String>,
}

impl Sources {
    /// All keys; `folder` is where relative paths begin, `place` names the entry in errors.
    pub(crate) fn keys(&self, folder: &Path, place: &str) -> Result<Vec<ApiKey>> {
        let mut keys: Vec<ApiKey> =
            self.listed.0.iter().map(|secret| secret.key(place)).collect::<Result<_>>()?;
        if let Some(path) = &self.file {
            keys.extend(from_file(&folder.join(path))?);
        }
        if let Some(name) = &self.env {
            keys.extend(from_env(name)?);
        }
        Ok(keys)
    }
}
