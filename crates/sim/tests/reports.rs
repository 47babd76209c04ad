//! The report of a run, for people and for programs.

use pelton_base::TenantId;
use pelton_sim::report::{Comparison, Grouping, Ledger, RefusalRecord, Report, RequestRecord};
use pelton_sim::trace::Tenants;

/// The time per token is `tpot_ms` milliseconds, that to the first a hundred.
fn record(tenant: u32, n_prompt: u32, tpot_ms: u64) -> RequestRecord {
    let arrived_ns = 5_000_000;
    let first_ns = arrived_ns + 100_000_000;
    RequestRecord {
        tenant: TenantId(tenant),
        n_prompt,
        n_output: 11,
        n_cached: n_prompt / 2,
        arrived_ns,
        started_ns: arrived_ns + 1_000_000,
        first_ns,
        ended_ns: first_ns + 10 * tpot_ms * 1_000_000,
        is_complete: true,
        is_good: tpot_ms < 50,
    }
}

fn ledger() -> Ledger {
    let refusal = RefusalRecord { tenant: TenantId(2), n_prompt: 5_000, reason: "queue full" };
    let failed = RequestRecord { is_complete: false, is_good: false, ..record(1, 10, 20) };
    Ledger {
        n_offered: 6,
        records: vec![record(1, 10, 20), record(1, 20, 60), record(2, 2_000, 40), failed],
        refusals: vec![refusal],
        duration_s: 2.0,
        service: vec![0.0, 30.0, 10.0],
        ..Ledger::default()
    }
}

fn tenants() -> Tenants {
    let mut tenants = Tenants::default();
    for name in ["many", "few"] {
        tenants.number(name).expect("room");
    }
    tenants
}

fn report(ledger: &Ledger) -> Report {
    Report::new(ledger, Grouping { tenants: &tenants(), long_prompt_tokens: 1_024 })
}

#[test]
fn every_request_is_in_one_class_and_of_one_tenant() {
    let told = report(&ledger());
    assert_eq!((told.offered, told.failed, told.unfinished, told.all.finished), (6, 1, 1, 3));
    assert_eq!(told.refused["queue full"], 1);
    let groups = |groups: &[pelton_sim::report::Group]| -> Vec<(String, usize, usize)> {
        groups.iter().map(|g| (g.name.clone(), g.finished, g.refused)).collect()
    };
    assert_eq!(groups(&told.classes), [("short".into(), 2, 0), ("long".into(), 1, 1)]);
    assert_eq!(groups(&told.tenants), [("many".into(), 2, 0), ("few".into(), 1, 1)]);
    assert_eq!(told.tenants[0].service_share, Some(0.75));
    // Two of the five that came to an end one way or another; the sixth is still under way.
    assert!((told.all.goodput_share - 0.4).abs() < 1e-12);
    assert!((told.all.goodput_per_s - 1.0).abs() < 1e-12);
    assert!((told.tenants[0].goodput_share - 1.0 / 3.0).abs() < 1e-12);
    assert!((told.all.output_tokens_per_s - 16.5).abs() < 1e-12);
    assert!((told.prompt_tokens_per_s - 1_015.0).abs() < 1e-12);
    assert!((told.all.cached_share - 0.5).abs() < 1e-12);
    let tpot = told.all.tpot_ms.expect("three");
    assert_eq!((tpot.p50, tpot.p99, tpot.mean), (40.0, 60.0, 40.0));
}

#[test]
fn one_tenant_and_one_class_are_not_told_apart() {
    let ledger = Ledger { n_offered: 1, records: vec![record(0, 10, 20)], ..ledger() };
    let told = report(&Ledger { refusals: Vec::new(), ..ledger });
    assert!(told.classes.is_empty() && told.tenants.is_empty());
}

#[test]
fn a_run_without_requests_is_told_without_numbers_that_are_none() {
    let told = report(&Ledger::default());
    assert_eq!(told.all.ttft_ms, None);
    let shares = [told.busy_share.expect("counted"), told.all.goodput_share, told.all.cached_share];
    assert_eq!(shares, [0.0; 3]);
    assert!(!told.render().contains("NaN"));
    assert!(told.render().contains("0 offered, 0 finished"));
}

#[test]
fn the_text_names_counts_groups_and_percentiles() {
    let text = report(&ledger()).render();
    for part in [
        "6 offered, 3 finished, 1 refused (queue full 1), 1 failed, 1 unfinished",
        "16.5 tokens/s generated",
        "50.0 % of those cached",
        "TTFT                    3        100",
        "TPOT                    3       40.0       40.0       60.0       60.0       60.0",
        "\nlong",
        "\nfew",
        "75.0 %",
    ] {
        assert!(text.contains(part), "`{part}` is missing in:\n{text}");
    }
    assert!(text.lines().all(|line| line == line.trim_end()), "spaces at the end:\n{text}");
}

#[test]
fn a_comparison_relates_every_variant_to_the_first() {
    let mut slow = ledger();
    for record in &mut slow.records {
        record.first_ns += 100_000_000;
        record.ended_ns += 100_000_000;
    }
    let mut comparison = Comparison::default();
    comparison.add("fast".to_owned(), report(&ledger()));
    comparison.add("slow".to_owned(), report(&slow));
    let text = comparison.render();
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines[0].starts_with("variant") && lines[0].contains("TTFT P50"), "{text}");
    let cells = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    assert_eq!(cells(lines[1])[..5], ["fast", "100", "100", "40.0", "60.0"]);
    assert_eq!(cells(lines[2])[..5], ["slow", "200", "200", "40.0", "60.0"]);
    assert_eq!(cells(lines[3])[..4], ["x2.00", "x2.00", "x1.00", "x1.00"]);
    for part in ["short, fast", "short, slow", "few, slow"] {
        assert!(text.contains(part), "`{part}` is missing in:\n{text}");
    }
    let json = serde_json::to_value(&comparison).expect("JSON");
    assert_eq!(json["variants"][1]["report"]["all"]["ttft_ms"]["p50"], 200.0);
}
