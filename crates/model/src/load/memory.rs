//! How much memory there is.

/// Bytes that can be had without pushing anything out; `None` where the system does not tell.
pub(super) fn available_bytes() -> Option<u64> {
    let read = |path: &str| std::fs::read_to_string(path).ok();
    let machine = read("/proc/meminfo").and_then(|text| mem_available(&text));
    let number = |path| read(path)?.trim().parse::<u64>().ok();
    // Page cache counts as used here but gives way, so only the limit itself is sure.
    let cgroup = number("/sys/fs/cgroup/memory.max");
    machine.into_iter().chain(cgroup).min()
}

fn mem_available(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.split_whitespace().next()?.parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_system_tells_kibibytes() {
        assert_eq!(mem_available("MemTotal: 9 kB\nMemAvailable:   2048 kB\n"), Some(2 << 20));
        assert_eq!(mem_available("MemTotal: 9 kB\n"), None);
    }
}
