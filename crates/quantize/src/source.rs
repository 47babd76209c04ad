//! The model that is quantized: what can be, and the values of its matrices.

use std::collections::BTreeMap;

use half::{bf16, f16};
use pelton_model::{ExpertSlice, LayerMatrix, LayerShape, ModelError, ModelFiles, layer_shape};
use pelton_quant::checkpoint::{fits_awq, fits_bitnet, fits_gptq, fits_hqq};
use pelton_quant::dequantize_tensor;
use pelton_quant::solve::{Group, aqlm, quip};
use pelton_tensor::{DType, TensorView};

use crate::{Method, Options, QuantizeError, Result};

/// The layers, once everything that can be refused without calculating is refused.
pub(crate) fn layers(files: &ModelFiles, options: &Options) -> Result<Vec<LayerShape>> {
    options.check()?;
    let refuse = |why: String| QuantizeError::Source { path: files.path().to_owned(), why };
    if files.folder().is_none() {
        let why = "expected a folder with config.json and safetensors; `pelton convert --format` \
                   rounds GGUF files";
        return Err(refuse(why.to_owned()));
    }
    if let Some(scheme) = files.scheme() {
        let found = scheme.words();
        return Err(refuse(format!("expected weights that are not quantized yet, found {found}")));
    }
    pelton_model::check(files)?;
    let n_layers = files.spec()?.layers.len();
    let layers: Vec<LayerShape> = (0..n_layers)
        .map(|layer| layer_shape(files, layer))
        .collect::<std::result::Result<_, _>>()?;
    let own = || {
        let all = layers.iter().flat_map(|layer| &layer.matrices);
        all.filter(|matrix| !options.keeps(&matrix.module))
    };
    if own().next().is_none() {
        let kept = options.keep.join("`, `");
        return Err(QuantizeError::Option(format!(
            "`--keep` leaves no matrix to quantize: `{kept}`"
        )));
    }
    if options.method.needs_calibration() && own().all(|matrix| matrix.reads.is_none()) {
        let why = "all matrices are of token shifts, whose inputs are not gathered: expected \
                   `--method rtn`";
        return Err(refuse(why.to_owned()));
    }
    for matrix in own() {
        check(files, matrix, options).map_err(|error| match error {
            Refused::Source(why) => refuse(why),
            Refused::Shape(expected) => QuantizeError::Shape {
                module: matrix.module.clone(),
                shape: matrix.shape,
                expected,
            },
        })?;
    }
    for name in &options.keep {
        let mut modules = layers.iter().flat_map(|layer| &layer.matrices);
        let own = Options { keep: vec![name.clone()], ..options.clone() };
        if !modules.any(|matrix| own.keeps(&matrix.module)) {
            return Err(QuantizeError::Option(format!(
                "`--keep {name}` names no matrix: expected a whole part of a name such as \
                 `down_proj` or `layers.0`"
            )));
        }
    }
    Ok(layers)
}

/// The end of a module's name that says which matrix it is: not a number alone, which layers have, too.
fn own_name(module: &str) -> &str {
    let is_number = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit());
    let mut start = module.len();
    for part in module.rsplit('.') {
        start -= part.len();
        if !is_number(part) {
            break;
        }
        start = start.saturating_sub(1);
    }
    &module[start..]
}

enum Refused {
    Source(String),
    Shape(String),
}

fn check(
    files: &ModelFiles,
    matrix: &LayerMatrix,
    options: &Options,
) -> std::result::Result<(), Refused> {
    let (name, method, module) = (matrix.tensor(), options.method, &matrix.module);
    let stored = files.tensors().get(&name).map(|view| view.dtype);
    if !matches!(stored, Some(DType::F32 | DType::F16 | DType::Bf16)) {
        return Err(Refused::Source(format!("`{name}`: expected weights of f32, f16 or bf16")));
    }
    if matrix.is_transposed && (options.target.is_some() || !method.turns()) {
        return Err(Refused::Source(format!(
            "`{module}` is stored transposed, which `{}` has no files for here: `gptq` without a \
             budget has",
            method.name()
        )));
    }
    let [n, k] = matrix.shape;
    let group = options.grid.group.inputs(k);
    // Blocks of 128 by 128 may be cut off, and those of NF4 go on in the next row.
    let is_cut = matches!(method, Method::Fp8 | Method::Nf4);
    if !is_cut && !k.is_multiple_of(group) {
        let other = match fitting(k, group, method) {
            Some(fits) => format!("`--group {fits}` divides them, and "),
            None => String::new(),
        };
        return Err(Refused::Shape(format!(
            "expected groups that divide its {k} inputs, got {group}: {other}`--keep {}` leaves \
             it as it is",
            own_name(module)
        )));
    }
    if method == Method::Aqlm && !k.is_multiple_of(aqlm::DIM) {
        let expected = format!("expected inputs in vectors of {}, got {k}", aqlm::DIM);
        return Err(Refused::Shape(expected));
    }
    if method == Method::Quip && !quip::fits(matrix.shape) {
        return Err(Refused::Shape(
            "expected outputs in blocks of 16, inputs in blocks of 64, and both a power of two or \
             one times 12, 20, 28, 36, 52, 60, 108, 116, 124, 140, 156 or 172: `--keep` leaves a \
             matrix as it is"
                .to_owned(),
        ));
    }
    if method == Method::BitNet && !fits_bitnet(matrix.shape) {
        return Err(Refused::Shape(format!("expected outputs in fours, got {n}")));
    }
    if !fits(matrix.shape, options) {
        let bits = options.grid.bits;
        return Err(Refused::Shape(format!(
            "expected codes of {bits} bits that fill whole words of 32 along {n} outputs and {k} \
             inputs"
        )));
    }
    Ok(())
}

