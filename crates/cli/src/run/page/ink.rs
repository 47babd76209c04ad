//! Characters with a style, and the escape sequences that terminals draw them by.

/// Weight and colour of a character.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct Style {
    pub(crate) is_bold: bool,
    pub(crate) is_italic: bool,
    /// Less bright than text, for marks.
    pub(crate) is_dim: bool,
    /// The colour of code.
    pub(crate) is_code: bool,
}

/// The smallest pieces of a page.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Ink {
    /// A character; never a control character.
    Char(char, Style),
    /// The end of a line.
    Newline,
    /// Where this line is wrapped, it goes on below its last character so far.
    Hang,
    /// This line is not wrapped between words.
    Verbatim,
}

/// Writes styles as escape sequences, only where they change.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Pen {
    style: Style,
}

impl Pen {
    /// Writes a character.
    pub(super) fn put(&mut self, c: char, style: Style, out: &mut String) {
        self.turn(style, out);
        out.push(c);
    }

    /// Changes to a style.
    pub(super) fn turn(&mut self, style: Style, out: &mut String) {
        if self.style == style {
            return;
        }
        self.style = style;
        out.push_str("\x1b[0");
        let Style { is_bold, is_italic, is_dim, is_code } = style;
        for (is_on, code) in [(is_bold, ";1"), (is_dim, ";2"), (is_italic, ";3"), (is_code, ";36")]
        {
            if is_on {
                out.push_str(code);
            }
        }
        out.push('m');
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn styles_are_written_where_they_change() {
        let bold = Style { is_bold: true, ..Style::default() };
        let (mut pen, mut out) = (Pen::default(), String::new());
        for (c, style) in [('a', Style::default()), ('b', bold), ('c', bold)] {
            pen.put(c, style, &mut out);
        }
        pen.turn(Style::default(), &mut out);
        assert_eq!(out, "a\x1b[0;1mbc\x1b[0m");
    }
}
