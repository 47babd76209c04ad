//! The conversation in a terminal, through the real binary.

use std::fs::File;
use std::path::Path;
use std::process::Stdio;

use crate::common::terminal::Terminal;
use crate::common::{command, pelton, signal};

/// Short answers of the embedded model.
const SHORT: &[&str] = &["run", "--temperature", "0", "-n", "6", "--color", "never"];

/// A terminal with a conversation of short answers.
fn chat(more: &[&str]) -> Terminal {
    Terminal::start(200, &[SHORT, more].concat())
}

/// Saves the conversation, and reads questions and answers from the file.
fn saved(terminal: &mut Terminal) -> Vec<(String, String)> {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("chat.json");
    terminal.say(format!("/save {}\r", file.display()));
    let text = std::fs::read(&file).expect("a saved conversation");
    let object: serde_json::Value = serde_json::from_slice(&text).expect("JSON");
    let messages = object["messages"].as_array().expect("messages");
    let content =
        |message: &serde_json::Value| message["content"].as_str().expect("text").to_owned();
    let said: Vec<_> = messages.iter().filter(|message| message["role"] != "system").collect();
    said.chunks(2).map(|turn| (content(turn[0]), content(turn[1]))).collect()
}

fn questions(terminal: &mut Terminal) -> Vec<String> {
    saved(terminal).into_iter().map(|(question, _)| question).collect()
}

#[test]
fn commands_work_and_a_typo_names_the_command_that_was_meant() {
    let mut terminal = chat(&[]);
    terminal.say("hello there\r");
    terminal.wait_for("max tokens]");
    for (line, expected) in [
        ("/retyr", "did you mean `/retry`?"),
        ("/set", "temperature            0"),
        ("/set temperature 0.2", "(temperature is 0.2)"),
        ("/set temperature hot", "error: invalid value `hot`"),
        ("/tokens", "tokens in 1 turn"),
        ("/retry", "max tokens]"),
        ("/load /dev/zero", "error: /dev/zero: is a device"),
        ("/undo", "(taken back: hello there)"),
        ("/undo", "nothing has been asked yet"),
        ("/system Be brief.", "(a new conversation, with instructions)"),
        ("/stats", "(statistics are off)"),
        ("/clear", "(forgotten)"),
        ("/help", "Alt-Enter"),
    ] {
        terminal.say(format!("{line}\r"));
        assert!(terminal.shown().contains(expected), "{line}:\n{}", terminal.shown());
    }
    terminal.press("/exit\r");
    assert_eq!(terminal.end(), Some(0), "{}", terminal.shown());
    assert!(terminal.is_usual(), "the terminal is given back as it was");
}

#[test]
fn flags_of_one_answer_are_refused() {
    for flag in ["--json", "--bandwidth"] {
        let mut terminal = Terminal::start_with(200, &["run", flag], |command| command);
        assert_eq!(terminal.end(), Some(2), "{}", terminal.log);
        assert!(terminal.log.contains(&format!("`{flag}` needs a prompt")), "{}", terminal.log);
    }
}

#[test]
fn answers_of_a_chat_have_a_form_and_call_tools_while_that_is_wanted() {
    let folder = tempfile::tempdir().expect("a folder");
    let tools = folder.path().join("tools.json");
    std::fs::write(
        &tools,
        r#"{"name": "roll", "parameters": {"type": "object", "properties":
        {"sides": {"enum": [6, 20]}}, "required": ["sides"], "additionalProperties": false}}"#,
    )
    .expect("written");
    let args = ["run", "--temperature", "0", "-n", "40", "--color", "never"];
    let mut terminal = Terminal::start(200, &args);
    let mut expect = |line: &str, expected: &str| {
        terminal.say(format!("{line}\r"));
        assert!(terminal.shown().contains(expected), "{line}:\n{}", terminal.shown());
    };
    expect("/json {\"enum\": [\"merry\"]}", "(answers are JSON of this schema)");
    expect("/set temperature 0.5", "(temperature is 0.5)");
    expect("How are you?", "\"merry\"");
    expect("/json {", "error: `/json`");
    expect("/json", "(answers are free text)");
    expect("/tools /no/such/file", "error: `/tools`");
    expect(&format!("/tools {}", tools.display()), "(the model may call roll)");
    expect("/tokens", "tokens in 1 turn");
    expect("/tools", "(no tools)");
    assert_eq!(saved(&mut terminal)[0].1, "\"merry\"");
}

