//! The CPU as a device: buffers, packed weights and KV in host memory, operations by
//! [`pelton_kernels`].
//!
//! ```text
//! mod.rs       what a Device holds       linear.rs    products
//! ops.rs       operations of layers      latent.rs    latent attention      experts.rs    mixtures
//! sequences.rs sequences, block tables and lanes    kv.rs    pages and states
//! recurrent.rs, selective.rs, shift.rs              recurrences
//! streams.rs   residual streams side by side         inner.rs    what products inside these read
//! ```
//!
//! Intermediate results that nothing else reads stay in scratch rows that are reused by every layer
//! and step: the gate·up product, its activation, and layer inputs in the forms that their matrices
//! read (int8, bf16). Norms and activations write these forms themselves; the output of attention is
//! brought into them here. Nothing is allocated in a step once the largest batch has been seen.

mod cross;
mod experts;
mod inner;
mod kv;
mod latent;
mod linear;
mod ops;
mod recurrent;
mod selective;
mod sequences;
mod shift;
mod streams;

use std::ops::Range;
use std::sync::Arc;

use pelton_kernels::{
    Activations, Cpu, Forms, LAYOUT_VERSION, Largest, PANEL, PackedMatrix, StateStore, Storage,
    WeightLayout,
};
use pelton_quant::{Compute, QuantError};
use pelton_tensor::{ActivationGroup, AlignedVec, MappedFile, available_memory_bytes};

use super::{Device, MatrixSource, PackedBytes, PackedForm, PackedSize, StoredMatrix};
use crate::comm::SoleRank;
use crate::decoder::Decoder;
use crate::device::StepRows;
use crate::error::ModelError;
use crate::files::ModelFiles;
use crate::kv::{KvPlace, KvShape};
use crate::layer::KvHeads;
use crate::load::{LoadOptions, load, stored_bytes};
use crate::state::{StateBytes, StateCopy, StateShape};
use experts::{Beside, Experts};
pub use kv::CpuKv;
use latent::Latent;
use linear::{Input, read_by};
use recurrent::Recurrence;
use selective::Selection;
use sequences::Sequences;
use shift::Shift;

/// Runs decoders on the CPU.
#[derive(Debug)]
pub struct CpuDevice {
    cpu: Cpu,
    /// A layer's input in the forms that its matrices read, where its buffer has floats alone.
    input: Input,
    /// A perceptron's hidden layer before the activation, where that is an operation of its own.
    hidden: AlignedVec<f32>,
    activated: Activations,
    /// Scratch of latent attention.
    latent: Latent,
    experts: Experts,
    /// Scratch of perceptrons with experts beside them.
    beside: Beside,
    /// Scratch of recurrent layers.
    recurrent: Recurrence,
    /// Scratch of selective scans.
    selection: Selection,
    /// Scratch of mixers that mix rows with the rows before them.
    shift: Shift,
    /// `[m, rotary_dim]` for each rotary embedding: cosines and sines of this step's positions.
    cos_sin: Vec<Vec<f32>>,
    /// The tokens of a step, as rows of the embedding table.
    ids: Vec<u32>,
    /// Largest logit of each row that needs no logits.
    largest: Vec<Largest>,
    sequences: Sequences,
}

impl CpuDevice {
    /// A device on the kernels of this machine, or those that `PELTON_KERNELS` names, and on
    /// `n_threads` threads, by default one per usable core.
    ///
    /// # Errors
    ///
    /// When `PELTON_KERNELS` names kernels that this machine cannot run.
    pub fn with_threads(n_threads: Option<usize>) -> Result<Self, ModelError> {
        Ok(Self::new(Cpu::new(n_threads)?))
    }

    /// Activations that share a scale in products with a matrix in a layout, given by its name, where
    /// at most `group` may; `None` where the layout multiplies activations that are not quantized.
    pub fn activation_group(layout: &str, group: ActivationGroup) -> Option<ActivationGroup> {
        let layout = WeightLayout::ALL.iter().find(|known| known.name() == layout)?;
        layout.needs_quantized_input().then(|| group.min(layout.widest_group()))
    }

