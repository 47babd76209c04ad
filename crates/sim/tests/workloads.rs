//! Promises of the generators: rates, lengths, shares, and the same trace for the same seed.

use pelton_base::TenantId;
use pelton_sim::trace::{
    Tenants, Trace, TraceError, TraceFile, TraceRequest, Workload, WorkloadKind, parse_line, save,
};

fn requests(kind: WorkloadKind, n: u64, seed: u64) -> Vec<TraceRequest> {
    Workload::new(kind, n, seed).requests().collect()
}

#[test]
fn the_same_seed_gives_the_same_trace_and_another_seed_another() {
    for &kind in WorkloadKind::ALL {
        let trace = requests(kind, 500, 1);
        assert_eq!(trace, requests(kind, 500, 1), "{}", kind.name());
        assert_ne!(trace, requests(kind, 500, 2), "{}", kind.name());
        // A longer trace only goes on.
        assert_eq!(trace[..], requests(kind, 600, 1)[..500], "{}", kind.name());
    }
}

#[test]
fn requests_come_in_order_at_the_stated_rate() {
    for &kind in WorkloadKind::ALL {
        let trace = requests(kind, 50_000, 3);
        assert!(trace.is_sorted_by_key(|request| request.at_ns));
        let seconds = trace.last().expect("requests").at_ns as f64 / 1e9;
        let rate = trace.len() as f64 / seconds;
        // Bursts scatter: 600 cycles of on and off.
        let tolerance = if kind == WorkloadKind::Bursty { 0.1 } else { 0.03 };
        let off = rate / kind.default_rate() - 1.0;
        assert!(off.abs() < tolerance, "{}: {rate} per second", kind.name());
    }
    let fast = Workload::new(WorkloadKind::Poisson, 10_000, 3).at_rate(100.0).expect("a rate");
    let end_s = fast.requests().last().expect("requests").at_ns as f64 / 1e9;
    assert!((95.0..105.0).contains(&end_s), "{end_s}");
}

#[test]
fn lengths_are_what_the_table_says() {
    let median = |mut lengths: Vec<usize>| {
        lengths.sort_unstable();
        lengths[lengths.len() / 2]
    };
    let prompts = |trace: &[TraceRequest]| trace.iter().map(|r| r.n_prompt).collect::<Vec<_>>();
    let poisson = requests(WorkloadKind::Poisson, 20_000, 1);
    assert!((120..136).contains(&median(prompts(&poisson))));
    assert!((46..50).contains(&median(poisson.iter().map(|r| r.n_output).collect())));

    let tail = requests(WorkloadKind::LongTail, 20_000, 1);
    assert!((90..102).contains(&median(prompts(&tail))));
    let n_long = tail.iter().filter(|r| r.n_prompt > 3_000).count();
    assert!((150..280).contains(&n_long), "{n_long} of 20,000");
    assert!(tail.iter().all(|r| r.n_output >= 16 && r.n_prompt <= 16_384));

    let mixed = requests(WorkloadKind::Mixed, 20_000, 1);
    let n_long = mixed.iter().filter(|r| r.n_prompt == 8_000).count();
    assert!((900..1_100).contains(&n_long), "{n_long} of 20,000");
    assert!(mixed.iter().all(|r| r.slo.ttft.is_some() && r.slo.tpot.is_some()));

    let tenants = requests(WorkloadKind::Tenants, 22_000, 1);
    let n_few = tenants.iter().filter(|r| r.tenant == TenantId(2)).count();
    assert!((1_850..2_150).contains(&n_few), "{n_few} of 22,000");
    assert!(tenants.iter().all(|r| r.tenant != TenantId(0)));

    let mean = |lengths: Vec<usize>| lengths.iter().sum::<usize>() as f64 / lengths.len() as f64;
    let chats = requests(WorkloadKind::ShareGpt, 50_000, 1);
    assert!((150.0..172.0).contains(&mean(prompts(&chats))), "{}", mean(prompts(&chats)));
    let answers = mean(chats.iter().map(|r| r.n_output).collect());
    assert!((325.0..350.0).contains(&answers), "{answers}");
    let long = requests(WorkloadKind::LongContext, 2_000, 1);
    assert!(long.iter().all(|r| (8_000..=32_000).contains(&r.n_prompt)));

    let overload = requests(WorkloadKind::Overload, 20_000, 1);
    let n_urgent = overload.iter().filter(|r| r.priority < 0).count();
    assert!((3_800..4_200).contains(&n_urgent), "{n_urgent} of 20,000");
}

