//! A parser made of a machine: keeps the end of the text until the machine can decide.

use super::Output;
use crate::{Delta, End, Parser};

/// Reads text step by step.
pub(crate) trait Machine: Send {
    /// Reads the beginning of `text`, which is not empty, and returns the number of bytes that it
    /// read, which may be none where its state changes; `None` asks for more text. With `is_last`
    /// no more text comes.
    fn step(&mut self, text: &str, is_last: bool, out: &mut Output) -> Option<usize>;

    /// Ends the answer with `text`, at which [`step`](Self::step) asked for more.
    fn end(&mut self, text: &str, out: &mut Output);
}

/// A machine, the text that it has not read, and its output.
pub(crate) struct Driver<M> {
    machine: M,
    rest: String,
    out: Output,
    /// Steps so far, for tests that count work.
    #[cfg(test)]
    n_bytes_seen: usize,
}

impl<M: Machine> Driver<M> {
    pub(crate) fn new(machine: M, out: Output) -> Self {
        Self {
            machine,
            rest: String::new(),
            out,
            #[cfg(test)]
            n_bytes_seen: 0,
        }
    }

    /// Steps until the machine asks for more text; returns what it has not read.
    fn run<'a>(&mut self, text: &'a str, is_last: bool) -> &'a str {
        let mut rest = text;
        while !rest.is_empty() {
            let Some(n_bytes) = self.machine.step(rest, is_last, &mut self.out) else { break };
            rest = &rest[n_bytes..];
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
        #[cfg(test)]
        {
            self.n_bytes_seen += self.rest.len() + text.len();
        }
        self.out.deltas()
    }

    fn finish(&mut self) -> End {
        let rest = std::mem::take(&mut self.rest);
        let rest = self.run(&rest, true);
        self.machine.end(rest, &mut self.out);
        self.out.end()
    }
}
