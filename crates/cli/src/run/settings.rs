//! `/set`: the sampling flags of `pelton run`, changed while a conversation goes on.
//!
//! The names are those of the flags, and the same code reads the values, so a new flag is a new
//! setting.

use std::fmt::Write as _;

use clap::builder::Resettable;
use clap::{Args, FromArgMatches};
use pelton_llm::Generation;
use serde_json::{Map, Value};

use crate::args::{EndArgs, SamplingArgs};
use crate::failure::{Failure, Result};
use crate::usage;

/// The value that takes a change back.
const DEFAULT: &str = "default";

/// Changes by `/set`, over the flags of the command line.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Settings {
    /// Names of flags without dashes, and values as they were typed.
    changes: Map<String, Value>,
}

impl Settings {
    /// Changes one setting; `words` are its name and its value. Returns the name.
    ///
    /// # Errors
    ///
    /// Names a setting that does not exist, or says what was expected as its value; nothing has
    /// changed then.
    pub(crate) fn set(&mut self, words: &str, base: &Generation) -> Result<String> {
        let (name, value) = words.split_once(char::is_whitespace).unwrap_or((words, ""));
        let name = find(name)?;
        let value = match value.trim() {
            "" if name == "ignore-eos" => "true",
            value => value,
        };
        let mut changed = self.clone();
        match value {
            "" => return Err(Failure::new(format!("`/set {name}` needs a value, or `{DEFAULT}`"))),
            DEFAULT => {
                changed.changes.remove(&name);
            }
            value => {
                changed.changes.insert(name.clone(), value.into());
            }
        }
        changed.over(base)?;
        *self = changed;
        Ok(name)
    }

    /// The settings of a saved conversation.
    ///
    /// # Errors
    ///
    /// As [`set`](Self::set).
    pub(crate) fn of(saved: &Map<String, Value>, base: &Generation) -> Result<Self> {
        let mut settings = Self::default();
        for (name, value) in saved {
            let value = match value {
                Value::String(text) => text.clone(),
                other => other.to_string(),
            };
            settings.set(&format!("{name} {value}"), base)?;
        }
        Ok(settings)
    }

    /// The changes, to be saved.
    pub(crate) fn changes(&self) -> &Map<String, Value> {
        &self.changes
    }

    /// Lays the changes over `base`.
    ///
    /// # Errors
    ///
    /// Names the first value that is out of range.
    pub(crate) fn over(&self, base: &Generation) -> Result<Generation> {
        let words = self.changes.iter().map(|(name, value)| {
            format!("--{name}={}", value.as_str().expect("invariant: values are texts"))
        });
        let read = || -> std::result::Result<(EndArgs, SamplingArgs), clap::Error> {
            let matches = command().try_get_matches_from(words)?;
            Ok((EndArgs::from_arg_matches(&matches)?, SamplingArgs::from_arg_matches(&matches)?))
        };
        let (ends, sampling) =
            read().map_err(|error| without_dashes(&usage::explain(&error, [])))?;
        let mut generation = ends.over(base.clone());
        let seed = sampling.seed.unwrap_or(base.sampling.seed);
        generation.sampling =
            sampling.over(generation.sampling, seed).map_err(|failure| without_dashes(&failure))?;
        sampling.over_texts(&mut generation.texts);
        generation.validate()?;
        Ok(generation)
    }
}

/// All settings of `generation`, a line each.
pub(crate) fn list(generation: &Generation) -> String {
    let values = [
        serde_json::to_value(SamplingArgs::of(generation)),
        serde_json::to_value(EndArgs::of(generation)),
    ];
    let mut rows = Vec::new();
    for value in values {
        let Ok(Value::Object(fields)) = value else { continue };
        for (field, value) in fields {
            let value = match value {
                Value::Null => "not set".to_owned(),
                Value::Array(items) if items.is_empty() => "not set".to_owned(),
                // Shortest decimal digits of the 32-bit number, not those of its 64-bit neighbour.
                Value::Number(n) if n.is_f64() => {
                    n.as_f64().map_or_else(String::new, |x| (x as f32).to_string())
                }
                other => other.to_string(),
            };
            rows.push((field.replace('_', "-"), value));
        }
    }
    let width = rows.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    let mut text = String::new();
    for (name, value) in rows {
        writeln!(text, "  {name:<width$}  {value}").expect("invariant: into a string");
    }
    text
}

/// The flags as a command that reads nothing but its words.
fn command() -> clap::Command {
    let command = clap::Command::new("set").no_binary_name(true).disable_help_flag(true);
    let command = SamplingArgs::augment_args(EndArgs::augment_args(command));
    command.mut_args(|arg| arg.env(Resettable::Reset))
}

