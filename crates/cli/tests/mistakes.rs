//! The exact answers to typical mistakes, which stand in `mistakes.txt` beside this file.
//!
//! Each is given by the real binary, in a folder with a few right and wrong files. With
//! `UPDATE_MISTAKES=1` in the environment the file is written anew; read it as an impatient user
//! before you keep it.

use std::fmt::Write as _;
use std::io::Write as _;
use std::net::TcpListener;
use std::path::Path;
use std::process::Stdio;

use crate::common::{command, outcome};
use pelton_tensor::DType;
use pelton_testkit::TinyModel;
use pelton_testkit::golden::{GoldenEncoder, encoders};

/// The mistakes. `PORT` is a port that is taken, `LONG` a text of 400 letters, and what follows `<`
/// is standard input, with `\xNN` for bytes.
const MISTAKES: &str = r#"
# Commands
pelton
pelton pul Qwen/Qwen3-0.6B
pelton ls
pelton chat
pelton quantize tiny.gguf
pelton tiny.gguf
pelton "Once upon a time"
pelton sim
pelton bench
pelton bench sims

# Flags
pelton run --temperatur 1 Once
pelton run --max_tokens 5 Once
pelton run --ctx-size 4096 Once
pelton run --n-gpu-layers 99 Once
pelton run --prompt Once
pelton run -p Once
pelton run Once upon a time
pelton run --chat --raw Once
pelton run --system "Be brief." --raw Once
pelton run --tokens
pelton run --tokens 1,2 Once
pelton serve --rate-limit 5
pelton serve --temperature 0.5
pelton serve --max-model-len 4096
pelton serve --quiet
pelton convert tiny
pelton quantize tiny out
pelton quantize tiny out --method gptq
pelton quantize tiny out --method awk
pelton eval tiny
pelton eval tiny --text README.md --max-kl 0.1
pelton embed tiny
pelton pull

# Numbers
pelton run -n 0 Once
pelton run -n ten Once
pelton run -n -5 Once
pelton run --temperature hot Once
pelton run --temperature -1 Once
pelton run --top-p 1.5 Once
pelton run --top-k many Once
pelton run --seed lucky Once
pelton run --min-tokens 5 -n 4 Once
pelton run --threads 0 Once
pelton run --max-context 1 Once
pelton run -m tiny.gguf --max-context 1000000 Once
pelton run --presence-penalty 5 Once
pelton run --logit-bias 5 Once
pelton run -m tiny.gguf --logit-bias 999999=1 Once
pelton serve --port abc
pelton serve --port 70000
pelton serve --kv-memory lots
pelton serve --ttft-target 0
pelton pull --connections 0 Qwen/Qwen3-0.6B

# Names of values
pelton run --kv-dtype int4 Once
pelton run -m tiny --quantize q4_k_m Once
pelton run -m tiny.gguf --quantize q4_k Once
pelton run -m tiny --quantization awq Once
pelton run --spec magic Once
pelton run --spec early-exit Once
pelton serve --policy fairr
pelton serve --pooling max
pelton convert tiny out.gguf --format q4

# Models
pelton run -m llama3.2:1b Hello
pelton run -m gpt2 Hello
pelton run -m tiny.ggfu Hello
pelton run -m ./nothing Hello
pelton run -m README.md Hello
pelton run -m weights.bin Hello
pelton run -m empty Hello
pelton run -m no-tokenizer Hello
pelton run -m no-weights Hello
pelton run -m broken-config Hello
pelton run -m unknown Hello
pelton run -m cut.gguf Hello
pelton run -m text.gguf Hello
pelton run -m pointer.gguf Hello
pelton run -m Qwen/Qwen3-0.6B Hello
pelton run -m Qwen/Qwen3:0.6B:Q8 Hello
pelton inspect nothing.gguf
pelton embed README.md "a cat"
pelton pull qwen3:0.6b
pelton pull Qwen/Qwen3-0.6B
pelton pull tiny
pelton rm tiny
pelton rm Qwen/Qwen3-0.6B
pelton show Qwen/Qwen3-0.6B
pelton convert tiny tiny.gguf
pelton quantize tiny.gguf out --method rtn
pelton quantize tiny tiny --method rtn --group 32
pelton eval tiny --text nothing.txt
pelton eval tiny --text weights.bin --reference story
pelton quantize tiny out.gguf --method rtn
pelton inspect tiny.gguf --context 1000000
pelton logits -m bert --tokens 1
pelton eval bert --text README.md
pelton bench model -m bert
pelton bench offline -m bert
pelton bench ablate --technique port=3