#[test]
fn a_saved_conversation_goes_on_and_a_hostile_file_changes_nothing() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name);
    let mut terminal = chat(&[]);
    terminal.say("one\r");
    terminal.say(format!("/save {}\r", path("chat.json").display()));
    terminal.say("two\r");
    let before = saved(&mut terminal);
    for (name, text) in [
        ("broken.json", "{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}"),
        ("roles.json", "{\"messages\": [{\"role\": \"tool\", \"content\": \"x\"}]}"),
        ("settings.json", "{\"messages\": [], \"settings\": {\"temperature\": \"hot\"}}"),
    ] {
        std::fs::write(path(name), text).expect("written");
        terminal.say(format!("/load {}\r", path(name).display()));
        let error = format!("error: {}", path(name).display());
        assert!(terminal.log.contains(&error), "{}", terminal.shown());
    }
    terminal.say(format!("/save {}\r", path("broken.json").display()));
    assert!(terminal.shown().contains("is no saved conversation"), "{}", terminal.shown());
    assert_eq!(saved(&mut terminal), before);
    terminal.say(format!("/load {}\r", path("chat.json").display()));
    assert_eq!(saved(&mut terminal), before[..1]);
}

#[test]
fn an_answer_is_copied_by_the_terminal() {
    let mut terminal = chat(&[]);
    terminal.say("/copy\r");
    assert!(terminal.shown().contains("nothing has been asked yet"), "{}", terminal.shown());
    terminal.say("hello\r");
    terminal.say("/copy\r");
    assert!(terminal.shown().contains("asked the terminal to copy"), "{}", terminal.shown());
    assert!(terminal.log.contains("\x1b]52;c;"), "{}", terminal.log);
}

#[test]
fn several_lines_are_one_message_however_they_are_typed() {
    let mut terminal = chat(&[]);
    terminal.say("pasted\nwithout\nmarks\r");
    terminal.say("\x1b[200~pasted\nwith marks\x1b[201~\r");
    terminal.press("Alt-");
    terminal.wait_for("> Alt-");
    terminal.press("\x1b\r");
    terminal.press("Enter\r");
    terminal.wait_for_prompt();
    terminal.press("\"\"\"a block\r");
    terminal.wait_for("a block\n");
    terminal.say("/exit\"\"\"\r");
    assert_eq!(
        questions(&mut terminal),
        ["pasted\nwithout\nmarks", "pasted\nwith marks", "Alt-\nEnter", "a block\n/exit"]
    );
}

#[test]
fn bytes_that_are_no_text_end_neither_the_line_nor_the_chat() {
    let mut terminal = chat(&[]);
    terminal.say(b"caf\xe9 \xff\xfe noir\r");
    assert_eq!(questions(&mut terminal), ["caf\u{fffd} \u{fffd}\u{fffd} noir"]);
}

#[test]
fn keys_during_an_answer_wait_for_the_prompt() {
    let args = ["run", "--temperature", "0", "--ignore-eos", "-n", "300", "--color", "never"];
    let mut terminal = Terminal::start(200, &args);
    terminal.press("first\r");
    // The answer has begun, and would show keys if the terminal echoed them.
    terminal.wait_for_answer("first");
    // No answer has this word.
    terminal.press("xq");
    terminal.press("7z\r");
    terminal.wait("two answers", |terminal| terminal.log.matches("max tokens]").count() == 2);
    terminal.wait_for_prompt();
    assert_eq!(questions(&mut terminal), ["first", "xq7z"]);
    let rows = terminal.rows();
    assert!(rows.iter().filter(|row| row.contains("xq7z")).all(|row| row == "> xq7z"));
}

