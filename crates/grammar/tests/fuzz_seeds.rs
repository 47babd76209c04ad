//! Every seed of the fuzz target, and each with its end cut off, as a plain test.

#[path = "../../../fuzz/cases/grammar.rs"]
mod grammar;

#[test]
fn no_seed_makes_the_target_panic() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds/grammar");
    let seeds: Vec<_> = std::fs::read_dir(folder).expect("a folder").collect();
    assert!(seeds.len() >= 4);
    for seed in seeds {
        let bytes = std::fs::read(seed.expect("an entry").path()).expect("a seed");
        for end in [bytes.len(), bytes.len() / 2, bytes.len() / 3] {
            grammar::run(&bytes[..end]);
        }
    }
}
