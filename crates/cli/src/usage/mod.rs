//! Errors of the command line: one line that names what is wrong, and the fix.
//!
//! clap finds the error and this module words it. A name is suggested only where it differs by a
//! slip of the finger ([`nearest`]), where what was typed is its beginning, or where another
//! program has the choice under the typed name ([`words`]).

mod nearest;
mod words;

use std::ffi::OsString;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Command, CommandFactory};

pub(crate) use nearest::nearest;

use crate::args::Cli;
use crate::failure::{Failure, one_line};

/// Words an error that clap found in these words, the first of which is the program's name.
pub(crate) fn explain(error: &clap::Error, words: impl IntoIterator<Item = OsString>) -> Failure {
    let root = Cli::command();
    let place = Place::of(&root, words);
    let text = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text.as_str()),
        _ => None,
    };
    let (arg, value) = (text(ContextKind::InvalidArg), text(ContextKind::InvalidValue));
    match (error.kind(), arg, value) {
        (
            ErrorKind::MissingSubcommand | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand,
            ..,
        ) => place.no_command(),
        (ErrorKind::InvalidSubcommand, ..) => {
            let word = text(ContextKind::InvalidSubcommand).unwrap_or_default();
            place.unknown_command(&root, word)
        }
        (ErrorKind::InvalidUtf8, ..) => place.not_text(),
        (ErrorKind::UnknownArgument, Some(arg), _) => place.unknown_argument(&root, arg),
        (ErrorKind::InvalidValue, Some(arg), Some(value)) if !value.is_empty() => {
            let names = match error.get(ContextKind::ValidValue) {
                Some(ContextValue::Strings(names)) => names.as_slice(),
                _ => &[],
            };
            place.unknown_name(arg, value, names)
        }
        (ErrorKind::InvalidValue, Some(arg), _) => {
            let flag = flag_of(arg);
            let help = place.help_of(flag).unwrap_or_else(|| place.help());
            let message = match place.giver(flag) {
                name if name == flag => format!("`{flag}` needs a value, as in `{arg}`"),
                name => format!("`{name}` is empty; expected a value, as of `{flag}`"),
            };
            Failure::new(message).hint(help)
        }
        (ErrorKind::ValueValidation, Some(arg), Some(value)) => place.bad_value(error, arg, value),
        (ErrorKind::MissingRequiredArgument, ..) => place.missing(&root, error),
        (ErrorKind::ArgumentConflict, ..) => {
            if let Some(failure) = place.mistyped_command(&root) {
                return failure;
            }
            let message = rendered(error);
            let message = message.trim_start_matches("the argument ").replace("[PROMPT]", "PROMPT");
            Failure::new(message).hint("leave one of them out")
        }
        _ => Failure::new(rendered(error)).hint(place.help()),
    }
}

/// The command that was being typed.
struct Place<'a> {
    command: &'a Command,
    /// `pelton bench sim`.
    name: String,
    /// The words typed after it.
    words: Vec<String>,
}

impl<'a> Place<'a> {
    fn of(root: &'a Command, words: impl IntoIterator<Item = OsString>) -> Self {
        let words = words.into_iter().skip(1).map(|word| word.to_string_lossy().into_owned());
        let words: Vec<String> = words.collect();
        let mut place = Self { command: root, name: root.get_name().to_owned(), words };
        for word in &place.words {
            if let Some(command) = place.command.find_subcommand(word) {
                place.name = format!("{} {}", place.name, command.get_name());
                place.command = command;
            }
        }
        place
    }

    /// Where everything is listed.
    fn help(&self) -> String {
        format!("`{} --help` lists what there is", self.name)
    }

    /// The meaning of a flag.
    fn help_of(&self, flag: &str) -> Option<String> {
        let name = flag.strip_prefix("--")?;
        let arg = self.command.get_arguments().find(|arg| arg.get_long() == Some(name))?;
        arg.get_help().map(|help| format!("{help}"))
    }

