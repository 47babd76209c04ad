//! Markdown as it arrives, turned into styled characters: headings, lists, quotes, code, bold and
//! italic text.
//!
//! The text comes in pieces, so each mark is decided as soon as the characters after it allow, and
//! nothing that is written changes later. At most the beginning of a line (`## `, `12. `) or a run
//! of marks (`**`) is held back. Where a full parser would look further ahead, this one gives up
//! early: an open mark counts to the end of its line. Tables, links and HTML stay as they are.

use super::ink::{Ink, Style};

/// A parser between two pieces of text.
#[derive(Debug, Default)]
pub(super) struct Markdown {
    /// Whether the current line has been decided.
    is_in_line: bool,
    /// Characters that wait for the next ones: the beginning of a line, or a run of marks.
    held: String,
    fence: Option<Fence>,
    is_heading: bool,
    is_bold: bool,
    is_italic: bool,
    /// Backticks that opened the code.
    code: Option<usize>,
    /// The character before the held ones.
    before: Option<char>,
}

/// The marks around a block of code.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
struct Fence {
    mark: char,
    len: usize,
}

/// The kind of a line.
#[derive(Clone, Debug, Eq, PartialEq)]
enum Kind {
    Text,
    /// Marks of a heading are left out.
    Heading,
    /// A list item: blanks before its mark.
    Bullet(usize),
    /// A numbered item, written as it is: bytes before its text.
    Numbered(usize),
    Quote,
    /// A row of a table.
    Row,
    /// The whole line, where a block of code begins.
    Opens(Fence),
    /// The whole line, where it ends.
    Closes,
}

const DIM: Style = Style { is_bold: false, is_italic: false, is_dim: true, is_code: false };
const CODE: Style = Style { is_bold: false, is_italic: false, is_dim: false, is_code: true };

impl Markdown {
    /// Takes the next piece of the text.
    pub(super) fn push(&mut self, text: &str, ink: &mut impl FnMut(Ink)) {
        for c in text.chars() {
            self.character(c, ink);
        }
    }

    /// Ends the text.
    pub(super) fn finish(&mut self, ink: &mut impl FnMut(Ink)) {
        self.settle(true, ink);
        *self = Self::default();
    }

    fn character(&mut self, c: char, ink: &mut impl FnMut(Ink)) {
        if c == '\n' {
            self.settle(true, ink);
            ink(Ink::Newline);
            let fence = self.fence;
            *self = Self { fence, ..Self::default() };
        } else if self.is_in_line {
            self.inline(c, ink);
        } else {
            self.held.push(c);
            self.settle(false, ink);
        }
    }

    /// Decides about held characters: the kind of the line, or a run of marks at its end.
    fn settle(&mut self, is_end: bool, ink: &mut impl FnMut(Ink)) {
        if self.is_in_line {
            if is_end {
                self.marks(None, ink);
            }
            return;
        }
        let Some(kind) = kind(&self.held, self.fence, is_end) else { return };
        let held = std::mem::take(&mut self.held);
        self.is_in_line = true;
        let mut rest = held.as_str();
        let mut write = |text: &str, style| text.chars().for_each(|c| ink(Ink::Char(c, style)));
        match kind {
            Kind::Opens(fence) => {
                self.fence = Some(fence);
                write(rest, DIM);
                rest = "";
            }
            Kind::Closes => {
                self.fence = None;
                write(rest, DIM);
                rest = "";
            }
            Kind::Heading => {
                self.is_heading = true;
                rest = rest.trim_start_matches(['#', ' ']);
            }
            Kind::Bullet(indent) => {
                write(&rest[..indent], Style::default());
                write("• ", Style::default());
                ink(Ink::Hang);
                rest = &rest[indent + 2..];
            }
            Kind::Numbered(n_bytes) => {
                write(&rest[..n_bytes], Style::default());
                ink(Ink::Hang);
                rest = &rest[n_bytes..];
            }
            Kind::Quote => {
                rest = rest.trim_start_matches(' ');
                rest = rest.strip_prefix("> ").or(rest.strip_prefix('>')).unwrap_or(rest);
                write("│ ", DIM);
                ink(Ink::Hang);
            }
            Kind::Row => ink(Ink::Verbatim),
            Kind::Text if self.fence.is_some() => ink(Ink::Verbatim),
            Kind::Text => {}
        }
        for c in rest.chars() {
            self.inline(c, ink);
        }
        if is_end {
            self.marks(None, ink);
        }
    }

