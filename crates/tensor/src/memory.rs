//! How much memory there is, and the error of memory that the system refuses.
//!
//! Three limits can refuse memory, and each is lifted in another place: the machine's own memory,
//! the limit of the container, and the limit of the process's address space (`ulimit -v`). The
//! error shows all that there are.

mod container;
mod exhausted;

use std::fmt;
use std::io;
use std::path::Path;

pub use exhausted::{ExplainingAllocator, NO_MEMORY_EXIT_CODE, handle_memory_signal};

/// The bytes that each limit still leaves; `None` where there is no such limit, or the system does
/// not show it.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct MemoryLeft {
    /// Memory that the machine can give without pushing anything out.
    pub machine: Option<u64>,
    /// Memory that the limit of the container (cgroup) leaves.
    pub container: Option<u64>,
    /// Memory that the limit of the address space (`RLIMIT_AS`, `ulimit -v`) leaves.
    pub address_space: Option<u64>,
}

impl MemoryLeft {
    /// The memory that is left now.
    pub fn now() -> Self {
        let read = |path: &str| std::fs::read_to_string(path).ok();
        let kib = |path, name| field(&read(path)?, name)?.checked_mul(1024);
        let container = container::left(Path::new("/"));
        let most_addresses = read("/proc/self/limits").and_then(|text| address_limit(&text));
        let address_space = most_addresses
            .map(|most| most.saturating_sub(kib("/proc/self/status", "VmSize:").unwrap_or(0)));
        Self { machine: kib("/proc/meminfo", "MemAvailable:"), container, address_space }
    }

    /// The least of them.
    pub fn least(&self) -> Option<u64> {
        [self.machine, self.container, self.address_space].into_iter().flatten().min()
    }
}

impl fmt::Display for MemoryLeft {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let limits = [
            ("on the machine", self.machine),
            ("in the container (cgroup)", self.container),
            ("of address space (ulimit -v)", self.address_space),
        ];
        let mut separator = "";
        for (place, left) in limits {
            if let Some(left) = left {
                write!(f, "{separator}{} {place}", ByteSize(left))?;
                separator = ", ";
            }
        }
        if separator.is_empty() { f.write_str("unknown") } else { Ok(()) }
    }
}

/// Bytes that can be had without pushing anything out, the limits of the container and of the
/// process included; `None` where the system does not show it.
pub fn available_memory_bytes() -> Option<u64> {
    MemoryLeft::now().least()
}

/// Gives memory that the allocator holds free back to the system, so far as it can; true if some
/// was given.
///
/// An allocator keeps what was freed for the next request of the same thread. After a burst of
/// large requests that is memory that no thread may ask for again, and a container is billed for
/// it. The call walks all free memory, some milliseconds for a server's: for times without work.
/// Only glibc has such a call; with another C library nothing happens.
pub fn give_free_memory_back() -> bool {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        // SAFETY: the call takes the allocator's own locks and moves nothing that is in use.
        unsafe { libc::malloc_trim(0) != 0 }
    }
    #[cfg(not(all(target_os = "linux", target_env = "gnu")))]
    {
        false
    }
}

/// Bounds the arenas of the allocator, out of which threads allocate without waiting for one another.
///
/// glibc makes up to eight for each processor. Each keeps free memory of its own that no other can
/// use, so a burst of requests on many threads leaves much of it behind. A program calls this at its
/// start; with another C library nothing happens.
pub fn limit_arenas(n_most: usize) {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        let n_most = libc::c_int::try_from(n_most.max(1)).unwrap_or(libc::c_int::MAX);
        // SAFETY: the call sets a number that the allocator reads when it would make an arena.
        unsafe { libc::mallopt(libc::M_ARENA_MAX, n_most) };
    }
    #[cfg(not(all(target_os = "linux", target_env = "gnu")))]
    let _ = n_most;
}

/// Memory that the system refused.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("the system refuses {} of memory ({reason}); there is left: {left}", ByteSize(*.n_bytes as u64))]
pub struct MemoryRefused {
    /// Bytes asked for.
    pub n_bytes: usize,
    /// The system's words.
    pub reason: String,
    /// The memory that the limits left when it refused.
    pub left: MemoryLeft,
}

