//! The models of a server, by name.
//!
//! ```text
//!   request ── name or alias ──▶ Catalog ──▶ Model: one loaded version, kept while a request uses it
//!           ── `auto`, or too much to do ──▶ Routing: rules that choose another name
//! ```

mod catalog;
mod directory;
mod entry;
mod model;
mod room;
mod routing;
mod served;
mod spec;

pub use catalog::Catalog;
pub use directory::check_names;
pub(crate) use entry::Standing;
pub(crate) use model::Model;
pub(crate) use routing::{AUTO, Chosen, Load, Traits};
pub use routing::{AutoRule, Condition, DegradeRule, Routing, RoutingError};
pub use served::Served;
pub use spec::{Loader, ModelSpec, ModelsError};
