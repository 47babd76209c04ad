//! Weight formats: layout, codec, packing to kernel layouts.
#![forbid(unsafe_code)]
