//! Logits to tokens: processors and sampler.
#![forbid(unsafe_code)]
