//! The settings of `pelton serve`: flags over the environment over a YAML file over built-in values.
//!
//! ```text
//!   --policy sla        PELTON_POLICY=fair     policy: lpm         fcfs
//!   flag            >   environment        >   file            >   built in
//! ```
//!
//! The table of flags gives the keys of the file, with underscores for dashes; tenants and API keys
//! are keys of their own. An unknown key is an error with its line. API keys are read into
//! [`Secret`]s and soon replaced by digests: no error, log or `--check-config` shows one, so errors
//! quote no line of the file either.

mod file;
mod secret;
mod settings;

pub(crate) use secret::Secret;
pub(crate) use settings::Settings;
