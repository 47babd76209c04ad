//! `pelton top` in a terminal, in a pipe, and without a server.

use crate::common::server::Server;
use crate::common::terminal::Terminal;
use crate::common::{self, pelton};
use serde_json::{Value, json};

fn busy_server(flags: &[&str]) -> Server {
    let server = Server::start(flags).expect("it listens");
    let body = json!({"prompt": "Once upon a time", "max_tokens": 8, "ignore_eos": true});
    server.post("/v1/completions", &body).expect("answered");
    server
}

#[test]
fn the_screen_shows_the_server_says_when_it_is_away_and_gives_the_terminal_back() {
    let server = busy_server(&["--threads", "1"]);
    let url = format!("http://{}", server.address());
    let mut terminal = Terminal::start_with(120, &["top", &url], |command| command);
    terminal.wait_on_screen(&format!("at {url}  ok"));
    terminal.wait_on_screen("engine of story");
    terminal.wait_on_screen("1 length");
    assert!(!terminal.is_usual(), "keys are read one by one");
    terminal.press("p");
    terminal.wait_on_screen("PAUSED");
    terminal.press("p\t");
    terminal.wait("models", |terminal| {
        !terminal.screen().contains("PAUSED") && terminal.screen().contains(" models ")
    });
    let port = server.address().rsplit(':').next().expect("a port").to_owned();
    drop(server);
    terminal.wait_on_screen("AWAY for");
    let again = common::command(&["serve", "--port", &port, "--threads", "1"]);
    let _server = Server::start_by(again).expect("the port is free again");
    terminal.wait("news", |terminal| !terminal.screen().contains("AWAY for"));
    terminal.press("q");
    assert_eq!(terminal.end(), Some(0));
    assert!(terminal.log.contains("\u{1b}[?1049l"), "the screen of before comes back");
}

#[test]
fn figures_and_json_are_printed_where_there_is_no_terminal() {
    let server = busy_server(&["--threads", "1"]);
    let once = pelton(&["top", server.address(), "--once"]);
    once.assert_answered();
    for part in ["ok, up", "0 running, 0 waiting", "TTFT", "of 1\n", "engine    story", "default"] {
        assert!(once.stdout.contains(part), "`{part}` is missing in\n{}", once.stdout);
    }
    let live: Value =
        pelton(&["top", &format!("http://{}/v1/", server.address()), "--json", "--once"]).json();
    assert_eq!(live["total"]["generated_tokens"], 8);
    pelton(&["top", server.address()]).assert_refused(&["no", "--once", "--json"]);
}

#[test]
fn a_server_that_is_not_there_or_refuses_is_named() {
    pelton(&["top", "127.0.0.1:9", "--once"]).assert_refused(&["http://127.0.0.1:9", "refused"]);
    pelton(&["top", "ftp://a", "--once"]).assert_refused(&["ftp", "http"]);
    pelton(&["top", "http://", "--once"]).assert_refused(&["names no host"]);
    let server = busy_server_with_key();
    pelton(&["top", server.address(), "--once"]).assert_refused(&["API key", "--key"]);
    pelton(&["top", server.address(), "--once", "--key", "wrong"]).assert_refused(&["API key"]);
    let own = pelton(&["top", server.address(), "--once", "--key", "sk-own"]);
    own.assert_answered();
    assert!(own.stdout.contains("of the tenant of this key alone"), "{}", own.stdout);
}

fn busy_server_with_key() -> Server {
    Server::start(&["--threads", "1", "--api-key", "sk-own"]).expect("it listens")
}
