//! Any bytes are a trace that is written and read back unchanged, or an error of one line that
//! names the file; never a panic.

use pelton_sim::trace::{Trace, TraceFile, TraceRequest, save};
use pelton_testkit::MemoryFolder;

pub(crate) fn run(bytes: &[u8]) {
    let folder = MemoryFolder::new();
    let [read, written] = ["read.trace", "written.trace"].map(|name| folder.path().join(name));
    std::fs::write(&read, bytes).expect("written");
    let trace = match TraceFile::open(&read) {
        Ok(trace) => Trace::File(trace),
        Err(error) => {
            let message = error.to_string();
            let one_line = message.contains("/read.trace") && !message.contains('\n');
            return assert!(one_line, "{message:?}");
        }
    };
    let requests = gather(&trace);
    assert_eq!(requests.len() as u64, trace.n_requests());
    assert!(requests.is_sorted_by_key(|request| request.at_ns), "arrivals go forward");
    save(&trace, &written).expect("a trace can be written");
    let again = Trace::File(TraceFile::open(&written).expect("a written trace can be read"));
    assert_eq!(format!("{:?}", gather(&again)), format!("{requests:?}"));
}

fn gather(trace: &Trace) -> Vec<TraceRequest> {
    let requests = trace.requests().expect("a trace that was read");
    requests.map(|request| request.expect("a request that was read")).collect()
}