# Prompts
pelton run ""
pelton run
pelton run --json
pelton run - < caf\xe9
pelton run --stop "" Once
pelton run --tokens 1,x
pelton run -m tiny.gguf --tokens 999999
pelton run -m tiny.gguf --raw LONG
pelton tokenize < "a
pelton logits -m tiny.gguf --tokens 999999

# Tool calls
pelton parse-tools
pelton parse-tools --tool-parser hermess
pelton parse-tools --tool-parser hermes < 5
pelton parse-tools --tool-parser hermes nothing.jsonl
pelton parse-tools --tool-parser hermes --tools README.md
pelton parse-tools --tool-parser hermes --tools tools.json
pelton parse-tools --tool-parser hermes --reasoning-parser thinks

# Serving
pelton serve --port PORT
pelton serve -m ./nothing --port PORT
pelton serve --host 203.0.113.1 --port 0
pelton serve --config nothing.yaml
pelton serve --config key.yaml
pelton serve --config value.yaml
pelton serve --config syntax.yaml
pelton serve --config empty
pelton serve --preemption swap --port 0
pelton serve -m tiny.gguf --port 0 --pooling mean
pelton serve -m tiny.gguf --port 0 --kv-memory 1KiB
pelton serve -m tiny.gguf --port 0 --kv-memory 40KiB --max-context 200
pelton serve -m tiny.gguf --port 0 --draft-model README.md --spec draft
pelton serve --max-body 0
pelton serve --files files --max-file 0

# Settings that are only checked
pelton serve --check-config --config twice.yaml
pelton serve --check-config --tls-cert nothing.pem --tls-key nothing.pem
pelton serve --check-config --tls-cert README.md
pelton serve --check-config --otlp-endpoint nonsense
pelton serve --check-config --tool-parser hermess
pelton serve --check-config --config parser.yaml
"#;

