use std::cell::Cell;
use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::rc::Rc;

use pelton_kernels::{Cpu, Kernels, WeightLayout};
use serde_json::Value;

use super::*;
use report::tests::CEILINGS;

/// Measures everything at the quick sizes.
fn measured() -> Value {
    let cpu = Cpu::with(Kernels::best(), 2);
    let bench =
        run::Bench { cpu: &cpu, seconds: 0.001, beyond_caches_bytes: 0, is_stopped: &|| false };
    let mut report = Report::new(Machine::this(&cpu), vec![CEILINGS]);
    for named in all_blocks(&Sizes::quick()) {
        bench.measure(&named, &mut report);
    }
    serde_json::to_value(&report).expect("serializes")
}

/// The values of one field over all rows.
fn values(report: &Value, field: &str) -> BTreeSet<String> {
    let rows = report["rows"].as_array().expect("rows");
    rows.iter().map(|row| row[field].as_str().expect("a text").to_owned()).collect()
}

#[test]
fn every_operation_and_layout_has_rows_of_finite_positive_numbers() {
    let report = measured();
    let expected: BTreeSet<String> = OPERATIONS.iter().map(|op| op.name.to_owned()).collect();
    assert_eq!(values(&report, "operation"), expected);
    let rows = report["rows"].as_array().expect("rows");
    let products: Vec<&Value> = rows.iter().filter(|row| row["operation"] == "matmul").collect();
    for layout in WeightLayout::ALL {
        for m in Sizes::quick().matmul_rows {
            let is_it = |row: &&&Value| row["variant"] == layout.name() && row["rows"] == *m;
            assert_eq!(products.iter().filter(is_it).count(), 1, "{} at {m} rows", layout.name());
        }
    }
    for row in rows {
        let is_positive = |field: &str| row[field].as_f64().is_some_and(|x| x > 0.0);
        assert!(is_positive("time_s") && is_positive("rounds"), "{row}");
        assert!(row["spread_percent"].as_f64().is_some_and(|x| x >= 0.0), "{row}");
        // The barrier moves nothing and computes nothing; storing keys and values only moves.
        let has_bytes = row["operation"] != "team";
        let has_ops = has_bytes && row["operation"] != "kv_store";
        for (field, is_told) in [
            ("bytes_per_s", has_bytes),
            ("memory_percent", has_bytes),
            ("percent", has_bytes),
            ("ops_per_s", has_ops),
            ("arithmetic_percent", has_ops),
        ] {
            assert_eq!(is_positive(field), is_told, "{field} in {row}");
            assert_eq!(row[field].is_null(), !is_told, "{field} in {row}");
        }
    }
    let n_blocks = all_blocks(&Sizes::quick()).len();
    let readings = report["readings"].as_array().expect("readings");
    assert_eq!(readings.len(), n_blocks + 1, "before the first block and after each");
}

#[test]
fn a_stop_keeps_the_calls_that_were_complete() {
    let is_stopped = Rc::new(Cell::new(false));
    let press = Rc::clone(&is_stopped);
    let block = Block {
        variant: String::new(),
        shape: String::new(),
        multiplier: block::Multiplier::F32,
        calls: Box::new(move |_, visit| {
            for n_rows in 1..=3 {
                // Ctrl-C comes between the first call and the second.
                press.set(n_rows == 2);
                let cost = block::Cost { n_rows, n_bytes: 8, n_ops: 8 };
                visit(block::Call { cost, run: &mut || {} })?;
            }
            ControlFlow::Continue(())
        }),
    };
    let cpu = Cpu::with(Kernels::best(), 1);
    let is_stopped = || is_stopped.get();
    let bench =
        run::Bench { cpu: &cpu, seconds: 0.001, beyond_caches_bytes: 0, is_stopped: &is_stopped };
    let one = Ceilings { n_threads: 1, ..CEILINGS };
    let mut report = Report::new(Machine::this(&cpu), vec![one]);
    bench.measure(&Named { operation: "nothing", block }, &mut report);
    let report = serde_json::to_value(&report).expect("serializes");
    let rows: Vec<&Value> = report["rows"].as_array().expect("rows").iter().collect();
    assert_eq!(rows.iter().map(|row| &row["rows"]).collect::<Vec<_>>(), [1]);
}

