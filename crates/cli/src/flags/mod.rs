//! The flags that commands share, as data.
//!
//! [`table`] has an entry per choice: its name, its values, its help, and its place in
//! [`Chosen`]. From it are made
//!
//! ```text
//! table ─┬─▶ arguments of clap (`--max-wait`) and environment variables (`PELTON_MAX_WAIT`)  given
//!        ├─▶ keys of the YAML file (`max_wait`)                                       config::file
//!        ├─▶ what `serve --check-config` prints                                   config::settings
//!        ├─▶ lists of values that `bench sim` compares                                       lists
//!        └─▶ the table in docs/serving.md                                                     docs
//! ```
//!
//! To add a scheduling choice: a field in `pelton_sched::Choices` and an entry in the table.

mod chosen;
#[cfg(test)]
mod docs;
mod given;
mod kind;
mod lists;
mod place;
mod spec;
mod table;

pub(crate) use chosen::Chosen;
pub(crate) use given::{
    ActivationArgs, AnswerArgs, CacheArgs, ComputeArgs, DraftArgs, KvArgs, MachineArgs, ModelArgs,
    RoundingArgs, SchedulingArgs, ServerArgs, SpecArgs, TemplateArgs, ThreadsArgs, VectorArgs,
    lay_over,
};
pub(crate) use kind::{Kind, Value};
pub(crate) use lists::Lists;
pub(crate) use place::Choice;
pub(crate) use spec::SpecChoice;
pub(crate) use table::table;

use std::collections::HashMap;
use std::sync::LazyLock;

use place::Place;

/// Sets the choice with this key of the YAML file.
///
/// # Errors
///
/// An unknown key, or a value that it cannot have, in words.
pub(crate) fn set_key(chosen: &mut Chosen, key: &str, value: &str) -> Result<(), String> {
    let flag = table().find(|flag| flag.key() == key);
    let flag = flag.ok_or_else(|| format!("there is no setting `{key}`"))?;
    let value = flag.kind.parse(value)?;
    flag.set(chosen, &value);
    Ok(())
}

/// One choice that a person can make.
#[derive(Debug)]
pub(crate) struct Flag {
    /// Name on the command line, without dashes.
    pub(crate) name: &'static str,
    /// Single letter on the command line.
    short: Option<char>,
    /// Which commands have it, and its heading in their help.
    part: Part,
    /// The kind of its values.
    pub(crate) kind: Kind,
    /// Word for the value in the help; empty where it takes none.
    value: &'static str,
    /// Its effect, in a sentence.
    help: &'static str,
    /// The behaviour without the flag; empty if the built-in value already shows it.
    default: &'static str,
    /// Where the value goes.
    place: Place,
}

/// Flags that come together.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Part {
    /// The model's name.
    Model,
    /// How a model is loaded.
    Machine,
    /// How conversations are laid out.
    Template,
    /// How answers are taken apart.
    Answers,
    /// Where a model is served.
    Server,
    /// How vectors are made.
    Embeddings,
    /// Choices of the scheduler, which the simulator has too.
    Choices,
    /// Memory for keys and values.
    Memory,
    /// How tokens are drafted.
    Speculation,
    /// Only in the file.
    File,
}

impl Part {
    /// Heading in the help.
    fn heading(self) -> Option<&'static str> {
        match self {
            Self::Model | Self::Server | Self::File => None,
            Self::Machine => Some("Machine"),
            Self::Template => Some("Prompt"),
            Self::Answers => Some("Form of the answer"),
            Self::Embeddings => Some("Embeddings"),
            Self::Choices | Self::Memory => Some("Scheduling"),
            Self::Speculation => Some("Speculation"),
        }
    }
}

impl Flag {
    /// Its key in the file. `--no-prefix-cache` is `prefix_cache: false`.
    pub(crate) fn key(&self) -> String {
        let name = match self.kind {
            Kind::Switch(false) => self.name.trim_start_matches("no-"),
            _ => self.name,
        };
        name.replace('-', "_")
    }

    /// Whether it says how a model is loaded and run, and nothing of a server.
    pub(crate) fn concerns_models(&self) -> bool {
        self.part != Part::Server || self.name == "served-name"
    }

