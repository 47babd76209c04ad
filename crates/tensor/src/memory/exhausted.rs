//! The end of a process to which the system refuses memory.
//!
//! Large buffers are asked for in a way that can fail, and their refusal is an error like any other
//! ([`MemoryRefused`](crate::MemoryRefused)). The small allocations of the standard library and of
//! other crates cannot fail: `Vec::push` without memory aborts the process, and its exit code is
//! that of a crash. With the allocator and the handler of this module the abort says what lacks,
//! and the process ends like one whose large buffer was refused.
//!
//! ```text
//! Vec::push ─▶ ExplainingAllocator ─▶ System: null      the size is kept, for this thread
//!          └─▶ abort ─▶ SIGABRT ─▶ is a size kept? ─▶ one line on stderr, exit code 2
//!                                  └─ no: the handler that was there before
//! ```
//!
//! The allocator cannot end the process itself, because `try_reserve` asks in the same way and
//! lives with a refusal. The handler takes no lock and no memory, as that of lost files.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

/// Exit code of a process that ends for lack of memory.
pub const NO_MEMORY_EXIT_CODE: i32 = 2;

thread_local! {
    /// Bytes of the last allocation that the system refused to this thread; 0 before the first.
    // `const` and without a destructor: reading it in a signal handler runs no other code.
    static REFUSED: Cell<usize> = const { Cell::new(0) };
}

/// The system's allocator, which remembers the size of the last allocation that was refused, so
/// that [`handle_memory_signal`] can name it.
///
/// A program sets it as its `#[global_allocator]`; a library leaves that choice alone.
#[derive(Clone, Copy, Debug, Default)]
pub struct ExplainingAllocator;

impl ExplainingAllocator {
    /// Keeps the size where `memory` is null.
    #[inline]
    fn noted(memory: *mut u8, n_bytes: usize) -> *mut u8 {
        if memory.is_null() {
            // A thread that is ending has no such place any more.
            let _ = REFUSED.try_with(|refused| refused.set(n_bytes.max(1)));
        }
        memory
    }
}

// SAFETY: every call goes to the system's allocator with the same arguments.
unsafe impl GlobalAlloc for ExplainingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller vouches for the layout.
        Self::noted(unsafe { System.alloc(layout) }, layout.size())
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller vouches for the layout.
        Self::noted(unsafe { System.alloc_zeroed(layout) }, layout.size())
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, n_bytes: usize) -> *mut u8 {
        // SAFETY: the caller vouches for the memory, its layout and the new size.
        Self::noted(unsafe { System.realloc(memory, layout, n_bytes) }, n_bytes)
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: the caller vouches for the memory and its layout.
        unsafe { System.dealloc(memory, layout) }
    }
}

/// From now on an abort for lack of memory is a line on stderr and [`NO_MEMORY_EXIT_CODE`], where
/// [`ExplainingAllocator`] is the program's allocator.
///
/// A program calls this once, at its start; a library leaves signals alone.
///
/// # Errors
///
/// The system's own.
#[cfg(unix)]
pub fn handle_memory_signal() -> std::io::Result<()> {
    handler::install()
}

/// As on Unix, where there is such a signal.
///
/// # Errors
///
/// Never.
#[cfg(not(unix))]
pub fn handle_memory_signal() -> std::io::Result<()> {
    Ok(())
}

/// The line about a refusal of `n_bytes`, and its length. Takes no memory.
#[cfg_attr(not(unix), allow(dead_code))]
fn line_about(n_bytes: usize) -> ([u8; 256], usize) {
    use std::io::Write;
    let mut line = [0; 256];
    let mut rest = &mut line[..];
    // The numbers of `core::fmt` need no memory, and the line is shorter than the buffer.
    let written = writeln!(
        rest,
        "error: the system refuses {n_bytes} bytes of memory, and without them the program cannot \
         go on (hint: `ulimit -v`, the container's limit and the machine's memory bound it)"
    );
    let n_left = rest.len();
    debug_assert!(written.is_ok(), "the buffer holds the line");
    (line, 256 - n_left)
}

