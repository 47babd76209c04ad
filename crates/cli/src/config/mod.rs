//! The settings of `pelton serve`: flags over the environment over a YAML file over built-in values.
//!
//! ```text
//!   --policy sla        PELTON_POLICY=fair     policy: lpm         fcfs
//!   flag            >   environment        >   file            >   built in
//! ```
//!
//! The table of flags gives the keys of the file, with underscores for dashes; tenants and API keys
//! are keys of their own. An unknown key is an error with its line. API keys are read into
//! [`Secret`]s and soon replaced by digests: no error, log or `--check-config` shows one, so errors
//! quote no line of the file either.

mod file;
mod models;
mod secret;
mod settings;

pub(crate) use models::ModelChoice;
pub(crate) use secret::Secret;
pub(crate) use settings::Settings;

/// Reads any bytes as the file of `--config` and as a file of API keys; each is settings, or an
/// error of one line that shows no key.
pub fn try_bytes(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    if let Err(why) = file::ConfigFile::parse(text) {
        let failure = crate::failure::Failure::new(why);
        assert_eq!(failure.line().expect("a line").lines().count(), 1);
    }
    if let Err(failure) = secret::parse_keys(text, std::path::Path::new("keys")) {
        let line = failure.line().expect("a line");
        let words = text.split_whitespace().filter(|word| word.len() > 20);
        for word in words {
            assert!(!line.contains(word), "{word} is shown");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    #[test]
    fn no_seed_of_the_fuzz_target_panics_or_shows_a_key() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds/serve_yaml");
        for entry in std::fs::read_dir(folder).expect("a folder") {
            let bytes = std::fs::read(entry.expect("an entry").path()).expect("a seed");
            (0..=bytes.len()).for_each(|end| super::try_bytes(&bytes[..end]));
        }
    }
}
