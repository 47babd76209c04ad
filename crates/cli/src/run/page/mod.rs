//! The page on which an answer appears: wrapped and styled on a terminal, as it is anywhere else.
//!
//! ```text
//! text ──▶ without control characters ──▶ Markdown ──▶ Wrapper ──▶ Pen ──▶ stdout
//!                                         (chats in colour)
//! ```
//!
//! A model's text is hostile on a terminal: its control characters are shown, not carried out.

mod ink;
mod look;
mod markdown;
mod wrap;

use std::io::Write;

pub(crate) use look::{Color, Look};

use crate::failure::{Failure, Result};
use ink::{Ink, Style};
use markdown::Markdown;
use wrap::Wrapper;

/// Where the text of one answer goes.
#[derive(Debug)]
pub(crate) enum Page {
    /// Nowhere; the whole is printed later.
    Silent,
    /// To stdout, as it is.
    Plain {
        /// Whether the text so far ends with a newline.
        ends_line: bool,
        /// Whether there is no text so far.
        is_blank: bool,
    },
    /// To a terminal, or to a pipe that takes colours.
    Drawn(Box<Drawn>),
}

/// Text that is wrapped or styled while it grows.
#[derive(Debug)]
pub(crate) struct Drawn {
    look: Look,
    markdown: Option<Markdown>,
    wrapper: Wrapper,
    /// Whether the last text was a thought.
    thinks: bool,
}

impl Page {
    /// Standard output, as it looks; `is_markdown` where the text may hold marks.
    pub(crate) fn stdout(look: Look, is_markdown: bool) -> Self {
        if !look.wraps && !look.has_styles {
            return Self::Plain { ends_line: false, is_blank: true };
        }
        let markdown = (is_markdown && look.has_styles).then(Markdown::default);
        Self::Drawn(Box::new(Drawn { look, markdown, wrapper: Wrapper::default(), thinks: false }))
    }

    /// Writes more of the answer.
    ///
    /// # Errors
    ///
    /// When stdout cannot be written to.
    pub(crate) fn write(&mut self, text: &str) -> Result<()> {
        match self {
            _ if text.is_empty() => Ok(()),
            Self::Silent => Ok(()),
            Self::Plain { ends_line, is_blank } => {
                *is_blank = false;
                *ends_line = text.ends_with('\n');
                write(text)
            }
            Self::Drawn(drawn) => write(&drawn.draw(text)),
        }
    }

    /// Shows more of the thought before an answer to a person; a pipe gets the answer alone.
    ///
    /// # Errors
    ///
    /// As [`write`](Self::write).
    pub(crate) fn think(&mut self, text: &str) -> Result<()> {
        match self {
            Self::Drawn(drawn) if !text.is_empty() => write(&drawn.think(text)),
            _ => Ok(()),
        }
    }

    /// Writes a call of a tool on a line of its own.
    ///
    /// # Errors
    ///
    /// As [`write`](Self::write).
    pub(crate) fn call(&mut self, name: &str, arguments: &str) -> Result<()> {
        let is_in_line = match self {
            Self::Silent => return Ok(()),
            Self::Plain { ends_line, is_blank } => {
                !std::mem::replace(ends_line, true) && !std::mem::replace(is_blank, false)
            }
            Self::Drawn(drawn) => {
                let text = drawn.finish();
                write(&text)?;
                false
            }
        };
        let gap = if is_in_line { "\n" } else { "" };
        write(&format!("{gap}{}({})\n", without_controls(name), without_controls(arguments)))
    }

    /// Shows the text that is continued, on stderr, so that the answer goes on in its last line.
    pub(crate) fn echo(&mut self, text: &str) {
        match self {
            Self::Silent => {}
            Self::Plain { .. } => eprint!("{text}"),
            Self::Drawn(drawn) => eprint!("{}", drawn.draw(text)),
        }
    }

    /// Writes what is held back, and ends the last line where the answer does not.
    ///
    /// # Errors
    ///
    /// As [`write`](Self::write).
    pub(crate) fn finish(&mut self) -> Result<()> {
        match self {
            Self::Silent => Ok(()),
            Self::Plain { ends_line: true, .. } => Ok(()),
            Self::Plain { ends_line, .. } => {
                *ends_line = true;
                write("\n")
            }
            Self::Drawn(drawn) => write(&drawn.finish()),
        }
    }
}

