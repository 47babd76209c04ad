//! The list `models` of the file: several models in one server.

use std::fmt;
use std::time::Duration;

use serde::de::{Deserialize, Deserializer, Error, MapAccess, Visitor};
use serde::ser::{Serialize, SerializeMap, Serializer};

use super::file::{ValueOf, unknown_among};
use crate::failure::{Failure, Result};
use crate::flags::{Chosen, Flag, Value, lay_over, table};
use crate::model;

/// Keys of an entry that are no flags.
const OWN_KEYS: [&str; 4] = ["name", "aliases", "preload", "keep_alive"];
/// Flags of a model that all models of a server have in common.
const COMMON: [&str; 2] = ["threads", "served_name"];

/// A model of the server, with everything that concerns it.
#[derive(Clone, Debug)]
pub(crate) struct ModelChoice {
    /// Its name for clients.
    pub(crate) name: String,
    /// Further names.
    pub(crate) aliases: Vec<String>,
    /// Whether it is loaded before the server listens.
    pub(crate) preload: bool,
    /// Time without requests after which it is unloaded.
    pub(crate) keep_alive: Option<Duration>,
    /// Its settings: those of the file and of the flags, under those of its entry.
    pub(crate) chosen: Chosen,
}

/// One entry of the list.
#[derive(Debug, Default)]
pub(super) struct ModelEntry {
    name: Option<String>,
    aliases: Vec<String>,
    preload: Option<bool>,
    keep_alive: Option<f64>,
    values: Vec<(&'static Flag, Value)>,
}

impl ModelChoice {
    /// Its name and its aliases.
    pub(crate) fn names(&self) -> impl Iterator<Item = &String> {
        std::iter::once(&self.name).chain(&self.aliases)
    }

    /// All of it as YAML.
    pub(crate) fn yaml(&self) -> Result<String> {
        serde_saphyr::to_string(self)
            .map_err(|error| Failure::internal(format!("cannot print the settings: {error}")))
    }

    /// The models of a server: the one that `common` names, or those of the list, for each of which
    /// `common` holds what its entry leaves open.
    ///
    /// # Errors
    ///
    /// A model beside a list of models, or an entry that contradicts itself.
    pub(super) fn all(common: &Chosen, entries: &[ModelEntry]) -> Result<Vec<Self>> {
        if entries.is_empty() {
            let name = common.llm.name.clone().unwrap_or_else(|| display_name(&common.model));
            let (aliases, chosen) = (Vec::new(), common.clone());
            let chosen = chosen.resolve()?;
            return Ok(vec![Self { name, aliases, preload: true, keep_alive: None, chosen }]);
        }
        if common.model != model::EMBEDDED || common.llm.name.is_some() {
            let message = "`models` lists the models of the server, and `--model` or `--served-name` is for a \
                           server of one";
            return Err(Failure::new(message).hint("make it an entry of `models`"));
        }
        entries.iter().enumerate().map(|(i, entry)| entry.choice(i, common)).collect()
    }
}

/// The name for clients of a model that was given none. Whether there is such a model is found out
/// where it is opened.
fn display_name(model: &str) -> String {
    model::reference(Some(model)).map_or_else(|_| model.to_owned(), |found| found.display_name())
}

impl ModelEntry {
    fn choice(&self, index: usize, common: &Chosen) -> Result<ModelChoice> {
        let mut chosen = common.clone();
        lay_over(&self.values, &mut chosen);
        let place = match &self.name {
            Some(name) => format!("model `{name}`"),
            None => format!("`models[{index}]`"),
        };
        let at = |failure: Failure| failure.at(&place);
        if self.values.iter().all(|(flag, _)| flag.key() != "model") {
            return Err(at(Failure::new("the key `model` is missing: where its files are")));
        }
        let mut chosen = chosen.resolve().map_err(at)?;
        let name = self.name.clone().unwrap_or_else(|| display_name(&chosen.model));
        chosen.llm.name = Some(name.clone());
        let keep_alive = match self.keep_alive.map(Duration::try_from_secs_f64) {
            None => None,
            Some(Ok(time)) => Some(time),
            Some(Err(_)) => {
                return Err(at(Failure::new("`keep_alive`: expected a number of seconds")));
            }
        };
        let (aliases, preload) = (self.aliases.clone(), self.preload.unwrap_or(true));
        Ok(ModelChoice { name, aliases, preload, keep_alive, chosen })
    }
}

impl<'de> Deserialize<'de> for ModelEntry {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        struct Keys;
        impl<'de> Visitor<'de> for Keys {
            type Value = ModelEntry;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("keys and values of a model, as in `model: ./model.gguf`")
            }

            fn visit_map<A: MapAccess<'de>>(
                self,
                mut map: A,
            ) -> std::result::Result<ModelEntry, A::Error> {
                let mut entry = ModelEntry::default();
                while let Some(key) = map.next_key::<String>()? {
                    match key.as_str() {
                        "name" => entry.name = map.next_value()?,
                        "aliases" => entry.aliases = map.next_value()?,
                        "preload" => entry.preload = map.next_value()?,
                        "keep_alive" => entry.keep_alive = map.next_value()?,
                        key => {
                            let flag = flags().find(|flag| flag.key() == key);
                            let flag = flag.ok_or_else(|| A::Error::custom(unknown(key)))?;
                            let value = map.next_value_seed(ValueOf(flag))?;
                            entry.values.extend(value.map(|value| (flag, value)));
                        }
                    }
                }
                Ok(entry)
            }
        }
        deserializer.deserialize_struct("ModelEntry", &[], Keys)
    }
}

/// Flags that an entry may have.
fn flags() -> impl Iterator<Item = &'static Flag> {
    let is_own = |flag: &&Flag| {
        let key = flag.key();
        key == "embeddings" || flag.concerns_models() && !COMMON.contains(&key.as_str())
    };
    table().filter(is_own)
}

fn unknown(key: &str) -> String {
    if table().any(|flag| flag.key() == key) {
        return format!("`{key}` is of the whole server; write it outside of `models`");
    }
    let known = flags().map(Flag::key).chain(OWN_KEYS.iter().map(|&key| key.to_owned()));
    unknown_among(key, known.collect())
}

/// As `--check-config` prints it: the keys of the entry, then the settings of this model.
impl Serialize for ModelChoice {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("name", &self.name)?;
        map.serialize_entry("aliases", &self.aliases)?;
        map.serialize_entry("preload", &self.preload)?;
        map.serialize_entry("keep_alive", &self.keep_alive.map(|time| time.as_secs_f64()))?;
        for flag in flags() {
            let value = flag.get(&self.chosen).map(|value| flag.kind.plain(&value));
            map.serialize_entry(&flag.key(), &value)?;
        }
        map.end()
    }
}