    /// The name under which a value was given: that of the flag, or of its environment variable
    /// where the flag was not typed.
    fn giver(&self, flag: &str) -> String {
        let name = flag.strip_prefix("--");
        let arg = self.command.get_arguments().find(|arg| name.is_some() && arg.get_long() == name);
        let Some((arg, env)) = arg.and_then(|arg| Some((arg, arg.get_env()?))) else {
            return flag.to_owned();
        };
        let spellings = arg.get_all_aliases().unwrap_or_default().into_iter().chain(name);
        let spellings: Vec<String> = spellings.map(|name| format!("--{name}")).collect();
        let is_typed = self.words.iter().any(|word| {
            let is_short = || arg.get_short().is_some_and(|c| word.starts_with(&format!("-{c}")));
            spellings.iter().any(|spelling| spelling == flag_of(word)) || is_short()
        });
        if is_typed || std::env::var_os(env).is_none() {
            return flag.to_owned();
        }
        env.to_string_lossy().into_owned()
    }

    /// A word that is no UTF-8, which has become one with replaced characters.
    fn not_text(&self) -> Failure {
        let mut words = self.words.iter();
        let word = words.find(|word| word.contains(char::REPLACEMENT_CHARACTER));
        let named =
            word.map_or("a value of the environment".to_owned(), |word| format!("`{word}`"));
        Failure::new(format!("{named} is not UTF-8")).hint("rename the file, or type the text anew")
    }

    fn no_command(&self) -> Failure {
        if self.command.get_name() == "pelton" {
            let hint = "try `pelton run \"Once upon a time\"`, or `pelton --help` for everything";
            return Failure::new("no command given").hint(hint);
        }
        let names: Vec<&str> = commands(self.command).map(Command::get_name).collect();
        Failure::new(format!("`{}` needs a command: {}", self.name, names.join(", ")))
            .hint(self.help())
    }

    fn unknown_command(&self, root: &Command, word: &str) -> Failure {
        let failure = Failure::new(format!("`{}` has no command `{word}`", self.name));
        let names = || commands(self.command).map(Command::get_name);
        if let Some(name) = nearest(word, names()) {
            return failure.hint(format!("did you mean `{} {name}`?", self.name));
        }
        if let Some(hint) = words::for_command(word) {
            return failure.hint(hint);
        }
        if let Some(found) = commands(root).find(|c| c.find_subcommand(word).is_some()) {
            return failure.hint(format!("it is `pelton {} {word}`", found.get_name()));
        }
        if std::path::Path::new(word).exists() {
            return failure.hint(format!("`pelton run -m {word}` runs a model"));
        }
        if word.contains(char::is_whitespace) {
            return failure.hint("a prompt comes after a command: `pelton run \"...\"`");
        }
        failure.hint(self.help())
    }

    fn unknown_argument(&self, root: &Command, arg: &str) -> Failure {
        let Some(name) = arg.strip_prefix("--").filter(|name| !name.is_empty()) else {
            return self.unexpected(arg);
        };
        let failure = Failure::new(format!("`{}` has no flag `{arg}`", self.name));
        failure.hint(self.flag_hint(root, name).unwrap_or_else(|| self.help()))
    }

    /// The flag that was meant by `name`, where that is plain.
    fn flag_hint(&self, root: &Command, name: &str) -> Option<String> {
        if let Some(hint) = words::for_flag(name, &|flag| flags(self.command).any(|f| f == flag)) {
            return Some(hint);
        }
        if let Some(flag) = nearest(name, flags(self.command)) {
            return Some(format!("did you mean `--{flag}`?"));
        }
        let is_longer = |flag: &&str| name.len() > 2 && flag.starts_with(name);
        if let Some(flag) = flags(self.command).find(is_longer) {
            return Some(format!("did you mean `--{flag}`?"));
        }
        if self.command.get_name() == "serve" && is_of_requests(root, name) {
            let field = name.replace('-', "_");
            return Some(format!("a request to the server has the field `{field}`"));
        }
        let others: Vec<String> = commands(root)
            .filter(|command| flags(command).any(|flag| flag == name))
            .map(|command| format!("`pelton {}`", command.get_name()))
            .collect();
        (!others.is_empty()).then(|| format!("it is a flag of {}", others.join(" and ")))
    }

