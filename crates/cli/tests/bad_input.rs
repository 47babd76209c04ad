//! Every bad input ends in one clear line on stderr and exit code 2.

use std::path::Path;

use crate::common::{self, command, outcome, pelton, pelton_with_input};
use serde_json::json;

#[test]
fn wrong_flags_are_refused_by_name() {
    let cases: [(&[&str], &[&str]); 16] = [
        (&[], &["no command", "pelton run"]),
        (&["fly"], &["fly"]),
        (&["run", "--temperature", "hot", "x"], &["--temperature", "hot"]),
        (&["run", "--temperature", "-1", "x"], &["--temperature", "from 0 to 100"]),
        (&["run", "--temperature", "nan", "x"], &["--temperature"]),
        (&["run", "--top-p", "1.5", "x"], &["--top-p", "at most 1"]),
        (&["run", "--min-p", "2", "x"], &["--min-p", "from 0 to 1"]),
        (&["run", "--max-tokens", "0", "x"], &["--max-tokens"]),
        (&["run", "--min-tokens", "few", "x"], &["--min-tokens"]),
        (
            &["run", "--min-tokens", "5", "--max-tokens", "4", "x"],
            &["`--min-tokens` must be at most `--max-tokens`, got 5 where that is 4"],
        ),
        (&["run", "--kv-dtype", "int4", "x"], &["--kv-dtype", "int4", "f32, bf16, f16, fp8, int8"]),
        (&["run", "Once", "upon"], &["upon", "quotes"]),
        (&["run", "--chat", "--raw", "x"], &["--chat", "--raw"]),
        (&["run", "--spec", "magic", "x"], &["--spec", "`magic`", "auto", "draft:MODEL"]),
        (&["run", "--spec", "early-exit", "x"], &["--spec", "early-exit:N"]),
        (
            &["serve", "--spec", "draft:a/a", "--draft-model", "b/b"],
            &["--spec draft:a/a", "--draft-model b/b"],
        ),
    ];
    for (args, parts) in cases {
        pelton(args).assert_refused(parts);
    }
}

#[test]
fn an_unusable_prompt_is_refused() {
    pelton(&["run", ""]).assert_refused(&["prompt is empty"]);
    pelton(&["run"]).assert_refused(&["prompt is empty"]);
    pelton(&["run", "-"]).assert_refused(&["prompt is empty"]);
    pelton_with_input(&["run"], b"caf\xe9").assert_refused(&["UTF-8", "offset 3"]);
    pelton_with_input(&["run", "-"], b"\xff\xfe").assert_refused(&["UTF-8", "offset 0"]);
    pelton(&["run", "--stop", "", "x"]).assert_refused(&["--stop"]);
}

#[test]
fn unusable_token_ids_are_refused() {
    pelton(&["run", "--tokens", ""]).assert_refused(&["--tokens"]);
    pelton(&["run", "--tokens", "1,x"]).assert_refused(&["--tokens", "`x`"]);
    pelton(&["run", "--tokens", "1", "text"]).assert_refused(&["--tokens"]);
}

#[test]
fn a_model_that_is_not_there_is_named() {
    let folder = tempfile::tempdir().expect("a folder");
    let missing = folder.path().join("nothing-here");
    for command in [["run", "-m"], ["serve", "-m"]] {
        let mut args = command.to_vec();
        args.push(text(&missing));
        if command[0] == "run" {
            args.push("x");
        }
        pelton(&args).assert_refused(&["nothing-here"]);
    }
    pelton(&["inspect", text(&missing)]).assert_refused(&["nothing-here"]);
    pelton(&["inspect", text(&folder.path().join("no.gguf"))]).assert_refused(&["no.gguf"]);
    pelton(&["inspect", text(folder.path())]).assert_refused(&["config.json"]);
}

