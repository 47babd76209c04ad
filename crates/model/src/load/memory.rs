//! How much memory there is.

/// Bytes that can be had without pushing anything out, the limit of the container included; `None`
/// where the system does not tell.
pub fn available_memory_bytes() -> Option<u64> {
    let read = |path: &str| std::fs::read_to_string(path).ok();
    let machine =
        read("/proc/meminfo").and_then(|text| field(&text, "MemAvailable:")?.checked_mul(1024));
    let number = |path| read(path)?.trim().parse::<u64>().ok();
    let cgroup = number("/sys/fs/cgroup/memory.max").map(|most| {
        let used = number("/sys/fs/cgroup/memory.current").unwrap_or(0);
        // Pages of files count as used and give way when asked to.
        let files = read("/sys/fs/cgroup/memory.stat").and_then(|text| field(&text, "file"));
        most.saturating_sub(used.saturating_sub(files.unwrap_or(0)))
    });
    machine.into_iter().chain(cgroup).min()
}

/// The number behind a name in one of the kernel's tables.
fn field(table: &str, name: &str) -> Option<u64> {
    let mut lines = table.lines().map(str::split_whitespace);
    let mut line = lines.find(|line| line.clone().next() == Some(name))?;
    line.nth(1)?.parse().ok()
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
}
