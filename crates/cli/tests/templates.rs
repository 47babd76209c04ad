//! Chat templates that replace the model's own, through the real binary.

use std::path::Path;

use crate::common::{Outcome, pelton, pelton_with_input};

/// A tiny model whose template is taken away; its vocabulary has the tokens of ChatML.
fn without_template() -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    pelton_testkit::TinyModel::default().write_folder(folder.path());
    let config = folder.path().join("tokenizer_config.json");
    let text = std::fs::read(&config).expect("a file");
    let mut object: serde_json::Value = serde_json::from_slice(&text).expect("JSON");
    object.as_object_mut().expect("an object").remove("chat_template").expect("a template");
    std::fs::write(&config, object.to_string()).expect("written");
    folder
}

fn text(path: &Path) -> &str {
    path.to_str().expect("a path of this test is UTF-8")
}

const LINE: &[u8] =
    br#"{"messages": [{"role": "user", "content": "Hi"}], "add_generation_prompt": true}"#;

fn rendered(outcome: &Outcome) -> String {
    outcome.json()["text"].as_str().expect("text").to_owned()
}

#[test]
fn a_model_without_a_template_says_which_built_in_one_looks_right() {
    let folder = without_template();
    let model = text(folder.path());
    let hint = "`--chat-template chatml` looks right";
    let answer = pelton(&["run", "-m", model, "-n", "1", "x"]);
    answer.assert_answered();
    assert!(answer.stderr.contains(hint), "{}", answer.stderr);
    pelton(&["run", "-m", model, "--chat", "x"]).assert_refused(&[hint]);
    pelton_with_input(&["tokenize", "-m", model, "--chat"], LINE).assert_refused(&[hint]);
    let chosen = ["run", "-m", model, "--chat-template", "chatml", "-n", "1", "--json", "x"];
    assert_eq!(pelton(&chosen).json()["mode"], "chat");
}

#[test]
fn built_in_templates_and_files_replace_the_models_own() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("mine.jinja");
    let own = "{{ mood }}: {{ messages[0]['content'] }}";
    std::fs::write(&file, own).expect("written");
    let tokenize = |more: &[&str], line: &[u8]| {
        rendered(&pelton_with_input(&[&["tokenize", "--chat"], more].concat(), line))
    };
    let gemma = tokenize(&["--chat-template", "gemma"], LINE);
    assert!(gemma.ends_with("<start_of_turn>user\nHi<end_of_turn>\n<start_of_turn>model\n"));
    let mine = ["--chat-template", text(&file), "--chat-template-kwargs", r#"{"mood": "glad"}"#];
    assert_eq!(tokenize(&mine, LINE), "glad: Hi");
    let line = br#"{"messages": [{"role": "user", "content": "Hi"}], "mood": "sad"}"#;
    assert_eq!(tokenize(&mine, line), "sad: Hi", "an argument of the line wins");

    std::fs::write(&file, "{{ raise_exception('never ' + mood) }}").expect("written");
    pelton(&[&["run"], &mine[..], &["x"]].concat()).assert_refused(&["refuses", "never glad"]);
    let config = pelton(&[&["serve", "--check-config"], &mine[..]].concat());
    config.assert_answered();
    for part in ["chat_template:", "chat_template_kwargs:", "glad"] {
        assert!(config.stdout.contains(part), "{}", config.stdout);
    }
}

#[test]
fn an_argument_that_no_template_mentions_is_refused_by_name() {
    let more = ["--chat-template", "chatml", "--chat-template-kwargs", r#"{"mod": 1}"#];
    let refused = pelton(&[&["run"], &more[..], &["x"]].concat());
    refused.assert_refused(&["`--chat-template-kwargs`", "no variable `mod`"]);
    let folder = without_template();
    let model = ["run", "x", "-m", text(folder.path()), "--chat-template-kwargs", r#"{"a": 1}"#];
    pelton(&model).assert_refused(&["`--chat-template-kwargs`", "no chat template"]);
}

#[test]
fn the_last_message_of_a_line_is_continued_or_a_new_one_begins() {
    let folder = without_template();
    let model = ["-m", text(folder.path()), "--chat-template", "chatml"];
    let tokenize = |line: serde_json::Value| {
        let args = [&["tokenize", "--chat"], &model[..]].concat();
        pelton_with_input(&args, line.to_string().as_bytes())
    };
    let said = serde_json::json!([
        {"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Ho"}
    ]);
    let line = |field: &str| serde_json::json!({ "messages": said, field: true });
    let open = rendered(&tokenize(line("continue_final_message")));
    assert!(open.ends_with("<|im_start|>assistant\nHo"), "{open}");
    let whole = rendered(&tokenize(serde_json::json!({ "messages": said })));
    assert_eq!(whole.trim_end(), format!("{open}<|im_end|>"));
    let next = rendered(&tokenize(line("add_generation_prompt")));
    assert_eq!(next, format!("{whole}<|im_start|>assistant\n"));
    let mut both = line("continue_final_message");
    both["add_generation_prompt"] = true.into();
    tokenize(both).assert_refused(&[
        "line 1 of standard input",
        "`continue_final_message`",
        "`add_generation_prompt`",
    ]);
}

#[test]
fn a_template_beside_raw_is_mentioned() {
    let args = ["run", "--raw", "--chat-template", "chatml", "-n", "1", "Once"];
    let mentions = |outcome: &Outcome| outcome.stderr.contains("the chat template changes nothing");
    let said = pelton(&args);
    said.assert_answered();
    assert!(mentions(&said), "{}", said.stderr);
    let quiet = pelton(&[&args[..], &["--quiet"]].concat());
    assert!(!mentions(&quiet), "{}", quiet.stderr);
}

#[test]
fn a_template_that_cannot_be_used_is_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let broken = folder.path().join("broken.jinja");
    std::fs::write(&broken, "{{ not-a-template").expect("written");
    for command in [
        &["run"][..],
        &["serve", "--port", "0"],
        &["serve", "--check-config"],
        &["tokenize", "--chat"],
    ] {
        let refuse = |more: &[&str], parts: &[&str]| {
            let word: &[&str] = if command[0] == "run" { &["x"] } else { &[] };
            pelton(&[command, more, word].concat()).assert_refused(parts);
        };
        refuse(&["--chat-template", "chatlm"], &["chatlm", "a file, or one of", "chatml"]);
        refuse(&["--chat-template", text(&broken)], &["broken.jinja"]);
        refuse(&["--chat-template", "/dev/zero"], &["/dev/zero"]);
        refuse(&["--chat-template-kwargs", "[1]"], &["--chat-template-kwargs", "a JSON object"]);
    }
}