impl Drawn {
    /// Bytes for the terminal that show more of the text.
    fn draw(&mut self, text: &str) -> String {
        let mut out = String::new();
        self.wrapper.resize(self.look.columns());
        if std::mem::take(&mut self.thinks) {
            self.wrapper.push(Ink::Newline, &mut out);
            self.wrapper.push(Ink::Newline, &mut out);
        }
        let text = without_controls(text);
        let wrapper = &mut self.wrapper;
        match &mut self.markdown {
            Some(markdown) => markdown.push(&text, &mut |ink| wrapper.push(ink, &mut out)),
            None => text.chars().for_each(|c| wrapper.push(plain(c), &mut out)),
        }
        out
    }

    /// Bytes for the terminal that show more of a thought.
    fn think(&mut self, text: &str) -> String {
        let mut out = String::new();
        self.wrapper.resize(self.look.columns());
        let style = Style { is_dim: self.look.has_styles, ..Style::default() };
        for c in without_controls(text).chars() {
            self.wrapper.push(if c == '\n' { Ink::Newline } else { Ink::Char(c, style) }, &mut out);
        }
        self.thinks = true;
        out
    }

    fn finish(&mut self) -> String {
        let mut out = String::new();
        let wrapper = &mut self.wrapper;
        if let Some(markdown) = &mut self.markdown {
            markdown.finish(&mut |ink| wrapper.push(ink, &mut out));
        }
        wrapper.finish(&mut out);
        if wrapper.is_in_line() {
            wrapper.push(Ink::Newline, &mut out);
        }
        out
    }
}

/// A text wrapped at the width of the terminal, without styles. A line with two columns, which two
/// spaces or more part, goes on below the second one.
pub(crate) fn wrapped(text: &str, columns: Option<usize>) -> String {
    let (mut wrapper, mut out) = (Wrapper::default(), String::new());
    wrapper.resize(columns);
    let (mut has_text, mut n_spaces) = (false, 0);
    for c in without_controls(text).chars() {
        match c {
            '\n' => (has_text, n_spaces) = (false, 0),
            ' ' => n_spaces += 1,
            _ => {
                if has_text && n_spaces >= 2 {
                    wrapper.push(Ink::Hang, &mut out);
                }
                (has_text, n_spaces) = (true, 0);
            }
        }
        wrapper.push(plain(c), &mut out);
    }
    out
}

fn plain(c: char) -> Ink {
    if c == '\n' { Ink::Newline } else { Ink::Char(c, Style::default()) }
}

/// Shows control characters as escapes, except newlines and tabs; carriage returns are left out.
fn without_controls(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\n' | '\t' => safe.push(c),
            '\r' => {}
            c if c.is_control() => safe.extend(c.escape_default()),
            c => safe.push(c),
        }
    }
    safe
}

fn write(text: &str) -> Result<()> {
    let mut stdout = std::io::stdout().lock();
    stdout
        .write_all(text.as_bytes())
        .and_then(|()| stdout.flush())
        .map_err(|error| Failure::stdout(&error))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drawn(look: Look, text: &str) -> String {
        let markdown = look.has_styles.then(Markdown::default);
        let mut drawn = Drawn { look, markdown, wrapper: Wrapper::default(), thinks: false };
        drawn.draw(text) + &drawn.finish()
    }

    #[test]
    fn control_characters_of_a_model_are_shown_and_not_carried_out() {
        let look = Look { wraps: true, has_styles: false };
        assert_eq!(drawn(look, "a\x1b[2J\x07b\r\n"), "a\\u{1b}[2J\\u{7}b\n");
    }

    #[test]
    fn rows_of_a_table_go_on_below_their_second_column() {
        let text = "  /a  one two three four\nplain words that go on\n";
        assert_eq!(wrapped(text, None), text);
        let out = wrapped(text, Some(20));
        let lines: Vec<&str> = out.lines().collect();
        assert!(lines[0].starts_with("  /a  one two"), "{out:?}");
        assert!(lines[1] == "      four" && lines[2].starts_with("plain"), "{out:?}");
        assert!(lines[3..].iter().all(|line| !line.starts_with(' ')), "{out:?}");
    }

    #[test]
    fn styles_without_a_terminal_do_not_wrap() {
        let look = Look { wraps: false, has_styles: true };
        let long = "word ".repeat(100);
        assert_eq!(drawn(look, &long), format!("{long}\n"));
        assert_eq!(drawn(look, "**a** b"), "\x1b[0;1ma\x1b[0m b\n");
    }

    #[test]
    fn a_page_without_styles_and_terminal_is_plain() {
        let look = Look { wraps: false, has_styles: false };
        assert!(matches!(Page::stdout(look, true), Page::Plain { ends_line: false, .. }));
    }

    #[test]
    fn marks_stay_where_there_are_no_styles() {
        let look = Look { wraps: true, has_styles: false };
        assert_eq!(drawn(look, "**a** `b`"), "**a** `b`\n");
    }
}
