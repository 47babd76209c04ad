//! Chat templates against Hugging Face `apply_chat_template`, and against hostile authors.

use std::path::Path;

use pelton_text::{ChatTemplate, Message, RenderOptions, TemplateError, TemplateTokens};
use serde_json::{Value, json};

fn fixture() -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/templates.json");
    serde_json::from_slice(&std::fs::read(path).expect("the fixture")).expect("JSON")
}

fn template(text: &str) -> Result<ChatTemplate, TemplateError> {
    let tokens = [("bos_token", "<|endoftext|>"), ("eos_token", "<|im_end|>")];
    let tokens = tokens.map(|(name, text)| (name.to_owned(), text.to_owned())).to_vec();
    ChatTemplate::from_text(text, "model/chat_template.jinja", TemplateTokens { tokens })
}

fn render(text: &str) -> Result<String, TemplateError> {
    template(text)?.render(&[Message::new("user", "Hi")], &RenderOptions::default())
}

#[test]
fn templates_render_as_in_hugging_face() {
    let fixture = fixture();
    let messages: Vec<Message> =
        serde_json::from_value(fixture["messages"].clone()).expect("messages");
    let mut wrong = Vec::new();
    for case in fixture["rendered"].as_array().expect("cases") {
        let options = RenderOptions {
            add_generation_prompt: case["add_generation_prompt"].as_bool().expect("a flag"),
            tools: Some(fixture["tools"].clone()),
            ..RenderOptions::default()
        };
        let template = template(case["template"].as_str().expect("a template"));
        let got = template.and_then(|template| template.render(&messages, &options));
        let expected = case["text"].as_str().expect("text");
        if got.as_deref() != Ok(expected) {
            wrong.push(format!("{}:\n  got      {got:?}\n  expected {expected:?}", case["name"]));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_feature_of_templates_renders_as_in_hugging_face() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/template_features.json");
    let fixture: Value =
        serde_json::from_slice(&std::fs::read(path).expect("the fixture")).expect("JSON");
    let tokens = fixture["tokens"].as_object().expect("tokens").iter();
    let tokens: Vec<_> =
        tokens.map(|(k, v)| (k.clone(), v.as_str().expect("a text").to_owned())).collect();
    let mut wrong = Vec::new();
    for case in fixture["rendered"].as_array().expect("cases") {
        let shared = |field: &str, name: &str| match &case[field] {
            Value::String(_) => fixture[name].clone(),
            own => own.clone(),
        };
        let messages: Vec<Message> =
            serde_json::from_value(shared("messages", "chat")).expect("messages");
        let options = RenderOptions {
            add_generation_prompt: case["prompt"].as_bool().expect("a flag"),
            tools: Some(shared("tools", "tools")).filter(|tools| !tools.is_null()),
            extra: case["arguments"].as_object().expect("arguments").clone(),
            ..RenderOptions::default()
        };
        let text = case["template"].as_str().expect("a template");
        let tokens = TemplateTokens { tokens: tokens.clone() };
        let got = ChatTemplate::from_text(text, "fixture", tokens)
            .and_then(|template| template.render(&messages, &options));
        // Where Hugging Face refuses, so must we; the words differ.
        if got.as_deref().ok() != case["text"].as_str() {
            let (name, expected) = (&case["name"], &case["text"]);
            wrong.push(format!("{name}:\n  got      {got:?}\n  expected {expected:?}"));
        }
    }
    assert!(wrong.is_empty(), "{} differ:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn hostile_templates_end_in_a_named_limit() {
    let doubling =
        |step: &str| format!("{{% set x = 'ab' %}}{}{{{{ x|length }}}}", step.repeat(60));
    let in_loop = |step: &str| {
        format!(
            "{{% set ns = namespace(x='ab', l=[1]) %}}{{% for i in range(99) %}}{step}{{% endfor %}}"
        )
    };
    let nested = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}";
    let list = "{% set l = [1] %}".to_owned() + &"{% set l = [l, l] %}".repeat(60);
    let cases = [
        nested.to_owned(),
        nested.replace("{% endfor %}{% endfor %}", "text{% endfor %}{% endfor %}"),
        doubling("{% set x = x + x %}"),
        doubling("{% set x = x ~ x %}"),
        doubling("{% set x = x * 2 %}"),
        doubling("{% set x %}{{ x }}{{ x }}{% endset %}"),
        doubling(&format!(
            "{{% set x %}}{{% for i in range(9999) %}}{}{{% endfor %}}{{% endset %}}",
            "more of it ".repeat(100)
        )),
        doubling("{% set x = '%s%s' % (x, x) %}"),
        in_loop("{% set ns.l = [ns.l|join, ns.l|join]|map('upper')|list %}"),
        doubling("{% set x = x|replace('', x) %}"),
        doubling("{% set x = x.replace('a', x) %}"),
        doubling("{% set x = [x, x]|join(x) %}"),
        doubling("{% set x = x.join([x, x]) %}"),
        doubling("{% set x = '%s%s'|format(x, x) %}"),
        doubling("{% set x = x|indent(99999999) %}"),
        in_loop("{% set ns.x = ns.x + ns.x %}"),
        in_loop("{% set ns.l = ns.l + ns.l %}"),
        in_loop("{% set ns.l = ns.l * 1000 %}"),
        in_loop("{% set ns.x = ns.x|tojson|tojson %}"),
        "{% set x = 'a' %}{% set n = 1000000000 %}{{ x * n }}".to_owned(),
        "{% macro f(x) %}{{ f(x + x) }}{% endmacro %}{{ f('abcdefgh' * 1000) }}".to_owned(),
        list.clone() + "{{ l }}",
        list.clone() + "{{ l|tojson }}",
        list.clone() + "{{ l|string|length }}",
        list.clone() + "{{ l == l|list }}",
        list.clone() + "{{ l ~ '' }}",
        list + "{{ l|join }}",
        in_loop("{% set ns.x = ns.x.replace('a', ns.x, 9) %}"),
        in_loop("{% set ns.x = ns.x|replace('a', ns.x, 9) %}"),
        in_loop("{% set ns.x = ns.x|e|replace('a', '<<')|e ~ ns.x %}"),
        in_loop("{% set ns.x = ns.x|indent(ns.x, true, true) %}"),
        in_loop("{% set ns.x = ns.x|indent(width=ns.x, first=true) %}"),
        in_loop("{% set ns.x = ns.x.partition('b')|join('abab') ~ ns.x %}"),
        in_loop("{% set ns.x = dict(a=ns.x, b=ns.x)|string %}"),
        "{% macro f() %}{% for i in range(9999) %}{{ caller() }}{% endfor %}{% endmacro %}\
         {% call f() %}{% call f() %}{{ 'abcdefgh' * 99 }}{% endcall %}{% endcall %}"
            .to_owned(),
    ];
    for case in cases {
        let shown: String = case.chars().take(120).collect();
        match render(&case) {
            Err(TemplateError::Limit { .. }) => {}
            other => panic!("{shown}: {:?}", other.map(|text| text.len())),
        }
    }
}

/// Sixty doublings of a list: 60 lists in memory, and more paths through them than atoms.
const TANGLE: &str = "{% macro f(n, x, y) %}{% if n %}{{ f(n - 1, [x, x], [y, y]) }}\
    {% else %}BODY{% endif %}{% endmacro %}{{ f(60, ['a'], ['a']) }}";

#[test]
fn no_operation_walks_a_tangled_value_for_free() {
    for body in [
        "{{ x == y }}",
        "{{ x < y }}",
        "{{ x >= y }}",
        "{{ x is eq y }}",
        "{{ x is in [y] }}",
        "{{ {x: 1} }}",
        "{{ {'a': 1}[x] }}",
        "{{ {'a': 1}.get(x) }}",
        "{{ x in {'a': 1} }}",
        "{{ [x]|select('eq', y)|list }}",
        "{{ [x]|map('string')|list }}",
        "{{ [x]|map('map', 'string')|list }}",
        "{{ raise_exception(x) }}",
        "{% set ns = namespace() %}{% set ns.x = x %}",
    ] {
        let text = TANGLE.replace("BODY", body);
        match render(&text) {
            Err(TemplateError::Limit { .. }) => {}
            other => panic!("{body}: {:?}", other.map(|text| text.len())),
        }
    }
}

#[test]
fn filters_named_in_map_pay_like_filters() {
    for text in [
        "{{ ['%9999999999d']|map('format', 3)|list }}",
        "{{ ['a']|map('indent', 99999999999)|list }}",
        "{{ [range(9999)]|map('join', 'a' * 9999)|list }}",
        "{{ debug() }}",
    ] {
        render(text).expect_err(text);
    }
    assert_eq!(render("{{ ['a', 'b']|map('upper')|join('-') }}"), Ok("A-B".to_owned()));
    assert_eq!(
        render("{{ messages|map(attribute='role')|list|length }}").expect("a count").len(),
        1
    );
}

#[test]
fn endless_expressions_are_refused_before_the_stack_ends() {
    let chain = |link: &str| format!("{{{{ 1{} }}}}", link.repeat(50_000));
    let before = |link: &str| format!("{{{{ {}1 }}}}", link.repeat(50_000));
    let mut texts: Vec<String> =
        [" + 1", ".a", "[0]", "|string", " is defined", " ** 1", " and 1", " ~ 1", "()", " if 1"]
            .map(chain)
            .into();
    texts.extend(["not ", "-", "(", "[", "1 if 0 else "].map(before));
    texts.push(format!("{{% if 0 %}}{}{{% endif %}}", "{% elif 0 %}".repeat(50_000)));
    texts.push("{% if 1 %}".repeat(20_000));
    for text in texts {
        template(&text).expect_err(&text[..30]);
    }
    // What is just allowed must not overflow the stack of a thread either.
    for link in [" + 1", "|string", " ~ 1", " and 1"] {
        render(&format!("{{{{ 1{} }}}}", link.repeat(490))).expect(link);
    }
    render(&format!("{{{{ {}1 }}}}", "not ".repeat(100))).expect("a hundred nots");
    let deep = "{% set ns = namespace(x=[]) %}{% for i in range(1000) %}{% for j in range(1000) %}\
                {% set ns.x = [ns.x] %}{% endfor %}{% endfor %}";
    assert!(render(deep).expect_err("deep").to_string().contains("nested too deeply"));
}

#[test]
fn endless_recursion_and_pythons_internals_are_errors() {
    for text in [
        "{% macro f(n) %}{{ f(n + 1) }}{% endmacro %}{{ f(0) }}",
        "{% macro f() %}{% call f() %}x{% endcall %}{% endmacro %}{{ f() }}",
        "{% macro f() %}{{ g() }}{% endmacro %}{% macro g() %}{{ f() }}{% endmacro %}{{ g() }}",
        "{% for x in [[1]] recursive %}{{ loop([[1]]) }}{% endfor %}",
        "{% set ns = namespace() %}{% set ns.me = [ns] %}{{ ns|tojson }}{{ ns.me == ns.me }}\
         {{ ns.me[0].me[0]|string }}",
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.__len__() }}",
        "{{ namespace.__init__.__globals__ }}",
        "{{ raise_exception.__code__.co_consts }}",
        "{{ self._TemplateReference__context }}{{ self.x() }}",
        "{% include '/etc/passwd' %}",
        "{% import '/etc/passwd' as x %}",
        "{% extends '/etc/passwd' %}",
        "{{ 'x'.center(99999999999) }}",
        "{{ 'x'.zfill(-1) }}",
        "{{ 'x'.rsplit('') }}",
        "{{ dict([1]) }}",
        "{{ [].append(1) }}{{ {}.update(a=1) }}{{ messages.clear() }}",
    ] {
        let error = render(text).expect_err(text).to_string();
        assert!(error.contains("chat_template.jinja"), "{text}: {error}");
    }
}

