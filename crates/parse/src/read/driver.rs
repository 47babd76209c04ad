//! A parser made of a machine: keeps the end of the text until the machine can decide.

use super::Output;
use super::marks::count;
use crate::{Delta, End, Parser, Standing};

/// Reads text step by step.
pub(crate) trait Machine: Send {
    /// Reads the beginning of `text`, which is not empty, and returns the number of bytes that it
    /// read, which may be none where its state changes; `None` asks for more text. With `is_last`
    /// no more text comes.
    fn step(&mut self, text: &str, is_last: bool, out: &mut Output) -> Option<usize>;

    /// Ends the answer with `text`, at which [`step`](Self::step) asked for more.
    fn end(&mut self, text: &str, out: &mut Output);

    /// The part of the answer that the text read last belongs to.
    fn standing(&self) -> Standing;
}

/// A machine, the text that it has not read, and its output.
pub(crate) struct Driver<M> {
    machine: M,
    rest: String,
    out: Output,
}

impl<M: Machine> Driver<M> {
    pub(crate) fn new(machine: M, out: Output) -> Self {
        Self { machine, rest: String::new(), out }
    }

    /// Steps until the machine asks for more text; returns what it has not read.
    fn run<'a>(&mut self, text: &'a str, is_last: bool) -> &'a str {
        let mut rest = text;
        while !rest.is_empty() {
            let Some(n_bytes) = self.machine.step(rest, is_last, &mut self.out) else { break };
            rest = &rest[n_bytes..];
            count(n_bytes + 1);
        }
        rest
    }
}

impl<M: Machine> Parser for Driver<M> {
    fn push(&mut self, text: &str) -> Vec<Delta> {
        if self.rest.is_empty() {
            self.rest = self.run(text, false).to_owned();
        } else {
            let mut rest = std::mem::take(&mut self.rest);
            rest.push_str(text);
            self.rest = self.run(&rest, false).to_owned();
        }
        count(self.rest.len());
        self.out.deltas()
    }

    fn finish(&mut self) -> End {
        let rest = std::mem::take(&mut self.rest);
        // Where there are only calls, what may be the beginning of a mark is one.
        let rest = self.run(&rest, !self.out.is_calls_only());
        self.machine.end(rest, &mut self.out);
        self.out.end()
    }

    fn standing(&self) -> Standing {
        self.machine.standing()
    }
}

#[cfg(test)]
mod tests {
    use crate::read::WORK;
    use crate::{REASONING_FORMATS, Reader, ReaderOptions, TOOL_FORMATS, ToolFormat, Trust};

    /// Beginnings of calls that never end, nested braces, and marks that fail at their last byte.
    fn hostile(format: &dyn ToolFormat) -> Vec<String> {
        let mut texts: Vec<String> = [
            "<",
            "{",
            "[",
            "[a",
            "{\"name\": \"",
            "{\"a\":",
            "[f(",
            "[f(a=[",
            "<function=",
            " ",
            "<|channel|>",
            "<think>",
            "\n",
            "\"",
            "\\",
            "(",
            "<parameter=",
            "é",
            "functools[",
        ]
        .map(str::to_owned)
        .into();
        for token in format.control_tokens() {
            texts.push((*token).to_owned());
            texts.push(token[..token.len() - 1].to_owned());
            texts.push(format!("{token}{{\"name\": \"f\", \"arguments\": {{"));
            texts.push(format!("{token}f"));
            texts.push(format!("{token}\n<function=f>\n<parameter=a>"));
        }
        texts
    }

    /// Ten megabytes in all.
    #[test]
    fn hostile_text_is_read_in_linear_work() {
        let n_texts: usize = TOOL_FORMATS.iter().map(|format| hostile(*format).len()).sum();
        let n_bytes = 10_000_000 / n_texts;
        for (format_idx, format) in TOOL_FORMATS.iter().enumerate() {
            for unit in hostile(*format) {
                let text = unit.repeat(n_bytes / unit.len());
                for piece_len in [usize::MAX, 7] {
                    for trust in [Trust::Checked, Trust::Enforced] {
                        let work = work(*format, format_idx, trust, &text, piece_len);
                        let most = 100 * text.len();
                        assert!(work < most, "{format:?} {unit:?} by {piece_len}: {work} > {most}");
                    }
                }
            }
        }
    }

    fn work(
        format: &'static dyn ToolFormat,
        format_idx: usize,
        trust: Trust,
        text: &str,
        piece_len: usize,
    ) -> usize {
        WORK.set(0);
        let reasoning = REASONING_FORMATS.get(format_idx % (REASONING_FORMATS.len() + 1));
        let tools = Some((format, Vec::new()));
        let mut reader =
            Reader::new(ReaderOptions { reasoning, starts_inside: false, tools, trust });
        let mut rest = text;
        while !rest.is_empty() {
            let piece = &rest[..rest.ceil_char_boundary(piece_len.min(rest.len()))];
            reader.push(piece);
            rest = &rest[piece.len()..];
        }
        reader.finish();
        WORK.get()
    }
}
