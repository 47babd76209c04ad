//! The `pelton` binary: the command line of the library beside it.
#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    ExitCode::from(pelton_cli::main(std::env::args_os()))
}
