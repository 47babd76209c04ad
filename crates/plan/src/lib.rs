//! Sizes and speeds of models on machines, computed from a model's specification before its weights are there.
//!
//! ```text
//! ArchSpec ──► weights   bytes of every matrix in a format                       (weights.rs)
//!          ──► kv        bytes of keys and values, by the allocator's arithmetic (kv.rs)
//!          ──► workspace rows between operations, logits                         (workspace.rs)
//!                 │
//! Hardware ───────┴──► fit    sequences that fit; if not, what would             (fit.rs)
//! (hardware.rs)   └──► time   a step by its bytes and operations: TTFT, TPOT     (time.rs)
//!                         └── plan: all of it, with costs                        (plan.rs)
//!                             └── advise: the techniques that help a workload     (advise/)
//! ```
//!
//! Times of a profile from a datasheet are bounds that no program exceeds. Times of a machine that
//! was measured (`pelton doctor`) use products as they were measured, and are predictions.
//!
//! **Architecture invariant:** nothing here reads a file, a clock or the environment.
#![forbid(unsafe_code)]

pub mod advise;
mod fit;
mod hardware;
mod kv;
mod plan;
mod ranks;
mod rows;
mod time;
mod weights;
mod workspace;

pub use fit::{Fit, Shortage, Way};
pub use hardware::{
    Arithmetic, Hardware, HardwareKind, MeasuredAttention, MeasuredLine, MeasuredProduct,
    MeasuredRows, Peaks, profiles,
};
pub use kv::KvSizes;
pub use plan::{Cost, Plan, Request, plan};
pub use ranks::{RankSizes, Split};
pub use time::{Limit, Times};
pub use weights::{FormatSize, Stored, WeightSizes, Weights, sizes_by_format};
pub use workspace::workspace_bytes;
