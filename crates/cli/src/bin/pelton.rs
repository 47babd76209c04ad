//! The `pelton` binary: the command line of the library beside it.
#![forbid(unsafe_code)]

use std::process::ExitCode;

/// Makes an abort for lack of memory say so.
#[global_allocator]
static ALLOCATOR: pelton_tensor::ExplainingAllocator = pelton_tensor::ExplainingAllocator;

fn main() -> ExitCode {
    ExitCode::from(pelton_cli::main(std::env::args_os()))
}
