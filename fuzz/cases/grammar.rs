//! Any text is a schema, a grammar or an expression, or an error that says why; never a panic. The
//! masks of a short walk allow something at each place, or say why not.

use std::sync::{Arc, OnceLock};

use pelton_base::{Namespace, Shape, TokenId, TokenSet};
use pelton_grammar::{Grammars, Limits, Vocabulary};
use pelton_text::Tokenizer;

/// Tokens of a walk.
const MOST_TOKENS: usize = 40;

/// One token per byte, and three control tokens.
fn grammars() -> &'static Grammars {
    static GRAMMARS: OnceLock<Grammars> = OnceLock::new();
    GRAMMARS.get_or_init(|| {
        let json = pelton_testkit::tokenizer_json().to_string();
        let tokenizer = Arc::new(Tokenizer::from_bytes(json.as_bytes()).expect("a tokenizer"));
        let limits = Limits { cached: 0, ..Limits::default() };
        let vocabulary = Vocabulary::new(&tokenizer, &limits).expect("a vocabulary");
        Grammars::new(vocabulary, limits)
    })
}

pub(crate) fn run(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let json = Shape::Json { schema: text.to_owned(), path: "schema".to_owned() };
    let text = || text.to_owned();
    for shape in [json, Shape::Gbnf(text()), Shape::Lark(text()), Shape::Regex(text())] {
        let grammars = grammars();
        let Ok(constraint) = grammars.compile(&shape, &[TokenId(0)], Namespace::default()) else {
            continue;
        };
        let n_tokens = grammars.vocabulary().n_tokens();
        let mut state = constraint.begin();
        for step in 0..MOST_TOKENS {
            let mut set = TokenSet::default();
            set.clear(n_tokens);
            state.allow(&mut set);
            let allowed: Vec<u32> =
                (0..n_tokens as u32).filter(|token| set.contains(TokenId(*token))).collect();
            let Some(token) = allowed.get(step * 7 % allowed.len().max(1)) else {
                assert!(state.stuck().is_some(), "nothing is allowed, without a reason");
                break;
            };
            assert!(state.accept(TokenId(*token)), "token {token} was allowed");
            if *token == 0 {
                break;
            }
        }
    }
}
