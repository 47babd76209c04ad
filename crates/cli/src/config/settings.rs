//! Flags, environment and file laid over one another: what is really served with.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use pelton_gateway::Limits;
use pelton_sched::TenantConfig;
use pelton_server::{Access, ApiKey, Routing, Tenant, check_names};
use serde::ser::{Serialize, SerializeMap, Serializer};

use super::file::ConfigFile;
use super::models::ModelChoice;
use crate::args::ServeArgs;
use crate::failure::{Failure, Result};
use crate::flags::{Chosen, lay_over, table};

/// Everything that `pelton serve` needs.
#[derive(Debug)]
pub(crate) struct Settings {
    /// The choices for the whole server.
    pub(crate) chosen: Chosen,
    /// The models.
    pub(crate) models: Vec<ModelChoice>,
    /// Rules that choose among them.
    pub(crate) routing: Routing,
    /// Whether the file lists the models.
    has_list: bool,
}

impl Settings {
    /// Reads the file that the flags name, and lays the flags over it.
    ///
    /// # Errors
    ///
    /// Names the file and line, or the setting, that is wrong.
    pub(crate) fn gather(args: &ServeArgs) -> Result<Self> {
        let (file, folder) = match &args.config {
            None => (ConfigFile::default(), Path::new("")),
            Some(path) => (ConfigFile::read(path)?, path.parent().unwrap_or(Path::new(""))),
        };
        let flag_keys: Vec<ApiKey> =
            args.api_key.iter().map(|key| key.key("--api-key")).collect::<Result<_>>()?;
        let mut chosen = Chosen::default();
        lay_over(&file.values, &mut chosen);
        args.lay_over(&mut chosen);
        let (tenants, people) = tenants(&file, folder, flag_keys)?;
        chosen.llm.choices.tenants = tenants;
        chosen.serve.access = match chosen.serve.gateway.key_file {
            Some(_) => Access::with_key_file(people)?,
            None => Access::new(people)?,
        };
        chosen.serve.gateway.tenant_limits = file.tenant_limits();
        let models = ModelChoice::all(&chosen, &file.models)?;
        let names = models.iter().map(|model| model.names().cloned().collect());
        let names = names.collect::<Vec<Vec<String>>>();
        check_names(&names).map_err(|error| Failure::new(format!("`models`: {error}")))?;
        let people = chosen.serve.access.tenants().iter();
        let tenants: Vec<String> = people.map(|tenant| tenant.name.clone()).collect();
        file.routing.check(&names, &tenants).map_err(|error| Failure::of(&error))?;
        let (chosen, has_list) = (chosen.resolve()?, !file.models.is_empty());
        Ok(Self { chosen, models, routing: file.routing, has_list })
    }

    /// The settings of the whole server as YAML, without the models and the rules.
    pub(crate) fn common_yaml(&self) -> Result<String> {
        let (chosen, models, routing) = (self.chosen.clone(), Vec::new(), Routing::default());
        Self { chosen, models, routing, has_list: false }.yaml()
    }

    /// The settings as a file for `--config`, with the number of API keys in their place.
    pub(crate) fn yaml(&self) -> Result<String> {
        serde_saphyr::to_string(self)
            .map_err(|error| Failure::internal(format!("cannot print the settings: {error}")))
    }
}

/// The tenants as the scheduler and as the server know them, in the same order. The first is
/// `default`, with the settings of the file if it has an entry of that name.
fn tenants(
    file: &ConfigFile,
    folder: &Path,
    flag_keys: Vec<ApiKey>,
) -> Result<(Vec<TenantConfig>, Vec<Tenant>)> {
    let default = TenantConfig::default();
    let mut people = vec![Tenant { name: default.name.clone(), priority: 0, keys: Vec::new() }];
    let mut configs = vec![default];
    let mut is_default_known = false;
    for entry in &file.tenants {
        let config = entry.config();
        let keys = entry.key_sources().keys(folder, &format!("tenant `{}`", entry.name))?;
        let tenant = Tenant { name: entry.name.clone(), priority: entry.priority, keys };
        if config.name == configs[0].name && !is_default_known {
            is_default_known = true;
            (configs[0], people[0]) = (config, tenant);
        } else {
            configs.push(config);
            people.push(tenant);
        }
    }
    let top_level = match flag_keys.is_empty() {
        true => file.key_sources().keys(folder, "api_keys")?,
        false => flag_keys,
    };
    people[0].keys.extend(top_level);
    Ok((configs, people))
}

/// As the file has it: a key per flag of the table, then the tenants, the models and the rules.
impl Serialize for Settings {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        let Self { chosen, models, routing, has_list } = self;
        let mut map = serializer.serialize_map(None)?;
        for flag in table() {
            let value = flag.get(chosen).map(|value| flag.kind.plain(&value));
            map.serialize_entry(&flag.key(), &value)?;
        }
        let configs = chosen.llm.choices.tenants.iter();
        let limits = &chosen.serve.gateway.tenant_limits;
        let tenants = configs
            .zip(chosen.serve.access.tenants())
            .map(|(config, tenant)| TenantView::of(config, tenant, limits));
        map.serialize_entry("tenants", &tenants.collect::<Vec<_>>())?;
        if *has_list {
            map.serialize_entry("models", models)?;
        }
        let Routing { auto, degrade } = routing;
        if !auto.is_empty() {
            map.serialize_entry("auto", auto)?;
        }
        if !degrade.is_empty() {
            map.serialize_entry("degrade", degrade)?;
        }
        map.end()
    }
}

