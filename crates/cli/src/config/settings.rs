//! Flags, environment and file laid over one another: what is really served with.

use std::path::Path;
use std::time::Duration;

use pelton_llm::{LlmOptions, Pooling};
use pelton_sched::{Choices, TenantConfig};
use pelton_server::{Access, ApiKey, ServeConfig, Tenant};
use serde::Serialize;

use super::file::ConfigFile;
use crate::args::{ServeArgs, SpecArgs, SpecChoice, VectorArgs};
use crate::failure::{Failure, Result};
use crate::model;

/// Everything that `pelton serve` needs.
#[derive(Debug)]
pub(crate) struct Settings {
    /// The model's name; `None` for the one inside the binary.
    pub(crate) model: Option<String>,
    /// Threads that compute; `None` for one per usable core.
    pub(crate) threads: Option<usize>,
    /// How it is loaded and run.
    pub(crate) options: LlmOptions,
    /// Where and to whom it is served.
    pub(crate) serve: ServeConfig,
    /// Whether vectors are served, whatever the model is.
    pub(crate) embeddings: bool,
    /// How vectors are made, where the flags say.
    pub(crate) vectors: VectorArgs,
}

impl Settings {
    /// Reads the file that the flags name, and lays the flags over it.
    ///
    /// # Errors
    ///
    /// Names the file and line, or the setting, that is wrong.
    pub(crate) fn gather(mut args: ServeArgs) -> Result<Self> {
        let (file, folder) = match args.config.clone() {
            None => (ConfigFile::default(), Path::new("").to_owned()),
            Some(path) => {
                let folder = path.parent().unwrap_or(Path::new("")).to_owned();
                (ConfigFile::read(&path)?, folder)
            }
        };
        let flag_keys: Vec<ApiKey> =
            args.api_key.iter().map(|key| key.key("--api-key")).collect::<Result<_>>()?;
        let (tenants, people) = tenants(&file, &folder, flag_keys)?;
        let access = Access::new(people)?;
        let share_prefixes = file.share_prefixes;
        fill(&mut args, file);

        let default = LlmOptions { name: args.served_name, ..model::options(&args.model) };
        let options = args.scheduling.apply(default, tenants, share_prefixes)?;
        let default = ServeConfig::default();
        let serve = ServeConfig {
            host: args.host.unwrap_or(default.host),
            port: args.port.unwrap_or(default.port),
            drain_timeout: args.drain_timeout.map_or(default.drain_timeout, Duration::from_secs),
            access,
            ..default
        };
        let (embeddings, vectors) = (args.embeddings, args.vectors);
        let threads = args.model.threads();
        Ok(Self { model: args.model.model, threads, options, serve, embeddings, vectors })
    }

    /// The settings as YAML, with the number of API keys in their place.
    pub(crate) fn yaml(&self) -> Result<String> {
        serde_saphyr::to_string(&View::of(self))
            .map_err(|error| Failure::internal(format!("cannot print the settings: {error}")))
    }
}

/// The tenants as the scheduler and as the server know them, in the same order: first whoever is in
/// no entry, with what is said of `default` if it has one.
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

/// Sets what no flag and no variable has set.
fn fill(args: &mut ServeArgs, file: ConfigFile) {
    fn fill<T>(place: &mut Option<T>, value: Option<T>) {
        if place.is_none() {
            *place = value;
        }
    }
    args.embeddings |= file.embeddings == Some(true);
    fill(&mut args.vectors.pooling, file.pooling);
    fill(&mut args.vectors.normalize, file.normalize);
    let ServeArgs { model, scheduling, host, port, drain_timeout, served_name, .. } = args;
    fill(&mut model.model, file.model);
    fill(&mut model.threads, file.threads);
    fill(&mut model.compute, file.compute);
    fill(&mut model.kv_dtype, file.kv_dtype);
    fill(&mut model.max_context, file.max_context);
    fill(&mut model.packed_cache, file.packed_cache.map(Into::into));
    fill(host, file.host);
    fill(port, file.port);
    fill(drain_timeout, file.drain_timeout);
    fill(served_name, file.served_name);
    fill(&mut scheduling.policy, file.policy);
    fill(&mut scheduling.priority_order, file.priority_order);
    fill(&mut scheduling.ttft_target, file.ttft_target);
    fill(&mut scheduling.tpot_target, file.tpot_target);
    fill(&mut scheduling.max_wait, file.max_wait);
    fill(&mut scheduling.batching, file.batching);
    fill(&mut scheduling.kv_allocation, file.kv_allocation);
    fill(&mut scheduling.cache_eviction, file.cache_eviction);
    fill(&mut scheduling.preemption, file.preemption);
    fill(&mut scheduling.swap_memory, file.swap_memory);
    fill(&mut scheduling.kv_memory, file.kv_memory);
    scheduling.spec.fill(SpecArgs {
        spec: file.spec,
        draft_model: file.draft_model,
        spec_max: file.spec_max,
        spec_verify: file.spec_verify,
        spec_recent: file.spec_recent,
    });
    fill(&mut scheduling.max_batch_tokens, file.max_batch_tokens);
    fill(&mut scheduling.max_running, file.max_running);
    fill(&mut scheduling.block_size, file.block_size);
    scheduling.no_prefix_cache |= file.prefix_cache == Some(false);
}

