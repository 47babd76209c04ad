//! Random schemas, and random walks through their masks.
//!
//! `WALKS=10000 cargo test -p pelton-grammar --test all walks` takes ten thousand of them; the number is
//! smaller by default. Every answer is checked by a validator that shares no code with the crate.

use crate::common::{Bench, KINDS, json};
use crate::naive::{Random, random_schema, validates};
use pelton_base::{Constraint, TokenId};
use pelton_grammar::Layout;
use serde_json::Value;

/// Tokens after which a walk hurries to its end.
const HURRY: usize = 60;
/// Most tokens of a walk.
const MOST: usize = 900;

fn n_walks() -> usize {
    std::env::var("WALKS").ok().and_then(|n| n.parse().ok()).unwrap_or(400)
}

/// One walk; the answer, or `None` where it did not end.
fn walk(bench: &Bench, constraint: &Constraint, random: &mut Random) -> Option<String> {
    let mut state = constraint.begin();
    let mut silent = constraint.begin();
    let mut bytes = Vec::new();
    for step in 0..MOST {
        let mut forced = Vec::new();
        state.forced(&mut forced);
        let choices = bench.choices(&mut *state);
        assert!(!choices.is_empty(), "stuck: {:?}", state.stuck());
        if let Some(first) = forced.first() {
            assert_eq!(choices, [*first], "a forced token is the only one allowed");
        }
        if step % 7 == 0 {
            // Neither copies nor questions change what is allowed.
            assert_eq!(bench.choices(&mut *silent.fork()), choices);
            assert_eq!(bench.choices(&mut *state.fork()), choices);
        }
        let token = pick(bench, &choices, step, random);
        if random.below(4) == 0 {
            let mut copy = state.fork();
            assert!(copy.accept(token), "a copy accepts what its mask allows");
        }
        assert!(state.accept(token) && silent.accept(token), "{token:?} was allowed");
        if token == bench.end {
            return Some(String::from_utf8(bytes).expect("answers are UTF-8"));
        }
        bytes.extend_from_slice(bench.tokenizer.token_bytes(token).unwrap_or_default());
    }
    None
}

fn pick(bench: &Bench, choices: &[TokenId], step: usize, random: &mut Random) -> TokenId {
    if choices.contains(&bench.end) && (step > HURRY || random.below(2) == 0) {
        return bench.end;
    }
    let any = choices[random.below(choices.len())];
    if step <= HURRY && random.below(3) > 0 {
        return any;
    }
    let bytes = |token: &TokenId| bench.tokenizer.token_bytes(*token).unwrap_or_default();
    let closing = |token: &&TokenId| bytes(token).first().is_some_and(|b| b"\"}]".contains(b));
    let shortest = |token: &&TokenId| bytes(token).len();
    let closing = choices.iter().filter(closing).min_by_key(shortest);
    *closing.or_else(|| choices.iter().min_by_key(shortest)).unwrap_or(&any)
}

#[test]
fn every_walk_through_a_random_schema_ends_in_a_valid_instance() {
    let mut random = Random::new(17);
    let benches: Vec<Bench> = KINDS.iter().map(|kind| Bench::new(kind)).collect();
    let (mut n_done, mut n_unfinished, mut n_refused, mut n_schemas) = (0, 0, 0, 0);
    while n_done < n_walks() {
        let schema = random_schema(&mut random, 3);
        n_schemas += 1;
        let bench = &benches[n_schemas % benches.len()];
        let Ok(constraint) = bench.try_compile(&json(&schema.to_string())) else {
            n_refused += 1;
            assert!(n_refused < 100 + n_schemas / 2, "most random schemas are refused");
            continue;
        };
        for _ in 0..8 {
            let Some(text) = walk(bench, &constraint, &mut random) else {
                n_unfinished += 1;
                continue;
            };
            let value: Value = serde_json::from_str(&text).unwrap_or_else(|error| {
                panic!("{error} in {text:?} of {schema}");
            });
            assert!(validates(&schema, &value), "{text} does not fit {schema}");
            n_done += 1;
        }
    }
    println!(
        "{n_done} walks, {n_unfinished} unfinished, {n_refused} of {n_schemas} schemas refused"
    );
    assert!(n_unfinished * 20 <= n_done, "{n_unfinished} walks did not end");
}

#[test]
fn what_was_written_once_can_be_written_again() {
    let mut random = Random::new(99);
    let mut bench = Bench::new("bytes");
    let mut n_done = 0;
    while n_done < n_walks() / 4 {
        let schema = random_schema(&mut random, 2);
        bench.layout = Layout::Free;
        let Ok(free) = bench.try_compile(&json(&schema.to_string())) else { continue };
        let Some(text) = walk(&bench, &free, &mut random) else { continue };
        assert!(bench.writes(&free, &text), "{text} of {schema}");
        let value: Value = serde_json::from_str(&text).expect("JSON");
        // A number may have another spelling afterwards.
        if !text.contains(|c: char| c.is_ascii_digit()) {
            bench.layout = Layout::Compact;
            let compact = bench.compile(&json(&schema.to_string()));
            assert!(bench.writes(&compact, &value.to_string()), "{value} of {schema}");
        }
        n_done += 1;
    }
}
