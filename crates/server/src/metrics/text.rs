//! The text of all series: one tenant's alone, and in the format that was asked for.

/// A format of the text.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Format {
    /// OpenMetrics 1.0.
    OpenMetrics,
    /// Prometheus' older format, which every reader knows.
    Classic,
}

impl Format {
    /// The format that an `Accept` header asks for. OpenMetrics has to be asked for by its name.
    pub(crate) fn accepted(accept: &str) -> Self {
        let asks = |part: &str| {
            let mut parameters = part.split(';').map(str::trim);
            let is_open = parameters.next() == Some("application/openmetrics-text");
            is_open && !parameters.any(|parameter| matches!(parameter, "q=0" | "q=0.0"))
        };
        if accept.split(',').any(asks) { Self::OpenMetrics } else { Self::Classic }
    }

    pub(crate) fn content_type(self) -> &'static str {
        match self {
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Self::Classic => "text/plain; version=0.0.4; charset=utf-8",
        }
    }

    /// OpenMetrics text in this format.
    pub(super) fn of(self, text: String) -> String {
        match self {
            Self::OpenMetrics => text,
            Self::Classic => classic(&text),
        }
    }
}

/// Descriptions name the family in OpenMetrics, and the series in the older format.
fn classic(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut help = "";
    for line in text.split_inclusive('\n') {
        if line.starts_with("# HELP ") {
            help = line;
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.trim_end().rsplit_once(' ').unwrap_or((rest.trim_end(), ""));
            let (suffix, kind) = match kind {
                "counter" => ("_total", "counter"),
                "info" => ("_info", "gauge"),
                "unknown" => ("", "untyped"),
                kind => ("", kind),
            };
            let words = help.trim_end().strip_prefix("# HELP ").unwrap_or_default();
            let words = words.strip_prefix(name).unwrap_or_default();
            out.push_str(&format!("# HELP {name}{suffix}{words}\n# TYPE {name}{suffix} {kind}\n"));
        } else if !line.starts_with("# ") {
            out.push_str(line);
        }
    }
    out
}

/// The series of `text` with this tenant as a label, and their descriptions.
pub(super) fn series_of(text: &str, tenant: &str) -> String {
    // The text format writes values of labels like this. A quotation mark inside a value is written
    // with a backslash, so no other value contains the whole label.
    let value = tenant.replace('\\', r"\\").replace('"', "\\\"");
    let label = format!("tenant=\"{value}\"");
    let (mut kept, mut descriptions) = (String::new(), String::new());
    for line in text.split_inclusive('\n') {
        if line == "# EOF\n" {
            kept.push_str(line);
        } else if line.starts_with('#') {
            // Descriptions stand before the series, and are kept with the first one that is kept.
            if line.starts_with("# HELP") {
                descriptions.clear();
            }
            descriptions.push_str(line);
        } else if line.contains(&label) {
            kept.push_str(&std::mem::take(&mut descriptions));
            kept.push_str(line);
        }
    }
    kept
}

#[cfg(test)]
mod tests {
    use prometheus_client::encoding::{EncodeLabelSet, text};
    use prometheus_client::metrics::counter::Counter;
    use prometheus_client::metrics::family::Family;
    use prometheus_client::metrics::info::Info;
    use prometheus_client::registry::Registry;

    use super::*;

    #[derive(Clone, Debug, EncodeLabelSet, Eq, Hash, PartialEq)]
    struct OfTenant {
        tenant: String,
    }

    #[test]
    fn the_series_of_a_tenant_are_its_own_whatever_the_names_are() {
        let mut registry = Registry::default();
        let (ended, busy) = (Family::<OfTenant, Counter>::default(), Counter::<u64>::default());
        registry.register("ended", "Ended", ended.clone());
        registry.register("busy", "Busy", busy);
        let names = ["a", "ab", "\",tenant=\"a", "a\\", "\\", "tenant=a"];
        for name in names {
            ended.get_or_create(&OfTenant { tenant: name.to_owned() }).inc();
        }
        let mut text = String::new();
        text::encode(&mut text, &registry).expect("written");
        for name in names {
            let own = series_of(&text, name);
            let lines: Vec<&str> = own.lines().collect();
            let shown = name.replace('\\', r"\\").replace('"', "\\\"");
            let series = format!("ended_total{{tenant=\"{shown}\"}} 1");
            assert_eq!(lines, ["# HELP ended Ended.", "# TYPE ended counter", &series, "# EOF"]);
        }
        assert_eq!(series_of(&text, "b"), "# EOF\n");
    }

    #[test]
    fn the_older_format_names_each_series_by_its_whole_name() {
        let mut registry = Registry::default();
        registry.register("ended", "Ended", Counter::<u64>::default());
        registry.register("build", "Build", Info::new(vec![("version", "1")]));
        let mut text = String::new();
        text::encode(&mut text, &registry).expect("written");
        let expected = "# HELP ended_total Ended.\n# TYPE ended_total counter\nended_total 0\n\
                        # HELP build_info Build.\n# TYPE build_info gauge\nbuild_info{version=\"1\"} 1\n";
        assert_eq!(classic(&text), expected);
    }

    #[test]
    fn openmetrics_is_asked_for_by_name() {
        let prometheus = "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;q=0.2";
        for (accept, expected) in [
            (prometheus, Format::OpenMetrics),
            ("", Format::Classic),
            ("*/*", Format::Classic),
            ("text/plain", Format::Classic),
            ("application/openmetrics-text;q=0", Format::Classic),
        ] {
            assert_eq!(Format::accepted(accept), expected, "{accept}");
        }
    }
}
