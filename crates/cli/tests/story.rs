//! The model inside the binary, through the real binary.

use std::io::Read;
use std::process::Stdio;

use crate::common::{command, pelton, pelton_with_input, signal};
use pelton_testkit::golden::decoder_named;

/// A short greedy continuation as JSON, with more flags.
fn greedy(more: &[&str]) -> serde_json::Value {
    let mut args = vec!["run", "Once upon a time", "--temperature", "0", "--json"];
    args.extend(["--max-tokens", "12"]);
    args.extend(more);
    pelton(&args).json()
}

#[test]
fn one_json_object_holds_the_whole_answer() {
    let answer = greedy(&[]);
    assert_eq!(answer["model"], "story");
    assert_eq!(answer["mode"], "raw");
    let n_tokens = answer["tokens"].as_array().expect("token ids").len();
    assert_eq!(answer["usage"]["completion_tokens"], n_tokens);
    assert!(answer["usage"]["prompt_tokens"].as_u64().expect("a count") > 0);
    assert!(!answer["text"].as_str().expect("text").is_empty());
    assert!(["length", "stop"].contains(&answer["finish_reason"].as_str().expect("a reason")));
    for timing in ["load_s", "ttft_s", "total_s", "prompt_tokens_per_s", "peak_memory_bytes"] {
        assert!(answer["timings"][timing].as_f64().is_some_and(|x| x > 0.0), "{timing}: {answer}");
    }
    assert!(answer["timings"]["bandwidth_percent"].is_null(), "it was not measured");
}

#[test]
fn stdout_is_the_text_and_stderr_the_statistics() {
    let expected = greedy(&[]);
    let args = ["run", "Once upon a time", "--temperature", "0", "--max-tokens", "12"];
    let outcome = pelton(&args);
    assert_eq!(outcome.code, Some(0), "{}", outcome.stderr);
    let text = expected["text"].as_str().expect("text");
    assert_eq!(outcome.stdout.trim_end_matches('\n'), text.trim_end_matches('\n'));
    for part in ["story", "raw mode", "greedy", "first token", "prompt", "generation", "at peak"] {
        assert!(outcome.stderr.contains(part), "`{part}` is missing in: {}", outcome.stderr);
    }
    let quiet = pelton(&[&args[..], &["--quiet"]].concat());
    assert_eq!((quiet.stdout, quiet.stderr.as_str()), (outcome.stdout, ""));
}

#[test]
fn the_first_screen_says_that_the_model_is_a_toy_and_how_to_get_a_real_one() {
    let report = pelton(&["inspect", "embedded", "--json"]).json();
    let n_parameters = report["n_parameters"].as_f64().expect("a count");
    let size = format!("{:.0} million parameters", n_parameters / 1e6);
    let outcome = pelton(&["run", "Once upon a time", "--max-tokens", "4"]);
    for part in ["toy model", &size, "pelton run -m Qwen/Qwen3-0.6B"] {
        assert_eq!(outcome.stderr.matches(part).count(), 1, "`{part}` in: {}", outcome.stderr);
    }
    assert!(!outcome.stdout.contains("toy"), "{}", outcome.stdout);
    let chat = pelton_with_input(&["run", "--chat", "--quiet"], b"Hello");
    assert_eq!(chat.stderr, "");
    let json = pelton(&["run", "Once upon a time", "--max-tokens", "4", "--json"]);
    assert_eq!(json.stderr, "");
}

#[test]
fn threads_and_the_way_a_prompt_comes_in_change_no_token() {
    let expected = greedy(&["--threads", "1"])["tokens"].clone();
    assert_eq!(greedy(&["--threads", "2"])["tokens"], expected);
    let args = ["run", "--temperature", "0", "--json", "--max-tokens", "12"];
    let piped = pelton_with_input(&args, b"Once upon a time\n").json();
    assert_eq!(piped["tokens"], expected);
    let dashed = pelton_with_input(&[&args[..], &["-"]].concat(), b"Once upon a time").json();
    assert_eq!(dashed["tokens"], expected);
}

#[test]
fn a_seed_repeats_an_answer_and_is_told() {
    let sampled = |seed: &str| {
        let args = ["run", "Once upon a time", "--json", "--max-tokens", "16", "--temperature"];
        pelton(&[&args[..], &["1.5", "--top-p", "1", "--seed", seed]].concat()).json()
    };
    let (a, b, c) = (sampled("7"), sampled("7"), sampled("8"));
    assert_eq!(a["seed"], 7);
    assert_eq!(a["tokens"], b["tokens"]);
    assert_ne!(a["tokens"], c["tokens"]);
}

#[test]
fn the_mode_follows_the_flags() {
    assert_eq!(greedy(&["--raw"])["mode"], "raw");
    assert_eq!(greedy(&["--chat"])["mode"], "chat");
    assert_eq!(greedy(&["--system", "Tell a story."])["mode"], "chat");
}