    /// A character within a line.
    fn inline(&mut self, c: char, ink: &mut impl FnMut(Ink)) {
        if self.fence.is_some() {
            ink(Ink::Char(c, CODE));
            return;
        }
        let is_mark = matches!(c, '*' | '_' | '`' | '\\') && (self.code.is_none() || c == '`');
        let is_run = is_mark && c != '\\' && self.held.chars().all(|held| held == c);
        if self.held.is_empty() && !is_mark {
            self.write(c, ink);
        } else if self.held.is_empty() || is_run {
            self.held.push(c);
        } else if self.held == "\\" {
            self.held.clear();
            if !matches!(c, '*' | '_' | '`' | '#' | '~') {
                self.write('\\', ink);
            }
            self.write(c, ink);
        } else {
            self.marks(Some(c), ink);
            self.inline(c, ink);
        }
    }

    /// Decides about a run of marks, now that the character after it is known.
    fn marks(&mut self, after: Option<char>, ink: &mut impl FnMut(Ink)) {
        let held = std::mem::take(&mut self.held);
        let Some(mark) = held.chars().next() else { return };
        let len = held.len();
        let is_done = match mark {
            '`' => self.code_marks(len),
            '*' | '_' => self.emphasis(mark, len, after),
            _ => false,
        };
        if !is_done {
            held.chars().for_each(|c| self.write(c, ink));
        }
    }

    fn code_marks(&mut self, len: usize) -> bool {
        self.code = match self.code {
            None => Some(len),
            Some(open) if open == len => None,
            Some(_) => return false,
        };
        true
    }

    fn emphasis(&mut self, mark: char, len: usize, after: Option<char>) -> bool {
        let is_blank = |c: Option<char>| c.is_none_or(char::is_whitespace);
        let is_word = |c: Option<char>| c.is_some_and(char::is_alphanumeric);
        let (bold, italic) = (len >= 2, len != 2);
        let is_open = (!bold || self.is_bold) && (!italic || self.is_italic);
        // `snake_case` and `2*3` are no emphasis; `**` within a word is, as where words have no
        // spaces between them.
        let is_inside = is_word(self.before) && (mark == '_' || len == 1);
        let closes = is_open
            && !is_blank(self.before)
            && !(mark == '_' && is_word(self.before) && is_word(after));
        let opens = !is_open && !is_blank(after) && !is_inside;
        if len > 3 || !(closes || opens) {
            return false;
        }
        self.is_bold = if bold { opens } else { self.is_bold };
        self.is_italic = if italic { opens } else { self.is_italic };
        true
    }

    fn write(&mut self, c: char, ink: &mut impl FnMut(Ink)) {
        self.before = Some(c);
        let style = Style {
            is_bold: self.is_bold || self.is_heading,
            is_italic: self.is_italic,
            is_dim: false,
            is_code: self.code.is_some(),
        };
        ink(Ink::Char(c, style));
    }
}

