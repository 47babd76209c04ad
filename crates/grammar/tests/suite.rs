//! Collections of schemas with instances, where they lie beside.
//!
//! `SCHEMA_SUITE=FOLDER` is a folder of the official test suite of JSON Schema, or the folder
//! `maskbench/data` of JSONSchemaBench; `EVERY=N` takes every N-th file.
//!
//! A schema is refused by name, or it is enforced: then no instance that the collection calls invalid
//! passes the mask, and each valid one does, unless the way in which it is written (order of keys,
//! exponents, spelling) is not the one that grammars have.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::common::{Bench, json};
use serde_json::Value;

#[derive(Default)]
struct Count {
    enforced: usize,
    refused: usize,
    valid: usize,
    lost: usize,
    invalid: usize,
    unsound: usize,
    slowest: Duration,
    compiled: Vec<Duration>,
}

#[test]
#[ignore = "needs SCHEMA_SUITE=FOLDER"]
fn instances_of_a_collection_pass_exactly_where_they_are_valid() {
    let Ok(folder) = std::env::var("SCHEMA_SUITE") else { return };
    let every = std::env::var("EVERY").ok().and_then(|n| n.parse().ok()).unwrap_or(1);
    let mut bench = Bench::new("bytes");
    bench.layout = pelton_grammar::Layout::Compact;
    let entries = std::fs::read_dir(&folder).expect("a folder");
    let mut files: Vec<_> = entries.map(|entry| entry.expect("an entry").path()).collect();
    files.sort();
    let mut counts: BTreeMap<String, Count> = BTreeMap::new();
    for path in
        files.iter().filter(|path| path.extension().is_some_and(|e| e == "json")).step_by(every)
    {
        let text = std::fs::read_to_string(path).expect("a file");
        let name = path.file_stem().expect("a name").to_string_lossy().into_owned();
        let whole: Value = serde_json::from_str(&text).expect("JSON");
        let split = name.split_once("---").or_else(|| name.rsplit_once("_"));
        let split =
            if whole.is_array() { &name } else { split.map_or(name.as_str(), |(split, _)| split) };
        let count = counts.entry(split.to_owned()).or_default();
        let cases = whole.as_array().cloned().unwrap_or_else(|| vec![whole]);
        for case in &cases {
            one(&bench, &name, case, count);
        }
    }
    let mut n_unsound = 0;
    for (split, count) in &mut counts {
        count.compiled.sort();
        let p95 = count.compiled.get(count.compiled.len() * 95 / 100).copied().unwrap_or_default();
        println!(
            "{split}: {} enforced, {} refused, {} of {} valid lost, {} of {} invalid passed, compile p95 {p95:?} max {:?}",
            count.enforced,
            count.refused,
            count.lost,
            count.valid,
            count.unsound,
            count.invalid,
            count.slowest,
        );
        n_unsound += count.unsound;
    }
    assert_eq!(n_unsound, 0);
}

fn one(bench: &Bench, name: &str, case: &Value, count: &mut Count) {
    let schema = case["schema"].to_string();
    let started = Instant::now();
    let compiled = bench.try_compile(&json(&schema));
    let took = started.elapsed();
    if took > Duration::from_secs(1) {
        println!("slow {name}: {took:?}");
    }
    count.slowest = count.slowest.max(took);
    count.compiled.push(took);
    let constraint = match compiled {
        Ok(constraint) => constraint,
        Err(error) => {
            count.refused += 1;
            println!("refused {name} {}: {error}", case["description"]);
            return;
        }
    };
    count.enforced += 1;
    for test in case["tests"].as_array().into_iter().flatten() {
        let data = test["data"].to_string();
        let valid = test["valid"].as_bool().expect("valid");
        let started = Instant::now();
        let passes = bench.writes(&constraint, &data);
        if started.elapsed() > Duration::from_secs(1) {
            println!("slow {name}, {} bytes: {:?}", data.len(), started.elapsed());
        }
        *(if valid { &mut count.valid } else { &mut count.invalid }) += 1;
        if passes == valid {
            continue;
        }
        *(if valid { &mut count.lost } else { &mut count.unsound }) += 1;
        let word = if valid { "lost" } else { "unsound" };
        let (mut data, mut schema) = (data, schema.clone());
        data.truncate(data.floor_char_boundary(600));
        schema.truncate(schema.floor_char_boundary(1500));
        println!("{word} {name} {}: {data} with {schema}", test["description"]);
    }
}