    /// A device on the given kernels and threads.
    pub fn new(cpu: Cpu) -> Self {
        Self {
            cpu,
            input: Input::new(),
            hidden: AlignedVec::new(),
            activated: Activations::new(1, Forms::F32),
            latent: Latent::new(),
            experts: Experts::new(),
            beside: Beside::new(),
            recurrent: Recurrence::new(),
            selection: Selection::new(),
            shift: Shift::new(),
            cos_sin: Vec::new(),
            ids: Vec::new(),
            largest: Vec::new(),
            sequences: Sequences::default(),
        }
    }

    /// The kernels and threads in use.
    pub fn cpu(&self) -> &Cpu {
        &self.cpu
    }
}

/// Tunes the CPU for weights of this many bytes.
pub type Tune = dyn Fn(&mut Cpu, u64);

/// Loads a model for the CPU: [`load`] onto a [`CpuDevice`] of `options.n_threads` threads.
///
/// # Errors
///
/// As [`load`], and when the environment asks for kernels that this machine cannot run.
pub fn load_cpu(
    files: &ModelFiles,
    options: &LoadOptions<'_>,
) -> Result<Decoder<CpuDevice>, ModelError> {
    let mut cpu = Cpu::new(options.n_threads)?;
    if let Some(tune) = options.tune {
        tune(&mut cpu, stored_bytes(files, options.max_context)?);
    }
    cpu.activation_group = options.activation_group;
    load(files, CpuDevice::new(cpu), options)
}

impl Decoder<CpuDevice> {
    /// The layouts of the matrices that a token passes through, with their bytes, largest first.
    pub fn layouts(&self) -> Vec<(WeightLayout, usize)> {
        let mut found: Vec<(WeightLayout, usize)> = Vec::new();
        for matrix in self.matrices() {
            match found.iter_mut().find(|(layout, _)| *layout == matrix.layout()) {
                Some((_, n_bytes)) => *n_bytes += matrix.n_bytes(),
                None => found.push((matrix.layout(), matrix.n_bytes())),
            }
        }
        found.sort_by_key(|(_, n_bytes)| std::cmp::Reverse(*n_bytes));
        found
    }
}

impl Device for CpuDevice {
    type Buf = Activations;
    type Weight = PackedMatrix;
    type Vector = Vec<f32>;
    type Kv = CpuKv;
    type Rows<'a> = StepRows<'a>;
    type Comm = SoleRank;

    const HEAD_ROWS: usize = PANEL;

    fn comm(&self) -> &SoleRank {
        &SoleRank
    }

    fn available_bytes(&self) -> Option<u64> {
        available_memory_bytes()
    }

    fn packed_size(
        matrix: &StoredMatrix<'_, '_>,
        compute: Compute,
    ) -> Result<Option<PackedSize>, QuantError> {
        let size = match *matrix {
            StoredMatrix::Tensor { dtype, shape } => {
                pelton_quant::packed_size(dtype, shape, compute)
            }
            StoredMatrix::Quantized(parts) => {
                let n = parts.iter().map(|part| part.shape()[0]).sum();
                let layout = pelton_quant::checkpoint::layout_of(parts, compute)?;
                Some((layout, PackedMatrix::bytes_for(layout, [n, parts[0].shape()[1]])))
            }
        };
        Ok(size.map(|(layout, n_bytes)| PackedSize { layout: layout.name(), n_bytes }))
    }

    fn pack(
        &self,
        matrix: &MatrixSource<'_, '_>,
        compute: Compute,
        done: &mut dyn FnMut(Range<usize>),
    ) -> Result<PackedMatrix, QuantError> {
        match *matrix {
            MatrixSource::Tensors(parts) => {
                pelton_quant::pack_bands(&self.cpu, parts, compute, done)
            }
            MatrixSource::Rounded(parts, to) => {
                pelton_quant::pack_rounded(&self.cpu, parts, to, compute, done)
            }
            MatrixSource::Quantized(parts) => {
                pelton_quant::checkpoint::pack_quantized(&self.cpu, parts, compute)
            }
        }
    }

    fn packed_form(&self) -> Option<&dyn PackedForm<PackedMatrix>> {
        Some(self)
    }

    fn weight_bytes(weight: &PackedMatrix) -> usize {
        weight.n_bytes()
    }

