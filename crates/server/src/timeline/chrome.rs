//! A timeline in the trace format that Chrome's tracing page, Perfetto and speedscope read.
//!
//! Times are microseconds since the request's arrival. Row 0 is the request, and each answer has a
//! row of its own.

use pelton_llm::MarkKind;
use serde::Serialize;
use serde_json::{Value, json};

use super::{Record, Step};

/// The document.
#[derive(Debug, Serialize)]
pub(crate) struct ChromeTrace {
    #[serde(rename = "displayTimeUnit")]
    unit: &'static str,
    #[serde(rename = "traceEvents")]
    events: Vec<Value>,
    #[serde(rename = "otherData")]
    other: Value,
}

impl ChromeTrace {
    /// The timeline of a request; `tenant` is the name of its tenant.
    pub(crate) fn new(record: &Record, tenant: &str) -> Self {
        let mut events = vec![
            json!({"ph": "M", "pid": 1, "name": "process_name", "args": {"name": *record.model}}),
            named_row(0, "request"),
            instant("arrival", 0),
        ];
        if let Some(begin) = record.queue_us {
            events.push(span("queue", 0, 0, begin, json!({})));
            let end = record.first_token_us.unwrap_or(record.end_us);
            events.push(span("prompt", 0, begin, end, json!({})));
        }
        if let Some(first) = record.first_token_us {
            events.push(instant("first token", first));
            events.push(span("answer", 0, first, record.end_us, json!({})));
        }
        for (row, steps) in (1_u64..).zip(&record.answers) {
            events.push(named_row(row, &format!("answer {}", row - 1)));
            events.extend(steps.iter().map(|step| of_step(row, step)));
        }
        events.push(instant("end", record.end_us));
        let usage = record.usage;
        let other = json!({
            "request_id": *record.id,
            "model": *record.model,
            "tenant": tenant,
            "route": *record.route,
            "arrived": record.arrived,
            "prompt_tokens": usage.prompt_tokens,
            "cached_tokens": usage.cached_tokens,
            "completion_tokens": usage.completion_tokens,
            "finish_reasons": record.reasons,
        });
        Self { unit: "ms", events, other }
    }
}

fn of_step(row: u64, step: &Step) -> Value {
    let Step { n_steps, n_rows, n_tokens, n_drafts, .. } = *step;
    let name = match step.kind {
        MarkKind::Preempted => {
            return json!({"ph": "i", "s": "t", "pid": 1, "tid": row, "ts": step.begin_us,
                "name": "preempted", "cat": "step"});
        }
        MarkKind::Prefill => "prefill",
        MarkKind::Decode => "decode",
    };
    // A step without drafts brings one token, so the others were drafted and accepted.
    let n_accepted = n_tokens.saturating_sub(n_steps).min(n_drafts);
    let args = json!({"steps": n_steps, "computed_tokens": n_rows, "tokens": n_tokens,
        "draft_tokens": n_drafts, "accepted_tokens": n_accepted});
    span(name, row, step.begin_us, step.end_us, args)
}

fn named_row(row: u64, name: &str) -> Value {
    json!({"ph": "M", "pid": 1, "tid": row, "name": "thread_name", "args": {"name": name}})
}

fn instant(name: &str, at_us: u64) -> Value {
    json!({"ph": "i", "s": "p", "pid": 1, "tid": 0, "ts": at_us, "name": name, "cat": "request"})
}

fn span(name: &str, row: u64, begin_us: u64, end_us: u64, args: Value) -> Value {
    let cat = if row == 0 { "request" } else { "step" };
    json!({"ph": "X", "pid": 1, "tid": row, "ts": begin_us,
        "dur": end_us.saturating_sub(begin_us), "name": name, "cat": cat, "args": args})
}
