//! The scheduling flags of the table with lists of values: `pelton bench sim` compares them.

use clap::{Arg, ArgAction, ArgMatches, Command};
use pelton_sched::Choices;

use super::given::Parser;
use super::{Chosen, Flag, Kind, Part, Value, table};

/// Second names of flags, which came first in `bench sim`.
const ALIASES: &[(&str, &str)] = &[("cache-eviction", "eviction")];

/// Lists of values for scheduling flags, in the order of the table.
#[derive(Debug)]
pub(crate) struct Lists(Vec<(&'static Flag, Vec<Value>)>);

fn flags() -> impl Iterator<Item = &'static Flag> {
    table().filter(|flag| flag.part == Part::Choices)
}

impl Lists {
    /// Every combination of the values over `base`, the last list changing fastest. Each is named
    /// after its values of those lists that have several.
    pub(crate) fn combinations(&self, base: Choices) -> Vec<(String, Choices)> {
        let mut base_of_all = Chosen::default();
        base_of_all.llm.choices = base;
        let mut all = vec![(Vec::new(), base_of_all)];
        for (flag, values) in &self.0 {
            let mut crossed = Vec::with_capacity(all.len() * values.len());
            for (words, chosen) in &all {
                for value in values {
                    let (mut words, mut chosen) = (words.clone(), chosen.clone());
                    flag.set(&mut chosen, value);
                    if values.len() > 1 {
                        words.push(word(flag, value));
                    }
                    crossed.push((words, chosen));
                }
            }
            all = crossed;
        }
        let named = |(words, chosen): (Vec<String>, Chosen)| (words.join(" "), chosen.llm.choices);
        all.into_iter().map(named).collect()
    }
}

/// A value in the name of a combination.
fn word(flag: &Flag, value: &Value) -> String {
    match (flag.kind, value) {
        (Kind::Names(_), _) => flag.kind.show(value),
        // `--no-prefix-cache` compares "cache" with "no cache".
        (Kind::Switch(_), _) => {
            let noun = flag.name.rsplit('-').next().unwrap_or(flag.name);
            if *value == Value::Truth(true) { noun.to_owned() } else { format!("no {noun}") }
        }
        _ => format!("{} {}", flag.name, flag.kind.show(value)),
    }
}

impl clap::Args for Lists {
    fn augment_args(command: Command) -> Command {
        flags().fold(command, |command, flag| {
            let name: &'static str = match flag.kind {
                Kind::Switch(false) => flag.name.trim_start_matches("no-"),
                _ => flag.name,
            };
            let list = Arg::new(name)
                .long(name)
                .help(flag.help_text("; a list compares"))
                .help_heading(flag.part.heading())
                .value_name("LIST")
                .value_delimiter(',')
                .action(ArgAction::Append)
                .value_parser(Parser(flag.kind));
            let alias = ALIASES.iter().find(|(name, _)| *name == flag.name);
            let command = command.arg(match alias {
                Some((_, alias)) => list.alias(alias),
                None => list,
            });
            match flag.kind {
                Kind::Switch(_) => command.arg(
                    Arg::new(flag.name)
                        .long(flag.name)
                        .help(format!("The same as --{name} off"))
                        .help_heading(flag.part.heading())
                        .action(ArgAction::SetTrue)
                        .conflicts_with(name),
                ),
                _ => command,
            }
        })
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl clap::FromArgMatches for Lists {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let given = flags().filter_map(|flag| {
            if let Kind::Switch(on) = flag.kind {
                if matches.get_flag(flag.name) {
                    return Some((flag, vec![Value::Truth(on)]));
                }
                let name = flag.name.trim_start_matches("no-");
                return Some((flag, matches.get_many(name)?.cloned().collect()));
            }
            Some((flag, matches.get_many(flag.name)?.cloned().collect()))
        });
        Ok(Self(given.collect()))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}