#[cfg(unix)]
mod handler {
    use std::io;

    use super::{NO_MEMORY_EXIT_CODE, REFUSED, line_about};

    pub(super) fn install() -> io::Result<()> {
        let handler: extern "C" fn(libc::c_int) = on_abort;
        // SAFETY: zeros are an action: the default one, without flags and with an empty mask.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        action.sa_sigaction = handler as usize;
        action.sa_flags = libc::SA_ONSTACK | libc::SA_RESETHAND;
        // SAFETY: the handler only makes calls that a signal handler may make; the last pointer
        // may be null.
        let answer = unsafe { libc::sigaction(libc::SIGABRT, &action, std::ptr::null_mut()) };
        if answer == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    /// Any other abort goes on: with SA_RESETHAND the next signal, which `abort` sends when this
    /// function returns, has the system's own action.
    extern "C" fn on_abort(_signal: libc::c_int) {
        let n_bytes = REFUSED.try_with(std::cell::Cell::get).unwrap_or(0);
        if n_bytes > 0 {
            let (line, n_line) = line_about(n_bytes);
            // SAFETY: the bytes are those of `line`; both calls may be made in a signal handler.
            unsafe {
                libc::write(libc::STDERR_FILENO, line.as_ptr().cast(), n_line);
                libc::_exit(NO_MEMORY_EXIT_CODE);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::hint::black_box;

    use super::*;

    #[test]
    fn the_line_names_the_bytes_and_fits() {
        let (line, n_line) = line_about(usize::MAX);
        let text = std::str::from_utf8(&line[..n_line]).expect("ASCII");
        assert!(text.starts_with("error: the system refuses 18446744073709551615 bytes of memory"));
        assert!(text.ends_with("bound it)\n"), "{text}");
    }

    #[test]
    fn a_refusal_is_kept_and_a_grant_is_not() {
        // SAFETY: no memory is used, and what is granted is given back with its layout.
        unsafe {
            let layout = Layout::from_size_align(64, 8).expect("valid");
            let memory = ExplainingAllocator.alloc(layout);
            assert!(!memory.is_null());
            assert_eq!(REFUSED.get(), 0);
            ExplainingAllocator.dealloc(memory, layout);
            let layout = Layout::from_size_align(isize::MAX as usize - 7, 8).expect("valid");
            // Unseen by the optimizer, which otherwise takes such a call for granted.
            assert!(black_box(ExplainingAllocator.alloc(black_box(layout))).is_null());
        }
        assert_eq!(REFUSED.get(), isize::MAX as usize - 7);
    }

    /// Runs in processes of their own: one aborts for lack of memory, one for another reason.
    #[test]
    #[cfg(target_os = "linux")]
    fn an_abort_for_lack_of_memory_says_so_and_any_other_is_left_alone() {
        use std::os::unix::process::ExitStatusExt;
        const VARIABLE: &str = "PELTON_TEST_ABORT";
        if let Some(reason) = std::env::var_os(VARIABLE) {
            handle_memory_signal().expect("handled");
            if reason == "memory" {
                ExplainingAllocator::noted(std::ptr::null_mut(), 320_000);
            }
            std::process::abort();
        }
        let name = "memory::exhausted::tests::an_abort_for_lack_of_memory_says_so_and_any_other_is_left_alone";
        let ended = |reason: &str| {
            std::process::Command::new(std::env::current_exe().expect("this test"))
                .args([name, "--exact", "--nocapture"])
                .env(VARIABLE, reason)
                .output()
                .expect("starts")
        };
        let output = ended("memory");
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(NO_MEMORY_EXIT_CODE), "{stderr}");
        assert!(stderr.contains("error: the system refuses 320000 bytes of memory"), "{stderr}");
        let output = ended("another");
        assert_eq!(output.status.signal(), Some(libc::SIGABRT));
    }
}
