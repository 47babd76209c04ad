//! Checkpoint to logits: architecture specs, one decoder, loader, Backend, Communicator.
#![forbid(unsafe_code)]
