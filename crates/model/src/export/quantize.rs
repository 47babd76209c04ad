//! Bytes of one type as those of another, on all cores.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use pelton_quant::{QuantError, for_dtype, quantize_tensor};
use pelton_tensor::{DType, TensorView};

/// Weights that one thread quantizes at a time.
const SLAB: usize = 1 << 18;

/// The bytes of `view` as `dtype`, rows shared among all cores.
pub(super) fn quantize(view: &TensorView<'_>, dtype: DType) -> Result<Vec<u8>, QuantError> {
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
            let bytes = quantize_tensor(&TensorView { shape: &shape, data, ..*view }, format);
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
