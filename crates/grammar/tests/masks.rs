//! The quick masks inside of strings are those of a walk over the whole vocabulary.

use crate::common::{fixture, json, tokenizer};
use pelton_base::{Namespace, RuleState, Shape, Tag, TokenId, TokenSet};
use pelton_grammar::{Grammars, Limits, Vocabulary};
use pelton_text::Tokenizer;

/// Walks through each form.
const WALKS: u64 = 6;
/// Tokens of a walk.
const TOKENS: usize = 60;

/// Xorshift (Marsaglia 2003).
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % n
    }
}

/// Forms whose strings treat characters alike, nearly alike, and not alike.
fn forms() -> Vec<Shape> {
    let schemas = [
        r#"{"type":"object"}"#,
        r#"{"type":"array","items":{"type":"string","maxLength":3}}"#,
        r#"{"type":"array","items":{"type":"string","minLength":2,"maxLength":9}}"#,
        r#"{"type":"string","maxLength":40}"#,
        r#"{"type":"string","minLength":30}"#,
        r#"{"type":"array","items":{"type":"string","pattern":"^[ -~]{0,7}$"}}"#,
        r#"{"type":"array","items":{"type":"string","pattern":"^[^é]*$"}}"#,
        r#"{"type":"array","items":{"type":"string","pattern":"^[^\u4e00-\u9fff]{3}$"}}"#,
        r#"{"type":"array","items":{"type":"string","pattern":"^(ab|.{4})$"}}"#,
        r#"{"type":"array","items":{"type":"string","pattern":"^[a-z ]{1,5}$"}}"#,
        r#"{"type":"object","patternProperties":{"^x-":{"type":"string"}},"properties":{"name":{}}}"#,
        r#"{"type":"array","items":{"enum":["abc","abd","x y"]}}"#,
        r#"{"type":"array","items":{"type":"string","format":"email"}}"#,
        r#"{"type":"array","items":{"type":["number","string","null"]}}"#,
    ];
    let mut forms: Vec<Shape> = schemas.into_iter().map(json).collect();
    forms.extend(
        ["[^\"]{0,12}", ".{3,20}", "[a-zA-Z ]*!", "(a|[^a]b)*", "[\\s\\S]{0,9}"]
            .map(|regex| Shape::Regex(regex.to_owned())),
    );
    // Pieces of one character each: the grammar counts and not the lexer.
    let pieces = "root ::= c c c c? \"!\"\nc ::= [^!]";
    forms.push(Shape::Gbnf(pieces.to_owned()));
    forms.push(Shape::Gbnf("root ::= \"(\" (root | [^()]{0,4}) \")\"".to_owned()));
    // A piece that ends only because the next one begins, and one that ends as soon as it can.
    let pieces = ["start: A B\nA: /\"+/\nB: /[ -~é]+/", "start: a a \"!\"\na[lazy]: /[^!]+/"];
    forms.extend(pieces.map(|pieces| Shape::Lark(pieces.to_owned())));
    forms.push(Shape::Any);
    let call = Tag { begin: "<f>".into(), content: Shape::any_object(), end: "</f>".into() };
    forms.push(Shape::Triggered {
        tags: vec![call],
        triggers: vec!["<f".to_owned()],
        at_least_one: false,
        stop_after_first: false,
    });
    let until = Shape::Until("</think>".to_owned());
    forms.push(Shape::Sequence(vec![until, json(schemas[1])]));
    forms
}

fn mask(state: &mut dyn RuleState, tokenizer: &Tokenizer) -> TokenSet {
    let mut set = TokenSet::default();
    set.clear(tokenizer.vocab_size());
    state.allow(&mut set);
    set
}

#[test]
fn a_mask_inside_of_a_string_is_that_of_a_walk_over_the_vocabulary() {
    let kinds = ["bytes", "bpe/tokenizer.json", "vocab/gemma.tokenizer.json"];
    for kind in kinds {
        let tokenizer = if kind == "bytes" { tokenizer(kind) } else { fixture(kind) };
        let limits = Limits::default();
        let quick = Vocabulary::new(&tokenizer, &limits).expect("a vocabulary");
        let walked = Vocabulary::walked(&tokenizer, &limits).expect("a vocabulary");
        let [quick, walked] = [quick, walked].map(|vocabulary| Grammars::new(vocabulary, limits));
        let all = || (0..tokenizer.vocab_size() as u32).map(TokenId);
        let end = all().find(|token| tokenizer.is_special(*token)).expect("a control token");
        // Of several tokens with the same bytes either kind may allow all or one.
        let mut known = std::collections::HashSet::new();
        let only: Vec<TokenId> =
            all().filter(|token| known.insert(tokenizer.token_bytes(*token))).collect();
        for form in forms() {
            let compile = |grammars: &Grammars| {
                let rule = grammars.compile(&form, &[end], Namespace::default());
                rule.unwrap_or_else(|error| panic!("{form:?}: {error}"))
            };
            let rules = [compile(&quick), compile(&walked)];
            for walk in 1..=WALKS {
                let mut random = Random(walk.wrapping_mul(0x9E37_79B9_7F4A_7C15));
                let mut states = [rules[0].begin(), rules[1].begin()];
                let mut text = Vec::new();
                for _ in 0..TOKENS {
                    let [quick, walked] =
                        [0, 1].map(|idx: usize| mask(&mut *states[idx], &tokenizer));
                    for token in &only {
                        let what =
                            || format!("{form:?} after {:?}", String::from_utf8_lossy(&text));
                        let [quick, walked] = [&quick, &walked].map(|set| set.contains(*token));
                        let bytes = tokenizer.token_bytes(*token);
                        assert_eq!(quick, walked, "{kind}, {}: {bytes:?}", what());
                    }
                    let choices: Vec<TokenId> =
                        only.iter().copied().filter(|token| quick.contains(*token)).collect();
                    let Some(n) = std::num::NonZeroUsize::new(choices.len()) else { break };
                    let token = choices[random.below(n.get())];
                    assert!(states.iter_mut().all(|state| state.accept(token)));
                    text.extend_from_slice(tokenizer.token_bytes(token).unwrap_or_default());
                    if token == end {
                        break;
                    }
                }
            }
        }
    }
}
