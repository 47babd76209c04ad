//! The measured cost of loading a model: `pelton inspect --load`.
//!
//! Peak memory is that of the process, so a load is measured by a process that does nothing else.
//! Bytes read from the disk are zero where the files are in the system's cache.

use std::time::Instant;

use pelton_llm::{Runtime, RuntimeOptions};
use pelton_model::{LoadOptions, ModelFiles};
use serde::Serialize;

use crate::failure::Result;
use crate::memory;
use crate::progress::Progress;
use crate::stats::bytes;

/// Measured facts about one load.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Loaded {
    /// Bytes of the weights in memory, counted as they were packed.
    weight_bytes: u64,
    /// Stored bytes that were packed.
    source_bytes: u64,
    /// Largest resident set of the process.
    peak_memory_bytes: Option<u64>,
    /// Bytes that the system fetched from the disk meanwhile.
    disk_read_bytes: Option<u64>,
    seconds: f64,
}

impl Loaded {
    /// Loads the weights, measures, and drops them.
    pub(crate) fn measure(files: &ModelFiles) -> Result<Self> {
        let bar = Progress::new();
        let source_bytes = std::cell::Cell::new(0);
        let progress = |at: pelton_model::LoadProgress| {
            source_bytes.set(at.n_bytes);
            bar.loading(at.n_bytes, at.n_total_bytes);
        };
        // Tuned as remembered: measuring the machine would count as loading.
        let options = RuntimeOptions { measures: false, ..RuntimeOptions::from_env(None) };
        let runtime = Runtime::new(options)?;
        let options = LoadOptions { progress: Some(&progress), ..LoadOptions::default() };
        let (start, read_before) = (Instant::now(), memory::disk_read_bytes());
        let decoder = runtime.load(files, &options)?;
        let seconds = start.elapsed().as_secs_f64();
        Ok(Self {
            weight_bytes: decoder.memory_bytes(),
            source_bytes: source_bytes.get(),
            peak_memory_bytes: memory::peak_bytes(),
            disk_read_bytes: read_before
                .zip(memory::disk_read_bytes())
                .map(|(before, now)| now.saturating_sub(before)),
            seconds,
        })
    }

    /// One line.
    pub(crate) fn words(&self) -> String {
        let mut text = format!("weights {} in {:.2} s", bytes(self.weight_bytes), self.seconds);
        if let Some(peak) = self.peak_memory_bytes {
            let share = peak as f64 / self.weight_bytes.max(1) as f64;
            text.push_str(&format!(", memory {} at peak ({share:.3} of the weights)", bytes(peak)));
        }
        if let Some(read) = self.disk_read_bytes {
            let share = read as f64 / self.source_bytes.max(1) as f64;
            text.push_str(&format!(
                ", {} read from the disk ({share:.3} of what is stored)",
                bytes(read)
            ));
        }
        text
    }
}