#[test]
fn arrivals_and_lengths_can_be_chosen_for_every_kind() {
    use pelton_sim::trace::ArrivalKind;
    for &kind in WorkloadKind::ALL {
        for &arrivals in ArrivalKind::ALL {
            let workload = Workload::new(kind, 3_000, 1).arriving(arrivals).of_lengths(70, 9);
            let trace: Vec<TraceRequest> = workload.requests().collect();
            assert!(trace.is_sorted_by_key(|request| request.at_ns));
            assert!(trace.iter().all(|r| (r.n_prompt, r.n_output) == (70, 9)));
            assert!(trace.iter().all(|r| r.prefixes.as_slice().is_empty()));
            let seconds = trace.last().expect("requests").at_ns as f64 / 1e9;
            let off = 3_000.0 / seconds / kind.default_rate() - 1.0;
            assert!(off.abs() < 0.25, "{} {}: {off}", kind.name(), arrivals.name());
        }
    }
}

#[test]
fn published_traces_are_read_in_their_own_forms() {
    let folder = tempfile::tempdir().expect("temp");
    let write = |text: &str| {
        let path = folder.path().join("trace");
        std::fs::write(&path, text).expect("written");
        TraceFile::open(path)
    };
    let long: Vec<String> = (0..3_000).map(|id| id.to_string()).collect();
    let long = long.join(", ");
    let mooncake = write(&format!(
        "{{\"timestamp\": 0, \"input_length\": 600, \"output_length\": 5, \"hash_ids\": [1, 2]}}\n\n\
         {{\"timestamp\": 10.5, \"input_length\": 1536000, \"output_length\": 5, \"hash_ids\": [{long}]}}\n"
    ))
    .expect("a trace");
    let found: Vec<TraceRequest> =
        mooncake.requests().expect("readable").map(|request| request.expect("good")).collect();
    assert_eq!((found.len(), found[1].at_ns, found[1].n_prompt), (2, 10_500_000, 1_536_000));

    let text = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n\
                5,ChatGPT,472,18,490,Conversation log\n45,ChatGPT,1087,0,1087,API log\n\
                118,GPT-4,417,276,693,Conversation log\n";
    let burst = Trace::File(write(text).expect("a trace"));
    assert_eq!(burst.n_requests(), 2);

    // Saved in our own form, the trace is the same.
    let own = folder.path().join("own");
    save(&burst, &own).expect("saved");
    let again = Trace::File(TraceFile::open(own).expect("a trace"));
    let all = |trace: &Trace| -> Vec<TraceRequest> {
        trace.requests().expect("readable").map(|request| request.expect("good")).collect()
    };
    assert_eq!(all(&again), all(&burst));

    let error = write("{\"timestamp\": 5, \"input_length\": 1, \"output_length\": 1}\n{\n");
    let error = error.expect_err("cut off").to_string();
    assert!(error.contains("line 2") && error.contains("input_length"), "{error}");
}

#[test]
fn conversations_repeat_what_was_said_before() {
    let trace = requests(WorkloadKind::SharedPrefix, 2_000, 1);
    let mut n_follow_ups = 0;
    for (number, later) in trace.iter().enumerate() {
        let [system, chat] = later.prefixes.as_slice() else { panic!("two prefixes") };
        assert_eq!((system.n_tokens, system.id < 8), (512, true));
        assert_eq!(system.n_tokens + chat.n_tokens, later.n_prompt);
        let before = trace[..number].iter().rev().find(|r| r.prefixes.as_slice()[1].id == chat.id);
        if let Some(before) = before {
            assert_eq!(before.prefixes.as_slice()[0], *system);
            assert!(chat.n_tokens > before.prefixes.as_slice()[1].n_tokens + before.n_output);
            n_follow_ups += 1;
        }
    }
    // Chats have three questions on average.
    assert!((1_150..1_450).contains(&n_follow_ups), "{n_follow_ups}");
    let (a, b) = (trace[0].prompt(0, 300), trace[1].prompt(1, 300));
    assert!(a.iter().chain(&b).all(|token| token.0 < 300));
}

