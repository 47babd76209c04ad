//! Memory, files and space that the system refuses or takes away give an error of one line: never a
//! panic, a signal or a wait.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::common::{self, Outcome, command, outcome, pelton};
use pelton_tensor::DType;
use pelton_testkit::TinyModel;
use serde_json::json;

fn text(path: &Path) -> &str {
    path.to_str().expect("UTF-8")
}

/// A model of some MiB in a file of this folder.
fn model(folder: &Path) -> PathBuf {
    let path = folder.join("tiny.gguf");
    TinyModel::default().write_gguf(&path, DType::Q8_0);
    path
}

/// Runs the binary behind a shell's `ulimit`, with backtraces, which once hung without memory.
fn limited(limit: &str, args: &[&str]) -> Outcome {
    let plain = command(args);
    let mut shell = Command::new("sh");
    shell.args(["-c", &format!("ulimit {limit} && exec \"$0\" \"$@\"")]);
    shell.arg(plain.get_program()).args(plain.get_args()).stdin(Stdio::null());
    for (name, value) in plain.get_envs() {
        match value {
            Some(value) => shell.env(name, value),
            None => shell.env_remove(name),
        };
    }
    shell.env("RUST_BACKTRACE", "1").env("PELTON_TUNING", "off");
    outcome(&shell.output().expect("a shell starts"))
}

#[test]
fn memory_that_is_refused_is_an_error_with_what_is_left_and_a_flag() {
    let kib = |n: u64| format!("-v {}", n << 10);
    let run = ["run", "Once", "--raw", "-q", "-n", "2", "--threads", "1"];
    limited(&kib(2048), &run).assert_answered();
    let serve = ["serve", "--port", "0", "--threads", "1"];
    let cases: [(&[&str], &[&str]); 3] = [
        (
            &["--swap-memory", "400GiB"],
            &["400.0 GiB", "address space", "this fits: ", "no `--swap-memory`"],
        ),
        (
            &["--kv-memory", "3GiB", "--max-running", "100000"],
            &["address space", "this fits: `--kv-memory "],
        ),
        (
            &["--max-batch-tokens", "100000"],
            &["a step of 100000 tokens", "` fits; a smaller `--max-running`"],
        ),
    ];
    for (more, parts) in cases {
        limited(&kib(2048), &[&serve, more].concat()).assert_refused(parts);
    }
}

/// The least limit of memory under which the system can start the program at all, in MiB. It grows
/// with the binary.
fn least_to_start() -> u64 {
    let starts = |mib: &u64| limited(&format!("-v {}", mib << 10), &["--version"]).code == Some(0);
    (40..400).step_by(2).find(starts).expect("the program starts")
}

#[test]
fn whatever_the_limit_of_memory_the_program_answers_or_says_what_lacks() {
    let run = ["run", "Once", "--raw", "-q", "-n", "2", "--threads", "1"];
    let least = least_to_start();
    let mut n_refused = 0;
    for more in [0, 2, 4, 8, 14, 22, 38, 86] {
        let mib = least + more;
        let outcome = limited(&format!("-v {}", mib << 10), &run);
        if outcome.code != Some(0) {
            n_refused += 1;
            assert_eq!(outcome.code, Some(2), "{mib} MiB: {outcome:?}");
            let last = outcome.stderr.lines().last().expect("a line");
            assert!(last.starts_with("error: ") && last.contains("of memory"), "{mib} MiB: {last}");
        }
    }
    assert!(n_refused > 0, "some of these limits are too low");
}

#[test]
fn a_file_that_may_not_grow_is_an_error_or_a_warning() {
    let folder = tempfile::tempdir().expect("temp");
    let tiny = folder.path().join("tiny");
    std::fs::create_dir(&tiny).expect("a folder");
    TinyModel::default().write_folder(&tiny);
    let to = folder.path().join("out");
    std::fs::create_dir(&to).expect("a folder");
    let within = |name: &str| text(&to.join(name)).to_owned();
    let (file, trace, pages) = (within("converted.gguf"), within("trace"), within(""));
    let into = within("quantized");
    for args in [
        &["convert", text(&tiny), &file][..],
        &["quantize", text(&tiny), &into, "--method", "rtn", "--group", "32"],
        &["bench", "sim", "-n", "5000", "--save-trace", &trace],
        &["man", &pages],
    ] {
        let outcome = limited("-f 8", args);
        assert_eq!(outcome.code, Some(1), "{args:?}: {}", outcome.stderr);
        assert!(outcome.stderr.starts_with("error: "), "{args:?}: {}", outcome.stderr);
        let is_named = outcome.stderr.contains(text(&to));
        assert!(is_named && outcome.stderr.contains("File too large"), "{}", outcome.stderr);
        let left: Vec<PathBuf> = std::fs::read_dir(&to)
            .expect("a folder")
            .map(|entry| entry.expect("an entry").path())
            .filter(|page| page.extension().is_none_or(|extension| extension != "1"))
            .collect();
        assert!(left.is_empty(), "{args:?} leaves {left:?}");
    }
    for page in std::fs::read_dir(&to).expect("a folder") {
        let page = std::fs::read_to_string(page.expect("an entry").path()).expect("a page");
        assert!(page.contains(".SH DESCRIPTION"), "a page that was cut: {page}");
    }

    let model = model(folder.path());
    let run = ["run", "x", "--raw", "-q", "-n", "1", "--packed-cache", "-m", text(&model)];
    let outcome = limited("-f 8", &run);
    outcome.assert_answered();
    assert!(outcome.stderr.contains("are not kept: File too large"), "{}", outcome.stderr);
}

