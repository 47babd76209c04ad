//! Peak memory and disk reads of this process, as the kernel counts them.

/// Largest resident set so far, in bytes; `None` where `/proc` does not say.
pub(crate) fn peak_bytes() -> Option<u64> {
    parse_peak(&std::fs::read_to_string("/proc/self/status").ok()?)
}

/// Reads the `VmHWM` line, which is in KiB.
fn parse_peak(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

/// Bytes read from the disk for this process; `None` where `/proc` does not say.
pub(crate) fn disk_read_bytes() -> Option<u64> {
    parse_disk_reads(&std::fs::read_to_string("/proc/self/io").ok()?)
}

fn parse_disk_reads(io: &str) -> Option<u64> {
    io.lines().find_map(|line| line.strip_prefix("read_bytes:"))?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn disk_reads_are_not_those_from_the_cache() {
        let io = "rchar: 3\nread_bytes: 4096\ncancelled_write_bytes: 0\n";
        assert_eq!(parse_disk_reads(io), Some(4096));
        assert_eq!(parse_disk_reads("rchar: 3\n"), None);
    }

    #[test]
    fn the_high_water_mark_is_read_in_bytes() {
        let status = "Name:\tpelton\nVmPeak:\t  9999 kB\nVmHWM:\t   2048 kB\nVmRSS:\t 1024 kB\n";
        assert_eq!(parse_peak(status), Some(2048 * 1024));
        assert_eq!(parse_peak("VmRSS:\t 1024 kB\n"), None);
        assert_eq!(parse_peak("VmHWM:\t many kB\n"), None);
    }
}
