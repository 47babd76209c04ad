//! `pelton key`: makes, lists and revokes the keys of a file.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use crate::common::terminal::Terminal;
use crate::common::{Outcome, command, pelton, pelton_with_input};

/// A folder with a key file that is not made yet.
struct Keys {
    folder: tempfile::TempDir,
}

impl Keys {
    fn new() -> Self {
        Self { folder: tempfile::tempdir().expect("a folder") }
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("keys")
    }

    fn run(&self, words: &[&str]) -> Outcome {
        let path = self.path();
        pelton(&[&["key"], words, &["--key-file", path.to_str().expect("UTF-8")]].concat())
    }

    fn text(&self) -> String {
        std::fs::read_to_string(self.path()).expect("a file")
    }
}

fn mode(path: &Path) -> u32 {
    std::fs::metadata(path).expect("a file").permissions().mode() & 0o777
}

#[test]
fn a_key_is_printed_once_and_only_its_hash_stays() {
    let keys = Keys::new();
    let made = keys.run(&["new", "--expires", "30d", "--tokens-per-day", "1000"]);
    made.assert_answered();
    let key = made.stdout.trim_end();
    let (id, secret) = key.strip_prefix("pelton_").and_then(|key| key.split_once('_')).expect(key);
    assert_eq!((id.len(), secret.len(), mode(&keys.path())), (8, 40, 0o600));
    let text = keys.text();
    assert!(text.contains(id) && text.contains(" tokens_per_day=1000"), "{text}");
    assert!(!text.contains(secret) && !made.stderr.contains(secret), "{text}{}", made.stderr);
    let listed = keys.run(&["list"]);
    assert!(listed.stdout.contains(id) && listed.stdout.contains("valid"), "{}", listed.stdout);
    assert!(!listed.stdout.contains(secret), "{}", listed.stdout);
    let other = keys.run(&["new"]);
    assert_ne!(other.stdout, made.stdout);
    assert_eq!(keys.run(&["list", "--json"]).json().as_array().map(Vec::len), Some(2));
}

#[test]
fn a_revoked_key_stays_in_the_file_and_says_since_when() {
    let keys = Keys::new();
    let made = keys.run(&["new", "--id", "ci", "--scope", "user,metrics", "--json"]).json();
    assert_eq!((&made["id"], &made["scope"]), (&"ci".into(), &"user,metrics".into()));
    keys.run(&["new", "--id", "ci"]).assert_refused(&["a key `ci` already", "--id"]);
    keys.run(&["revoke", "ci", "cd"]).assert_refused(&["no key `cd`", "pelton key list"]);
    assert!(!keys.text().contains("revoked="), "one unknown id changes nothing");
    let revoked = keys.run(&["revoke", "ci", "--json"]).json();
    assert_eq!(revoked[0]["state"], "revoked");
    let first = keys.text();
    keys.run(&["revoke", "ci"]).assert_answered();
    assert_eq!(keys.text(), first, "the first time stays");
}

#[test]
fn a_secret_of_a_person_is_hashed_slowly() {
    let keys = Keys::new();
    let path = keys.path();
    let new = |secret: &str| {
        let words = ["key", "new", "--id", "bob", "--ask", "--key-file"];
        let words = [&words[..], &[path.to_str().expect("UTF-8")]].concat();
        pelton_with_input(&words, secret.as_bytes())
    };
    for bad in
        ["", "short\n", "with blanks in it\n", "\u{e9}\u{e9}\u{e9}\u{e9}\u{e9}\u{e9}\u{e9}\n"]
    {
        new(bad).assert_refused(&["12 to 400"]);
    }
    assert!(!path.exists());
    let made = new("correct-horse-battery\r\n");
    assert_eq!(made.stdout, "pelton_bob_correct-horse-battery\n");
    let text = keys.text();
    assert!(text.contains("bob $argon2id$v=19$m=19456,t=2,p=1$"), "{text}");
    assert!(!text.contains("horse"), "{text}");
}

#[test]
fn a_terminal_shows_keys_again_after_a_secret_and_after_ctrl_c() {
    let keys = Keys::new();
    let path = keys.path();
    let words = ["key", "new", "--id", "bob", "--ask", "--key-file"];
    let words = [&words[..], &[path.to_str().expect("UTF-8")]].concat();
    for (typed, code) in [("correct-horse-battery\n", 0), ("correct\u{3}", 130)] {
        let mut terminal = Terminal::start_with(80, &words, |command| command);
        terminal.wait("a hidden secret", |terminal| {
            terminal.log.contains("Secret: ") && !terminal.is_usual()
        });
        terminal.press(typed);
        assert_eq!(terminal.end(), Some(code), "{}", terminal.log);
        assert!(terminal.is_usual() && !terminal.log.contains("correct\r"), "{}", terminal.log);
    }
}

#[test]
fn mistakes_are_named() {
    let keys = Keys::new();
    for (words, parts) in [
        (&["new", "--expires", "soon"][..], &["--expires", "30d"][..]),
        (&["new", "--expires", "2020-01-01"], &["2020-01-01", "is over"]),
        (&["new", "--scope", "root"], &["--scope", "admin"]),
        (&["new", "--id", "Not OK"], &["--id", "lower-case"]),
        (&["new", "--tenant", "a b"], &["tenant"]),
        (&["new", "--tokens-per-day", "0"], &["--tokens-per-day"]),
        (&["list"], &["keys"]),
    ] {
        keys.run(words).assert_refused(parts);
        assert!(!keys.path().exists(), "{words:?}");
    }
    keys.run(&["new"]).assert_answered();
    std::fs::set_permissions(keys.path(), PermissionsExt::from_mode(0o644)).expect("set");
    keys.run(&["list"]).assert_refused(&["644", "chmod 600"]);
}

#[test]
fn a_key_file_behind_a_link_is_changed_and_the_link_stays() {
    let keys = Keys::new();
    keys.run(&["new", "--id", "first"]).assert_answered();
    let link = keys.path().with_file_name("link");
    std::os::unix::fs::symlink(keys.path(), &link).expect("a link");
    let file = link.to_str().expect("UTF-8");
    pelton(&["key", "new", "--key-file", file, "--id", "second"]).assert_answered();
    assert!(link.is_symlink() && keys.text().contains("second"), "{}", keys.text());
}

#[test]
fn a_key_that_cannot_be_shown_is_taken_back() {
    let keys = Keys::new();
    keys.run(&["new", "--id", "first"]).assert_answered();
    let before = keys.text();
    let path = keys.path();
    let args = ["key", "new", "--key-file", path.to_str().expect("UTF-8"), "--id", "second"];
    let full = std::fs::File::options().write(true).open("/dev/full").expect("a device");
    let output = command(&args).stdout(full).output().expect("the binary starts");
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(keys.text(), before);
}
