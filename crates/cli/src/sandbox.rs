//! `--sandbox`: once the model is loaded, the server gives up what it no longer needs.
//!
//! A seccomp filter on every thread refuses, with the error EPERM, to start programs, to open
//! connections, to create, write or remove files, and to reach into the kernel or other processes.
//! With `--files` the server may create, rename and remove files, with `--unix-socket` remove them.
//! Reading files, accepting connections, threads and memory stay as they were. A client that found a
//! way to run code of its own in the server could not leave anything behind with it.
//!
//! Landlock, which limits the files that may be read, is not used: it binds the calling thread and
//! the threads that it starts, and the threads that compute exist before the model's files are
//! known.

#[cfg(target_os = "linux")]
mod filter;

use crate::failure::{Failure, Result};
use crate::flags::Choice;

/// Whether the server restricts itself.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) enum Sandbox {
    /// Where the system can do it.
    #[default]
    Auto,
    /// Never.
    Off,
    /// Where the system cannot do it, the server does not start.
    Required,
}

/// Rights that the server keeps, because a setting needs them.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct Openings {
    /// Connections to elsewhere, for a collector of traces. The filter cannot see where they lead.
    pub(crate) connections: bool,
    /// Files of clients, under `--files`: files are created, renamed and removed. A filter of system
    /// calls sees no paths, so it cannot tell this folder from others.
    pub(crate) files: bool,
    /// Removing files, for the file of a Unix socket at the end.
    pub(crate) removal: bool,
}

impl Choice for Sandbox {
    fn all() -> &'static [Self] {
        &[Self::Auto, Self::Off, Self::Required]
    }

    fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Off => "off",
            Self::Required => "required",
        }
    }
}

impl Sandbox {
    /// Restricts the process from now on.
    ///
    /// # Errors
    ///
    /// When it is required and the system refuses.
    pub(crate) fn enter(self, openings: Openings) -> Result<()> {
        if self == Self::Off {
            return Ok(());
        }
        match restrict(openings) {
            Ok(()) => {
                tracing::info!(?openings, "sandbox: no programs, and what else is not opened")
            }
            Err(why) if self == Self::Required => {
                return Err(Failure::new(format!("`--sandbox required`: {why}"))
                    .hint("`--sandbox auto` starts without one where the system has none"));
            }
            Err(why) => tracing::warn!(why, "the server runs without a sandbox"),
        }
        Ok(())
    }
}

#[cfg(target_os = "linux")]
fn restrict(openings: Openings) -> std::result::Result<(), String> {
    let program = filter::program(openings)?;
    seccompiler::apply_filter_all_threads(&program).map_err(|error| error.to_string())
}

#[cfg(not(target_os = "linux"))]
fn restrict(_: Openings) -> std::result::Result<(), String> {
    Err("this system has no seccomp".to_owned())
}
