//! The conversation in the terminal: what each line does.

use std::io::Write;
use std::path::Path;

use pelton_base::Shape;
use pelton_llm::{ChatOptions, ChatRequest, Generation, LlmError, ToolChoice};
use pelton_text::{Message, TextError};
use tokio::runtime::Runtime;

use super::answer::{self, Answer, Ending};
use super::command::{self, Command, Line, first_line};
use super::editor::{Editor, Input};
use super::page::Page;
use super::settings::{self, Settings};
use super::turns::{Room, Turn, Turns};
use super::{Session, clipboard, length_note, saved};
use crate::args::{read_tools, schema_shape};
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
    let mut chat = Chat::new(session);
    chat.greet();
    let mut editor = Editor::open(session.look, interrupts)?;
    loop {
        let line = match editor.read()? {
            Input::Line(line) => line,
            // Ctrl-C at the prompt throws the line away.
            Input::Nothing => {
                chat.remark("(Ctrl-D or /exit leaves)");
                continue;
            }
            Input::End => return Ok(()),
        };
        let done = match Line::parse(&line) {
            Line::Empty => continue,
            Line::Command(Command::Exit) => return Ok(()),
            Line::Wrong(why) => Err(Failure::new(why)),
            Line::Say(text) => {
                editor.remember(&line);
                runtime.block_on(chat.say(text, interrupts))
            }
            Line::Command(command) => {
                editor.remember(&line);
                runtime.block_on(chat.obey(command, interrupts))
            }
        };
        if let Err(failure) = done {
            // A closed stdout ends the conversation; a refused message does not.
            let Some(line) = failure.line() else { return Err(failure) };
            eprint!("{}", session.look.remark(&line));
        }
    }
}

/// The conversation so far, and how it goes on.
struct Chat<'a> {
    session: &'a Session<'a>,
    turns: Turns,
    settings: Settings,
    generation: Generation,
    /// The form of the answers.
    form: Option<Shape>,
    options: ChatOptions,
    shows_stats: bool,
    /// Whether a remark has said that a full context forgets turns.
    has_said_shift: bool,
}

impl<'a> Chat<'a> {
    fn new(session: &'a Session<'a>) -> Self {
        Self {
            session,
            turns: Turns::new(session.args.system.clone()),
            settings: Settings::default(),
            generation: session.generation.clone(),
            form: session.generation.form.clone(),
            options: session.options.clone(),
            shows_stats: !session.args.quiet,
            has_said_shift: false,
        }
    }

    /// Prints the first screen.
    fn greet(&self) {
        let info = self.session.llm.info();
        let name = &info.name;
        self.remark(&match self.session.mode {
            Mode::Chat => format!("Talking to {name}. /help lists the commands, Ctrl-D leaves."),
            Mode::Raw => format!(
                "{name} continues each line as it stands. /help lists the commands, Ctrl-D leaves."
            ),
        });
        self.session.note_toy();
        self.session.warn_of_length(0);
    }

    /// Prints a line beside the conversation.
    fn remark(&self, line: &str) {
        eprint!("{}", self.session.look.remark(&format!("{line}\n")));
    }

    /// Carries out a command.
    ///
    /// # Errors
    ///
    /// Says why it cannot be carried out; the conversation is then unchanged.
    async fn obey(&mut self, command: Command<'_>, interrupts: &mut Interrupts) -> Result<()> {
        match command {
            Command::Help => eprint!("{}", self.session.look.remark(&command::help())),
            Command::Set(words) => self.set(words)?,
            Command::System(text) => self.set_system(text)?,
            Command::Json(words) => self.set_form(words)?,
            Command::Tools(words) => self.set_tools(words)?,
            Command::Save(words) => self.save(words)?,
            Command::Load(words) => self.load(words)?,
            Command::Retry => self.retry(interrupts).await?,
            Command::Undo => self.undo()?,
            Command::Tokens => self.count()?,
            Command::Copy => self.copy()?,
            Command::Clear => {
                self.turns = Turns::new(self.turns.system().map(str::to_owned));
                self.remark("(forgotten)");
            }
            Command::Stats => {
                self.shows_stats = !self.shows_stats;
                let state = if self.shows_stats { "on" } else { "off" };
                self.remark(&format!("(statistics are {state})"));
            }
            Command::Exit => unreachable!("the loop ends before"),
        }
        Ok(())
    }

