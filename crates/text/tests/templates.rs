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