/// The kind of a line that begins so; `None` where more of it is needed.
fn kind(held: &str, fence: Option<Fence>, is_end: bool) -> Option<Kind> {
    let undecided = |kind: Kind| if is_end { Some(kind) } else { None };
    let text = held.trim_start_matches(' ');
    let indent = held.len() - text.len();
    let Some(first) = text.chars().next() else { return undecided(Kind::Text) };
    let n_marks = text.chars().take_while(|c| *c == first).count();
    let rest = &text[n_marks * first.len_utf8()..];
    if let Some(fence) = fence {
        return match first == fence.mark && rest.trim().is_empty() {
            true if n_marks >= fence.len => undecided(Kind::Closes),
            true if rest.is_empty() => undecided(Kind::Text),
            _ => Some(Kind::Text),
        };
    }
    match first {
        '#' if n_marks <= 6 && rest.is_empty() => undecided(Kind::Text),
        '#' if n_marks <= 6 && rest.starts_with(' ') => Some(Kind::Heading),
        '`' | '~' if n_marks >= 3 && (first == '~' || !rest.contains('`')) => {
            undecided(Kind::Opens(Fence { mark: first, len: n_marks }))
        }
        '`' | '~' if rest.is_empty() => undecided(Kind::Text),
        '-' | '*' | '+' if n_marks == 1 && rest.starts_with(' ') => Some(Kind::Bullet(indent)),
        '-' | '*' | '+' if n_marks <= 3 && rest.is_empty() => undecided(Kind::Text),
        '>' if rest.is_empty() => undecided(Kind::Quote),
        '>' => Some(Kind::Quote),
        '|' => Some(Kind::Row),
        '0'..='9' => {
            let digits = text.trim_start_matches(|c: char| c.is_ascii_digit());
            let n_digits = text.len() - digits.len();
            match digits {
                _ if n_digits > 9 => Some(Kind::Text),
                "" | "." | ")" => undecided(Kind::Text),
                _ if digits.starts_with(". ") || digits.starts_with(") ") => {
                    Some(Kind::Numbered(indent + n_digits + 2))
                }
                _ => Some(Kind::Text),
            }
        }
        _ => Some(Kind::Text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Styled text with its styles in words: `B` bold, `I` italic, `C` code, `D` dim.
    fn drawn(pieces: &[&str]) -> String {
        let (mut markdown, mut text, mut last) =
            (Markdown::default(), String::new(), "".to_owned());
        let mut ink = |ink: Ink| match ink {
            Ink::Newline => text.push('\n'),
            Ink::Hang => text.push('→'),
            Ink::Verbatim => text.push('='),
            Ink::Char(c, style) => {
                let mut now = String::new();
                for (is_on, name) in [
                    (style.is_bold, 'B'),
                    (style.is_italic, 'I'),
                    (style.is_code, 'C'),
                    (style.is_dim, 'D'),
                ] {
                    if is_on {
                        now.push(name);
                    }
                }
                if now != last {
                    text.push_str(&format!("<{now}>"));
                    last = now;
                }
                text.push(c);
            }
        };
        for piece in pieces {
            markdown.push(piece, &mut ink);
        }
        markdown.finish(&mut ink);
        text
    }

    #[test]
    fn light_markdown_is_styled() {
        let table = [
            ("plain text", "plain text"),
            ("a **bold** word", "a <B>bold<> word"),
            ("an *italic* and _slanted_ word", "an <I>italic<> and <I>slanted<> word"),
            ("***both***", "<BI>both"),
            ("**bold *and italic* text**", "<B>bold <BI>and italic<B> text"),
            ("`let x = a*b*c;` is code", "<C>let x = a*b*c;<> is code"),
            ("``a`b``", "<C>a`b"),
            ("## A *heading*", "<B>A <BI>heading"),
            ("#hashtag", "#hashtag"),
            ("- one\n- two", "• →one\n• →two"),
            ("  * nested", "  • →nested"),
            ("12. twelve", "12. →twelve"),
            ("3.14 is pi", "3.14 is pi"),
            ("> quoted", "<D>│ →<>quoted"),
            ("| a | b |", "=| a | b |"),
            ("**Bold** line", "<B>Bold<> line"),
            ("你好**世界**。", "你好<B>世界<>。"),
        ];
        for (text, expected) in table {
            assert_eq!(drawn(&[text]), expected, "{text:?}");
        }
    }

    #[test]
    fn marks_that_are_no_emphasis_stay() {
        for text in [
            "2 * 3 * 4",
            "2*3*4",
            "snake_case_name",
            "a__b__c",
            "a * b",
            "*",
            "**",
            "****",
            "* ",
            "5 ** 2",
            "\\(x\\)",
            "C:\\temp",
            "---",
            "-",
            "1.",
            "a_b",
            "100%",
            "",
        ] {
            let drawn = drawn(&[text]).replace("→", "");
            assert_eq!(drawn.replace("• ", "* "), text, "{text:?}");
        }
        assert_eq!(drawn(&["1 \\* 2 \\_"]), "1 * 2 _");
    }

    #[test]
    fn code_blocks_keep_their_text() {
        let text = "```rust\nlet a = **b;\n\n  # no heading\n```\nafter *it*";
        let expected = "<D>```rust\n=<C>let a = **b;\n=\n=  # no heading\n<D>```\n<>after <I>it";
        assert_eq!(drawn(&[text]), expected);
        let tildes = drawn(&["~~~\n```\n~~~"]);
        assert_eq!(tildes, "<D>~~~\n=<C>```\n<D>~~~");
    }

    #[test]
    fn an_open_mark_ends_with_its_line() {
        assert_eq!(drawn(&["an **open\nmark"]), "an <B>open\n<>mark");
        assert_eq!(drawn(&["an `open\nmark"]), "an <C>open\n<>mark");
    }

    #[test]
    fn the_pieces_of_a_text_do_not_matter() {
        let text = "# Title\n\nSome **bold**, *it* and `code`.\n\n1. one\n2. two\n   - a\n\n```py\nx = `1`\n```\n> q\n* * *\n2 * 3\n";
        let whole = drawn(&[text]);
        let letters: Vec<String> = text.chars().map(String::from).collect();
        let letters: Vec<&str> = letters.iter().map(String::as_str).collect();
        assert_eq!(drawn(&letters), whole);
        for at in text.char_indices().map(|(at, _)| at) {
            assert_eq!(drawn(&[&text[..at], &text[at..]]), whole, "cut at {at}");
        }
    }

    #[test]
    fn little_is_held_back() {
        let mut markdown = Markdown::default();
        let mut n_written = 0;
        let text = "Some **bold** text with a `word` of code, and more.";
        for (n_read, c) in text.chars().enumerate() {
            let mut buffer = [0; 4];
            let mut count = |ink: Ink| n_written += usize::from(matches!(ink, Ink::Char(..)));
            markdown.push(c.encode_utf8(&mut buffer), &mut count);
            assert!(n_read + 1 - n_written <= 7, "marks that were left out, and two held");
        }
    }
}
