//! The table as arguments of clap: what one command line and its environment say.

use std::ffi::OsStr;
use std::fmt;
use std::marker::PhantomData;

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Command};

use super::kind::BESIDE;
use super::{Chosen, Flag, Kind, Part, Value, table};

/// Some flags of the table, as arguments of a command.
pub(crate) trait Selection {
    /// Whether the command has this flag.
    fn has(flag: &Flag) -> bool;
}

/// Names selections of flags, and the arguments made of them.
macro_rules! selections {
    ($($(#[$doc:meta])* $args:ident = $name:ident: $has:expr;)+) => {$(
        #[derive(Clone, Copy, Debug)]
        pub(crate) enum $name {}

        impl Selection for $name {
            fn has(flag: &Flag) -> bool {
                let has: fn(&Flag) -> bool = $has;
                has(flag)
            }
        }

        $(#[$doc])*
        pub(crate) type $args = Given<$name>;
    )+};
}

selections! {
    /// Which model, on how many threads, in what arithmetic.
    ModelArgs = ModelFlags: |flag| matches!(flag.part, Part::Model | Part::Machine);
    /// Where a model is served.
    ServerArgs = ServerFlags: |flag| flag.part == Part::Server;
    /// How conversations are laid out.
    TemplateArgs = TemplateFlags: |flag| flag.part == Part::Template;
    /// Flags about the parts of answers.
    AnswerArgs = AnswerFlags: |flag| flag.part == Part::Answers;
    /// How vectors are made.
    VectorArgs = VectorFlags: |flag| flag.part == Part::Embeddings;
    /// How requests share the machine, and how tokens are drafted.
    SchedulingArgs = SchedulingFlags: |flag| {
        matches!(flag.part, Part::Choices | Part::Memory | Part::Speculation)
    };
    /// How tokens are drafted.
    SpecArgs = SpecFlags: |flag| flag.part == Part::Speculation;
    /// `--no-prefix-cache` and `--kv-memory`.
    CacheArgs = CacheFlags: |flag| matches!(flag.name, "no-prefix-cache" | "kv-memory");
    /// How a model is loaded, apart from its name and where packed weights are kept.
    MachineArgs = MachineFlags: |flag| flag.part == Part::Machine && flag.name != "packed-cache";
    /// `--threads` alone.
    ThreadsArgs = ThreadsFlags: |flag| flag.name == "threads";
    /// `--kv-dtype` and `--state-dtype`.
    KvArgs = KvFlags: |flag| matches!(flag.name, "kv-dtype" | "state-dtype");
    /// `--activation-group` alone.
    ActivationArgs = ActivationFlags: |flag| flag.name == "activation-group";
    /// `--quantize` alone.
    RoundingArgs = RoundingFlags: |flag| flag.name == "quantize";
    /// `--threads`, `--compute` and `--quantize`.
    ComputeArgs = ComputeFlags: |flag| matches!(flag.name, "threads" | "compute" | "quantize");
    /// `--draft-model` and `--spec-max`.
    DraftArgs = DraftFlags: |flag| matches!(flag.name, "draft-model" | "spec-max");
}

/// The values of selected flags, from the command line or the environment.
pub(crate) struct Given<S> {
    values: Vec<(&'static Flag, Value)>,
    selection: PhantomData<S>,
}

impl<S> Given<S> {
    /// Lays these values over those of a file or the built-in ones.
    pub(crate) fn lay_over(&self, chosen: &mut Chosen) {
        lay_over(&self.values, chosen);
    }

    /// Whether the command line or the environment says anything.
    pub(crate) fn is_given(&self) -> bool {
        !self.values.is_empty()
    }

    /// These values over the built-in ones.
    pub(crate) fn chosen(&self) -> Chosen {
        let mut chosen = Chosen::default();
        self.lay_over(&mut chosen);
        chosen
    }
}

/// Lays the values of one source over those of the sources before.
pub(crate) fn lay_over(values: &[(&'static Flag, Value)], chosen: &mut Chosen) {
    let before = std::mem::take(&mut chosen.drafter);
    for (flag, value) in values {
        flag.set(chosen, value);
    }
    chosen.drafter = std::mem::take(&mut chosen.drafter).over(before);
}

impl<S> fmt::Debug for Given<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.values.iter().map(|(flag, value)| (flag.name, value))).finish()
    }
}

impl<S: Selection> clap::Args for Given<S> {
    fn augment_args(command: Command) -> Command {
        let flags = table().filter(|flag| S::has(flag));
        flags.fold(command, |command, flag| command.arg(flag.arg()))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl<S: Selection> clap::FromArgMatches for Given<S> {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let flags = table().filter(|flag| S::has(flag));
        let values = flags.filter_map(|flag| Some((flag, flag.given(matches)?))).collect();
        Ok(Self { values, selection: PhantomData })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl Flag {
    /// The argument of clap.
    fn arg(&'static self) -> Arg {
        let arg = Arg::new(self.name)
            .long(self.name)
            .help(self.help_text(""))
            .help_heading(self.part.heading())
            .env(self.env());
        let arg = match self.short {
            Some(short) => arg.short(short),
            None => arg,
        };
        match self.kind {
            Kind::Switch(_) => arg.action(ArgAction::SetTrue),
            Kind::Folder => {
                self.valued(arg).num_args(0..=1).require_equals(true).default_missing_value(BESIDE)
            }
            Kind::Hosts => self.valued(arg).action(ArgAction::Append),
            _ => self.valued(arg),
        }
    }

    /// Its help with `more` and the default.
    pub(super) fn help_text(&self, more: &str) -> String {
        match (self.kind, self.default()) {
            (Kind::Switch(_), _) | (_, None) => format!("{}{more}", self.help),
            (_, Some(default)) => format!("{}{more} [default: {default}]", self.help),
        }
    }

    /// The same with a value.
    fn valued(&'static self, arg: Arg) -> Arg {
        arg.action(ArgAction::Set).value_name(self.value).value_parser(Parser(self.kind))
    }

    /// Values from the command line or the environment.
    fn given(&self, matches: &ArgMatches) -> Option<Value> {
        let source = matches.value_source(self.name)?;
        if !matches!(source, ValueSource::CommandLine | ValueSource::EnvVariable) {
            return None;
        }
        match self.kind {
            Kind::Switch(on) => Some(Value::Truth(matches.get_flag(self.name) == on)),
            Kind::Hosts => {
                let hosts = matches.get_many(self.name)?.filter_map(|value| match value {
                    Value::Hosts(hosts) => Some(hosts.clone()),
                    _ => None,
                });
                Some(Value::Hosts(hosts.flatten().collect()))
            }
            _ => matches.get_one(self.name).cloned(),
        }
    }
}

/// Reads values of a kind, and lists their names in the help.
#[derive(Clone, Copy, Debug)]
pub(super) struct Parser(pub(super) Kind);

impl TypedValueParser for Parser {
    type Value = Value;

    fn parse_ref(
        &self,
        command: &Command,
        arg: Option<&Arg>,
        value: &OsStr,
    ) -> Result<Value, clap::Error> {
        match self.0 {
            // Its error lists the names and suggests the nearest.
            Kind::Names(all) | Kind::Format(_, all)
                if value.to_str().is_none_or(|text| self.0.parse(text).is_err()) =>
            {
                PossibleValuesParser::new(all()).parse_ref(command, arg, value)?;
            }
            // A path may be no UTF-8.
            Kind::Folder => return Ok(Value::Folder(value.to_owned())),
            _ => {}
        }
        let kind = self.0;
        let parse = move |text: &str| kind.parse(text);
        parse.parse_ref(command, arg, value)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        let names = match self.0 {
            Kind::Names(all) | Kind::Format(_, all) => all(),
            Kind::Switch(_) => vec!["on", "off"],
            _ => return None,
        };
        Some(Box::new(names.into_iter().map(PossibleValue::new)))
    }
}
