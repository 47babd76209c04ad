//! Encoders against the reference; and one text alone, in batches, and with any number of threads.

use crate::vectors::{Fixture, all, bits, fixture, worst_error};
use pelton_base::TokenId;
use pelton_kernels::Kernels;
use pelton_model::ENCODERS;
use pelton_model::embed::{EmbedSpec, Pooling};

#[test]
fn pooled_rows_are_those_of_the_reference() {
    for fixture in all() {
        for pooling in Pooling::ALL {
            let mut model = fixture.model(pooling, Kernels::best(), 1);
            for (text, expected) in fixture.texts().iter().zip(fixture.pooled(pooling)) {
                let got = model.embed(&[text]).remove(0);
                let error = worst_error(&got, &expected);
                assert!(error < 1e-4, "{} {pooling}, {} tokens: {error}", fixture.name, text.len());
            }
        }
    }
}

#[test]
fn every_row_is_that_of_the_reference() {
    for fixture in all() {
        // The mean of one row is that row, so each row of the last layer is checked by itself.
        for (text, rows) in fixture.texts().iter().zip(fixture.hidden()) {
            let got = fixture.rows(text);
            for (row, (got, expected)) in got.iter().zip(&rows).enumerate() {
                let error = worst_error(got, expected);
                assert!(error < 1e-4, "{}, row {row} of {}: {error}", fixture.name, rows.len());
            }
        }
    }
}

#[test]
fn a_text_has_the_same_bits_alone_in_any_batch_and_with_any_threads() {
    for fixture in all() {
        let texts = fixture.texts();
        let texts: Vec<&[TokenId]> = texts.iter().map(Vec::as_slice).collect();
        let mut alone = fixture.model(Pooling::Mean, Kernels::best(), 1);
        let expected: Vec<_> = texts.iter().map(|text| bits(&alone.embed(&[text])[0])).collect();
        for kernels in Kernels::available() {
            for n_threads in [1, 3] {
                let mut model = fixture.model(Pooling::Mean, kernels, n_threads);
                for order in [[0, 1, 2, 3], [3, 2, 1, 0], [2, 2, 2, 1]] {
                    let batch: Vec<&[TokenId]> = order.iter().map(|i| texts[*i]).collect();
                    for (i, vector) in order.iter().zip(model.embed(&batch)) {
                        let what = format!("{}, {} x {n_threads}", fixture.name, kernels.name);
                        assert!(bits(&vector) == expected[*i], "{what}: text {i}");
                    }
                }
            }
        }
    }
}

#[test]
fn a_token_changes_the_rows_before_it() {
    for fixture in all() {
        let mut text = fixture.texts().remove(1);
        let before = fixture.rows(&text);
        let last = text.len() - 1;
        text[last] = TokenId(if text[last].0 == 9 { 10 } else { 9 });
        assert_ne!(bits(&before[0]), bits(&fixture.rows(&text)[0]), "{}", fixture.name);
    }
}

#[test]
fn every_encoder_has_a_fixture() {
    let all = all();
    let has = |name: &&str| all.iter().any(|fixture| fixture.architecture() == **name);
    for name in ["Gemma3TextModel", "Qwen2Model"] {
        assert!(has(&name), "{name}");
    }
    for arch in ENCODERS {
        assert!(arch.names.iter().any(has), "{:?}", arch.names);
    }
}

#[test]
fn an_encoder_saved_with_its_prefix_is_the_same() {
    let plain = fixture("bert");
    let prefixed = Fixture::renamed("bert", "BertForMaskedLM", |name| format!("bert.{name}"));
    let text = plain.texts().remove(2);
    assert_eq!(bits(&plain.rows(&text)[3]), bits(&prefixed.rows(&text)[3]));
}

#[test]
fn gguf_files_have_the_rows_and_the_pooling_of_the_folder() {
    for (name, pooling) in
        [("bert", Pooling::Cls), ("roberta", Pooling::Mean), ("nomic-bert", Pooling::Mean)]
    {
        let fixture = fixture(name);
        let files = fixture.gguf();
        let mut decoder = crate::vectors::decoder(&files, Kernels::best(), 1);
        assert!(EmbedSpec::is_declared(&files).expect("opens"));
        assert_eq!(EmbedSpec::read(&files, decoder.spec()).expect(name).pooling, [pooling]);
        for (text, rows) in fixture.texts().iter().zip(fixture.hidden()) {
            for (got, expected) in crate::vectors::rows(&mut decoder, text).iter().zip(&rows) {
                let error = worst_error(got, expected);
                assert!(error < 1e-4, "{name}: {error}");
            }
        }
    }
}
