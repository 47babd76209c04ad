//! Limits of inference on a machine, and what would help, with the command that changes it.

use pelton_bench::kernels::Baseline;
use serde::Serialize;

use super::facts::Facts;
use crate::stats::bytes;

/// Share of the bandwidth of all threads from which on half of them count as enough.
const SATURATED: f64 = 0.9;
/// Times as fast as half of them that all threads multiply at least where each has a core of its
/// own.
const OWN_CORES: f64 = 1.4;

/// A finding, and what to do about it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Advice {
    /// The fault and its cost, or a fact.
    pub(super) finding: String,
    /// The command or the setting that changes it; `None` where nothing has to be done.
    pub(super) change: Option<String>,
}

impl Advice {
    fn new(finding: impl Into<String>, change: impl Into<String>) -> Self {
        Self { finding: finding.into(), change: Some(change.into()) }
    }

    fn fact(finding: impl Into<String>) -> Self {
        Self { finding: finding.into(), change: None }
    }
}

/// Everything that the system's own words tell.
pub(super) fn of_facts(facts: &Facts, n_threads: usize) -> Vec<Advice> {
    let mut all = Vec::new();
    if let Some(governor) = facts.governor.as_deref().filter(|governor| *governor != "performance")
    {
        all.push(Advice::new(
            format!(
                "the clock follows the governor `{governor}`, which starts slowly after a pause"
            ),
            "sudo cpupower frequency-set -g performance",
        ));
    }
    if facts.huge_pages.as_deref() == Some("never") {
        all.push(Advice::new(
            "huge pages are off, so that every 4 KiB of weights need an entry of the TLB",
            "echo madvise | sudo tee /sys/kernel/mm/transparent_hugepage/enabled",
        ));
    }
    if let Some(quota) = facts.cpu_quota.filter(|quota| *quota < facts.n_processors as f64) {
        all.push(Advice::new(
            format!(
                "the container pays for {quota:.1} of {} processors; {n_threads} threads compute",
                facts.n_processors
            ),
            "raise the limit: `--cpus` of docker or podman, `resources.limits.cpu` of Kubernetes",
        ));
    }
    let limit = facts.memory_limit_bytes.zip(facts.memory_bytes);
    if let Some((limit, memory)) = limit.filter(|(limit, memory)| limit < memory) {
        all.push(Advice::new(
            format!("the container may use {} of {} of memory", bytes(limit), bytes(memory)),
            "raise the limit: `--memory` of docker or podman, `resources.limits.memory` of Kubernetes",
        ));
    }
    if let Some(used) = facts.swap_used_bytes.filter(|used| *used > 64 << 20) {
        all.push(Advice::new(
            format!(
                "{} are swapped out; weights that are swapped are read from the disk",
                bytes(used)
            ),
            "end other programs, or choose a smaller model; `free -h` shows the memory in use",
        ));
    }
    if let Some(load) = facts.load.filter(|load| *load > 0.5 * facts.n_processors.max(1) as f64) {
        all.push(Advice::new(
            format!(
                "{load:.1} threads of other programs ran over the last minute, on {} processors",
                facts.n_processors
            ),
            "end other programs, or give this one its own cores: `taskset -c LIST pelton ...`",
        ));
    }
    if facts.n_nodes > 1 {
        all.push(Advice::new(
            format!("memory lies on {} nodes", facts.n_nodes),
            "the first start measures the placement; PELTON_NUMA=local|interleave overrules it",
        ));
    }
    all
}

/// Whether better kernels than those in use could run: `best` are the best that this program may use,
/// `used` those that it uses.
pub(super) fn of_kernels(facts: &Facts, best: &str, used: &str) -> Option<Advice> {
    if used != best {
        return Some(Advice::new(
            format!("the kernels `{used}` are forced, and this machine can run `{best}`"),
            "unset PELTON_KERNELS",
        ));
    }
    let has = |name: &str| facts.instructions.iter().any(|instruction| instruction == name);
    let has_tiles = ["amx_tile", "amx_int8", "amx_bf16"].into_iter().all(has);
    (has_tiles && best != "amx").then(|| {
        Advice::new(
            format!(
                "the processor has tile registers (AMX), which the system does not grant to this program, \
                 so `{best}` computes prompts and batches"
            ),
            "Linux 5.16 or later, and a sandbox that lets `arch_prctl` pass",
        )
    })
}

/// Everything that the measurements tell.
pub(super) fn of_baseline(measured: &Baseline) -> Vec<Advice> {
    let mut all = vec![limits(measured)];
    let (most, half) = (measured.threads, measured.threads.div_ceil(2));
    let of = |threads| measured.ceilings.iter().find(|ceilings| ceilings.threads == threads);
    if let Some((all_threads, some)) = of(most).zip(of(half)).filter(|_| half < most) {
        let share = some.read_bytes_per_s / all_threads.read_bytes_per_s;
        if share >= SATURATED {
            all.push(Advice::new(
                format!(
                    "{half} of {most} threads already read {:.0} % of what all read: more cores do not \
                     make decoding faster, fewer bytes do",
                    100.0 * share
                ),
                "a smaller format, as in `pelton convert MODEL OUT.gguf --format q4_k`, or batches",
            ));
        }
        let factor = all_threads.int8_ops_per_s / some.int8_ops_per_s;
        if factor < OWN_CORES {
            all.push(Advice::new(
                format!(
                    "{most} threads multiply {factor:.1} times as fast as {half}: two share a core, or \
                     other programs take turns with them"
                ),
                format!(
                    "`--threads {half}` where `pelton bench model` is as fast with it; on a virtual \
                     machine, cores that no other machine has"
                ),
            ));
        }
    }
    if measured.is_noisy {
        all.push(Advice::new(
            format!(
                "readings of the bandwidth differ by {:.0} %: this was a noisy minute",
                measured.spread_percent
            ),
            "run `pelton doctor` again while nothing else runs",
        ));
    }
    all
}