#[test]
fn scale_shortens_everything_and_nothing_vanishes() {
    let long: Vec<_> = Workload::new(WorkloadKind::Mixed, 1_000, 1).requests().collect();
    let scaled = Workload::new(WorkloadKind::Mixed, 1_000, 1).scaled(0.01).expect("a scale");
    for (short, long) in scaled.requests().zip(&long) {
        assert_eq!(short.at_ns, long.at_ns);
        assert!(short.n_prompt >= 1 && short.n_output >= 1);
        let expected = long.n_prompt as f64 / 100.0;
        assert!((short.n_prompt as f64 - expected).abs() <= 1.0, "{short:?} of {long:?}");
    }
    let tiny = Workload::new(WorkloadKind::SharedPrefix, 500, 1).scaled(0.001).expect("a scale");
    assert_eq!(tiny.requests().count(), 500);
}

#[test]
fn rates_and_scales_that_are_none_are_refused() {
    for bad in [0.0, -1.0, f64::NAN, f64::INFINITY, 1e12] {
        let workload = || Workload::new(WorkloadKind::Poisson, 1, 1);
        assert!(workload().at_rate(bad).is_err(), "{bad}");
        assert!(workload().scaled(bad).is_err(), "{bad}");
    }
}

#[test]
fn a_saved_trace_is_read_back_as_it_was() {
    let folder = tempfile::tempdir().expect("a folder");
    for &kind in WorkloadKind::ALL {
        let path = folder.path().join(kind.name());
        let workload = Workload::new(kind, 300, 9);
        save(&Trace::Workload(workload.clone()), &path).expect("saved");
        let file = Trace::File(TraceFile::open(&path).expect("well-formed"));
        assert_eq!(file.n_requests(), 300);
        // Numbers of tenants go by first appearance, names stay.
        for (read, made) in file.requests().expect("there").zip(workload.requests()) {
            let read = read.expect("well-formed");
            assert_eq!(file.tenants().name(read.tenant), workload.tenants().name(made.tenant));
            assert_eq!(TraceRequest { tenant: made.tenant, ..read }, made);
        }
    }
}

#[test]
fn files_are_refused_by_line_and_field() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("trace.txt");
    let open = |bytes: &[u8]| {
        std::fs::write(&path, bytes).expect("written");
        TraceFile::open(&path)
    };
    assert_eq!(open(b"# x\n0 1 1\n\n0 1 1").expect("good").requests().expect("there").count(), 2);
    let long = format!("0 1 1\n0 1 1 # {}\n", "x".repeat(5_000));
    let cases: [(&[u8], u64, &str); 4] = [
        (b"0 1 1\n\n# x\n0 1 bad\n", 4, "output_tokens"),
        (b"5 1 1\n4.9 1 1\n", 2, "at_ms"),
        (b"0 1 1\n\xff\xfe\n", 2, "line"),
        (long.as_bytes(), 2, "line"),
    ];
    for (bytes, line, field) in cases {
        match open(bytes) {
            Err(TraceError::Line { line: at, source, .. }) => {
                assert_eq!((at, source.field), (line, field));
                assert!(!source.to_string().contains('\n'), "one line: {source}");
            }
            other => panic!("expected line {line}, {field}: {other:?}"),
        }
    }
    assert!(matches!(open(b"# nothing\n"), Err(TraceError::Empty { .. })));
    let absent = TraceFile::open(folder.path().join("absent"));
    assert!(matches!(absent, Err(TraceError::Io { .. })));
    let mut many = String::new();
    for i in 0..300 {
        many.push_str(&format!("0 1 1 tenant=t{i}\n"));
    }
    assert!(matches!(open(many.as_bytes()), Err(TraceError::Line { line: 256, .. })));
    assert!(parse_line("0 1 1", &mut Tenants::default()).is_ok());
}
