//! Where the settings of `pelton serve` come from, through the real binary.

use crate::common::{command, pelton};

/// The line of `--check-config` about a key, with this variable in the environment.
fn checked(args: &[&str], variable: Option<(&str, &str)>, key: &str) -> String {
    let mut command = command(&[&["serve", "--check-config"], args].concat());
    command.envs(variable);
    let output = command.output().expect("the binary starts");
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    let line = text.lines().find(|line| line.starts_with(&format!("{key}:")));
    line.unwrap_or_else(|| panic!("no {key} in {text}{:?}", output.stderr)).to_owned()
}

#[test]
fn a_flag_wins_over_a_variable_over_the_file_over_the_built_in_value() {
    let folder = tempfile::tempdir().expect("temp");
    let path = folder.path().join("serve.yaml");
    std::fs::write(&path, "max_running: 5\nprefix_cache: true\nembeddings: true\n")
        .expect("written");
    let file = ["--config", path.to_str().expect("UTF-8")];
    let variable = Some(("PELTON_MAX_RUNNING", "6"));
    assert_eq!(checked(&[], None, "max_running"), "max_running: 64");
    assert_eq!(checked(&file, None, "max_running"), "max_running: 5");
    assert_eq!(checked(&file, variable, "max_running"), "max_running: 6");
    let flags = [&file[..], &["--max-running", "7"]].concat();
    assert_eq!(checked(&flags, variable, "max_running"), "max_running: 7");

    let variable = Some(("PELTON_EMBEDDINGS", "false"));
    assert_eq!(checked(&file, None, "embeddings"), "embeddings: true");
    assert_eq!(checked(&file, variable, "embeddings"), "embeddings: false");
    let flags = [&file[..], &["--no-prefix-cache"]].concat();
    assert_eq!(checked(&flags, None, "prefix_cache"), "prefix_cache: false");
}

#[test]
fn what_check_config_prints_is_a_file_that_says_the_same() {
    let printed = |path: Option<&str>| {
        let config = path.map(|path| vec!["--config", path]);
        let flags = vec!["--spec", "early-exit:2", "--max-wait", "1.5", "--kv-memory", "2GiB"];
        let args = [vec!["serve", "--check-config"], config.unwrap_or(flags)];
        let outcome = pelton(&args.concat());
        outcome.assert_answered();
        outcome.stdout
    };
    let once = printed(None);
    let folder = tempfile::tempdir().expect("temp");
    let path = folder.path().join("serve.yaml");
    std::fs::write(&path, &once).expect("written");
    assert_eq!(printed(path.to_str()), once);
}

#[test]
fn an_unknown_key_is_refused_with_the_nearest_one() {
    let folder = tempfile::tempdir().expect("temp");
    let path = folder.path().join("serve.yaml");
    std::fs::write(&path, "port: 0\nmax_runing: 5\n").expect("written");
    let outcome = pelton(&["serve", "--check-config", "--config", path.to_str().expect("UTF-8")]);
    outcome.assert_refused(&["serve.yaml:2:", "`max_runing`", "`max_running`"]);
}

/// The reader of YAML names its own types and settings.
#[test]
fn values_of_a_wrong_type_are_refused_in_words() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("serve.yaml");
    for (file, expected) in [
        ("tenants: [{name: a, weight: -1}]", ":1:29: expected a whole number from 0"),
        (
            "tenants: [{name: a, limits: {tokens_per_day: x}}]",
            "expected a whole number that is not",
        ),
        ("page: maybe", "expected true or false"),
        ("model: a\nmodel: b", ":2:1: duplicate mapping key: model"),
    ] {
        std::fs::write(&path, file).expect("written");
        let config = ["serve", "--check-config", "--config", path.to_str().expect("UTF-8")];
        let refused = pelton(&config);
        refused.assert_refused(&["serve.yaml:", expected]);
        assert!(!refused.stderr.contains("DuplicateKeyPolicy"), "{}", refused.stderr);
    }
}

/// A list without models is a slip, not a wish for the built-in one.
#[test]
fn an_empty_list_of_models_is_refused() {
    let folder = tempfile::tempdir().expect("temp");
    let path = folder.path().join("serve.yaml");
    std::fs::write(&path, "models: []\n").expect("written");
    let config = ["serve", "--check-config", "--config", path.to_str().expect("UTF-8")];
    pelton(&config).assert_refused(&["serve.yaml", "`models` names no model"]);
}
