//! Lines of the conversation: messages, commands, and the help that lists them.

use std::fmt::Write as _;

/// One parsed line.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum Line<'a> {
    /// Nothing but blanks.
    Empty,
    /// A message to the model.
    Say(&'a str),
    /// A command.
    Command(Command<'a>),
    /// A command that cannot be carried out, and why.
    Wrong(String),
}

/// A command with its argument.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Command<'a> {
    /// List commands and keys.
    Help,
    /// Show or change how answers are generated.
    Set(&'a str),
    /// Start again under other instructions.
    System(&'a str),
    /// Give the answers a form, or none.
    Json(&'a str),
    /// Let the model call functions, or none.
    Tools(&'a str),
    /// Write the conversation to a file.
    Save(&'a str),
    /// Go on with a conversation from a file.
    Load(&'a str),
    /// Answer the last question again.
    Retry,
    /// Take the last question and its answer back.
    Undo,
    /// Count the tokens of the conversation.
    Tokens,
    /// Copy the last answer.
    Copy,
    /// Forget the conversation.
    Clear,
    /// Statistics after each answer, on or off.
    Stats,
    /// Leave.
    Exit,
}

/// Whether words may follow a command.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Takes {
    Nothing,
    /// Perhaps this.
    Maybe(&'static str),
    /// This.
    One(&'static str),
}

/// One command of the table.
#[derive(Debug)]
struct Entry {
    name: &'static str,
    /// Other names, which the help does not list.
    also: &'static [&'static str],
    takes: Takes,
    help: &'static str,
    make: fn(&str) -> Command<'_>,
}

/// Every command, in the order of the help.
#[rustfmt::skip]
static COMMANDS: &[Entry] = &[
    Entry { name: "help", also: &["?", "h"], takes: Takes::Nothing,
        help: "list commands and keys", make: |_| Command::Help },
    Entry { name: "set", also: &[], takes: Takes::Maybe("NAME VALUE"),
        help: "change how answers are generated, as in `/set temperature 0.2`; without words, \
               show the settings", make: |words| Command::Set(words) },
    Entry { name: "system", also: &[], takes: Takes::Maybe("TEXT"),
        help: "start again under these instructions; without TEXT, under none",
        make: |words| Command::System(words) },
    Entry { name: "json", also: &[], takes: Takes::Maybe("SCHEMA|FILE"),
        help: "make every answer JSON of this schema, `{}` for any JSON; without words, free text",
        make: |words| Command::Json(words) },
    Entry { name: "tools", also: &[], takes: Takes::Maybe("FILE"),
        help: "let the model call the functions in a JSON file; without FILE, none",
        make: |words| Command::Tools(words) },
    Entry { name: "retry", also: &["again", "regenerate"], takes: Takes::Nothing,
        help: "answer the last question again", make: |_| Command::Retry },
    Entry { name: "undo", also: &[], takes: Takes::Nothing,
        help: "take back the last question and its answer", make: |_| Command::Undo },
    Entry { name: "save", also: &[], takes: Takes::One("FILE"),
        help: "write the conversation to a JSON file", make: |words| Command::Save(words) },
    Entry { name: "load", also: &["open"], takes: Takes::One("FILE"),
        help: "go on with a conversation from a file", make: |words| Command::Load(words) },
    Entry { name: "copy", also: &[], takes: Takes::Nothing,
        help: "copy the last answer to the clipboard of the terminal", make: |_| Command::Copy },
    Entry { name: "tokens", also: &["context"], takes: Takes::Nothing,
        help: "show how much of the context is used", make: |_| Command::Tokens },
    Entry { name: "stats", also: &[], takes: Takes::Nothing,
        help: "turn the statistics after each answer on or off", make: |_| Command::Stats },
    Entry { name: "clear", also: &["reset", "new"], takes: Takes::Nothing,
        help: "forget the conversation", make: |_| Command::Clear },
    Entry { name: "exit", also: &["quit", "bye", "q"], takes: Takes::Nothing,
        help: "leave", make: |_| Command::Exit },
];

/// Keys and other forms of input, in the order of the help.
pub(crate) static KEYS: &[(&str, &str)] = &[
    ("Enter", "send the message"),
    ("Alt-Enter", "begin a new line"),
    ("\"\"\"", "begin and end a message of several lines"),
    ("//text", "send `/text` as a message"),
    ("Up, Down, Ctrl-R", "go through and search earlier messages"),
    ("Tab", "complete a command"),
    ("Ctrl-C", "stop the answer, or empty the line; the conversation stays"),
    ("Ctrl-D", "leave"),
];

impl Entry {
    /// As it is typed, with a word for its argument.
    fn form(&self) -> String {
        match self.takes {
            Takes::Nothing => format!("/{}", self.name),
            Takes::Maybe(word) => format!("/{} [{word}]", self.name),
            Takes::One(word) => format!("/{} {word}", self.name),
        }
    }

    fn is_called(&self, name: &str) -> bool {
        self.name == name || self.also.contains(&name)
    }
}

/// Forms and meanings of all commands.
pub(crate) fn commands() -> impl Iterator<Item = (String, &'static str)> {
    COMMANDS.iter().map(|entry| (entry.form(), entry.help))
}

/// Names of commands that begin with `start`, slash included.
pub(crate) fn completions(start: &str) -> Vec<String> {
    let names = COMMANDS.iter().map(|entry| format!("/{}", entry.name));
    names.filter(|name| name.starts_with(start)).collect()
}

/// Text of `/help`, a line or more for each command and key.
pub(crate) fn help() -> String {
    let keys = KEYS.iter().map(|(key, help)| ((*key).to_owned(), *help));
    let rows: Vec<(String, &str)> = commands().chain(keys).collect();
    let width = rows.iter().map(|(form, _)| form.chars().count()).max().unwrap_or(0);
    let mut text = String::new();
    for (form, help) in rows {
        writeln!(text, "  {form:<width$}  {help}").expect("invariant: into a string");
    }
    text
}

/// The mark at both ends of a message of several lines.
const BLOCK: &str = "\"\"\"";

/// Whether a line begins a block that has not ended yet.
pub(crate) fn is_open_block(line: &str) -> bool {
    let line = line.trim();
    line.strip_prefix(BLOCK).is_some_and(|rest| !rest.ends_with(BLOCK))
}

impl<'a> Line<'a> {
    /// Parses one line, which holds newlines where it was typed or pasted so. Commands start with a
    /// slash and are one line; `//` escapes the slash. A block between `"""` is a message, whatever
    /// it holds.
    pub(crate) fn parse(line: &'a str) -> Self {
        let line = line.trim();
        if let Some(block) = line.strip_prefix(BLOCK) {
            let block = block.strip_suffix(BLOCK).unwrap_or(block).trim_matches('\n');
            return if block.trim().is_empty() { Self::Empty } else { Self::Say(block) };
        }
        if line.is_empty() {
            return Self::Empty;
        }
        let Some(rest) = line.strip_prefix('/') else {
            return Self::Say(line);
        };
        if rest.starts_with('/') {
            return Self::Say(rest);
        }
        let (name, words) = rest.split_once(char::is_whitespace).unwrap_or((rest, ""));
        let words = words.trim();
        let Some(entry) = COMMANDS.iter().find(|entry| entry.is_called(name)) else {
            return Self::Wrong(unknown(name));
        };
        match entry.takes {
            Takes::Nothing if !words.is_empty() => {
                Self::Wrong(format!("`/{name}` takes no words; got `{}`", first_line(words)))
            }
            Takes::One(word) if words.is_empty() => {
                Self::Wrong(format!("`/{name}` needs a {word}: `{}`", entry.form()))
            }
            _ => Self::Command((entry.make)(words)),
        }
    }
}

/// Names the command that was probably meant.
fn unknown(name: &str) -> String {
    let name = first_line(name);
    let near = COMMANDS
        .iter()
        .map(|entry| (strsim::damerau_levenshtein(entry.name, &name), entry))
        .filter(|(distance, entry)| *distance <= entry.name.len().div_ceil(3))
        .min_by_key(|(distance, _)| *distance);
    match near {
        Some((_, entry)) => format!("no command `/{name}`; did you mean `/{}`?", entry.name),
        None => format!(
            "no command `/{name}`; /help lists what there is, and `//{name}` sends it as a message"
        ),
    }
}

/// The beginning of a text, short enough for a line of the terminal.
pub(crate) fn first_line(text: &str) -> String {
    const MOST: usize = 40;
    let line = text.lines().next().unwrap_or_default();
    let is_cut = line.chars().count() > MOST || text.lines().nth(1).is_some();
    let mut short: String = line.chars().take(MOST).filter(|c| !c.is_control()).collect();
    if is_cut {
        short.push('…');
    }
    short
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
            ("one\n\ntwo", Line::Say("one\n\ntwo")),
            ("//etc/hosts", Line::Say("/etc/hosts")),
            ("/help", Line::Command(Command::Help)),
            ("/?", Line::Command(Command::Help)),
            ("/system  be brief ", Line::Command(Command::System("be brief"))),
            ("/system", Line::Command(Command::System(""))),
            ("/set temperature 0.2", Line::Command(Command::Set("temperature 0.2"))),
            ("/save a b.json", Line::Command(Command::Save("a b.json"))),
            ("/quit", Line::Command(Command::Exit)),
        ];
        for (line, expected) in table {
            assert_eq!(Line::parse(line), expected, "{line:?}");
        }
    }

    #[test]
    fn a_block_is_a_message_whatever_it_holds() {
        for line in ["\"\"\"/exit\"\"\"", " \"\"\"\n/exit\n\"\"\" "] {
            assert_eq!(Line::parse(line), Line::Say("/exit"), "{line:?}");
        }
        assert_eq!(Line::parse("\"\"\"  two\n  lines\"\"\""), Line::Say("  two\n  lines"));
        assert_eq!(Line::parse("\"\"\"\n\"\"\""), Line::Empty);
        for (line, is_open) in [
            ("\"\"\"", true),
            ("\"\"\"one\ntwo", true),
            ("\"\"\"one\ntwo\"\"\"", false),
            ("\"\"\"\"\"\"", false),
            ("say \"\"\"", false),
            ("", false),
        ] {
            assert_eq!(is_open_block(line), is_open, "{line:?}");
        }
    }

    #[test]
    fn an_unknown_command_suggests_the_nearest() {
        for (line, parts) in [
            ("/retyr", &["`/retyr`", "`/retry`?"][..]),
            ("/sytem be brief", &["`/system`?"]),
            ("/exi", &["`/exit`?"]),
            ("/etc/passwd", &["/help", "`//etc/passwd` sends it"]),
            ("/exit now", &["takes no words"]),
            ("/save", &["needs a FILE", "/save FILE"]),
        ] {
            let Line::Wrong(why) = Line::parse(line) else { panic!("{line} is no error") };
            assert!(parts.iter().all(|part| why.contains(part)), "{line}: {why}");
        }
    }

    #[test]
    fn help_and_completion_know_every_command_and_no_two_share_a_name() {
        let help = help();
        assert!(help.lines().all(|line| line.starts_with("  ")), "lines are indented alike");
        for (form, meaning) in commands() {
            assert!(help.contains(&form) && help.contains(meaning), "{form}");
        }
        let mut names: Vec<&str> = Vec::new();
        for entry in COMMANDS {
            names.extend(entry.also.iter().chain([&entry.name]));
            assert_eq!(completions(&format!("/{}", entry.name)), [format!("/{}", entry.name)]);
        }
        let n_names = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), n_names, "{names:?}");
        assert_eq!(completions("/s"), ["/set", "/system", "/save", "/stats"]);
    }

    #[test]
    fn the_tables_in_the_documentation_are_those_of_the_code() {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/chat.md");
        let page = std::fs::read_to_string(&path).expect("the page");
        let keys = KEYS.iter().map(|(key, help)| ((*key).to_owned(), *help));
        let keys: Vec<_> = keys.collect();
        let mut expected = page.clone();
        for (name, rows) in [("commands", commands().collect()), ("keys", keys)] {
            let mut table = format!("| {name} | |\n|---|---|\n");
            for (form, help) in rows {
                writeln!(table, "| `{form}` | {help} |").expect("into a string");
            }
            let begin = expected.find(&format!("<!-- {name}")).expect("the beginning");
            let begin = begin + expected[begin..].find('\n').expect("its line") + 1;
            let end = expected.find(&format!("<!-- end of {name} -->")).expect("the end");
            expected.replace_range(begin..end, &table);
        }
        if std::env::var_os("UPDATE_CHAT").is_some() {
            return std::fs::write(&path, expected).expect("written");
        }
        assert!(
            page == expected,
            "docs/chat.md is not up to date: UPDATE_CHAT=1 writes the tables"
        );
    }

    #[test]
    fn long_texts_are_quoted_by_their_beginning() {
        assert_eq!(first_line("short"), "short");
        assert_eq!(first_line("one\ntwo"), "one…");
        assert_eq!(first_line(&"x".repeat(99)), format!("{}…", "x".repeat(40)));
        assert_eq!(first_line("a\u{1b}[2J"), "a[2J");
    }
}
