//! Architectures as data: one small file each, one shared decoder.
//!
//! An architecture is a *function from the checkpoint's config to an [`ArchSpec`]*. The decoder
//! reads the spec once, at load time, and builds layers from it; nothing matches on an
//! architecture name after that.
//!
//! ```text
//! registry ─► family: names, how files store tensors ─► spec of the model
//!                                                         └─ layers: mixer, mlp, wiring
//! ```
//!
//! **Architecture invariant:** quirks of a checkpoint (permuted or fused projections, norms stored
//! minus one, scaled embeddings) are undone while loading, never in `forward`.

mod arcee;
mod bamba;
mod bart;
mod bloom;
mod class_head;
mod cohere;
mod cohere2;
mod crossed;
mod deepseek;
mod encoders;
mod exaone4;
mod falcon;
mod falcon_h1;
mod family;
mod gemma;
mod gemma2;
mod gemma3;
mod gemma3n;
mod gemma4;
mod glm;
mod glm4;
mod glm4_moe;
mod gpt2;
mod gpt_bigcode;
mod gpt_neox;
mod gpt_oss;
mod gptj;
mod granite;
mod granite_hybrid;
mod granite_moe;
mod helium;
mod internlm2;
mod internlm3;
mod jamba;
mod kimi_linear;
mod layer;
mod lfm2;
mod llama;
mod llama4;
mod mamba;
mod mamba2;
mod memory;
mod minicpm;
mod minicpm3;
mod minimax;
mod ministral;
mod mistral;
mod mixtral;
mod moe;
mod multipliers;
mod nemotron;
mod nemotron_h;
mod olmo;
mod olmo2;
mod olmo3;
mod olmo_hybrid;
mod olmoe;
mod opt;
mod phi;
mod phi3;
mod qwen2;
mod qwen2_moe;
mod qwen3;
mod qwen3_5;
mod qwen3_moe;
mod qwen3_next;
mod registry;
mod rwkv7;
mod seed_oss;
mod smollm3;
mod spec;
mod ssm;
mod stablelm;
mod starcoder2;
mod step;
mod stored;
mod streams;
mod t5;

pub use crate::layer::{
    Absent, Act, ChannelMix, CrossAttention, ExpertGroups, Gate, GatedMlp, Gqa, GroupRank, Kept,
    KvHeads, Mixer, Mla, Mlp, Moe, Parallel, PlainMlp, QkNorm, Recurrent, RelativeBias, Router,
    RouterScore, Rule, SelectionNorms, SelectiveScan, SharedExpert, ShortConv, Temperature,
    TimeMix, ValueHeads, WithExperts,
};
pub(crate) use class_head::{ClassHead, HeadAct, HeadRow, HeadStep};
pub use encoders::ENCODERS;
pub use family::Arch;
pub(crate) use family::{INTERVAL, LayerPattern, PARALLEL, Preset};
pub use layer::{LayerSpec, Residual, Wiring};
pub(crate) use memory::MemoryPlace;
pub use multipliers::Multipliers;
pub use registry::{ARCHS, ENCODER_DECODERS, find, find_gguf};
pub(crate) use registry::{is_classifier, is_headless, known, unknown, unknown_gguf};
pub use spec::{ArchSpec, EncoderSpec, Ends, LayerInputs, LearnedPositions, NormKind};
pub(crate) use stored::{Experts, Fused, GateUp, Halves, Part, Stored};
pub use streams::Streams;
