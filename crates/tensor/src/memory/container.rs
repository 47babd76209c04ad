//! Memory that the limits of control groups (cgroups) leave to this process.
//!
//! ```text
//! proc/self/cgroup                    0::/a/b          version 2: the group of this process
//!                                     4:memory:/a/b    version 1
//! sys/fs/cgroup/a/b/memory.max                         version 2: limit; memory.current, memory.stat
//! sys/fs/cgroup/memory/a/b/memory.limit_in_bytes       version 1: limit; memory.usage_in_bytes, memory.stat
//! ```
//!
//! The groups above bind as well. Inside a container the path of the group may not exist, because
//! the container sees its own group as the root.

use std::fs;
use std::path::Path;

use super::field;

/// A limit of version 1 from which on there is none: the kernel shows the largest number of pages.
const UNLIMITED: u64 = 1 << 60;

/// The names of the files of one version.
struct Version {
    limit: &'static str,
    usage: &'static str,
    /// Fields of `memory.stat` with the pages of files. They count as used, and give way when asked
    /// to.
    files: &'static [&'static str],
}

const V1: Version = Version {
    limit: "memory.limit_in_bytes",
    usage: "memory.usage_in_bytes",
    files: &["total_inactive_file", "total_active_file"],
};
const V2: Version = Version { limit: "memory.max", usage: "memory.current", files: &["file"] };

/// The bytes that the groups of this process leave; `None` where none has a limit. `root` is `/`
/// but in tests.
pub(super) fn left(root: &Path) -> Option<u64> {
    let groups = fs::read_to_string(root.join("proc/self/cgroup")).ok()?;
    let all = root.join("sys/fs/cgroup");
    let of_line = |line: &str| {
        let mut parts = line.splitn(3, ':').skip(1);
        let (controllers, path) = (parts.next()?, parts.next()?);
        let has_memory = controllers.split(',').any(|name| name == "memory");
        match controllers {
            "" => V2.left(&all, path),
            _ if has_memory => V1.left(&all.join("memory"), path),
            _ => None,
        }
    };
    groups.lines().filter_map(of_line).min()
}

impl Version {
    /// Memory that the group at `path` below `base` and the groups above it leave.
    fn left(&self, base: &Path, path: &str) -> Option<u64> {
        let group = base.join(path.trim_start_matches('/'));
        let groups = group.ancestors().take_while(|group| group.starts_with(base));
        groups.filter_map(|group| self.left_in(group)).min()
    }

    fn left_in(&self, group: &Path) -> Option<u64> {
        let read = |name: &str| fs::read_to_string(group.join(name)).ok();
        let number = |name: &str| read(name)?.trim().parse::<u64>().ok();
        // Version 2 writes `max` for no limit.
        let most = number(self.limit).filter(|&most| most < UNLIMITED)?;
        let stat = read("memory.stat").unwrap_or_default();
        let files: u64 = self.files.iter().filter_map(|name| field(&stat, name)).sum();
        let used = number(self.usage).unwrap_or(0).saturating_sub(files);
        Some(most.saturating_sub(used))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The memory that is left with these files.
    fn left_with(files: &[(&str, &str)]) -> Option<u64> {
        let root = tempfile::tempdir().expect("a folder");
        for (path, text) in files {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().expect("a file in a folder")).expect("folders");
            fs::write(path, text).expect("written");
        }
        left(root.path())
    }

    #[test]
    fn the_tightest_group_of_version_2_decides_and_pages_of_files_give_way() {
        let files = [
            ("proc/self/cgroup", "0::/system.slice/pelton.service\n"),
            ("sys/fs/cgroup/system.slice/pelton.service/memory.max", "max\n"),
            ("sys/fs/cgroup/system.slice/memory.max", "1000\n"),
            ("sys/fs/cgroup/system.slice/memory.current", "900\n"),
            ("sys/fs/cgroup/system.slice/memory.stat", "anon 100\nfile 800\n"),
            ("sys/fs/cgroup/memory.max", "5000\n"),
        ];
        assert_eq!(left_with(&files), Some(900));
        assert_eq!(left_with(&files[..2]), None);
    }

    #[test]
    fn a_container_sees_its_group_as_the_root() {
        let files = [
            ("proc/self/cgroup", "0::/docker/0123\n"),
            ("sys/fs/cgroup/memory.max", "700"),
            ("sys/fs/cgroup/memory.current", "50"),
        ];
        assert_eq!(left_with(&files), Some(650));
    }

    #[test]
    fn version_1_has_a_tree_of_its_own_for_memory() {
        let files = [
            ("proc/self/cgroup", "9:name=systemd:/x\n4:cpu,memory:/a\n1:cpu:/b\n0::/\n"),
            ("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"),
            ("sys/fs/cgroup/memory/a/memory.limit_in_bytes", "4096\n"),
            ("sys/fs/cgroup/memory/a/memory.usage_in_bytes", "3000\n"),
            (
                "sys/fs/cgroup/memory/a/memory.stat",
                "total_inactive_file 500\ntotal_active_file 500\n",
            ),
        ];
        assert_eq!(left_with(&files), Some(4096 - 2000));
        assert_eq!(left_with(&files[..2]), None, "no limit");
        assert_eq!(left_with(&[("proc/self/cgroup", "nonsense\n::\n4:memory:\n")]), None);
        assert_eq!(left_with(&[]), None);
    }
}