/// One tenant as it is printed.
#[derive(serde::Serialize)]
struct TenantView<'a> {
    /// With the number of its API keys: their digests cannot be turned back into keys.
    name: serde_saphyr::Commented<&'a str>,
    weight: u32,
    max_waiting: Option<usize>,
    priority: i32,
    slo: SloView,
    limits: BTreeMap<&'static str, u64>,
}

/// Its latency targets.
#[derive(serde::Serialize)]
struct SloView {
    ttft_ms: Option<f64>,
    tpot_ms: Option<f64>,
}

impl<'a> TenantView<'a> {
    fn of(config: &'a TenantConfig, tenant: &Tenant, limits: &[(String, Limits)]) -> Self {
        let of_tenant = limits.iter().filter(|(name, _)| *name == config.name);
        let limits = of_tenant.flat_map(|(_, limits)| limits.iter());
        let ms = |time: Option<Duration>| time.map(|time| time.as_secs_f64() * 1000.0);
        let keys = match tenant.keys.len() {
            0 => "no API key".to_owned(),
            1 => "1 API key, which is not printed".to_owned(),
            n => format!("{n} API keys, which are not printed"),
        };
        Self {
            name: serde_saphyr::Commented(&config.name, keys),
            weight: config.weight,
            max_waiting: (config.max_waiting < usize::MAX).then_some(config.max_waiting),
            priority: tenant.priority,
            slo: SloView { ttft_ms: ms(config.slo.ttft), tpot_ms: ms(config.slo.tpot) },
            limits: limits.map(|(limit, most)| (limit.name(), most)).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::args::{Cli, Command};

    /// The settings of `pelton serve WORDS --config FILE`, or the line of the error.
    fn settings(file: &str, words: &[&str]) -> std::result::Result<Chosen, String> {
        let folder = tempfile::tempdir().expect("temp");
        let path = folder.path().join("serve.yaml");
        std::fs::write(&path, file).expect("written");
        std::fs::write(folder.path().join("keys"), "# one\n\nsk-from-file\n").expect("written");
        std::fs::write(folder.path().join("none"), "# nothing\n").expect("written");
        let path = path.to_str().expect("UTF-8");
        let all = ["pelton", "serve", "--config", path].into_iter().chain(words.iter().copied());
        let Command::Serve(args) = Cli::try_parse_from(all).expect("parses").command else {
            panic!("another command");
        };
        Settings::gather(&args)
            .map(|settings| settings.chosen)
            .map_err(|failure| failure.line().expect("a line"))
    }

    fn yaml(chosen: &Chosen) -> String {
        let (chosen, models, routing) = (chosen.clone(), Vec::new(), Routing::default());
        Settings { chosen, models, routing, has_list: false }.yaml().expect("printed")
    }

    const WHOLE: &str = "
model: embedded
port: 9000
policy: fair
priority_order: high-first
ttft_target: 250
max_wait: 1.5
cache_eviction: cost-aware
preemption: swap
swap_memory: 2GiB
max_batch_tokens: 256
prefix_cache: false
share_prefixes: true
api_keys: [sk-top]
tenants:
  - name: red
    weight: 3
    max_waiting: 10
    priority: -5
    slo: {ttft_ms: 100, tpot_ms: 20.5}
    api_keys: [sk-red-1, '12345']
  - name: blue
    api_keys_file: keys
";

    #[test]
    fn a_file_says_what_flags_say_and_flags_win() {
        let all = settings(WHOLE, &["--port", "0", "--policy", "sla"]).expect("well formed");
        let scheduling = &all.llm.choices;
        assert_eq!((all.serve.port, scheduling.policy.name()), (Some(0), "sla"));
        assert_eq!(scheduling.priority_order.name(), "high-first");
        assert_eq!(scheduling.slo.ttft, Some(Duration::from_millis(250)));
        assert_eq!(scheduling.max_wait, Duration::from_millis(1500));
        assert_eq!((all.llm.swap_bytes, all.llm.choices.max_batch_tokens), (2 << 30, 256));
        assert!(!scheduling.prefix_cache && all.llm.share_prefixes);
        let plain = settings("swap_memory: 1048576\nthreads: null\n", &[]).expect("well formed");
        assert_eq!(plain.llm.swap_bytes, 1 << 20);
        let names: Vec<&str> = scheduling.tenants.iter().map(|t| t.name.as_str()).collect();
        assert_eq!(names, ["default", "red", "blue"]);
        let red = &scheduling.tenants[1];
        assert_eq!((red.weight, red.max_waiting), (3, 10));
        assert_eq!(red.slo.tpot, Some(Duration::from_micros(20_500)));
        let people = all.serve.access.tenants();
        assert_eq!(people[1].priority, -5);
        let n_keys: Vec<usize> = people.iter().map(|tenant| tenant.keys.len()).collect();
        assert_eq!(n_keys, [1, 2, 1]);
    }

    #[test]
    fn what_is_printed_shows_everything_but_keys() {
        let all = settings(WHOLE, &["--api-key", "sk-flag-1", "--api-key", "sk-flag-2"]);
        let all = all.expect("well formed");
        let text = yaml(&all);
        for word in ["policy: fair", "name: red", "ttft_ms: 100", "# 2 API keys", "port: 9000"] {
            assert!(text.contains(word), "{word} is missing:\n{text}");
        }
        let shown = format!("{text}{all:?}");
        for secret in ["sk-", "12345"] {
            assert!(!shown.contains(secret), "{shown}");
        }
    }

    #[test]
    fn a_way_to_guess_is_written_in_a_file_as_in_a_flag() {
        let all = settings("spec: early-exit:3\nspec_max: 5\n", &[]).expect("well formed");
        assert_eq!((all.llm.spec.exit_layers, all.llm.spec.max_drafts), (Some(3), 5));
        assert!(yaml(&all).contains("spec: early-exit:3"));
        let all = settings("spec: draft:a/small\n", &["--spec-max", "2"]).expect("well formed");
        assert!(yaml(&all).contains("draft_model: a/small"), "{}", yaml(&all));
        let all = settings("spec: draft:a/small\n", &["--spec", "off"]).expect("well formed");
        assert!(all.llm.draft.is_none() && all.llm.spec.method.name() == "off");
    }

    #[test]
    fn an_entry_of_the_name_default_is_whoever_has_none() {
        let all = settings("tenants: [{name: a}, {name: default, weight: 9}]", &[]).expect("fine");
        let tenants = &all.llm.choices.tenants;
        assert_eq!((tenants[0].weight, tenants[1].name.as_str()), (9, "a"));
        assert_eq!(tenants.len(), 2);
    }

    #[test]
    fn an_error_names_the_line_and_never_a_key() {
        for (file, words) in [
            ("port: 1\nprot: 2\n", &[":2:", "prot"][..]),
            ("port: 1\nport: 2\n", &[":2:", "port"]),
            ("port: 123456\n", &[":1:"]),
            ("policy: best\n", &[":1:", "`best`", "fcfs, priority, lpm, sla, fair"]),
            ("\nttft_target: -3\n", &[":2:", "above 0"]),
            ("max_wait: soon\n", &[":1:"]),
            ("swap_memory: 4 apples\n", &[":1:", "4 apples"]),
            ("tenants:\n  - name: a\n    weight: 0\n", &[":3:", "zero"]),
            ("tenants:\n  - name: a\n    slo: {ttft_ms: 0}\n", &[":3:", "above 0"]),
            ("tenants:\n  - name: a\n    slo: {ttft: 1}\n", &[":3:", "ttft"]),
            ("tenants: [{name: a}, {name: a}]\n", &["`a`"]),
            ("tenants: [{name: a b}]\n", &["a b"]),
            ("preemption: swap\n", &["preemption"]),
            ("port: 1\nspec: magic\n", &[":2:", "`magic`", "draft:MODEL", "early-exit:N"]),
            ("spec: early-exit\n", &[":1:", "early-exit:N"]),
            ("spec: draft:a/a\ndraft_model: b/b\n", &["draft:a/a", "b/b"]),
            ("api_keys: sk-secret\n", &[":1:", "api_keys"]),
            ("api_keys: [[sk-secret]]\n", &[":1:", "api_keys"]),
            ("api_keys: {sk-secret: 1}\n", &[":1:", "api_keys"]),
            ("api_keys: ['sk-secret two']\n", &["API key"]),
            ("api_key: sk-secret\n", &[":1:", "api_key"]),
            ("api_keys: [sk-secret\nport: 1\n", &[":"]),
            ("api_keys_file: none\n", &["at least one"]),
            ("api_keys_file: missing\n", &["missing"]),
            ("api_keys_env: PELTON_TEST_NO_SUCH_VARIABLE\n", &["PELTON_TEST_NO_SUCH_VARIABLE"]),
            (
                "tenants: [{name: a, api_keys: [sk-secret]}, {name: b, api_keys: [sk-secret]}]\n",
                &["`a` and `b`"],
            ),
            ("tenants: [{name: a, api_keys: [sk-secret]}, {name: b}]\n", &["`b`"]),
        ] {
            let line = settings(file, &[]).expect_err(file);
            for word in words {
                assert!(line.contains(word), "{word} is missing from {line} for {file}");
            }
            assert!(!line.contains("sk-secret"), "{line}");
            assert!(!line.contains(" at line "), "{line}");
        }
        let line = settings("", &["--api-key", "sk-secret two"]).expect_err("a blank");
        assert!(line.contains("--api-key") && !line.contains("sk-secret"), "{line}");
    }
}