    fn set(&mut self, words: &str) -> Result<()> {
        if words.is_empty() {
            eprint!("{}", self.session.look.remark(&settings::list(&self.generation)));
            return Ok(());
        }
        let base = &self.session.generation;
        let name = self.settings.set(words, base)?;
        self.generation = Generation { form: self.form.clone(), ..self.settings.over(base)? };
        let list = settings::list(&self.generation);
        let line = list.lines().map(str::trim_start).find(|line| line.starts_with(&name));
        let value = line.and_then(|line| line.strip_prefix(&name)).unwrap_or_default();
        self.remark(&format!("({name} is {})", value.trim()));
        let context = self.session.llm.info().context_tokens;
        if let Some(note) = length_note(self.generation.max_tokens, 0, context) {
            eprint!("{}", self.session.look.remark(&note));
        }
        Ok(())
    }

    fn set_system(&mut self, text: &str) -> Result<()> {
        self.check_chat("instructions")?;
        let system = (!text.is_empty()).then(|| text.to_owned());
        let said = if system.is_some() { "instructions" } else { "no instructions" };
        self.turns = Turns::new(system);
        self.remark(&format!("(a new conversation, with {said})"));
        Ok(())
    }

    fn set_form(&mut self, words: &str) -> Result<()> {
        self.form = match words {
            "" => None,
            schema => Some(schema_shape("/json", schema)?),
        };
        self.generation.form.clone_from(&self.form);
        let said = if self.form.is_some() { "JSON of this schema" } else { "free text" };
        self.remark(&format!("(answers are {said})"));
        Ok(())
    }

    fn set_tools(&mut self, words: &str) -> Result<()> {
        self.check_chat("tools")?;
        self.options.tools = match words {
            "" => Vec::new(),
            path => read_tools("/tools", Path::new(path))?,
        };
        // A choice of the command line was among other tools.
        self.options.tool_choice = ToolChoice::Auto;
        let names: Vec<&str> = self.options.tools.iter().map(|tool| tool.name.as_str()).collect();
        self.remark(&match names.as_slice() {
            [] => "(no tools)".to_owned(),
            names => format!("(the model may call {})", names.join(", ")),
        });
        Ok(())
    }

    fn check_chat(&self, what: &str) -> Result<()> {
        match self.session.mode {
            Mode::Chat => Ok(()),
            Mode::Raw => Err(Failure::new(format!("{what} need a chat; this is raw mode"))),
        }
    }

    fn save(&self, words: &str) -> Result<()> {
        let path = saved::path(words);
        let model = &self.session.llm.info().name;
        saved::save(&path, model, self.settings.changes(), &self.turns)?;
        let n_turns = turns_in_words(self.turns.all().len());
        self.remark(&format!("({n_turns} saved in {})", path.display()));
        Ok(())
    }

    fn load(&mut self, words: &str) -> Result<()> {
        let path = saved::path(words);
        let saved = saved::load(&path)?;
        let base = &self.session.generation;
        let at_file = |failure: Failure| failure.at(&path.display().to_string());
        let settings = Settings::of(&saved.settings, base).map_err(at_file)?;
        self.generation = Generation { form: self.form.clone(), ..settings.over(base)? };
        (self.settings, self.turns) = (settings, saved.turns);
        let n_turns = turns_in_words(self.turns.all().len());
        let other = saved.model.filter(|model| *model != self.session.llm.info().name);
        let with = other
            .map_or_else(String::new, |model| format!(", which were with {}", first_line(&model)));
        self.remark(&format!("({n_turns} loaded from {}{with})", path.display()));
        if let Some(turn) = self.turns.last() {
            self.remark(&format!("(the last question was: {})", first_line(&turn.question)));
        }
        Ok(())
    }

    fn undo(&mut self) -> Result<()> {
        let turn = self.turns.take_back().ok_or_else(nothing_yet)?;
        self.remark(&format!("(taken back: {})", first_line(&turn.question)));
        Ok(())
    }

    fn count(&self) -> Result<()> {
        self.check_chat("the tokens of a conversation")?;
        let context = self.session.llm.info().context_tokens;
        let messages = self.turns.messages(None);
        let n_tokens = match messages.is_empty() {
            true => 0,
            false => self.session.llm.count_chat(&messages, &self.options)?,
        };
        let n_forgotten = self.turns.n_forgotten();
        let n_sent = turns_in_words(self.turns.all().len() - n_forgotten);
        let left = context.saturating_sub(n_tokens);
        let mut line = format!("({n_tokens} of {context} tokens in {n_sent}, {left} left");
        if n_forgotten > 0 {
            line.push_str(&format!("; the model no longer sees {n_forgotten} before them"));
        }
        self.remark(&(line + ")"));
        Ok(())
    }

