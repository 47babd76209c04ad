//! Questions to a server before and after a run.

use std::time::Duration;

use http_body_util::BodyExt;
use serde_json::Value;

use super::client::Client;
use super::counters::Series;
use crate::{BenchError, Result};

/// Largest answer that is read, in bytes.
const MOST_BYTES: usize = 16 << 20;

/// Longest time for one answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// Processor time of the server since its start, in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct ServerSeconds {
    pub(super) serving: f64,
    pub(super) model: f64,
}

/// The first model that the server lists.
///
/// # Errors
///
/// A server that does not answer, or that lists no model.
pub(super) async fn first_model(client: &Client) -> Result<String> {
    let (status, text) = get(client, "/v1/models").await?;
    let value: Option<Value> = serde_json::from_str(&text).ok();
    if status != 200 {
        let error = value.as_ref().and_then(|value| value.get("error"));
        let why = error.map(super::events::message).unwrap_or_default();
        let message = format!("/v1/models answers with status {status} {why}");
        return Err(BenchError::invalid_with_hint(message.trim_end(), HINT));
    }
    let id = value.as_ref().and_then(|value| value["data"][0]["id"].as_str());
    let id = id.ok_or_else(|| BenchError::invalid_with_hint("/v1/models lists no model", HINT))?;
    Ok(id.to_owned())
}

const HINT: &str = "--model NAME asks for a model without the list, --key KEY sends a key";

/// The metrics of a server that publishes them.
#[derive(Clone, Debug)]
pub(super) struct Metrics {
    /// Processor time; `None` of every server but Pelton.
    pub(super) seconds: Option<ServerSeconds>,
    pub(super) series: Series,
}

/// The metrics of a server; `None` where it publishes none.
pub(super) async fn metrics(client: &Client) -> Option<Metrics> {
    let (status, text) = get(client, "/metrics").await.ok()?;
    (status == 200).then(|| Metrics { seconds: seconds(&text), series: Series::read(&text) })
}

fn seconds(text: &str) -> Option<ServerSeconds> {
    let part = |name: &str| {
        let start = format!("pelton_cpu_seconds_total{{part=\"{name}\"}} ");
        text.lines().find_map(|line| line.strip_prefix(&start))?.trim().parse::<f64>().ok()
    };
    Some(ServerSeconds { serving: part("serving")?, model: part("model")? })
}

async fn get(client: &Client, route: &str) -> Result<(u16, String)> {
    let answer = tokio::time::timeout(PATIENCE, read(client, route)).await;
    answer.unwrap_or_else(|_| {
        let message = format!("the server does not answer {route} within {} s", PATIENCE.as_secs());
        Err(BenchError::invalid_with_hint(message, "--url says where the server is"))
    })
}

async fn read(client: &Client, route: &str) -> Result<(u16, String)> {
    let sent = client.send(route, None).await;
    let (response, connection) = sent.map_err(|trouble| {
        let message = format!("the server does not answer: {}: {}", trouble.kind, trouble.example);
        let hint = match trouble.example.contains("UnknownIssuer") {
            true => "its certificate is not trusted; `--ca FILE` trusts the certificates of a file",
            false => "`pelton serve` starts one; --url says where it is",
        };
        BenchError::invalid_with_hint(message, hint)
    })?;
    let status = response.status().as_u16();
    let mut body = response.into_body();
    let mut bytes = Vec::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| BenchError::invalid(format!("{route}: {error}")))?;
        let Ok(data) = frame.into_data() else { continue };
        bytes.extend_from_slice(&data);
        if bytes.len() > MOST_BYTES {
            return Err(BenchError::invalid(format!("{route} answers without end")));
        }
    }
    connection.give_back();
    Ok((status, String::from_utf8_lossy(&bytes).into_owned()))
}
