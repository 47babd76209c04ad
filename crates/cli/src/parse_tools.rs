//! `pelton parse-tools`: answers of models taken apart into text, thoughts and tool calls, one JSON
//! value per line.
//!
//! Each answer is read whole, letter by letter, and in pieces of a few letters. Answers that differ
//! are a failure of our own.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;

use pelton_base::limits;
use pelton_parse::{
    Answer, Delta, Reader, ReaderOptions, TOOL_FORMATS, Tool, Trust, reasoning_format, tool_format,
};
use serde_json::{Value, json};

use crate::args::ParseToolsArgs;
use crate::failure::{Failure, Result};
use crate::tokenize::read_line;

/// Runs the command.
pub(crate) fn parse_tools(args: &ParseToolsArgs) -> Result<()> {
    let mut stdout = std::io::BufWriter::new(std::io::stdout().lock());
    let done = match tool_format(&args.tool_parser) {
        Some(_) => answers(args, &mut stdout),
        None => list(&mut stdout),
    };
    // The lines before a bad line have been answered.
    stdout.flush().map_err(|error| Failure::stdout(&error))?;
    done
}

/// Prints every name with the other names for the same.
fn list(stdout: &mut impl Write) -> Result<()> {
    let mut names: Vec<(&str, &[&str])> =
        TOOL_FORMATS.iter().map(|format| (format.name(), format.aliases())).collect();
    names.sort_unstable();
    for (name, aliases) in names {
        let others = if aliases.is_empty() { String::new() } else { aliases.join(", ") };
        let line = format!("{name:16}{others}");
        writeln!(stdout, "{}", line.trim_end()).map_err(|error| Failure::stdout(&error))?;
    }
    Ok(())
}

fn answers(args: &ParseToolsArgs, stdout: &mut impl Write) -> Result<()> {
    let tools = args.tools.as_deref().map_or(Ok(Vec::new()), tools_of)?;
    let (mut input, place): (Box<dyn BufRead>, String) = match &args.file {
        None => (Box::new(std::io::stdin().lock()), "standard input".to_owned()),
        Some(path) => {
            let file = std::fs::File::open(path)
                .map_err(|error| Failure::new(format!("{}: {error}", path.display())))
                .map_err(|failure| failure.hint("without a file, standard input is read"))?;
            (Box::new(BufReader::new(file)), path.display().to_string())
        }
    };
    let options = || ReaderOptions {
        reasoning: args.reasoning_parser.as_deref().and_then(reasoning_format),
        starts_inside: false,
        tools: tool_format(&args.tool_parser).map(|format| (format, tools.clone())),
        trust: Trust::Checked,
    };
    for line_idx in 0.. {
        let at = format!("line {} of {place}", line_idx + 1);
        let Some(line) = read_line(&mut input).map_err(|failure| failure.at(&at))? else { break };
        let text: String = serde_json::from_str(&line)
            .map_err(|error| Failure::new(format!("expected a JSON string: {error}")).at(&at))?;
        let (answer, deltas) = read(&options, &text).map_err(|failure| failure.at(&at))?;
        let printed = match args.stream {
            true => deltas.iter().map(printed_delta).collect(),
            false => printed_answer(&answer),
        };
        writeln!(stdout, "{printed}").map_err(|error| Failure::stdout(&error))?;
        if answer.malformed {
            eprintln!("note: {at}: text that looks like a call is none");
        }
    }
    Ok(())
}

/// An answer, and its pieces where it comes letter by letter.
fn read(options: &impl Fn() -> ReaderOptions, text: &str) -> Result<(Answer, Vec<Delta>)> {
    let whole = pelton_parse::read(options(), text);
    let mut by_letter = Vec::new();
    for n_letters in [7, 1] {
        let mut reader = Reader::new(options());
        let mut answer = Answer::default();
        by_letter.clear();
        let mut n_read = 0;
        for piece in text.split_inclusive(|_| {
            n_read += 1;
            n_read % n_letters == 0
        }) {
            by_letter.extend(reader.push(piece));
        }
        by_letter.iter().for_each(|delta| answer.add(delta));
        let end = reader.finish();
        answer.end(&end);
        by_letter.extend(end.deltas);
        if answer != whole {
            let message = format!("read in pieces of {n_letters}, the answer is another one");
            return Err(Failure::internal(message));
        }
    }
    Ok((whole, by_letter))
}

/// `content` is null where there are only calls, as in a chat completion.
fn printed_answer(answer: &Answer) -> Value {
    let has_content = !answer.content.is_empty() || answer.calls.is_empty();
    let content = if has_content { json!(answer.content) } else { Value::Null };
    let mut printed = json!({ "content": content, "tool_calls": answer.calls });
    if !answer.reasoning.is_empty() {
        printed["reasoning"] = json!(answer.reasoning);
    }
    printed
}

fn printed_delta(delta: &Delta) -> Value {
    match delta {
        Delta::Content(text) => json!({ "content": text }),
        Delta::Reasoning(text) => json!({ "reasoning": text }),
        Delta::Call { index, name } => json!({ "index": index, "name": name }),
        Delta::Arguments { index, text } => json!({ "index": index, "arguments": text }),
    }
}

/// The tools of a file: an array of functions, each alone or in OpenAI's envelope.
fn tools_of(path: &Path) -> Result<Vec<Tool>> {
    let place = path.display().to_string();
    let read = || -> Result<Vec<Tool>> {
        let n_bytes = std::fs::metadata(path)?.len();
        if n_bytes > limits::CONFIG_BYTES {
            let most = limits::CONFIG_BYTES;
            return Err(Failure::new(format!("{n_bytes} bytes; expected at most {most}")));
        }
        let text = std::fs::read_to_string(path)?;
        let tools: Vec<Value> = serde_json::from_str(&text)
            .map_err(|error| Failure::new(format!("expected a JSON array of tools: {error}")))?;
        if tools.len() > limits::TOOLS {
            let (n_tools, most) = (tools.len(), limits::TOOLS);
            return Err(Failure::new(format!("{n_tools} tools; expected at most {most}")));
        }
        let tools = tools.into_iter().enumerate().map(|(tool_idx, tool)| tool_of(tool_idx, tool));
        let tools: Vec<Tool> = tools.collect::<Result<_>>()?;
        let mut names = BTreeSet::new();
        match tools.iter().find(|tool| !names.insert(tool.name.as_str())) {
            Some(tool) => Err(Failure::new(format!("two tools have the name {:?}", tool.name))),
            None => Ok(tools),
        }
    };
    read().map_err(|failure| failure.at(&place))
}

fn tool_of(tool_idx: usize, mut tool: Value) -> Result<Tool> {
    let mut at = format!("[{tool_idx}]");
    if let Some(function) = tool.get_mut("function") {
        tool = function.take();
        at.push_str(".function");
    }
    let name = tool.get("name").and_then(Value::as_str).unwrap_or_default().to_owned();
    if name.is_empty() {
        return Err(Failure::new(format!("`{at}.name`: expected the name of the tool")));
    }
    let description = tool.get("description").and_then(Value::as_str).map(str::to_owned);
    let strict = tool.get("strict").and_then(Value::as_bool).unwrap_or(false);
    let parameters = tool.get_mut("parameters").map(Value::take).unwrap_or_default();
    if !(parameters.is_object() || parameters.is_null()) {
        return Err(Failure::new(format!("`{at}.parameters`: expected a JSON Schema")));
    }
    Ok(Tool { name, description, parameters, strict, place: None })
}
