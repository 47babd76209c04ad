//! Names of the same things in other programs: llama.cpp, Ollama, vLLM, and Python's tools.

use pelton_model::RoundTo;

/// Names of flags elsewhere, and our flag.
const FLAGS: &[(&[&str], &str)] = &[
    (
        &["ctx-size", "n-ctx", "num-ctx", "max-model-len", "context-length", "max-seq-len"],
        "max-context",
    ),
    (&["n-predict", "num-predict", "max-new-tokens", "max-length", "predict"], "max-tokens"),
    (&["temp"], "temperature"),
    (&["repeat-penalty", "rep-pen"], "repetition-penalty"),
    (&["model-path", "model-name", "hf-repo", "model-id"], "model"),
    (&["served-model-name", "alias"], "served-name"),
    (&["max-num-seqs", "parallel", "num-parallel", "concurrency"], "max-running"),
    (&["max-num-batched-tokens", "ubatch-size", "batch-size", "n-batch"], "max-batch-tokens"),
    (&["swap-space"], "swap-memory"),
    (&["gpu-memory-utilization", "kv-cache-memory-bytes", "cache-size"], "kv-memory"),
    (&["kv-cache-dtype", "cache-type-k", "cache-type-v"], "kv-dtype"),
    (&["state-type", "mamba-ssm-cache-dtype", "mamba-cache-dtype"], "state-dtype"),
    (&["dynamic-quantization-group-size", "activation-group-size"], "activation-group"),
    (&["dtype", "precision"], "compute"),
    (&["quantization", "quant", "isq", "load-in-4bit", "load-in-8bit"], "quantize"),
    (&["speculative-model", "model-draft"], "draft-model"),
    (&["draft-max", "num-speculative-tokens"], "spec-max"),
    (&["num-threads", "n-threads", "workers", "cpu-threads"], "threads"),
    (&["system-prompt", "sys"], "system"),
    (&["bind", "listen", "address"], "host"),
    (&["scheduling-policy"], "policy"),
    (&["max-queue", "max-queue-size", "max-queued-requests"], "max-waiting"),
    (&["stop-sequence", "reverse-prompt", "stop-string"], "stop"),
];

/// Names of flags elsewhere for which there is no flag here, and what to do.
const ADVICE: &[(&[&str], &str)] = &[
    (
        &["rate-limit", "max-requests"],
        "`--max-waiting` bounds the requests that wait, and `max_waiting` of a tenant in the file of \
         `--config` those of one tenant",
    ),
    (
        &["n-gpu-layers", "gpu-layers", "gpus", "device", "tensor-parallel-size"],
        "Pelton computes on the processor; `--threads` says on how many cores",
    ),
    (&["prompt"], "the prompt needs no flag: `pelton run \"...\"`"),
    (&["stream"], "text is printed as it is generated, without a flag"),
    (&["enable-prefix-caching", "enable-chunked-prefill", "flash-attn", "mmap"], "it is always on"),
    (&["interactive", "conversation"], "`pelton run` without a prompt is a chat"),
    (
        &["timeout"],
        "`--head-timeout`, `--idle-timeout` and `--drain-timeout` each have their place",
    ),
    (&["num-return-sequences"], "`n` of a request to `pelton serve` asks for several answers"),
    (&["yes", "force"], "there is no question to answer"),
];

/// Names of commands elsewhere, and what to type.
const COMMANDS: &[(&[&str], &str)] = &[
    (&["ls", "models", "cached", "scan-cache"], "`pelton list` lists the models on this machine"),
    (
        &["download", "fetch", "get", "install", "clone"],
        "`pelton pull owner/name` downloads a model",
    ),
    (&["remove", "delete", "uninstall", "del"], "`pelton rm NAME` removes a model"),
    (
        &["chat", "generate", "complete", "prompt", "talk", "cli"],
        "`pelton run` chats, `pelton run \"...\"` answers",
    ),
    (&["server", "start", "api", "up"], "`pelton serve` starts the server"),
    (&["info", "describe", "cat"], "`pelton show NAME` or `pelton inspect NAME` describes a model"),
    (&["export", "gguf"], "`pelton convert INPUT OUTPUT.gguf --format q4_k` writes a GGUF file"),
    (&["embeddings", "encode"], "`pelton embed MODEL \"...\"` computes vectors"),
    (
        &["ps", "stop", "push", "create", "cp"],
        "Pelton has no service in the background: `pelton serve` runs until Ctrl-C",
    ),
    (&["version"], "`pelton --version`"),
    (&["perplexity", "evaluate"], "`pelton eval MODEL --text FILE` scores a text"),
    (&["benchmark"], "`pelton bench model` measures a model"),
];

