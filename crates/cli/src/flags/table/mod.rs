//! The table of flags, a file for each group; [`Flag`] says what an entry holds.

mod drafts;
mod model;
mod scheduling;
mod server;

use super::Flag;

/// The groups, in the order of the help.
static GROUPS: [&[Flag]; 4] =
    [model::MODEL, server::SERVER, scheduling::SCHEDULING, drafts::DRAFTS];

/// Every flag that commands share, in the order of their help.
pub(crate) fn table() -> impl Iterator<Item = &'static Flag> {
    GROUPS.iter().flat_map(|group| group.iter())
}
