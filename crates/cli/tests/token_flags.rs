//! Flags of `pelton run` about single tokens, and models that have no tokenizer.

use crate::common::pelton;
use pelton_testkit::TinyModel;
use pelton_testkit::golden::encoder_decoders;

/// A tiny model without the files of its tokenizer.
fn without_tokenizer() -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    TinyModel::default().write_folder(folder.path());
    for name in ["tokenizer.json", "tokenizer_config.json"] {
        std::fs::remove_file(folder.path().join(name)).expect("ours");
    }
    folder
}

#[test]
fn token_ids_are_continued_without_a_tokenizer_and_texts_are_not() {
    let folder = without_tokenizer();
    let model = folder.path().to_str().expect("UTF-8");
    let run = ["run", "-m", model, "--ignore-eos", "--temperature", "0", "-n", "4", "--json"];
    let answer = pelton(&[&run[..], &["--tokens", "1,20,30"]].concat()).json();
    let tokens: Vec<u64> = (answer["tokens"].as_array().expect("tokens").iter())
        .map(|token| token.as_u64().expect("an id"))
        .collect();
    let ids: String = tokens.iter().map(|id| format!("{id} ")).collect();
    assert_eq!((tokens.len(), answer["text"].as_str()), (4, Some(ids.as_str())));
    pelton(&[&run[..], &["Once"]].concat()).assert_refused(&["tokenizer.json", "--tokens 1,2,3"]);
    // Texts have no tokens there.
    let run = ["run", "-m", model, "-n", "4", "-q", "--tokens", "1,20,30"];
    for (flag, value) in [
        ("--stop", "38"),
        ("--bad-words", "38"),
        ("--logit-bias", "x=100"),
        ("--regex", "a+"),
        ("--choice", "a"),
    ] {
        let outcome = pelton(&[&run[..], &[flag, value]].concat());
        assert_eq!((outcome.code, outcome.stdout.as_str()), (Some(2), ""), "{outcome:?}");
        let parts = [&format!("error: `{flag}`"), "no tokenizer"];
        assert!(parts.iter().all(|part| outcome.stderr.contains(*part)), "{}", outcome.stderr);
    }
    pelton(&[&run[..], &["--logit-bias", "38=-100"]].concat()).assert_answered();
}

#[test]
fn an_encoder_decoder_says_what_room_there_is() {
    for golden in encoder_decoders() {
        let folder = tempfile::tempdir().expect("a folder");
        golden.checkpoint.write_folder(folder.path());
        let model = folder.path().to_str().expect("UTF-8");
        let run = ["run", "-m", model, "--temperature", "0", "--ignore-eos", "-n", "5000"];
        let said = pelton(&[&run[..], &["--tokens", "5,6,7"]].concat());
        said.assert_answered();
        let n = said.stderr.split("leaves ").nth(1).and_then(|rest| rest.split(' ').next());
        let n: u64 = n.and_then(|n| n.parse().ok()).expect(&said.stderr);
        let answer = pelton(&[&run[..], &["--tokens", "5,6,7", "--json"]].concat()).json();
        assert_eq!(answer["usage"]["completion_tokens"], n);
        assert_eq!(answer["end"], "context full");
        let long = ["5"; 5000].join(",");
        let refused = pelton(&[&run[..], &["-q", "--tokens", &long]].concat());
        assert_eq!(refused.code, Some(2), "{}", refused.stderr);
        let error = refused.stderr.lines().last().unwrap_or_default();
        assert!(error.contains("has 5000 tokens; the encoder reads at most"), "{error}");
    }
}

#[test]
fn biases_penalties_and_stop_tokens_do_what_those_of_a_request_do() {
    let folder = tempfile::tempdir().expect("a folder");
    TinyModel::default().write_folder(folder.path());
    let model = folder.path().to_str().expect("UTF-8");
    let tokens = |flags: &[&str]| {
        let run = ["run", "-m", model, "--tokens", "1,20", "--temperature", "0", "--ignore-eos"];
        let answer = pelton(&[&run[..], &["-n", "6", "--json"], flags].concat()).json();
        answer["tokens"].as_array().expect("tokens").clone()
    };
    assert_eq!(tokens(&["--logit-bias", "77=100"]), [77; 6]);
    let both = |flags: &[&str]| {
        let tokens = tokens(&[&["--logit-bias", "77=98,78=99"], flags].concat());
        [77, 78].map(|id| tokens.iter().filter(|token| **token == id).count())
    };
    let [n_first, n_second] = both(&["--frequency-penalty", "2"]);
    assert!(n_first >= 2 && n_second >= 2, "{n_first} and {n_second}: each use counts");
    let [n_first, n_second] = both(&["--presence-penalty", "2"]);
    assert!(n_first >= 1 && n_second >= 1, "{n_first} and {n_second}: the first use counts");
    assert_ne!(both(&[]), both(&["--frequency-penalty", "2"]));
    assert_eq!(tokens(&["--logit-bias", "77=100", "--stop-token", "78,77"]), [77]);
}
