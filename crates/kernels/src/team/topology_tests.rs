use super::*;

/// A machine made of files in a folder that vanishes.
struct Machine {
    root: tempfile::TempDir,
}

impl Machine {
    fn new() -> Self {
        Self { root: tempfile::tempdir().expect("a folder") }
    }

    fn file(self, path: &str, text: &str) -> Self {
        let path = self.root.path().join(path);
        fs::create_dir_all(path.parent().expect("a folder")).expect("folders");
        fs::write(path, text).expect("a file");
        self
    }

    fn cpu(self, id: usize, file: &str, text: &str) -> Self {
        self.file(&format!("sys/devices/system/cpu/cpu{id}/{file}"), text)
    }

    fn siblings(self, id: usize, list: &str) -> Self {
        self.cpu(id, "topology/thread_siblings_list", &format!("{list}\n"))
    }

    fn node(self, id: usize, list: &str) -> Self {
        self.file(&format!("sys/devices/system/node/node{id}/cpulist"), &format!("{list}\n"))
    }

    fn read(&self, allowed: impl IntoIterator<Item = usize>) -> Topology {
        let allowed: Vec<usize> = allowed.into_iter().collect();
        Topology::read(self.root.path(), &allowed)
    }
}

fn order(topology: &Topology) -> Vec<usize> {
    topology.cpus().collect()
}

/// Two sockets of four cores of two threads: CPU `i` and `i + 8` share core `i`.
fn server() -> Machine {
    let machine = (0..16).fold(Machine::new(), |machine, id| {
        machine
            .siblings(id, &format!("{},{}", id % 8, id % 8 + 8))
            .cpu(id, "topology/physical_package_id", &format!("{}\n", id % 8 / 4))
            .cpu(id, "topology/core_id", &format!("{}\n", id % 4))
    });
    machine
        .node(0, "0-3,8-11")
        .node(1, "4-7,12-15")
        .file("sys/devices/system/node/online", "0-1\n")
        .file("proc/self/status", "Name:\tpelton\nMems_allowed_list:\t0-1\n")
}

/// Two performance cores of two threads (0 1, 2 3) and four efficiency cores.
fn laptop() -> Machine {
    let machine = ["0-1", "0-1", "2-3", "2-3", "4", "5", "6", "7"]
        .iter()
        .enumerate()
        .fold(Machine::new(), |machine, (id, list)| machine.siblings(id, list));
    machine
        .file("sys/devices/cpu_core/cpus", "0-3\n")
        .file("sys/devices/cpu_atom/cpus", "4-7\n")
        .node(0, "0-7")
}

#[test]
fn a_server_gives_one_thread_per_core_and_both_its_nodes() {
    let topology = server().read(0..16);
    assert_eq!(order(&topology), (0..16).collect::<Vec<_>>());
    assert_eq!((topology.n_cores(), topology.default_threads()), (8, 8));
    assert_eq!(topology.nodes(), [0, 1]);
    assert_eq!(topology.pins(8), Some((0..8).collect()), "all cores, no siblings");
    assert_eq!(topology.pins(16), Some((0..16).collect()), "all logical CPUs");
    for n_floating in [0, 1, 2, 7, 9, 15, 17] {
        assert_eq!(topology.pins(n_floating), None, "{n_floating} threads");
    }
}

#[test]
fn neighbouring_numbers_may_be_one_core() {
    let machine = (0..4).fold(Machine::new(), |machine, id| {
        machine.siblings(id, if id < 2 { "0-1" } else { "2-3" })
    });
    let topology = machine.read(0..4);
    assert_eq!(order(&topology), [0, 2, 1, 3]);
    assert_eq!(topology.pins(2), Some(vec![0, 2]));
}

#[test]
fn a_hybrid_laptop_counts_its_performance_cores_and_takes_siblings_last() {
    let topology = laptop().read(0..8);
    assert_eq!(order(&topology), [0, 2, 4, 5, 6, 7, 1, 3]);
    assert_eq!((topology.n_cores(), topology.n_performance_cores()), (6, 2));
    assert_eq!(topology.default_threads(), 2);
    assert_eq!(topology.pins(6), Some(vec![0, 2, 4, 5, 6, 7]));
    assert_eq!(topology.pins(2), None, "performance cores alone do not cover the machine");
    let slow = laptop().read([4, 6, 7]);
    assert_eq!(slow.default_threads(), 3, "where only efficiency cores are allowed they count");
    assert_eq!(laptop().read([3, 4]).default_threads(), 1);
}

#[test]
fn capacities_tell_large_from_little_where_there_is_no_list() {
    let machine =
        [400, 400, 870, 870, 1024].iter().enumerate().fold(Machine::new(), |machine, (id, n)| {
            machine.siblings(id, &id.to_string()).cpu(id, "cpu_capacity", &format!("{n}\n"))
        });
    let topology = machine.read(0..5);
    assert_eq!(order(&topology), [2, 3, 4, 0, 1]);
    assert_eq!(topology.default_threads(), 3);
    assert_eq!(machine.read(0..2).default_threads(), 2, "the largest that is allowed counts");
    let unknown = machine.cpu(0, "cpu_capacity", "?").read(0..5);
    assert_eq!(unknown.default_threads(), 4, "an unknown capacity is not a small one");
}

