//! Every command of the documentation is run with the real binary and the embedded model.
//!
//! A block of commands is fenced as `sh`, and runs as one script in a fresh folder. A block that
//! cannot be run has its reason in the line before it: `<!-- not run: downloads a model -->`. Blocks
//! of other languages are not run, and a fence without a language fails, so that no command is left
//! out by accident.
//!
//! The folder of a script has `model.gguf`, `draft.gguf`, `my-model/`, and a certificate for localhost:
//! `cert.pem`, `key.pem`, and its authority `ca.pem`. `cargo run --release --`
//! runs the binary of this test; `pelton serve` serves until the script ends, on a free port that
//! `curl` finds in the place of 8000.

use crate::certificates;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use pelton_testkit::TinyModel;

/// Put before each script.
const PREAMBLE: &str = r#"
set -euo pipefail
server=
stop_server() {
    if [ -n "$server" ]; then kill -TERM "$server"; wait "$server"; fi
    server=
}
pelton() {
    if [ "${1-}" != serve ] || [[ " $* " == *" --check-config "* ]]; then
        command pelton "$@"
        return
    fi
    stop_server
    local words=() word
    while [ $# -gt 0 ]; do
        if [ "$1" = --port ]; then shift; else words+=("$1"); fi
        shift
    done
    : > server.log
    PELTON_PORT=0 command pelton "${words[@]}" 2> server.log &
    server=$!
    until grep -q '^listening on ' server.log; do
        kill -0 "$server" 2> /dev/null || { cat server.log >&2; exit 1; }
        sleep 0.02
    done
}
curl() {
    local address words
    address=$(sed -n 's|^listening on https\?://||p' server.log | head -n 1)
    words=("${@//127.0.0.1:8000/$address}")
    command curl --silent --show-error --fail "${words[@]//localhost:8000/localhost:${address##*:}}"
}
cargo() {
    [ "$1 $2 $3" = "run --release --" ] || { echo "cargo $* is not run here" >&2; exit 1; }
    shift 3
    pelton "$@"
}
finish() {
    local code=$?
    stop_server || code=$?
    exit "$code"
}
trap finish EXIT
"#;

/// A fenced block of a page.
#[derive(Debug, PartialEq)]
struct Block {
    line: usize,
    language: String,
    text: String,
    /// The reason why it is not run.
    skipped: Option<String>,
}

/// The fenced blocks of a page.
fn blocks(page: &str) -> Vec<Block> {
    let mut blocks = Vec::new();
    let mut open: Option<(Block, usize)> = None;
    let mut before = "";
    for (idx, line) in page.lines().enumerate() {
        let text = line.trim_start();
        let indent = line.len() - text.len();
        match (&mut open, text.strip_prefix("```")) {
            (None, Some(language)) => {
                let skipped = before.trim().strip_prefix("<!-- not run: ");
                let skipped = skipped.and_then(|rest| rest.strip_suffix(" -->"));
                let (language, skipped) = (language.to_owned(), skipped.map(str::to_owned));
                open =
                    Some((Block { line: idx + 1, language, text: String::new(), skipped }, indent));
            }
            (Some(_), Some("")) => blocks.extend(open.take().map(|(block, _)| block)),
            (Some((block, indent)), _) => {
                block.text.push_str(line.get(*indent..).unwrap_or_default());
                block.text.push('\n');
            }
            (None, None) => {}
        }
        before = line;
    }
    assert!(open.is_none(), "a block is not closed");
    blocks
}

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The pages with commands, as paths from the root.
fn pages() -> Vec<PathBuf> {
    let folders = ["", "docs", "crates/python"];
    let mut pages = Vec::new();
    for folder in folders {
        let files = std::fs::read_dir(root().join(folder)).expect("a folder of pages");
        let files = files.map(|file| Path::new(folder).join(file.expect("an entry").file_name()));
        pages.extend(files.filter(|path| path.extension().is_some_and(|end| end == "md")));
    }
    pages.sort();
    pages
}

/// A folder for one script.
fn folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("temp");
    let models = Path::new(env!("CARGO_MANIFEST_DIR")).join("model");
    // A symbolic link would give the model the name of the file behind it.
    let copy = |from: &str, to: &str| {
        let (from, to) = (models.join(from), folder.path().join(to));
        if std::fs::hard_link(&from, &to).is_err() {
            std::fs::copy(&from, &to).expect("a copy");
        }
    };
    copy("story-q8_0.gguf", "model.gguf");
    copy("story-draft-q8_0.gguf", "draft.gguf");
    let house = certificates::House::new();
    house.install_for(90);
    for from in [house.cert(), house.key(), house.authority()] {
        let name = from.file_name().expect("a name");
        std::fs::copy(&from, folder.path().join(name)).expect("a copy");
    }
    TinyModel::default().write_folder(&folder.path().join("my-model"));
    std::fs::create_dir(folder.path().join("bin")).expect("a folder");
    let program = folder.path().join("bin/pelton");
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_pelton"), program).expect("a link");
    folder
}

