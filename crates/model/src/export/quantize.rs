//! Bytes of one type as those of another, on all cores.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use pelton_quant::{QuantError, WeightFormat, for_dtype, quantize_tensor, quantize_weighted};
use pelton_tensor::{DType, TensorView};

use super::importance::OfRows;

/// Weights that one thread quantizes at a time.
const SLAB: usize = 1 << 18;

/// The bytes of `view` as `dtype`, rows shared among all cores.
pub(super) fn quantize(
    view: &TensorView<'_>,
    dtype: DType,
    importance: Option<OfRows<'_>>,
) -> Result<Vec<u8>, QuantError> {
    if view.dtype == dtype {
        return Ok(view.data.to_vec());
    }
    let format = for_dtype(dtype).expect("invariant: chosen among formats");
    let row_len = view.shape.last().copied().unwrap_or(1).max(1);
    let rows_per_slab = (SLAB / row_len).max(1);
    let n_rows = view.n_elements() / row_len;
    let row_bytes = view.data.len() / n_rows.max(1);
    let slabs = view.data.chunks((rows_per_slab * row_bytes).max(1));
    let slabs: Vec<&[u8]> = slabs.collect();
    let done = Mutex::new(BTreeMap::new());
    let next = AtomicUsize::new(0);
    let work = || {
        loop {
            let idx = next.fetch_add(1, Ordering::Relaxed);
            let Some(data) = slabs.get(idx) else { break };
            let shape = [data.len() / row_bytes, row_len];
            let slab = TensorView { shape: &shape, data, ..*view };
            let bytes = match importance.map(|of| of.behind(idx * rows_per_slab)) {
                None => quantize_tensor(&slab, format),
                Some(importance) => weighted(&slab, format, importance),
            };
            done.lock().unwrap_or_else(std::sync::PoisonError::into_inner).insert(idx, bytes);
        }
    };
    let n_threads = std::thread::available_parallelism().map_or(1, usize::from).min(slabs.len());
    std::thread::scope(|scope| {
        for _ in 1..n_threads {
            scope.spawn(work);
        }
        work();
    });
    let done = done.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    let slabs = done.into_values().collect::<Result<Vec<_>, _>>()?;
    Ok(slabs.concat())
}

/// The bytes of some rows, by the importance of their inputs.
fn weighted(
    slab: &TensorView<'_>,
    format: &dyn WeightFormat,
    mut importance: OfRows<'_>,
) -> Result<Vec<u8>, QuantError> {
    let (n_rows, row_len) = (slab.shape[0], slab.shape[1]);
    let row_bytes = slab.data.len() / n_rows.max(1);
    let (mut bytes, mut row) = (Vec::new(), 0);
    while row < n_rows {
        let (inputs, n_same) = importance.next();
        let n = n_same.min(n_rows - row);
        let data = &slab.data[row * row_bytes..][..n * row_bytes];
        let rows = TensorView { shape: &[n, row_len], data, ..*slab };
        bytes.extend(quantize_weighted(&rows, format, inputs)?);
        importance = importance.behind(n);
        row += n;
    }
    Ok(bytes)
}
