//! Parts that the dialects of conversations share: readers of functions and calls, turns on their way
//! to the model, and the parts of an answer on their way to the client.

mod functions;
mod names;
mod parts;
mod thoughts;
mod turns;

pub(crate) use functions::{
    CALLS, arguments, call, distinct, expect_function, function_name, known, missing, schema,
};
pub(crate) use names::renamed;
pub(crate) use parts::{Part, Parts, Step};
pub(crate) use thoughts::turn_thoughts;
pub(crate) use turns::Turns;