#[test]
fn a_message_keeps_the_order_of_its_fields_and_has_no_others() {
    for (text, expected) in [
        (r#"{"role": "a", "content": "b"}"#, "role content "),
        (r#"{"name": "c", "content": "b", "role": "a"}"#, "name content role "),
        (r#"{"role": "a", "tool_calls": []}"#, "role tool_calls "),
        (r#"{"role": "a", "content": null}"#, "role content "),
    ] {
        let message: Message = serde_json::from_str(text).expect("a message");
        let options = RenderOptions::default();
        let keys = template("{% for k in messages[0] %}{{ k }} {% endfor %}").expect("valid");
        assert_eq!(keys.render(std::slice::from_ref(&message), &options), Ok(expected.into()));
        let back: Value = serde_json::from_str(text).expect("JSON");
        assert_eq!(serde_json::to_string(&message).ok(), serde_json::to_string(&back).ok());
    }
    for text in [r#"{"content": "a"}"#, r#"{"role": 1}"#, "[]"] {
        serde_json::from_str::<Message>(text).expect_err(text);
    }
}

#[test]
fn the_reasoning_of_a_message_has_the_names_that_templates_read() {
    let shown = "{% for k, v in messages[0].items() %}{{ k }}={{ v }} {% endfor %}";
    let template = template(shown).expect("valid");
    for (text, expected) in [
        (
            r#"{"role": "a", "content": "b", "reasoning": "R"}"#,
            "thinking=R role=a content=b reasoning=R reasoning_content=R ",
        ),
        (
            r#"{"role": "a", "content": "b", "thinking": "T", "reasoning": "R"}"#,
            "thinking=T role=a content=b reasoning=R reasoning_content=T ",
        ),
        (
            r#"{"role": "a", "content": "b", "reasoning_content": "C", "thinking": "T"}"#,
            "thinking=T role=a content=b reasoning_content=C ",
        ),
        (
            r#"{"role": "a", "content": "b", "reasoning_content": null, "reasoning": "R"}"#,
            "thinking=R role=a content=b reasoning_content=R reasoning=R ",
        ),
        (r#"{"role": "a", "content": "b", "thinking": null}"#, "role=a content=b thinking=None "),
    ] {
        let message: Message = serde_json::from_str(text).expect("a message");
        assert_eq!(template.render(&[message], &RenderOptions::default()), Ok(expected.into()));
    }
}

#[test]
fn slices_are_those_of_python() {
    for (slice, expected) in [
        ("[1:3]", "bc"),
        ("[::-1]", "edcba"),
        ("[-2:]", "de"),
        ("[:-2]", "abc"),
        ("[4:0:-2]", "ec"),
        ("[9:]", ""),
        ("[-9:2]", "ab"),
        ("[::2]", "ace"),
        ("[-1:-9:-1]", "edcba"),
        ("[3:1]", ""),
    ] {
        assert_eq!(render(&format!("{{{{ 'abcde'{slice} }}}}")), Ok(expected.into()), "{slice}");
        let list = format!("{{{{ ['a', 'b', 'c', 'd', 'e']{slice}|join }}}}");
        assert_eq!(render(&list), Ok(expected.into()), "{slice} of a list");
    }
    render("{{ 'abc'[::0] }}").expect_err("a step of nothing");
}

#[test]
fn operators_give_what_those_of_python_give() {
    // The compiler computes with constants, and our own functions with variables.
    let both = |left: &str, operator: &str, right: &str| {
        let constants = format!("{{{{ {left} {operator} {right} }}}}");
        let sets = format!("{{% set l = {left} %}}{{% set r = {right} %}}");
        [constants, sets + &format!("{{{{ l {operator} r }}}}")]
    };
    for (left, operator, right, expected) in [
        ("3", "*", "'ab'", "ababab"),
        ("'ab'", "*", "3", "ababab"),
        ("'ab'", "*", "-1", ""),
        ("2", "*", "[1]", "[1, 1]"),
        ("[1]", "*", "2", "[1, 1]"),
        ("[1]", "*", "-1", "[]"),
        ("2", "*", "(1, 2)", "(1, 2, 1, 2)"),
        ("2", "*", "2.5", "5.0"),
        ("2.0", "*", "2", "4.0"),
        ("3", "*", "4", "12"),
        ("1e308", "*", "10", "inf"),
        ("-1e308", "*", "10", "-inf"),
        ("(1, 2)", "+", "(3,)", "(1, 2, 3)"),
        ("[1]", "+", "[2]", "[1, 2]"),
        ("'a'", "+", "'b'", "ab"),
        ("1", "+", "2.5", "3.5"),
        ("2.0", "+", "1", "3.0"),
        ("true", "+", "1", "2"),
        ("9223372036854775807", "+", "1", "9223372036854775808"),
        ("7", "%", "3", "1"),
        ("-7", "%", "3", "2"),
        ("7", "%", "-3", "-2"),
        ("-7", "%", "-3", "-1"),
        ("6", "%", "-3", "0"),
        ("-6", "%", "3", "0"),
        ("7.5", "%", "2", "1.5"),
        ("-7.5", "%", "2", "0.5"),
        ("5.5", "%", "-2", "-0.5"),
        ("'%s'", "%", "('a',)", "a"),
        ("'%s-%s'", "%", "(1, 2)", "1-2"),
        ("'%s'", "%", "none", "None"),
        ("1", "~", "none", "1None"),
        ("1", "==", "1.0", "True"),
        ("1", "==", "2", "False"),
        ("1", "!=", "2", "True"),
        ("1", "!=", "1.0", "False"),
        ("1", "<", "2", "True"),
        ("2", "<", "2", "False"),
        ("2", "<=", "2", "True"),
        ("3", "<=", "2", "False"),
        ("2", ">", "1", "True"),
        ("2", ">", "2", "False"),
        ("2", ">=", "2", "True"),
        ("1", ">=", "2", "False"),
        ("'a'", "in", "'ba'", "True"),
        ("3", "in", "[1, 2]", "False"),
    ] {
        for text in both(left, operator, right) {
            assert_eq!(render(&text), Ok(expected.to_owned()), "{text}");
        }
    }
    for (left, operator, right) in [
        ("1", "%", "0"),
        ("1.5", "%", "0"),
        ("1.5", "%", "0.0"),
        ("1", "+", "'a'"),
        ("[1]", "+", "(2,)"),
        ("[1]", "+", "1"),
        ("1", "+", "[1]"),
        ("[1]", "*", "[2]"),
        ("'a'", "*", "'b'"),
        ("'a'", "*", "1.5"),
        ("170141183460469231731687303715884105727", "+", "1"),
        ("1", "%", "nothing"),
    ] {
        for text in both(left, operator, right) {
            let error = render(&text).expect_err(&text).to_string();
            assert!(error.contains("chat template: "), "{error}");
        }
    }
    let [_, text] = both("[1]", "+", "1");
    let error = render(&text).expect_err("no sum").to_string();
    assert!(error.contains("`+` cannot be applied to sequence and number"), "{error}");
    let [_, text] = both("1", "%", "nothing");
    let error = render(&text).expect_err("no remainder").to_string();
    assert!(error.contains("`%` cannot be applied to number and an undefined value"), "{error}");
    let text =
        "{% set x = 1e308 %}{% set l = 'a' * 5000 %}{{ (l + l)|length }} {{ [x * -x]|tojson }}";
    assert_eq!(render(text), Ok("10000 [-Infinity]".to_owned()));
}

#[test]
fn expressions_give_what_pythons_jinja_gives() {
    for (expression, expected) in [
        ("[none, true, false, nothing]", "[None, True, False, Undefined]"),
        (r#"['a\'b"c', "it's", 'say "x"']"#, r#"['a\'b"c', "it's", 'say "x"']"#),
        (r"['\x01\x1f \x7f\x9f\r\t']", r"['\x01\x1f \x7f\x9f\r\t']"),
        (r"'\x01\x1f ~\x7f\x08\x0c'|tojson", "\"\\u0001\\u001f ~\u{7f}\\b\\f\""),
        (r"'~\x7f'|tojson(ensure_ascii=true)", r#""~\u007f""#),
        ("[1, [2]]|tojson(indent='--')", "[\n--1,\n--[\n----2\n--]\n]"),
        ("[1]|tojson(indent=64)|length", "69"),
        ("none[1:]", ""),
        ("5[1:]", ""),
        ("none[1:]|list", "[]"),
        ("'b' if none[1:] else 'c'", "c"),
        ("'aB1\u{e9}\u{df}\u{1c5}'.swapcase()", "Ab1\u{c9}SS\u{1c5}"),
        ("'-5'.zfill(4)", "-005"),
        ("'+5'.zfill(4)", "+005"),
        ("'--5'.zfill(5)", "-00-5"),
        ("'5'.zfill(3)", "005"),
        ("''.zfill(2)", "00"),
        ("'a'.center(4)", " a  "),
        ("'ab'.center(5)", "  ab "),
        ("'ab'.center(6, '*')", "**ab**"),
        ("'ab'.center(1)", "ab"),
        ("'a'.center(9999)|length", "9999"),
        ("'ab'.ljust(4, '.')", "ab.."),
        ("'ab'.rjust(4, '.')", "..ab"),
        ("'a b  c '.rsplit()", "['a', 'b', 'c']"),
        ("'a b  c '.rsplit(none, 1)", "['a b', 'c']"),
        ("'a b  c '.rsplit(none, 2)", "['a', 'b', 'c']"),
        ("' a b'.rsplit(none, 0)", "[' a b']"),
        ("' a'.rsplit(none, 5)", "['a']"),
        (r"'b\u3000c d'.rsplit(none, 2)", "['b', 'c', 'd']"),
        ("' '.rsplit()", "[]"),
        ("'a,b,c'.rsplit(',')", "['a', 'b', 'c']"),
        ("'a,b,c'.rsplit(',', 1)", "['a,b', 'c']"),
        ("'a,b,c'.rsplit(',', -1)", "['a', 'b', 'c']"),
        ("'\u{e9}ab'.index('b')", "2"),
        ("'a-b-c'.partition('-')", "('a', '-', 'b-c')"),
        ("'ab'.partition('-')", "('ab', '', '')"),
        ("'a-b-c'.rpartition('-')", "('a-b', '-', 'c')"),
        ("'ab'.rpartition('-')", "('', '', 'ab')"),
        ("'abc'.removeprefix('ab') ~ 'abc'.removeprefix('b')", "cabc"),
        ("'abc'.removesuffix('bc') ~ 'abc'.removesuffix('b')", "aabc"),
        ("'a_b c-d  \u{e9}1'|wordcount", "4"),
        ("''|wordcount", "0"),
        (r"'a\n\nb'|indent", "a\n\n    b"),
        (r"'a\n\nb'|indent('>', true, true)", ">a\n>\n>b"),
        ("dict({'a': 1}, b=2)", "{'a': 1, 'b': 2}"),
        ("dict([('a', 1)], b=2)", "{'a': 1, 'b': 2}"),
        ("'aaa'|replace('a', 'b')", "bbb"),
        ("'aaa'|replace('a', 'b', 2)", "bba"),
        ("[1, 'a']|map('string')|join('|')", "1|a"),
        ("['a b']|map('replace', ' ', '-')|first", "a-b"),
        ("range(3) is iterable", "True"),
        ("1 is iterable or 1 is sequence or true is iterable", "False"),
        ("nothing is callable", "True"),
        ("'a' is callable or 1 is callable", "False"),
    ] {
        let got = render(&format!("{{{{ {expression} }}}}"));
        assert_eq!(got, Ok(expected.to_owned()), "{expression}");
    }
    for expression in [
        "nothing[1:]",
        "'abc'['a':]",
        "[1]|tojson(indent=65)",
        "{(1, 2): 3}|tojson",
        "[nothing]|tojson",
        "'a'.index('b')",
        "'a'.partition(1)",
        "'a'.center(10000)",
        "'a'.ljust('b')",
        "'a'.nonsense()",
        "dict([[1, 2, 3]])",
        "dict([1])",
        "'a'|replace('b')",
        "'a'|replace('a', 'b', 'c')",
        "'a'|indent(1.5)",
        "'a'|indent(depth=2)",
        "1|indent",
        "[1]|tojson(colour=2)",
        "[1]|map('nonsense')|list",
        "debug()",
    ] {
        render(&format!("{{{{ {expression} }}}}")).expect_err(expression);
    }
}

#[test]
fn values_are_printed_down_to_two_hundred_levels() {
    let list = |depth: usize| "{% set x = [x] %}".repeat(depth);
    let map = |depth: usize| "{% set x = {'a': x} %}".repeat(depth);
    for print in ["{{ x }}", "{{ x|tojson }}"] {
        for nested in [list, map] {
            let text = |depth| format!("{{% set x = 1 %}}{}{print}", nested(depth));
            render(&text(200)).expect("just allowed");
            let error = render(&text(201)).expect_err("too deep").to_string();
            assert!(error.contains("nested too deeply"), "{error}");
        }
    }
    // The levels of a key count with those around it: the map is one of 200.
    let key = format!("{{% set x = 1 %}}{}{{% set x = {{x: 1}} %}}", list(90));
    let text = |around| format!("{key}{}{{{{ x }}}}", list(around));
    render(&text(109)).expect("just allowed");
    let error = render(&text(110)).expect_err("too deep").to_string();
    assert!(error.contains("nested too deeply"), "{error}");
}

#[test]
fn arguments_keep_the_kinds_of_their_numbers() {
    let template = template("{{ [a, b, c, d, e] }} {{ e.f is none }}").expect("a template");
    let extra = json!({"a": -3, "b": 18_446_744_073_709_551_615_u64, "c": 2.0, "d": true,
        "e": {"f": null, "g": ["h"]}});
    let extra = extra.as_object().expect("an object").clone();
    let options = RenderOptions { extra, ..RenderOptions::default() };
    let expected = "[-3, 18446744073709551615, 2.0, True, {'f': None, 'g': ['h']}] True";
    assert_eq!(template.render(&[], &options), Ok(expected.to_owned()));
}

#[test]
fn long_tags_and_many_branches_are_refused_and_long_lists_and_texts_are_not() {
    let elifs = |n: usize| format!("{{% if 0 %}}{}{{% endif %}}", "{% elif 0 %}".repeat(n));
    template(&elifs(250)).expect("just allowed");
    template(&elifs(251)).expect_err("one more");
    // The number and the texts between tags are no links; the end of a tag is one, the thousandth.
    let chain = |sign: &str| format!("{{{{ {sign}1{} }}}} text {{{{ 2 }}}}", "|string".repeat(499));
    template(&chain("-")).expect("just allowed");
    template(&chain("--")).expect_err("one more");
    for text in [
        format!("{{{{ [{}]|length }}}}", "1, ".repeat(3000)),
        format!("{{{{ ['a'{}]|length }}}}", ", 'b'".repeat(3000)),
        "{{ 1 }} and ".repeat(1200),
        "{% if 1 %}{{ 1 }}{% endif %}".repeat(400),
    ] {
        template(&text).expect(&text[..20]);
    }
}

#[test]
fn products_of_constants_are_refused_before_they_are_compiled() {
    // Of a template with at least 256 bytes; 16 MiB is the limit of a text.
    let padded = |product: &str| format!("{{{{ 'a' * {product} }}}}{{# {} #}}", "x".repeat(256));
    for (product, fits) in [
        ("65536", true),
        ("65537", false),
        ("256 * 256", true),
        ("256 * 257", false),
        ("0 * 65537", false),
        ("2 ** 2", false),
        ("99999999999999999999", false),
    ] {
        assert_eq!(template(&padded(product)).is_ok(), fits, "{product}");
    }
    template("{{ 2 ** 40 }}{{ 1000000000 }}{{ 'a' * 3 }}").expect("nothing is repeated");
}

#[test]
fn an_answer_continues_the_text_of_the_last_message() {
    let continued = |text: &str, last: &str, opens: bool| {
        let options = RenderOptions {
            add_generation_prompt: opens,
            continue_final_message: true,
            ..RenderOptions::default()
        };
        template(text).expect("valid").render(&[Message::new("assistant", last)], &options)
    };
    let plain = "<a>{{ messages[-1].content }}</a>{% if add_generation_prompt %}open{% endif %}";
    let trimming = "<a>{{ messages[-1].content|trim }}</a>";
    for (template, last, expected) in [
        (plain, "Once upon", "<a>Once upon"),
        (plain, " Once  ", "<a> Once  "),
        (trimming, " Once  ", "<a>Once"),
    ] {
        for opens in [false, true] {
            assert_eq!(continued(template, last, opens), Ok(expected.to_owned()));
        }
    }
    let asked = "{% if add_generation_prompt %}open{% endif %}<a>{{ messages[-1].content }}</a>";
    assert_eq!(continued(asked, "b", true), Ok("<a>b".to_owned()));
    let error = continued(plain, "  ", false).expect_err("no text").to_string();
    assert!(error.contains("has no text"), "{error}");
    let error = continued("<a>", "b", false).expect_err("not there").to_string();
    assert!(error.contains("does not print its text"), "{error}");
    let opened = RenderOptions { add_generation_prompt: true, ..RenderOptions::default() };
    let text = template(plain).expect("valid").render(&[Message::new("user", "b")], &opened);
    assert_eq!(text, Ok("<a>b</a>open".to_owned()));
}

#[test]
fn an_endless_template_names_steps_and_an_error_names_a_line_where_there_is_one() {
    let nested = "{% for a in range(9999) %}{% for b in range(9999) %}{% endfor %}{% endfor %}";
    let error = render(nested).expect_err("endless");
    let steps = pelton_base::limits::TEMPLATE_FUEL;
    assert!(matches!(error, TemplateError::Limit { limit, unit: "steps", .. } if limit == steps));
    assert!(error.to_string().contains(&format!("{steps} steps")), "{error}");
    let Err(TemplateError::Syntax { line: 2, reason, .. }) = template("\n{% frob %}") else {
        panic!("a syntax error in line 2");
    };
    assert!(reason.contains("frob"), "{reason}");
    let error = template(&"{% elif 0 %}".repeat(300)).expect_err("too many").to_string();
    assert!(error.contains(": chat template: expected at most"), "{error}");
}

#[test]
fn variants_and_arguments_are_chosen_by_name() {
    let config = json!({"chat_template": [
        {"name": "rag", "template": "rag {{ mode }}"},
        {"name": "default", "template": "plain {{ mode }} {{ bos_token }}"},
    ], "bos_token": "<s>"});
    let from = |config: &Value| ChatTemplate::from_config(config.to_string().as_bytes());
    let template = from(&config).expect("valid").expect("a template");
    let args = |mode: &str| json!({"mode": mode}).as_object().expect("an object").clone();
    let template = template.with_args(args("slow"));
    let plain = RenderOptions::default();
    let own = RenderOptions { extra: args("fast"), ..RenderOptions::default() };
    assert_eq!(template.render(&[], &plain), Ok("plain slow <s>".to_owned()));
    assert_eq!(template.render(&[], &own), Ok("plain fast <s>".to_owned()));
    assert_eq!(template.render_named("rag", &[], &plain), Ok("rag slow".to_owned()));
    let error = template.render_named("nope", &[], &plain).expect_err("no variant").to_string();
    assert!(error.contains("`nope`") && error.contains("default, rag"), "{error}");
    // Without a variant for tools the default is rendered.
    for tools in [json!([]), Value::Null] {
        let options = RenderOptions { tools: Some(tools), ..RenderOptions::default() };
        assert_eq!(template.render(&[], &options), Ok("plain slow <s>".to_owned()));
    }
    assert_eq!(template.tokens().tokens, [("bos_token".to_owned(), "<s>".to_owned())]);
    let names: Vec<&str> = template.sources().iter().map(|s| s.name.as_str()).collect();
    assert_eq!(names, ["default", "rag"]);
    for none in [json!({}), json!({"chat_template": null})] {
        assert_eq!(from(&none).expect("valid"), None);
    }
    for (wrong, expected) in [
        (json!([]), "not a list of named templates"),
        (json!([{"name": "default"}]), "not a list of named templates"),
        (json!(3), "neither a string nor a list"),
    ] {
        let error = from(&json!({"chat_template": wrong})).expect_err("malformed").to_string();
        assert!(error.contains(expected) && error.contains("tokenizer_config"), "{error}");
    }
    assert!(from(&json!([])).expect_err("no object").to_string().contains("JSON object"));
}

#[test]
fn absurd_constants_and_ranges_are_refused() {
    for text in [
        "{{ 'a' * 1000000000 }}",
        "{{ 'a' * 1000 * 1000 * 1000 }}",
        "{{ 'a' * 10 ** 9 }}",
        "{{ 1000000000 * 'a' }}",
        "{% for i in range(10**9) %}{% endfor %}",
        "{{ range(1000000000)|list|length }}",
        "{{ '%999999999d'|format(1) }}",
    ] {
        let error = render(text).expect_err(text).to_string();
        assert!(error.contains("chat_template.jinja"), "{error}");
    }
    assert_eq!(render("{{ '-' * 20 }}{{ 3 * 4 }}"), Ok("-".repeat(20) + "12"));
}

#[test]
fn raise_exception_speaks_in_the_templates_own_words() {
    let error = render("{{ raise_exception('Roles must alternate!') }}").expect_err("refused");
    assert_eq!(error, TemplateError::Raised { message: "Roles must alternate!".to_owned() });
}

#[test]
fn an_invalid_template_is_an_error_with_file_and_line() {
    let error = template("{{ 1 }}\n{% for %}").expect_err("invalid").to_string();
    assert!(error.contains("model/chat_template.jinja") && error.contains("line 2"), "{error}");
    let error = render("\n\n{{ messages[0].nothing.at_all }}").expect_err("fails").to_string();
    assert!(error.contains("line 3"), "{error}");
    let error = template(&"x".repeat(pelton_base::limits::TEMPLATE_BYTES + 1)).expect_err("large");
    assert!(matches!(error, TemplateError::TooLarge { .. }));
}

#[test]
fn options_reach_the_template() {
    let template =
        template("{{ strftime_now('%d %b %Y') }} {{ mode }} {{ tools is none }} {{ generation }}");
    let options = RenderOptions {
        extra: json!({"mode": "fast", "generation": 3}).as_object().expect("an object").clone(),
        now_unix_seconds: Some(1_709_210_096),
        ..RenderOptions::default()
    };
    let text = template.expect("a template").render(&[], &options);
    assert_eq!(text, Ok("29 Feb 2024 fast True 3".to_owned()));
}

#[test]
fn a_folder_gives_the_template_of_its_own_file_before_the_configuration() {
    let folder = tempfile::tempdir().expect("a folder");
    let write = |name: &str, text: &str| {
        std::fs::write(folder.path().join(name), text).expect("a file");
    };
    let render = |options: &RenderOptions| {
        let template = ChatTemplate::from_folder(folder.path()).expect("files");
        template.map(|template| template.render(&[], options).expect("text"))
    };
    let plain = RenderOptions::default();
    assert_eq!(render(&plain), None);
    let named = json!({"chat_template": [
        {"name": "tool_use", "template": "tools"},
        {"name": "default", "template": "plain {{ bos_token }}"},
    ], "bos_token": {"content": "<s>"}});
    write("tokenizer_config.json", &named.to_string());
    assert_eq!(render(&plain).as_deref(), Some("plain <s>"));
    let tools = RenderOptions { tools: Some(json!([])), ..RenderOptions::default() };
    assert_eq!(render(&tools).as_deref(), Some("tools"));
    write("chat_template.jinja", "own {{ bos_token }}");
    assert_eq!(render(&plain).as_deref(), Some("own <s>"));
    write("tokenizer_config.json", "{");
    let error = ChatTemplate::from_folder(folder.path()).expect_err("broken").to_string();
    assert!(error.contains("tokenizer_config.json"), "{error}");
}
