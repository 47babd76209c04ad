//! The operations of a decoder, each a method of [`Cpu`](crate::Cpu).
//!
//! | module | operations |
//! |---|---|
//! | [`matmul`] | products with packed weights |
//! | [`attention`] | attention over the pages of the KV cache |
//! | [`kv`] | where keys and values are stored, and how they get there |
//! | [`state`] | states of recurrent layers, and how they advance |
//! | [`rows`] | norms, activations, rotary embedding, routing and other work on rows |
//! | [`activations`], [`quantize`] | the inputs of products, in the forms that the weights read |
//!
//! An operation stands on [`simd`](crate::simd), [`team`](crate::team) and
//! [`layout`](crate::layout), and none of these knows of an operation.

pub(crate) mod activations;
pub(crate) mod attention;
pub(crate) mod kv;
pub(crate) mod matmul;
pub(crate) mod quantize;
pub(crate) mod rows;
pub(crate) mod state;