#[test]
fn an_answer_ends_before_a_stop_text() {
    let text = greedy(&["--ignore-eos"])["text"].as_str().expect("text").to_owned();
    let stop = text.split_whitespace().nth(2).expect("three words").to_owned();
    let stopped = greedy(&["--ignore-eos", "--stop", &stop]);
    assert_eq!(stopped["finish_reason"], "stop");
    let before = text.split(&stop).next().expect("a part");
    assert_eq!(stopped["text"], before);
    let goes_on = greedy(&["--ignore-eos", "--stop", &stop, "--min-tokens", "12"]);
    assert_eq!((&goes_on["text"], &goes_on["finish_reason"]), (&text.into(), &"length".into()));
}

#[test]
fn token_ids_are_continued_as_they_are() {
    let args = ["run", "--json", "--temperature", "0", "--max-tokens", "4", "--ignore-eos"];
    let answer = pelton(&[&args[..], &["--tokens", "100,200,300"]].concat()).json();
    assert_eq!(answer["usage"]["prompt_tokens"], 3);
    assert_eq!(answer["usage"]["completion_tokens"], 4);
    assert_eq!(answer["finish_reason"], "length");
}

#[test]
fn what_does_not_fit_the_model_is_refused() {
    pelton(&["run", "--tokens", "1,999999"]).assert_refused(&["999999", "vocabulary"]);
    let long = "word ".repeat(4000);
    pelton_with_input(&["run"], long.as_bytes()).assert_refused(&["prompt has", "context"]);
    pelton(&["logits", "--tokens", "999999"]).assert_refused(&["999999"]);
}

#[test]
fn the_bandwidth_is_measured_when_asked_for() {
    let timings = &greedy(&["--bandwidth"])["timings"];
    assert!(timings["bandwidth_bytes_per_s"].as_f64().is_some_and(|x| x > 0.0), "{timings}");
    assert!(timings["bandwidth_percent"].as_f64().is_some_and(|x| x > 0.0), "{timings}");
}

#[test]
fn ctrl_c_ends_an_answer_with_its_statistics() {
    // More than the context never ends by itself in the time it takes to interrupt.
    let args = ["run", "Once upon a time", "--ignore-eos", "--max-tokens", "100000"];
    let mut child = command(&args)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary starts");
    let mut stdout = child.stdout.take().expect("stdout is piped");
    // The first byte says that the model is loaded and answering.
    stdout.read_exact(&mut [0]).expect("an answer begins");
    signal("INT", child.id());
    let mut rest = Vec::new();
    stdout.read_to_end(&mut rest).expect("the pipe closes");
    let output = child.wait_with_output().expect("the binary ends");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(130), "{stderr}");
    assert!(stderr.contains("interrupted") && stderr.contains("tokens/s"), "{stderr}");
}

#[test]
fn a_reader_that_leaves_is_no_error() {
    let args = ["run", "Once upon a time", "--ignore-eos", "--max-tokens", "900"];
    let mut child = command(&args)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary starts");
    drop(child.stdout.take());
    let output = child.wait_with_output().expect("the binary ends");
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    assert_eq!(output.status.code(), Some(0));
}

#[test]
fn the_server_answers_and_leaves_on_sigterm() {
    use std::io::{BufRead, BufReader, Write};
    let mut child = command(&["serve", "--port", "0"])
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary starts");
    let mut lines = BufReader::new(child.stderr.take().expect("stderr is piped")).lines();
    let line = lines.next().expect("a line").expect("text");
    let address = line.strip_prefix("listening on http://").expect(&line).trim_end_matches('/');
    let mut connection = std::net::TcpStream::connect(address).expect("somebody listens");
    let request = format!("GET /health HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n");
    connection.write_all(request.as_bytes()).expect("the request is sent");
    let mut answer = String::new();
    connection.read_to_string(&mut answer).expect("an answer");
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    signal("TERM", child.id());
    assert_eq!(child.wait().expect("the binary ends").code(), Some(0));
}

#[test]
fn a_port_that_is_taken_is_named() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let port = taken.local_addr().expect("an address").port().to_string();
    pelton(&["serve", "--port", &port]).assert_refused(&[&port]);
}

#[test]
fn keys_and_values_can_be_kept_in_every_type() {
    for kv_dtype in ["f32", "bf16", "f16", "fp8", "int8"] {
        let answer = greedy(&["--kv-dtype", kv_dtype]);
        assert_eq!(answer["tokens"].as_array().expect("token ids").len(), 12, "{kv_dtype}");
    }
    let kv_bytes = |kv_dtype| {
        let report = pelton(&["inspect", "embedded", "--json", "--kv-dtype", kv_dtype]).json();
        assert_eq!(report["kv_dtype"], kv_dtype);
        report["memory"]["kv_bytes"].as_u64().expect("bytes")
    };
    assert_eq!(kv_bytes("f32"), 4 * kv_bytes("fp8"));
    assert!(kv_bytes("fp8") < kv_bytes("int8") && kv_bytes("int8") < kv_bytes("bf16"));
}

