//! Frames: a head, tokens per second, times, the engine, and a table of tenants or models.

use std::time::Instant;

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, LineGauge, Paragraph, Row, Sparkline, Table};

use super::plain::{COLUMNS, age, cells, percent, quantile, rate, row, time, times};
use super::screen::{Screen, Tab};
use super::view::{Engine, Named, Traffic, View};

/// Styles of a screen with or without colours.
#[derive(Clone, Copy)]
struct Look {
    has_colors: bool,
}

impl Look {
    fn of(self, color: Color) -> Style {
        if self.has_colors { Style::new().fg(color) } else { Style::new() }
    }

    fn warning(self) -> Style {
        self.of(Color::Red).add_modifier(Modifier::BOLD | Modifier::REVERSED)
    }

    fn title(self) -> Style {
        Style::new().add_modifier(Modifier::BOLD)
    }
}

/// Draws the screen as of `now`.
pub(super) fn draw(frame: &mut Frame<'_>, screen: &Screen, now: Instant) {
    let look = Look { has_colors: screen.has_colors };
    let [head, body, foot] =
        Layout::vertical([Constraint::Length(2), Constraint::Fill(1), Constraint::Length(1)])
            .areas(frame.area());
    draw_head(frame, head, screen, look, now);
    let keys = "q quit   p pause   \u{2190} \u{2192} tenants, models   \u{2191} \u{2193} engine";
    frame.render_widget(Paragraph::new(keys).style(look.of(Color::DarkGray)), foot);
    let Some(view) = &screen.view else {
        frame.render_widget(Paragraph::new("waiting for the first answer ..."), body);
        return;
    };
    let [tokens, figures, table] =
        Layout::vertical([Constraint::Length(6), Constraint::Length(9), Constraint::Fill(1)])
            .areas(body);
    draw_tokens(frame, tokens, &view.total, look);
    let [left, right] =
        Layout::horizontal([Constraint::Percentage(48), Constraint::Fill(1)]).areas(figures);
    draw_times(frame, left, view, look);
    draw_engine(frame, right, screen.engine(), look);
    draw_table(frame, table, screen, view, look);
}

/// The server, its state, and whether it is away.
fn draw_head(frame: &mut Frame<'_>, area: Rect, screen: &Screen, look: Look, now: Instant) {
    let mut first = vec![Span::styled("Pelton ", look.title())];
    let mut second = Vec::new();
    if let Some(view) = &screen.view {
        let color = if view.status == "ok" { Color::Green } else { Color::Red };
        first.push(Span::raw(format!("{} at {}  ", view.version, screen.url)));
        first.push(Span::styled(view.status.clone(), look.of(color)));
        first.push(Span::raw(format!("  up {}", age(view.uptime_seconds))));
        let total = &view.total;
        second.push(Span::raw(format!(
            "{} running, {} waiting, {} requests/s; ended: {} stop, {} length, {} abort, {} error",
            total.running,
            total.waiting,
            rate(total.requests_per_second),
            total.ended.stop,
            total.ended.length,
            total.ended.abort,
            total.ended.error
        )));
        if view.view == "tenant" {
            first.push(Span::raw("  own tenant"));
        }
    } else {
        first.push(Span::raw(format!("at {}", screen.url)));
    }
    if screen.is_paused {
        first.push(Span::styled("  PAUSED", look.warning()));
    }
    if let Some((why, since)) = &screen.away {
        let seconds = now.saturating_duration_since(*since).as_secs_f64();
        let text = format!("AWAY for {}: {why}; asking every second", age(seconds));
        second = vec![Span::styled(text, look.warning())];
    }
    frame.render_widget(Paragraph::new(vec![Line::from(first), Line::from(second)]), area);
}

/// Tokens per second: the mean of ten seconds, and each second of the last minute.
fn draw_tokens(frame: &mut Frame<'_>, area: Rect, total: &Traffic, look: Look) {
    let areas: [Rect; 2] =
        Layout::horizontal([Constraint::Percentage(50), Constraint::Fill(1)]).areas(area);
    let parts = [
        ("generated", total.generated_tokens_per_second, &total.history.generated_tokens),
        ("prompts", total.prompt_tokens_per_second, &total.history.prompt_tokens),
    ];
    for (area, (name, per_second, history)) in areas.into_iter().zip(parts) {
        let title = format!(" {name}: {} tokens/s ", rate(per_second));
        let block = Block::bordered().title(Span::styled(title, look.title()));
        let inner = block.inner(area);
        // The present is at the right edge.
        let skipped = history.len().saturating_sub(usize::from(inner.width));
        let line = Sparkline::default()
            .data(history[skipped..].iter().copied())
            .style(look.of(Color::Cyan));
        frame.render_widget(block, area);
        frame.render_widget(line, inner);
    }
}

/// Quantiles of the times of requests.
fn draw_times(frame: &mut Frame<'_>, area: Rect, view: &View, look: Look) {
    let title = format!(" times of {} s ", view.window_seconds);
    let block = Block::bordered().title(Span::styled(title, look.title()));
    let heads = Row::new(["", "n", "P50", "P95", "P99"]).style(look.of(Color::DarkGray));
    let rows = times(&view.total).map(|(name, quantiles)| {
        let n = quantiles.map_or(0, |quantiles| quantiles.n).to_string();
        let [p50, p95, p99] = cells(quantiles);
        Row::new([name.to_owned(), n, p50, p95, p99])
    });
    let widths = [
        Constraint::Length(6),
        Constraint::Length(5),
        Constraint::Fill(1),
        Constraint::Fill(1),
        Constraint::Fill(1),
    ];
    frame.render_widget(Table::new(rows, widths).header(heads).block(block), area);
}