    /// A word, a number or a letter that has no place here.
    fn unexpected(&self, arg: &str) -> Failure {
        if arg.parse::<f64>().is_ok() {
            return self.unexpected_number(arg);
        }
        if arg.starts_with('-') {
            let message = format!("`{}` has no flag `{arg}`", self.name);
            return Failure::new(message)
                .hint(words::for_letter(arg).unwrap_or_else(|| self.help()));
        }
        self.no_place(arg)
    }

    /// A number that has no place here. One below zero looks like a flag, so it may be the value of
    /// the flag before it; any other would have been taken as the value, had the flag one.
    fn unexpected_number(&self, arg: &str) -> Failure {
        // clap names the first two characters of `-4GiB`, as it would a flag of one letter.
        let at = self.words.iter().position(|word| word.starts_with(arg)).unwrap_or(0);
        let before = at.checked_sub(1).map(|at| self.words[at].as_str());
        match before.filter(|word| word.starts_with('-') && arg.starts_with('-')) {
            Some(flag) => Failure::new(format!(
                "invalid value `{}` for `{flag}`: expected a number that is not negative",
                self.words[at]
            )),
            None => self.no_place(arg),
        }
    }

    fn no_place(&self, arg: &str) -> Failure {
        let failure = Failure::new(format!("unexpected argument `{arg}`"));
        match self.command.get_name() {
            "run" => failure.hint("a prompt of several words is one argument: put it in quotes"),
            _ => failure.hint(format!("usage: {}", self.usage())),
        }
    }

    fn unknown_name(&self, arg: &str, value: &str, names: &[String]) -> Failure {
        let flag = flag_of(arg);
        let (giver, expected) = (self.giver(flag), names.join(", "));
        let message = format!("invalid value `{value}` for `{giver}`: expected one of {expected}");
        let near = || nearest(value, names.iter().map(String::as_str));
        let hint = words::for_value(flag, value).or_else(|| {
            let between = if giver == flag { ' ' } else { '=' };
            near().map(|name| format!("did you mean `{giver}{between}{name}`?"))
        });
        Failure::new(message).maybe_hint(hint)
    }

    fn bad_value(&self, error: &clap::Error, arg: &str, value: &str) -> Failure {
        let flag = flag_of(arg);
        let source = std::error::Error::source(error);
        let why = source.map_or_else(|| rendered(error), reason);
        // The value stands at the beginning already.
        let why = why.strip_suffix(&format!(", got `{value}`")).unwrap_or(&why);
        let why = why.strip_suffix(&format!(", got {value}")).unwrap_or(why);
        Failure::new(format!("invalid value `{value}` for `{}`: {why}", self.giver(flag)))
            .maybe_hint(words::for_value(flag, value))
    }

    fn missing(&self, root: &Command, error: &clap::Error) -> Failure {
        let args = match error.get(ContextKind::InvalidArg) {
            Some(ContextValue::Strings(args)) => args.join(" "),
            _ => String::new(),
        };
        let needing = self.flag_that_needs(root);
        let needing = needing.unwrap_or(&self.name);
        Failure::new(format!("`{needing}` needs {args}")).hint(format!("usage: {}", self.usage()))
    }

