//! From stored tensors to packed weights.
//!
//! In two passes: the first looks up every tensor that the spec asks for and checks its shape, type
//! and size, so that a checkpoint with a hole is refused in milliseconds; the second packs, with
//! every thread at work on one matrix at a time. Where a [`cache`] is asked for, the matrices of an
//! earlier load take the place of packing.
//!
//! Each stored byte is read once, and given back to the system as soon as it is packed:
//!
//! ```text
//! stored   ....[ given back .........][ band ]................   mapped, 16 MiB of it in memory
//! packed   [###########################      ]                   each matrix allocated once, filled
//! ```
//!
//! so memory at its peak is that of the packed weights and a band, not of everything twice.
//! Where the files are to be [rounded](ModelFiles::round_to), a row becomes another type just before
//! it is packed, by the thread that packs it.
//!
//! Matrices that are not packed as they lie there are the exception: rows stored in pairs and
//! transposed matrices are first copied in order, one matrix at a time, and the tensors of a
//! quantized matrix stay until all of it is packed.

mod cache;
mod footprint;
mod matrices;
mod packer;
mod part;
mod plan;
mod quantization;
mod slice;
mod streams;
mod turned;
mod walk;

pub use cache::PackedCache;
pub use matrices::{
    FoldNorm, LayerMatrix, LayerShape, StoredRows, StreamEnds, layer_shape, outer_modules,
    stream_ends,
};
pub use slice::ExpertSlice;

use pelton_quant::Compute;
use pelton_tensor::{ActivationGroup, KvDtype, StateDtype};

use crate::arch::{ArchSpec, Mixer};
use crate::comm::Communicator;
use crate::decoder::Decoder;
use crate::device::cpu::{CpuDevice, Tune};
use crate::device::{Device, Ops};
use crate::error::ModelError;
use crate::files::ModelFiles;
use crate::layer::{Linear, MixerWeights, MlpWeights, Norm};
use cache::{Cache, LoadKind};

pub(crate) use footprint::{layouts, weight_bytes};
pub(crate) use packer::{Packer, decay_rate};
pub(crate) use part::{Rows, in_pairs};
pub(crate) use plan::{LayerPlan, LinearPlan, Lookup, NormPlan, Part, Plan, Projection};
pub(crate) use quantization::{QuantizedTotals, quantized_totals};
pub(crate) use streams::{LayerStreams, StreamsWeights};
pub(crate) use turned::Turned;
pub(crate) use walk::{walk_ends, walk_layer};

/// How a model is loaded.
#[derive(Default)]
pub struct LoadOptions<'a> {
    /// Arithmetic of the weights; `F32` also keeps keys and values in f32.
    pub compute: Compute,
    /// Threads; by default one per usable core.
    pub n_threads: Option<usize>,
    /// How keys and values are stored; by default bf16, or f32 with [`Compute::F32`].
    pub kv_dtype: Option<KvDtype>,
    /// How the states of recurrent layers are stored at borders of chunks.
    pub state_dtype: StateDtype,
    /// Most activations that share a scale in products of quantized weights.
    pub activation_group: ActivationGroup,
    /// Longest sequence to serve, in tokens; by default what the model declares. Scalings that
    /// depend on the length (dynamic NTK, LongRoPE) are fixed by it.
    pub max_context: Option<usize>,
    /// Most bytes that the weights may take; by default what the machine has available.
    pub memory_bytes: Option<u64>,
    /// Where packed weights are kept from one load to the next; by default nowhere.
    ///
    /// A cache that cannot be used or written is a warning, never an error.
    pub packed_cache: Option<&'a PackedCache>,
    /// Called with the device and the bytes of the stored weights before they are packed, once they
    /// are known to be complete; may set the device's tuning.
    pub tune: Option<&'a Tune>,
    /// Called after each band of a matrix.
    pub progress: Option<&'a dyn Fn(LoadProgress)>,
}

