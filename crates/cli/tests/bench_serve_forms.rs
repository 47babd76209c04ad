//! `pelton bench serve` against a server with known delays: arrivals, traces, the steady part of a
//! run, and the file in the form of vLLM.

mod common;

use common::mock::{Delays, Mock};
use common::pelton;
use common::server::Server;
use serde_json::Value;

fn measure(mock: &Mock, more: &[&str]) -> Value {
    let common = ["bench", "serve", "--url", &mock.address, "--json"];
    pelton(&[&common, more].concat()).json()
}

#[test]
fn the_file_for_tools_of_vllm_has_their_fields_and_the_report_hides_the_key() {
    let mock = Mock::start(Delays { prefill_ms: 3, token_ms: 2, ..Delays::default() });
    let folder = tempfile::tempdir().expect("temp");
    let path = folder.path().join("vllm.json");
    let file = path.to_str().expect("UTF-8");
    let lengths = ["--lengths", "5:6", "-n", "60", "--concurrency", "4", "--key", "secret"];
    let told = measure(&mock, &[&lengths[..], &["--vllm-json", file]].concat());
    assert!(!told["report"].to_string().contains("secret"), "{}", told["report"]);

    let text = std::fs::read_to_string(&path).expect("written");
    let vllm: Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!((&vllm["completed"], &vllm["failed"]), (&60.into(), &0.into()));
    assert_eq!(
        (&vllm["total_input_tokens"], &vllm["total_output_tokens"]),
        (&300.into(), &360.into())
    );
    assert_eq!((&vllm["max_concurrency"], &vllm["model_id"]), (&4.into(), &"mock".into()));
    assert_eq!(vllm["request_goodput"], Value::Null);
    assert_eq!((&vllm["request_rate"], &vllm["burstiness"]), (&"inf".into(), &1.0.into()));
    let number = |name: &str| vllm[name].as_f64().unwrap_or_else(|| panic!("{name}: {vllm}"));
    for name in ["ttft", "tpot", "itl", "e2el"] {
        for which in ["mean", "median", "std", "p99"] {
            assert!(number(&format!("{which}_{name}_ms")) >= 0.0);
        }
    }
    // The known delays are lower bounds of what a client can see.
    assert!(number("median_ttft_ms") >= 3.0 && number("median_tpot_ms") >= 2.0);
    assert!(number("median_e2el_ms") >= 13.0);
    let rate = 360.0 / number("duration");
    assert!((number("output_throughput") / rate - 1.0).abs() < 1e-9);
    let own = &told["variants"][0]["report"]["all"]["ttft_ms"];
    let difference = own["mean"].as_f64().expect("a mean") - number("mean_ttft_ms");
    assert!(difference.abs() < 1e-6, "{own}");
}

#[test]
#[cfg(target_os = "linux")]
fn a_server_of_this_machine_is_told_from_other_programs_where_it_counts_its_time() {
    // 40 requests of at least 10 ms.
    let mock = Mock::start(Delays { prefill_ms: 10, ..Delays::default() });
    let few = ["--lengths", "5:2", "-n", "40", "--concurrency", "1"];
    let told = measure(&mock, &few);
    let noise = &told["report"]["noise"];
    assert!(noise["seconds"].as_f64().is_some_and(|s| s >= 0.4), "{noise}");
    assert_eq!(noise["others_share"], Value::Null, "{noise}");
    assert!(noise["stolen_share"].is_number(), "{noise}");
    let common = ["bench", "serve", "--url", &mock.address];
    let text = pelton(&[&common, &few[..]].concat()).stdout;
    assert!(text.contains("not told from the server, which runs here"), "{text}");

    let folder = tempfile::tempdir().expect("temp");
    let (file, page) = (folder.path().join("run.json"), folder.path().join("page.html"));
    std::fs::write(&file, told.to_string()).expect("written");
    let [file, page] = [&file, &page].map(|path| path.to_str().expect("UTF-8"));
    pelton(&["bench", "report", file, "-o", page]).assert_answered();
    let html = std::fs::read_to_string(page).expect("written");
    assert!(html.contains("The run was in a "), "{html}");

    let server = Server::start(&["--threads", "1"]).expect("it listens");
    let pelton_url = ["bench", "serve", "--url", server.address(), "--json"];
    let many = ["--lengths", "5:200", "-n", "24", "--concurrency", "1"];
    let told = pelton(&[&pelton_url, &many[..]].concat()).json();
    let noise = &told["report"]["noise"];
    let is_long = noise["seconds"].as_f64().is_some();
    assert!(!is_long || noise["others_share"].is_number(), "{noise}");
}

