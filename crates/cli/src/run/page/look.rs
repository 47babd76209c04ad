//! How output looks: colours and wrapping, as flags, environment and terminal allow.

use std::io::IsTerminal;

use clap::ValueEnum;

/// When colours and weights are used.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, ValueEnum)]
pub(crate) enum Color {
    /// On a terminal, unless `NO_COLOR` is set
    #[default]
    Auto,
    /// Also in a pipe
    Always,
    /// Nowhere
    Never,
}

/// How standard output looks.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Look {
    /// Whether lines are wrapped at the width of the terminal.
    pub(crate) wraps: bool,
    /// Whether text has colours and weights.
    pub(crate) has_styles: bool,
}

impl Look {
    /// How stdout looks.
    pub(crate) fn of_stdout(color: Color) -> Self {
        Self::choose(color, std::io::stdout().is_terminal(), |name| {
            std::env::var_os(name).and_then(|value| value.into_string().ok())
        })
    }

    /// `NO_COLOR` counts with any value but the empty one (no-color.org). A dumb terminal cannot
    /// move its cursor, so it wraps by itself.
    fn choose(color: Color, is_terminal: bool, env: impl Fn(&str) -> Option<String>) -> Self {
        let is_able = is_terminal && env("TERM").is_none_or(|term| term != "dumb");
        let is_colourless = env("NO_COLOR").is_some_and(|value| !value.is_empty());
        let has_styles = match color {
            Color::Auto => is_able && !is_colourless,
            Color::Always => true,
            Color::Never => false,
        };
        Self { wraps: is_able, has_styles }
    }

    /// Columns of the terminal now; `None` where nothing is wrapped.
    pub(crate) fn columns(self) -> Option<usize> {
        /// Columns of a terminal that does not say.
        const USUAL: usize = 80;
        if !self.wraps {
            return None;
        }
        let columns = rustix::termios::tcgetwinsize(std::io::stdout()).map(|size| size.ws_col);
        Some(columns.ok().filter(|n| *n > 0).map_or(USUAL, usize::from))
    }

    /// A remark of the program beside the conversation, as stderr shows it.
    pub(crate) fn remark(self, text: &str) -> String {
        if !std::io::stderr().is_terminal() {
            return text.to_owned();
        }
        self.dim(&super::wrapped(text, self.columns()))
    }

    fn dim(self, text: &str) -> String {
        match text.strip_suffix('\n') {
            _ if !self.has_styles => text.to_owned(),
            Some(line) => format!("\x1b[2m{line}\x1b[0m\n"),
            None => format!("\x1b[2m{text}\x1b[0m"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colours_follow_the_flag_the_environment_and_the_terminal() {
        // flag, terminal, NO_COLOR, TERM -> wraps, styles
        let table = [
            (Color::Auto, true, "", "xterm", true, true),
            (Color::Auto, true, "1", "xterm", true, false),
            (Color::Auto, true, "", "dumb", false, false),
            (Color::Auto, false, "", "xterm", false, false),
            (Color::Always, false, "1", "xterm", false, true),
            (Color::Never, true, "", "xterm", true, false),
        ];
        for (color, is_terminal, no_color, term, wraps, has_styles) in table {
            let env = |name: &str| match name {
                "TERM" => Some(term.to_owned()),
                "NO_COLOR" => Some(no_color.to_owned()),
                _ => None,
            };
            let look = Look::choose(color, is_terminal, env);
            assert_eq!(
                look,
                Look { wraps, has_styles },
                "{color:?} {is_terminal} {no_color:?} {term}"
            );
        }
        assert!(Look::choose(Color::Auto, true, |_| None).has_styles);
    }

    #[test]
    fn remarks_are_dim_where_there_are_styles() {
        let plain = Look { wraps: false, has_styles: false };
        assert_eq!(plain.dim("(kept)\n"), "(kept)\n");
        let styled = Look { wraps: false, has_styles: true };
        assert_eq!(styled.dim("(kept)\n"), "\x1b[2m(kept)\x1b[0m\n");
    }
}