/// The largest power of two below `group` that divides `k` inputs, or all of them, as far as the
/// method takes it.
fn fitting(k: usize, group: usize, method: Method) -> Option<Group> {
    let power = 1 << k.trailing_zeros().min(group.ilog2());
    let [power, row] = [Group::Inputs(power), Group::Row];
    [power, row].into_iter().find(|fits| *fits != Group::Inputs(1) && method.takes_group(*fits))
}

/// Whether a matrix fills whole words of the files.
fn fits(shape: [usize; 2], options: &Options) -> bool {
    let bits = options.grid.bits;
    match options.method {
        _ if options.target.is_some() => true,
        Method::Awq => fits_awq(shape),
        Method::Rtn | Method::Gptq => fits_gptq(shape, bits),
        Method::Hqq => fits_hqq(shape, bits, options.grid.group.inputs(shape[1])),
        _ => true,
    }
}

/// Matrices of all layers that are quantized.
pub(crate) fn n_matrices(layers: &[LayerShape], options: &Options) -> usize {
    let all = layers.iter().flat_map(|layer| &layer.matrices);
    all.filter(|matrix| !options.keeps(&matrix.module)).count()
}

/// Bytes in which a matrix is stored.
pub(crate) fn n_stored_bytes(files: &ModelFiles, matrix: &LayerMatrix) -> u64 {
    let [n, k] = matrix.shape;
    let element_bytes = |view: TensorView<'_>| view.data.len() / view.n_elements().max(1);
    files.stored(&matrix.tensor()).map_or(0, |view| (n * k * element_bytes(view)) as u64)
}

/// Bytes of all tensors.
pub(crate) fn n_bytes(files: &ModelFiles) -> u64 {
    let tensors = files.tensors();
    let views = tensors.names().into_iter().filter_map(|name| tensors.get(name));
    views.map(|view| view.data.len() as u64).sum()
}

/// The matrices of one layer by module, `[n, k]` each, and vectors that were changed by name.
#[derive(Debug)]
pub(crate) struct Matrices {
    pub(crate) values: BTreeMap<String, Vec<f32>>,
    pub(crate) vectors: BTreeMap<String, Vec<f32>>,
}

impl Matrices {
    pub(crate) fn read(files: &ModelFiles, shape: &LayerShape) -> Result<Self> {
        let mut values = BTreeMap::new();
        for matrix in &shape.matrices {
            let [n, k] = matrix.shape;
            let own = match &matrix.slice {
                Some(slice) => elements(files, slice),
                None if matrix.is_transposed => transposed(&vector(files, &matrix.tensor())?, k, n),
                None => vector(files, &matrix.tensor())?,
            };
            values.insert(matrix.module.clone(), own);
        }
        Ok(Self { values, vectors: BTreeMap::new() })
    }
}

/// The values of a stored tensor.
pub(crate) fn vector(files: &ModelFiles, name: &str) -> Result<Vec<f32>> {
    let view = files.tensors().get(name).expect("invariant: the tensor was found");
    dequantize_tensor(&view).map_err(|source| {
        let file = files.tensors().origin().to_owned();
        QuantizeError::Model(ModelError::Format { file, source })
    })
}

/// The values of one expert's part of a tensor of plain floats.
pub(crate) fn elements(files: &ModelFiles, slice: &ExpertSlice) -> Vec<f32> {
    let view = files.tensors().get(&slice.tensor).expect("invariant: the tensor was found");
    let (pairs, words) = (view.data.as_chunks::<2>().0, view.data.as_chunks::<4>().0);
    match view.dtype {
        DType::F16 => slice.places().map(|at| f16::from_le_bytes(pairs[at]).to_f32()).collect(),
        DType::Bf16 => slice.places().map(|at| bf16::from_le_bytes(pairs[at]).to_f32()).collect(),
        _ => slice.places().map(|at| f32::from_le_bytes(words[at])).collect(),
    }
}

/// A matrix `[n, k]` as `[k, n]`.
pub(crate) fn transposed(values: &[f32], n: usize, k: usize) -> Vec<f32> {
    (0..k).flat_map(|j| (0..n).map(move |row| values[row * k + j])).collect()
}
