//! Answers of models, taken apart: thoughts, tool calls and plain text, whole or as it grows.
//!
//! ```text
//! text of an answer ─► Reader ─► thought (ReasoningFormat) ─► Delta::Reasoning
//!                                     └─► content ─► calls (ToolFormat) ─► Delta::Call, Arguments
//!                                                      └─► other text ───► Delta::Content
//! ```
//!
//! Formats are entries of two registries, [`TOOL_FORMATS`] and [`REASONING_FORMATS`]. A format of
//! calls also writes the form of an answer ([`ToolFormat::shape`]) that makes a model keep to it.
//!
//! **Nothing is lost, and nothing depends on the split.** All pieces of an answer together are the
//! same however its text was split. Text that looked like a call and is none becomes content, and is
//! flagged ([`End::malformed`]); a call whose end is missing has as much of its arguments as there is
//! ([`End::cut`]). Only marks, and white space beside marks, are left out.
//!
//! **Arguments are JSON text as the model wrote it**, where the format writes JSON. Formats that write
//! parameters one by one become JSON by the schema of the tool, in the order in which they are written.
#![forbid(unsafe_code)]

mod answer;
mod formats;
mod read;
mod reader;
mod reasoning;
mod shape;
mod tool;

pub use answer::{Answer, Delta, End};
pub use formats::{Parser, TOOL_FORMATS, ToolFormat, Trust, tool_format, tool_format_of_template};
pub use reader::{Reader, ReaderOptions, Standing, read};
pub use reasoning::{
    REASONING_FORMATS, ReasoningFormat, reasoning_format, reasoning_format_of_template,
};
pub use shape::ShapeError;
pub use tool::{Demand, Tool, ToolCall, ToolChoice};