#[test]
fn a_filter_keeps_the_lines_that_hold_all_its_words() {
    let labels = |filter: &str| -> Vec<String> {
        let blocks = filtered(all_blocks(&Sizes::full()), filter).expect("something is left");
        blocks.iter().map(Named::label).collect()
    };
    assert_eq!(labels(" MATMUL q8 8192,").len(), 1);
    assert!(labels("decode").iter().all(|label| label.starts_with("attention decode")));
    assert_eq!(labels("").len(), all_blocks(&Sizes::full()).len());
}

#[test]
fn a_filter_that_leaves_nothing_tells_what_there_is() {
    let error = filtered(all_blocks(&Sizes::full()), "matmul q99").err().expect("nothing left");
    let line = error.to_string();
    assert!(line.contains("`--filter matmul q99`"), "{line}");
    for operation in OPERATIONS {
        assert!(line.contains(operation.name), "{} is missing in {line}", operation.name);
    }
    assert_eq!(line.matches("matmul bf16").count(), 1, "{line}");
}

#[test]
fn attention_is_measured_with_the_sizes_of_choice() {
    let chosen =
        AttentionSizes { heads: Some([6, 2, 24]), contexts: vec![50, 10], block_tokens: Some(48) };
    let sizes = Sizes::quick().with(&chosen).expect("sizes that there are");
    let labels = |filter: &str| -> Vec<String> {
        let blocks = filtered(all_blocks(&sizes), filter).expect("something is left");
        blocks.iter().map(Named::label).collect()
    };
    assert_eq!(
        labels("attention bf16"),
        [
            "attention decode bf16 6/2 x 24, 50 tokens, blocks of 48",
            "attention decode bf16 6/2 x 24, 10 tokens, blocks of 48",
            "attention prefill bf16 6/2 x 24, 20 tokens, blocks of 48",
            "attention prefill bf16 6/2 x 24, 50 tokens, blocks of 48",
        ]
    );
    // No prompt ends behind fewer tokens than it has.
    let short = AttentionSizes { contexts: vec![10], ..chosen.clone() };
    let sizes = Sizes::quick().with(&short).expect("sizes that there are");
    let blocks = filtered(all_blocks(&sizes), "attention bf16").expect("something is left");
    assert_eq!(blocks.len(), 2);
    let cpu = Cpu::with(Kernels::best(), 1);
    let bench =
        run::Bench { cpu: &cpu, seconds: 0.001, beyond_caches_bytes: 0, is_stopped: &|| false };
    let one = Ceilings { n_threads: 1, ..CEILINGS };
    let mut report = Report::new(Machine::this(&cpu), vec![one]);
    for operation in ["attention", "kv_store", "rope"] {
        for block in filtered(all_blocks(&sizes), operation).expect("something is left") {
            bench.measure(&block, &mut report);
        }
    }
}

#[test]
fn sizes_of_attention_that_there_are_not_are_refused() {
    let all = AttentionSizes::default();
    let heads = |heads| AttentionSizes { heads: Some(heads), ..all.clone() };
    let context = |n| AttentionSizes { contexts: vec![128, n], ..all.clone() };
    let block = |n| AttentionSizes { block_tokens: Some(n), ..all.clone() };
    for (chosen, part) in [
        (heads([32, 5, 64]), "32/5x64"),
        (heads([0, 1, 64]), "0/1x64"),
        (heads([2, 0, 64]), "2/0x64"),
        (heads([2, 1, 63]), "2/1x63"),
        (heads([2048, 8, 64]), "up to 1024"),
        (heads([2, 1, 4096]), "at most 1024"),
        (context(0), "from 1 to"),
        (context(usize::MAX), "from 1 to"),
        (block(0), "from 1 to 1024"),
        (block(4096), "from 1 to 1024"),
    ] {
        let error = Sizes::full().with(&chosen).err().map(|error| error.to_string());
        assert!(error.as_ref().is_some_and(|line| line.contains(part)), "{chosen:?}: {error:?}");
    }
    // 13 terabytes.
    let large = AttentionSizes { heads: Some([1024, 1024, 1024]), ..context(1 << 20) };
    let error = Sizes::full().with(&large).err().map(|error| error.to_string());
    assert!(error.as_ref().is_some_and(|line| line.contains("of memory")), "{error:?}");
}
