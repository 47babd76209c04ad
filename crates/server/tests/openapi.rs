//! Answers of a real server against its own OpenAPI document.

use crate::harness::parrot::parrot;
use crate::harness::ranker::start_ranker;
use crate::harness::{Answer, Running, start};
use serde_json::{Value, json};

/// Routes whose answers end only with the server, or that are no API.
const LEFT_OUT: [&str; 2] = ["/page/{file}", "/"];

async fn document(server: &Running) -> Value {
    server.get("/openapi.json").await.json()
}

/// Path, method and description of each operation.
fn operations(document: &Value) -> Vec<(&str, &str, &Value)> {
    let paths = document["paths"].as_object().expect("paths");
    let of_path = |(path, item)| {
        let item: &Value = item;
        let path: &String = path;
        let methods = item.as_object().expect("methods").iter();
        methods.map(move |(method, operation)| (path.as_str(), method.as_str(), operation))
    };
    paths.iter().flat_map(of_path).filter(|(path, _, _)| !LEFT_OUT.contains(path)).collect()
}

/// Why a value is not of a schema, as far as the document uses JSON Schema.
fn mismatch(document: &Value, schema: &Value, value: &Value, at: &str) -> Option<String> {
    if let Some(name) = schema["$ref"].as_str() {
        let schema = document.pointer(&name[1..]).expect("a schema");
        return mismatch(document, schema, value, at);
    }
    let fails = |why: String| Some(format!("{at}: {why}: {value}"));
    let is = |kind: &str| match kind {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "integer" => value.is_i64() || value.is_u64(),
        "number" => value.is_number(),
        "boolean" => value.is_boolean(),
        "null" => value.is_null(),
        other => panic!("{at}: the test does not know the type {other}"),
    };
    let kinds = match &schema["type"] {
        Value::Array(kinds) => kinds.iter().filter_map(Value::as_str).collect(),
        kind => kind.as_str().into_iter().collect::<Vec<_>>(),
    };
    if !kinds.is_empty() && !kinds.iter().any(|kind| is(kind)) {
        return fails(format!("not {kinds:?}"));
    }
    if schema.get("const").is_some_and(|only| only != value) {
        return fails(format!("not {}", schema["const"]));
    }
    if schema["enum"].as_array().is_some_and(|all| !all.contains(value)) {
        return fails(format!("not of {}", schema["enum"]));
    }
    let fits = |schema: &Value| mismatch(document, schema, value, at).is_none();
    if schema["anyOf"].as_array().is_some_and(|any| !any.iter().any(fits)) {
        return fails("no form fits".to_owned());
    }
    let all = schema["allOf"].as_array().into_iter().flatten();
    let wrong = all.into_iter().find_map(|schema| mismatch(document, schema, value, at));
    wrong.or_else(|| inside(document, schema, value, at))
}

/// The same for the fields and elements of a value.
fn inside(document: &Value, schema: &Value, value: &Value, at: &str) -> Option<String> {
    if let Some(elements) = value.as_array() {
        let least = schema["minItems"].as_u64().unwrap_or(0) as usize;
        if elements.len() < least {
            return Some(format!("{at}: fewer than {least} elements"));
        }
        let items = schema.get("items")?;
        let element = |(i, element)| mismatch(document, items, element, &format!("{at}[{i}]"));
        return elements.iter().enumerate().find_map(element);
    }
    let fields = value.as_object()?;
    let required = schema["required"].as_array().into_iter().flatten();
    let mut required = required.filter_map(Value::as_str);
    if let Some(name) = required.find(|name| !fields.contains_key(*name)) {
        return Some(format!("{at}: `{name}` is missing"));
    }
    fields.iter().find_map(|(name, field)| {
        let path = format!("{at}.{name}");
        match schema["properties"].get(name) {
            Some(known) => mismatch(document, known, field, &path),
            None => match &schema["additionalProperties"] {
                Value::Bool(false) => Some(format!("{path}: the document lacks it")),
                Value::Object(_) => {
                    mismatch(document, &schema["additionalProperties"], field, &path)
                }
                _ => None,
            },
        }
    })
}