/// The setting that is called so, with dashes or underscores.
fn find(name: &str) -> Result<String> {
    let wanted = name.trim_start_matches('-').replace('_', "-");
    let command = command();
    let mut names = command.get_arguments().filter_map(|arg| Some((arg.get_long()?, arg)));
    let is_meant = |arg: &clap::Arg| arg.get_short().is_some_and(|c| wanted == c.to_string());
    if let Some((name, _)) = names.find(|(name, arg)| *name == wanted || is_meant(arg)) {
        return Ok(name.to_owned());
    }
    let names: Vec<&str> = command.get_arguments().filter_map(clap::Arg::get_long).collect();
    let name = super::command::first_line(name);
    Err(Failure::new(format!("no setting `{name}`: expected one of {}", names.join(", "))))
}

/// The same words about a setting instead of a flag, without the hint to the help of the command.
fn without_dashes(failure: &Failure) -> Failure {
    let message = failure.message().unwrap_or_default();
    Failure::new(message.replace("`--", "`"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(failure: &Failure) -> String {
        failure.line().expect("a line")
    }

    #[test]
    fn settings_change_the_generation_and_can_be_taken_back() {
        let base = Generation::default();
        let mut settings = Settings::default();
        for words in
            ["temperature 0.2", "top_k 7", "--max-tokens 5", "seed 9", "stop a b", "ignore-eos"]
        {
            settings.set(words, &base).expect(words);
        }
        let changed = settings.over(&base).expect("in range");
        assert_eq!((changed.sampling.temperature, changed.sampling.top_k), (0.2, 7));
        assert_eq!((changed.max_tokens, changed.sampling.seed), (Some(5), 9));
        assert_eq!((changed.stop, changed.ignore_eos), (vec!["a b".to_owned()], true));
        settings.set("n 3", &base).expect("by its letter");
        assert_eq!(settings.over(&base).expect("in range").max_tokens, Some(3));
        settings.set("temperature default", &base).expect("taken back");
        assert_eq!(settings.over(&base).expect("in range").sampling.temperature, 1.0);
        settings.set("ignore-eos off", &base).expect("off");
        assert!(!settings.over(&base).expect("in range").ignore_eos);
    }

    #[test]
    fn rare_sampling_is_set_under_the_names_of_its_flags() {
        let base = Generation::default();
        let mut settings = Settings::default();
        for words in ["xtc-probability 0.5", "bad_words x y", "samplers top_k;temp", "mirostat 2"] {
            settings.set(words, &base).expect(words);
        }
        let Generation { sampling, texts, .. } = settings.over(&base).expect("in range");
        assert_eq!((sampling.xtc.probability, texts.bad_words), (0.5, vec!["x y".to_owned()]));
        assert_eq!(sampling.samplers.map(|stages| stages.len()), Some(2));
        assert_eq!(sampling.mirostat.map(|mirostat| mirostat.tau), Some(5.0));
        settings.set("mirostat default", &base).expect("taken back");
        assert_eq!(settings.over(&base).expect("in range").sampling.mirostat, None);
    }

    #[test]
    fn a_value_that_cannot_be_used_changes_nothing_and_says_what_is_expected() {
        let base = Generation::default();
        let mut settings = Settings::default();
        for (words, parts) in [
            ("temprature 1", &["no setting `temprature`", "temperature", "stop"][..]),
            ("temperature", &["needs a value"]),
            ("temperature hot", &["hot", "temperature"]),
            ("temperature -1", &["`temperature`", "from 0 to 100"]),
            ("top-p 2", &["`top-p`"]),
            ("max-tokens 0", &["max-tokens"]),
        ] {
            let failure = settings.set(words, &base).expect_err(words);
            let line = line(&failure);
            assert!(parts.iter().all(|part| line.contains(part)), "{words}: {line}");
            assert!(!line.contains("`--"), "{line}");
        }
        assert_eq!(settings, Settings::default());
    }

    #[test]
    fn saved_settings_come_back_and_hostile_ones_are_refused() {
        let base = Generation::default();
        let mut settings = Settings::default();
        settings.set("temperature 0.2", &base).expect("in range");
        assert_eq!(Settings::of(settings.changes(), &base).expect("read"), settings);
        for text in [r#"{"temperature": [1]}"#, r#"{"shell": "rm"}"#, r#"{"top-k": -2}"#] {
            let saved = serde_json::from_str(text).expect("an object");
            assert!(Settings::of(&saved, &base).is_err(), "{text}");
        }
    }

    #[test]
    fn every_setting_is_listed() {
        let list = list(&Generation::default());
        for arg in command().get_arguments() {
            let name = arg.get_long().expect("a name");
            assert!(list.contains(&format!("  {name} ")), "{name} is missing in {list}");
        }
        let mut rows = list.lines().map(|row| row.split_whitespace().collect::<Vec<_>>());
        assert!(rows.any(|row| row == ["temperature", "1"]), "{list}");
    }
}
