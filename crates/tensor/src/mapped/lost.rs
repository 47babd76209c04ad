//! The end of a process whose mapped file is cut short.
//!
//! ```text
//! file   [ page ][ page ][ page ]         mapped as a whole
//! file   [ page ]                         shortened by another process: the other two pages are
//!                   ▲                     gone, and a read of them is the signal SIGBUS
//!                   └─ address ─▶ slot of the map ─▶ name ─▶ one line on stderr, exit code 135
//! ```
//!
//! A disk that cannot be read gives the same signal. The bytes are gone either way, and the code
//! that reads them cannot go on, so the process ends; this module makes it say why.
//!
//! The handler runs in the middle of any instruction. It takes no lock and no memory: it reads
//! atomics and calls `write` and `_exit`. Any other SIGBUS is left to the handler that was there
//! before.

use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};

/// Exit code of a process that lost a mapped file: 128 + SIGBUS, as shells count.
pub const LOST_FILE_EXIT_CODE: i32 = 135;

/// Maps that can be named at once; the signal of a further one ends the process without a line.
const N_SLOTS: usize = 2048;
/// Longest name that is kept, in bytes; of a longer path the end is.
const NAME_BYTES: usize = 256;
/// `start` of a slot that is being filled: no map begins there.
const FILLING: usize = 1;

/// A map and the name of its file. `start` is 0 while the slot is free, and is written last.
struct Slot {
    start: AtomicUsize,
    end: AtomicUsize,
    n_name: AtomicUsize,
    name: [AtomicU8; NAME_BYTES],
}

static SLOTS: [Slot; N_SLOTS] = [const {
    Slot {
        start: AtomicUsize::new(0),
        end: AtomicUsize::new(0),
        n_name: AtomicUsize::new(0),
        name: [const { AtomicU8::new(0) }; NAME_BYTES],
    }
}; N_SLOTS];

/// A map that the handler knows, until this is dropped.
#[derive(Debug)]
pub(super) struct Known(Option<usize>);

impl Known {
    /// Makes the map at these addresses known by the name of its file.
    pub(super) fn new(addresses: Range<*const u8>, path: &Path) -> Self {
        let (start, end) = (addresses.start as usize, addresses.end as usize);
        let free = |slot: &Slot| {
            let claim =
                slot.start.compare_exchange(0, FILLING, Ordering::Acquire, Ordering::Relaxed);
            claim.is_ok()
        };
        let Some(idx) = SLOTS.iter().position(free) else { return Self(None) };
        let slot = &SLOTS[idx];
        let name = path.as_os_str().as_encoded_bytes();
        let name = &name[name.len().saturating_sub(NAME_BYTES)..];
        for (to, &byte) in slot.name.iter().zip(name) {
            // A control character must not begin another line.
            to.store(if byte.is_ascii_control() { b'?' } else { byte }, Ordering::Relaxed);
        }
        slot.n_name.store(name.len(), Ordering::Relaxed);
        slot.end.store(end, Ordering::Relaxed);
        slot.start.store(start, Ordering::Release);
        Self(Some(idx))
    }
}

impl Drop for Known {
    fn drop(&mut self) {
        if let Some(idx) = self.0 {
            SLOTS[idx].end.store(0, Ordering::Relaxed);
            SLOTS[idx].start.store(0, Ordering::Release);
        }
    }
}

/// From now on the loss of a mapped file is a line on stderr and [`LOST_FILE_EXIT_CODE`], and a
/// file that grows beyond the limit of the process (`ulimit -f`) is an error of the write.
///
/// Both are signals otherwise, which end the process without a word. A program calls this once, at
/// its start; a library leaves signals alone.
///
/// # Errors
///
/// The system's own.
#[cfg(unix)]
pub fn handle_file_signals() -> io::Result<()> {
    handler::install()
}

/// As on Unix, where there are such signals.
///
/// # Errors
///
/// Never.
#[cfg(not(unix))]
pub fn handle_file_signals() -> io::Result<()> {
    Ok(())
}

/// The line about the map that holds `address`, and its length; `None` where no map does.
fn line_at(address: usize) -> Option<([u8; 512], usize)> {
    const AFTER: &[u8] = b": the file was shortened, or its disk failed, while it was in use \
                           (hint: start again with the whole file; replace files by renaming)\n";
    let slot = SLOTS.iter().find(|slot| {
        let start = slot.start.load(Ordering::Acquire);
        start > FILLING && start <= address && address < slot.end.load(Ordering::Relaxed)
    })?;
    let n_name = slot.n_name.load(Ordering::Relaxed).min(NAME_BYTES);
    let name = slot.name[..n_name].iter().map(|byte| byte.load(Ordering::Relaxed));
    let mut line = [0; 512];
    let mut n_bytes = 0;
    for byte in b"error: ".iter().copied().chain(name).chain(AFTER.iter().copied()) {
        line[n_bytes] = byte;
        n_bytes += 1;
    }
    Some((line, n_bytes))
}

