//! Reading the command line, and the help that it may ask for: the paragraphs after the flags become
//! lines that a terminal of any width may break.

use std::ffi::OsString;

use clap::error::ErrorKind;
use clap::{Command, CommandFactory, Parser};

use super::Cli;

/// Shorter lines of a paragraph stand for themselves: titles, and lines that were broken on purpose.
const LEAST: usize = 60;

impl Cli {
    /// Reads a command line, whose first word is the name of the program.
    ///
    /// # Errors
    ///
    /// A mistake, or a help text that was asked for.
    pub(crate) fn read(words: &[OsString]) -> Result<Self, clap::Error> {
        Self::try_parse_from(words).map_err(|error| match error.kind() {
            // Only then, because going through all commands takes milliseconds.
            ErrorKind::DisplayHelp => {
                flowing(Self::command()).try_get_matches_from(words).err().unwrap_or(error)
            }
            _ => error,
        })
    }
}

/// The command and its subcommands with ends of help texts that flow.
fn flowing(command: Command) -> Command {
    let end = command.get_after_help().map(|end| joined(&end.to_string()));
    let command = command.mut_subcommands(flowing);
    match end {
        Some(end) => command.after_help(end),
        None => command,
    }
}

/// The text with the lines of each paragraph in one; lines of examples and tables, which begin with
/// spaces, stay as they are.
fn joined(text: &str) -> String {
    let mut out = String::new();
    let mut last = "";
    for line in text.lines() {
        let is_prose = |line: &str| !line.is_empty() && !line.starts_with(' ');
        let goes_on = is_prose(last) && is_prose(line) && last.len() >= LEAST;
        if !out.is_empty() {
            out.push(if goes_on { ' ' } else { '\n' });
        }
        out.push_str(line);
        last = line;
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_a_paragraph_are_joined_and_tables_stay() {
        let text = "\
Examples:
  pelton run

Text goes to stdout, statistics to stderr. A line of a paragraph that
goes on here.

Where MODEL may point:
  a folder     config.json
               and weights";
        let expected = "\
Examples:
  pelton run

Text goes to stdout, statistics to stderr. A line of a paragraph that goes on here.

Where MODEL may point:
  a folder     config.json
               and weights";
        assert_eq!(joined(text), expected);
    }

    #[test]
    fn no_line_of_an_example_or_a_table_is_broken() {
        let mut commands = vec![flowing(Cli::command())];
        while let Some(command) = commands.pop() {
            let end = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            for line in end.lines().filter(|line| line.starts_with(' ')) {
                let n = line.chars().count();
                assert!(n <= 100, "{}: {n} characters: {line}", command.get_name());
            }
            commands.extend(command.get_subcommands().cloned());
        }
    }

    #[test]
    fn help_fills_its_lines() {
        for command in Cli::command().get_subcommands() {
            let words = ["pelton", command.get_name(), "--help"].map(OsString::from);
            let help = Cli::read(&words).expect_err("help").to_string();
            let lines: Vec<&str> = help.lines().collect();
            for pair in lines.windows(2).filter(|pair| pair.iter().all(|l| !l.starts_with(' '))) {
                let word = pair[1].split(' ').next().unwrap_or_default();
                let is_full = pair[0].len() + 1 + word.len() > 100;
                assert!(pair[0].len() < 60 || word.is_empty() || is_full, "{pair:?}");
            }
        }
    }
}