/// Panics unless the document states the status, the media type and the shape of an answer.
fn conforms(document: &Value, operation: &Value, answer: &Answer) {
    let id = &operation["operationId"];
    let described = &operation["responses"][answer.status.to_string()];
    assert!(described.is_object(), "{id}: {} is not described: {}", answer.status, answer.body);
    let kind = answer.head.lines().find_map(|line| line.strip_prefix("content-type: "));
    let kind = kind.and_then(|kind| kind.split(';').next()).unwrap_or_default();
    let content = &described["content"][kind];
    assert!(content.is_object(), "{id}: {kind} is not described: {}", answer.body);
    if kind == "application/json" {
        let wrong = mismatch(document, &content["schema"], &answer.json(), "answer");
        assert_eq!(wrong, None, "{id}");
    }
}

#[test]
fn the_check_of_shapes_finds_what_is_wrong() {
    let document = json!({"a": {"type": "object", "required": ["x"], "additionalProperties": false,
        "properties": {"x": {"type": ["integer", "null"]}, "y": {"type": "array", "minItems": 1,
            "items": {"anyOf": [{"const": 1}, {"enum": ["a"]}]}}}}});
    let schema = json!({"$ref": "#/a"});
    let check = |value: Value| mismatch(&document, &schema, &value, "v").is_none();
    assert!(check(json!({"x": 1, "y": [1, "a"]})) && check(json!({"x": null})));
    for wrong in [
        json!([]),
        json!({}),
        json!({"x": 1.5}),
        json!({"x": 1, "z": 1}),
        json!({"x": 1, "y": []}),
        json!({"x": 1, "y": [2]}),
    ] {
        assert!(!check(wrong.clone()), "{wrong}");
    }
}

#[tokio::test]
async fn each_sample_is_answered_in_the_shape_that_the_document_states() {
    let text = start(parrot()).await;
    let (_ranker, ranker) = start_ranker("bert").await;
    let (_labels, labels) = start_ranker("bert-labels").await;
    let document = document(&text).await;
    let mut n_answered = 0;
    for (path, method, operation) in operations(&document) {
        let example = &operation["requestBody"]["content"]["application/json"]["example"];
        let server = match path {
            path if path.ends_with("classify") => &labels,
            path if path.ends_with("rerank") || path.ends_with("score") => &ranker,
            _ => &text,
        };
        // Names of models and files that are not there are described, too.
        let answer = match method {
            "post" if example.is_object() => server.post(path, example.clone()).await,
            "get" if path != "/v1/live" => server.get(&path.replace("{id}", "none")).await,
            _ => continue,
        };
        conforms(&document, operation, &answer);
        n_answered += usize::from(answer.status == 200);
    }
    assert!(n_answered > 25, "{n_answered}");
    let live = operations(&document).into_iter().find(|(path, _, _)| *path == "/v1/live");
    conforms(&document, live.expect("described").2, &text.get("/v1/live").await);
    for server in [text, ranker, labels] {
        server.stop().await;
    }
}

