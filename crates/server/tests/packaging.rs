//! The dashboard and the alert rules in `packaging/` ask for series that exist.

use std::collections::{BTreeMap, BTreeSet};

use crate::harness::parrot::parrot;
use crate::harness::{post_text, start_with};
use pelton_server::{Access, ApiKey, ServeConfig, Tenant};
use serde::Deserialize;
use serde_json::{Value, json};

const DASHBOARD: &str = include_str!("../../../packaging/grafana/pelton.json");
const ALERTS: &str = include_str!("../../../packaging/prometheus/alerts.yaml");

/// A file of alert rules, as Prometheus reads it.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct AlertFile {
    groups: Vec<AlertGroup>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct AlertGroup {
    name: String,
    rules: Vec<AlertRule>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct AlertRule {
    alert: String,
    expr: String,
    /// How long it must hold; at once without it.
    #[serde(rename = "for")]
    lasting: Option<String>,
    labels: BTreeMap<String, String>,
    annotations: BTreeMap<String, String>,
}

impl AlertRule {
    /// The labels that the series of the expression keep, where it names them: `sum by (a, b) (...)`.
    fn kept_labels(&self) -> Option<BTreeSet<&str>> {
        let (_, rest) = self.expr.split_once(" by (")?;
        let (list, _) = rest.split_once(')')?;
        Some(list.split(',').map(str::trim).collect())
    }

    /// The labels that the annotations ask for: `{{ $labels.NAME }}`.
    fn asked_labels(&self) -> BTreeSet<&str> {
        let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let texts = self.annotations.values().flat_map(|text| text.split("$labels.").skip(1));
        texts.filter_map(|rest| rest.split(|c| !is_part(c)).next()).collect()
    }
}

fn alert_rules() -> Vec<AlertRule> {
    let file: AlertFile = serde_saphyr::from_str(ALERTS).expect("YAML of alert rules");
    let groups: BTreeSet<&String> = file.groups.iter().map(|group| &group.name).collect();
    assert_eq!(groups.len(), file.groups.len(), "each group has its own name");
    file.groups.into_iter().flat_map(|group| group.rules).collect()
}

/// Names of series in a text.
fn names(text: &str) -> BTreeSet<String> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == ':';
    let words = text.split(|c: char| !is_part(c));
    let is_ours = |word: &&str| {
        ["pelton_", "vllm:", "http_", "process_"].iter().any(|prefix| word.starts_with(prefix))
    };
    words.filter(is_ours).map(str::to_owned).collect()
}

/// All texts under a key, however deep.
fn texts(value: &Value, key: &str, out: &mut String) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                match value {
                    Value::String(text) if name == key => {
                        out.push_str(text);
                        out.push('\n');
                    }
                    value => texts(value, key, out),
                }
            }
        }
        Value::Array(items) => items.iter().for_each(|item| texts(item, key, out)),
        _ => {}
    }
}

