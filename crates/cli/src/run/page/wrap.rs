//! Wraps a growing text between words, at the width of the terminal.
//!
//! A character is written as soon as it comes. When a word does not fit, its beginning is erased
//! and written again on the next line, in the same write, so that nothing flickers:
//!
//! ```text
//! ┌────────────────────┐        ┌────────────────────┐
//! │ The old gentlem    │  "an"  │ The old            │
//! │                    │  ───▶  │ gentleman          │
//! └────────────────────┘        └────────────────────┘
//! ```
//!
//! The last column stays empty: terminals differ in where the cursor is after it. A word longer than a
//! line is cut. Wide characters (CJK, emoji) take two columns and are words of their own.

use unicode_width::UnicodeWidthChar;

use super::ink::{Ink, Pen, Style};

/// Narrowest terminal where wrapping makes sense, in columns.
const LEAST_COLUMNS: usize = 8;

/// The state of the current line.
#[derive(Debug, Default)]
pub(super) struct Wrapper {
    pen: Pen,
    /// Columns of a line; `None` where nothing is wrapped.
    columns: Option<usize>,
    /// Columns written in this line.
    col: usize,
    /// Columns before the text of wrapped lines.
    hang: usize,
    is_verbatim: bool,
    /// The last word, as far as it can still move to the next line.
    word: Vec<(char, Style)>,
    word_cols: usize,
}

impl Wrapper {
    /// Sets the width of the terminal, in columns; a change counts from the next character on.
    pub(super) fn resize(&mut self, columns: Option<usize>) {
        self.columns = columns.filter(|n| *n >= LEAST_COLUMNS).map(|n| n - 1);
    }

    /// Whether something stands in this line.
    pub(super) fn is_in_line(&self) -> bool {
        self.col > 0
    }

    /// Writes a piece.
    pub(super) fn push(&mut self, ink: Ink, out: &mut String) {
        match ink {
            Ink::Newline => {
                self.break_line(out);
                (self.hang, self.is_verbatim) = (0, false);
            }
            Ink::Hang => {
                self.hang = match self.columns {
                    // Half of the line is left for the text.
                    Some(columns) => self.col.min(columns / 2),
                    None => 0,
                }
            }
            Ink::Verbatim => self.is_verbatim = true,
            Ink::Char('\t', style) => {
                for _ in self.col % 4..4 {
                    self.space(style, out);
                }
            }
            Ink::Char(' ', style) => self.space(style, out),
            Ink::Char(c, style) => self.character(c, style, out),
        }
    }

    /// Ends with plain style.
    pub(super) fn finish(&mut self, out: &mut String) {
        self.pen.turn(Style::default(), out);
        self.word.clear();
        self.word_cols = 0;
    }

    fn space(&mut self, style: Style, out: &mut String) {
        self.end_word();
        // A space that does not fit is the break between two lines.
        if self.is_verbatim || self.columns.is_none_or(|columns| self.col < columns) {
            self.pen.put(' ', style, out);
            self.col += 1;
        }
    }

    fn character(&mut self, c: char, style: Style, out: &mut String) {
        let n_cols = c.width().unwrap_or(0);
        let is_wide = n_cols == 2;
        if is_wide {
            self.end_word();
        }
        if let Some(columns) = self.columns
            && !self.is_verbatim
            && self.col + n_cols > columns
        {
            self.carry_over(columns.saturating_sub(n_cols), out);
        }
        self.pen.put(c, style, out);
        self.col += n_cols;
        self.word.push((c, style));
        self.word_cols += n_cols;
        if is_wide {
            self.end_word();
        }
    }

    /// Begins a new line with the word that is being written, if it fits there into `room` columns
    /// and something stands before it here.
    fn carry_over(&mut self, room: usize, out: &mut String) {
        let stands_alone = self.col <= self.word_cols + self.hang;
        let moves = !self.word.is_empty() && !stands_alone && self.hang + self.word_cols <= room;
        let word = std::mem::take(&mut self.word);
        if moves {
            out.push_str(&format!("\x1b[{}D\x1b[K", self.word_cols));
        }
        self.break_line(out);
        for _ in 0..self.hang {
            self.pen.put(' ', Style::default(), out);
        }
        self.col = self.hang;
        if moves {
            for (c, style) in word {
                let n_cols = c.width().unwrap_or(0);
                self.pen.put(c, style, out);
                self.col += n_cols;
                self.word_cols += n_cols;
                self.word.push((c, style));
            }
        }
    }

    fn break_line(&mut self, out: &mut String) {
        out.push('\n');
        self.col = 0;
        self.end_word();
    }

