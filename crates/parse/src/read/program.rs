//! A format of calls as data: the marks and parts of a call, in their order.
//!
//! ```text
//! triggers       parts
//! "<tool_call>"  0: Object          {"name": "f", "arguments": {"a": 1}}
//!                1: Choice          "</tool_call>" ends it, and so does anything else
//! ```

/// A format.
#[derive(Debug)]
pub(crate) struct Program {
    /// Texts with which calls begin. Of two that begin alike the longer one stands first.
    pub(crate) triggers: &'static [Trigger],
    pub(crate) parts: &'static [Part],
}

/// A text with which calls begin.
#[derive(Debug)]
pub(crate) struct Trigger {
    pub(crate) text: &'static str,
    /// The part after it.
    pub(crate) next: usize,
    /// Whether ordinary text has it, too, so that its presence says little.
    pub(crate) is_common: bool,
    /// Whether the part after it reads it again.
    pub(crate) is_left: bool,
    /// Whether it counts only at the beginning of the answer.
    pub(crate) is_first: bool,
}

impl Trigger {
    /// A mark that only calls have.
    pub(crate) const fn mark(text: &'static str, next: usize) -> Self {
        Self { text, next, is_common: false, is_left: false, is_first: false }
    }

    /// A text that others than calls have, too.
    pub(crate) const fn common(text: &'static str, next: usize) -> Self {
        Self { text, next, is_common: true, is_left: false, is_first: false }
    }

    /// The same, read again by the part after it.
    pub(crate) const fn left(self) -> Self {
        Self { is_left: true, ..self }
    }

    /// The same, at the beginning of the answer only.
    pub(crate) const fn first(self) -> Self {
        Self { is_first: true, ..self }
    }
}

/// The next thing in a call. White space before it is skipped, except before values and names of
/// parameters.
#[derive(Debug)]
pub(crate) enum Part {
    /// One of several texts decides how to go on; no text of the list: the last field does.
    Choice(&'static [Arm], Next),
    /// A whole call as a JSON object with name and arguments.
    Object,
    /// Text of no interest, until one of these.
    Skip(&'static [Arm]),
    /// The name of the tool, until one of these.
    Name(NameForm, &'static [Arm]),
    /// The arguments as JSON, which may be missing before one of these texts.
    Arguments(&'static [&'static str]),
    /// The name of a parameter, until one of these.
    Key(&'static [Arm]),
    /// The value of a parameter as text, until one of these.
    Value {
        /// Whether it stands on lines of its own.
        has_lines: bool,
        arms: &'static [Arm],
    },
    /// The value of a parameter as a Python literal.
    Python,
    /// The end of a call whose parameters came one by one; reads nothing.
    Close,
}

impl Part {
    pub(crate) fn is_choice(&self) -> bool {
        matches!(self, Self::Choice(..))
    }
}

/// How a name is written.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum NameForm {
    /// As it is.
    Plain,
    /// As `functions.NAME:NUMBER`.
    Numbered,
}

/// A text, and the part after it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arm {
    pub(crate) text: &'static str,
    pub(crate) next: Next,
    /// Whether the next part reads it again.
    pub(crate) is_left: bool,
}

/// After this text goes the next part.
pub(crate) const fn on(text: &'static str, next: Next) -> Arm {
    Arm { text, next, is_left: false }
}

/// Before this text goes the next part.
pub(crate) const fn at(text: &'static str, next: Next) -> Arm {
    Arm { text, next, is_left: true }
}

/// How to go on.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Next {
    /// With this part.
    Part(usize),
    /// With text, and calls in it.
    Text,
    /// With text; what came since the last call is text, too, and is no call.
    Refuse,
}
