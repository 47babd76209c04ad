//! Descriptions of the command line that are made from the command line itself: completions, manual
//! pages, and the reference chapter of the manual.

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::Path;

use clap::{Arg, Command, CommandFactory};
use clap_mangen::Man;
use pelton_tensor::PendingFile;

use crate::args::{Cli, CompletionsArgs, ManArgs};
use crate::failure::{Failure, Result};

/// `pelton completions`.
pub(crate) fn completions(args: &CompletionsArgs) -> Result<()> {
    // Into memory first: the generators panic where a pipe is closed.
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "pelton", &mut script);
    print(&script)
}

/// `pelton man`.
pub(crate) fn man(args: &ManArgs) -> Result<()> {
    match &args.folder {
        None => print(markdown().as_bytes()),
        Some(folder) => {
            let mut command = Cli::command().disable_help_subcommand(true);
            command.build();
            man_pages(command, folder)
        }
    }
}

/// Writes the page of a command into `folder`, after those of its subcommands, each whole or not at
/// all.
fn man_pages(command: Command, folder: &Path) -> Result<()> {
    for subcommand in command.get_subcommands().filter(|command| !command.is_hide_set()) {
        man_pages(subcommand.clone(), folder)?;
    }
    let page = Man::new(command);
    let file = folder.join(page.get_filename());
    let written = PendingFile::create(&file).and_then(|mut pending| {
        page.render(&mut pending)?;
        pending.publish()
    });
    written.map_err(|error| Failure::write(&file, &error))
}

/// `pelton openapi`.
pub(crate) fn openapi() -> Result<()> {
    print(format!("{}\n", pelton_server::openapi()).as_bytes())
}

fn print(bytes: &[u8]) -> Result<()> {
    let mut stdout = std::io::stdout().lock();
    stdout.write_all(bytes).and_then(|()| stdout.flush()).map_err(|error| Failure::stdout(&error))
}

/// Every command with its flags.
fn markdown() -> String {
    let mut root = Cli::command();
    root.build();
    let mut page =
        "# Command line\n\nMade from the program by `pelton man --markdown`.\n".to_owned();
    for command in root.get_subcommands().filter(|command| command.get_name() != "help") {
        describe(&mut page, "pelton", command);
    }
    page
}

/// A section for a command, then its subcommands.
fn describe(page: &mut String, parent: &str, command: &Command) {
    let name = format!("{parent} {}", command.get_name());
    let about = command.get_about().map(ToString::to_string).unwrap_or_default();
    let _ = writeln!(page, "\n## {name}\n\n{about}.\n");
    let subcommands: Vec<&Command> =
        command.get_subcommands().filter(|command| command.get_name() != "help").collect();
    if subcommands.is_empty() {
        let args = command.get_arguments().filter(|arg| {
            !arg.is_hide_set() && !["help", "verbose"].contains(&arg.get_id().as_str())
        });
        page.push_str("| flag | meaning |\n|---|---|\n");
        for arg in args {
            let _ = writeln!(page, "| {} | {} |", form(arg), meaning(arg));
        }
    }
    if let Some(end) = command.get_after_help() {
        let _ = writeln!(page, "\n```text\n{}\n```", end.to_string().trim_end());
    }
    for subcommand in subcommands {
        describe(page, &name, subcommand);
    }
}

/// The spellings of an argument, and the word for its value.
fn form(arg: &Arg) -> String {
    let mut spelled: Vec<String> = Vec::new();
    spelled.extend(arg.get_short().map(|short| format!("-{short}")));
    spelled.extend(arg.get_long().map(|long| format!("--{long}")));
    let mut form = spelled.join(", ");
    if arg.get_action().takes_values() || arg.is_positional() {
        let names = arg.get_value_names().unwrap_or_default();
        for name in names {
            let _ = match arg.is_positional() {
                true => write!(form, "{name}"),
                false => write!(form, " {name}"),
            };
        }
    }
    format!("`{form}`")
}

/// Its help in one line, with the values that it takes.
fn meaning(arg: &Arg) -> String {
    let mut words = arg.get_help().map(ToString::to_string).unwrap_or_default();
    let values: Vec<String> = match arg.get_action().takes_values() {
        true => arg.get_possible_values().iter().map(|v| v.get_name().to_owned()).collect(),
        false => Vec::new(),
    };
    if !values.is_empty() {
        let _ = write!(words, " ({})", values.join(", "));
    }
    words.split_whitespace().collect::<Vec<_>>().join(" ").replace('|', "\\|").replace('<', "&lt;")
}
