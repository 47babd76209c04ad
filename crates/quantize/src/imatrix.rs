//! Importance matrices: the mean square of each input of each matrix, on some text.
//!
//! ```text
//! GGUF    general.type = "imatrix", imatrix.chunk_count, imatrix.chunk_size, imatrix.datasets
//!         NAME.in_sum2   f32 [experts, inputs]    sums of squares
//!         NAME.counts    f32 [experts, 1]         numbers of rows in them
//! older   i32 entries; of each: i32 length, name, i32 calls, i32 values, f32 values: mean square
//!         times calls; behind them, if anything, i32 chunks, i32 length, name of the text
//! ```
//!
//! Both are read, and the first is written. Names are those of GGUF tensors. Experts that saw no row
//! have an importance of 1 for each input, as all equal ones mean the same.

use std::collections::BTreeMap;
use std::io::{BufWriter, Write};
use std::path::Path;

use pelton_kernels::Cpu;
use pelton_model::{CpuDevice, Importance, ModelFiles, gguf_matrices, layer_shape};
use pelton_tensor::{
    DType, Gguf, GgufArray, GgufValue, GgufWriter, PendingFile, TensorSource, TensorView,
};

use crate::calibrate::Calibration;
use crate::hessians::expert;
use crate::{QuantizeError, Result, Samples};

/// Ends of the names of a pair of tensors.
const SUMS: &str = ".in_sum2";
const COUNTS: &str = ".counts";
/// Largest file.
const MOST_BYTES: u64 = 4 << 30;
/// Longest name.
const MOST_NAME: usize = 1 << 10;

/// An importance matrix.
#[derive(Clone, Debug, PartialEq)]
pub struct Imatrix {
    /// Of each tensor by GGUF name: the sum of squares of each input, of one expert after the other, and
    /// the rows that each expert saw.
    tensors: BTreeMap<String, (Vec<f32>, Vec<f32>)>,
    /// Texts and their length, as files name them.
    chunks: [u32; 2],
    /// Names of the texts.
    datasets: Vec<Vec<u8>>,
}

impl Imatrix {
    /// Reads a file of either kind.
    ///
    /// # Errors
    ///
    /// Names the part that is wrong.
    pub fn read(file: &Path) -> Result<Self> {
        let bytes = pelton_tensor::read_limited(file, MOST_BYTES);
        let bytes = bytes.map_err(QuantizeError::io(file))?;
        let imatrix = match bytes.starts_with(b"GGUF") {
            true => Self::from_gguf(&Gguf::open(file)?),
            false => Self::from_bytes(&bytes),
        };
        imatrix.map_err(|why| QuantizeError::Source { path: file.to_owned(), why })
    }