    /// Its environment variable.
    fn env(&self) -> &'static str {
        // clap keeps names for the life of the process.
        static NAMES: LazyLock<HashMap<&str, String>> = LazyLock::new(|| {
            let env = |name: &str| format!("PELTON_{}", name.replace('-', "_").to_uppercase());
            table().map(|flag| (flag.name, env(flag.name))).collect()
        });
        &NAMES[self.name]
    }

    /// The built-in value, or what happens without one; `None` where nothing does.
    fn default(&self) -> Option<String> {
        match self.default {
            "" => (self.place.get)(&Chosen::default()).map(|value| self.kind.show(&value)),
            words => Some(words.to_owned()),
        }
    }

    /// Sets its place to a value of its kind.
    pub(crate) fn set(&self, chosen: &mut Chosen, value: &Value) {
        (self.place.set)(chosen, value);
    }

    /// The value at its place.
    pub(crate) fn get(&self, chosen: &Chosen) -> Option<Value> {
        (self.place.get)(chosen)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    /// Texts that the flag reads, and that differ from its default.
    fn samples(flag: &Flag) -> Vec<&'static str> {
        match flag.kind {
            Kind::Text | Kind::Folder => vec!["some/where"],
            Kind::Number(..) | Kind::WholeSeconds | Kind::WholeMilliseconds => vec!["7"],
            Kind::Bytes(_) => vec!["4096"],
            Kind::Milliseconds | Kind::Seconds => vec!["1.5"],
            Kind::Names(all) | Kind::Format(_, all) => all(),
            Kind::Truth | Kind::Switch(_) => vec!["true", "false"],
            Kind::Hosts => vec!["pelton.example,[::1]"],
            Kind::Origins => vec!["*", "none", "https://a.example,http://b.example:1"],
            Kind::Object => vec![r#"{"enable_thinking":false}"#],
            Kind::Method => vec!["suffix", "early-exit:2", "draft:some/where"],
        }
    }

    #[test]
    fn every_flag_sets_its_place_and_shows_what_it_set() {
        for flag in table() {
            for text in samples(flag) {
                let mut chosen = Chosen::default();
                let value = flag.kind.parse(text).expect(flag.name);
                flag.set(&mut chosen, &value);
                assert_eq!(flag.get(&chosen), Some(value.clone()), "{}", flag.name);
                assert_eq!(flag.kind.show(&value), text, "{}", flag.name);
                let others = table().filter(|other| other.name != flag.name);
                for other in others {
                    let before = other.get(&Chosen::default());
                    assert_eq!(other.get(&chosen), before, "{} sets {}", flag.name, other.name);
                }
            }
        }
    }

    #[test]
    fn names_keys_and_variables_are_unique_and_every_flag_says_its_default() {
        let names_of: [fn(&Flag) -> String; 3] =
            [|flag| flag.name.to_owned(), Flag::key, |flag| flag.env().to_owned()];
        for name in names_of {
            let names: HashSet<String> = table().map(name).collect();
            assert_eq!(names.len(), table().count());
        }
        for flag in table() {
            assert!(flag.default().is_some_and(|default| !default.is_empty()), "{}", flag.name);
            assert!(!flag.help.ends_with('.') && !flag.help.contains("[default"), "{}", flag.name);
        }
    }

    #[test]
    fn the_help_names_every_built_in_chat_template() {
        let flag = table().find(|flag| flag.name == "chat-template").expect("the flag");
        for name in pelton_text::ChatTemplate::builtin_names() {
            assert!(flag.help.contains(name), "{name}");
        }
    }

    #[test]
    fn a_value_that_cannot_be_read_says_what_is_expected() {
        for flag in table() {
            let bad = match flag.kind {
                Kind::Folder => continue,
                Kind::Text => "",
                _ => "?",
            };
            let why = flag.kind.parse(bad).expect_err(flag.name);
            assert!(why.contains("expected"), "{}: {why}", flag.name);
        }
        assert!(Kind::COUNT.parse("0").expect_err("none").contains("at least 1"));
        assert!(Kind::Number(0, 9).parse("10").expect_err("too many").contains("from 0 to 9"));
    }
}
