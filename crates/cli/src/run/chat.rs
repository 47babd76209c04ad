//! The conversation in the terminal.

use std::path::PathBuf;

use pelton_llm::ChatRequest;
use pelton_text::Message;
use rustyline::DefaultEditor;
use rustyline::error::ReadlineError;
use tokio::runtime::Runtime;

use super::answer::{self, Ending, Sink};
use super::command::{HELP, Line};
use super::{Session, system_messages};
use crate::failure::{Failure, Result};
use crate::interrupt::Interrupts;
use crate::mode::Mode;

/// Runs a conversation until the person leaves.
///
/// # Errors
///
/// When the terminal cannot be used. A failure of one message is printed, and the conversation goes
/// on.
pub(super) fn converse(
    session: &Session<'_>,
    runtime: &Runtime,
    interrupts: &mut Interrupts,
) -> Result<()> {
    let mut editor = DefaultEditor::new().map_err(|error| terminal(&error))?;
    let history = history_file();
    if let Some(path) = &history {
        // There is none before the first conversation.
        let _ = editor.load_history(path);
    }
    let mut conversation = Conversation::new(session);
    conversation.greet();
    loop {
        let line = match editor.readline("> ") {
            Ok(line) => line,
            // Ctrl-C at the prompt throws the line away.
            Err(ReadlineError::Interrupted) => {
                eprintln!("(Ctrl-D or /exit leaves)");
                continue;
            }
            Err(ReadlineError::Eof) => break,
            Err(error) => return Err(terminal(&error)),
        };
        match Line::parse(&line) {
            Line::Empty => continue,
            Line::Exit => break,
            Line::Help => eprint!("{HELP}"),
            Line::Clear => conversation.clear(),
            Line::System(text) => conversation.set_system(text),
            Line::Stats => conversation.toggle_stats(),
            Line::Unknown(text) => eprintln!("no command `{text}`; /help lists what there is"),
            Line::Say(text) => {
                let answer = runtime.block_on(conversation.say(text, interrupts));
                if let Err(failure) = answer {
                    // A closed stdout ends the conversation; a refused message does not.
                    let Some(line) = failure.line() else { return Err(failure) };
                    eprint!("{line}");
                }
            }
        }
        // Full or read-only disks must not end a conversation.
        let _ = editor.add_history_entry(line.as_str());
    }
    if let Some(path) = &history {
        let _ = path.parent().map(std::fs::create_dir_all);
        let _ = editor.save_history(path);
    }
    Ok(())
}

/// The conversation so far.
struct Conversation<'a> {
    session: &'a Session<'a>,
    system: Option<String>,
    /// Questions and answers in turn, without the instructions.
    turns: Vec<Message>,
    shows_stats: bool,
}

impl<'a> Conversation<'a> {
    fn new(session: &'a Session<'a>) -> Self {
        Self {
            session,
            system: session.args.system.clone(),
            turns: Vec::new(),
            shows_stats: !session.args.quiet,
        }
    }

    fn greet(&self) {
        let name = &self.session.llm.info().name;
        match self.session.mode {
            Mode::Chat => eprintln!("Talking to {name}. /help lists the commands, Ctrl-D leaves."),
            Mode::Raw => eprintln!(
                "{name} continues each line as it stands. /help lists the commands, Ctrl-D leaves."
            ),
        }
        self.session.note_toy();
    }

    fn clear(&mut self) {
        self.turns.clear();
        eprintln!("(forgotten)");
    }

    fn set_system(&mut self, text: &str) {
        if self.session.mode == Mode::Raw {
            eprintln!("instructions need a chat; this is raw mode");
            return;
        }
        self.system = (!text.is_empty()).then(|| text.to_owned());
        self.clear();
    }

    fn toggle_stats(&mut self) {
        self.shows_stats = !self.shows_stats;
        eprintln!("(statistics are {})", if self.shows_stats { "on" } else { "off" });
    }

    /// Sends a message and prints the answer; a refused message leaves the conversation unchanged.
    async fn say(&mut self, text: &str, interrupts: &mut Interrupts) -> Result<()> {
        let generating = match self.session.mode {
            Mode::Raw => self.session.complete(pelton_llm::Prompt::Text(text.to_owned()))?,
            Mode::Chat => {
                let mut messages = system_messages(self.system.as_deref());
                messages.extend(self.turns.iter().cloned());
                messages.push(Message::new("user", text));
                let generation = self.session.generation.clone();
                self.session
                    .llm
                    .chat(ChatRequest { messages, generation })
                    .map_err(|error| Failure::from(error).hint("/clear starts again"))?
            }
        };
        let answer = answer::receive(generating, interrupts, Sink::Stdout).await?;
        Sink::Stdout.finish_line(&answer)?;
        if self.shows_stats {
            eprint!("{}", self.session.stats(&answer).render_line());
        }
        if answer.ending == Ending::Failed {
            return Err(answer.failure());
        }
        if self.session.mode == Mode::Chat {
            // The part of an interrupted answer stays, because the person has read it.
            self.turns.push(Message::new("user", text));
            self.turns.push(Message::new("assistant", answer.text));
        }
        Ok(())
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
