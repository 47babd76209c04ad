//! Commands of the interactive chat.

/// One parsed line.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Line<'a> {
    /// Nothing but blanks.
    Empty,
    /// A message to the model.
    Say(&'a str),
    /// `/help`.
    Help,
    /// `/clear`: forget the conversation.
    Clear,
    /// `/system TEXT`: other instructions, and a fresh conversation.
    System(&'a str),
    /// `/stats`: statistics after each answer, on or off.
    Stats,
    /// `/exit`.
    Exit,
    /// A command that does not exist.
    Unknown(&'a str),
}

/// Text of `/help`.
pub(crate) const HELP: &str = "  /help           this list
  /clear          forget the conversation so far
  /system TEXT    start again under these instructions (none: without)
  /stats          turn the statistics after each answer on or off
  /exit           leave (also Ctrl-D)
  Ctrl-C          stop the answer, keep the conversation
  //text          say `/text`
";

impl<'a> Line<'a> {
    /// Parses one line; commands start with a slash, and `//` escapes it.
    pub(crate) fn parse(line: &'a str) -> Self {
        let line = line.trim();
        if line.is_empty() {
            return Self::Empty;
        }
        let Some(rest) = line.strip_prefix('/') else {
            return Self::Say(line);
        };
        if rest.starts_with('/') {
            return Self::Say(rest);
        }
        let (word, argument) = rest.split_once(char::is_whitespace).unwrap_or((rest, ""));
        match (word, argument.trim()) {
            ("help" | "?", "") => Self::Help,
            ("clear" | "reset" | "new", "") => Self::Clear,
            ("stats", "") => Self::Stats,
            ("exit" | "quit" | "bye", "") => Self::Exit,
            ("system", text) => Self::System(text),
            _ => Self::Unknown(line),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_commands_only_with_a_single_slash() {
        let table = [
            ("", Line::Empty),
            ("  \t", Line::Empty),
            (" hello there ", Line::Say("hello there")),
            ("//etc/hosts", Line::Say("/etc/hosts")),
            ("/help", Line::Help),
            ("/clear", Line::Clear),
            ("/system  be brief ", Line::System("be brief")),
            ("/system", Line::System("")),
            ("/stats", Line::Stats),
            ("/exit", Line::Exit),
            ("/quit", Line::Exit),
            ("/exit now", Line::Unknown("/exit now")),
            ("/nonsense", Line::Unknown("/nonsense")),
        ];
        for (line, expected) in table {
            assert_eq!(Line::parse(line), expected, "{line:?}");
        }
    }

    #[test]
    fn help_names_every_command() {
        assert!(HELP.lines().all(|line| line.starts_with("  ")), "lines are indented alike");
        for command in ["/help", "/clear", "/system", "/stats", "/exit", "Ctrl-C", "Ctrl-D"] {
            assert!(HELP.contains(command), "{command}");
        }
    }
}
