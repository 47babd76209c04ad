//! Forms that no answer can fulfil, or that cannot be enforced: refused, with the path.

use crate::common::{Bench, json};
use pelton_base::Shape;

#[test]
fn an_object_of_more_optional_properties_than_the_parser_holds_is_refused_when_it_is_compiled() {
    let bench = Bench::new("bytes");
    let schema = |n: usize| {
        let properties = (0..n).map(|i| (format!("p{i}"), serde_json::json!({"type": "null"})));
        let properties: serde_json::Map<_, _> = properties.collect();
        json(&serde_json::json!({"type": "object", "properties": properties}).to_string())
    };
    let run = || {
        let (mut enforced, mut refused) = (300, 1000);
        let error = bench.try_compile(&schema(refused)).expect_err("too many alternatives");
        assert!(error.why.contains("too large to enforce"), "{error}");
        bench.try_compile(&schema(enforced)).expect("enforced");
        while refused - enforced > 1 {
            let n = usize::midpoint(enforced, refused);
            match bench.try_compile(&schema(n)) {
                Ok(_) => enforced = n,
                Err(_) => refused = n,
            }
        }
        // The largest object that compiles can be written, from its first property to its last.
        let constraint = bench.compile(&schema(enforced));
        for keys in [vec![0, 1, 2], vec![0, enforced / 2, enforced - 1], vec![enforced - 1]] {
            let members: Vec<String> = keys.iter().map(|key| format!("\"p{key}\":null")).collect();
            let text = format!("{{{}}}", members.join(","));
            assert!(bench.admits(&constraint, &text), "{enforced} properties: {text}");
        }
    };
    // Each optional property is a level of the compiler, which runs on a deep stack.
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().stack_size(256 << 20).spawn_scoped(scope, run);
        thread.expect("a thread").join().expect("no panic");
    });
}