/// The settings as they are printed; in the words of the file, where the file has them.
#[derive(Serialize)]
struct View<'a> {
    model: &'a str,
    served_name: Option<&'a str>,
    host: &'a str,
    port: u16,
    drain_timeout: u64,
    threads: Option<usize>,
    kv_dtype: Option<&'static str>,
    max_context: Option<usize>,
    embeddings: bool,
    pooling: Option<&'static str>,
    normalize: Option<bool>,
    policy: &'static str,
    priority_order: &'static str,
    ttft_target: Option<f64>,
    tpot_target: Option<f64>,
    max_wait: f64,
    batching: &'static str,
    kv_allocation: &'static str,
    prefix_cache: bool,
    share_prefixes: bool,
    cache_eviction: &'static str,
    preemption: &'static str,
    swap_memory: u64,
    kv_memory: Option<u64>,
    spec: String,
    draft_model: Option<String>,
    spec_max: usize,
    spec_verify: &'static str,
    spec_recent: usize,
    max_batch_tokens: usize,
    max_running: usize,
    block_size: usize,
    tenants: Vec<TenantView<'a>>,
}

/// One tenant as it is printed.
#[derive(Serialize)]
struct TenantView<'a> {
    name: &'a str,
    weight: u32,
    max_waiting: Option<usize>,
    priority: i32,
    ttft_ms: Option<f64>,
    tpot_ms: Option<f64>,
    n_api_keys: usize,
}

impl<'a> View<'a> {
    fn of(settings: &'a Settings) -> Self {
        let Settings { model, threads, options, serve, embeddings, vectors } = settings;
        let Choices { policy, priority_order, max_wait, batching, kv_allocation, .. } =
            options.choices;
        let Choices { prefix_cache, eviction, preemption, .. } = options.choices;
        let LlmOptions { share_prefixes, swap_bytes, .. } = *options;
        let ms = |time: Option<Duration>| time.map(|time| time.as_secs_f64() * 1000.0);
        let tenants = options.choices.tenants.iter().zip(serve.access.tenants());
        Self {
            model: model.as_deref().unwrap_or("embedded"),
            served_name: options.name.as_deref(),
            host: &serve.host,
            port: serve.port,
            drain_timeout: serve.drain_timeout.as_secs(),
            threads: *threads,
            kv_dtype: options.kv_dtype.map(|dtype| dtype.name()),
            max_context: options.max_context,
            embeddings: *embeddings,
            pooling: vectors.pooling.map(Pooling::name),
            normalize: vectors.normalize,
            policy: policy.name(),
            priority_order: priority_order.name(),
            ttft_target: ms(options.choices.slo.ttft),
            tpot_target: ms(options.choices.slo.tpot),
            max_wait: max_wait.as_secs_f64(),
            batching: batching.name(),
            kv_allocation: kv_allocation.name(),
            prefix_cache,
            share_prefixes,
            cache_eviction: eviction.name(),
            preemption: preemption.name(),
            swap_memory: swap_bytes,
            kv_memory: options.kv_bytes,
            spec: SpecChoice {
                method: options.spec.method,
                draft_model: None,
                exit_layers: options.spec.exit_layers,
            }
            .to_string(),
            draft_model: options.draft.as_ref().map(|model| model.display_name()),
            spec_max: options.spec.max_drafts,
            spec_verify: options.spec.verification.name(),
            spec_recent: options.spec.recent_tokens,
            max_batch_tokens: options.choices.max_batch_tokens,
            max_running: options.choices.max_running,
            block_size: options.block_size,
            tenants: tenants
                .map(|(config, tenant)| TenantView {
                    name: &config.name,
                    weight: config.weight,
                    max_waiting: (config.max_waiting < usize::MAX).then_some(config.max_waiting),
                    priority: tenant.priority,
                    ttft_ms: ms(config.slo.ttft),
                    tpot_ms: ms(config.slo.tpot),
                    n_api_keys: tenant.keys.len(),
                })
                .collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::args::{Cli, Command};

    /// The settings of `pelton serve WORDS --config FILE`, or the line of the error.
    fn settings(file: &str, words: &[&str]) -> std::result::Result<Settings, String> {
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
        Settings::gather(*args).map_err(|failure| failure.line().expect("a line"))
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
        let scheduling = &all.options.choices;
        assert_eq!((all.serve.port, scheduling.policy.name()), (0, "sla"));
        assert_eq!(scheduling.priority_order.name(), "high-first");
        assert_eq!(scheduling.slo.ttft, Some(Duration::from_millis(250)));
        assert_eq!(scheduling.max_wait, Duration::from_millis(1500));
        assert_eq!((all.options.swap_bytes, all.options.choices.max_batch_tokens), (2 << 30, 256));
        assert!(!scheduling.prefix_cache && all.options.share_prefixes);
        let plain = settings("swap_memory: 1048576\nthreads: null\n", &[]).expect("well formed");
        assert_eq!(plain.options.swap_bytes, 1 << 20);
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
        let text = all.yaml().expect("printed");
        for word in ["policy: fair", "name: red", "ttft_ms: 100", "n_api_keys: 2", "port: 9000"] {
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
        assert_eq!((all.options.spec.exit_layers, all.options.spec.max_drafts), (Some(3), 5));
        assert!(all.yaml().expect("printed").contains("spec: early-exit:3"));
        let all = settings("spec: draft:a/small\n", &["--spec-max", "2"]).expect("well formed");
        assert!(all.yaml().expect("printed").contains("draft_model: a/small"), "{:?}", all.yaml());
        let all = settings("spec: draft:a/small\n", &["--spec", "off"]).expect("well formed");
        assert!(all.options.draft.is_none() && all.options.spec.method.name() == "off");
    }

    #[test]
    fn an_entry_of_the_name_default_is_whoever_has_none() {
        let all = settings("tenants: [{name: a}, {name: default, weight: 9}]", &[]).expect("fine");
        let tenants = &all.options.choices.tenants;
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
