//! `/v1/files` and `/v1/batches`, with a parrot for a model.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::harness::house::House;
use crate::harness::loading::{WEIGHT_BYTES, spec};
use crate::harness::parrot::{Gate, gated_parrot, parrot};
use crate::harness::{self, Answer, Running, start, start_models, start_with};
use pelton_gateway::Limit;
use pelton_llm::Llm;
use pelton_server::{Access, Catalog, KeysError, ServeConfig, Server, Tenant, change_keys};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const LINES: &str = "/v1/completions";
/// Lines that a server asks at once.
const AT_ONCE: usize = 16;
/// Lines of a batch that a test interrupts: several times as many as are asked at once.
const MANY: usize = 60;

/// A client, with the lines that it adds to the head of each request.
struct Client<'a> {
    server: &'a Running,
    head: String,
}

impl<'a> Client<'a> {
    fn new(server: &'a Running) -> Self {
        Self { server, head: String::new() }
    }

    fn with(server: &'a Running, head: &str) -> Self {
        Self { server, head: format!("{head}\r\n") }
    }

    /// The key `pelton_ID_secret` of a key file.
    fn key(server: &'a Running, id: &str) -> Self {
        Self::with(server, &format!("authorization: Bearer pelton_{id}_secret"))
    }

    async fn ask(&self, method: &str, path: &str, kind: &str, body: &str) -> Answer {
        let (head, n) = (&self.head, body.len());
        let request = format!(
            "{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n{head}\
             content-type: {kind}\r\ncontent-length: {n}\r\n\r\n{body}"
        );
        self.server.raw(&request).await
    }

    async fn get(&self, path: &str) -> Answer {
        self.ask("GET", path, "application/json", "").await
    }

    async fn post(&self, path: &str, body: Value) -> Answer {
        self.ask("POST", path, "application/json", &body.to_string()).await
    }

    async fn delete(&self, path: &str) -> Answer {
        self.ask("DELETE", path, "application/json", "").await
    }

    /// Sends a file in a form, as OpenAI's clients do.
    async fn send(&self, content: &str) -> Answer {
        let body = format!(
            "--edge\r\ncontent-disposition: form-data; name=\"purpose\"\r\n\r\nbatch\r\n\
             --edge\r\ncontent-disposition: form-data; name=\"file\"; filename=\"in.jsonl\"\r\n\
             content-type: application/octet-stream\r\n\r\n{content}\r\n--edge--\r\n"
        );
        self.ask("POST", "/v1/files", "multipart/form-data; boundary=edge", &body).await
    }

    /// Sends a file and returns its id.
    async fn upload(&self, content: &str) -> String {
        let answer = self.send(content).await;
        assert_eq!(answer.status, 200, "{}", answer.body);
        id(&answer.json())
    }

    async fn begin(&self, file: &str) -> Answer {
        let body = json!({"input_file_id": file, "endpoint": LINES, "completion_window": "24h"});
        self.post("/v1/batches", body).await
    }

    /// Uploads lines, begins a batch of them and returns its id.
    async fn batch(&self, lines: &[String]) -> String {
        let file = self.upload(&lines.join("\n")).await;
        let answer = self.begin(&file).await;
        assert_eq!(answer.status, 200, "{}", answer.body);
        assert_eq!(answer.json()["status"], "validating");
        id(&answer.json())
    }

    async fn state(&self, batch: &str) -> Value {
        self.get(&format!("/v1/batches/{batch}")).await.json()
    }

    /// Asks for a batch until it is as expected, which it must become without any clock.
    async fn until(&self, batch: &str, expected: impl Fn(&Value) -> bool) -> Value {
        loop {
            let state = self.state(batch).await;
            if expected(&state) {
                return state;
            }
            tokio::task::yield_now().await;
        }
    }

    async fn ended(&self, batch: &str) -> Value {
        const ENDS: [&str; 4] = ["completed", "failed", "expired", "cancelled"];
        self.until(batch, |batch| ENDS.contains(&batch["status"].as_str().expect("one"))).await
    }

    /// The results in a file that a batch names; none where it names none.
    async fn results(&self, batch: &Value, name: &str) -> Vec<Value> {
        let Some(file) = batch[name].as_str() else { return Vec::new() };
        let answer = self.get(&format!("/v1/files/{file}/content")).await;
        assert_eq!(answer.status, 200, "{}", answer.body);
        lines_of(&answer.body)
    }
}

