//! Runs the real binary, cut off from the network and from the user's environment.
#![allow(dead_code, reason = "each test file uses its own part")]

pub(crate) mod mock;
pub(crate) mod server;
pub(crate) mod terminal;

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Output, Stdio};

/// The output of the binary, and how it ended.
#[derive(Debug)]
pub(crate) struct Outcome {
    /// The exit code; `None` after a signal.
    pub(crate) code: Option<i32>,
    /// Standard output.
    pub(crate) stdout: String,
    /// Standard error.
    pub(crate) stderr: String,
}

impl Outcome {
    /// The object that `--json` printed.
    pub(crate) fn json(&self) -> serde_json::Value {
        assert_eq!(self.code, Some(0), "{}", self.stderr);
        assert_eq!(self.stdout.trim_end().lines().count(), 1, "not one line: {}", self.stdout);
        serde_json::from_str(&self.stdout).expect("stdout is JSON")
    }

    /// Panics unless the binary did its work.
    pub(crate) fn assert_answered(&self) {
        assert_eq!(self.code, Some(0), "exit code; stderr: {}", self.stderr);
    }

    /// Panics unless the binary refused its input in one line that holds all of `parts`.
    pub(crate) fn assert_refused(&self, parts: &[&str]) {
        assert_eq!(self.code, Some(2), "exit code; stderr: {}", self.stderr);
        assert_eq!(self.stdout, "", "stdout must stay empty");
        assert_eq!(self.stderr.lines().count(), 1, "one line expected, got: {}", self.stderr);
        assert!(self.stderr.starts_with("error: "), "{}", self.stderr);
        for part in parts {
            assert!(self.stderr.contains(part), "`{part}` is missing in: {}", self.stderr);
        }
    }
}

/// The binary with these arguments, not started yet.
pub(crate) fn command(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pelton"));
    command.args(args);
    plain(command)
}

/// The binary with these arguments, started by a shell after `script`, not started yet.
pub(crate) fn command_after(script: &str, args: &[&str]) -> Command {
    let mut command = Command::new("sh");
    let script = format!("{script}; exec \"$0\" \"$@\"");
    command.args(["-c", &script, env!("CARGO_BIN_EXE_pelton")]).args(args);
    plain(command)
}

/// Without input, and without an environment that would change what is tested.
fn plain(mut command: Command) -> Command {
    command.stdin(Stdio::null());
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("PELTON_") && name != "PELTON_KERNELS" {
            command.env_remove(name);
        }
    }
    command.env("HF_HUB_OFFLINE", "1").env_remove("RUST_LOG").env_remove("RUST_BACKTRACE");
    command
}

/// Runs the binary with these arguments and an empty standard input.
pub(crate) fn pelton(args: &[&str]) -> Outcome {
    outcome(&command(args).output().expect("the binary starts"))
}

/// Runs the binary with `input` on standard input.
pub(crate) fn pelton_with_input(args: &[&str], input: &[u8]) -> Outcome {
    let mut child = command(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary starts");
    // The binary may refuse before it reads; then the pipe is closed, which is fine.
    let _ = child.stdin.take().expect("stdin is piped").write_all(input);
    outcome(&child.wait_with_output().expect("the binary ends"))
}

/// Sends a signal; the standard library cannot.
pub(crate) fn signal(name: &str, pid: u32) {
    let status = Command::new("kill").args([format!("-{name}"), pid.to_string()]).status();
    assert!(status.expect("kill starts").success());
}

/// The output of a process that has ended.
pub(crate) fn outcome(output: &Output) -> Outcome {
    Outcome {
        code: output.status.code(),
        stdout: String::from_utf8(output.stdout.clone()).expect("stdout is UTF-8"),
        stderr: String::from_utf8(output.stderr.clone()).expect("stderr is UTF-8"),
    }
}

/// Writes the configuration of a model of 8 billion weights, and nothing else; returns its path.
pub(crate) fn bare_config(folder: &std::path::Path) -> String {
    let config = serde_json::json!({
        "architectures": ["LlamaForCausalLM"], "hidden_size": 4096, "intermediate_size": 14336,
        "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
        "vocab_size": 128256, "max_position_embeddings": 131072, "rms_norm_eps": 1e-5,
        "hidden_act": "silu", "torch_dtype": "bfloat16", "rope_theta": 500000.0,
        "tie_word_embeddings": false,
    });
    let path = folder.join("config.json");
    std::fs::write(&path, config.to_string()).expect("written");
    path.to_str().expect("UTF-8").to_owned()
}

/// Starts a benchmark with `--json`, interrupts it when a line of standard error begins with `line`,
/// and returns the report that it prints then.
pub(crate) fn interrupted(command: Command, line: &str) -> serde_json::Value {
    let report: serde_json::Value =
        serde_json::from_str(&stopped(command, line).stdout).expect("JSON");
    assert_eq!(report["report"]["interrupted"], true);
    report
}

/// Starts a command, interrupts it when a line of standard error begins with `line`, and returns its
/// output, with the exit code of an interruption.
pub(crate) fn stopped(mut command: Command, line: &str) -> Outcome {
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let mut child = child.expect("the binary starts");
    let mut stderr = BufReader::new(child.stderr.take().expect("stderr is piped"));
    let mut found = String::new();
    while !found.starts_with(line) {
        found.clear();
        assert!(stderr.read_line(&mut found).expect("readable") > 0, "ended early");
    }
    signal("INT", child.id());
    // The rest is read, so that the benchmark never waits for it.
    std::thread::spawn(move || drop(std::io::copy(&mut stderr, &mut std::io::sink())));
    let output = child.wait_with_output().expect("the binary ends");
    assert_eq!(output.status.code(), Some(130));
    outcome(&output)
}
