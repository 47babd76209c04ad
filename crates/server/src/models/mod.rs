//! The models of a server, by name.
//!
//! ```text
//!   request ── name or alias ──▶ Catalog ──▶ Model: one loaded version, kept while a request uses it
//! ```

mod catalog;
mod directory;
mod entry;
mod model;
mod room;
mod served;
mod spec;

pub use catalog::Catalog;
pub(crate) use entry::Standing;
pub(crate) use model::Model;
pub use served::Served;
pub use spec::{Loader, ModelSpec, ModelsError};
