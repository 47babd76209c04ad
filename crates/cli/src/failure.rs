//! How a failure ends the program: one line on stderr and an exit code.

use std::error::Error;
use std::fmt::Write as _;
use std::io::{self, ErrorKind};
use std::path::Path;

use pelton_llm::{LlmError, Panicked};
use pelton_server::ServeError;

use crate::hints;

/// Most characters of a message, and of a hint, that are printed.
const MOST_ERROR_CHARS: usize = 2000;

/// The user gave something that cannot be used.
const BAD_INPUT: u8 = 2;
/// Something broke that the user could not have prevented.
const INTERNAL: u8 = 1;
/// A quality gate of `pelton eval` is exceeded.
const GATE: u8 = 3;
/// Ctrl-C: 128 + SIGINT, as shells count.
pub(crate) const INTERRUPTED: u8 = 130;

/// Shorthand of this crate.
pub(crate) type Result<T> = std::result::Result<T, Failure>;

/// Why the program ends early.
///
/// It does not implement [`Error`], so that `?` turns every error into one.
#[derive(Debug)]
pub(crate) struct Failure {
    /// The line after `error: ` or `interrupted: `; `None` ends the program without a word.
    message: Option<String>,
    hint: Option<String>,
    code: u8,
}

impl Failure {
    /// A bad input; `message` names the thing and says what was expected.
    pub(crate) fn new(message: impl Into<String>) -> Self {
        Self { message: Some(message.into()), hint: None, code: BAD_INPUT }
    }

    /// A bad input, said with its causes unless the outer message already repeats them. A panic of
    /// ours, or a disk without room, is no bad input.
    pub(crate) fn of(error: &(dyn Error + 'static)) -> Self {
        let mut message = error.to_string();
        let mut is_input = !lacks_room(error) && !is_panic(error);
        let mut cause = error.source();
        while let Some(inner) = cause {
            let text = inner.to_string();
            if !message.contains(&text) {
                let _ = write!(message, ": {text}");
            }
            is_input &= !lacks_room(inner) && !is_panic(inner);
            cause = inner.source();
        }
        if is_input { Self::new(message) } else { Self::internal(message) }
    }

    /// A file that cannot be written: a bad input, unless its disk lacks room.
    pub(crate) fn write(path: &Path, error: &io::Error) -> Self {
        let message = format!("cannot write {}: {error}", path.display());
        if lacks_room(error) { Self::internal(message) } else { Self::new(message) }
    }

    /// A failure that is not the user's.
    pub(crate) fn internal(message: impl Into<String>) -> Self {
        Self { code: INTERNAL, ..Self::new(message) }
    }

    /// A model is worse than a gate allows.
    pub(crate) fn gate(message: impl Into<String>) -> Self {
        Self { code: GATE, ..Self::new(message) }
    }

    /// The user pressed Ctrl-C; what there is to say has been said.
    pub(crate) fn interrupted() -> Self {
        Self { message: None, hint: None, code: INTERRUPTED }
    }

    /// The user pressed Ctrl-C before there was anything to report.
    pub(crate) fn interrupted_early() -> Self {
        Self::interrupted_with("there is nothing to report yet")
    }

    /// The user pressed Ctrl-C; says what became of the work.
    pub(crate) fn interrupted_with(message: impl Into<String>) -> Self {
        Self { message: Some(message.into()), ..Self::interrupted() }
    }

    /// Says what to do about it.
    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// Says what to do about it, where that is known.
    pub(crate) fn maybe_hint(mut self, hint: Option<String>) -> Self {
        self.hint = hint.or(self.hint);
        self
    }

    /// Says where it happened.
    pub(crate) fn at(mut self, place: &str) -> Self {
        self.message = self.message.map(|message| format!("{place}: {message}"));
        self
    }

    /// A failed write to stdout. A reader that went away (`pelton run | head`) is no error.
    pub(crate) fn stdout(error: &io::Error) -> Self {
        if error.kind() == ErrorKind::BrokenPipe {
            Self { message: None, hint: None, code: 0 }
        } else {
            Self::internal(format!("cannot write to standard output: {error}"))
        }
    }

    /// Prints the line and returns the exit code.
    pub(crate) fn report(self) -> u8 {
        if let Some(line) = self.line() {
            // Nothing is left to do if stderr itself is gone.
            let _ = io::Write::write_all(&mut io::stderr().lock(), line.as_bytes());
        }
        self.code
    }

    /// Whether the user gave something that cannot be used.
    pub(crate) fn is_input(&self) -> bool {
        self.code == BAD_INPUT
    }

    /// The error, without the hint.
    pub(crate) fn message(&self) -> Option<&str> {
        self.message.as_deref()
    }

    /// The line on stderr, newline included.
    pub(crate) fn line(&self) -> Option<String> {
        let kind = if self.code == INTERRUPTED { "interrupted" } else { "error" };
        let mut line = format!("{kind}: {}", shortened(one_line(self.message.as_deref()?)));
        if let Some(hint) = &self.hint {
            let _ = write!(line, " (hint: {})", shortened(one_line(hint)));
        }
        line.push('\n');
        Some(line)
    }
}

impl<E: Error + 'static> From<E> for Failure {
    /// A bad input, with the fix where one is known.
    fn from(error: E) -> Self {
        hints::explained(&error)
    }
}