/// A folder with right and wrong files.
fn workplace() -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name);
    let write = |name: &str, bytes: &[u8]| std::fs::write(at(name), bytes).expect("a file");
    for name in ["empty", "broken-config", "unknown"] {
        std::fs::create_dir(at(name)).expect("a folder");
    }
    for name in ["tiny", "no-tokenizer", "no-weights"] {
        TinyModel::default().write_folder(&at(name));
    }
    std::fs::remove_file(at("no-tokenizer/tokenizer.json")).expect("ours");
    std::fs::remove_file(at("no-weights/model.safetensors")).expect("ours");
    TinyModel::default().write_gguf(&at("tiny.gguf"), DType::Q8_0);
    let whole = std::fs::read(at("tiny.gguf")).expect("written");
    write("cut.gguf", &whole[..whole.len() / 2]);
    write("text.gguf", b"not a model at all");
    write("pointer.gguf", b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n");
    write("README.md", b"# A model\n");
    write("tools.json", br#"[{"type": "function", "function": {"parameters": {}}}]"#);
    write("weights.bin", b"PK\x03\x04 a pickle");
    write("broken-config/config.json", b"{");
    write("unknown/config.json", br#"{"architectures": ["AbacusForCausalLM"], "hidden_size": 8}"#);
    write("key.yaml", b"host: 127.0.0.1\nprot: 8000\n");
    write("value.yaml", b"port: eighty\n");
    write("syntax.yaml", b"tenants: [a\n");
    write(
        "twice.yaml",
        b"models:\n  - {model: story, name: a}\n  - {model: story, aliases: [a]}\n",
    );
    write("parser.yaml", b"port: 1\nreasoning_parser: thinks\n");
    let encoder = |golden: &GoldenEncoder| golden.checkpoint.name() == "bert";
    let bert = encoders().into_iter().find(encoder).expect("a fixture");
    bert.checkpoint.write_bare_folder(&at("bert"));
    folder
}

/// The words of a line, as a shell splits them.
fn words(line: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut rest = line.trim();
    while !rest.is_empty() {
        let (word, more) = match rest.strip_prefix('"') {
            Some(quoted) => quoted.split_once('"').expect("a closing quote"),
            None => rest.split_once(' ').unwrap_or((rest, "")),
        };
        words.push(word.replace("LONG", &"x".repeat(400)));
        rest = more.trim_start();
    }
    words
}

/// Bytes of a text with `\xNN` in it.
fn bytes(text: &str) -> Vec<u8> {
    let mut parts = text.split("\\x");
    let mut bytes = parts.next().unwrap_or_default().as_bytes().to_vec();
    for part in parts {
        bytes.push(u8::from_str_radix(&part[..2], 16).expect("two digits"));
        bytes.extend(part[2..].bytes());
    }
    bytes
}

/// The binary's answer to a line.
fn answer(line: &str, folder: &Path, port: &str) -> String {
    let (line, input) = line.split_once(" < ").unwrap_or((line, ""));
    let words = words(&line.replace("PORT", port));
    let args: Vec<&str> = words[1..].iter().map(String::as_str).collect();
    let mut command = command(&args);
    for name in
        ["HF_HOME", "HF_TOKEN", "HF_ENDPOINT", "XDG_CACHE_HOME", "OLLAMA_MODELS", "LLAMA_CACHE"]
    {
        command.env_remove(name);
    }
    command.current_dir(folder).env("HOME", folder).env("HF_HUB_CACHE", "hub");
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("the binary starts");
    // The binary may refuse before it reads.
    let _ = child.stdin.take().expect("piped").write_all(&bytes(input));
    let outcome = outcome(&child.wait_with_output().expect("the binary ends"));
    if outcome.code != Some(2) || !outcome.stdout.is_empty() {
        return format!("{outcome:?}");
    }
    outcome.stderr.replace(port, "PORT")
}

#[test]
fn every_typical_mistake_has_the_answer_in_the_file() {
    let folder = workplace();
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = taken.local_addr().expect("bound").port().to_string();
    let mut text =
        "The answers to typical mistakes, for crates/cli/tests/mistakes.rs; UPDATE_MISTAKES=1 \
                    writes them.\n"
            .to_owned();
    let (mut n_mistakes, mut poor) = (0, Vec::new());
    for line in MISTAKES.lines() {
        if line.is_empty() || line.starts_with('#') {
            if !line.is_empty() {
                writeln!(text, "\n{line}").expect("into a string");
            }
            continue;
        }
        let answer = answer(line, folder.path(), &port);
        let names_a_way =
            ["(hint: ", "expected", "must be", "needs", "did you mean", "git lfs pull"]
                .iter()
                .any(|w| answer.contains(w));
        let is_line = answer.starts_with("error: ") && answer.lines().count() == 1;
        if !is_line || !names_a_way {
            poor.push(format!("$ {line}\n{answer}"));
        }
        write!(text, "\n$ {line}\n{answer}").expect("into a string");
        n_mistakes += 1;
    }
    assert!(n_mistakes >= 60, "{n_mistakes} mistakes");
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/mistakes.txt");
    if std::env::var_os("UPDATE_MISTAKES").is_some() {
        std::fs::write(&file, &text).expect("written");
    }
    assert!(poor.is_empty(), "not one line, or without a way out:\n{}", poor.join("\n"));
    let expected = std::fs::read_to_string(&file).unwrap_or_default();
    let differing = text.lines().zip(expected.lines()).find(|(now, then)| now != then);
    if let Some((now, then)) = differing {
        panic!("UPDATE_MISTAKES=1 writes the file anew\n now: {now}\nthen: {then}");
    }
    assert_eq!(text, expected, "UPDATE_MISTAKES=1 writes the file anew");
}

#[test]
fn a_word_of_100_kb_is_not_repeated_whole() {
    let folder = workplace();
    let word = "x".repeat(100_000);
    for line in ["pelton WORD", "pelton run --WORD", "pelton run a WORD", "pelton run -m WORD a"] {
        let answer = answer(&line.replace("WORD", &word), folder.path(), "PORT");
        let start: String = answer.chars().take(100).collect();
        assert!(answer.starts_with("error: ") && answer.lines().count() == 1, "{line}: {start}");
        assert!(answer.len() < 5000, "{line}: {} bytes", answer.len());
        assert!(answer.contains(" characters left out] "), "{line}: {start}");
    }
}