    fn vector(&self, values: &[f32]) -> Vec<f32> {
        values.to_vec()
    }

    fn buffer(&self, width: usize) -> Activations {
        Activations::new(width, Forms::F32)
    }

    fn input_buffer<'a>(
        &self,
        width: usize,
        readers: impl IntoIterator<Item = &'a PackedMatrix>,
    ) -> Activations {
        Activations::new(width, read_by(&self.cpu, readers))
    }

    fn read(&self, x: &Activations, out: &mut Vec<f32>) {
        out.clear();
        out.extend_from_slice(x.floats());
    }

    fn kv_block_bytes(shape: &KvShape) -> usize {
        kernel_shape(shape).bytes_per_block()
    }

    fn state_bytes(states: &StateShape) -> StateBytes {
        let shape = kv::state_shape(states);
        let (lane, snapshot) = (StateStore::lane_bytes(&shape), StateStore::snapshot_bytes(&shape));
        StateBytes { lane, snapshot }
    }

    fn new_kv(&self, shape: &KvShape, states: &StateShape) -> std::io::Result<CpuKv> {
        CpuKv::try_new(kernel_shape(shape), states)
    }

    fn copy_state(&self, kv: &mut CpuKv, copy: StateCopy) {
        kv.copy_state(copy);
    }

    fn copy_state_row(&self, kv: &mut CpuKv, lane: usize, from: usize, to: usize) {
        kv.states.copy_row(lane, from, to);
    }

    fn kv_block_size(kv: &CpuKv) -> usize {
        kv.pages.shape().block_size
    }

    fn copy_kv_block(&self, kv: &mut CpuKv, from: u32, to: u32) {
        kv.pages.copy_block(from, to);
    }

    fn copy_kv_slot(&self, kv: &mut CpuKv, place: KvPlace, from: u32, to: u32) {
        let layer = kv.layer(place);
        kv.pages.copy_slot(layer, from, to);
    }

    fn read_kv_block(&self, kv: &CpuKv, block: u32, bytes: &mut [u8]) {
        kv.pages.read_block(block, bytes);
    }

    fn write_kv_block(&self, kv: &mut CpuKv, block: u32, bytes: &[u8]) {
        kv.pages.write_block(block, bytes);
    }
}

/// The shape of a cache in the form of the kernels.
fn kernel_shape(shape: &KvShape) -> pelton_kernels::KvShape {
    let KvShape { n_layers, n_blocks, block_size, heads, narrow, dtype } = *shape;
    let of = |heads: KvHeads| pelton_kernels::KvShape {
        n_layers,
        n_blocks,
        block_size,
        n_kv_heads: heads.n,
        key_dim: heads.key_dim,
        value_dim: heads.value_dim,
        values_in_keys: heads.values_in_keys,
        dtype,
        gap: 0,
    };
    // Padding and scales may make several narrow layers a little larger than a wide one.
    let elements = |heads: KvHeads| {
        let one = pelton_kernels::KvShape { n_layers: 1, ..of(heads) };
        one.bytes_per_block() / dtype.n_bytes()
    };
    let shared = narrow.map_or(0, |own| elements(own.heads).saturating_mul(own.n_per_place));
    pelton_kernels::KvShape { gap: shared.saturating_sub(elements(heads)), ..of(heads) }
}

impl PackedForm<PackedMatrix> for CpuDevice {
    fn layout_version(&self) -> u32 {
        LAYOUT_VERSION
    }

    fn describe<'w>(&self, weight: &'w PackedMatrix) -> PackedBytes<'w> {
        PackedBytes {
            layout: weight.layout().name(),
            n: weight.n(),
            k: weight.k(),
            bytes: weight.storage_bytes(),
        }
    }

    fn restore(
        &self,
        layout: &str,
        [n, k]: [usize; 2],
        file: &Arc<MappedFile>,
        range: Range<usize>,
    ) -> Option<PackedMatrix> {
        let layout = *WeightLayout::ALL.iter().find(|known| known.name() == layout)?;
        PackedMatrix::from_storage(layout, n, k, Storage::mapped(file.clone(), range)?)
    }

    fn for_each(&self, n: usize, f: &(dyn Fn(usize) + Sync)) {
        self.cpu.team.for_each_tile(n, f);
    }
}
