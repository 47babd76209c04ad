//! Quantized checkpoints: methods that spread one matrix over several tensors.
//!
//! ```text
//! quantization_config ── METHODS ──> Scheme ── find(module) ──> QuantizedTensor ── pack ──> PackedMatrix
//!                                              shapes, types                      values
//! ```
//!
//! A [`CheckpointMethod`] is one file: its settings, the tensors of a matrix, and the meaning of
//! their bits. Most methods have a code, a scale and a zero point per weight, which is the
//! specification in `matrix`; methods whose codes stand for several weights compute rows of
//! `floats`. `layouts` chooses the smallest kernel layout that holds either exactly.
//!
//! **The stored tensors decide.** A module with quantized tensors is quantized; a module with a
//! plain `weight` is plain, as heads and embeddings usually are. Lists of modules that were left
//! alone (`modules_to_not_convert`, `ignore`) are honoured: only a plain weight is looked for
//! there. Lists may have regular expressions: `patterns`.
//!
//! **Only weights.** Several methods also round activations (to fp8 or int8, per token). That is
//! part of their speed on other machines and not of the checkpoint: here a product reads
//! activations as f32, bf16, or int8 in groups of 32, as its layout needs. [`Scheme::activations`]
//! describes the rounding that the method asked for.
//!
//! A new method is a new file and one line in [`METHODS`]; that line enrols it in the conformance
//! tests, which need fixtures made by independent code.

mod affine;
mod aqlm;
mod awq;
mod bitnet;
mod bitsandbytes;
mod compressed;
mod floats;
mod fp8;
mod gptq;
mod hqq;
mod ignored;
mod layouts;
mod marlin;
mod matrix;
mod packing;
mod patterns;
mod plain_codes;
mod quip;
mod setting;
mod tensors;
mod written;

use pelton_tensor::TensorSource;
use serde_json::Value;

pub use packing::{QuantizedTensor, layout_of, pack_quantized};
pub use written::{
    Written, WrittenTensor, aqlm_tensors, awq_tensors, bitnet_tensors, fits_awq, fits_bitnet,
    fits_gptq, fits_hqq, fp4_tensors, fp8_tensors, gptq_tensors, gptq_v2_tensors, hqq_tensors,
    int8_tensors, llm_int8_tensors, nf4_tensors, packed_tensors, quip_tensors,
};

use crate::{QuantError, Result};
use ignored::Ignored;
use packing::Found;
use setting::Setting;
use tensors::Tensors;

/// One way to quantize a checkpoint.
pub trait CheckpointMethod: Sync {
    /// Values of `quant_method` that name it.
    fn names(&self) -> &'static [&'static str];

    /// Supported variants of the method, as text for users.
    fn supported(&self) -> &'static str;

    /// Reads a `quantization_config` of this method.
    ///
    /// # Errors
    ///
    /// Names the field that is wrong or not supported.
    fn scheme(&self, config: &Value) -> Result<Scheme>;
}

/// Every method. Conformance tests iterate over this table.
pub static METHODS: &[&dyn CheckpointMethod] = &[
    &gptq::Gptq,
    &awq::Awq,
    &fp8::Fp8,
    &bitsandbytes::BitsAndBytes,
    &compressed::CompressedTensors,
    &bitnet::BitNet,
    &hqq::Hqq,
    &aqlm::Aqlm,
    &quip::Quip,
    &marlin::Marlin,
];

/// How the matrices of one checkpoint are quantized.
#[derive(Debug)]
pub struct Scheme {
    ignored: Ignored,
    kind: Box<dyn Kind>,
}

/// A configuration as its method's file reads it.
trait Kind: std::fmt::Debug + Send + Sync {
    /// Method, bits, groups: everything that changes what the stored bits mean.
    fn words(&self) -> String;

    /// How the method rounds activations.
    fn activations(&self) -> Option<String> {
        None
    }

    /// Whether matrices that a family stores transposed are stored `[n, k]` once quantized, as in
    /// all other families.
    fn is_turned(&self) -> bool {
        false
    }

    /// The matrix of a module; `None` where the module is not quantized.
    fn find<'a>(&self, tensors: &Tensors<'a>, shape: [usize; 2]) -> Result<Option<Found<'a>>>;
}

impl Scheme {
    /// Reads a `quantization_config`.
    ///
    /// # Errors
    ///
    /// Names the field that is wrong or not supported; for an unknown method the error lists the
    /// known ones.
    pub fn parse(config: &Value) -> Result<Self> {
        let root = Setting::new(ROOT, config);
        root.members()?;
        let field = root.get("quant_method");
        let name = match field.text()? {
            Some(name) => name.to_lowercase(),
            None => return Err(field.error(format!("one of {}", known()))),
        };
        match METHODS.iter().find(|method| method.names().contains(&name.as_str())) {
            Some(method) => method.scheme(config),
            None => Err(field.error(format!("one of {}", known()))),
        }
    }

    /// Method, bits and groups in a few words: in two checkpoints with the same words, the same
    /// bits mean the same weights.
    pub fn words(&self) -> String {
        self.kind.words()
    }

    /// How the method rounds activations, if it does; Pelton does not round them so.
    pub fn activations(&self) -> Option<String> {
        self.kind.activations()
    }

    /// Whether quantized matrices of a family that stores plain ones transposed (GPT-2) are stored
    /// `[n, k]`, because the method transposes them before it quantizes.
    pub fn turns_transposed(&self) -> bool {
        self.kind.is_turned()
    }

    /// The matrix `[n, k]` of the module called `module`, checked but not read; `None` where it is
    /// not quantized.
    ///
    /// # Errors
    ///
    /// Names the tensor that is missing, or whose type or shape does not agree with the other
    /// tensors of the matrix.
    pub fn find<'a>(
        &self,
        source: &'a dyn TensorSource,
        module: &str,
        shape: [usize; 2],
    ) -> Result<Option<QuantizedTensor<'a>>> {
        if self.ignored.names(module) {
            return Ok(None);
        }
        let found = self.kind.find(&Tensors { source, module: module.to_owned() }, shape)?;
        Ok(found.map(|found| QuantizedTensor {
            words: self.words(),
            shape,
            columns: None,
            rows: None,
            found,
        }))
    }
}

/// Name of the object in `config.json` that describes the quantization.
const ROOT: &str = "quantization_config";

/// Names of all methods, for messages.
fn known() -> String {
    METHODS.iter().flat_map(|method| method.names()).copied().collect::<Vec<_>>().join(", ")
}

/// `a * b / c` where that is whole and does not overflow: lengths of packed dimensions.
fn packed_len(a: usize, b: usize, c: usize) -> Option<usize> {
    a.checked_mul(b).filter(|bits| bits.is_multiple_of(c)).map(|bits| bits / c)
}

/// The error of a matrix whose shape the method cannot pack.
fn unpackable(tensors: &Tensors<'_>, shape: [usize; 2], expected: &str) -> QuantError {
    QuantError::Checkpoint {
        tensor: tensors.module.clone(),
        expected: expected.to_owned(),
        got: format!("a matrix {shape:?}"),
    }
}