/// Progress of a load.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LoadProgress {
    /// Stored bytes packed so far, or packed bytes verified.
    pub n_bytes: u64,
    /// The same of the whole model.
    pub n_total_bytes: u64,
    /// Whether the weights come from the cache of packed weights and are only verified.
    pub is_cached: bool,
}

/// All weights of a model, packed.
#[derive(Debug)]
pub(crate) struct Weights<B: Device> {
    pub(crate) embedding: B::Weight,
    /// Learned positions.
    pub(crate) positions: Option<B::Weight>,
    /// Kinds of tokens.
    pub(crate) token_types: Option<B::Weight>,
    pub(crate) embedding_norm: Option<Norm<B>>,
    /// Vectors of tokens for each layer.
    pub(crate) inputs: Option<InputsWeights<B>>,
    /// Projections to residual streams and from them.
    pub(crate) streams: Option<StreamsWeights<B>>,
    pub(crate) layers: Vec<LayerWeights<B>>,
    /// The encoder of an encoder-decoder model.
    pub(crate) encoder: Option<EncoderWeights<B>>,
    pub(crate) final_norm: Option<Norm<B>>,
    /// Absent where the embedding table is also the head.
    pub(crate) head: Option<B::Weight>,
    pub(crate) head_bias: Option<B::Vector>,
    /// Bytes of all of these.
    pub(crate) n_bytes: u64,
}

/// Weights of the encoder of an encoder-decoder model; the embedding is the decoder's.
#[derive(Debug)]
pub(crate) struct EncoderWeights<B: Device> {
    pub(crate) positions: Option<B::Weight>,
    pub(crate) embedding_norm: Option<Norm<B>>,
    pub(crate) layers: Vec<LayerWeights<B>>,
    pub(crate) final_norm: Option<Norm<B>>,
}

/// Weights of one layer.
#[derive(Debug)]
pub(crate) struct LayerWeights<B: Device> {
    pub(crate) attention_norm: Option<Norm<B>>,
    pub(crate) attention: MixerWeights<B>,
    pub(crate) attention_post_norm: Option<Norm<B>>,
    pub(crate) mlp_norm: Option<Norm<B>>,
    pub(crate) mlp: MlpWeights<B>,
    pub(crate) mlp_post_norm: Option<Norm<B>>,
    /// The layer's part of the vectors that tokens have for each layer.
    pub(crate) input: Option<InputWeights<B>>,
    /// The factor of what the layer leaves.
    pub(crate) scale: Option<f32>,
    /// The layer's part of residual streams.
    pub(crate) streams: Option<LayerStreams<B>>,
}

/// Weights of the vectors that tokens have for each layer ([`LayerInputs`](crate::arch::LayerInputs)).
#[derive(Debug)]
pub(crate) struct InputsWeights<B: Device> {
    /// `[n_rows, n_layers * width]`.
    pub(crate) table: B::Weight,
    /// `[n_layers * width, hidden]`.
    pub(crate) projection: Linear<B>,
    /// Norm of what is projected for one layer.
    pub(crate) norm: Norm<B>,
}

/// Weights by which a layer takes in its vector.
#[derive(Debug)]
pub(crate) struct InputWeights<B: Device> {
    /// `[width, hidden]`.
    pub(crate) gate: Linear<B>,
    /// `[hidden, width]`.
    pub(crate) out: Linear<B>,
    pub(crate) norm: Norm<B>,
}

impl<B: Device> LayerWeights<B> {
    /// The norm of what the layer reads first.
    pub(crate) fn first_norm(&self) -> Option<&Norm<B>> {
        match self.attention {
            Mixer::Absent(_) => self.mlp_norm.as_ref(),
            _ => self.attention_norm.as_ref(),
        }
    }

    /// The matrices at the end of the layer, and those of residual streams.
    pub(crate) fn tail(&self) -> impl Iterator<Item = &B::Weight> {
        let inputs = self.input.iter();
        let inputs = inputs.flat_map(|input| input.gate.weights().chain(input.out.weights()));
        inputs.chain(self.streams.iter().flat_map(LayerStreams::matrices))
    }
}