    fn from_gguf(gguf: &Gguf) -> std::result::Result<Self, String> {
        let kind = gguf.metadata().get("general.type");
        if !matches!(kind, Some(GgufValue::String(kind)) if kind == "imatrix") {
            return Err("`general.type` is not `imatrix`: expected an importance matrix".to_owned());
        }
        let floats = |view: TensorView<'_>| match view.dtype {
            DType::F32 => {
                Ok(view.data.as_chunks::<4>().0.iter().map(|x| f32::from_le_bytes(*x)).collect())
            }
            _ => Err(format!("`{}`: expected elements of type f32", view.name.escape_debug())),
        };
        let mut tensors = BTreeMap::new();
        for stored in gguf.names() {
            let Some(name) = stored.strip_suffix(SUMS) else { continue };
            let shown = name.escape_debug();
            let (Some(sums), Some(counts)) =
                (gguf.get(stored), gguf.get(&format!("{name}{COUNTS}")))
            else {
                return Err(format!("`{shown}{COUNTS}` is missing"));
            };
            let (sums, counts): (Vec<f32>, Vec<f32>) = (floats(sums)?, floats(counts)?);
            if counts.is_empty() || sums.is_empty() || !sums.len().is_multiple_of(counts.len()) {
                return Err(format!("`{shown}`: {} sums for {} counts", sums.len(), counts.len()));
            }
            tensors.insert(name.to_owned(), (sums, counts));
        }
        let whole = |key: &str| match gguf.metadata().get(key) {
            Some(GgufValue::U32(n)) => *n,
            _ => 0,
        };
        let datasets = match gguf.metadata().get("imatrix.datasets") {
            Some(GgufValue::Array(GgufArray::Strings(names))) => names.clone(),
            _ => Vec::new(),
        };
        let chunks = ["imatrix.chunk_count", "imatrix.chunk_size"].map(whole);
        Ok(Self { tensors, chunks, datasets })
    }

    fn from_bytes(bytes: &[u8]) -> std::result::Result<Self, String> {
        let mut rest = Rest(bytes);
        let n_entries = rest.whole("the number of entries")?;
        let mut tensors = BTreeMap::new();
        for _ in 0..n_entries {
            let name = rest.name()?;
            let calls = rest.whole("the number of calls")?.max(1) as f32;
            let n_values = rest.whole("the number of inputs")?;
            let values = rest.take(n_values.saturating_mul(4), "the inputs of a tensor")?;
            let values = values.as_chunks::<4>().0.iter();
            let sums = values.map(|x| f32::from_le_bytes(*x)).collect();
            tensors.insert(name, (sums, vec![calls]));
        }
        // Many files end here.
        let (mut chunks, mut datasets) = ([0; 2], Vec::new());
        if !rest.0.is_empty() {
            chunks[0] = rest.whole("the number of texts")? as u32;
            datasets.push(rest.name()?.into_bytes());
        }
        Ok(Self { tensors, chunks, datasets })
    }

    /// Measures a model on texts; `None` when it was stopped. `name` is that of the text.
    ///
    /// # Errors
    ///
    /// A model that cannot be loaded or written as GGUF, an input that is no number.
    pub fn measure(
        files: &ModelFiles,
        samples: &Samples,
        name: &str,
        cpu: Cpu,
        is_stopped: &dyn Fn() -> bool,
        progress: &dyn Fn(usize, usize),
    ) -> Result<Option<Self>> {
        let listed = gguf_matrices(files)?;
        let begun = Calibration::begin(files, CpuDevice::new(cpu), samples, is_stopped)?;
        let Some(mut calibration) = begun else { return Ok(None) };
        let n_layers = files.spec()?.layers.len();
        let mut tensors: BTreeMap<String, BTreeMap<usize, (Vec<f32>, f32)>> = BTreeMap::new();
        for layer in 0..n_layers {
            let shape = layer_shape(files, layer)?;
            let squares = calibration.squares(files, (layer, &shape), is_stopped)?;
            let Some(squares) = squares else { return Ok(None) };
            for matrix in &shape.matrices {
                let Some(reads) = matrix.reads else { continue };
                let (n, sums) = &squares[&reads];
                let stored = matrix.tensor();
                for written in listed.iter().filter(|written| written.stored.contains(&stored)) {
                    let sums = sums.iter().map(|sum| *sum as f32).collect();
                    let sums = written.in_order(sums);
                    if sums.iter().any(|sum| !sum.is_finite()) {
                        return Err(QuantizeError::Matrix {
                            module: matrix.module.clone(),
                            source: pelton_quant::solve::SolveError::Activation,
                        });
                    }
                    let of_experts = tensors.entry(written.name.clone()).or_default();
                    of_experts.insert(expert(reads).unwrap_or(0), (sums, *n as f32));
                }
            }
            progress(layer + 1, n_layers);
        }
        let chunks = [samples.len() as u32, samples.longest() as u32];
        let joined = |(name, of_experts): (String, BTreeMap<usize, (Vec<f32>, f32)>)| {
            let (sums, counts): (Vec<Vec<f32>>, Vec<f32>) = of_experts.into_values().unzip();
            (name, (sums.concat(), counts))
        };
        let tensors = tensors.into_iter().map(joined).collect();
        Ok(Some(Self { tensors, chunks, datasets: vec![name.as_bytes().to_vec()] }))
    }

    /// The mean square of each input, by GGUF name.
    pub fn importance(&self) -> Importance {
        let means = |(sums, counts): &(Vec<f32>, Vec<f32>)| -> Vec<f32> {
            let k = sums.len() / counts.len().max(1);
            let of_experts = counts.iter().flat_map(|n| std::iter::repeat_n(n, k));
            let mean = |(sum, n): (&f32, &f32)| if *n > 0.0 { sum / n } else { 1.0 };
            sums.iter().zip(of_experts).map(mean).collect()
        };
        self.tensors.iter().map(|(name, tensor)| (name.clone(), means(tensor))).collect()
    }

    /// Writes a GGUF file.
    ///
    /// # Errors
    ///
    /// When it cannot be written.
    pub fn write(&self, file: &Path) -> Result<()> {
        let mut writer = GgufWriter::new();
        writer
            .metadata("general.type", GgufValue::String("imatrix".to_owned()))
            .metadata(
                "imatrix.datasets",
                GgufValue::Array(GgufArray::Strings(self.datasets.clone())),
            )
            .metadata("imatrix.chunk_count", GgufValue::U32(self.chunks[0]))
            .metadata("imatrix.chunk_size", GgufValue::U32(self.chunks[1]));
        let mut data = Vec::new();
        for (name, (sums, counts)) in &self.tensors {
            let k = sums.len() / counts.len().max(1);
            writer.tensor(format!("{name}{SUMS}"), DType::F32, &[counts.len(), k]);
            writer.tensor(format!("{name}{COUNTS}"), DType::F32, &[counts.len(), 1]);
            for values in [sums, counts] {
                data.push(values.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>());
            }
        }
        let pending = PendingFile::create(file).map_err(QuantizeError::io(file))?;
        let mut out = writer.start(BufWriter::with_capacity(1 << 20, pending), file)?;
        for data in &data {
            out.tensor_data(data)?;
        }
        let mut whole = out.finish()?;
        whole.flush().map_err(QuantizeError::io(file))?;
        let pending =
            whole.into_inner().map_err(|error| QuantizeError::io(file)(error.into_error()))?;
        pending.publish().map_err(QuantizeError::io(file))
    }
}