#[test]
fn schemas_that_cannot_be_enforced_are_refused_with_the_path_of_the_keyword() {
    let bench = Bench::new("bytes");
    let cases = [
        (r##"{"$ref":"#"}"##, "schema", "refers to itself"),
        (r#"false"#, "schema", "`false`"),
        (r#"{"enum":[]}"#, "schema.enum", "empty"),
        (r#"{"type":"string","enum":[1,2]}"#, "schema", "enum"),
        (r#"{"type":"integer","minimum":3,"maximum":2}"#, "schema", "no number"),
        (r#"{"type":"integer","exclusiveMinimum":1,"exclusiveMaximum":2}"#, "schema", "no number"),
        (r#"{"type":"string","pattern":"^a$","minLength":2}"#, "schema", "no string"),
        (r#"{"type":"array","minItems":3,"maxItems":2}"#, "schema", "minItems"),
        (r#"{"allOf":[{"type":"string"},{"type":"null"}]}"#, "schema.allOf[1]", "types"),
        (
            r##"{"type":"object","properties":{"next":{"$ref":"#"}},"required":["next"]}"##,
            "schema",
            "contains itself",
        ),
        (
            r#"{"type":"object","properties":{"a":{"type":"object","properties":{"b":{"enum":[]}}}}}"#,
            "schema.properties.a.properties.b.enum",
            "empty",
        ),
        (
            r#"{"type":"object","properties":{"a":{"$ref":"https://example.com/s.json"}}}"#,
            "schema.properties.a.$ref",
            "none is fetched",
        ),
        (r##"{"$ref":"#/$defs/x"}"##, "schema.$ref", "leads to nothing"),
        (r#"{"items":{"uniqueItems":true}}"#, "schema.items.uniqueItems", "compare"),
        (r#"{"contains":{"type":"null"}}"#, "schema.contains", "count"),
        (r#"{"type":"string","format":"iban"}"#, "schema.format", "not supported"),
        (r#"{"type":"string","pattern":"(?=a)b"}"#, "schema.pattern", "look-ahead"),
        (r#"{"type":"text"}"#, "schema.type", "no type"),
        (r#"{"minLength":-1}"#, "schema.minLength", "not negative"),
        (r#"{"x-guidance":{"lenient":true}}"#, "schema.x-guidance", "not honoured"),
        (r#"{"properties":[]}"#, "schema.properties", "expected an object"),
        (r#"[1"#, "schema", "not JSON"),
        (
            r#"{"oneOf":[{"required":["a"],"patternProperties":{"^x":{}}},{"required":["b"],"patternProperties":{"^y":{}}}],"type":"object"}"#,
            "schema.oneOf",
            "may both hold",
        ),
        (
            r#"{"type":"object","additionalProperties":{},"minProperties":3}"#,
            "schema.minProperties",
            "repeat a name",
        ),
    ];
    for (schema, path, part) in cases {
        let error = bench.try_compile(&json(schema)).expect_err(schema);
        assert_eq!(error.path, path, "{schema}: {error}");
        assert!(error.why.contains(part), "{schema}: {error}");
    }
}

#[test]
fn schemas_that_look_alike_and_can_be_fulfilled_are_enforced() {
    let bench = Bench::new("bytes");
    let cases = [
        (r##"{"type":"object","properties":{"next":{"$ref":"#"}}}"##, r#"{"next":{}}"#),
        (r#"{"anyOf":[false,{"type":"null"}]}"#, "null"),
        (r#"{"type":"object","properties":{"a":false},"additionalProperties":false}"#, "{}"),
        (
            r#"{"oneOf":[{"type":"array","items":{"type":"string"}},{"type":"array","items":{"type":"null"}}]}"#,
            "[null]",
        ),
        (r#"{"oneOf":[{"required":["a"]},{"required":["b"]}],"type":"object"}"#, r#"{"a":1}"#),
        (r#"{"not":{"type":"string"}}"#, "[1]"),
        (
            r#"{"type":"object","dependencies":{"a":["b"]},"properties":{"a":{},"b":{}}}"#,
            r#"{"b":1}"#,
        ),
        (r##"{"allOf":[{"$ref":"#/$defs/x"}],"$defs":{"x":{"const":5}}}"##, "5"),
        (r#"{"type":"string","format":"date"}"#, r#""2024-02-29""#),
    ];
    for (schema, instance) in cases {
        let constraint = bench.compile(&json(schema));
        assert!(bench.writes(&constraint, instance), "{schema} allows {instance}");
    }
    let either = bench.compile(&json(cases[4].0));
    assert!(!bench.writes(&either, r#"{"a":1,"b":2}"#), "exactly one of them");
    // A second spelling of a key would slip past the schema of the first.
    let keys = bench.compile(&json(r#"{"type":"object","properties":{"a":{"type":"null"}}}"#));
    assert!(!bench.writes(&keys, r#"{"\u0061":1}"#));
}

#[test]
fn hostile_forms_end_with_an_error_and_not_with_the_process() {
    let bench = Bench::new("bytes");
    let values: Vec<String> = (0..1_000_000).map(|n| format!("\"value {n}\"")).collect();
    let huge = format!("{{\"enum\":[{}]}}", values.join(","));
    assert!(huge.len() > 10_000_000);
    let error = bench.try_compile(&json(&huge)).expect_err("ten megabytes");
    assert!(error.why.contains("bytes are more than"), "{error}");
    let many = format!("{{\"enum\":[{}]}}", values[..20_000].join(","));
    let error = bench.try_compile(&json(&many)).expect_err("many values");
    assert_eq!(error.path, "schema.enum");

    let deep = format!("{}{{}}{}", "{\"items\":".repeat(5_000), "}".repeat(5_000));
    assert!(bench.try_compile(&json(&deep)).is_err());
    let mut chain = String::from("{\"$ref\":\"#/$defs/0\",\"$defs\":{");
    for n in 0..5_000 {
        chain.push_str(&format!("\"{n}\":{{\"$ref\":\"#/$defs/{}\"}},", n + 1));
    }
    chain.push_str("\"5000\":{}}}");
    assert!(bench.try_compile(&json(&chain)).expect_err("a chain").why.contains("nested deeper"));

    let started = std::time::Instant::now();
    for regex in ["(a{1,1000}){1,1000}", "(?:a|a)*(?:a|b)*c{1000}", "((((a*)*)*)*)*b", "(.*a){60}"]
    {
        // Compiled or refused, but never for long.
        if let Ok(constraint) = bench.try_compile(&Shape::Regex(regex.to_owned())) {
            let mut state = constraint.begin();
            for _ in 0..50 {
                let Some(token) = bench.choices(&mut *state).first().copied() else { break };
                state.accept(token);
            }
        }
    }
    assert!(started.elapsed().as_secs() < 60, "{:?}", started.elapsed());
    for regex in ["[^\\s\\S]", "a^b", "(", ""] {
        let result = bench.try_compile(&Shape::Regex(regex.to_owned()));
        assert_eq!(result.is_ok(), regex.is_empty(), "{regex}");
    }
    assert!(bench.try_compile(&Shape::OneOf(Vec::new())).is_err());
    assert!(bench.try_compile(&Shape::Lark("start: nothing".to_owned())).is_err());
}

#[test]
fn a_choice_of_two_thousand_texts_is_quick() {
    let bench = Bench::new("bpe/tokenizer.json");
    let texts: Vec<String> = (0..2_000).map(|n| format!("category {} of {n}", n % 13)).collect();
    let shape = Shape::OneOf(texts.iter().map(Shape::text).collect());
    let constraint = bench.compile(&shape);
    for text in texts.iter().step_by(191) {
        assert!(bench.admits(&constraint, text), "{text}");
    }
    assert!(!bench.admits(&constraint, "category 1 of 0"));
}

#[test]
fn equal_forms_of_one_namespace_share_a_grammar_and_other_namespaces_do_not() {
    use pelton_base::Namespace;
    let bench = Bench::new("bytes");
    let compile = |shape: &Shape, namespace| {
        bench.grammars.compile(shape, &[bench.end], Namespace(namespace)).expect("a grammar")
    };
    let shape = json("{\"type\":\"null\"}");
    assert_eq!(compile(&shape, 1), compile(&shape, 1));
    assert_ne!(compile(&shape, 1), compile(&shape, 2));
    let stats = bench.grammars.cache_stats();
    assert_eq!((stats.hits, stats.misses, stats.entries), (2, 2, 2));
    assert!(stats.bytes > 0);
    for n in 0..1_000 {
        compile(&Shape::text(format!("text {n}")), 1);
    }
    assert!(bench.grammars.cache_stats().entries <= 256);
}

#[test]
fn a_sentencepiece_answer_continues_its_prompt_without_a_space() {
    for kind in
        ["vocab/llama_legacy.tokenizer.json", "vocab/gemma.tokenizer.json", "vocab/gemma.gguf"]
    {
        let bench = Bench::new(kind);
        for text in ["{\"a\"", "word", " word", "1 2"] {
            let tokens = bench.grammars.vocabulary().tokens(text);
            let bytes: Vec<u8> = tokens
                .iter()
                .flat_map(|token| bench.tokenizer.token_bytes(*token).unwrap_or_default().to_vec())
                .collect();
            assert_eq!(String::from_utf8_lossy(&bytes), text, "{kind}");
            let constraint = bench.compile(&Shape::text(text));
            assert!(bench.admits(&constraint, text), "{kind}: {text:?}");
            assert!(!bench.admits(&constraint, &format!(" {text}")), "{kind}: {text:?}");
        }
    }
}
