//! First attempts of a newcomer: `curl -d`, a page on this machine, a long prompt.

use crate::harness::parrot::{Gate, gated_parrot, parrot};
use crate::harness::{Running, post_text, start, start_with};
use pelton_server::{Access, ApiKey, CorsOrigins, ServeConfig, Tenant};
use serde_json::json;
use tokio::io::AsyncReadExt;

const FORM: &str = "application/x-www-form-urlencoded";

#[tokio::test]
async fn curl_without_a_content_type_is_read_as_json_and_a_form_of_a_page_is_not() {
    let server = start(parrot()).await;
    let body = json!({"prompt": "ab", "max_tokens": 2, "temperature": 0}).to_string();
    let form = post_text("/v1/completions", &body).replace("application/json", FORM);
    let answer = server.raw(&form).await;
    assert_eq!(answer.json()["choices"][0]["text"], "ab");
    let page = form.replace("connection", "origin: http://localhost:3000\r\nconnection");
    assert_eq!(server.raw(&page).await.error().0, 415, "a browser sends a form without asking");
    let real_form = post_text("/v1/completions", "prompt=ab").replace("application/json", FORM);
    assert_eq!(server.raw(&real_form).await.error().0, 400);
    server.stop().await;
}

/// Rights of a page in a browser: `(allowed origin, answer to its question)`.
async fn ask_for_page(server: &Running, origin: &str) -> (Option<String>, u16) {
    let question = format!(
        "OPTIONS /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\
         origin: {origin}\r\naccess-control-request-method: POST\r\n\
         access-control-request-headers: authorization,content-type\r\n\r\n"
    );
    let answer = server.raw(&question).await;
    let field = |name: &str| {
        let line = answer.head.lines().find_map(|line| line.strip_prefix(name));
        line.map(|value| value.trim().to_owned())
    };
    let allowed = field("access-control-allow-origin:");
    if allowed.is_some() {
        let headers = field("access-control-allow-headers:").expect("headers");
        assert!(headers.contains("authorization") && headers.contains("content-type"), "{headers}");
        assert!(field("access-control-allow-methods:").is_some_and(|it| it.contains("post")));
    }
    (allowed, answer.status)
}

#[tokio::test]
async fn pages_of_this_machine_may_ask_and_other_pages_only_where_a_flag_says_so() {
    let keys = vec![ApiKey::new("k").expect("a key")];
    let tenant = Tenant { name: "default".to_owned(), priority: 0, keys };
    let access = || Access::new(vec![tenant.clone()]).expect("one tenant");
    let local = "http://localhost:5173";
    let far = "https://chat.example";
    for (flag, is_local_allowed, is_far_allowed) in
        [("localhost", true, false), ("none", false, false), ("*", true, true), (far, false, true)]
    {
        let cors_origins: CorsOrigins = flag.parse().expect("a flag");
        let config = ServeConfig { cors_origins, access: access(), ..ServeConfig::default() };
        let server = start_with(parrot(), config).await;
        for (origin, is_allowed) in [(local, is_local_allowed), (far, is_far_allowed)] {
            let (allowed, status) = ask_for_page(&server, origin).await;
            assert_eq!(allowed, is_allowed.then(|| origin.to_owned()), "{flag} {origin}");
            assert_eq!(status, 200, "a browser asks without a key");
            // An error too can be read by the page.
            let request = format!(
                "GET /v1/models HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\norigin: {origin}\r\n\r\n"
            );
            let answer = server.raw(&request).await;
            assert_eq!(answer.status, 401);
            let field = format!("access-control-allow-origin: {origin}");
            assert_eq!(answer.head.contains(&field), is_allowed, "{flag}: {}", answer.head);
        }
        server.stop().await;
    }
}

#[tokio::test]
async fn a_stream_says_how_far_the_prompt_is_if_asked() {
    let gate = Gate::closed(0);
    let server = start(gated_parrot(&gate, 8)).await;
    let body = json!({
        "prompt": "abcd", "max_tokens": 2, "stream": true, "temperature": 0,
        "stream_options": {"prompt_progress": true}
    });
    let mut stream = server.connect(&post_text("/v1/completions", &body.to_string())).await;
    let mut text = String::new();
    while !text.contains(": prompt 0/4") {
        let mut piece = [0; 1024];
        let n = stream.read(&mut piece).await.expect("the stream is open");
        assert!(n > 0, "{text}");
        text.push_str(std::str::from_utf8(&piece[..n]).expect("UTF-8"));
    }
    gate.open();
    stream.read_to_string(&mut text).await.expect("the rest");
    let end = text.find("data: [DONE]").expect("an end");
    let first = text.find("data: {").expect("a chunk");
    assert!(first < end && !text[first..].contains(": prompt"), "{text}");
    server.stop().await;
}

#[tokio::test]
async fn a_prompt_may_have_128_answers_and_a_request_1024() {
    let server = start(parrot()).await;
    let ask = |prompts: Vec<&str>, n: u32| json!({"prompt": prompts, "n": n, "max_tokens": 1});
    let answer = server.complete(ask(vec!["a"], 128)).await.json();
    assert_eq!(answer["choices"].as_array().expect("choices").len(), 128);
    let answer = server.complete(ask(vec!["a"; 8], 128)).await.json();
    assert_eq!(answer["choices"].as_array().expect("choices").len(), 1024);
    let (status, param, _) = server.complete(ask(vec!["a"; 9], 128)).await.error();
    assert_eq!((status, param.as_deref()), (400, Some("n")));
    let (status, param, _) = server.complete(ask(vec!["a"], 129)).await.error();
    assert_eq!((status, param.as_deref()), (400, Some("n")));
    server.stop().await;
}