/// Whether a write failed for want of room: the disk, a quota or the limit of a file's size.
fn lacks_room(error: &(dyn Error + 'static)) -> bool {
    use ErrorKind::{FileTooLarge, QuotaExceeded, StorageFull};
    let error = error.downcast_ref::<io::Error>();
    error.is_some_and(|error| matches!(error.kind(), StorageFull | QuotaExceeded | FileTooLarge))
}

/// Whether a panic was caught: that of one request, or those that ended the engine.
fn is_panic(error: &(dyn Error + 'static)) -> bool {
    let of_llm = error.downcast_ref::<LlmError>();
    of_llm.is_some_and(|error| matches!(error, LlmError::Panicked(_) | LlmError::Failed))
        || matches!(error.downcast_ref::<ServeError>(), Some(ServeError::EngineFailed))
        || error.is::<Panicked>()
}

/// The text without its middle where it is longer than [`MOST_ERROR_CHARS`]: a mistyped argument can
/// be as long as a prompt, and what is wrong with it stands before or after it.
fn shortened(text: String) -> String {
    const END: usize = 200;
    let n_chars = text.chars().count();
    if n_chars <= MOST_ERROR_CHARS {
        return text;
    }
    let start: String = text.chars().take(MOST_ERROR_CHARS - END).collect();
    let end: String = text.chars().skip(n_chars - END).collect();
    format!("{start} [{} characters left out] {end}", n_chars - MOST_ERROR_CHARS)
}

/// Joins lines with single spaces and shows other control characters as escapes, so that text
/// from a hostile file can neither span lines nor move the cursor.
pub(crate) fn one_line(text: &str) -> String {
    let mut line = String::with_capacity(text.len());
    for word in text.split_whitespace() {
        if !line.is_empty() {
            line.push(' ');
        }
        for c in word.chars() {
            if c.is_control() {
                line.extend(c.escape_default());
            } else {
                line.push(c);
            }
        }
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_is_one_line_whatever_the_message_holds() {
        let failure = Failure::new("bad\n  tensor\x1b[2J name").hint("look\nagain");
        assert_eq!(
            failure.line().expect("a line"),
            "error: bad tensor\\u{1b}[2J name (hint: look again)\n"
        );
    }

    #[test]
    fn a_long_message_is_shown_without_its_middle() {
        let word = "ä".repeat(3 * MOST_ERROR_CHARS);
        let failure = Failure::new(format!("unexpected argument `{word}`")).hint("quote it");
        let line = failure.line().expect("a line");
        assert!(line.starts_with("error: unexpected argument `ää"), "{line}");
        assert!(line.ends_with("ää` (hint: quote it)\n"), "{line}");
        assert!(line.contains(" [4022 characters left out] "), "{line}");
        let whole = "x".repeat(MOST_ERROR_CHARS);
        let line = Failure::new(whole.clone()).line().expect("a line");
        assert_eq!(line, format!("error: {whole}\n"));
    }

    #[test]
    fn causes_are_told_once() {
        #[derive(Debug)]
        struct Outer(&'static str, std::fmt::Error);
        impl std::fmt::Display for Outer {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.0)
            }
        }
        impl Error for Outer {
            fn source(&self) -> Option<&(dyn Error + 'static)> {
                Some(&self.1)
            }
        }
        let cause = std::fmt::Error.to_string();
        let silent = Failure::from(Outer("config.json", std::fmt::Error));
        assert_eq!(silent.line().expect("a line"), format!("error: config.json: {cause}\n"));
        let repeated: &'static str = Box::leak(format!("x: {cause}").into_boxed_str());
        let told = Failure::from(Outer(repeated, std::fmt::Error));
        assert_eq!(told.line().expect("a line"), format!("error: x: {cause}\n"));
    }

    #[test]
    fn a_panic_of_ours_is_no_bad_input() {
        let panicked = || Panicked { part: "a step", message: "index out of bounds".to_owned() };
        for ours in [
            Failure::from(panicked()),
            Failure::from(LlmError::Panicked(panicked())),
            Failure::from(LlmError::Failed),
            Failure::from(ServeError::EngineFailed),
            Failure::from(io::Error::from(ErrorKind::StorageFull)),
        ] {
            assert_eq!(ours.code, INTERNAL, "{ours:?}");
        }
        assert_eq!(Failure::from(LlmError::Stopped).code, BAD_INPUT);
    }

    #[test]
    fn a_closed_pipe_is_silent_and_a_full_disk_is_not() {
        let closed = io::Error::from(ErrorKind::BrokenPipe);
        assert_eq!(Failure::stdout(&closed).line(), None);
        let full = io::Error::from(ErrorKind::StorageFull);
        assert!(Failure::stdout(&full).line().is_some());
    }

    #[test]
    fn the_line_says_whether_it_is_an_error_or_an_interruption() {
        let line = |failure: Failure| failure.line();
        let hinted = line(Failure::new("no x").hint("try y"));
        assert_eq!(hinted.as_deref(), Some("error: no x (hint: try y)\n"));
        let early = line(Failure::interrupted_early());
        assert_eq!(early.as_deref(), Some("interrupted: there is nothing to report yet\n"));
        assert_eq!(line(Failure::interrupted()), None);
    }
}
