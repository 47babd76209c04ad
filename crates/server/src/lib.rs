//! OpenAI-compatible HTTP over the library face.
#![forbid(unsafe_code)]
