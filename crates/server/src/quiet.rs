//! Memory that is free goes back to the system when the server has nothing to do.
//!
//! A burst of large bodies is read on many threads, and the allocator keeps for each of them the
//! memory that it freed: a monitor sees a process that grew and does not shrink. After some seconds
//! without a request the server gives its free memory back, if it has grown since the last time.
//!
//! Busy servers are left alone: their next requests want the memory, and taking it from the system
//! again costs more than keeping it.

/// Looks without a request, one after the other, before memory is given back.
const QUIET_LOOKS: u32 = 2;
/// Growth since the last time that is worth the work, in bytes.
const GROWTH_BYTES: u64 = 1 << 20;

/// When memory is given back.
#[derive(Debug, Default)]
pub(crate) struct Quiet {
    n_quiet: u32,
    /// Resident bytes after memory was given back; 0 before the first time.
    level: u64,
}

impl Quiet {
    /// Looks at the server, once a second; `resident` are the bytes of memory that the process has.
    /// True when free memory should be given back now; [`settle`](Self::settle) follows.
    pub(crate) fn look(&mut self, is_busy: bool, resident: u64) -> bool {
        self.n_quiet = if is_busy { 0 } else { self.n_quiet.saturating_add(1) };
        // Memory of an unloaded model is gone, and growth counts from there.
        self.level = self.level.min(resident);
        self.n_quiet >= QUIET_LOOKS && resident >= self.level + GROWTH_BYTES
    }

    /// Memory was given back, and `resident` bytes are left.
    pub(crate) fn settle(&mut self, resident: u64) {
        self.level = resident;
    }
}

/// Resident bytes of this process; `None` where the system does not show it.
pub(crate) fn resident_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    line.trim().strip_suffix(" kB")?.parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn memory_is_given_back_after_some_quiet_and_once_per_growth() {
        let mut quiet = Quiet::default();
        assert!(!quiet.look(false, 60 * MIB), "the first look");
        assert!(quiet.look(false, 60 * MIB));
        quiet.settle(50 * MIB);
        assert!(!quiet.look(false, 50 * MIB + MIB / 2), "hardly grown");
        assert!(!quiet.look(true, 90 * MIB), "requests");
        assert!(!quiet.look(false, 90 * MIB));
        assert!(quiet.look(false, 90 * MIB));
        quiet.settle(51 * MIB);
        assert!(!quiet.look(false, 51 * MIB));
    }

    #[test]
    fn growth_counts_from_the_least_since_then() {
        let mut quiet = Quiet::default();
        quiet.settle(90 * MIB);
        assert!(!quiet.look(false, 30 * MIB), "a model was unloaded");
        assert!(!quiet.look(true, 40 * MIB));
        assert!(!quiet.look(false, 40 * MIB));
        assert!(quiet.look(false, 40 * MIB), "10 MiB more than then");
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn this_process_has_memory() {
        assert!(resident_bytes().is_some_and(|n_bytes| n_bytes > MIB));
    }
}
