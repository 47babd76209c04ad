//! CPU arithmetic: everything a decoder computes, at the speed the machine can give.
//!
//! # The chapter
//!
//! Decoding one token reads every weight once and does two operations with it; prefill does the
//! same reads for hundreds of rows. So there are two ceilings, bytes per second and operations per
//! second, and one [`Cpu::matmul`] that comes close to both: it streams packed panels at the speed
//! of memory when it has one row, and unpacks each weight once for a tile of rows when it has more.
//!
//! * [`Kernels`] is a private table of function pointers per instruction set, chosen once at run
//!   time. `PELTON_KERNELS=scalar|avx2|avxvnni|avx512|avx512vnni` forces one.
//! * [`ThreadTeam`] is a fixed set of threads that share the tiles of each operation, and wake once
//!   per operation or once per [`StayAwake`] guard; [`Topology`] says on which cores they run.
//! * [`Cpu`] is both together: everything an operation needs. All safe operations are its methods.
//! * [`Tuning`] is how products are cut for one machine; [`Cpu::tune`] measures it.
//! * [`NodePolicy`] is how packed weights lie on a machine of several NUMA nodes;
//!   [`Cpu::choose_nodes`] measures it.
//! * [`PackedMatrix`] is a weight matrix in kernel order; [`Activations`] are the rows it
//!   multiplies, in the forms that its layout reads (floats, bf16, int8).
//! * [`Cpu::matmul_largest`] is the product that ends a greedy step: the index of the [`Largest`]
//!   output of each row.
//! * [`KvCache`] holds keys and values in pages; [`Cpu::paged_attention`] reads them.
//! * [`StateStore`] holds the states of recurrent layers; [`Cpu::scan`] and [`Cpu::conv_rows`] advance
//!   them, as [`Cpu::selective_scan`] and [`Cpu::wkv`] do.
//!
//! # The folders
//!
//! ```text
//! ops       products, attention, KV cache, recurrent states, work on rows: the methods of `Cpu`
//! layout    how weights lie in memory: one table of layouts, packing, reading
//! team      the threads of an operation and the cores that they run on
//! simd      sixteen lanes on every instruction set, packed bytes, the exponential
//! ```
//!
//! A folder uses only folders below its own (`tests/folders.rs`). Beside them stand the machine
//! (`dispatch`, `cpu`, `machine`) and the measurements that fit the crate to it (`tuning`, `nodes`,
//! `ceilings`).
//!
//! # Equal bits
//!
//! Every operation has one canonical order of summation, written in the head of its file and spelt
//! out by its scalar version. The SIMD versions follow it exactly, whatever the number of rows and
//! threads. So all instruction sets return *the same bits*, and tests compare with `assert_eq!`.
//!
//! **Architecture invariant:** a `&Kernels` exists only for an instruction set that this CPU has
//! (the table is private and filtered by [`Kernels::available`]); that is what makes calling the
//! `#[target_feature]` functions behind it sound.
//!
//! **Architecture invariant:** there is no error type for data. Shapes are the caller's promise and
//! are asserted; numbers from files are checked before they reach this crate.

mod ceilings;
mod cpu;
mod dispatch;
mod layout;
mod machine;
mod nodes;
mod ops;
mod simd;
mod team;
#[cfg(test)]
mod testing;
mod tuning;

pub use ceilings::Ceilings;
pub use cpu::Cpu;
pub use dispatch::{Kernels, UnknownKernels};
pub use layout::codes;
pub use layout::{
    BAND_BYTES, GROUP, LAYOUT_VERSION, PANEL, PackedMatrix, Rows, Storage, WeightLayout,
};
pub use machine::{beyond_caches_bytes, cpu_model, last_level_cache_bytes};
pub use nodes::{NodeChoice, NodePolicy};
pub use ops::activations::{Activations, Forms};
pub use ops::attention::{AttentionInput, AttentionSeq, DistanceBias};
pub use ops::kv::{KvCache, KvDtype, KvLayer, KvPart, KvShape, StoreKv, StridedRows};
pub use ops::matmul::{
    ActivatedOp, Largest, LogitsOp, MatmulGroup, MatmulGroups, MatmulOutput, Outputs,
};
pub use ops::quantize::QuantizedRows;
pub use ops::rows::{
    Chosen, DecayParams, GateOrder, GatedNorm, HeadLayout, HeadSlices, RopeLayout, StreamRoutes,
};
pub use ops::state::{
    CHUNK as STATE_CHUNK, ConvInput, ConvWeights, Decays, HeadOrder, ScanInput, ScanShape,
    SelectiveInput, StateDtype, StateLayer, StateSeq, StateShape, StateStore, WkvInput, WkvWeights,
};
pub use team::{StayAwake, ThreadTeam, Topology, Turn, default_threads};
pub use tuning::Tuning;