/// Bytes of the stored weights that [`load`] reads, once every tensor is known to be there.
///
/// A device may be tuned by this number before the model is loaded onto it.
///
/// # Errors
///
/// As [`load`], but for the memory.
pub fn stored_bytes(files: &ModelFiles, max_context: Option<usize>) -> Result<u64, ModelError> {
    Ok(Plan::new(files, &served_spec(files, max_context)?)?.n_bytes())
}

/// Bytes of the weights once [`load`] has packed them for the CPU.
///
/// # Errors
///
/// As [`load`], but for the memory.
pub fn packed_bytes(
    files: &ModelFiles,
    max_context: Option<usize>,
    compute: Compute,
) -> Result<u64, ModelError> {
    weight_bytes::<CpuDevice>(files, &served_spec(files, max_context)?, compute)
}

/// Loads a model onto a device.
///
/// # Errors
///
/// Names the tensor that is missing, misshapen or of an unknown type, with the shape expected; the
/// context that is too long; the memory that is missing; or that the device is one of several
/// ranks, because weights are not split yet.
pub fn load<B: Ops>(
    files: &ModelFiles,
    device: B,
    options: &LoadOptions<'_>,
) -> Result<Decoder<B>, ModelError> {
    let comm = device.comm();
    if comm.size() > 1 {
        return Err(ModelError::Ranks { n_ranks: comm.size() });
    }
    let spec = served_spec(files, options.max_context)?;
    let plan = Plan::padded(files, &spec, B::HEAD_ROWS)?;
    check_memory(&device, files, &plan, &spec, options)?;
    let load = LoadKind {
        compute: options.compute,
        rounded_to: files.rounded_to(),
        rank: comm.rank(),
        n_ranks: comm.size(),
    };
    let verified = |n_bytes, n_total_bytes| {
        if let Some(progress) = options.progress {
            progress(LoadProgress { n_bytes, n_total_bytes, is_cached: true });
        }
    };
    let cache =
        Cache::open(options.packed_cache, files, &device, &load, &plan.matrices(), &verified);
    let mut packer = Packer {
        device: &device,
        options,
        files,
        spec: &spec,
        cache,
        keeps_bf16: false,
        n_bytes: 0,
        n_total_bytes: plan.n_bytes(),
        n_packed_bytes: 0,
    };
    let weights = packer.weights(&plan)?;
    packer.cache.finish();
    let kv_dtype = options.kv_dtype.unwrap_or(match options.compute {
        Compute::F32 => KvDtype::F32,
        _ => KvDtype::Bf16,
    });
    Ok(Decoder::new(spec, weights, device, (kv_dtype, options.state_dtype)))
}

/// Checks that every tensor the configuration asks for is there, in a shape and type that can be
/// computed with, without loading any.
///
/// # Errors
///
/// As [`load`], but for the context and the memory.
pub fn check(files: &ModelFiles) -> Result<(), ModelError> {
    Plan::new(files, &files.spec()?).map(|_| ())
}

/// Refuses weights that do not fit, before the system runs out of memory and ends some process.
fn check_memory<B: Device>(
    device: &B,
    files: &ModelFiles,
    plan: &Plan<'_>,
    spec: &ArchSpec,
    options: &LoadOptions<'_>,
) -> Result<(), ModelError> {
    let needed_bytes = footprint::of_plan::<B>(files, plan, spec, options.compute)?;
    match options.memory_bytes.or_else(|| device.available_bytes()) {
        Some(available_bytes) if needed_bytes > available_bytes => {
            let file = files.tensors().origin().to_owned();
            Err(ModelError::Memory { file, needed_bytes, available_bytes })
        }
        _ => Ok(()),
    }
}

/// The spec with the context that will be served.
fn served_spec(files: &ModelFiles, max_context: Option<usize>) -> Result<ArchSpec, ModelError> {
    let mut spec = files.spec()?;
    if let Some(asked) = max_context {
        let most = spec.longest_context();
        if asked == 0 || asked > most {
            return Err(ModelError::Context { asked, most });
        }
        spec.max_context = asked;
    }
    Ok(spec)
}
