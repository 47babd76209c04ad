//! Facts about the machine: the processor's name and the size of its caches.
//!
//! ```text
//! /proc/cpuinfo                             first processor      -> name, vendor, family ...
//! /sys/devices/system/cpu/cpu*/cache/*      highest level        -> size, once per set of sharers
//! ```
//!
//! Where the system gives no answer (other systems, other processors, odd containers), the results
//! are `"unknown"` and `None`. Only printed figures and the tuning file of a machine depend on
//! them.

use std::collections::BTreeSet;
use std::path::Path;

/// Least memory that counts as beyond the caches: hosts may report smaller caches to their guests.
const LEAST_BEYOND: usize = 256 << 20;
/// Most memory that a measurement uses, however large the caches are.
const MOST_BEYOND: usize = 2 << 30;

/// Name of the processor with its model and stepping, for example
/// `"AMD EPYC 9654 96-Core Processor (AuthenticAMD family 25 model 17 stepping 1)"`.
///
/// `"unknown"` where `/proc/cpuinfo` does not exist or has none of these fields.
pub fn cpu_model() -> String {
    parse_cpu_model(&std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default())
}

fn parse_cpu_model(cpuinfo: &str) -> String {
    // Processors are separated by an empty line; the first one stands for all.
    let field = |name: &str| {
        let lines = cpuinfo.lines().take_while(|line| !line.trim().is_empty());
        let mut fields = lines.filter_map(|line| line.split_once(':'));
        let value = fields.find(|(key, _)| key.trim() == name).map(|(_, value)| value);
        let words: Vec<&str> = value?.split_whitespace().collect();
        (!words.is_empty()).then(|| words.join(" "))
    };
    let labels = [("", "vendor_id"), ("family ", "cpu family"), ("model ", "model")];
    let details: Vec<String> = labels
        .into_iter()
        .chain([("stepping ", "stepping")])
        .filter_map(|(label, name)| field(name).map(|value| format!("{label}{value}")))
        .collect();
    match (field("model name"), details.is_empty()) {
        (Some(name), true) => name,
        (Some(name), false) => format!("{name} ({})", details.join(" ")),
        (None, false) => details.join(" "),
        (None, true) => "unknown".to_owned(),
    }
}

/// Bytes of the last level of cache, of all processors together; `None` where the system does not
/// say.
pub fn last_level_cache_bytes() -> Option<usize> {
    cache_bytes_in(Path::new("/sys/devices/system/cpu"))
}

/// Bytes that a measurement must read so that the caches play no part in it: four times the last
/// level, at least 256 MiB and at most 2 GiB.
pub fn beyond_caches_bytes() -> usize {
    let cache = last_level_cache_bytes().unwrap_or(0);
    cache.saturating_mul(4).clamp(LEAST_BEYOND, MOST_BEYOND)
}

fn cache_bytes_in(processors: &Path) -> Option<usize> {
    // (level, sharers, bytes): the sharers make it one entry per cache and not per processor.
    let mut caches: BTreeSet<(u32, String, usize)> = BTreeSet::new();
    for processor in std::fs::read_dir(processors).ok()?.flatten() {
        let Ok(indices) = std::fs::read_dir(processor.path().join("cache")) else { continue };
        for index in indices.flatten() {
            let read = |name: &str| std::fs::read_to_string(index.path().join(name)).ok();
            let level = read("level").and_then(|level| level.trim().parse().ok());
            let size = read("size").and_then(|size| parse_size(&size));
            if let (Some(level), Some(sharers), Some(size)) = (level, read("shared_cpu_list"), size)
            {
                caches.insert((level, sharers, size));
            }
        }
    }
    let last = caches.last()?.0;
    let of_last = caches.iter().filter(|(level, _, _)| *level == last);
    Some(of_last.fold(0, |sum, (_, _, size)| sum.saturating_add(*size)))
}

/// Parses `32768K`, `32M` or plain bytes.
fn parse_size(text: &str) -> Option<usize> {
    let text = text.trim();
    let (digits, unit) = match text.as_bytes().last()? {
        b'K' => (&text[..text.len() - 1], 1 << 10),
        b'M' => (&text[..text.len() - 1], 1 << 20),
        _ => (text, 1),
    };
    digits.parse::<usize>().ok()?.checked_mul(unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_processor_names_the_machine() {
        let cpuinfo = "processor\t: 0\nvendor_id\t: AuthenticAMD\ncpu family\t: 25\nmodel\t\t: 17\n\
                       model name\t: AMD EPYC  9654\nstepping\t: 1\n\nmodel name\t: another\n";
        assert_eq!(
            parse_cpu_model(cpuinfo),
            "AMD EPYC 9654 (AuthenticAMD family 25 model 17 stepping 1)"
        );
        assert_eq!(parse_cpu_model("model name: A: B\n"), "A: B");
        assert_eq!(parse_cpu_model("vendor_id : X\nstepping : 3\n"), "X stepping 3");
    }

    #[test]
    fn what_is_not_told_is_unknown() {
        for cpuinfo in ["", "\n\nmodel name: later\n", "CPU part\t: 0xd0c\n", "model name\t:\n"] {
            assert_eq!(parse_cpu_model(cpuinfo), "unknown", "{cpuinfo:?}");
        }
        assert!(!cpu_model().is_empty());
        assert_eq!(cache_bytes_in(Path::new("/nowhere/at/all")), None);
    }

    #[test]
    fn sizes_carry_units() {
        assert_eq!(parse_size("32768K\n"), Some(32 << 20));
        assert_eq!(parse_size("36M"), Some(36 << 20));
        assert_eq!(parse_size("512"), Some(512));
        for bad in ["", "K", "-1K", "many", "99999999999999999999M", "é"] {
            assert_eq!(parse_size(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn caches_that_processors_share_count_once() {
        let root = std::env::temp_dir().join(format!("pelton-caches-{}", std::process::id()));
        for (processor, sharers) in [("cpu0", "0-1"), ("cpu1", "0-1"), ("cpu2", "2-3")] {
            for (index, level, size) in [("index0", "1", "32K"), ("index3", "3", "16M")] {
                let folder = root.join(processor).join("cache").join(index);
                std::fs::create_dir_all(&folder).expect("a folder");
                for (name, text) in [("level", level), ("size", size), ("shared_cpu_list", sharers)]
                {
                    std::fs::write(folder.join(name), text).expect("a file");
                }
            }
        }
        let got = cache_bytes_in(&root);
        std::fs::remove_dir_all(&root).expect("the folder is ours");
        assert_eq!(got, Some(32 << 20));
        assert!((LEAST_BEYOND..=MOST_BEYOND).contains(&beyond_caches_bytes()));
    }
}