#[test]
fn broken_model_files_are_named() {
    let folder = tempfile::tempdir().expect("a folder");
    let write = |name: &str, bytes: &[u8]| {
        std::fs::write(folder.path().join(name), bytes).expect("a file");
    };
    let gguf = folder.path().join("broken.gguf");
    let broken: [&[u8]; 4] = [
        b"",
        b"GGUF",
        b"not a model at all",
        b"GGUF\x03\0\0\0\xff\xff\xff\xff\xff\xff\xff\x7f\0\0\0\0\0\0\0\0",
    ];
    for bytes in broken {
        write("broken.gguf", bytes);
        pelton(&["run", "-m", text(&gguf), "x"]).assert_refused(&["broken.gguf"]);
        pelton(&["inspect", text(&gguf)]).assert_refused(&["broken.gguf"]);
    }

    let configs: [(&str, &str); 4] = [
        ("{", "config.json"),
        ("[]", "config.json"),
        (r#"{"architectures": ["AbacusForCausalLM"], "hidden_size": 8}"#, "AbacusForCausalLM"),
        (r#"{"architectures": ["LlamaForCausalLM"], "hidden_size": 0}"#, "config.json"),
    ];
    write("model.safetensors", b"\x02\0\0\0\0\0\0\0{}");
    for (config, part) in configs {
        write("config.json", config.as_bytes());
        pelton(&["run", "-m", text(folder.path()), "x"]).assert_refused(&[part]);
    }
}

/// A tiny model in a folder of its own.
fn tiny() -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    pelton_testkit::TinyModel::default().write_folder(folder.path());
    folder
}

/// Changes fields of a JSON file; `null` takes one away.
fn edit(file: &Path, changes: serde_json::Value) {
    let text = std::fs::read(file).expect("a file");
    let mut value: serde_json::Value = serde_json::from_slice(&text).expect("JSON");
    let fields = value.as_object_mut().expect("an object");
    for (name, change) in changes.as_object().expect("an object") {
        fields.remove(name);
        if !change.is_null() {
            fields.insert(name.clone(), change.clone());
        }
    }
    std::fs::write(file, value.to_string()).expect("a file");
}

#[test]
fn absurd_configs_are_refused_by_field() {
    let known = ["LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM"];
    pelton(&["run", "-m", text(tiny().path()), "-n", "1", "x"]).assert_answered();
    let cases = [
        (json!({"num_hidden_layers": 0}), "num_hidden_layers"),
        (json!({"num_hidden_layers": 1_000_000_000_000_000_000_u64}), "num_hidden_layers"),
        (json!({"num_hidden_layers": 3}), "model.layers.2."),
        (json!({"num_attention_heads": 3}), "divisor"),
        (json!({"num_key_value_heads": 3}), "num_key_value_heads"),
        (json!({"hidden_size": null}), "hidden_size"),
        (json!({"hidden_size": -64}), "hidden_size"),
        (json!({"hidden_size": 1.5}), "hidden_size"),
        (json!({"hidden_size": "NaN"}), "hidden_size"),
        (json!({"intermediate_size": 0}), "intermediate_size"),
        (json!({"rms_norm_eps": "NaN"}), "rms_norm_eps"),
        (json!({"rope_theta": -1}), "rope_theta"),
        (json!({"rope_scaling": {"rope_type": "spiral", "factor": 2}}), "rope_type"),
        (json!({"max_position_embeddings": 0}), "max_position_embeddings"),
        (json!({"vocab_size": 100}), "tokens"),
        (json!({"vocab_size": 300}), "[300, 64]"),
        (json!({"tie_word_embeddings": false}), "lm_head.weight"),
        (json!({"hidden_act": "relu9"}), "relu9"),
        (json!({"architectures": ["Abacus\n".repeat(10_000)]}), "Abacus"),
    ];
    for (changes, part) in cases {
        let folder = tiny();
        edit(&folder.path().join("config.json"), changes);
        pelton(&["run", "-m", text(folder.path()), "x"]).assert_refused(&[part]);
    }
    let folder = tiny();
    edit(&folder.path().join("config.json"), json!({"architectures": ["AbacusForCausalLM"]}));
    pelton(&["inspect", text(folder.path())]).assert_refused(&known);
}

#[test]
fn lying_weights_are_refused_by_tensor() {
    let folder = tiny();
    let file = folder.path().join("model.safetensors");
    let sound = std::fs::read(&file).expect("the weights");
    let n_header = u64::from_le_bytes(sound[..8].try_into().expect("eight bytes")) as usize;
    let (header, data) = sound[8..].split_at(n_header);
    let with_header = |edit: &dyn Fn(&mut serde_json::Value)| {
        let mut header: serde_json::Value = serde_json::from_slice(header).expect("JSON");
        edit(&mut header["model.norm.weight"]);
        let header = header.to_string();
        [&(header.len() as u64).to_le_bytes(), header.as_bytes(), data].concat()
    };
    let huge = [&u64::MAX.to_le_bytes(), &sound[8..]].concat();
    let cases: [(&str, Vec<u8>); 8] = [
        ("8 bytes", sound[..5].to_vec()),
        ("header length", huge),
        ("header length", sound[..100].to_vec()),
        ("data", sound[..sound.len() - 1].to_vec()),
        ("known types", with_header(&|tensor| tensor["dtype"] = json!("F99"))),
        ("model.norm.weight", with_header(&|tensor| tensor["shape"] = json!([65]))),
        ("data_offsets", with_header(&|tensor| tensor["data_offsets"] = json!([0, 256]))),
        ("data_offsets", with_header(&|tensor| tensor["data_offsets"] = json!([0, u64::MAX]))),
    ];
    for (part, bytes) in cases {
        std::fs::write(&file, bytes).expect("a file");
        pelton(&["run", "-m", text(folder.path()), "x"])
            .assert_refused(&["model.safetensors", part]);
    }
}

#[test]
fn what_is_no_regular_file_is_refused_without_waiting() {
    let tiny = tiny();
    for name in ["config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"] {
        let folder = tempfile::tempdir().expect("a folder");
        for entry in std::fs::read_dir(tiny.path()).expect("a folder") {
            let entry = entry.expect("an entry");
            std::fs::copy(entry.path(), folder.path().join(entry.file_name())).expect("a copy");
        }
        let file = folder.path().join(name);
        std::fs::remove_file(&file).expect("removed");
        let status = std::process::Command::new("mkfifo").arg(&file).status();
        assert!(status.expect("mkfifo starts").success());
        pelton(&["run", "-m", text(folder.path()), "x"]).assert_refused(&[name]);
        std::fs::remove_file(&file).expect("removed");
        std::fs::create_dir(&file).expect("a folder");
        pelton(&["run", "-m", text(folder.path()), "x"]).assert_refused(&[name]);
    }
    for device in ["/dev/null", "/dev/zero"] {
        pelton(&["run", "-m", device, "x"]).assert_refused(&[device]);
        pelton(&["tokenize", "-m", device]).assert_refused(&[device]);
    }
}

#[test]
fn hostile_templates_and_tokenizers_are_stopped() {
    let templates = [
        ("{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}", "steps"),
        (
            "{% set n = namespace(x='aa') %}{% for i in range(60) %}{% set n.x = n.x + n.x %}{% endfor %}",
            "bytes of text",
        ),
        (
            "{% set n = namespace(x=[1]) %}{% for i in range(60) %}{% set n.x = [n.x, n.x] %}{% endfor %}",
            "bytes of work",
        ),
        ("{{ not-a-template", "chat template"),
        ("{{ raise_exception('no \u{1b}[2J') }}", "refuses"),
    ];
    let line = br#"{"messages": [{"role": "user", "content": "x"}]}"#;
    for (template, part) in templates {
        let folder = tiny();
        edit(&folder.path().join("tokenizer_config.json"), json!({"chat_template": template}));
        pelton_with_input(&["tokenize", "--chat", "-m", text(folder.path())], line)
            .assert_refused(&[part]);
    }
    let folder = tiny();
    let processor = json!({
        "type": "TemplateProcessing", "pair": [], "special_tokens": {},
        "single": [{"SpecialToken": {"id": "<nobody>", "type_id": 0}}],
    });
    edit(&folder.path().join("tokenizer.json"), json!({"post_processor": processor}));
    pelton(&["run", "-m", text(folder.path()), "x"])
        .assert_refused(&["tokenizer.json", "<nobody>"]);
}

#[test]
fn values_out_of_all_proportion_are_refused() {
    let folder = tiny();
    let model = text(folder.path());
    let huge = "1000000000000000000";
    for flags in [
        ["--max-context", huge],
        ["--max-context", "0"],
        ["--threads", "0"],
        ["--top-k", huge],
        ["--tokens", "288"],
        ["--temperature", "inf"],
    ] {
        let mut args = vec!["run", "-m", model, flags[0], flags[1]];
        if flags[0] != "--tokens" {
            args.push("x");
        }
        pelton(&args).assert_refused(&[]);
    }
    pelton(&["run", "-m", model, "--threads", "100000", "-n", "1", "x"]).assert_answered();
    pelton(&["run", "-m", model, "--raw", &"x".repeat(300)]).assert_refused(&["context"]);
}

#[test]
fn a_line_of_tokenize_that_is_no_text_is_refused() {
    for (input, part) in [
        (&b"\"abc"[..], "line 1"),
        (b"\"a\"\n[]\n", "line 2"),
        (b"\"\xff\"\n", "UTF-8"),
        (b"\"\\ud800\"\n", "JSON string"),
    ] {
        let outcome = pelton_with_input(&["tokenize"], input);
        assert_eq!(outcome.code, Some(2), "{}", outcome.stderr);
        assert!(outcome.stderr.contains(part), "{}", outcome.stderr);
        assert_eq!(outcome.stderr.lines().count(), 1, "{}", outcome.stderr);
    }
    pelton_with_input(&["tokenize", "--decode"], b"[99999999]").assert_refused(&["no token"]);
}

#[test]
fn tokens_without_a_text_are_never_said() {
    // 288 rows, 260 tokens: at a temperature this high every row would come up.
    let folder = tiny();
    let args = ["run", "-m", text(folder.path()), "--raw", "--temperature", "100", "--top-p", "1"];
    let more = ["-n", "200", "--ignore-eos", "--seed", "1", "--json", "x"];
    let answer = pelton(&[&args[..], &more[..]].concat()).json();
    let tokens = answer["tokens"].as_array().expect("tokens");
    assert!(tokens.iter().all(|token| token.as_u64().expect("an id") < 260), "{tokens:?}");
}

#[test]
fn inspect_without_a_model_shows_the_embedded_one() {
    let [plain, named] = [pelton(&["inspect"]), pelton(&["inspect", "embedded"])];
    assert_eq!(pelton(&["inspect", "story"]).stdout, plain.stdout, "by the name that it shows");
    plain.assert_answered();
    assert_eq!(plain.stdout, named.stdout);
}

#[test]
fn a_hub_model_is_not_fetched_when_offline() {
    let cache = tempfile::tempdir().expect("a folder");
    let output = common::command(&["run", "-m", "nobody/nothing", "x"])
        .env("HF_HUB_CACHE", cache.path())
        .output()
        .expect("the binary starts");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{stderr}");
    assert!(stderr.starts_with("error: ") && stderr.contains("HF_HUB_OFFLINE"), "{stderr}");
    assert_eq!(stderr.lines().count(), 1, "{stderr}");
}

fn text(path: &Path) -> &str {
    path.to_str().expect("a path of this test is UTF-8")
}

/// A value from the environment is blamed on the variable, unless the flag was typed.
#[test]
fn a_bad_environment_variable_is_named() {
    for (name, value, args, expected) in [
        ("PELTON_SEED", "abc", &["run", "x"][..], "invalid value `abc` for `PELTON_SEED`"),
        ("PELTON_SEED", "abc", &["run", "x", "--seed", "xyz"], "invalid value `xyz` for `--seed`"),
        ("PELTON_THREADS", "2", &["run", "x", "--threads=xyz"], "`xyz` for `--threads`"),
        ("PELTON_POLICY", "fifo", &["serve"], "`fifo` for `PELTON_POLICY`"),
        ("PELTON_KV_DTYPE", "int88", &["run", "x"], "did you mean `PELTON_KV_DTYPE=int8`?"),
        ("PELTON_KV_DTYPE", "", &["run", "x"], "`PELTON_KV_DTYPE` is empty"),
    ] {
        let output = command(args).env(name, value).output().expect("the binary starts");
        outcome(&output).assert_refused(&[expected]);
    }
}

#[test]
#[cfg(unix)]
fn a_link_to_nothing_is_named_with_its_target() {
    let folder = tempfile::tempdir().expect("temp");
    let link = folder.path().join("model.gguf");
    std::os::unix::fs::symlink("gone.gguf", &link).expect("a link");
    let link = link.to_str().expect("UTF-8");
    pelton(&["run", "-m", link, "x"]).assert_refused(&[link, "it is a link to `gone.gguf`"]);
}

/// Texts with more tokens than the embedding has rows are refused before anything is computed.
#[test]
fn a_tokenizer_of_another_model_is_named() {
    let folder = tempfile::tempdir().expect("temp");
    let model = folder.path().join("model");
    std::fs::create_dir(&model).expect("a folder");
    pelton_testkit::TinyModel::default().write_folder(&model);
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../text/tests/fixtures");
    std::fs::copy(fixtures.join("bpe/tokenizer.json"), model.join("tokenizer.json"))
        .expect("copied");
    let text = folder.path().join("text");
    std::fs::write(&text, "The moth flew around the lamp. ".repeat(40)).expect("written");
    let path = |path: &Path| path.to_str().expect("UTF-8").to_owned();
    let (model, text, out) = (path(&model), path(&text), path(&folder.path().join("out")));
    for args in [
        &["eval", &model, "--text", &text][..],
        &["eval", "needle", &model, "--text", &text],
        &["quantize", &model, &out, "--method", "gptq", "--group", "32", "--calibration", &text],
        &["run", "-m", &model, "x"],
    ] {
        pelton(args).assert_refused(&["has 481 tokens, the embedding has 288 rows"]);
    }
}

#[test]
fn settings_that_change_nothing_are_named() {
    let folder = tempfile::tempdir().expect("temp");
    let input = folder.path().join("in.jsonl");
    std::fs::write(
        &input,
        "{\"custom_id\": \"a\", \"body\": {\"prompt\": \"x\", \"max_tokens\": 1}}\n",
    )
    .expect("written");
    let run = |flags: &[&str]| {
        let output = folder.path().join("out.jsonl");
        let _ = std::fs::remove_file(&output);
        let files = [&input, &output].map(|path| path.to_str().expect("UTF-8"));
        let outcome = pelton(&[&["batch"], &files[..], flags].concat());
        outcome.assert_answered();
        outcome.stderr
    };
    let idle = [
        ["--spec-max", "3"],
        ["--priority-order", "high-first"],
        ["--cache-eviction", "cost-aware"],
        ["--compute", "f32"],
        ["--activation-group", "64"],
        ["--state-dtype", "bf16"],
    ];
    let idle = run(&[&["--no-prefix-cache"], idle.concat().as_slice()].concat());
    for part in [
        "spec_max: changes nothing without drafts",
        "priority_order: changes nothing without `--policy priority`",
        "cache_eviction: changes nothing without the prefix cache",
        "activation_group: changes nothing with `--compute f32`",
        "state_dtype: changes nothing for a model without recurrent layers",
    ] {
        assert!(idle.contains(part), "{part}: {idle}");
    }
    let busy = ["--spec", "ngram", "--spec-max", "3", "--policy", "priority"];
    let busy = run(&[&busy[..], &["--priority-order", "high-first"]].concat());
    assert!(!busy.contains("changes nothing"), "{busy}");
}