    /// The flag without which nothing would be missing.
    fn flag_that_needs(&self, root: &Command) -> Option<&str> {
        let all = || std::iter::once(root.get_name()).chain(self.words.iter().map(String::as_str));
        let is_fine_without = |at: usize, n: usize| {
            // The name of the program comes first.
            let words = all().enumerate().filter(|(i, _)| !(at + 1..=at + n).contains(i));
            let parsed = root.clone().try_get_matches_from(words.map(|(_, word)| word));
            parsed.err().is_none_or(|error| error.kind() != ErrorKind::MissingRequiredArgument)
        };
        let is_flag = |word: &String| word.starts_with("--");
        // A flag without a value in its word has it in the next one, or has none.
        let n_words = |at: usize| {
            let has_own = self.words[at].contains('=');
            if has_own || self.words.get(at + 1).is_none_or(is_flag) { 1 } else { 2 }
        };
        let mut flags = self.words.iter().enumerate().filter(|(_, word)| is_flag(word));
        flags.find(|(at, _)| is_fine_without(*at, n_words(*at))).map(|(_, word)| flag_of(word))
    }

    /// A misspelled command of a command that takes other words, too.
    fn mistyped_command(&self, root: &Command) -> Option<Failure> {
        let at = self.words.iter().position(|word| word == self.command.get_name())?;
        let word = self.words[at + 1..].iter().find(|word| !word.starts_with('-'))?;
        let names = commands(self.command).map(Command::get_name);
        nearest(word, names).map(|_| self.unknown_command(root, word))
    }

    fn usage(&self) -> String {
        let usage = self.command.clone().bin_name(self.name.clone()).render_usage().to_string();
        let usage = usage.trim_start_matches("Usage: ");
        // Lines that begin with the name again are other uses.
        let is_other = |(i, line): &(usize, &str)| *i > 0 && line.trim().starts_with(&self.name);
        let lines = usage.lines().enumerate().take_while(|line| !is_other(line));
        one_line(&lines.map(|(_, line)| line).collect::<Vec<_>>().join("\n"))
    }
}

/// Commands that a person may type.
fn commands(command: &Command) -> impl Iterator<Item = &Command> {
    command.get_subcommands().filter(|command| command.get_name() != "help")
}

/// Whether a flag of `run` is a field of the server's requests.
fn is_of_requests(root: &Command, name: &str) -> bool {
    let run = root.find_subcommand("run");
    let arg = run.and_then(|run| run.get_arguments().find(|arg| arg.get_long() == Some(name)));
    let heading = arg.and_then(clap::Arg::get_help_heading);
    heading.is_some_and(|heading| ["Sampling", "Generation"].contains(&heading))
}

/// Names of its flags, without dashes.
fn flags(command: &Command) -> impl Iterator<Item = &str> {
    command.get_arguments().filter_map(clap::Arg::get_long)
}

/// `--port` of `--port <PORT>`.
fn flag_of(arg: &str) -> &str {
    arg.split([' ', '=', '[']).next().filter(|flag| !flag.is_empty()).unwrap_or(arg)
}