/// The engine of one model.
fn draw_engine(frame: &mut Frame<'_>, area: Rect, engine: Option<(&Named, &Engine)>, look: Look) {
    let Some((model, engine)) = engine else {
        let text =
            Paragraph::new("no engine to see with this key, or no model that generates text");
        frame.render_widget(text.block(Block::bordered().title(" engine ")), area);
        return;
    };
    let title = format!(" engine of {} ", model.name);
    let block = Block::bordered().title(Span::styled(title, look.title()));
    let inner = block.inner(area);
    frame.render_widget(block, area);
    let [kv, busy, rest] =
        Layout::vertical([Constraint::Length(1), Constraint::Length(1), Constraint::Fill(1)])
            .areas(inner);
    let gauges = [(kv, "KV  ", engine.kv.usage_ratio), (busy, "busy", engine.busy_ratio)];
    for (area, name, share) in gauges {
        let color = if share > 0.9 { Color::Yellow } else { Color::Cyan };
        let gauge = LineGauge::default()
            .ratio(share.clamp(0.0, 1.0))
            .label(format!("{name} {:>5}", percent(Some(share))))
            .filled_style(look.of(color).add_modifier(Modifier::BOLD))
            .filled_symbol("\u{2588}")
            .unfilled_symbol("\u{2500}");
        frame.render_widget(gauge, area);
    }
    let drafts = &engine.drafts;
    let lines = [
        format!(
            "{} running, {} waiting, {} KV blocks",
            engine.running, engine.waiting, engine.kv.blocks
        ),
        format!(
            "steps {}/s, P50 {}, P95 {}; at most {} tokens, {} requests",
            rate(engine.steps_per_second),
            quantile(engine.step.seconds, |q| q.p50),
            quantile(engine.step.seconds, |q| q.p95),
            engine.step.limit_tokens,
            engine.step.limit_requests
        ),
        format!(
            "token to token P50 {}, P99 {}",
            quantile(engine.inter_token_seconds, |q| q.p50),
            quantile(engine.inter_token_seconds, |q| q.p99)
        ),
        match drafts.drafted_tokens {
            0 => "no drafts".to_owned(),
            n => format!(
                "drafts: {n}, {} accepted, {} tokens a step",
                percent(drafts.acceptance_ratio),
                drafts.tokens_per_step.map_or_else(|| "-".to_owned(), |n| format!("{n:.2}"))
            ),
        } + &format!("; {} preemptions, {} restarts", engine.preemptions, engine.restarts),
    ];
    let mut lines = lines.map(Line::from).to_vec();
    let (text, is_alarm) = control(model);
    let style = if is_alarm { look.warning() } else { Style::new() };
    lines.push(Line::from(Span::styled(text, style)));
    frame.render_widget(Paragraph::new(lines), rest);
}

/// Control charts and the signals for autoscalers, and whether a chart is out of control.
fn control(model: &Named) -> (String, bool) {
    let scale = model.scale.as_ref().map_or_else(String::new, |scale| {
        let headroom = percent(Some(scale.slo_headroom_ratio));
        format!("headroom {headroom}, replicas {}", scale.desired_replicas)
    });
    let charts = &model.control;
    let measures = [("TTFT", &charts.ttft), ("TPOT", &charts.tpot), ("whole", &charts.e2e)];
    for (name, measure) in measures {
        let quantiles = [("P50", &measure.p50), ("P95", &measure.p95), ("P99", &measure.p99)];
        for (quantile, reading) in quantiles {
            let Some(reading) = reading else { continue };
            if let Some(rule) = reading.violations.iter().position(|is_broken| *is_broken) {
                let (value, centre) = (time(reading.value), time(reading.centre));
                let text =
                    format!("{quantile} of {name} {value}, usually {centre} (rule {})", rule + 1);
                return (text, true);
            }
        }
    }
    (scale, false)
}

/// Tenants or models, the busiest first.
fn draw_table(frame: &mut Frame<'_>, area: Rect, screen: &Screen, view: &View, look: Look) {
    let (title, other, rows) = match screen.tab {
        Tab::Tenants => (" tenants ", "models", &view.tenants),
        Tab::Models => (" models ", "tenants", &view.models),
    };
    let mut rows: Vec<_> = rows.iter().collect();
    rows.sort_by(|a, b| {
        let load = |named: &super::view::Named| named.traffic.running + named.traffic.waiting;
        load(b).cmp(&load(a)).then_with(|| a.name.cmp(&b.name))
    });
    let n_hidden = rows.len().saturating_sub(usize::from(area.height.saturating_sub(3)));
    let hidden = match n_hidden {
        0 => format!(" \u{2190} \u{2192} {other} "),
        n => format!(" {n} more; \u{2190} \u{2192} {other} "),
    };
    let block = Block::bordered().title(Span::styled(title, look.title())).title_bottom(hidden);
    let widths = [
        Constraint::Fill(2),
        Constraint::Length(7),
        Constraint::Length(7),
        Constraint::Length(6),
        Constraint::Length(8),
        Constraint::Length(8),
        Constraint::Length(8),
        Constraint::Length(8),
        Constraint::Length(6),
    ];
    let heads = Row::new(COLUMNS).style(look.of(Color::DarkGray));
    let table = Table::new(rows.into_iter().map(|named| Row::new(row(named))), widths);
    frame.render_widget(table.header(heads).block(block), area);
}
