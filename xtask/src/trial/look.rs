//! A look at a process from outside.

use std::fs;

use anyhow::Context;

/// The process at one moment.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Look {
    pub(super) resident: u64,
    pub(super) n_files: u64,
    pub(super) n_threads: u64,
}

impl Look {
    pub(super) fn at(pid: u32) -> anyhow::Result<Self> {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).context("the process")?;
        let field = |name: &str| -> anyhow::Result<u64> {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            let word = line.and_then(|line| line.split_whitespace().next());
            word.and_then(|word| word.parse().ok()).with_context(|| format!("{name} of its status"))
        };
        let n_files = fs::read_dir(format!("/proc/{pid}/fd")).context("its files")?.count() as u64;
        Ok(Self { resident: field("VmRSS:")? << 10, n_files, n_threads: field("Threads:")? })
    }

    /// The processors that the process may use.
    pub(super) fn processors(pid: u32) -> anyhow::Result<Vec<u32>> {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).context("the process")?;
        let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
        let list = list.context("Cpus_allowed_list of its status")?.trim();
        let mut processors = Vec::new();
        // Such as `0-3,8`.
        for range in list.split(',') {
            let (first, last) = range.split_once('-').unwrap_or((range, range));
            processors.extend(first.parse::<u32>()?..=last.parse()?);
        }
        Ok(processors)
    }

    pub(super) fn max(self, other: Self) -> Self {
        Self {
            resident: self.resident.max(other.resident),
            n_files: self.n_files.max(other.n_files),
            n_threads: self.n_threads.max(other.n_threads),
        }
    }
}
