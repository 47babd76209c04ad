//! Requests over time, with their lengths, tenants and shared prefixes: from files and generators.
//!
//! A trace is an iterator that can be started again and again, and that holds one request at a
//! time: a million of them take no more memory than ten.

mod file;
mod foreign;
mod format;
mod request;
mod tenants;
mod workload;

pub use file::{TraceError, TraceFile, TraceReader, save};
pub use format::{FieldError, parse_line, write_line};
pub(crate) use request::Text;
pub use request::{MOST_PREFIXES, Prefix, Prefixes, TraceRequest, Turn};
pub use tenants::{MOST_TENANTS, Tenants};
pub use workload::{ArrivalKind, Workload, WorkloadError, WorkloadKind, WorkloadRequests};

/// Requests in order of arrival.
#[derive(Clone, Debug)]
pub enum Trace {
    /// As a file says.
    File(TraceFile),
    /// As a generator makes them.
    Workload(Workload),
}

impl Trace {
    /// The tenants of the requests.
    pub fn tenants(&self) -> &Tenants {
        match self {
            Self::File(file) => &file.tenants,
            Self::Workload(workload) => workload.tenants(),
        }
    }

    /// Number of requests.
    pub fn n_requests(&self) -> u64 {
        match self {
            Self::File(file) => file.n_requests,
            Self::Workload(workload) => workload.n_requests(),
        }
    }

    /// Whether some of them wait for the answers of others.
    pub fn has_sessions(&self) -> bool {
        match self {
            Self::File(file) => file.has_sessions,
            Self::Workload(workload) => workload.kind() == WorkloadKind::Sessions,
        }
    }

    /// All of them, from the first; each call gives the same.
    ///
    /// # Errors
    ///
    /// A file that cannot be read any more.
    pub fn requests(&self) -> Result<TraceRequests, TraceError> {
        Ok(match self {
            Self::File(file) => TraceRequests::File(file.requests()?),
            Self::Workload(workload) => TraceRequests::Workload(workload.requests()),
        })
    }
}

/// The requests of a [`Trace`].
#[derive(Debug)]
pub enum TraceRequests {
    /// From a file.
    File(TraceReader),
    /// From a generator.
    Workload(WorkloadRequests),
}

impl Iterator for TraceRequests {
    type Item = Result<TraceRequest, TraceError>;

    fn next(&mut self) -> Option<Self::Item> {
        match self {
            Self::File(reader) => reader.next(),
            Self::Workload(requests) => requests.next().map(Ok),
        }
    }
}
