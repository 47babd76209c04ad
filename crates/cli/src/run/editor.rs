//! The line in which a person types: editing, history, completion, messages of several lines.

use std::path::PathBuf;

use rustyline::completion::Completer;
use rustyline::error::ReadlineError;
use rustyline::highlight::Highlighter;
use rustyline::hint::Hinter;
use rustyline::history::FileHistory;
use rustyline::validate::{ValidationContext, ValidationResult, Validator};
use rustyline::{Behavior, ColorMode, Config, Context};

use super::command;
use super::keyboard::Keyboard;
use super::page::Look;
use crate::failure::{Failure, Result};
use crate::interrupt::Interrupts;

/// An action of a person at the prompt.
#[derive(Debug)]
pub(crate) enum Input {
    /// Sent this.
    Line(String),
    /// Threw the line away.
    Nothing,
    /// Left.
    End,
}

/// The prompt, plain and in bold.
const PROMPT: (&str, &str) = ("> ", "\x1b[1m> \x1b[0m");

/// The line editor with its history.
pub(crate) struct Editor {
    lines: rustyline::Editor<Helper, FileHistory>,
    /// `None` where stdin and stdout are not the same terminal, or the system lacks one for us.
    keyboard: Option<Keyboard>,
    history: Option<PathBuf>,
}

impl Editor {
    /// Takes the terminal; from here on Ctrl-C reaches `interrupts` as a key.
    ///
    /// # Errors
    ///
    /// When the terminal cannot be used.
    pub(crate) fn open(look: Look, interrupts: &mut Interrupts) -> Result<Self> {
        let color = if look.has_styles { ColorMode::Enabled } else { ColorMode::Disabled };
        let config = Config::builder().color_mode(color);
        // A redirected stdout gets answers and nothing else.
        let config = match look.wraps {
            true => config.behavior(Behavior::Stdio),
            false => config.behavior(Behavior::PreferTerm),
        };
        let keyboard = match look.wraps {
            true => {
                Keyboard::open().inspect_err(|error| tracing::info!(%error, "no keyboard")).ok()
            }
            false => None,
        };
        if let Some(keyboard) = &keyboard {
            interrupts.listen_to(keyboard.presses());
        }
        let mut lines =
            rustyline::Editor::with_config(config.build()).map_err(|error| terminal(&error))?;
        lines.set_helper(Some(Helper));
        let history = history_file();
        if let Some(path) = &history {
            // Full or read-only disks must not end a conversation, and the first one has no file.
            let _ = path.parent().map(std::fs::create_dir_all);
            let _ = lines.load_history(path);
        }
        Ok(Self { lines, keyboard, history })
    }

    /// Waits for the next line.
    ///
    /// # Errors
    ///
    /// When the terminal cannot be read.
    pub(crate) fn read(&mut self) -> Result<Input> {
        let mut read = || self.lines.readline(&PROMPT);
        let line = match &mut self.keyboard {
            Some(keyboard) => keyboard.during(read),
            None => read(),
        };
        match line {
            Ok(line) => Ok(Input::Line(line)),
            Err(ReadlineError::Interrupted | ReadlineError::Signal(_)) => Ok(Input::Nothing),
            Err(ReadlineError::Eof) => Ok(Input::End),
            // Bytes that are no UTF-8, where no keyboard replaced them.
            Err(ReadlineError::Io(error)) if error.kind() == std::io::ErrorKind::InvalidData => {
                Ok(Input::Nothing)
            }
            // The terminal is gone.
            Err(_) if self.keyboard.is_some() => Ok(Input::End),
            Err(error) => Err(terminal(&error)),
        }
    }

    /// Adds a line to the history, at once: nothing is lost when the process is killed.
    pub(crate) fn remember(&mut self, line: &str) {
        // As above: without a disk the history lasts as long as the conversation.
        let _ = self.lines.add_history_entry(line);
        if let Some(path) = &self.history {
            let _ = self.lines.append_history(path);
        }
    }
}

/// File of the history: `PELTON_HISTORY` (empty for none), else a file in the user's state folder.
fn history_file() -> Option<PathBuf> {
    if let Some(path) = std::env::var_os("PELTON_HISTORY") {
        return (!path.is_empty()).then(|| path.into());
    }
    let state = std::env::var_os("XDG_STATE_HOME")
        .map(PathBuf::from)
        .or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".local/state")))?;
    Some(state.join("pelton").join("history"))
}

fn terminal(error: &ReadlineError) -> Failure {
    Failure::internal(format!("cannot read from the terminal: {error}"))
}

/// Answers to the questions of the editor while a line is typed.
struct Helper;

impl rustyline::Helper for Helper {}

/// A block that is open takes further lines.
impl Validator for Helper {
    fn validate(&self, context: &mut ValidationContext<'_>) -> rustyline::Result<ValidationResult> {
        Ok(match command::is_open_block(context.input()) {
            true => ValidationResult::Incomplete,
            false => ValidationResult::Valid(None),
        })
    }
}

impl Completer for Helper {
    type Candidate = String;

    fn complete(
        &self,
        line: &str,
        at: usize,
        _context: &Context<'_>,
    ) -> rustyline::Result<(usize, Vec<String>)> {
        let start = &line[..at];
        let candidates = if start.starts_with('/') { command::completions(start) } else { vec![] };
        Ok((0, candidates))
    }
}

impl Hinter for Helper {
    type Hint = String;
}

impl Highlighter for Helper {}