impl MemoryRefused {
    /// The refusal of `n_bytes` with the system's `error`.
    pub(crate) fn new(n_bytes: usize, error: &io::Error) -> Self {
        Self { n_bytes, reason: error.to_string(), left: MemoryLeft::now() }
    }
}

impl From<MemoryRefused> for io::Error {
    fn from(refused: MemoryRefused) -> Self {
        Self::new(io::ErrorKind::OutOfMemory, refused)
    }
}

/// A number of bytes in the words of messages: `1.5 GiB`, `0.3 MiB`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct ByteSize(pub u64);

impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const GIB: f64 = (1_u64 << 30) as f64;
        const MIB: f64 = (1_u64 << 20) as f64;
        let n = self.0 as f64;
        if n >= GIB { write!(f, "{:.1} GiB", n / GIB) } else { write!(f, "{:.1} MiB", n / MIB) }
    }
}

/// The number behind a name in one of the kernel's tables.
fn field(table: &str, name: &str) -> Option<u64> {
    let mut lines = table.lines().map(str::split_whitespace);
    let mut line = lines.find(|line| line.clone().next() == Some(name))?;
    line.nth(1)?.parse().ok()
}

/// The soft limit of the address space in `/proc/self/limits`; `None` where it is `unlimited`.
fn address_limit(limits: &str) -> Option<u64> {
    let line = limits.lines().find_map(|line| line.strip_prefix("Max address space"))?;
    line.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_is_found_by_its_whole_name() {
        let meminfo = "MemTotal: 9 kB\nMemAvailable:   2048 kB\n";
        assert_eq!(field(meminfo, "MemAvailable:"), Some(2048));
        assert_eq!(field("inactive_file 1\nfile 7\n", "file"), Some(7));
        assert_eq!(field("MemTotal: 9 kB\n", "MemAvailable:"), None);
    }

    #[test]
    fn the_limit_of_the_address_space_is_read_where_there_is_one() {
        let table = |soft| {
            format!(
                "Limit                     Soft Limit           Hard Limit           Units\n\
                 Max file size             unlimited            unlimited            bytes\n\
                 Max address space         {soft}           unlimited            bytes\n"
            )
        };
        assert_eq!(address_limit(&table("4194304000")), Some(4_194_304_000));
        assert_eq!(address_limit(&table("unlimited")), None);
        assert_eq!(address_limit(""), None);
    }

    #[test]
    fn a_refusal_says_what_was_asked_and_what_each_limit_leaves() {
        let left =
            MemoryLeft { machine: Some(3 << 30), container: None, address_space: Some(1 << 19) };
        assert_eq!(left.least(), Some(1 << 19));
        let error = io::Error::other("no");
        let refused = MemoryRefused { left, ..MemoryRefused::new(5 << 29, &error) };
        assert_eq!(
            refused.to_string(),
            "the system refuses 2.5 GiB of memory (no); there is left: 3.0 GiB on the machine, \
             0.5 MiB of address space (ulimit -v)"
        );
        assert_eq!(io::Error::from(refused.clone()).to_string(), refused.to_string());
        assert_eq!(MemoryLeft::default().to_string(), "unknown");
    }

    #[test]
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    fn freed_memory_goes_back_to_the_system() {
        let resident = || {
            let status = std::fs::read_to_string("/proc/self/status").expect("Linux");
            field(&status, "VmRSS:").expect("resident") << 10
        };
        // Small pieces with one kept at the end, so that freeing them alone gives nothing back.
        let mut pieces: Vec<Box<[u8; 4096]>> = (0..8192).map(|_| Box::new([1; 4096])).collect();
        let last = pieces.pop();
        drop(pieces);
        let before = resident();
        assert!(give_free_memory_back());
        assert!(resident() + (16 << 20) < before, "of 32 MiB, most are given back");
        drop(last);
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn this_machine_has_some_memory_left() {
        assert!(MemoryLeft::now().machine.is_some_and(|n_bytes| n_bytes > 1 << 20));
    }
}
