//! Keys, limits, quotas, usage and cached results: the rules of a gateway, as pure logic.
//!
//! ```text
//!   key file --parse--> KeyRing --look_up--> the key of a request
//!   request  --begin--> Gate --reserve--> runs --settle--> Ledger --flush--> Store
//! ```
//!
//! - [`KeyRing`] knows digests of keys, never keys. A key that a person chose is costly to check,
//!   once; then it is remembered by its digest.
//! - [`Gate`] bounds requests and tokens per minute, requests at once, and tokens per day, month and
//!   in all, of each key and each tenant. Tokens are reserved before a request runs and settled at
//!   its end, so no number of clients exceeds a limit together.
//! - [`Ledger`] counts usage per day, key, tenant and model. A row is counted when its [`Store`] has
//!   written it; until then it is kept and tried again.
//! - [`ResultCache`] keeps whole answers, bounded in bytes and in time.
//!
//! **Architecture invariant:** nothing here reads a clock, a file or a socket. Time comes in as
//! [`Now`], and a [`Store`] is the only way out.
#![forbid(unsafe_code)]

mod clock;
mod gate;
mod keys;
mod ledger;
mod limits;
mod meter;
mod report;
mod result_cache;
mod window;

pub use clock::{Day, Now, date_time, parse_date_time, parse_span};
pub use gate::{Demand, Gate, Party, PartyId, Refusal, Reservation, Who};
pub use keys::{
    Check, Key, KeyFile, KeyFileError, KeyProblem, KeyRing, Lookup, Scope, Scopes, SecretHash,
    is_key_id, random_key,
};
pub use ledger::{Counts, Ledger, RowKey, Store, StoreError};
pub use limits::{Limit, Limits};
pub use meter::Standing;
pub use report::{Filter, Report, Row};
pub use result_cache::ResultCache;