#[test]
fn ctrl_c_stops_the_answer_and_keeps_the_conversation() {
    let args = ["run", "--ignore-eos", "--color", "never"];
    let mut terminal = Terminal::start(200, &args);
    terminal.press("hello\r");
    terminal.wait_for_answer("hello");
    terminal.press("\x03");
    terminal.wait_for("interrupted]");
    terminal.wait_for_prompt();
    terminal.say("half a line\x03");
    assert!(terminal.shown().contains("(Ctrl-D or /exit leaves)"), "{}", terminal.shown());
    let turns = saved(&mut terminal);
    assert_eq!((turns.len(), turns[0].0.as_str()), (1, "hello"));
    assert!(!turns[0].1.is_empty());
    terminal.press("\x04");
    assert_eq!(terminal.end(), Some(0), "{}", terminal.shown());
    assert!(terminal.is_usual());
}

#[test]
fn a_signal_from_outside_stops_the_answer_too() {
    let mut terminal = Terminal::start(200, &["run", "--ignore-eos", "--color", "never"]);
    terminal.press("hello\r");
    terminal.wait_for_answer("hello");
    signal("INT", terminal.pid());
    terminal.wait_for("interrupted]");
    terminal.wait_for_prompt();
}

#[test]
fn a_request_to_end_leaves_the_chat_as_ctrl_d_does() {
    let folder = tempfile::tempdir().expect("a folder");
    let history = folder.path().join("history");
    for in_an_answer in [false, true] {
        let args = ["run", "--color", "never", "--ignore-eos"];
        let limit = if in_an_answer { &[][..] } else { &["-n", "4"] };
        let mut terminal = Terminal::start_with(80, &[&args[..], limit].concat(), |command| {
            command.env("PELTON_HISTORY", &history)
        });
        terminal.wait_for_prompt();
        terminal.press(format!("remember {in_an_answer}\r"));
        match in_an_answer {
            false => terminal.wait_for_prompt(),
            true => terminal.wait_for_answer("remember true"),
        }
        signal("TERM", terminal.pid());
        assert_eq!(terminal.end(), Some(0), "{}", terminal.shown());
        assert!(terminal.is_usual(), "the terminal is given back as it was");
        assert!(!terminal.shown().contains("error"), "{}", terminal.shown());
        let kept = std::fs::read_to_string(&history).expect("a history");
        assert!(kept.contains(&format!("remember {in_an_answer}")), "{kept}");
    }
}

#[test]
fn a_full_context_forgets_whole_turns_and_says_so_once() {
    let more = ["--max-context", "128", "--system", "Be brief."];
    let mut terminal = chat(&more);
    let question =
        "Tell me about the old house at the end of the road, and about the people in it.";
    for _ in 0..8 {
        terminal.say(format!("{question}\r"));
    }
    let n_remarks = terminal.shown().matches("the context is full").count();
    assert_eq!(n_remarks, 1, "{}", terminal.shown());
    assert_eq!(terminal.shown().matches("max tokens]").count(), 8, "{}", terminal.shown());
    assert_eq!(questions(&mut terminal).len(), 8, "forgotten turns are saved");
    terminal.say("/tokens\r");
    assert!(terminal.shown().contains("no longer sees"), "{}", terminal.shown());
    terminal.say(format!("{}\r", "word ".repeat(500)));
    assert!(terminal.shown().contains("the message is still there"), "{}", terminal.shown());
    assert_eq!(questions(&mut terminal).len(), 8, "a message that is too long changes nothing");
}

#[test]
fn an_answer_that_fills_the_context_says_so() {
    let args = ["run", "--ignore-eos", "--max-context", "64", "--color", "never"];
    let mut terminal = Terminal::start(200, &args);
    terminal.say("hello\r");
    assert!(terminal.shown().contains("context full]"), "{}", terminal.shown());
    terminal.say("and now\r");
    assert!(terminal.shown().contains("the model forgets"), "{}", terminal.shown());
    let args = ["run", "--max-context", "32", "--ignore-eos", "--json", "-n"];
    for (n, expected) in [("1000", "context full"), ("5", "max tokens")] {
        let answer = pelton(&[&args[..], &[n, "Once upon a time"]].concat()).json();
        assert_eq!(
            (&answer["end"], &answer["finish_reason"]),
            (&expected.into(), &"length".into())
        );
    }
}

