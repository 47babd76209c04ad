//! The settings of `pelton serve`: flags over the environment over a YAML file over built-in values.
//!
//! ```text
//!   --policy sla        PELTON_POLICY=fair     policy: lpm         fcfs
//!   flag            >   environment        >   file            >   built in
//! ```
//!
//! The file spells flags with underscores, and has what no flag can say: tenants. A field that is
//! not known is an error with its line. API keys are read into [`Secret`]s and are digests soon
//! after: no error, log or `--check-config` shows one, so errors quote no line of the file either.

mod file;
mod secret;
mod settings;

pub(crate) use secret::Secret;
pub(crate) use settings::Settings;
