//! The library face: messages in, events out.
#![forbid(unsafe_code)]
