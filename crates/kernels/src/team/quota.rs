//! The number of cores that the container's CPU quota pays for.
//!
//! ```text
//! sys/fs/cgroup/cpu.max                   "150000 100000": microseconds of CPU per microseconds (v2)
//! sys/fs/cgroup/cpu/cpu.cfs_quota_us,
//!                   cpu.cfs_period_us     the same in two files; a quota of -1 is none (v1)
//! ```
//!
//! The number is rounded up: half a core is one thread, one core and a half are two. A team with
//! more threads uses up the quota of a period early and then stands still until the next period.

use std::fs;
use std::path::Path;

/// Whole cores that the quota in the files under `root` pays for, at least 1; `None` without quota.
pub(super) fn whole_cores(root: &Path) -> Option<usize> {
    let cgroup = root.join("sys/fs/cgroup");
    let read = |path: &str| fs::read_to_string(cgroup.join(path)).ok();
    if let Some(text) = read("cpu.max") {
        return parse(&text);
    }
    let quota = read("cpu/cpu.cfs_quota_us")?;
    let period = read("cpu/cpu.cfs_period_us")?;
    parse(&format!("{} {}", quota.trim(), period.trim()))
}

/// Parses `"<quota> <period>"`; `max` or a negative quota means none.
fn parse(text: &str) -> Option<usize> {
    let (quota, period) = text.trim().split_once(' ')?;
    let (quota, period) = (quota.parse::<u64>().ok()?, period.trim().parse::<u64>().ok()?);
    let n_cores = quota.div_ceil(period.max(1)).max(1);
    usize::try_from(n_cores).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quota_rounds_up_to_whole_cores() {
        assert_eq!(parse("max 100000\n"), None);
        assert_eq!(parse("-1 100000"), None);
        assert_eq!(parse("150000 100000\n"), Some(2));
        assert_eq!(parse("50000 100000"), Some(1));
        assert_eq!(parse("1000 100000"), Some(1));
        assert_eq!(parse("100 0"), Some(100));
        assert_eq!(parse("nonsense"), None);
    }
}