#[tokio::test]
async fn stored_responses_files_and_batches_have_their_shapes() {
    let server = start(parrot()).await;
    let document = document(&server).await;
    let get = async |path: &str, id: &str| {
        let operation = &document["paths"][path]["get"];
        let answer = server.get(&path.replace("{id}", id)).await;
        assert_eq!(answer.status, 200, "{}", answer.body);
        conforms(&document, operation, &answer);
        answer
    };
    let response = server.post("/v1/responses", json!({"input": "hey!"})).await.json();
    let id = response["id"].as_str().expect("an id");
    get("/v1/responses/{id}", id).await;
    get("/v1/responses/{id}/input_items", id).await;
    let line = json!({"custom_id": "a", "method": "POST", "url": "/v1/completions",
        "body": {"prompt": "abc", "max_tokens": 2}});
    let form = format!(
        "--edge\r\ncontent-disposition: form-data; name=\"purpose\"\r\n\r\nbatch\r\n--edge\r\n\
         content-disposition: form-data; name=\"file\"; filename=\"a\"\r\n\r\n{line}\r\n--edge--\r\n"
    );
    let request = format!(
        "POST /v1/files HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: \
         multipart/form-data; boundary=edge\r\ncontent-length: {}\r\n\r\n{form}",
        form.len()
    );
    let file = server.raw(&request).await;
    conforms(&document, &document["paths"]["/v1/files"]["post"], &file);
    let file = file.json()["id"].as_str().expect("an id").to_owned();
    let body = json!({"input_file_id": file, "endpoint": "/v1/completions",
        "metadata": {"a": "b"}});
    let batch = server.post("/v1/batches", body).await;
    assert_eq!(batch.status, 200, "{}", batch.body);
    conforms(&document, &document["paths"]["/v1/batches"]["post"], &batch);
    let id = batch.json()["id"].as_str().expect("an id").to_owned();
    while get("/v1/batches/{id}", &id).await.json()["status"] != "completed" {}
    for (path, id) in [
        ("/v1/files/{id}", file.as_str()),
        ("/v1/files/{id}/content", &file),
        ("/v1/files", ""),
        ("/v1/batches", ""),
        ("/v1/usage", ""),
    ] {
        get(path, id).await;
    }
    server.stop().await;
}

/// A value of a parameter.
fn value_of(schema: &Value) -> String {
    match (&schema["enum"][0], schema["type"].as_str(), schema["format"].as_str()) {
        (Value::String(first), _, _) => first.clone(),
        (_, Some("boolean"), _) => "false".to_owned(),
        (_, Some("integer"), _) => "1".to_owned(),
        (_, _, Some("date")) => "2026-11-22".to_owned(),
        _ => "none".to_owned(),
    }
}

#[tokio::test]
async fn every_parameter_of_a_query_is_honoured_and_no_other() {
    let server = start(parrot()).await;
    let document = document(&server).await;
    let stored = server.post("/v1/responses", json!({"input": "hey!"})).await.json();
    let stored = stored["id"].as_str().expect("an id");
    let mut n_checked = 0;
    for (path, method, operation) in operations(&document) {
        let parameters = operation["parameters"].as_array().into_iter().flatten();
        let of_query: Vec<&Value> = parameters.filter(|one| one["in"] == "query").collect();
        if of_query.is_empty() {
            continue;
        }
        assert_eq!(method, "get", "{path}");
        let path = path.replace("{id}", stored);
        for parameter in of_query {
            let name = parameter["name"].as_str().expect("a name");
            let value = value_of(&parameter["schema"]);
            let answer = server.get(&format!("{path}?{name}={value}")).await;
            conforms(&document, operation, &answer);
            assert!(!answer.body.contains("unknown parameter"), "{path} {name}: {}", answer.body);
            n_checked += 1;
        }
        for query in ["zzz=1", "%FF=%FF", "zzz"] {
            let answer = server.get(&format!("{path}?{query}")).await;
            assert_eq!(answer.error().0, 400, "{path}?{query}: {}", answer.body);
            assert!(answer.error().1.is_some(), "{path}?{query}: {}", answer.body);
            conforms(&document, operation, &answer);
        }
    }
    assert!(n_checked > 15, "{n_checked}");
    let twice = server.get("/tokenizer_info?model=a&model=b").await;
    assert_eq!(twice.error().1.as_deref(), Some("model"), "{}", twice.body);
    server.stop().await;
}

#[tokio::test]
async fn a_path_that_is_no_text_is_an_error_in_json() {
    let server = start(parrot()).await;
    let document = document(&server).await;
    let mut n_checked = 0;
    for (path, method, operation) in operations(&document) {
        if !path.contains("{id}") {
            continue;
        }
        let (method, path) = (method.to_uppercase(), path.replace("{id}", "%FF"));
        let request = format!(
            "{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\
             content-length: 0\r\n\r\n"
        );
        let answer = server.raw(&request).await;
        assert_eq!(answer.error().0, 400, "{method} {path}: {}", answer.body);
        conforms(&document, operation, &answer);
        n_checked += 1;
    }
    assert!(n_checked >= 10, "{n_checked}");
    server.stop().await;
}