    fn copy(&self) -> Result<()> {
        let turn = self.turns.last().ok_or_else(nothing_yet)?;
        if !self.session.look.wraps {
            return Err(Failure::new("cannot copy: stdout is no terminal that takes commands"));
        }
        let sequence = clipboard::sequence(&turn.answer).map_err(Failure::new)?;
        let mut stdout = std::io::stdout().lock();
        stdout
            .write_all(sequence.as_bytes())
            .and_then(|()| stdout.flush())
            .map_err(|error| Failure::stdout(&error))?;
        let n_bytes = turn.answer.len();
        self.remark(&format!("(asked the terminal to copy {n_bytes} bytes; it does not say if)"));
        Ok(())
    }

    /// Answers the last question again; the old answer stays if no new one comes.
    async fn retry(&mut self, interrupts: &mut Interrupts) -> Result<()> {
        let before = self.turns.clone();
        let turn = self.turns.take_back().ok_or_else(nothing_yet)?;
        if self.generation.sampling.is_greedy() {
            self.remark(
                "(at temperature 0 the answer is the same; `/set temperature 0.8` varies it)",
            );
        }
        let seed = &mut self.generation.sampling.seed;
        *seed = seed.wrapping_add(1);
        let n_before = self.turns.all().len();
        let done = self.say(&turn.question, interrupts).await;
        if self.turns.all().len() == n_before {
            self.turns = before;
        }
        done
    }

    /// Sends a message and prints the answer; a refused message leaves the conversation unchanged.
    async fn say(&mut self, text: &str, interrupts: &mut Interrupts) -> Result<()> {
        let session = self.session;
        interrupts.forget().await;
        let generating = match session.mode {
            Mode::Raw => {
                let prompt = pelton_llm::Prompt::Text(text.to_owned());
                session.complete(prompt, &self.generation)?
            }
            Mode::Chat => {
                let messages = self.make_room(text)?;
                let generation = self.generation.clone();
                let options = self.options.clone();
                session.llm.chat(ChatRequest { messages, generation, options }).map_err(
                    |error| {
                        Failure::from(error)
                            .hint("the message is still there: the Up key brings it back")
                    },
                )?
            }
        };
        let mut page = Page::stdout(session.look, session.mode == Mode::Chat);
        let waiting = session.waiting(generating.usage().prompt_tokens);
        let answer = answer::receive(generating, interrupts, &mut page, waiting).await?;
        if self.shows_stats {
            let stats = session.stats(&answer, &self.generation);
            eprint!("{}", session.look.remark(&stats.render_line()));
        }
        self.keep(text, answer)
    }

    /// Adds a turn. The part of an interrupted answer stays, because the person has read it.
    fn keep(&mut self, question: &str, answer: Answer) -> Result<()> {
        if answer.ending == Ending::Failed {
            return Err(answer.failure());
        }
        if answer.text.is_empty() && answer.ending == Ending::Interrupted {
            self.remark("(no answer yet, so the message is not kept; the Up key brings it back)");
            return Ok(());
        }
        self.turns.push(Turn { question: question.to_owned(), answer: answer.with_calls() });
        Ok(())
    }

    /// Messages to send for a question, without the turns that do not fit beside it.
    fn make_room(&mut self, question: &str) -> Result<Vec<Message>> {
        let llm = &self.session.llm;
        let room = Room {
            context: llm.info().context_tokens,
            max_tokens: self.generation.max_tokens,
            min_tokens: self.generation.sampling.min_tokens,
        };
        let mut turns = self.turns.clone();
        room.make(&mut turns, |turns| {
            match llm.count_chat(&turns.messages(Some(question)), &self.options) {
                Err(LlmError::Text(TextError::TooManyTokens { at_least, .. })) => Ok(at_least),
                counted => counted,
            }
        })?;
        let messages = turns.messages(Some(question));
        let n_new = turns.n_forgotten() - self.turns.n_forgotten();
        if n_new > 0 && llm.count_chat(&messages, &self.options)? < room.context {
            if !std::mem::replace(&mut self.has_said_shift, true) {
                let n_turns = turns_in_words(n_new);
                self.remark(&format!(
                    "(the context is full: the model forgets the oldest turns, {n_turns} so far; \
                     the instructions stay)"
                ));
            }
            self.turns = turns;
        }
        Ok(messages)
    }
}

fn nothing_yet() -> Failure {
    Failure::new("nothing has been asked yet")
}

fn turns_in_words(n_turns: usize) -> String {
    format!("{n_turns} turn{}", if n_turns == 1 { "" } else { "s" })
}
