//! The memory of the parsers of all answers has one bound.

use crate::common::{fixture, json};
use pelton_base::{Constraint, Namespace, RuleState, TokenId, TokenSet};
use pelton_grammar::{Grammars, Limits, Vocabulary};

/// Takes the first letter that is allowed, `n` times, or until nothing is allowed.
fn write(state: &mut dyn RuleState, n: usize, n_tokens: usize) -> usize {
    let mut set = TokenSet::default();
    for written in 0..n {
        set.clear(n_tokens);
        state.allow(&mut set);
        let tokens = (0..n_tokens as u32).map(TokenId);
        let Some(token) = tokens.rev().find(|token| set.contains(*token)) else { return written };
        assert!(state.accept(token));
    }
    n
}

#[test]
fn an_answer_that_holds_too_much_ends_and_its_neighbours_go_on() {
    let tokenizer = fixture("bpe/tokenizer.json");
    let n_tokens = tokenizer.vocab_size();
    let large = json(r#"{"type":"string","minLength":3000,"maxLength":4000}"#);
    let small = json(r#"{"type":"array","items":{"type":"boolean"},"minItems":500}"#);
    let grammars = |all_states_bytes| {
        let limits = Limits { all_states_bytes, ..Limits::default() };
        let vocabulary = Vocabulary::new(&tokenizer, &limits).expect("a vocabulary");
        (vocabulary.clone(), Grammars::new(vocabulary, limits))
    };
    let compile = |grammars: &Grammars, shape| -> Constraint {
        grammars.compile(shape, &[TokenId(0)], Namespace::default()).expect("a rule")
    };
    // As much as the small answer and a part of the large one hold.
    let (vocabulary, free) = grammars(usize::MAX);
    let (mut little, mut much) = (compile(&free, &small).begin(), compile(&free, &large).begin());
    assert_eq!(write(&mut *little, 20, n_tokens), 20);
    let n_little = vocabulary.held_bytes();
    assert_eq!(write(&mut *much, 200, n_tokens), 200, "{:?}", much.stuck());
    let n_all = vocabulary.held_bytes();
    assert!(n_all > 4 * n_little, "{n_all} of which {n_little}");
    drop((little, much));
    assert_eq!(vocabulary.held_bytes(), 0, "given back");

    let (vocabulary, bound) = grammars(n_all / 2);
    let (small, large) = (compile(&bound, &small), compile(&bound, &large));
    let (mut little, mut much) = (small.begin(), large.begin());
    assert_eq!(write(&mut *little, 20, n_tokens), 20);
    let n_written = write(&mut *much, 200, n_tokens);
    assert!((1..200).contains(&n_written), "{n_written}");
    let why = much.stuck().expect("a reason");
    assert!(why.contains("MiB where the forms of all answers may hold"), "{why}");
    assert_eq!(write(&mut *little, 40, n_tokens), 40, "{:?}", little.stuck());
    drop(much);
    assert!(vocabulary.held_bytes() < n_all / 2);
    assert_eq!(write(&mut *large.begin(), n_written, n_tokens), n_written, "there is room again");
}