#[test]
fn a_cache_that_is_cut_while_a_server_uses_it_ends_the_server_with_its_name() {
    let folder = tempfile::tempdir().expect("temp");
    let model = model(folder.path());
    let flags = ["-m", text(&model), "--packed-cache", "--threads", "1"];
    pelton(&[&["run", "x", "--raw", "-q", "-n", "1"], &flags[..]].concat()).assert_answered();
    let mut server = command(&[&["serve", "--port", "0"], &flags[..]].concat())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary starts");
    let mut stderr = BufReader::new(server.stderr.take().expect("piped"));
    let mut line = String::new();
    stderr.read_line(&mut line).expect("UTF-8");
    let address = line.trim_end().strip_prefix("listening on http://").expect("it listens");
    let address = address.to_owned();
    let ask = || {
        let body = json!({"model": "tiny", "prompt": "a", "max_tokens": 2}).to_string();
        let head = "POST /v1/completions HTTP/1.1\r\nconnection: close\r\n\
                    content-type: application/json\r\n";
        let n = body.len();
        let mut connection = TcpStream::connect(&address).expect("connects");
        let request = format!("{head}host: {address}\r\ncontent-length: {n}\r\n\r\n{body}");
        connection.write_all(request.as_bytes()).expect("sent");
        let mut answer = String::new();
        // The server may end in the middle.
        let _ = connection.read_to_string(&mut answer);
        answer
    };
    let answer = ask();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    let cache = folder.path().join("tiny.gguf.pelton-packed");
    let file = std::fs::OpenOptions::new().write(true).open(&cache).expect("a cache");
    file.set_len(4096).expect("cut");
    ask();
    let status = server.wait().expect("it ends");
    let mut said = String::new();
    stderr.read_to_string(&mut said).expect("UTF-8");
    assert_eq!(status.code(), Some(135), "{status}: {said}");
    let expected = format!("error: {}: the file was shortened", cache.display());
    assert!(said.lines().any(|line| line.starts_with(&expected)), "{said}");
}