/// Letters of flags elsewhere, and our flag.
const LETTERS: &[(&str, &str)] = &[
    ("-c", "`--max-context N` is the length of a conversation"),
    ("-t", "`--threads N`"),
    ("-p", "the prompt needs no flag: `pelton run \"...\"`"),
    ("-s", "`--seed N`"),
    ("-f", "a file as the prompt: `pelton run - < FILE`"),
    ("-i", "`pelton run` without a prompt is a chat"),
    ("-m", "the model is a word of its own here, without a flag"),
];

/// Advice for a flag of another program; `has` says whether the command has one of ours.
pub(super) fn for_flag(name: &str, has: &dyn Fn(&str) -> bool) -> Option<String> {
    let name = name.replace('_', "-");
    let is_it = |names: &&[&str]| names.contains(&name.as_str());
    if let Some((_, flag)) = FLAGS.iter().find(|(names, _)| is_it(names)) {
        return Some(match has(flag) {
            true => format!("here it is `--{flag}`"),
            false => format!("`--{flag}` does this, in commands that have it"),
        });
    }
    ADVICE.iter().find(|(names, _)| is_it(names)).map(|(_, advice)| (*advice).to_owned())
}

/// Advice for a command of another program.
pub(super) fn for_command(word: &str) -> Option<&'static str> {
    COMMANDS.iter().find(|(names, _)| names.contains(&word)).map(|(_, advice)| *advice)
}

/// Advice for a letter of another program.
pub(super) fn for_letter(arg: &str) -> Option<String> {
    let (_, advice) = LETTERS.iter().find(|(letter, _)| *letter == arg)?;
    Some((*advice).to_owned())
}

/// Advice for a value that another program takes.
pub(super) fn for_value(flag: &str, value: &str) -> Option<String> {
    let value = value.to_ascii_lowercase();
    if flag == "--quantize" {
        if ["f", "fp", "float", "bf"].iter().any(|kind| is_bits_of(kind, &value)) {
            return Some("without `--quantize` weights stay as they are".to_owned());
        }
        let near = near_type(&value)?;
        return Some(format!("did you mean `--quantize {near}`?"));
    }
    let advice = match flag {
        "--kv-dtype" if value.contains('4') => "`int8` and `fp8` are the smallest",
        "--compute" => {
            "weights keep the format of their file; `--quantize` rounds them while they are loaded"
        }
        _ => return None,
    };
    Some(advice.to_owned())
}

/// Whether a value is a kind of numbers and a number of bits.
fn is_bits_of(kind: &str, value: &str) -> bool {
    value.strip_prefix(kind).is_some_and(|bits| matches!(bits, "16" | "32" | "64"))
}

/// The type that is meant by the name of a mix of types (`q4_k_m`), or by a number of bits (`int4`).
fn near_type(value: &str) -> Option<&'static str> {
    let mixed = ["_s", "_m", "_l", "_xl"].iter().find_map(|end| value.strip_suffix(end));
    let usual = ["q8_0", "q6_k", "q5_k", "q4_k", "q3_k", "q2_k"];
    let has_bits = |name: &&&str| value.contains(&name[1..2]);
    let of_bits = || usual.iter().find(has_bits).copied();
    mixed.and_then(RoundTo::find).map(RoundTo::name).or_else(of_bits)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn mixes_and_numbers_of_bits_name_the_type_that_is_nearest() {
        for (value, expected) in [
            ("Q4_K_M", Some("q4_k")),
            ("q3_k_xl", Some("q3_k")),
            ("iq3_s_m", Some("iq3_s")),
            ("int8", Some("q8_0")),
            ("4bit", Some("q4_k")),
            ("small", None),
        ] {
            let hint = for_value("--quantize", value);
            assert_eq!(
                hint,
                expected.map(|to| format!("did you mean `--quantize {to}`?")),
                "{value}"
            );
        }
    }

    #[test]
    fn floats_are_no_type_to_round_to() {
        for value in ["f32", "F64", "float16", "bf16"] {
            let hint = for_value("--quantize", value).expect("a hint");
            assert!(hint.contains("stay as they are"), "{value}: {hint}");
        }
    }

    #[test]
    fn every_flag_and_command_that_is_advised_exists_and_no_real_one_is_explained_away() {
        let root = crate::args::Cli::command();
        let has = |flag: &str| {
            root.get_subcommands().any(|c| c.get_arguments().any(|a| a.get_long() == Some(flag)))
        };
        for (names, flag) in FLAGS {
            assert!(has(flag), "{flag}");
            assert!(names.iter().all(|name| name != flag), "{flag}");
        }
        for (names, advice) in COMMANDS {
            for name in *names {
                assert!(root.find_subcommand(name).is_none(), "{name} is a command");
            }
            let command =
                advice.split("`pelton ").nth(1).and_then(|rest| rest.split([' ', '`']).next());
            let command = command.expect("a command");
            assert!(command == "--version" || root.find_subcommand(command).is_some(), "{command}");
        }
    }
}
