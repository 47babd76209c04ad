//! Answers of a given form: JSON schemas, regular expressions and grammars as rules over tokens.
#![forbid(unsafe_code)]