    fn end_word(&mut self) {
        self.word.clear();
        self.word_cols = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The lines that a terminal shows; it knows the sequences of the wrapper and no others.
    fn shown(out: &str) -> Vec<String> {
        let mut lines = vec![String::new()];
        let mut chars = out.chars();
        while let Some(c) = chars.next() {
            let line = lines.last_mut().expect("a line");
            match c {
                '\n' => lines.push(String::new()),
                '\x1b' => {
                    let sequence: String =
                        chars.by_ref().take_while_inclusive(|c| !c.is_ascii_alphabetic());
                    if let Some(n) = sequence.strip_prefix('[').and_then(|s| s.strip_suffix('D')) {
                        let mut n: usize = n.parse().expect("a number");
                        while n > 0 {
                            n -= line.pop().expect("a character").width().unwrap_or(0);
                        }
                    }
                }
                c => line.push(c),
            }
        }
        lines
    }

    trait TakeWhileInclusive: Iterator<Item = char> {
        fn take_while_inclusive(&mut self, more: impl Fn(char) -> bool) -> String {
            let mut text = String::new();
            for c in self {
                text.push(c);
                if c != '[' && !more(c) {
                    break;
                }
            }
            text
        }
    }
    impl<I: Iterator<Item = char>> TakeWhileInclusive for I {}

    fn wrapped(columns: usize, text: &str) -> Vec<String> {
        let (mut wrapper, mut out) = (Wrapper::default(), String::new());
        wrapper.resize(Some(columns));
        for c in text.chars() {
            let ink = if c == '\n' { Ink::Newline } else { Ink::Char(c, Style::default()) };
            wrapper.push(ink, &mut out);
        }
        wrapper.finish(&mut out);
        shown(&out)
    }

    #[test]
    fn lines_break_between_words() {
        let lines = wrapped(20, "The old gentleman had not been there.\nHe was.");
        assert_eq!(lines, ["The old gentleman ", "had not been there.", "He was."]);
        assert_eq!(wrapped(20, "1234567890 12345678 x"), ["1234567890 12345678", "x"]);
        assert_eq!(wrapped(20, "a  \n b"), ["a  ", " b"]);
    }

    #[test]
    fn a_word_longer_than_a_line_is_cut_and_no_character_is_lost() {
        let word = "x".repeat(50);
        assert_eq!(wrapped(20, &word), ["x".repeat(19), "x".repeat(19), "x".repeat(12)]);
        let lines = wrapped(20, &format!("an {word}"));
        assert_eq!(lines.concat().replace("an ", ""), word);
        assert!(lines.iter().all(|line| line.len() < 20), "{lines:?}");
    }

    #[test]
    fn wide_characters_take_two_columns_and_break_anywhere() {
        let lines = wrapped(10, "你好世界你好世界");
        assert_eq!(lines, ["你好世界", "你好世界"]);
        let lines =
            wrapped(10, "e\u{301}e\u{301}e\u{301}e\u{301} e\u{301}e\u{301}e\u{301}e\u{301}");
        assert_eq!(lines.len(), 1, "accents take no column: {lines:?}");
    }

    #[test]
    fn a_list_goes_on_below_its_text_and_code_is_not_wrapped() {
        let (mut wrapper, mut out) = (Wrapper::default(), String::new());
        wrapper.resize(Some(20));
        let mut push = |inks: &[Ink], text: &str| {
            inks.iter().for_each(|ink| wrapper.push(*ink, &mut out));
            let chars = text.chars().map(|c| Ink::Char(c, Style::default()));
            chars.for_each(|ink| wrapper.push(ink, &mut out));
        };
        push(&[], "• ");
        push(&[Ink::Hang], "one two three four five");
        push(&[Ink::Newline, Ink::Verbatim], "let a = code_that_is(longer);");
        push(&[Ink::Newline], "plain");
        let lines = shown(&out);
        let expected =
            ["• one two three ", "  four five", "let a = code_that_is(longer);", "plain"];
        assert_eq!(lines, expected);
    }

    #[test]
    fn every_width_keeps_every_word() {
        let text =
            "It was a dark and stormy night; the rain fell in torrents, except at intervals.";
        for columns in 0..100 {
            let lines = wrapped(columns, text);
            let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<String>();
            assert_eq!(words(&lines.concat()), words(text), "{columns} columns");
            if columns >= LEAST_COLUMNS {
                assert!(lines.iter().all(|line| line.len() < columns), "{columns}: {lines:?}");
            }
        }
    }
}