#[test]
fn pipes_and_devices_are_refused_where_a_small_file_is_expected() {
    let folder = tempfile::tempdir().expect("temp");
    let pipe = folder.path().join("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().expect("mkfifo").success());
    let large = folder.path().join("large");
    std::fs::File::create(&large).and_then(|file| file.set_len(1 << 40)).expect("sparse");
    let keys = |path: &Path| {
        let config = folder.path().join(format!("{}.yaml", path.display()).replace('/', "_"));
        std::fs::write(&config, format!("api_keys_file: {}\n", path.display())).expect("written");
        config
    };
    for (path, what) in [
        (pipe.as_path(), "is a pipe; expected a regular file"),
        (Path::new("/dev/zero"), "is a device; expected a regular file"),
        (folder.path(), "is a folder; expected a regular file"),
    ] {
        let keys = keys(path);
        let cases: [&[&str]; 6] = [
            &["serve", "--check-config", "--config", text(path)],
            &["serve", "--check-config", "--config", text(&keys)],
            &["bench", "sim", "--trace", text(path)],
            &["bench", "sim", "--prices", text(path)],
            &["bench", "spec", "--prompts", text(path)],
            &["convert", text(path), "out.gguf"],
        ];
        for args in cases {
            if args[0] == "convert" && path.is_dir() {
                continue;
            }
            let name = if args.contains(&"convert") { "" } else { what };
            pelton(args).assert_refused(&[text(path), name]);
        }
    }
    let most = "1099511627776 bytes; expected at most 4194304";
    for config in [large.as_path(), &keys(&large)] {
        let args = ["serve", "--check-config", "--config", text(config)];
        pelton(&args).assert_refused(&[text(&large), most]);
    }
    for file in ["config.json", "tokenizer.json"] {
        let model = folder.path().join(file.replace('.', "-"));
        std::fs::create_dir(&model).expect("a folder");
        TinyModel::default().write_folder(&model);
        std::fs::remove_file(model.join(file)).expect("ours");
        std::os::unix::fs::symlink("/dev/zero", model.join(file)).expect("a link");
        pelton(&["run", "-m", text(&model), "x"]).assert_refused(&[file, "is a device"]);
    }
}

/// Commands that read a text still take it from a pipe.
#[test]
fn texts_come_from_pipes() {
    let args = ["embed", "embedded", "--file", "/dev/stdin", "--similarity"];
    let outcome = common::pelton_with_input(&args, b"a cat\na dog\n");
    outcome.assert_answered();
    assert_eq!(outcome.stdout.lines().count(), 2);
}

#[test]
fn a_tokenizer_that_panics_or_never_ends_is_an_error() {
    let folder = tempfile::tempdir().expect("temp");
    TinyModel::default().write_folder(folder.path());
    let file = folder.path().join("tokenizer.json");
    let whole: serde_json::Value =
        serde_json::from_slice(&std::fs::read(&file).expect("a file")).expect("JSON");
    let with = |field: &str, value: serde_json::Value| {
        let mut json = whole.clone();
        json[field] = value;
        std::fs::write(&file, json.to_string()).expect("written");
    };
    let args = ["tokenize", "-m", text(folder.path())];
    with("normalizer", json!({"type": "Replace", "pattern": {"String": ""}, "content": "x"}));
    common::pelton_with_input(&args, b"\"a\"\n").assert_refused(&[
        "tokenizer.json",
        "`normalizer.pattern`",
        "empty",
    ]);
    with("normalizer", json!(null));
    with(
        "pre_tokenizer",
        json!({"type": "Split", "pattern": {"Regex": "(?=(a+)+b)a"},
        "behavior": "Isolated", "invert": false}),
    );
    let line = format!("\"{}\"\n", "a".repeat(100_000));
    common::pelton_with_input(&args, line.as_bytes()).assert_refused(&[
        "line 1",
        "(?=(a+)+b)a",
        "takes too long",
    ]);
}

/// Messages that do not fit onto a disk, or whose reader has ended, are lost; the work is done.
#[test]
fn a_standard_error_that_takes_nothing_stops_nothing() {
    let full = || std::fs::File::options().write(true).open("/dev/full").expect("a device");
    let closed = || {
        let (reader, writer) = std::io::pipe().expect("a pipe");
        drop(reader);
        writer
    };
    let bench = ["bench", "model", "--rounds", "1", "--prompt", "8", "--generate", "2", "--batch"];
    let temp = tempfile::tempdir().expect("temp");
    let lines = temp.path().join("lines.jsonl");
    std::fs::write(
        &lines,
        json!({"custom_id": "a", "method": "POST", "url": "/v1/completions",
        "body": {"prompt": "Once", "max_tokens": 2}})
        .to_string(),
    )
    .expect("written");
    let out = temp.path().join("out.jsonl");
    for (i, args) in [
        &["run", "Once", "-n", "2", "--seed", "1"][..],
        &["list"],
        &[&bench[..], &["1", "--context", "16", "--verify", "1", "--json"]].concat(),
        &["batch", text(&lines), text(&out)],
    ]
    .into_iter()
    .enumerate()
    {
        for stderr in [Stdio::from(full()), Stdio::from(closed())] {
            let mut command = command(args);
            // No models are listed, whatever this machine has.
            command.env("HF_HOME", temp.path()).env_remove("HF_HUB_CACHE");
            let output = command.stderr(stderr).output().expect("the binary starts");
            assert_eq!(output.status.code(), Some(0), "{args:?}");
            assert_eq!(output.stdout.is_empty(), i == 1 || i == 3, "{args:?}");
        }
    }
    let free = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = free.local_addr().expect("an address").port();
    drop(free);
    let mut server = command(&["serve", "--port", &port.to_string()]);
    let mut server = server.stderr(closed()).spawn().expect("the binary starts");
    let is_up = (0..600).any(|_| {
        std::thread::sleep(std::time::Duration::from_millis(50));
        TcpStream::connect(("127.0.0.1", port)).is_ok()
    });
    let is_running = server.try_wait().expect("a state").is_none();
    server.kill().expect("it ends");
    server.wait().expect("it ends");
    assert!(is_up && is_running);
}

/// Answers that do not fit onto the disk that standard output leads to.
#[test]
fn a_full_standard_output_is_a_failure() {
    for args in
        [&["--help"][..], &["--version"], &["run", "--help"], &["man", "--markdown"], &["openapi"]]
    {
        let full = std::fs::File::options().write(true).open("/dev/full").expect("a device");
        let output = command(args).stdout(full).output().expect("the binary starts");
        let stderr = String::from_utf8(output.stderr).expect("UTF-8");
        assert_eq!(output.status.code(), Some(1), "{args:?}: {stderr}");
        assert!(stderr.starts_with("error: cannot write to standard output"), "{args:?}: {stderr}");
    }
}
