//! The machine as its system describes it, without measuring.
//!
//! Everything is read below a root, so that tests can make machines of files. A fact that a
//! system does not tell is absent.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::Serialize;

/// Instruction sets that matter here, by their names in `/proc/cpuinfo`.
const INSTRUCTIONS: [&str; 14] = [
    "avx2",
    "fma",
    "f16c",
    "avx_vnni",
    "avx512f",
    "avx512bw",
    "avx512vl",
    "avx512_vnni",
    "avx512_bf16",
    "avx512_fp16",
    "amx_tile",
    "amx_int8",
    "amx_bf16",
    "asimddp",
];

/// Facts about the machine.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Facts {
    /// Name of the processor.
    pub(crate) cpu: String,
    /// Logical processors that are online.
    pub(crate) n_processors: usize,
    /// Instruction sets that matter here.
    pub(crate) instructions: Vec<String>,
    /// Whether it is a virtual machine.
    pub(crate) is_virtual: bool,
    /// Bytes of the caches of each level that the first processor uses, such as `L2`.
    pub(crate) caches: BTreeMap<String, u64>,
    /// NUMA nodes with memory.
    pub(crate) n_nodes: usize,
    /// Kernel of the system.
    pub(crate) kernel: Option<String>,
    /// Memory of the machine, in bytes.
    pub(crate) memory_bytes: Option<u64>,
    /// Limit of the container's memory, in bytes.
    pub(crate) memory_limit_bytes: Option<u64>,
    /// Swapped bytes.
    pub(crate) swap_used_bytes: Option<u64>,
    /// Processors that the container pays for.
    pub(crate) cpu_quota: Option<f64>,
    /// Transparent huge pages: always, madvise or never.
    pub(crate) huge_pages: Option<String>,
    /// Governor of the first processor's clock.
    pub(crate) governor: Option<String>,
    /// Runnable threads over the last minute.
    pub(crate) load: Option<f64>,
}

impl Facts {
    /// Reads what lies below `root`, which is `/` outside of tests.
    pub(crate) fn read(root: &Path) -> Self {
        let files = Files { root: root.to_owned() };
        let cpuinfo = files.text("proc/cpuinfo").unwrap_or_default();
        let flags = field(&cpuinfo, "flags").or_else(|| field(&cpuinfo, "Features"));
        let flags: Vec<String> =
            flags.unwrap_or_default().split_whitespace().map(str::to_owned).collect();
        let has = |name: &str| flags.iter().any(|flag| flag == name);
        let meminfo = files.text("proc/meminfo").unwrap_or_default();
        let kib = |name: &str| {
            let value = field(&meminfo, name)?;
            value.trim_end_matches("kB").trim().parse::<u64>().ok()?.checked_mul(1024)
        };
        let swapped = kib("SwapTotal").zip(kib("SwapFree"));
        let name = field(&cpuinfo, "model name").unwrap_or_else(|| "unknown".to_owned());
        let n_processors = cpuinfo.lines().filter(|line| line.starts_with("processor")).count();
        let instructions = INSTRUCTIONS.into_iter().filter(|name| has(name));
        Self {
            cpu: name,
            n_processors,
            instructions: instructions.map(str::to_owned).collect(),
            is_virtual: has("hypervisor"),
            caches: files.caches(),
            n_nodes: files.n_nodes(),
            kernel: files.line("proc/sys/kernel/osrelease"),
            memory_bytes: kib("MemTotal"),
            memory_limit_bytes: files.memory_limit(),
            swap_used_bytes: swapped.map(|(total, free)| total.saturating_sub(free)),
            cpu_quota: files.cpu_quota(),
            huge_pages: files.huge_pages(),
            governor: files.line("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
            load: files.line("proc/loadavg").and_then(|line| first_number(&line)),
        }
    }

    /// Memory that processes here can have, in bytes.
    pub(crate) fn usable_memory_bytes(&self) -> Option<u64> {
        self.memory_limit_bytes.into_iter().chain(self.memory_bytes).min()
    }
}

/// The value of the first line `name : value`.
fn field(text: &str, name: &str) -> Option<String> {
    let mut lines = text.lines().filter_map(|line| line.split_once(':'));
    lines.find(|(key, _)| key.trim() == name).map(|(_, value)| value.trim().to_owned())
}

fn first_number(line: &str) -> Option<f64> {
    line.split_whitespace().next()?.parse().ok()
}

struct Files {
    root: PathBuf,
}

impl Files {
    fn text(&self, path: &str) -> Option<String> {
        std::fs::read_to_string(self.root.join(path)).ok()
    }

    /// A file of one line; `None` where it is empty.
    fn line(&self, path: &str) -> Option<String> {
        let text = self.text(path)?;
        let line = text.trim();
        (!line.is_empty()).then(|| line.to_owned())
    }

    /// Bytes of the caches of the first processor by level; instructions are not counted.
    fn caches(&self) -> BTreeMap<String, u64> {
        let mut caches = BTreeMap::new();
        for index in 0..8 {
            let of = |name: &str| {
                self.line(&format!("sys/devices/system/cpu/cpu0/cache/index{index}/{name}"))
            };
            let (Some(level), Some(size)) = (of("level"), of("size")) else { continue };
            if of("type").as_deref() == Some("Instruction") {
                continue;
            }
            let kib = size.trim_end_matches('K').parse::<u64>().ok();
            if let Some(bytes) = kib.and_then(|kib| kib.checked_mul(1024)) {
                caches.insert(format!("L{level}"), bytes);
            }
        }
        caches
    }