#[test]
fn a_limit_that_does_not_fit_is_said_before_the_answer() {
    let args = ["run", "--max-context", "32", "--ignore-eos", "-n", "1000", "Once upon a time"];
    let outcome = pelton(&args);
    outcome.assert_answered();
    let note = "note: 1000 tokens do not fit: the context of 32 leaves";
    assert!(outcome.stderr.starts_with(note), "{}", outcome.stderr);
    let quiet = pelton(&[&args[..], &["--quiet"]].concat());
    assert_eq!(quiet.stderr, "");
    let mut terminal = Terminal::start(80, &args[..args.len() - 1]);
    assert!(terminal.shown().contains("1000 tokens do not fit"), "{}", terminal.shown());
    terminal.say("/set max-tokens 20\r");
    terminal.say("/set max-tokens 2000\r");
    assert!(terminal.shown().contains("2000 tokens do not fit"), "{}", terminal.shown());
}

#[test]
fn lines_break_between_words_in_a_narrow_terminal() {
    let args = ["run", "--temperature", "0", "--ignore-eos", "-n", "80", "--color", "never"];
    let mut terminal = Terminal::start(20, &args);
    terminal.say("hello\r");
    let rows = terminal.rows();
    let begin = rows.iter().position(|row| row == "> hello").expect("the question") + 1;
    let end = rows.iter().rposition(|row| row.starts_with("[80")).expect("the statistics");
    let shown: Vec<&str> = rows[begin..end].iter().flat_map(|row| row.split_whitespace()).collect();
    let turns = saved(&mut terminal);
    let said: Vec<&str> = turns[0].1.split_whitespace().collect();
    assert_eq!(shown, said);
    assert!(end - begin > 5, "80 tokens take more than five lines: {rows:?}");
}

#[test]
fn stdout_without_a_terminal_gets_answers_and_nothing_else() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("out.txt");
    let file = File::create(&path).expect("a file");
    let mut terminal = Terminal::start_with(80, SHORT, |command| command.stdout(file));
    terminal.wait_for_prompt();
    terminal.say("hello\r");
    let turns = saved(&mut terminal);
    assert_eq!(std::fs::read_to_string(&path).expect("text"), turns[0].1.clone() + "\n");
}

#[test]
fn a_reader_that_leaves_ends_the_chat_without_a_word() {
    let mut terminal = Terminal::start_with(80, SHORT, |command| command.stdout(closed_pipe()));
    terminal.wait_for_prompt();
    terminal.press("hello\r");
    assert_eq!(terminal.end(), Some(0), "{}", terminal.shown());
    assert!(!terminal.shown().contains("error"), "{}", terminal.shown());
}

/// The end of a pipe that nobody reads.
fn closed_pipe() -> Stdio {
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    writer.into()
}

#[test]
fn colours_follow_the_flag_and_the_environment() {
    let question = ["run", "--chat", "--temperature", "0", "-n", "4", "hello"];
    let run = |more: &[&str], no_color: &str| {
        let args = [&question[..], more].concat();
        let output = command(&args).env("NO_COLOR", no_color).output().expect("the binary starts");
        String::from_utf8(output.stderr).expect("text") + &String::from_utf8_lossy(&output.stdout)
    };
    assert!(!run(&[], "").contains('\x1b'), "a pipe has no colours");
    for (color, is_colourless) in
        [("auto", false), ("auto", true), ("always", true), ("never", false)]
    {
        let args = ["run", "-n", "4", "--color", color];
        let mut terminal = Terminal::start_with(80, &args, |command| {
            command.env("NO_COLOR", if is_colourless { "1" } else { "" })
        });
        terminal.wait_for_prompt();
        let has_styles = terminal.log.contains("\x1b[2m");
        let expected = color == "always" || (color == "auto" && !is_colourless);
        assert_eq!(has_styles, expected, "{color}, NO_COLOR {is_colourless}: {:?}", terminal.log);
    }
}

#[test]
fn the_history_is_kept_line_by_line() {
    let folder = tempfile::tempdir().expect("a folder");
    let history = folder.path().join("state/history");
    let mut terminal =
        Terminal::start_with(80, SHORT, |command| command.env("PELTON_HISTORY", &history));
    terminal.wait_for_prompt();
    terminal.say("remember me\r");
    signal("KILL", terminal.pid());
    terminal.end();
    let text = std::fs::read_to_string(Path::new(&history)).expect("a history");
    assert!(text.contains("remember me"), "{text}");
}