#[test]
fn a_container_sees_only_its_mask() {
    // The sibling of 2 is not allowed; 5 and 13 are one core.
    let topology = server().read([2, 5, 13]);
    assert_eq!(order(&topology), [2, 5, 13]);
    assert_eq!((topology.n_cores(), topology.default_threads()), (2, 2));
    assert_eq!(topology.nodes(), [0, 1]);
    assert_eq!(server().read([8, 9, 3]).nodes(), [0], "the mask lies on one node");
    assert_eq!(server().read([12]).nodes(), [1]);
    let one_memory = server().file("proc/self/status", "Mems_allowed_list:\t1\n");
    assert_eq!(one_memory.read(0..16).nodes(), [1], "memory of node 0 is not ours");
}

#[test]
fn package_and_core_numbers_stand_in_for_a_missing_list() {
    let machine = (0..8).fold(Machine::new(), |machine, id| {
        // Cores 0 and 1 in each of two packages, two threads each; a list about somebody else.
        machine
            .siblings(id, "100")
            .cpu(id, "topology/physical_package_id", &(id / 4).to_string())
            .cpu(id, "topology/core_id", &(id % 2).to_string())
    });
    let topology = machine.read(0..8);
    assert_eq!(order(&topology), [0, 1, 4, 5, 2, 3, 6, 7]);
}

#[test]
fn without_files_every_allowed_cpu_is_a_core() {
    let topology = Machine::new().read([1, 4, 6]);
    assert_eq!(order(&topology), [1, 4, 6]);
    assert_eq!((topology.default_threads(), topology.nodes()), (3, &[][..]));
    assert_eq!(topology.pins(3), Some(vec![1, 4, 6]));
    let unknown = Machine::new().read([]);
    assert!(unknown.default_threads() >= 1, "a system that does not tell its mask");
    assert_eq!((unknown.pins(0), unknown.pins(4)), (None, None));
}

#[test]
fn nonsense_in_the_files_is_as_no_files() {
    for nonsense in ["", "\n", "0-", "-1", "4-2", "0-x", "99999999999999999999999", "\u{0}\u{1}ü,"]
    {
        let machine = (0..3).fold(Machine::new(), |machine, id| {
            machine
                .siblings(id, nonsense)
                .cpu(id, "topology/physical_package_id", nonsense)
                .cpu(id, "topology/core_id", nonsense)
                .cpu(id, "cpu_capacity", nonsense)
                .node(id, nonsense)
        });
        let machine = machine
            .file("sys/devices/cpu_core/cpus", nonsense)
            .file("sys/fs/cgroup/cpu.max", nonsense)
            .file("sys/devices/system/node/nodeful/cpulist", "0-2")
            .file("proc/self/status", &format!("Mems_allowed_list:{nonsense}"));
        let topology = machine.read(0..3);
        assert_eq!(order(&topology), [0, 1, 2], "{nonsense:?}");
        assert_eq!((topology.default_threads(), topology.nodes()), (3, &[][..]), "{nonsense:?}");
    }
    // A list without end is a list, and costs nothing.
    let endless = Machine::new().siblings(0, "0-18446744073709551615").node(0, "0-4294967295");
    assert_eq!(endless.read(0..2).nodes(), [0]);
    // A folder where a file should be.
    let folder = Machine::new().cpu(0, "topology/thread_siblings_list/0", "0");
    assert_eq!(order(&folder.read([0])), [0]);
}

#[test]
fn a_single_core_is_a_team_of_one_that_floats() {
    let topology = Machine::new().siblings(0, "0").node(0, "0").read([0]);
    assert_eq!((topology.default_threads(), topology.nodes()), (1, &[0][..]));
    assert_eq!(topology.pins(1), None);
}

#[test]
fn a_quota_in_either_version_limits_the_threads() {
    let v2 = |text| server().file("sys/fs/cgroup/cpu.max", text).read(0..16).default_threads();
    let cases = [("max 100000\n", 8), ("50000 100000\n", 1), ("250000 100000\n", 3)];
    for (text, expected) in cases {
        assert_eq!(v2(text), expected, "{text:?}");
    }
    assert_eq!(v2("6400000 100000\n"), 8, "a quota adds no cores");
    let v1 = |quota| {
        server()
            .file("sys/fs/cgroup/cpu/cpu.cfs_quota_us", quota)
            .file("sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n")
            .read(0..16)
            .default_threads()
    };
    assert_eq!((v1("-1\n"), v1("200000\n"), v1("50000\n")), (8, 2, 1));
}

#[test]
fn this_machine_has_a_topology() {
    let topology = Topology::of_this_process();
    let mut cpus = order(&topology);
    cpus.sort_unstable();
    assert_eq!(cpus, allowed_cpus(), "each allowed CPU once");
    assert!(topology.n_performance_cores() <= topology.n_cores());
}