fn id(value: &Value) -> String {
    value["id"].as_str().expect("an id").to_owned()
}

fn lines_of(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

/// A line that is answered with the first two letters of its prompt of three.
fn line(i: usize) -> String {
    let body = json!({"prompt": "abc", "max_tokens": 2});
    json!({"custom_id": format!("line-{i}"), "method": "POST", "url": LINES, "body": body})
        .to_string()
}

fn many() -> Vec<String> {
    (0..MANY).map(line).collect()
}

fn n(value: &Value) -> usize {
    value.as_u64().expect("a number") as usize
}

fn counts(batch: &Value) -> (usize, usize, usize) {
    let of = |name: &str| n(&batch["request_counts"][name]);
    (of("total"), of("completed"), of("failed"))
}

fn kept_in(folder: &Path) -> ServeConfig {
    ServeConfig { files: Some(folder.to_owned()), ..ServeConfig::default() }
}

/// A server on a folder that an earlier one of this process has just left.
async fn again(llm: Arc<Llm>, config: ServeConfig) -> Running {
    let config = ServeConfig { port: Some(0), ..config };
    loop {
        match Server::bind(Arc::clone(&llm), config.clone()).await {
            Ok(server) => return harness::run(server),
            // The lock is free when the last task of the earlier server has ended.
            Err(error) => assert!(error.to_string().contains("another process"), "{error}"),
        }
        tokio::task::yield_now().await;
    }
}

/// Names of the files in a folder, but for its lock.
fn names_in(folder: &Path) -> BTreeSet<String> {
    let entries = std::fs::read_dir(folder).expect("a folder");
    let names = entries.map(|entry| entry.expect("an entry").file_name().into_string());
    names.map(|name| name.expect("UTF-8")).filter(|name| name != "lock").collect()
}

/// Lets the parrot speak until a batch has a result, and no further.
async fn step_until_one_is_done(gate: &Gate, client: &Client<'_>, batch: &str) {
    while counts(&client.state(batch).await).1 == 0 {
        gate.step_once();
        tokio::task::yield_now().await;
    }
}

/// Whether a server takes requests; one that has ended does not.
async fn is_ready(server: &Running) -> bool {
    let ask = async || -> std::io::Result<String> {
        let mut stream = TcpStream::connect(server.address).await?;
        stream
            .write_all(b"GET /ready HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
            .await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        Ok(answer)
    };
    ask().await.is_ok_and(|answer| answer.starts_with("HTTP/1.1 200"))
}

/// Stops a server in the middle of a batch: what runs ends, and nothing new is let in.
async fn stop_in_the_middle(server: Running, gate: &Gate) {
    server.signals.send();
    while is_ready(&server).await {
        tokio::task::yield_now().await;
    }
    gate.open();
    server.task.await.expect("stopped").expect("asked to stop");
}

#[tokio::test]
async fn files_are_kept_listed_sent_back_and_deleted() {
    let folder = tempfile::tempdir().expect("a folder");
    for config in [ServeConfig::default(), kept_in(folder.path())] {
        let server = start_with(parrot(), config).await;
        let client = Client::new(&server);
        let content = format!("{}\n\u{e9}\u{0}\n", line(1));
        let first = client.upload(&content).await;
        let second = client.upload("x").await;
        let shown = client.get(&format!("/v1/files/{first}")).await.json();
        let expected = json!({"id": first, "object": "file", "bytes": content.len(),
            "created_at": shown["created_at"], "filename": "in.jsonl", "purpose": "batch",
            "status": "processed"});
        assert_eq!(shown, expected);
        let sent = client.get(&format!("/v1/files/{first}/content")).await;
        assert_eq!((sent.status, &sent.body), (200, &content));
        assert!(sent.head.contains(&format!("content-length: {}", content.len())), "{}", sent.head);
        let list = client.get("/v1/files?purpose=batch&limit=1").await.json();
        assert_eq!((&list["object"], &list["has_more"]), (&json!("list"), &json!(true)), "{list}");
        let after = list["last_id"].as_str().expect("an id");
        let rest = client.get(&format!("/v1/files?after={after}")).await.json();
        let ids = [&list["data"][0], &rest["data"][0]].map(id);
        assert_eq!(BTreeSet::from(ids), BTreeSet::from([first.clone(), second.clone()]));
        assert_eq!(rest["has_more"], false);
        let unknown = client.get("/v1/files?after=file-x").await.error();
        assert_eq!(unknown, (400, Some("after".to_owned()), None));
        assert_eq!(client.get("/v1/files?purpose=batch_output").await.json()["data"], json!([]));
        let gone = client.delete(&format!("/v1/files/{first}")).await.json();
        assert_eq!(gone, json!({"id": first, "object": "file", "deleted": true}));
        for path in [format!("/v1/files/{first}"), format!("/v1/files/{first}/content")] {
            assert_eq!(client.get(&path).await.error().0, 404, "{path}");
        }
        assert_eq!(client.delete(&format!("/v1/files/{first}")).await.error().0, 404);
        assert_eq!(client.delete(&format!("/v1/files/{second}")).await.status, 200);
        server.stop().await;
    }
    assert_eq!(names_in(folder.path()), BTreeSet::new(), "a deleted file leaves nothing behind");
}

#[tokio::test]
async fn a_file_or_batch_that_is_wrong_is_refused_by_name() {
    let server = start(parrot()).await;
    let client = Client::new(&server);
    let file = client.upload("x").await;
    let form = |parts: &[(&str, &str)]| -> String {
        let part = |(name, value): &(&str, &str)| {
            format!("--edge\r\ncontent-disposition: form-data; name=\"{name}\"\r\n\r\n{value}\r\n")
        };
        parts.iter().map(part).chain(["--edge--\r\n".to_owned()]).collect()
    };
    for (parts, param) in [
        (&[("purpose", "batch")][..], "file"),
        (&[("file", "x")], "purpose"),
        (&[("file", ""), ("purpose", "batch")], "file"),
        (&[("file", "x"), ("purpose", "fine-tune")], "purpose"),
        (&[("file", "x"), ("file", "y"), ("purpose", "batch")], "file"),
        (&[("file", "x"), ("purpose", "batch"), ("expires_after", "1")], "expires_after"),
    ] {
        let kind = "multipart/form-data; boundary=edge";
        let answer = client.ask("POST", "/v1/files", kind, &form(parts)).await;
        assert_eq!(answer.error(), (400, Some(param.to_owned()), None), "{}", answer.body);
    }
    assert_eq!(client.post("/v1/files", json!({})).await.error().0, 400);
    let base = json!({"input_file_id": file, "endpoint": LINES, "completion_window": "24h"});
    for (name, value) in [
        ("input_file_id", json!("file-none")),
        ("input_file_id", Value::Null),
        ("endpoint", json!("/metrics")),
        ("endpoint", Value::Null),
        ("completion_window", json!("soon")),
        ("completion_window", json!("0h")),
        ("completion_window", json!("721h")),
        ("metadata", json!({"a": 1})),
        ("window", json!("24h")),
    ] {
        let mut body = base.clone();
        body[name] = value;
        let answer = client.post("/v1/batches", body).await;
        assert_eq!(answer.error(), (400, Some(name.to_owned()), None), "{}", answer.body);
    }
    for (query, param) in
        [("limit=0", "limit"), ("order=up", "order"), ("purpose=x", "purpose"), ("x=1", "x")]
    {
        let answer = client.get(&format!("/v1/files?{query}")).await;
        assert_eq!(answer.error(), (400, Some(param.to_owned()), None), "{}", answer.body);
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_line_whose_model_can_never_be_loaded_fails() {
    let specs = vec![spec("a", &Arc::default())];
    let catalog = Catalog::new(specs, Some(WEIGHT_BYTES / 2)).expect("a model");
    let server = start_models(catalog, ServeConfig::default()).await;
    let client = Client::new(&server);
    let batch = client.ended(&client.batch(&[line(0)]).await).await;
    assert_eq!((&batch["status"], counts(&batch)), (&json!("completed"), (1, 0, 1)));
    let results = client.results(&batch, "error_file_id").await;
    let error = &results[0]["response"]["body"]["error"];
    assert_eq!(error["code"], "model_not_loaded", "{error}");
    server.stop().await;
}

#[tokio::test]
async fn lines_have_the_priority_of_batches() {
    let gate = Gate::default();
    let config = ServeConfig { batch_priority: 7, ..ServeConfig::default() };
    let server = start_with(gated_parrot(&gate, 100), config).await;
    let client = Client::new(&server);
    client.ended(&client.batch(&[line(0)]).await).await;
    assert_eq!(server.complete(json!({"prompt": "abc", "max_tokens": 2})).await.status, 200);
    let priorities: Vec<i32> =
        gate.heard().iter().map(|request| request.ask.service.priority).collect();
    assert_eq!(priorities, [7, 0], "a line, and a request of a client");
    server.stop().await;
}

#[tokio::test]
async fn a_bad_line_fails_alone_with_its_number() {
    let folder = tempfile::tempdir().expect("a folder");
    for config in [ServeConfig::default(), kept_in(folder.path())] {
        let server = start_with(parrot(), config).await;
        let client = Client::new(&server);
        let chat = line(5).replace("/v1/completions", "/v1/chat/completions");
        let refused = line(6).replace("\"max_tokens\":2", "\"max_tokens\":-1");
        let stream = line(7).replace("\"max_tokens\":2", "\"stream\":true");
        let lines =
            [line(0), "{".to_owned(), String::new(), line(1), line(0), chat, refused, stream];
        let batch = client.batch(&lines).await;
        let batch = client.ended(&batch).await;
        assert_eq!((&batch["status"], counts(&batch)), (&json!("completed"), (7, 2, 5)));
        let mut good = client.results(&batch, "output_file_id").await;
        good.sort_by_key(|result| n(&result["line"]));
        for (result, (line, name)) in good.iter().zip([(1, "line-0"), (4, "line-1")]) {
            assert_eq!((n(&result["line"]), &result["custom_id"]), (line, &json!(name)));
            let response = &result["response"];
            assert_eq!((&response["status_code"], &result["error"]), (&json!(200), &Value::Null));
            assert_eq!(response["body"]["choices"][0]["text"], "ab");
        }
        assert_eq!(good.len(), 2);
        let mut bad = client.results(&batch, "error_file_id").await;
        bad.sort_by_key(|result| n(&result["line"]));
        let expected = [
            (2, "invalid_line", "line 2"),
            (5, "duplicate_custom_id", "line 1"),
            (6, "invalid_line", "`url`"),
            (7, "", "`max_tokens`"),
            (8, "invalid_line", "`body.stream`"),
        ];
        assert_eq!(bad.len(), expected.len());
        for (result, (line, code, words)) in bad.iter().zip(expected) {
            assert_eq!(n(&result["line"]), line, "{result}");
            let error = match code {
                "" => &result["response"]["body"]["error"],
                _ => &result["error"],
            };
            assert!(code.is_empty() || error["code"] == code, "{result}");
            assert!(error["message"].as_str().expect("a text").contains(words), "{result}");
        }
        assert_eq!(bad[3]["response"]["status_code"], 400);
        let listed = client.get("/v1/batches?limit=1").await.json();
        assert_eq!(listed["data"][0], batch);
        server.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cancelled_batch_keeps_its_results_and_asks_nothing_more() {
    let gate = Gate::closed(0);
    let server = start(gated_parrot(&gate, 64)).await;
    let client = Client::new(&server);
    let batch = client.batch(&many()).await;
    step_until_one_is_done(&gate, &client, &batch).await;
    let path = format!("/v1/batches/{batch}/cancel");
    let answer = client.post(&path, json!({})).await.json();
    assert_eq!(answer["status"], "cancelling");
    let ended = client.ended(&batch).await;
    let (total, completed, failed) = counts(&ended);
    assert_eq!((&ended["status"], total, failed), (&json!("cancelled"), MANY, 0));
    assert!((1..MANY).contains(&completed), "{completed}");
    assert_eq!(client.results(&ended, "output_file_id").await.len(), completed);
    assert_eq!(client.post(&path, json!({})).await.error().0, 400, "it has ended");
    gate.open();
    harness::health_until(&server, |health| health["running"] == 0).await;
    let n_heard = gate.heard().len();
    assert!(n_heard <= completed + AT_ONCE, "{n_heard} were asked, and {completed} answered");
    server.stop().await;
}

#[tokio::test]
async fn files_and_batches_of_another_tenant_are_not_there() {
    let tenant = |name: &str| Tenant { name: name.to_owned(), priority: 0, keys: Vec::new() };
    let access = Access::new(vec![tenant("default"), tenant("blue")]).expect("distinct");
    let server = start_with(parrot(), ServeConfig { access, ..ServeConfig::default() }).await;
    let (own, other) = (Client::new(&server), Client::with(&server, "x-pelton-tenant: blue"));
    let file = own.upload(&line(0)).await;
    let batch = id(&own.begin(&file).await.json());
    let output = own.ended(&batch).await["output_file_id"].as_str().expect("results").to_owned();
    for file in [&file, &output] {
        for path in [format!("/v1/files/{file}"), format!("/v1/files/{file}/content")] {
            assert_eq!(other.get(&path).await.error().0, 404, "{path}");
            assert_eq!(own.get(&path).await.status, 200, "{path}");
        }
        assert_eq!(other.delete(&format!("/v1/files/{file}")).await.error().0, 404);
    }
    assert_eq!(other.get(&format!("/v1/batches/{batch}")).await.error().0, 404);
    let cancel = format!("/v1/batches/{batch}/cancel");
    assert_eq!(other.post(&cancel, json!({})).await.error().0, 404);
    assert_eq!(other.begin(&file).await.error().1.as_deref(), Some("input_file_id"));
    for path in ["/v1/files", "/v1/batches"] {
        assert_eq!(other.get(path).await.json()["data"], json!([]), "{path}");
        assert_ne!(own.get(path).await.json()["data"], json!([]), "{path}");
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restart_in_the_middle_asks_only_the_lines_without_results() {
    let folder = tempfile::tempdir().expect("a folder");
    let gate = Gate::closed(0);
    let server = start_with(gated_parrot(&gate, 64), kept_in(folder.path())).await;
    let client = Client::new(&server);
    let batch = client.batch(&many()).await;
    step_until_one_is_done(&gate, &client, &batch).await;
    let record = folder.path().join(format!("{batch}.json"));
    stop_in_the_middle(server, &gate).await;
    // Half a line, as a process that was killed leaves it, and a file that was never complete.
    let state: Value = serde_json::from_slice(&std::fs::read(record).expect("kept")).expect("JSON");
    let output = folder.path().join(format!("{}.data", state["work"][0].as_str().expect("an id")));
    let kept = std::fs::read_to_string(&output).expect("kept");
    let n_kept = lines_of(&kept).len();
    assert!((1..MANY).contains(&n_kept), "{n_kept}");
    std::fs::write(&output, format!("{kept}{{\"id\":\"batch_req")).expect("written");
    std::fs::write(folder.path().join("file-torn.data"), "half").expect("written");
    let gate = Gate::default();
    let server = again(gated_parrot(&gate, 64), kept_in(folder.path())).await;
    let client = Client::new(&server);
    let ended = client.ended(&batch).await;
    assert_eq!((&ended["status"], counts(&ended)), (&json!("completed"), (MANY, MANY, 0)));
    let path = format!("/v1/files/{}/content", ended["output_file_id"].as_str().expect("an id"));
    let results = client.get(&path).await.body;
    assert!(results.starts_with(&kept), "finished lines stay as they are");
    let lines: BTreeSet<usize> = lines_of(&results).iter().map(|r| n(&r["line"])).collect();
    assert_eq!((lines.len(), results.lines().count()), (MANY, MANY), "each line once");
    assert_eq!(gate.heard().len(), MANY - n_kept, "no finished line is computed twice");
    // A state is shown a moment before it is written.
    let is_new = |name: &String| name.ends_with(".new");
    while names_in(folder.path()).iter().any(is_new) {
        tokio::task::yield_now().await;
    }
    let names = names_in(folder.path());
    assert!(!names.contains("file-torn.data"), "{names:?}");
    assert_eq!(names.len(), 2 + 2 + 1, "input, results and the batch: {names:?}");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch_whose_window_ends_has_expired_with_the_results_so_far() {
    let folder = tempfile::tempdir().expect("a folder");
    let gate = Gate::closed(0);
    let server = start_with(gated_parrot(&gate, 64), kept_in(folder.path())).await;
    let client = Client::new(&server);
    let batch = client.batch(&many()).await;
    step_until_one_is_done(&gate, &client, &batch).await;
    stop_in_the_middle(server, &gate).await;
    let record = folder.path().join(format!("{batch}.json"));
    let mut state: Value =
        serde_json::from_slice(&std::fs::read(&record).expect("kept")).expect("JSON");
    state["expires_at"] = json!(n(&state["created_at"]) - 1);
    std::fs::write(&record, state.to_string()).expect("written");
    let gate = Gate::default();
    let server = again(gated_parrot(&gate, 64), kept_in(folder.path())).await;
    let client = Client::new(&server);
    let ended = client.ended(&batch).await;
    assert_eq!(ended["status"], "expired", "{ended}");
    assert!(ended["expired_at"].is_u64(), "{ended}");
    let n_results = client.results(&ended, "output_file_id").await.len();
    assert!((1..MANY).contains(&n_results), "{n_results}");
    assert_eq!(gate.heard().len(), 0, "nothing is asked after the end");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_window_that_ends_while_lines_are_answered_ends_the_batch() {
    let folder = tempfile::tempdir().expect("a folder");
    let gate = Gate::closed(0);
    let server = start_with(gated_parrot(&gate, 64), kept_in(folder.path())).await;
    let client = Client::new(&server);
    let batch = client.batch(&many()).await;
    step_until_one_is_done(&gate, &client, &batch).await;
    stop_in_the_middle(server, &gate).await;
    // The least window of a request is an hour, so the record of the batch is given a shorter one.
    let record = folder.path().join(format!("{batch}.json"));
    let mut state: Value =
        serde_json::from_slice(&std::fs::read(&record).expect("kept")).expect("JSON");
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970");
    let expires_at = since_1970.as_secs() + 2;
    state["expires_at"] = json!(expires_at);
    std::fs::write(&record, state.to_string()).expect("written");
    let gate = Gate::closed(0);
    let server = again(gated_parrot(&gate, 64), kept_in(folder.path())).await;
    let client = Client::new(&server);
    let ended = client.ended(&batch).await;
    assert_eq!(ended["status"], "expired", "{ended}");
    assert!(n(&ended["expired_at"]) as u64 >= expires_at, "{ended}");
    assert_ne!(gate.heard().len(), 0, "lines were asked before the end of the window");
    let n_results = client.results(&ended, "output_file_id").await.len();
    assert!((1..MANY).contains(&n_results), "{n_results}");
    gate.open();
    server.stop().await;
}

#[tokio::test]
async fn a_file_above_the_limit_leaves_nothing_on_the_disk() {
    let folder = tempfile::tempdir().expect("a folder");
    let config = ServeConfig { max_file_bytes: 1000, ..kept_in(folder.path()) };
    let server = start_with(parrot(), config).await;
    let client = Client::new(&server);
    let answer = client.send(&"x".repeat(1001)).await;
    assert_eq!(answer.error(), (413, None, Some("body_too_large".to_owned())), "{}", answer.body);
    assert!(answer.body.contains("1000 bytes"), "{}", answer.body);
    // A body without a length is counted as it comes.
    let chunk = format!(
        "--edge\r\ncontent-disposition: form-data; name=\"file\"\r\n\r\n{}",
        "x".repeat(3000)
    );
    let chunked = format!(
        "POST /v1/files HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\
         content-type: multipart/form-data; boundary=edge\r\ntransfer-encoding: chunked\r\n\r\n\
         {:x}\r\n{chunk}\r\n0\r\n\r\n",
        chunk.len()
    );
    assert_eq!(server.raw(&chunked).await.error().0, 413);
    let announced = "POST /v1/files HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\
         content-type: multipart/form-data; boundary=edge\r\ncontent-length: 9000000000\r\n\r\n";
    assert_eq!(server.raw(announced).await.error().0, 413, "before the body comes");
    // A form without its end is no file either.
    let torn = "--edge\r\ncontent-disposition: form-data; name=\"file\"\r\n\r\nabc";
    let kind = "multipart/form-data; boundary=edge";
    assert_eq!(client.ask("POST", "/v1/files", kind, torn).await.error().0, 400);
    assert_eq!(names_in(folder.path()), BTreeSet::new());
    assert_eq!(client.get("/v1/files").await.json()["data"], json!([]));
    client.upload(&"x".repeat(1000)).await;
    assert_eq!(names_in(folder.path()).len(), 2);
    server.stop().await;
}

#[tokio::test]
async fn a_folder_that_cannot_be_used_is_named() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("file");
    std::fs::write(&file, "x").expect("written");
    let fails = async |path: &Path, words: &str| {
        let config = ServeConfig { port: Some(0), ..kept_in(path) };
        let error = Server::bind(parrot(), config).await.expect_err("unusable").to_string();
        assert!(error.contains("--files") && error.contains(words), "{error}");
    };
    fails(&file, "file").await;
    let own = folder.path().join("own");
    let server = start_with(parrot(), kept_in(&own)).await;
    fails(&own, "another process uses this folder").await;
    let client = Client::new(&server);
    let first = client.upload(&line(0)).await;
    std::fs::remove_dir_all(&own).expect("removed");
    let answer = client.send("x").await;
    assert_eq!(answer.error().0, 500, "{}", answer.body);
    assert!(answer.body.contains("the file cannot be kept"), "{}", answer.body);
    let answer = client.get(&format!("/v1/files/{first}/content")).await;
    assert!(answer.status == 500 && answer.body.contains("cannot be read"), "{}", answer.body);
    assert_eq!(client.begin(&first).await.error().0, 500);
    assert_eq!(client.get("/v1/batches").await.json()["data"], json!([]));
    server.stop().await;
}

#[tokio::test]
async fn lines_obey_the_limits_of_the_key_that_began_the_batch() {
    let house = House::new();
    house.limited("small", &[(Limit::TokensTotal, 20)]);
    house.add("large", |_| {});
    house.limited("narrow", &[(Limit::TokensPerMinute, 4)]);
    let server = house.serve().await;
    let client = Client::key(&server, "small");
    // Three tokens of a prompt and two of an answer.
    let lines: Vec<String> = (0..10).map(line).collect();
    let batch = client.batch(&lines).await;
    let batch = client.ended(&batch).await;
    assert_eq!((&batch["status"], counts(&batch)), (&json!("completed"), (10, 4, 6)));
    for result in client.results(&batch, "error_file_id").await {
        let response = &result["response"];
        assert_eq!(response["status_code"], 429);
        assert_eq!(response["body"]["error"]["code"], "insufficient_quota");
    }
    let used = |usage: &Value| {
        let total = &usage["total"];
        n(&total["prompt_tokens"]) + n(&total["completion_tokens"])
    };
    assert_eq!(used(&client.get("/v1/usage").await.json()), 20);
    let other = Client::key(&server, "large");
    assert_eq!(used(&other.get("/v1/usage").await.json()), 0, "another key of the tenant");
    let again = other.batch(&lines).await;
    assert_eq!(counts(&other.ended(&again).await), (10, 10, 0));
    assert_eq!(used(&other.get("/v1/usage").await.json()), 50);
    // A line that is larger than a limit per minute would wait for ever.
    let narrow = Client::key(&server, "narrow");
    let batch = narrow.batch(&lines[..1]).await;
    assert_eq!(counts(&narrow.ended(&batch).await), (1, 0, 1));
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_that_is_revoked_ends_its_batches_with_the_results_so_far() {
    let house = House::new();
    house.add("gone", |_| {});
    house.add("stays", |_| {});
    let gate = Gate::closed(0);
    let server = start_with(gated_parrot(&gate, 64), house.config()).await;
    let client = Client::key(&server, "gone");
    let batch = client.batch(&many()).await;
    step_until_one_is_done(&gate, &client, &batch).await;
    change_keys(&house.keys(), |file| {
        file.key_mut("gone").expect("it is there").revoked = Some(2000);
        Ok::<(), KeysError>(())
    })
    .expect("revoked");
    while client.get("/v1/models").await.status != 401 {
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    gate.open();
    let client = Client::key(&server, "stays");
    let ended = client.ended(&batch).await;
    let error = &ended["errors"]["data"][0];
    let message = error["message"].as_str().expect("a text");
    assert_eq!((&ended["status"], &error["code"]), (&json!("failed"), &json!("batch_failed")));
    assert!(message.contains("`gone`") && message.contains("revoked"), "{message}");
    let n_results = client.results(&ended, "output_file_id").await.len();
    assert!((1..MANY).contains(&n_results), "{n_results}");
    assert!(gate.heard().len() < MANY);
    server.stop().await;
}
