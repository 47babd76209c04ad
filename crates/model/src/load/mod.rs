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
//! so memory at its peak is that of the packed weights and a band, not of everything twice. Matrices
//! that are not packed as they lie there are the exception: rows stored in pairs and transposed
//! matrices are first copied in order, one matrix at a time, and the tensors of a quantized matrix
//! stay until all of it is packed.

mod cache;
mod footprint;
mod memory;
mod part;
mod plan;
mod quantization;
mod turned;

pub use cache::PackedCache;
pub use memory::available_memory_bytes;

use std::borrow::Cow;

use pelton_kernels::{Cpu, KvDtype};
use pelton_quant::{Compute, QuantError, dequantize_tensor};
use pelton_tensor::TensorView;

use crate::arch::{Act, ArchSpec, LayerSpec, Mixer, Mlp, Moe, NormKind};
use crate::backend::Backend;
use crate::backend::cpu::CpuBackend;
use crate::comm::Communicator;
use crate::decoder::Decoder;
use crate::error::ModelError;
use crate::files::ModelFiles;
use crate::layer::{
    AttentionWeights, LatentWeights, Linear, MixerWeights, MlpWeights, MoeWeights, Norm, Piece,
    Shard, SharedWeights, TwoLayers,
};
use cache::{Cache, LoadKind};

pub(crate) use footprint::weight_bytes;
pub(crate) use part::{Rows, in_pairs};
pub(crate) use plan::{LayerPlan, LinearPlan, MlpPlan, MoePlan, NormPlan, Part, Plan, TwoPlan};
pub(crate) use quantization::{QuantizedTotals, quantized_totals};

/// Tunes a device for so many bytes of weights.
type Tune = dyn Fn(&mut Cpu, u64);

/// How a model is loaded.
#[derive(Default)]
pub struct LoadOptions<'a> {
    /// Arithmetic of the weights; `F32` also keeps keys and values in f32.
    pub compute: Compute,
    /// Threads; by default one per usable core.
    pub n_threads: Option<usize>,
    /// How keys and values are stored; by default bf16, or f32 with [`Compute::F32`].
    pub kv_dtype: Option<KvDtype>,
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

/// How far loading has come.
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
pub(crate) struct Weights<B: Backend> {
    pub(crate) embedding: B::Weight,
    /// Learned positions.
    pub(crate) positions: Option<B::Weight>,
    /// Kinds of tokens.
    pub(crate) token_types: Option<B::Weight>,
    pub(crate) embedding_norm: Option<Norm<B>>,
    pub(crate) layers: Vec<LayerWeights<B>>,
    pub(crate) final_norm: Option<Norm<B>>,
    /// Absent where the embedding table is also the head.
    pub(crate) head: Option<B::Weight>,
    pub(crate) head_bias: Option<B::Vector>,
    /// Of all of these.
    pub(crate) n_bytes: u64,
}

/// Weights of one layer.
#[derive(Debug)]
pub(crate) struct LayerWeights<B: Backend> {
    pub(crate) attention_norm: Option<Norm<B>>,
    pub(crate) attention: MixerWeights<B>,
    pub(crate) attention_post_norm: Option<Norm<B>>,
    pub(crate) mlp_norm: Option<Norm<B>>,
    pub(crate) mlp: MlpWeights<B>,
    pub(crate) mlp_post_norm: Option<Norm<B>>,
}

