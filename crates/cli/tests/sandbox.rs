//! `pelton serve` gives up rights once its model is loaded, and serves as before.

use std::collections::BTreeSet;

use crate::common::server::Server;
use serde_json::json;

/// Filters on the system calls of each thread of a server.
fn n_filters(server: &Server) -> BTreeSet<u32> {
    let tasks = std::fs::read_dir(format!("/proc/{}/task", server.pid())).expect("its threads");
    let of_task = |task: std::io::Result<std::fs::DirEntry>| {
        let status = std::fs::read_to_string(task.ok()?.path().join("status")).ok()?;
        let line = status.lines().find_map(|line| line.strip_prefix("Seccomp_filters:"))?;
        line.trim().parse().ok()
    };
    tasks.filter_map(of_task).collect()
}

#[test]
fn every_thread_of_a_server_is_in_the_sandbox_unless_it_is_switched_off() {
    let ask = json!({ "prompt": "The moth", "max_tokens": 8, "temperature": 0 });
    let answer = |server: &Server| server.post("/v1/completions", &ask).expect("an answer");
    let off = Server::start(&["--sandbox", "off"]).expect("it listens");
    let expected = answer(&off)["choices"].clone();
    let without = n_filters(&off);
    assert_eq!(without.len(), 1, "{without:?}");
    for flags in [&[][..], &["--sandbox", "required"]] {
        let server = Server::start(flags).expect("it listens");
        // Threads that were started before the filter, and some that are started after it.
        assert_eq!(answer(&server)["choices"], expected);
        let within = without.iter().map(|n| n + 1).collect();
        assert_eq!(n_filters(&server), within, "{flags:?}");
    }
}
