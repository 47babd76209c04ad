//! What a model said, taken apart: thoughts, tool calls and plain text, whole or as it grows.
#![forbid(unsafe_code)]