/// The two limits of inference in numbers.
fn limits(measured: &Baseline) -> Advice {
    let gb = measured.read_bytes_per_s / 1e9;
    let per_gib_ms = 1e3 * (1_u64 << 30) as f64 / measured.read_bytes_per_s;
    let team = measured.ceilings.last();
    let int8 = team.map_or(0.0, |ceilings| ceilings.int8_ops_per_s);
    Advice::fact(format!(
        "decoding is limited by {gb:.1} GB/s of reads: {per_gib_ms:.1} ms per token for each GiB of \
         weights; prompts by {:.0} GOP/s of int8",
        int8 / 1e9
    ))
}

#[cfg(test)]
mod tests {
    use pelton_bench::kernels::ThreadCeilings;

    use super::*;

    fn baseline(reads: &[(usize, f64)], spread_percent: f64) -> Baseline {
        let ceilings = reads.iter().map(|&(threads, read_bytes_per_s)| ThreadCeilings {
            threads,
            read_bytes_per_s,
            int8_ops_per_s: 1e11 * threads as f64,
            bf16_ops_per_s: None,
            f16_ops_per_s: None,
            f32_ops_per_s: 1e10,
        });
        Baseline {
            kernels: "avx2",
            threads: reads.last().map_or(1, |(threads, _)| *threads),
            ceilings: ceilings.collect(),
            read_bytes_per_s: 30e9,
            bandwidth_readings: vec![30e9],
            spread_percent,
            is_noisy: spread_percent > 10.0,
            barrier_s: 1e-6,
            rows: Default::default(),
            attention: Vec::new(),
            products: Vec::new(),
        }
    }

    #[test]
    fn a_well_kept_machine_needs_no_advice() {
        let facts = Facts {
            n_processors: 8,
            n_nodes: 1,
            governor: Some("performance".to_owned()),
            huge_pages: Some("madvise".to_owned()),
            cpu_quota: Some(8.0),
            load: Some(0.3),
            ..Facts::default()
        };
        assert_eq!(of_facts(&facts, 8), []);
        let advice = of_baseline(&baseline(&[(1, 8e9), (2, 15e9), (4, 30e9)], 2.0));
        assert_eq!(advice.len(), 1);
        assert!(advice[0].finding.contains("30.0 GB/s") && advice[0].change.is_none());
    }

    #[test]
    fn kernels_that_could_be_better_are_named() {
        let names = ["amx_tile", "amx_int8", "amx_bf16"].map(str::to_owned);
        let with_tiles = Facts { instructions: names.to_vec(), ..Facts::default() };
        let without = Facts { instructions: names[..1].to_vec(), ..Facts::default() };
        assert_eq!(of_kernels(&with_tiles, "amx", "amx"), None);
        assert_eq!(of_kernels(&without, "avx512vnni", "avx512vnni"), None);
        let refused = of_kernels(&with_tiles, "avx512vnni", "avx512vnni").expect("a finding");
        assert!(refused.finding.contains("does not grant"), "{refused:?}");
        assert!(refused.change.is_some_and(|change| change.contains("arch_prctl")));
        let forced = of_kernels(&with_tiles, "amx", "avx2").expect("a finding");
        assert!(forced.finding.contains("`avx2` are forced"), "{forced:?}");
        assert_eq!(forced.change.as_deref(), Some("unset PELTON_KERNELS"));
    }

    #[test]
    fn each_fault_is_found_and_names_its_change() {
        let facts = Facts {
            n_processors: 8,
            n_nodes: 2,
            governor: Some("powersave".to_owned()),
            huge_pages: Some("never".to_owned()),
            cpu_quota: Some(2.5),
            memory_bytes: Some(8 << 30),
            memory_limit_bytes: Some(1 << 30),
            swap_used_bytes: Some(1 << 30),
            load: Some(6.0),
            ..Facts::default()
        };
        let all = of_facts(&facts, 2);
        for words in
            ["cpupower", "transparent_hugepage", "--cpus", "--memory", "free -h", "taskset", "NUMA"]
        {
            let changes = all.iter().filter_map(|advice| advice.change.as_deref());
            assert_eq!(changes.filter(|change| change.contains(words)).count(), 1, "{words}");
        }
        let noisy = of_baseline(&baseline(&[(1, 28e9), (2, 30e9)], 25.0));
        assert_eq!(noisy.len(), 3);
        assert!(noisy[1].finding.contains("1 of 2 threads already read 93 %"));
        assert!(noisy[2].finding.contains("differ by 25 %"));
        let mut shared = baseline(&[(1, 15e9), (2, 30e9)], 2.0);
        shared.ceilings[1].int8_ops_per_s = 1.1e11;
        let advice = of_baseline(&shared);
        assert_eq!(advice.len(), 2);
        assert!(advice[1].finding.contains("2 threads multiply 1.1 times as fast as 1"));
        assert!(advice[1].change.as_ref().is_some_and(|change| change.contains("--threads 1")));
    }
}