/// The values that a flag expects.
fn reason(source: &(dyn std::error::Error + 'static)) -> String {
    use std::num::{IntErrorKind, ParseFloatError, ParseIntError};
    if let Some(error) = source.downcast_ref::<ParseIntError>() {
        let range = match error.kind() {
            IntErrorKind::Zero => "expected a whole number of at least 1",
            IntErrorKind::PosOverflow => "expected a smaller number",
            _ => "expected a whole number",
        };
        return range.to_owned();
    }
    if source.is::<ParseFloatError>() {
        return "expected a number".to_owned();
    }
    source.to_string()
}

/// The first paragraph of clap's own words in one line.
fn rendered(error: &clap::Error) -> String {
    let text = error.render().to_string();
    let first = text.split("\n\n").next().unwrap_or_default();
    let message = one_line(first.strip_prefix("error: ").unwrap_or(first));
    // `'--flag'` and `` `--flag` `` should look alike in every line of ours.
    message.replace('\'', "`")
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    fn line(words: &[&str]) -> String {
        let words: Vec<&str> = ["pelton"].into_iter().chain(words.iter().copied()).collect();
        let error = Cli::try_parse_from(&words).expect_err("a mistake");
        explain(&error, words.iter().map(OsString::from)).line().expect("a line")
    }

    #[test]
    fn a_mistake_is_one_line_that_names_the_fix() {
        let cases: [(&[&str], &str); 29] = [
            (&[], "(hint: try `pelton run"),
            (&["pul", "x"], "did you mean `pelton pull`?"),
            (&["ls"], "`pelton list`"),
            (&["run", "--temperatur", "1"], "did you mean `--temperature`?"),
            (&["run", "--ctx-size", "1"], "`--max-context`"),
            (&["run", "Once", "upon"], "put it in quotes"),
            (&["run", "-n", "0", "x"], "`--max-tokens`: expected a whole number of at least 1"),
            (&["run", "--temperature", "hot"], "expected a number from 0 to 100"),
            (&["run", "--kv-dtype", "int4"], "expected one of f32, bf16, f16, fp8, int8"),
            (&["run", "--kv-dtype", "bf61"], "did you mean `--kv-dtype bf16`?"),
            (&["serve", "--port", "abc"], "expected a whole number from 0 to 65535 ("),
            (&["serve", "--temperature", "1"], "has the field `temperature`"),
            (&["serve", "--quiet"], "it is a flag of `pelton run`"),
            (&["run", "-n", "-5", "x"], "invalid value `-5` for `-n`"),
            (&["serve", "--kv-memory", "-4GiB"], "invalid value `-4GiB` for `--kv-memory`"),
            (&["bench", "serve", "30"], "unexpected argument `30`"),
            (&["bench", "serve", "--json", "30"], "unexpected argument `30`"),
            (&["doctor", "-5"], "unexpected argument `-5`"),
            (&["run", "--tokens"], "such as 1,2,3"),
            (&["convert", "a"], "usage: pelton convert"),
            (&["convert", "a"], "`pelton convert` needs <OUTPUT>"),
            (&["run", "-n", "3", "x", "--length-penalty", "2"], "`--length-penalty` needs --beams"),
            (&["run", "--json", "--length-penalty", "2"], "`--length-penalty` needs --beams"),
            (&["run", "x", "--tool-choice=auto"], "`--tool-choice` needs --tools"),
            (&["eval", "embedded"], "usage: pelton eval [OPTIONS] --text <FILE> <MODEL>)"),
            (
                &["quantize", "a", "b", "--method", "rtn", "--samples", "4"],
                "`--samples` needs --calibration",
            ),
            (&["eval", "x", "--text", "t", "--max-kl", "0.1"], "`--max-kl` needs --reference"),
            (&["eval", "taks", "model", "q.jsonl"], "did you mean `pelton eval tasks`?"),
            (&["plan", "advice", "model"], "did you mean `pelton plan advise`?"),
        ];
        for (words, expected) in cases {
            let line = line(words);
            let expected = expected.trim_end_matches(" (");
            assert!(line.contains(expected), "{words:?} gave {line}");
            assert!(line.starts_with("error: ") && line.lines().count() == 1, "{line}");
        }
        assert!(!line(&["serve", "--port", "abc"]).contains("got"), "the value stands once");
    }

    #[cfg(unix)]
    #[test]
    fn a_word_that_is_no_text_is_named() {
        use std::os::unix::ffi::OsStringExt;

        let path = OsString::from_vec(b"models/\xff.gguf".to_vec());
        let words = [OsString::from("pelton"), "inspect".into(), "-m".into(), path];
        let error = Cli::try_parse_from(&words).expect_err("a mistake");
        let line = explain(&error, words).line().expect("a line");
        assert!(line.starts_with("error: `models/\u{fffd}.gguf` is not UTF-8 (hint: "), "{line}");
    }

    #[test]
    fn what_is_far_from_every_flag_is_compared_with_none() {
        let line = line(&["serve", "--rate-limit", "3"]);
        assert!(!line.contains("drain-timeout"), "{line}");
        assert!(line.contains("max_waiting"), "{line}");
    }
}
