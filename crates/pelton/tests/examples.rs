//! Every example runs to its end with the model that is part of the library.
#![allow(dead_code, reason = "the examples' `main` reads the command line, and is not called here")]

#[path = "../examples/chat.rs"]
mod chat;
#[path = "../examples/embed.rs"]
mod embed;
#[path = "../examples/generate.rs"]
mod generate;
#[path = "../examples/logits_processor.rs"]
mod logits_processor;
#[path = "../examples/own_proposer.rs"]
mod own_proposer;
#[path = "../examples/stream.rs"]
mod stream;

/// Makes a test of each example; a file of the folder that is missing here fails the last one.
macro_rules! run {
    ($($name:ident),+) => {
        mod runs_to_its_end {$(
            #[test]
            fn $name() {
                super::$name::run(pelton::story()).expect(stringify!($name));
            }
        )+}

        #[test]
        fn every_example_of_the_folder_is_run() {
            let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/examples");
            let files = std::fs::read_dir(folder).expect("the folder");
            let mut found: Vec<String> = files
                .map(|file| file.expect("an entry").file_name().into_string().expect("UTF-8"))
                .collect();
            found.sort();
            assert_eq!(found, [$(concat!(stringify!($name), ".rs")),+]);
        }
    };
}

run!(chat, embed, generate, logits_processor, own_proposer, stream);
