//! The parts that the text becomes: content, thought, calls; and calls that turn out to be none.
//!
//! ```text
//!             take(text)                      complete ─► the call
//! content ─► raw: text of a call in progress ─┤
//!             name, arguments: its parts      reject ───► raw, as content, flagged
//! ```

use crate::answer::append;
use crate::{Delta, End, Tool, Trust};

/// The call in progress.
#[derive(Debug, Default)]
struct Call {
    name: Option<String>,
    /// Arguments that were not passed on yet.
    arguments: String,
    has_arguments: bool,
    /// Whether the client knows of it.
    is_begun: bool,
}

/// The parts that were read, and those that were not passed on yet.
#[derive(Debug)]
pub(crate) struct Output {
    deltas: Vec<Delta>,
    /// Names of the tools; every name will do where there are none.
    names: Vec<String>,
    trust: Trust,
    n_calls: usize,
    call: Option<Call>,
    /// Text of the call in progress, marks included, since the last piece that was passed on.
    raw: String,
    /// White space at the beginning of a stretch of text, which counts only if more text follows.
    blank: String,
    in_text: bool,
    malformed: bool,
    cut: bool,
}

impl Output {
    pub(crate) fn new(tools: &[Tool], trust: Trust) -> Self {
        Self {
            deltas: Vec::new(),
            names: tools.iter().map(|tool| tool.name.clone()).collect(),
            trust,
            n_calls: 0,
            call: None,
            raw: String::new(),
            blank: String::new(),
            in_text: false,
            malformed: false,
            cut: false,
        }
    }

    /// Text outside of calls. White space counts only beside other text, or where there is no call.
    pub(crate) fn text(&mut self, text: &str) {
        let text = match self.in_text {
            true => text,
            false => {
                let rest = text.trim_start();
                self.blank.push_str(&text[..text.len() - rest.len()]);
                rest
            }
        };
        if text.is_empty() {
            return;
        }
        self.in_text = true;
        let blank = std::mem::take(&mut self.blank);
        append(&mut self.deltas, Delta::Content(blank + text));
    }

    /// Whether there is nothing but calls, so that the beginning of a mark at the end is one.
    pub(crate) fn is_calls_only(&self) -> bool {
        self.trust == Trust::CallsOnly
    }

    /// Text at the end that may be the beginning of a call.
    pub(crate) fn rest(&mut self, text: &str) {
        if !self.is_calls_only() {
            self.text(text);
        }
    }

    /// Text of the thought.
    pub(crate) fn reasoning(&mut self, text: &str) {
        if !text.is_empty() {
            append(&mut self.deltas, Delta::Reasoning(text.to_owned()));
        }
    }

    /// Text that belongs to a call in progress.
    pub(crate) fn take(&mut self, text: &str) {
        self.raw.push_str(text);
    }

    /// The name of the call in progress; `false` where no tool has it.
    #[must_use]
    pub(crate) fn name(&mut self, name: &str) -> bool {
        let is_known = self.names.is_empty() || self.names.iter().any(|known| known == name);
        if name.is_empty() || !is_known {
            return false;
        }
        let call = self.call.get_or_insert_default();
        if call.name.is_some() {
            return false;
        }
        call.name = Some(name.to_owned());
        self.flush();
        true
    }

    /// More of the arguments of the call in progress, taken before.
    pub(crate) fn arguments(&mut self, text: &str) {
        let call = self.call.get_or_insert_default();
        call.has_arguments = true;
        call.arguments.push_str(text);
        self.flush();
    }

    /// The call in progress is complete.
    pub(crate) fn complete(&mut self) {
        self.pass_on();
        self.call = None;
        self.n_calls += 1;
        self.raw.clear();
        self.blank.clear();
        self.in_text = false;
    }

    /// Marks around calls, which are no text, end here.
    pub(crate) fn forget_marks(&mut self) {
        self.raw.clear();
    }

    /// The text in progress is no call: it becomes text, flagged where it looked like a call. A
    /// part of a call that was passed on stays.
    pub(crate) fn reject(&mut self, is_flagged: bool) {
        let raw = std::mem::take(&mut self.raw);
        if self.call.take().is_some_and(|call| call.is_begun) {
            self.n_calls += 1;
            self.in_text = false;
        }
        self.malformed |= is_flagged;
        self.text(&raw);
    }

    /// The text ends within a call: so much of it is a call as is known. `is_sure` says that
    /// nothing but a call begins like this, so that a name is enough.
    pub(crate) fn cut(&mut self, is_sure: bool) {
        let is_sure = is_sure || self.is_calls_only();
        let call = self.call.as_ref();
        let is_known = call.is_some_and(|call| call.name.is_some());
        if !is_known && is_sure && self.trust != Trust::Checked {
            // A grammar let nothing but a call begin, whose name did not come.
            self.call = None;
            return self.raw.clear();
        }
        if !is_known || !(is_sure || call.is_some_and(|call| call.has_arguments)) {
            return self.reject(is_sure);
        }
        self.cut = true;
        self.complete();
    }

    /// Ends the answer.
    pub(crate) fn end(&mut self) -> End {
        if self.n_calls == 0 && !self.blank.is_empty() {
            append(&mut self.deltas, Delta::Content(std::mem::take(&mut self.blank)));
        }
        End { deltas: std::mem::take(&mut self.deltas), malformed: self.malformed, cut: self.cut }
    }

    /// The pieces since the last time.
    pub(crate) fn deltas(&mut self) -> Vec<Delta> {
        std::mem::take(&mut self.deltas)
    }

    /// Number of complete calls.
    pub(crate) fn n_calls(&self) -> usize {
        self.n_calls
    }

    /// Whether the name of the call in progress is known.
    pub(crate) fn has_name(&self) -> bool {
        self.call.as_ref().is_some_and(|call| call.name.is_some())
    }

    /// Whether nothing but white space and thought has been read.
    pub(crate) fn is_at_beginning(&self) -> bool {
        self.n_calls == 0 && !self.in_text
    }

    /// Passes on what there is of a call that will not turn out to be none.
    fn flush(&mut self) {
        let is_ready =
            self.call.as_ref().is_some_and(|call| call.name.is_some() && call.has_arguments);
        if self.trust != Trust::Checked && is_ready {
            self.pass_on();
            self.raw.clear();
        }
    }

    fn pass_on(&mut self) {
        let Some(call) = &mut self.call else { return };
        let index = self.n_calls;
        if !call.is_begun {
            call.is_begun = true;
            let name = call.name.clone().unwrap_or_default();
            append(&mut self.deltas, Delta::Call { index, name });
        }
        let text = std::mem::take(&mut call.arguments);
        if !text.is_empty() {
            append(&mut self.deltas, Delta::Arguments { index, text });
        }
    }
}