/// Runs a block; the error has what it printed.
fn run(block: &Block) -> Result<(), String> {
    let folder = folder();
    let path = std::env::var("PATH").expect("a path");
    let mut shell = Command::new("bash");
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("PELTON_") && name != "PELTON_KERNELS" {
            shell.env_remove(name);
        }
    }
    shell
        .arg("-c")
        .arg(format!("{PREAMBLE}\n{}", block.text))
        .current_dir(folder.path())
        .env("PATH", format!("{}:{path}", folder.path().join("bin").display()))
        .env("HOME", folder.path())
        .env("HF_HOME", folder.path().join("hub"))
        .env("HF_HUB_OFFLINE", "1")
        .stdin(Stdio::null());
    let output = shell.output().expect("bash starts");
    match output.status.success() {
        true => Ok(()),
        false => Err(format!(
            "{}\n{}{}",
            output.status,
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        )),
    }
}

#[test]
fn every_command_of_the_documentation_works() {
    let (mut wrong, mut n_run) = (Vec::new(), 0);
    for path in pages() {
        let page = std::fs::read_to_string(root().join(&path)).expect("a page");
        for block in blocks(&page) {
            let place = format!("{}:{}", path.display(), block.line);
            match (block.language.as_str(), &block.skipped) {
                ("", _) => wrong.push(format!("{place}: the block has no language")),
                ("sh", None) => {
                    n_run += 1;
                    if let Err(why) = run(&block) {
                        wrong.push(format!("{place}:\n{}\n{why}", block.text));
                    }
                }
                // Blocks of Python are run by the tests of the Python package.
                ("sh" | "python", Some(_)) | (_, None) => {}
                (_, Some(_)) => wrong.push(format!("{place}: only commands and Python are run")),
            }
        }
    }
    assert!(wrong.is_empty(), "{} blocks fail:\n{}", wrong.len(), wrong.join("\n"));
    assert!(n_run >= 8, "only {n_run} blocks were run");
}

#[test]
fn a_block_that_fails_is_found_and_a_server_is_stopped() {
    let block = |text: &str| Block {
        line: 1,
        language: "sh".to_owned(),
        text: text.to_owned(),
        skipped: None,
    };
    run(&block("pelton --version\n")).expect("it runs");
    let error = run(&block("pelton run --no-such-flag\npelton --version\n")).expect_err("a flag");
    assert!(error.contains("no-such-flag"), "{error}");
    run(&block("cargo build\n")).expect_err("it would take minutes");
    run(&block("pelton serve -m model.gguf --port 8000\ncurl http://127.0.0.1:8000/health\n"))
        .expect("it serves");
    run(&block("pelton serve -m model.gguf\ncurl http://127.0.0.1:8000/nowhere\n"))
        .expect_err("no such page");
}

#[test]
fn blocks_are_found_with_their_language_and_reason() {
    let page = "a\n```sh\nx\n```\n<!-- not run: why -->\n```sh\ny\n```\n- z\n  ```text\n  q\n   r\n  ```\n";
    let found: Vec<_> = blocks(page)
        .into_iter()
        .map(|block| (block.line, block.language, block.text, block.skipped))
        .collect();
    let of = |line, language: &str, text: &str, skipped: Option<&str>| {
        (line, language.to_owned(), text.to_owned(), skipped.map(str::to_owned))
    };
    assert_eq!(
        found,
        [
            of(2, "sh", "x\n", None),
            of(6, "sh", "y\n", Some("why")),
            of(10, "text", "q\n r\n", None)
        ]
    );
}
