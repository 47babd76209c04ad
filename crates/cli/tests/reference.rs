//! Completions, manual pages and the reference, as the binary prints them.

use crate::common::{command, pelton};

#[test]
fn completions_know_commands_flags_and_values() {
    for shell in ["bash", "zsh", "fish", "powershell", "elvish"] {
        let script = pelton(&["completions", shell]);
        script.assert_answered();
        for word in ["inspect", "max-context"] {
            assert!(script.stdout.contains(word), "{shell}: {word} is missing");
        }
        // Two of the generators know no values.
        let has_values = !["powershell", "elvish"].contains(&shell);
        assert_eq!(script.stdout.contains("lpm"), has_values, "{shell}");
    }
    pelton(&["completions", "tcsh"]).assert_refused(&["tcsh", "bash", "fish"]);
}

#[test]
fn bash_accepts_its_completions() {
    let script = "source <(\"$0\" completions bash) && COMP_WORDS=(pelton ins) COMP_CWORD=1 \
                  && _pelton pelton ins pelton && echo \"${COMPREPLY[*]}\"";
    let pelton = env!("CARGO_BIN_EXE_pelton");
    let output = std::process::Command::new("bash").args(["-c", script, pelton]).output();
    let output = output.expect("bash starts");
    let words = String::from_utf8(output.stdout).expect("UTF-8");
    assert_eq!(words.trim(), "inspect", "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn there_is_a_manual_page_for_each_command() {
    let folder = tempfile::tempdir().expect("temp");
    let path = folder.path().to_str().expect("UTF-8");
    pelton(&["man", path]).assert_answered();
    for page in ["pelton.1", "pelton-run.1", "pelton-bench-model.1"] {
        let text = std::fs::read_to_string(folder.path().join(page)).expect(page);
        assert!(text.starts_with(".ie") && text.contains(".SH SYNOPSIS"), "{page}: {text}");
    }
    pelton(&["man", "/no/such/folder"]).assert_refused(&["/no/such/folder"]);
    pelton(&["man"]).assert_refused(&["FOLDER"]);
}

#[test]
fn the_reference_has_every_flag_that_the_help_has() {
    let page = pelton(&["man", "--markdown"]);
    page.assert_answered();
    for words in [&["run"][..], &["serve"], &["embed"], &["bench", "sim"], &["completions"]] {
        let heading = format!("## pelton {}\n", words.join(" "));
        let (_, section) = page.stdout.split_once(&heading).expect("a section");
        let section = section.split("\n## ").next().expect("its text");
        let help = command(words).arg("--help").output().expect("it starts").stdout;
        let help = String::from_utf8(help).expect("UTF-8");
        let flags = help.lines().filter_map(|line| {
            let flag = line.trim_start().split_once("--")?.1;
            let is_flag = line.trim_start().starts_with('-');
            is_flag.then(|| flag.split([' ', '=', '[', '.']).next().unwrap_or_default())
        });
        let mut n_flags = 0;
        for flag in flags.filter(|flag| !["help", "verbose"].contains(flag)) {
            assert!(section.contains(&format!("--{flag}")), "{words:?}: {flag} is missing");
            n_flags += 1;
        }
        assert!(n_flags > 3 || words == ["completions"], "{words:?} has {n_flags} flags");
    }
}