#[cfg(unix)]
mod handler {
    use super::*;

    /// The action that was set before.
    static BEFORE: OnceLock<libc::sigaction> = OnceLock::new();

    pub(super) fn install() -> io::Result<()> {
        // SAFETY: zeros are an action: the default one, without flags and with an empty mask.
        let mut before: libc::sigaction = unsafe { std::mem::zeroed() };
        // SAFETY: the call only writes the current action to `before`.
        let answer = unsafe { libc::sigaction(libc::SIGBUS, std::ptr::null(), &mut before) };
        check(answer)?;
        if BEFORE.set(before).is_err() {
            return Ok(());
        }
        let handler: extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void) = on_bus;
        // SAFETY: as above.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        action.sa_sigaction = handler as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        // SAFETY: the handler has the signature that SA_SIGINFO asks for and only makes calls that
        // a signal handler may make; the last pointer may be null.
        check(unsafe { libc::sigaction(libc::SIGBUS, &action, std::ptr::null_mut()) })?;
        // SAFETY: ignoring a signal runs no code.
        let before = unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
        if before == libc::SIG_ERR { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    fn check(answer: libc::c_int) -> io::Result<()> {
        if answer == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    extern "C" fn on_bus(
        _signal: libc::c_int,
        info: *mut libc::siginfo_t,
        _context: *mut libc::c_void,
    ) {
        // SAFETY: with SA_SIGINFO the system passes a valid `siginfo_t`, and SIGBUS has an address.
        let address = unsafe { (*info).si_addr() } as usize;
        if let Some((line, n_bytes)) = line_at(address) {
            // SAFETY: the bytes are those of `line`; both calls may be made in a signal handler.
            unsafe {
                libc::write(libc::STDERR_FILENO, line.as_ptr().cast(), n_bytes);
                libc::_exit(LOST_FILE_EXIT_CODE);
            }
        }
        if let Some(before) = BEFORE.get() {
            // SAFETY: `before` was the action of this signal. The instruction is tried again when
            // this function returns, and its signal goes to that action.
            unsafe { libc::sigaction(libc::SIGBUS, before, std::ptr::null_mut()) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(address: usize) -> Option<String> {
        let (line, n_bytes) = line_at(address)?;
        Some(String::from_utf8_lossy(&line[..n_bytes]).into_owned())
    }

    #[test]
    fn an_address_is_found_in_its_map_alone_and_only_while_it_is_mapped() {
        // Addresses that no map of this process has.
        let [a, b, c] = [16_usize, 32, 64].map(|address| address as *const u8);
        let long = "x".repeat(400) + "/mode\nl.gguf";
        let first = Known::new(a..b, Path::new("first.gguf"));
        let second = Known::new(b..c, Path::new(&long));
        assert!(words(16).expect("known").starts_with("error: first.gguf: the file was shortened"));
        assert!(words(31).expect("known").contains("first"));
        let line = words(32).expect("known");
        assert!(line.contains("x/mode?l.gguf: ") && line.lines().count() == 1, "{line}");
        assert_eq!(words(64), None);
        drop(first);
        assert_eq!(words(16), None);
        assert!(words(63).is_some());
        drop(second);
        assert_eq!(words(63), None);
    }

    /// Runs in a process of its own: maps the file that the variable names, cuts it, reads on.
    #[test]
    #[cfg(target_os = "linux")]
    fn a_file_that_is_cut_while_it_is_mapped_ends_the_process_with_its_name() {
        const VARIABLE: &str = "PELTON_TEST_LOST_FILE";
        if let Some(path) = std::env::var_os(VARIABLE) {
            handle_file_signals().expect("handled");
            handle_file_signals().expect("a second call does nothing");
            let mapped = crate::MappedFile::open(Path::new(&path)).expect("opens");
            assert_eq!(mapped.bytes()[1 << 20], 7);
            let file = std::fs::OpenOptions::new().write(true).open(&path).expect("ours");
            file.set_len(4096).expect("cut");
            assert_eq!(mapped.bytes()[0], 7, "what is left can be read");
            panic!("read {} beyond the end", mapped.bytes()[1 << 20]);
        }
        let folder = tempfile::tempdir().expect("temp");
        let path = folder.path().join("model.gguf");
        std::fs::write(&path, vec![7; 2 << 20]).expect("written");
        let name = "mapped::lost::tests::a_file_that_is_cut_while_it_is_mapped_ends_the_process_with_its_name";
        let output = std::process::Command::new(std::env::current_exe().expect("this test"))
            .args([name, "--exact", "--nocapture"])
            .env(VARIABLE, &path)
            .output()
            .expect("starts");
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(LOST_FILE_EXIT_CODE), "{stderr}");
        let expected = format!("error: {}: the file was shortened", path.display());
        assert!(stderr.contains(&expected), "{stderr}");
    }
}