#[test]
fn prompts_of_a_file_are_asked_in_order_and_again_from_the_first() {
    let folder = tempfile::tempdir().expect("temp");
    let write = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).expect("written");
        path.to_str().expect("UTF-8").to_owned()
    };
    let lines = write("lines", "why is it so?\n{\"prompt\": \"and now?\", \"max_tokens\": 3}\n");
    let common = ["--lengths", "9:2", "--concurrency", "1"];
    let mock = Mock::start(Delays::default());
    let told = measure(&mock, &[&common[..], &["--prompts", &lines]].concat());
    let asked = |mock: &Mock| -> Vec<(String, u64)> {
        let of = |body: &Value| {
            let text =
                body["prompt"].as_str().map_or_else(|| body["messages"].to_string(), str::to_owned);
            (text, body["max_tokens"].as_u64().expect("a number"))
        };
        mock.bodies().iter().map(of).collect()
    };
    let both = [("why is it so?".to_owned(), 2), ("and now?".to_owned(), 3)];
    assert_eq!(asked(&mock), both, "as many requests as texts");
    assert!(told["workload"].to_string().contains("2 texts of "), "{}", told["workload"]);

    let mock = Mock::start(Delays::default());
    measure(&mock, &[&common[..], &["--prompts", &lines, "-n", "5"]].concat());
    assert_eq!(asked(&mock), [&both[..], &both, &both[..1]].concat());

    let messages = r#"[{"role":"system","content":"s"},{"role":"user","content":"u"}]"#;
    let chat = write("chat", &format!("{{\"messages\": {messages}}}\nplain\n"));
    let mock = Mock::start(Delays::default());
    measure(&mock, &[&common[..], &["--prompts", &chat, "--chat"]].concat());
    let plain = r#"[{"role":"user","content":"plain"}]"#;
    assert_eq!(asked(&mock), [(messages.to_owned(), 2), (plain.to_owned(), 2)]);

    // A sweep goes on through the file with each load.
    let six: String = (0..60).map(|at| format!("text {at}\n")).collect();
    let mock = Mock::start(Delays::default());
    let args =
        ["--prompts", &write("six", &six), "--clients", "1,2", "-n", "30", "--lengths", "5:2"];
    let swept = ["bench", "sweep", "--url", &mock.address, "--json"];
    pelton(&[&swept[..], &args].concat()).assert_answered();
    let mut all: Vec<String> = asked(&mock).into_iter().map(|(text, _)| text).collect();
    all.sort();
    all.dedup();
    assert_eq!(all.len(), 60, "no text comes twice");
}

#[test]
fn prompts_that_cannot_be_asked_are_refused_by_line() {
    let folder = tempfile::tempdir().expect("temp");
    let path = folder.path().join("prompts");
    let refused = |text: &str, more: &[&str], parts: &[&str]| {
        std::fs::write(&path, text).expect("written");
        let prompts = ["bench", "serve", "--prompts", path.to_str().expect("UTF-8")];
        pelton(&[&prompts, more].concat()).assert_refused(parts);
    };
    refused("fine\n{\"prompt\": 1}\n", &[], &["prompts, line 2: ", "`prompt`"]);
    refused("[{\"prompt\": \"x\"},\n 7]", &[], &["prompts, line 2: "]);
    refused(
        "{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}]}",
        &[],
        &["line 1", "--chat"],
    );
    refused("\n", &[], &["prompts: holds no text"]);
    refused("x", &["--workload", "sessions"], &["--prompts", "sessions"]);
    let none = folder.path().join("none");
    pelton(&["bench", "serve", "--prompts", none.to_str().expect("UTF-8")])
        .assert_refused(&["none: "]);
    let here = folder.path().to_str().expect("UTF-8");
    pelton(&["bench", "serve", "--prompts", here]).assert_refused(&[here]);
}

#[test]
fn the_file_for_tools_of_vllm_says_how_requests_came() {
    let mock = Mock::start(Delays::default());
    let folder = tempfile::tempdir().expect("temp");
    let path = folder.path().join("vllm.json");
    let file = path.to_str().expect("UTF-8");
    for (arrivals, burstiness) in [("poisson", Value::from(1.0)), ("bursty", Value::Null)] {
        let lengths = ["--lengths", "5:2", "-n", "4", "--rate", "200", "--arrivals", arrivals];
        measure(&mock, &[&lengths[..], &["--vllm-json", file]].concat());
        let text = std::fs::read_to_string(&path).expect("written");
        let vllm: Value = serde_json::from_str(&text).expect("JSON");
        assert_eq!(vllm["request_rate"], 200.0);
        assert_eq!((&vllm["burstiness"], &vllm["max_concurrency"]), (&burstiness, &Value::Null));
    }
}

