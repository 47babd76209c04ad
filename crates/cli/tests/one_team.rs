//! `pelton serve` with a draft model has as many threads that compute as `--threads` says.

use crate::common::server::Server;

#[test]
fn a_server_with_a_draft_model_has_one_thread_team() {
    let flags = ["--threads", "3", "--spec", "draft:story-draft", "--max-context", "200"];
    let server = Server::start(&flags).expect("it listens");
    let body = serde_json::json!({ "prompt": "The moth", "max_tokens": 8, "temperature": 0 });
    server.post("/v1/completions", &body).expect("an answer");
    let tasks = std::fs::read_dir(format!("/proc/{}/task", server.pid())).expect("its threads");
    let names =
        tasks.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("comm")).ok());
    let n_workers = names.filter(|name| name.starts_with("team-")).count();
    assert_eq!(n_workers, 2, "the thread that runs a forward pass is the third");
}
