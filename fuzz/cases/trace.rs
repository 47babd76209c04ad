//! Any bytes are a trace that is written and read back unchanged, or an error of one line that names
//! the file; never a panic.

use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use pelton_sim::trace::{Trace, TraceFile, TraceRequest, save};

/// Two files of this process in memory, where the system has such files.
static FILES: LazyLock<[PathBuf; 2]> = LazyLock::new(|| {
    let memory = Path::new("/dev/shm");
    let root = if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() };
    ["read", "written"].map(|n| root.join(format!("pelton-fuzz-{}.{n}.trace", std::process::id())))
});

pub(crate) fn run(bytes: &[u8]) {
    let [read, written] = &*FILES;
    std::fs::write(read, bytes).expect("written");
    let trace = match TraceFile::open(read) {
        Ok(trace) => Trace::File(trace),
        Err(error) => {
            let message = error.to_string();
            let one_line = message.contains(".read.trace") && !message.contains('\n');
            return assert!(one_line, "{message:?}");
        }
    };
    let requests = gather(&trace);
    assert_eq!(requests.len() as u64, trace.n_requests());
    assert!(requests.is_sorted_by_key(|request| request.at_ns), "arrivals go forward");
    save(&trace, written).expect("a trace can be written");
    let again = Trace::File(TraceFile::open(written).expect("a written trace can be read"));
    assert_eq!(format!("{:?}", gather(&again)), format!("{requests:?}"));
}

fn gather(trace: &Trace) -> Vec<TraceRequest> {
    let requests = trace.requests().expect("a trace that was read");
    requests.map(|request| request.expect("a request that was read")).collect()
}
