//! From tensors in files to weights in memory, row by row.

use std::ops::Range;

use pelton_kernels::{Cpu, PackedMatrix, Rows, WeightLayout};
use pelton_tensor::{DType, TensorView};

use crate::{QuantError, Result, WeightFormat, for_dtype, supported_names};

/// The arithmetic that weights are packed for.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
#[non_exhaustive]
pub enum Compute {
    /// Each format in its own layout, for speed.
    #[default]
    Auto,
    /// All weights dequantized to single precision, for exact comparisons.
    F32,
}

/// Packs `parts`, matrices `[n_i, k]` of one type, stacked by rows into one matrix `[sum n_i, k]`.
///
/// Under [`Compute::Auto`] no stored bit is lost; under [`Compute::F32`] the packed values are the
/// dequantized ones.
///
/// # Errors
///
/// When the type has no format, the parts differ in type or width or are not matrices, or the system
/// refuses the memory.
///
/// # Panics
///
/// When there is no part, or a view's data does not have the size of its shape.
pub fn pack(cpu: &Cpu, parts: &[TensorView<'_>], compute: Compute) -> Result<PackedMatrix> {
    pack_bands(cpu, parts, compute, &mut |_| {})
}

/// As [`pack`]; `done` is called with the rows of the stacked matrix, ascending, that will not be
/// read again.
///
/// # Errors
///
/// As [`pack`].
///
/// # Panics
///
/// As [`pack`].
pub fn pack_bands(
    cpu: &Cpu,
    parts: &[TensorView<'_>],
    compute: Compute,
    done: &mut dyn FnMut(Range<usize>),
) -> Result<PackedMatrix> {
    let (stack, format, shape) = stacked(parts)?;
    let stored = |row: usize| stack.row(row);
    pack_rows(cpu, format, shape, compute, Rows::Stored(&stored), done)
}

/// As [`pack_bands`], with every row first rounded to the type `to`: the packed bits are those of
/// the same parts after [`quantize_tensor`].
///
/// Rows are rounded one by one by the thread that packs them, so the memory is that of a row per
/// thread.
///
/// # Errors
///
/// As [`pack_bands`], and when rows are not whole blocks of `to`.
///
/// # Panics
///
/// As [`pack_bands`].
pub fn pack_rounded(
    cpu: &Cpu,
    parts: &[TensorView<'_>],
    to: DType,
    compute: Compute,
    done: &mut dyn FnMut(Range<usize>),
) -> Result<PackedMatrix> {
    let (stack, format, [n, k]) = stacked(parts)?;
    if format.dtype() == to {
        return pack_bands(cpu, parts, compute, done);
    }
    let rounded = format_of(&TensorView { dtype: to, ..parts[0] })?;
    check_rows(rounded, &parts[0])?;
    let round = |row: usize, out: &mut [u8]| {
        let mut weights = vec![0.0; k];
        format.dequantize(stack.row(row), &mut weights);
        rounded.quantize(&weights, out);
    };
    pack_rows(cpu, rounded, [n, k], compute, Rows::MadeOf(stack.row_bytes, &round), done)
}

/// Rows of parts of one type, their format, and the shape `[n, k]` of the stacked matrix.
fn stacked<'a>(
    parts: &[TensorView<'a>],
) -> Result<(Stack<'a>, &'static dyn WeightFormat, [usize; 2])> {
    let first = parts.first().expect("at least one matrix to pack");
    let format = format_of(first)?;
    let [_, k] = matrix_shape(format, first)?;
    let mut stack = Stack { rows: Vec::new(), row_bytes: row_bytes(format, k) };
    let mut n = 0;
    for part in parts {
        if part.dtype != first.dtype {
            return Err(QuantError::Mixed {
                tensor: part.name.to_owned(),
                first: first.name.to_owned(),
                expected: first.dtype,
                got: part.dtype,
            });
        }
        let [part_n, part_k] = matrix_shape(format, part)?;
        if part_k != k {
            return Err(shape_error(part, format!("rows of {k} like `{}`", first.name)));
        }
        assert_eq!(part.data.len(), part_n * stack.row_bytes, "`{}`: bytes of data", part.name);
        stack.rows.push((n, part.data));
        n += part_n;
    }
    Ok((stack, format, [n, k]))
}

/// Packs rows of `format`.
fn pack_rows(
    cpu: &Cpu,
    format: &dyn WeightFormat,
    [n, k]: [usize; 2],
    compute: Compute,
    rows: Rows<'_, '_>,
    done: &mut dyn FnMut(Range<usize>),
) -> Result<PackedMatrix> {
    let layout = layout_for(format, compute);
    let rewrite = format.rewrite().filter(|_| layout == format.layout());
    let is_as_stored = layout != WeightLayout::F32 || format.dtype() == DType::F32;
    // A row of the format as a source row of the layout, where the two differ.
    let turn = |blocks: &[u8], out: &mut [u8]| match rewrite {
        Some(rewrite) => rewrite(blocks, out),
        None => {
            let mut weights = vec![0.0; k];
            format.dequantize(blocks, &mut weights);
            for (bytes, weight) in out.as_chunks_mut().0.iter_mut().zip(weights) {
                *bytes = weight.to_le_bytes();
            }
        }
    };
    let turned = |row: usize, out: &mut [u8]| match rows {
        Rows::Stored(stored) => turn(stored(row), out),
        Rows::Made(make) | Rows::MadeOf(_, make) => {
            let mut blocks = vec![0; row_bytes(format, k)];
            make(row, &mut blocks);
            turn(&blocks, out);
        }
    };
    let rows = match rows {
        rows if rewrite.is_none() && is_as_stored => rows,
        Rows::MadeOf(stored_bytes, _) => Rows::MadeOf(stored_bytes, &turned),
        _ => Rows::Made(&turned),
    };
    PackedMatrix::pack_bands(cpu, layout, [n, k], rows, done)
        .map_err(|source| QuantError::Memory { source })
}

/// Layout of a matrix `[n, k]` of this type once packed, and its bytes, the padding of its last panel
/// included; `None` where the type has no format or a row is not whole blocks.
pub fn packed_size(
    dtype: DType,
    [n, k]: [usize; 2],
    compute: Compute,
) -> Option<(WeightLayout, u64)> {
    let format = for_dtype(dtype)?;
    let layout = layout_for(format, compute);
    let is_whole = k.is_multiple_of(format.block_len()) && k.is_multiple_of(layout.block_len());
    is_whole.then(|| (layout, PackedMatrix::bytes_for(layout, [n, k])))
}

/// Bytes of a row of `k` weights.
fn row_bytes(format: &dyn WeightFormat, k: usize) -> usize {
    k / format.block_len() * format.block_bytes()
}

fn layout_for(format: &dyn WeightFormat, compute: Compute) -> WeightLayout {
    match compute {
        Compute::Auto => format.layout(),
        Compute::F32 => WeightLayout::F32,
    }
}

/// Every element of `view` in single precision, row-major.
///
/// # Errors
///
/// When the type has no format, or rows are not whole blocks.
///
/// # Panics
///
/// When the view's data does not have the size of its shape.
pub fn dequantize_tensor(view: &TensorView<'_>) -> Result<Vec<f32>> {
    let format = format_of(view)?;
    check_rows(format, view)?;
    let mut out = vec![0.0; view.n_elements()];
    format.dequantize(view.data, &mut out);
    Ok(out)
}

/// The bytes of `view` stored as `format`; unchanged when it has that format already.
///
/// # Errors
///
/// When the type of `view` has no format, or its rows are not whole blocks of `format`.
///
/// # Panics
///
/// When the view's data does not have the size of its shape.
pub fn quantize_tensor(view: &TensorView<'_>, format: &dyn WeightFormat) -> Result<Vec<u8>> {
    if view.dtype == format.dtype() {
        return Ok(view.data.to_vec());
    }
    check_rows(format, view)?;
    let weights = dequantize_tensor(view)?;
    let mut out = vec![0; weights.len() / format.block_len() * format.block_bytes()];
    format.quantize(&weights, &mut out);
    Ok(out)
}

/// As [`quantize_tensor`], with the importance of each input of a row; formats that have no use for it
/// leave it out.
///
/// Inputs that count for less than a millionth of the mean count for that.
///
/// # Errors
///
/// As [`quantize_tensor`].
///
/// # Panics
///
/// As [`quantize_tensor`], and when there are not as many inputs as a row has.
pub fn quantize_weighted(
    view: &TensorView<'_>,
    format: &dyn WeightFormat,
    importance: &[f32],
) -> Result<Vec<u8>> {
    let row_len = view.shape.last().copied().unwrap_or(1);
    assert_eq!(importance.len(), row_len, "`{}`: the importance of each input", view.name);
    let Some(weighted) = format.weighted().filter(|_| view.dtype != format.dtype()) else {
        return quantize_tensor(view, format);
    };
    check_rows(format, view)?;
    let sum: f64 = importance.iter().map(|x| f64::from(*x)).sum();
    let mean = (sum / row_len.max(1) as f64) as f32;
    let scaled = |x: &f32| if mean > 0.0 { (x / mean).max(1e-6) } else { 1.0 };
    let importance: Vec<f32> = importance.iter().map(scaled).collect();
    let weights = dequantize_tensor(view)?;
    let row_bytes = row_len / format.block_len() * format.block_bytes();
    let mut out = vec![0; weights.len() / row_len.max(1) * row_bytes];
    for (row, out) in weights.chunks_exact(row_len).zip(out.chunks_exact_mut(row_bytes)) {
        weighted(row, &importance, out);
    }
    Ok(out)
}

/// Rows of several tensors, one after the other.
struct Stack<'a> {
    /// Each part's first row and bytes.
    rows: Vec<(usize, &'a [u8])>,
    row_bytes: usize,
}

impl<'a> Stack<'a> {
    fn row(&self, row: usize) -> &'a [u8] {
        let part_idx = self.rows.partition_point(|&(first_row, _)| first_row <= row) - 1;
        let (first_row, data) = self.rows[part_idx];
        let start = (row - first_row) * self.row_bytes;
        &data[start..start + self.row_bytes]
    }
}

fn format_of(view: &TensorView<'_>) -> Result<&'static dyn WeightFormat> {
    for_dtype(view.dtype).ok_or_else(|| QuantError::Unsupported {
        tensor: view.name.to_owned(),
        dtype: view.dtype,
        supported: supported_names(),
    })
}

fn matrix_shape(format: &dyn WeightFormat, view: &TensorView<'_>) -> Result<[usize; 2]> {
    check_rows(format, view)?;
    <[usize; 2]>::try_from(view.shape).map_err(|_| shape_error(view, "a matrix".into()))
}

fn check_rows(format: &dyn WeightFormat, view: &TensorView<'_>) -> Result<()> {
    let row_len = view.shape.last().copied().unwrap_or(1);
    if row_len.is_multiple_of(format.block_len()) {
        return Ok(());
    }
    let expected = format!("rows in whole blocks of {} for {}", format.block_len(), format.name());
    Err(shape_error(view, expected))
}

fn shape_error(view: &TensorView<'_>, expected: String) -> QuantError {
    let (tensor, got) = (view.name.to_owned(), view.shape.to_vec());
    QuantError::Shape { tensor, dtype: view.dtype, expected, got }
}