    /// Nodes that have memory; at least one.
    fn n_nodes(&self) -> usize {
        let list = self.line("sys/devices/system/node/has_memory").unwrap_or_default();
        let count = |part: &str| {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let (first, last) = (first.parse::<usize>().ok()?, last.parse::<usize>().ok()?);
            last.checked_sub(first)?.checked_add(1)
        };
        list.split(',').filter_map(count).sum::<usize>().max(1)
    }

    /// Limit of the second or the first kind of control groups, at most an exbibyte.
    fn memory_limit(&self) -> Option<u64> {
        let second = self.line("sys/fs/cgroup/memory.max");
        let first = || self.line("sys/fs/cgroup/memory/memory.limit_in_bytes");
        let limit = second.or_else(first)?.parse::<u64>().ok()?;
        (limit < 1 << 60).then_some(limit)
    }

    /// Processors per second of time; `None` without a limit.
    fn cpu_quota(&self) -> Option<f64> {
        let ratio = |quota: &str, period: &str| {
            let (quota, period) = (quota.parse::<f64>().ok()?, period.parse::<f64>().ok()?);
            (quota > 0.0 && period > 0.0).then(|| quota / period)
        };
        if let Some(line) = self.line("sys/fs/cgroup/cpu.max") {
            let (quota, period) = line.split_once(' ')?;
            return ratio(quota, period);
        }
        let of = |name: &str| self.line(&format!("sys/fs/cgroup/cpu/cpu.cfs_{name}_us"));
        ratio(&of("quota")?, &of("period")?)
    }

    /// The word in brackets.
    fn huge_pages(&self) -> Option<String> {
        let line = self.line("sys/kernel/mm/transparent_hugepage/enabled")?;
        let (_, rest) = line.split_once('[')?;
        Some(rest.split_once(']')?.0.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(files: &[(&str, &str)]) -> Facts {
        let root = tempfile::tempdir().expect("temp");
        for (path, text) in files {
            let path = root.path().join(path);
            std::fs::create_dir_all(path.parent().expect("a folder")).expect("created");
            std::fs::write(path, text).expect("written");
        }
        Facts::read(root.path())
    }

    #[test]
    fn a_machine_of_files_is_read_whole() {
        let cpuinfo = "processor\t: 0\nmodel name\t: Some CPU\nflags\t\t: fpu avx2 hypervisor \
                       avx512_bf16\n\nprocessor\t: 1\nmodel name\t: Some CPU\n";
        let facts = machine(&[
            ("proc/cpuinfo", cpuinfo),
            ("proc/meminfo", "MemTotal: 2048 kB\nSwapTotal: 9 kB\nSwapFree: 4 kB\n"),
            ("proc/sys/kernel/osrelease", "6.1.0\n"),
            ("proc/loadavg", "1.50 0.7 0.5 1/99 1234\n"),
            ("sys/fs/cgroup/cpu.max", "150000 100000\n"),
            ("sys/fs/cgroup/memory.max", "1048576\n"),
            ("sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n"),
            ("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "powersave\n"),
            ("sys/devices/system/cpu/cpu0/cache/index0/level", "1\n"),
            ("sys/devices/system/cpu/cpu0/cache/index0/type", "Data\n"),
            ("sys/devices/system/cpu/cpu0/cache/index0/size", "32K\n"),
            ("sys/devices/system/node/has_memory", "0-1,4\n"),
        ]);
        let expected = Facts {
            cpu: "Some CPU".to_owned(),
            n_processors: 2,
            instructions: vec!["avx2".to_owned(), "avx512_bf16".to_owned()],
            is_virtual: true,
            caches: BTreeMap::from([("L1".to_owned(), 32 << 10)]),
            n_nodes: 3,
            kernel: Some("6.1.0".to_owned()),
            memory_bytes: Some(2 << 20),
            memory_limit_bytes: Some(1 << 20),
            swap_used_bytes: Some(5 << 10),
            cpu_quota: Some(1.5),
            huge_pages: Some("madvise".to_owned()),
            governor: Some("powersave".to_owned()),
            load: Some(1.5),
        };
        assert_eq!(facts, expected);
        assert_eq!(facts.usable_memory_bytes(), Some(1 << 20));
    }

    #[test]
    fn a_silent_or_unlimited_system_has_no_facts_and_no_limits() {
        let facts = machine(&[
            ("sys/fs/cgroup/cpu.max", "max 100000\n"),
            ("sys/fs/cgroup/memory.max", "max\n"),
        ]);
        let silent = Facts { cpu: "unknown".to_owned(), n_nodes: 1, ..Facts::default() };
        assert_eq!(facts, silent);
        let older = machine(&[
            ("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n"),
            ("sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n"),
            ("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"),
        ]);
        assert_eq!((older.cpu_quota, older.memory_limit_bytes), (None, None));
    }
}
