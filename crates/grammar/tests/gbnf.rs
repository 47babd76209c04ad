//! llama.cpp's notation: what grammars in it allow, and how faults are named.

use crate::common::Bench;
use pelton_base::Shape;

const JSON: &str = r#"
# A grammar for JSON values, written for this test.
root   ::= object
value  ::= object | array | string | number | ("true" | "false" | "null") ws

object ::=
  "{" ws (
            string ":" ws value
    ("," ws string ":" ws value)*
  )? "}" ws

array  ::= "[" ws ( value ("," ws value)* )? "]" ws
string ::= "\"" ( [^"\\\x7F\x00-\x1F] | "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}) )* "\"" ws
number ::= ("-"? ([0-9] | [1-9] [0-9]{0,15})) ("." [0-9]+)? ([eE] [-+]? [0-9]{1,15})? ws
ws ::= | " " | "\n" [ \t]{0,20}
"#;

fn cases() -> Vec<(&'static str, Vec<&'static str>, Vec<&'static str>)> {
    vec![
        (JSON, vec!["{}", "{\"a\": [1, -2.5e3, {\"b\":null}]}"], vec!["[1]", "{\"a\":}", "{,}"]),
        ("root ::= [a-z]+ \"abc\"", vec!["xabc", "abcabc"], vec!["abc", "x"]),
        ("root ::= \"a\" root \"b\" |", vec!["", "aabb"], vec!["aab"]),
        ("root ::= root \"a\" | \"b\"", vec!["b", "baa"], vec!["a", ""]),
        (
            "root ::= (\"- \" item){2,3}\nitem ::= [^\\n]{1,} \"\\n\"",
            vec!["- a\n- b\n"],
            vec!["- a\n"],
        ),
        ("root ::= x{,2} y?\nx ::= \"x\"\ny ::= .", vec!["", "xx", "xxz"], vec!["xxxx"]),
        ("root ::= [\\u3041-\\u309F]+ | \"\\x41\"", vec!["ひら", "A"], vec!["a"]),
        ("root ::= \"a\" |\n  \"b\" # comment\n", vec!["a", "b"], vec!["ab"]),
        ("root ::= never | \"a\"\nnever ::= \"x\" never", vec!["a"], vec!["x"]),
    ]
}

#[test]
fn grammars_allow_their_texts_and_no_others() {
    for kind in ["bytes", "vocab/gemma.gguf"] {
        let bench = Bench::new(kind);
        for (grammar, good, bad) in cases() {
            let constraint = bench.compile(&Shape::Gbnf(grammar.to_owned()));
            for text in good {
                assert!(bench.admits(&constraint, text), "{kind}: {grammar} allows {text:?}");
            }
            for text in bad {
                assert!(!bench.admits(&constraint, text), "{kind}: {grammar} refuses {text:?}");
            }
        }
    }
}

#[test]
fn faults_are_named_with_line_and_column() {
    let bench = Bench::new("bytes");
    let cases = [
        ("root ::= \"a\nb\"", "line 1, column 10: a text has no closing quote"),
        ("root ::= a\n", "line 1, column 10: no rule is called \"a\""),
        ("x ::= \"a\"", "no rule `root`"),
        ("root ::= \"a\" root", "line 1, column 1: no text of `root` ever ends"),
        ("root ::= \"a\"\nroot ::= \"b\"", "line 2, column 1: the rule \"root\" is defined twice"),
        ("root ::= (\"a\"", "expected `)`"),
        ("root ::= [z-a]", "reversed"),
        ("root ::= \"a\"{3,2}", "reversed"),
        ("root ::= \"\\q\"", "no escape"),
        ("root = \"a\"", "expected `::=`"),
        ("root ::= <|no such|>", "no token"),
        ("root ::= \"a\" )", "expected the end of the rule"),
    ];
    for (grammar, part) in cases {
        let error = bench.try_compile(&Shape::Gbnf(grammar.to_owned())).expect_err(grammar);
        assert!(error.why.contains(part), "{grammar}: {error}");
    }
    let deep = format!("root ::= {}\"a\"{}", "(".repeat(5000), ")".repeat(5000));
    assert!(bench.try_compile(&Shape::Gbnf(deep)).is_err());
}

#[test]
fn a_control_token_is_a_token_and_never_its_spelling() {
    let bench = Bench::new("bytes");
    let constraint = bench.compile(&Shape::Gbnf("root ::= <|im_start|> \"a\"".to_owned()));
    let mut state = constraint.begin();
    let start = bench.grammars.vocabulary().control("<|im_start|>").expect("a control token");
    assert_eq!(bench.choices(&mut *state), [start]);
    assert!(state.accept(start));
    assert_eq!(bench.choices(&mut *state).len(), 1);
    let constraint = bench.compile(&Shape::Gbnf("root ::= .*".to_owned()));
    assert!(!bench.choices(&mut *constraint.begin()).contains(&start));
}