#[test]
fn inspect_tells_what_the_model_is() {
    let object = pelton(&["inspect", "embedded", "--json"]).json();
    assert_eq!(object["architecture"], "LlamaForCausalLM");
    let outcome = pelton(&["inspect", "embedded"]);
    assert_eq!(outcome.code, Some(0), "{}", outcome.stderr);
    for part in ["architecture", "parameters", "Q8_0", "kv pool", "tokenizer", "chat template"] {
        assert!(outcome.stdout.contains(part), "`{part}` is missing in: {}", outcome.stdout);
    }
}

#[test]
fn inspect_says_which_rotary_frequencies_a_context_chooses_and_why() {
    let folder = tempfile::tempdir().expect("a folder");
    decoder_named("phi4-longrope").checkpoint.write_bare_folder(folder.path());
    let model = folder.path().to_str().expect("a path");
    for (context, length) in [("32", "short"), ("33", "long")] {
        let words = format!("LongRoPE uses its {length} factors, because {context} tokens");
        let outcome = pelton(&["inspect", model, "--context", context]);
        assert!(outcome.stdout.contains(&words), "{}", outcome.stdout);
        let report = pelton(&["inspect", model, "--context", context, "--json"]).json();
        let said = report["rope_choices"][0].as_str().expect("a choice");
        assert!(said.starts_with(&words), "{said}");
    }
}

#[test]
fn inspect_tells_the_memory_of_a_server_to_the_byte() {
    let memory = |flags: &[&str]| {
        let args = [&["inspect", "embedded", "--json", "--context", "100"], flags].concat();
        let memory = pelton(&args).json()["memory"].clone();
        move |name: &str| memory[name].as_u64().unwrap_or_else(|| panic!("`{name}` in {memory}"))
    };
    let one = memory(&[]);
    // Seven blocks of 16 tokens, and one for a copy.
    assert_eq!((one("kv_blocks"), one("swap_blocks"), one("swap_bytes")), (8, 0, 0));
    assert_eq!(one("kv_bytes"), 8 * one("kv_block_bytes"));
    let many = memory(&["--requests", "300", "--swap-mib", "3"]);
    assert_eq!(many("kv_blocks"), 300 * 7 + 1);
    assert_eq!(many("kv_bytes"), many("kv_blocks") * one("kv_block_bytes"));
    assert_eq!(many("swap_blocks"), (3 << 20) / one("kv_block_bytes"));
    assert_eq!(many("swap_bytes"), many("swap_blocks") * one("kv_block_bytes"));
    assert_eq!(many("total_bytes"), many("weight_bytes") + many("kv_bytes") + many("swap_bytes"));
    assert!(many("kv_mapped_bytes") >= many("kv_bytes") + many("swap_bytes"));
}

#[test]
fn logits_lead_to_the_greedy_token() {
    let ids = "100,200,300";
    let outcome = pelton(&["logits", "--tokens", ids, "--top", "3", "--all"]);
    assert_eq!(outcome.code, Some(0), "{}", outcome.stderr);
    let lines: Vec<serde_json::Value> = outcome
        .stdout
        .lines()
        .map(|line| serde_json::from_str(line).expect("a JSON line"))
        .collect();
    assert_eq!(lines.len(), 3);
    assert_eq!(lines[2]["position"], 2);
    let args = ["run", "--tokens", ids, "--temperature", "0", "--max-tokens", "1", "--json"];
    let answer = pelton(&[&args[..], &["--ignore-eos"]].concat()).json();
    assert_eq!(lines[2]["top"][0][0], answer["tokens"][0]);
    let last = pelton(&["logits", "--tokens", ids, "--top", "3"]);
    assert_eq!(last.stdout.trim_end(), outcome.stdout.lines().last().expect("three lines"));
}

#[test]
fn tokens_become_the_text_that_they_came_from() {
    let text = "\"Once upon a time\"\n\"caf\\u00e9 \\n\"\n";
    let ids = pelton_with_input(&["tokenize"], text.as_bytes());
    assert_eq!(ids.code, Some(0), "{}", ids.stderr);
    assert_eq!(ids.stdout.lines().count(), 2);
    let plain = pelton_with_input(&["tokenize", "--no-special"], text.as_bytes());
    let back = pelton_with_input(&["tokenize", "--decode"], plain.stdout.as_bytes());
    let parse = |text: &str| -> Vec<String> {
        text.lines().map(|line| serde_json::from_str(line).expect("a JSON string")).collect()
    };
    assert_eq!(parse(&back.stdout), parse(text));
}

#[test]
fn a_chat_line_is_rendered_and_encoded() {
    let line =
        br#"{"messages": [{"role": "user", "content": "Hello"}], "add_generation_prompt": true}"#;
    let outcome = pelton_with_input(&["tokenize", "--chat"], line);
    let object = outcome.json();
    assert!(object["text"].as_str().expect("text").contains("Hello"));
    assert!(!object["ids"].as_array().expect("ids").is_empty());
    pelton_with_input(&["tokenize", "--chat"], b"[1]").assert_refused(&["line 1"]);
    pelton_with_input(&["tokenize"], b"not json").assert_refused(&["line 1"]);
}