#[test]
fn a_long_run_has_a_steady_part_and_samples_for_comparisons() {
    let mock = Mock::start(Delays::default());
    let told = measure(&mock, &["--lengths", "5:3", "-n", "120", "--concurrency", "3"]);
    let requests = &told["requests"];
    assert_eq!(requests["ttft_ms"].as_array().map(Vec::len), Some(120));
    // Two gaps for each answer of three tokens, and no bucket without a time.
    for (name, n) in [("ttft", 120), ("tpot", 120), ("end_to_end", 120), ("itl", 240)] {
        let histogram = &told["histograms"][name];
        let buckets = histogram["buckets_ms"].as_array().expect("buckets");
        let counts: Vec<u64> = buckets.iter().filter_map(|bucket| bucket[2].as_u64()).collect();
        assert_eq!((counts.iter().sum::<u64>(), &histogram["n"]), (n, &n.into()), "{name}");
        assert!(!counts.contains(&0) && counts.len() == buckets.len(), "{histogram}");
    }
    let measures = told["measures"].as_array().expect("measures");
    let samples = |name: &str| {
        let found = measures.iter().find(|measure| measure["name"] == name);
        found.and_then(|measure| measure["samples"].as_array()).map_or(0, Vec::len)
    };
    assert!(samples("TTFT") >= 10 && samples("end to end") >= 10, "{measures:?}");
    assert!(!told["steady"].is_null() && told["steady"] != "too_short", "{}", told["steady"]);
    let short = measure(&mock, &["--lengths", "5:3", "-n", "20", "--concurrency", "3"]);
    assert_eq!(short["steady"], "too_short");
}

#[test]
fn published_traces_and_every_kind_of_arrival_are_served() {
    let mock = Mock::start(Delays::default());
    let folder = tempfile::tempdir().expect("temp");
    let write = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).expect("written");
        path.to_str().expect("UTF-8").to_owned()
    };
    let mooncake = write(
        "mooncake.jsonl",
        "\u{feff}{\"timestamp\": 0, \"input_length\": 30, \"output_length\": 4, \"hash_ids\": [0]}\n\
         {\"timestamp\": 20, \"input_length\": 40, \"output_length\": 2, \"hash_ids\": [0]}\n",
    );
    let burst = write(
        "burst.csv",
        "\u{feff}Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n\
         0,ChatGPT,10,3,13,Conversation log\n0.05,GPT-4,7,0,7,API log\n0.06,GPT-4,9,2,11,API log\n",
    );
    for (trace, n) in [(mooncake, 2), (burst, 2)] {
        let told = measure(&mock, &["--trace", &trace]);
        assert_eq!(told["n_answers"], n, "{trace}");
    }
    for arrivals in ["poisson", "bursty", "constant", "ramp"] {
        let how = ["--arrivals", arrivals, "--rate", "200", "--lengths", "4:2", "-n", "10"];
        assert_eq!(measure(&mock, &how)["n_answers"], 10, "{arrivals}");
    }
    for workload in ["sharegpt", "long-context"] {
        let how = ["--workload", workload, "--rate", "200", "--scale", "0.01", "-n", "5"];
        assert_eq!(measure(&mock, &how)["n_answers"], 5, "{workload}");
    }
    let bad = write("bad.jsonl", "{\"timestamp\": 0}\n");
    let args = ["bench", "serve", "--url", &mock.address, "--trace", &bad];
    pelton(&args).assert_refused(&["bad.jsonl, line 1", "input_length"]);
}

#[test]
fn a_turn_of_a_session_waits_for_the_answer_before_it_and_for_its_user() {
    // An answer takes 20 + 4 · 10 ms at least.
    let mock = Mock::start(Delays { prefill_ms: 20, token_ms: 10, ..Delays::default() });
    let folder = tempfile::tempdir().expect("temp");
    let path = folder.path().join("sessions");
    let line = |at: u32, session: u32| format!("{at} 5 4 session={session}:100\n");
    let text = [line(0, 1), line(1, 1), line(2, 2), line(3, 1)].concat();
    std::fs::write(&path, text).expect("written");
    let trace = ["--trace", path.to_str().expect("UTF-8")];
    for more in [&[][..], &["--concurrency", "3"]] {
        let told = measure(&mock, &[&trace[..], more].concat());
        assert_eq!(told["n_answers"], 4, "{told}");
        let times = |name: &str| -> Vec<f64> {
            let list = told["requests"][name].as_array().expect("times");
            list.iter().map(|x| x.as_f64().expect("a number")).collect()
        };
        let (mut begins, ends) = (times("arrived_s"), times("end_to_end_ms"));
        // Each turn of the first session comes 100 ms after the end of the one before it.
        let first = begins.iter().zip(&ends).map(|(begin, ms)| begin + ms / 1e3);
        let ended = first.fold(f64::INFINITY, f64::min);
        begins.sort_by(f64::total_cmp);
        assert!(begins[1] < 0.05, "the second session waits for none: {begins:?}");
        assert!(begins[2] >= ended + 0.1, "{begins:?}, {ended}");
        assert!(begins[3] >= begins[2] + 0.15, "{begins:?}");
        let whole = told["variants"][0]["report"]["duration_s"].as_f64().expect("seconds");
        assert!(whole >= 3.0 * 0.05 + 2.0 * 0.1, "{whole}");
    }
    let how = ["--workload", "sessions", "--rate", "200", "--scale", "0.01", "-n", "3"];
    assert_eq!(measure(&mock, &how)["n_answers"], 3);
    let simulated = pelton(&[&["bench", "sim"][..], &trace].concat());
    simulated.assert_refused(&["sessions", "bench load"]);
}
