//! Every form, over every kind of vocabulary.

use crate::common::{Bench, KINDS, json};
use pelton_base::{Shape, Tag};

/// Forms with texts that they allow and texts that they do not.
fn cases() -> Vec<(Shape, Vec<&'static str>, Vec<&'static str>)> {
    let text = |text: &str| Shape::text(text);
    let call = |name: &str, schema: &str| Tag {
        begin: format!("<call={name}>"),
        content: json(schema),
        end: "</call>".to_owned(),
    };
    vec![
        (text("yes no"), vec!["yes no"], vec!["yes", "no", ""]),
        (Shape::OneOf(vec![text("red"), text("green")]), vec!["red", "green"], vec!["blue", "re"]),
        (Shape::Regex("[0-9]{3}-[a-z]+".into()), vec!["123-ab"], vec!["12-ab", "123-"]),
        (
            json(
                "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"integer\"}},\"required\":[\"a\"],\"additionalProperties\":false}",
            ),
            vec!["{\"a\": 17}", "{\"a\":-3}"],
            vec!["{}", "{\"b\":1}", "{\"a\":1.5}"],
        ),
        (
            Shape::Sequence(vec![text("<t>"), json("{\"type\":\"boolean\"}"), text("</t>")]),
            vec!["<t>true</t>"],
            vec!["<t>1</t>", "true"],
        ),
        (
            Shape::Sequence(vec![Shape::Until("</think>".into()), json("{\"type\":\"null\"}")]),
            vec!["hm < hm </think>null", "</think>null"],
            vec!["null", "</think>", "</think></think>null"],
        ),
        (
            Shape::Lark("start: \"a\" start \"b\" | \"\"\n".into()),
            vec!["", "ab", "aabb"],
            vec!["aab", "ba"],
        ),
        (
            Shape::Repeat {
                item: Box::new(Shape::Regex("[ab]".into())),
                separator: ";".into(),
                least: 1,
                most: Some(3),
            },
            vec!["a", "a;b", "b;b;b"],
            vec!["", "a;", "a;a;a;a"],
        ),
        (
            Shape::Triggered {
                tags: vec![call("x", "{\"type\":\"boolean\"}"), call("y", "{\"type\":\"null\"}")],
                triggers: vec!["<call=".into()],
                at_least_one: false,
                stop_after_first: false,
            },
            vec!["hello", "so <call=x>true</call> and <call=y>null</call>.", ""],
            vec!["<call=z>true</call>", "<call=x>null</call>", "<call="],
        ),
    ]
}

#[test]
fn every_form_allows_its_texts_and_no_others_in_every_vocabulary() {
    for kind in KINDS {
        let bench = Bench::new(kind);
        for (shape, good, bad) in cases() {
            let constraint = bench.compile(&shape);
            for text in good {
                assert!(bench.admits(&constraint, text), "{kind}: {shape:?} allows {text:?}");
            }
            for text in bad {
                assert!(!bench.admits(&constraint, text), "{kind}: {shape:?} refuses {text:?}");
            }
        }
    }
}

#[test]
fn tokens_that_are_forced_are_what_the_mask_allows_one_by_one() {
    let mut bench = Bench::new("bpe/tokenizer.json");
    bench.layout = pelton_grammar::Layout::Spaced;
    let schema = "{\"type\":\"object\",\"properties\":{\"name\":{\"const\":\"get_weather\"},\"n\":{\"type\":\"integer\"}},\"required\":[\"name\",\"n\"],\"additionalProperties\":false}";
    let constraint = bench.compile(&json(schema));
    let mut state = constraint.begin();
    let mut forced = Vec::new();
    state.forced(&mut forced);
    assert!(forced.len() > 3, "{forced:?}");
    let mut untold = constraint.begin();
    for token in &forced {
        assert_eq!(bench.choices(&mut *state), [*token]);
        assert!(state.accept(*token));
        assert!(untold.accept(*token));
    }
    assert_eq!(bench.choices(&mut *state), bench.choices(&mut *untold));
    assert!(bench.choices(&mut *state).len() > 1);
}