/// Loads a model for the CPU: [`load`] onto a [`CpuBackend`] of `options.n_threads` threads.
///
/// # Errors
///
/// As [`load`], and when the environment asks for kernels that this machine cannot run.
pub fn load_cpu(
    files: &ModelFiles,
    options: &LoadOptions<'_>,
) -> Result<Decoder<CpuBackend>, ModelError> {
    let mut cpu = Cpu::new(options.n_threads)?;
    if let Some(tune) = options.tune {
        tune(&mut cpu, stored_bytes(files, options.max_context)?);
    }
    load(files, CpuBackend::new(cpu), options)
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

/// Loads a model onto a device.
///
/// # Errors
///
/// Names the tensor that is missing, misshapen or of an unknown type, with the shape expected; the
/// context that is too long; the memory that is missing; or that the device is one of several ranks,
/// because weights are not split yet.
pub fn load<B: Backend>(
    files: &ModelFiles,
    device: B,
    options: &LoadOptions<'_>,
) -> Result<Decoder<B>, ModelError> {
    let comm = device.comm();
    if comm.size() > 1 {
        return Err(ModelError::Ranks { n_ranks: comm.size() });
    }
    let spec = served_spec(files, options.max_context)?;
    let plan = Plan::new(files, &spec)?;
    check_memory(files, &plan, &spec, options)?;
    let load = LoadKind { compute: options.compute, rank: comm.rank(), n_ranks: comm.size() };
    let verified = |n_bytes, n_total_bytes| {
        if let Some(progress) = options.progress {
            progress(LoadProgress { n_bytes, n_total_bytes, is_cached: true });
        }
    };
    let cache =
        Cache::open(options.packed_cache, files, &device, &load, &plan.matrices(), &verified);
    let mut packer = Packer {
        backend: &device,
        options,
        files,
        cache,
        n_bytes: 0,
        n_total_bytes: plan.n_bytes(),
        n_packed_bytes: 0,
    };
    let weights = packer.weights(&plan, &spec)?;
    packer.cache.finish();
    let kv_dtype = options.kv_dtype.unwrap_or(match options.compute {
        Compute::F32 => KvDtype::F32,
        _ => KvDtype::Bf16,
    });
    Ok(Decoder::new(spec, weights, device, kv_dtype))
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
fn check_memory(
    files: &ModelFiles,
    plan: &Plan<'_>,
    spec: &ArchSpec,
    options: &LoadOptions<'_>,
) -> Result<(), ModelError> {
    let needed_bytes = footprint::of_plan(files, plan, spec, options.compute)?;
    match options.memory_bytes.or_else(available_memory_bytes) {
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

struct Packer<'a, B: Backend> {
    backend: &'a B,
    options: &'a LoadOptions<'a>,
    files: &'a ModelFiles,
    cache: Cache<B>,
    n_bytes: u64,
    n_total_bytes: u64,
    n_packed_bytes: u64,
}

impl<B: Backend> Packer<'_, B> {
    fn weights(&mut self, plan: &Plan<'_>, spec: &ArchSpec) -> Result<Weights<B>, ModelError> {
        Ok(Weights {
            embedding: self.matrix(&plan.embedding)?,
            positions: plan.positions.as_ref().map(|table| self.matrix(table)).transpose()?,
            token_types: plan.token_types.as_ref().map(|table| self.matrix(table)).transpose()?,
            embedding_norm: self.optional_norm(&plan.embedding_norm, spec)?,
            layers: (plan.layers.iter().zip(&spec.layers))
                .map(|(plan, layer)| self.layer(plan, layer, spec))
                .collect::<Result<_, _>>()?,
            final_norm: self.optional_norm(&plan.final_norm, spec)?,
            head: plan.head.as_ref().map(|head| self.matrix(head)).transpose()?,
            head_bias: plan.head_bias.as_ref().map(|bias| self.vector(bias)).transpose()?,
            // Evaluated last: fields are, in the order in which they stand here.
            n_bytes: self.n_packed_bytes,
        })
    }

    fn layer(
        &mut self,
        plan: &LayerPlan<'_>,
        layer: &LayerSpec,
        spec: &ArchSpec,
    ) -> Result<LayerWeights<B>, ModelError> {
        let eps = match &layer.mixer {
            Mixer::Gqa(_) => spec.norm_eps,
            Mixer::Mla(mla) => mla.norm_eps,
        };
        let mut qk_norm = |norm: &Option<NormPlan<'_>>| {
            // What kind it is stands in the spec of the attention.
            let norm = norm.as_ref();
            norm.map(|norm| self.norm(norm, NormKind::Rms, eps)).transpose()
        };
        let (q_norm, k_norm) = (qk_norm(&plan.q_norm)?, qk_norm(&plan.k_norm)?);
        let attention = match (&layer.mixer, &plan.latent, k_norm) {
            (Mixer::Gqa(gqa), None, k_norm) => MixerWeights::Gqa(AttentionWeights {
                qkv: self.linear(&plan.qkv)?,
                q_norm,
                k_norm,
                slopes: gqa.alibi.map(|factor| self.put(&alibi_slopes(gqa.n_heads, factor))),
                sinks: plan.sinks.as_ref().map(|sinks| self.vector(sinks)).transpose()?,
                out: self.linear(&plan.out)?,
            }),
            (Mixer::Mla(_), Some(latent), Some(kv_norm)) => MixerWeights::Mla(LatentWeights {
                down: self.linear(&plan.qkv)?,
                q_norm,
                q_up: latent.q_up.as_ref().map(|q_up| self.linear(q_up)).transpose()?,
                kv_norm,
                k_up: self.matrix(&latent.k_up)?,
                v_up: self.matrix(&latent.v_up)?,
                out: self.linear(&plan.out)?,
            }),
            _ => unreachable!("invariant: latent attention has a plan of its latents"),
        };
        Ok(LayerWeights {
            attention_norm: self.optional_norm(&plan.attention_norm, spec)?,
            attention,
            attention_post_norm: self.optional_norm(&plan.attention_post_norm, spec)?,
            mlp_norm: self.optional_norm(&plan.mlp_norm, spec)?,
            mlp: match (&layer.mlp, &plan.mlp) {
                (Mlp::Gated(mlp), MlpPlan::Two(plan)) => {
                    MlpWeights::Gated(self.two_layers(plan, mlp.act)?)
                }
                (Mlp::Plain(mlp), MlpPlan::Two(plan)) => {
                    MlpWeights::Plain(self.two_layers(plan, mlp.act)?)
                }
                (Mlp::Moe(moe), MlpPlan::Moe(plan)) => {
                    MlpWeights::Moe(Box::new(self.moe(plan, moe)?))
                }
                _ => unreachable!("invariant: the plan is of this spec"),
            },
            mlp_post_norm: self.optional_norm(&plan.mlp_post_norm, spec)?,
        })
    }

    fn two_layers(&mut self, plan: &TwoPlan<'_>, act: Act) -> Result<TwoLayers<B>, ModelError> {
        Ok(TwoLayers { up: self.linear(&plan.up)?, down: self.linear(&plan.down)?, act })
    }

    fn moe(&mut self, plan: &MoePlan<'_>, moe: &Moe) -> Result<MoeWeights<B>, ModelError> {
        let shared = match (&plan.shared, &moe.shared) {
            (Some(two), Some(shared)) => Some(SharedWeights {
                mlp: self.two_layers(two, shared.mlp.act)?,
                switch: plan.switch.as_ref().map(|switch| self.linear(switch)).transpose()?,
            }),
            _ => None,
        };
        Ok(MoeWeights {
            router: self.linear(&plan.router)?,
            correction: plan.correction.as_ref().map(|plan| self.vector(plan)).transpose()?,
            routing: moe.router.clone(),
            weighs_input: moe.weighs_input,
            limit: moe.limit,
            experts: (plan.experts.iter())
                .map(|expert| self.two_layers(expert, moe.expert.act))
                .collect::<Result<_, _>>()?,
            shared,
        })
    }

    fn optional_norm(
        &mut self,
        plan: &Option<NormPlan<'_>>,
        spec: &ArchSpec,
    ) -> Result<Option<Norm<B>>, ModelError> {
        plan.as_ref().map(|plan| self.norm(plan, spec.norm, spec.norm_eps)).transpose()
    }

    fn norm(
        &mut self,
        plan: &NormPlan<'_>,
        kind: NormKind,
        eps: f32,
    ) -> Result<Norm<B>, ModelError> {
        let weight = self.vector(plan)?;
        let bias = match (kind, &plan.bias) {
            (NormKind::Rms, _) => None,
            (NormKind::Layer { .. }, None) => Some(self.put(&vec![0.0; plan.rows.n])),
            (NormKind::Layer { .. }, Some(bias)) => {
                let values = self.values(bias)?;
                Some(self.put(&values))
            }
        };
        Ok(Norm { weight, bias, eps })
    }

    /// A norm's weight, or another vector; ones where there is none.
    fn vector(&mut self, plan: &NormPlan<'_>) -> Result<B::Vector, ModelError> {
        let mut stored = Vec::new();
        for view in &plan.weights {
            stored.extend(self.values(view)?);
        }
        let values = match stored.is_empty() {
            true => vec![1.0; plan.rows.n],
            false => plan.rows.pick_values(&stored).iter().map(|x| x + plan.offset).collect(),
        };
        Ok(self.put(&values))
    }

    fn put(&mut self, values: &[f32]) -> B::Vector {
        self.n_packed_bytes += size_of_val(values) as u64;
        self.backend.vector(values)
    }

    fn values(&mut self, view: &TensorView<'_>) -> Result<Vec<f32>, ModelError> {
        let values = dequantize_tensor(view).map_err(|source| self.format_error(source))?;
        self.advance(view.data, view.data.len());
        Ok(values)
    }

    fn linear(&mut self, plan: &LinearPlan<'_>) -> Result<Linear<B>, ModelError> {
        let compute = plan.compute(self.options.compute);
        let (mut pieces, mut first_row, mut n) = (Vec::new(), 0, 0);
        for run in plan.runs() {
            let (order, adds) = (run[0].order().map(Box::from), run[0].adds());
            if !adds {
                first_row = n;
                n += run.iter().map(Part::n).sum::<usize>();
            }
            let weight = self.pack(run, compute)?;
            pieces.push(Piece { weight, first_row, order, adds });
        }
        let mut bias = Vec::new();
        for part in &plan.biases {
            let data = part.ordered();
            let values = dequantize_tensor(&part.with_data(&data));
            bias.extend(values.map_err(|source| self.format_error(source))?);
            part.stored().for_each(|(data, n_bytes)| self.advance(data, n_bytes));
        }
        let bias = (!bias.is_empty()).then(|| self.put(&bias));
        Ok(Linear { pieces, shard: Shard::whole(n), bias, n, k: plan.k })
    }

    /// A matrix that stands alone: the embedding table or the head.
    fn matrix(&mut self, plan: &Part<'_>) -> Result<B::Weight, ModelError> {
        self.pack(std::slice::from_ref(plan), self.options.compute)
    }

    /// One matrix of parts of one type.
    fn pack(&mut self, parts: &[Part<'_>], compute: Compute) -> Result<B::Weight, ModelError> {
        let packed = match (self.cache.take(parts), quantization::whole(parts)) {
            (Some(weight), _) => weight,
            (None, _) if parts[0].turned.is_some() => self.pack_turned(&parts[0], compute)?,
            (None, Some(matrices)) => {
                let packed = self.backend.pack_quantized(&matrices, compute);
                let packed = packed.map_err(|source| self.format_error(source))?;
                for (data, n_bytes) in parts.iter().flat_map(Part::stored) {
                    self.advance(data, n_bytes);
                }
                packed
            }
            (None, None) => self.pack_rows(parts, compute)?,
        };
        self.cache.keep(self.backend, parts, &packed);
        self.n_packed_bytes += B::weight_bytes(&packed) as u64;
        Ok(packed)
    }

    /// Packs the rows of parts and gives them back band by band.
    fn pack_rows(&mut self, parts: &[Part<'_>], compute: Compute) -> Result<B::Weight, ModelError> {
        let ordered: Vec<_> = parts.iter().map(Part::ordered).collect();
        for (part, data) in parts.iter().zip(&ordered) {
            if matches!(data, Cow::Owned(_)) {
                // Read for the last time when it was copied: the parts of a tensor stand together.
                part.stored().for_each(|(data, n_bytes)| self.advance(data, n_bytes));
            }
        }
        let views: Vec<_> =
            parts.iter().zip(&ordered).map(|(part, data)| part.with_data(data)).collect();
        let backend = self.backend;
        let packed = backend.pack(&views, compute, &mut |rows| {
            let mut first = 0;
            for (view, data) in views.iter().zip(&ordered) {
                let n = view.shape[0];
                let own = rows.start.clamp(first, first + n)..rows.end.clamp(first, first + n);
                if let Cow::Borrowed(data) = data
                    && !own.is_empty()
                {
                    let row_bytes = data.len() / n;
                    let band = &data[(own.start - first) * row_bytes..][..own.len() * row_bytes];
                    self.advance(band, band.len());
                }
                first += n;
            }
        });
        packed.map_err(|source| self.format_error(source))
    }

    /// Packs rows that become columns and gives back what they were stored in.
    fn pack_turned(&mut self, part: &Part<'_>, compute: Compute) -> Result<B::Weight, ModelError> {
        let turned = part.turned.expect("invariant: the part is turned");
        let data = turned.bytes(part).map_err(|source| self.format_error(source))?;
        part.stored().for_each(|(data, n_bytes)| self.advance(data, n_bytes));
        let view = TensorView { dtype: part.dtype(), ..part.with_data(&data) };
        let packed = self.backend.pack(&[view], compute, &mut |_| ());
        packed.map_err(|source| self.format_error(source))
    }

    fn format_error(&self, source: QuantError) -> ModelError {
        let file = self.files.tensors().origin().to_owned();
        ModelError::Format { file, source }
    }

    /// Gives stored bytes back and reports `n_bytes` of them as packed.
    fn advance(&mut self, stored: &[u8], n_bytes: usize) {
        self.files.tensors().give_back(stored);
        if matches!(self.cache, Cache::Hit(_)) {
            // All there is to report was reported when the cache was verified.
            return;
        }
        self.n_bytes += n_bytes as u64;
        if let Some(progress) = self.options.progress {
            let (n_bytes, n_total_bytes) = (self.n_bytes, self.n_total_bytes);
            progress(LoadProgress { n_bytes, n_total_bytes, is_cached: false });
        }
    }
}

/// How fast the scores of each head fall (Press et al., 2022): powers of `2^(-8 / n)` for a power of
/// two `n`; what is left of other numbers takes every second slope of twice as many heads.
fn alibi_slopes(n_heads: usize, factor: f32) -> Vec<f32> {
    let n_first = if n_heads.is_power_of_two() { n_heads } else { n_heads.next_power_of_two() / 2 };
    let slope = |exponent: usize, n: usize| (-8.0 * exponent as f64 / n as f64).exp2() as f32;
    let first = (1..=n_first).map(|i| slope(i, n_first));
    let rest = (0..n_heads - n_first).map(|i| slope(2 * i + 1, 2 * n_first));
    first.chain(rest).map(|slope| slope * factor).collect()
}