/// The unread end of a file of the older layout.
struct Rest<'a>(&'a [u8]);

impl<'a> Rest<'a> {
    fn take(&mut self, n: usize, what: &str) -> std::result::Result<&'a [u8], String> {
        let Some((taken, left)) = self.0.split_at_checked(n) else {
            return Err(format!("the file ends in {what}: {EXPECTED}"));
        };
        self.0 = left;
        Ok(taken)
    }

    fn whole(&mut self, what: &str) -> std::result::Result<usize, String> {
        let n = self.take(4, what)?.first_chunk().map_or(-1, |n| i32::from_le_bytes(*n));
        usize::try_from(n).map_err(|_| format!("{n} is {what}: {EXPECTED}"))
    }

    fn name(&mut self) -> std::result::Result<String, String> {
        let len = self.whole("the length of a name")?;
        if len == 0 || len > MOST_NAME {
            return Err(format!("{len} is the length of a name: {EXPECTED}"));
        }
        let name = std::str::from_utf8(self.take(len, "a name")?);
        Ok(name.map_err(|_| format!("a name is not UTF-8: {EXPECTED}"))?.to_owned())
    }
}

/// The end of each error about a file of the older layout.
const EXPECTED: &str = "expected an importance matrix, in GGUF or in the older layout";

#[cfg(test)]
mod tests {
    use super::*;

    fn older(entries: &[(&str, i32, &[f32])], end: &[u8]) -> Vec<u8> {
        let mut bytes = (entries.len() as i32).to_le_bytes().to_vec();
        for (name, calls, values) in entries {
            bytes.extend((name.len() as i32).to_le_bytes());
            bytes.extend(name.as_bytes());
            bytes.extend(calls.to_le_bytes());
            bytes.extend((values.len() as i32).to_le_bytes());
            values.iter().for_each(|x| bytes.extend(x.to_le_bytes()));
        }
        bytes.extend(end);
        bytes
    }

    #[test]
    fn both_layouts_are_read_and_what_is_written_is_read_back() {
        let temp = tempfile::tempdir().expect("temp");
        let file = temp.path().join("imatrix.dat");
        let entries: [(&str, i32, &[f32]); 2] =
            [("blk.0.attn_q.weight", 4, &[4.0, 8.0, 2.0]), ("blk.0.ffn_up.weight", 0, &[1.0, 3.0])];
        std::fs::write(&file, older(&entries, &[])).expect("written");
        let read = Imatrix::read(&file).expect("reads");
        assert_eq!(read.importance()["blk.0.attn_q.weight"], [1.0, 2.0, 0.5]);
        assert_eq!(read.importance()["blk.0.ffn_up.weight"], [1.0, 3.0]);
        let end = [&7_i32.to_le_bytes()[..], &4_i32.to_le_bytes(), b"text"].concat();
        std::fs::write(&file, older(&entries, &end)).expect("written");
        let read = Imatrix::read(&file).expect("reads");
        assert_eq!((read.chunks[0], &read.datasets[..]), (7, &[b"text".to_vec()][..]));
        let again = temp.path().join("imatrix.gguf");
        read.write(&again).expect("written");
        assert_eq!(Imatrix::read(&again).expect("reads"), read);
    }

    #[test]
    fn files_that_are_no_importance_matrix_are_refused() {
        let temp = tempfile::tempdir().expect("temp");
        let file = temp.path().join("file");
        let whole = older(&[("a", 1, &[1.0, 2.0])], &[]);
        for n in 0..whole.len() {
            std::fs::write(&file, &whole[..n]).expect("written");
            let error = Imatrix::read(&file).expect_err("cut off").to_string();
            assert!(error.contains("expected an importance matrix"), "{n}: {error}");
        }
        let huge = [&1_i32.to_le_bytes()[..], &i32::MAX.to_le_bytes(), b"abc"].concat();
        let negative = [&1_i32.to_le_bytes()[..], &(-4_i32).to_le_bytes(), b"abc"].concat();
        for bytes in [huge, negative] {
            std::fs::write(&file, bytes).expect("written");
            Imatrix::read(&file).expect_err("refused");
        }
        let mut writer = GgufWriter::new();
        writer.tensor("a.in_sum2", DType::F32, &[1, 2]);
        writer.metadata("general.type", GgufValue::String("imatrix".to_owned()));
        let mut out = writer.create(&file).expect("created");
        out.tensor_data(&[0; 8]).expect("written");
        drop(out.finish().expect("written"));
        let error = Imatrix::read(&file).expect_err("no counts").to_string();
        assert!(error.contains("a.counts"), "{error}");
    }
}
