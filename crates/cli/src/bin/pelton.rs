//! The `pelton` binary: the command line of the library beside it.
#![forbid(unsafe_code)]

use std::process::ExitCode;

/// Makes an abort for lack of memory say so.
#[global_allocator]
static ALLOCATOR: pelton_tensor::ExplainingAllocator = pelton_tensor::ExplainingAllocator;

/// Bytes of stack that the main thread takes at its start, more than it ever uses.
const STACK_BYTES: usize = 1 << 20;

/// Grows the stack of this thread. Under a limit of memory the system may refuse to grow it later,
/// when the rest is used, and end the program by a signal.
#[inline(never)]
fn take_stack() {
    let bytes = [0_u8; STACK_BYTES];
    std::hint::black_box(&bytes);
}

fn main() -> ExitCode {
    take_stack();
    ExitCode::from(pelton_cli::main(std::env::args_os()))
}
