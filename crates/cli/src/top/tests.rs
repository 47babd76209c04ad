use std::time::{Duration, Instant};

use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use serde_json::json;

use super::plain::{age, rate, time};
use super::screen::{Screen, Tab};
use super::view::View;
use super::{draw, plain};

fn view() -> View {
    let quantiles = json!({"n": 12, "p50": 0.0125, "p95": 0.25, "p99": 1.5});
    let traffic = |name: &str, running: u64| {
        json!({"name": name, "running": running, "waiting": 1, "requests_per_second": 2.5,
            "generated_tokens_per_second": 123.4, "ttft_seconds": quantiles, "ended": {}})
    };
    let mut first = traffic("org/parrot", 3);
    first["engine"] = json!({"running": 3, "kv": {"blocks": 640, "usage_ratio": 0.45},
        "busy_ratio": 0.9, "drafts": {"drafted_tokens": 10, "acceptance_ratio": 0.7}});
    let mut second = traffic("org/owl", 0);
    second["engine"] = json!({"kv": {"blocks": 77}});
    let mut total = traffic("", 3);
    total["history"] = json!({"generated_tokens": vec![50; 60], "prompt_tokens": vec![0; 60]});
    let view = json!({"status": "ok", "version": "1.2.3", "view": "all", "uptime_seconds": 3700.0,
        "window_seconds": 60, "total": total, "models": [first, second], "unknown": [1],
        "tenants": [traffic("idle", 0), traffic("blue\u{1b}[2J", 3)]});
    serde_json::from_value(view).expect("a view")
}

fn shown(screen: &Screen, now: Instant, (columns, rows): (u16, u16)) -> String {
    let mut terminal = Terminal::new(TestBackend::new(columns, rows)).expect("a terminal");
    terminal.draw(|frame| draw::draw(frame, screen, now)).expect("drawn");
    terminal.backend().to_string()
}

fn press(screen: &mut Screen, code: KeyCode) {
    screen.press(KeyEvent::new(code, KeyModifiers::NONE));
}

#[test]
fn the_screen_shows_requests_tokens_times_and_the_engine() {
    let mut screen = Screen::new("http://server:8000", true);
    let now = Instant::now();
    assert!(shown(&screen, now, (100, 30)).contains("waiting for the first answer"));
    screen.update(view());
    let text = shown(&screen, now, (100, 30));
    for part in [
        "Pelton 1.2.3 at http://server:8000",
        "up 1 h 01 min",
        "3 running, 1 waiting",
        "generated: 123 tokens/s",
        "12.5 ms",
        "250 ms",
        "1.50 s",
        "engine of org/parrot",
        "45 %",
        "640 KV blocks",
        "70 % accepted",
        "tenants",
    ] {
        assert!(text.contains(part), "`{part}` is missing in\n{text}");
    }
    assert!(text.contains('\u{2588}'), "no sparkline in\n{text}");
    assert!(!text.contains('\u{1b}'), "a name must not steer the terminal:\n{text}");
    let place = |name: &str| text.find(name).expect("shown");
    assert!(place("blue") < place("idle "), "the busiest tenant comes first\n{text}");
}

#[test]
fn keys_pause_switch_and_quit() {
    let mut screen = Screen::new("u", false);
    screen.update(view());
    press(&mut screen, KeyCode::Char('p'));
    screen.update(View { version: "9.9.9".to_owned(), ..view() });
    let text = shown(&screen, Instant::now(), (100, 30));
    assert!(text.contains("PAUSED") && text.contains("1.2.3"), "{text}");
    press(&mut screen, KeyCode::Char('p'));
    press(&mut screen, KeyCode::Right);
    assert_eq!(screen.tab, Tab::Models);
    press(&mut screen, KeyCode::Down);
    press(&mut screen, KeyCode::Down);
    assert_eq!(
        screen.engine().map(|(model, engine)| (model.name.as_str(), engine.kv.blocks)),
        Some(("org/owl", 77))
    );
    screen.update(View { models: Vec::new(), ..view() });
    assert!(screen.engine().is_none(), "models may be unloaded meanwhile");
    assert!(shown(&screen, Instant::now(), (100, 30)).contains("no engine to see"));
    press(&mut screen, KeyCode::Up);
    assert!(!screen.is_done());
    screen.press(KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL));
    assert!(screen.is_done());
}

#[test]
fn a_server_that_is_away_is_said_to_be_and_comes_back() {
    let mut screen = Screen::new("u", false);
    screen.update(view());
    let lost = Instant::now();
    screen.away("connection refused", lost);
    screen.away("connection refused", lost + Duration::from_secs(3));
    let text = shown(&screen, lost + Duration::from_secs(65), (100, 30));
    assert!(text.contains("AWAY for 1 min 05 s: connection refused"), "{text}");
    assert!(text.contains("640 KV blocks"), "the last figures stay\n{text}");
    screen.update(view());
    assert!(!shown(&screen, lost, (100, 30)).contains("AWAY"));
}

#[test]
fn a_chart_out_of_control_takes_the_place_of_the_headroom() {
    let mut screen = Screen::new("u", false);
    let mut view = view();
    view.models[0].scale = serde_json::from_value(json!({"slo_headroom_ratio": 0.25,
        "desired_replicas": 3}))
    .expect("signals");
    screen.update(view.clone());
    let text = shown(&screen, Instant::now(), (100, 30));
    assert!(text.contains("headroom 25 %, replicas 3"), "{text}");
    let reading = json!({"ttft": {"p95": {"value": 2.5, "centre": 0.5,
        "violations": [false, true, false, false]}}});
    view.models[0].control = serde_json::from_value(reading).expect("charts");
    screen.update(view);
    let text = shown(&screen, Instant::now(), (100, 30));
    assert!(text.contains("P95 of TTFT 2.50 s, usually 500 ms (rule 2)"), "{text}");
}

#[test]
fn every_size_of_terminal_is_drawn() {
    let mut screen = Screen::new("u", true);
    screen.update(view());
    screen.away("gone", Instant::now());
    for columns in [1, 2, 7, 20, 40, 80, 300] {
        for rows in [1, 2, 3, 9, 24, 60] {
            shown(&screen, Instant::now(), (columns, rows));
        }
    }
}

#[test]
fn figures_as_text_have_units_and_no_control_characters() {
    let text = plain::text("http://u", &view());
    for part in ["Pelton 1.2.3 at http://u: ok, up 1 h 01 min", "3 running, 1 waiting", "org/owl"] {
        assert!(text.contains(part), "`{part}` is missing in\n{text}");
    }
    assert!(!text.contains('\u{1b}') && text.contains("blue[2J"), "{text}");
    let times = [0.000_002, 0.0123, 0.123, 1.234, 123.4, f64::NAN].map(time);
    assert_eq!(times, ["2 µs", "12.3 ms", "123 ms", "1.23 s", "123 s", "-"]);
    assert_eq!(
        [5.9, 65.0, 3_661.0, 90_000.0].map(age),
        ["5 s", "1 min 05 s", "1 h 01 min", "1 d 01 h"]
    );
    assert_eq!([0.0, 99.94, 100.4].map(rate), ["0.0", "99.9", "100"]);
}