/// Names of the series that a server has once it has answered and refused something.
async fn known() -> BTreeSet<String> {
    let keys = vec![ApiKey::new("sk-ops metrics").expect("a key")];
    let tenant = Tenant { name: "default".to_owned(), priority: 0, keys };
    let access = Access::new(vec![tenant]).expect("a tenant");
    let server = start_with(parrot(), ServeConfig { access, ..ServeConfig::default() }).await;
    let with_key =
        |request: String| request.replacen("\r\n", "\r\nauthorization: Bearer sk-ops\r\n", 1);
    let body = json!({"prompt": "abc", "max_tokens": 3}).to_string();
    let asked = server.raw(&with_key(post_text("/v1/completions", &body))).await;
    assert_eq!(asked.status, 200, "{}", asked.body);
    assert_eq!(server.get("/v1/models").await.status, 401);
    let get = "GET /metrics HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
    let metrics = loop {
        let metrics = server.raw(&with_key(get.to_owned())).await.body;
        // The first look at the engine comes a moment after the start.
        if metrics.contains("pelton_slo_headroom_ratio{") {
            break metrics;
        }
        tokio::task::yield_now().await;
    };
    server.stop().await;
    // Only servers with HTTPS have this one, and `tls.rs` asks such a server for it.
    let mut known = BTreeSet::from(["pelton_tls_certificate_expiry_seconds".to_owned()]);
    for line in metrics.lines() {
        if let Some((name, kind)) = line.strip_prefix("# TYPE ").and_then(|l| l.split_once(' ')) {
            known.insert(name.to_owned());
            if kind == "histogram" {
                known.extend(["_bucket", "_sum", "_count"].map(|suffix| format!("{name}{suffix}")));
            }
        }
    }
    known
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_series_of_the_dashboard_and_of_the_alerts_exists() {
    let dashboard: Value = serde_json::from_str(DASHBOARD).expect("JSON");
    let mut asked = String::new();
    for key in ["expr", "query", "definition"] {
        texts(&dashboard, key, &mut asked);
    }
    let n_panels = dashboard["panels"].as_array().map_or(0, Vec::len);
    assert!(n_panels > 20 && names(&asked).len() > 20, "{n_panels} panels, {:?}", names(&asked));
    let mut alerts = BTreeSet::new();
    for rule in alert_rules() {
        let named = names(&rule.expr);
        assert!(!named.is_empty(), "no series in {rule:?}");
        alerts.extend(named);
        rule.annotations.values().for_each(|text| alerts.extend(names(text)));
    }
    assert!(alerts.len() > 8, "{alerts:?}");
    let known = known().await;
    for name in names(&asked).union(&alerts) {
        assert!(known.contains(name), "no series `{name}`; there are {known:?}");
    }
}

#[test]
fn panels_have_names_and_do_not_lie_on_each_other() {
    let dashboard: Value = serde_json::from_str(DASHBOARD).expect("JSON");
    let panels = dashboard["panels"].as_array().expect("a list");
    let (mut taken, mut ids) = (BTreeSet::new(), BTreeSet::new());
    for panel in panels {
        assert!(panel["title"].as_str().is_some_and(|title| !title.is_empty()), "{panel}");
        assert!(ids.insert(panel["id"].as_u64().expect("a number")), "{panel}");
        let place = |key: &str| panel["gridPos"][key].as_u64().expect("a number");
        for x in place("x")..place("x") + place("w") {
            for y in place("y")..place("y") + place("h") {
                assert!(x < 24 && taken.insert((x, y)), "{} lies on another panel", panel["title"]);
            }
        }
    }
}

#[test]
fn alert_rules_have_names_severities_and_summaries() {
    let mut taken = BTreeSet::new();
    for rule in alert_rules() {
        assert!(taken.insert(rule.alert.clone()), "two rules have the name {}", rule.alert);
        let name = rule.alert.strip_prefix("Pelton").unwrap_or_default();
        let is_camel = name.starts_with(|c: char| c.is_ascii_uppercase())
            && name.chars().all(|c| c.is_ascii_alphanumeric());
        assert!(is_camel, "{} is not of the form PeltonWhatIsWrong", rule.alert);
        if let Some(lasting) = &rule.lasting {
            let number = lasting.strip_suffix(['s', 'm', 'h']).and_then(|n| n.parse::<u32>().ok());
            assert!(number.is_some_and(|n| n > 0), "{}: for {lasting}", rule.alert);
        }
        let labels: Vec<(&str, &str)> =
            rule.labels.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        let [("severity", "critical" | "warning" | "info")] = labels[..] else {
            panic!("{}: labels {labels:?}", rule.alert)
        };
        let is_known = |name: &String| ["summary", "description"].contains(&name.as_str());
        assert!(rule.annotations.keys().all(is_known), "{rule:?}");
        assert!(rule.annotations.get("summary").is_some_and(|text| !text.is_empty()), "{rule:?}");
        for text in rule.annotations.values() {
            let marks = [text.matches("{{").count(), text.matches("}}").count()];
            assert_eq!(marks[0], marks[1], "{}: {text}", rule.alert);
        }
        if let Some(kept) = rule.kept_labels() {
            let asked = rule.asked_labels();
            assert!(asked.is_subset(&kept), "{}: {asked:?} of {kept:?}", rule.alert);
        }
    }
    assert!(taken.len() > 8, "{taken:?}");
}
