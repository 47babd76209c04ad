//! The keyboard between the terminal and the line editor.
//!
//! ```text
//!             ┌────────── this thread ──────────┐
//! terminal ──▶│ bursts ──▶ what waits for the   │──▶ a terminal of our own ──▶ the line editor
//!             │            line editor          │     (stdin from here on)
//!             └──── Ctrl-C during an answer ────┘──▶ Interrupts
//! ```
//!
//! The editor reads bytes one by one and sees no further, so four things need a reader before it:
//! keys during an answer neither show on the screen nor are lost; a paste stays whole where
//! the terminal does not mark it ([`burst`]); bytes that are no UTF-8 do not end the line; and Ctrl-C
//! stops the answer that is being written, never the next one. SIGTERM ends the keys, which to the editor
//! is the same as Ctrl-D.
//!
//! Considered and not taken: another editor, whose forty thousand lines do the last two of these; and
//! reading the terminal between two lines of the editor, which has read ahead by then.

mod burst;

use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::process::Signal;
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{
    InputModes, LocalModes, OptionalActions, SpecialCodeIndex, Termios, tcgetattr, tcsetattr,
};
use tokio::runtime;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

use burst::Bursts;

const CTRL_C: char = '\x03';
const CTRL_Z: char = '\x1a';

/// Time after which the next bytes no longer belong to the same burst, in milliseconds: more than a
/// terminal needs for the next part of a paste, less than a person for the next key.
const PAUSE_MS: i64 = 10;
/// Longest burst, in bytes.
const BURST_BYTES: usize = 1 << 20;

/// The terminal's keys, held back or handed to the editor; dropping it gives the terminal back.
#[derive(Debug)]
pub(crate) struct Keyboard {
    terminal: Arc<Terminal>,
    stage: Arc<Stage>,
    /// A byte wakes the thread; the end ends it.
    wake: UnixStream,
    presses: watch::Receiver<u64>,
}

/// The use of the keys at the moment: held back or edited.
#[derive(Debug, Default)]
struct Stage(AtomicU8);

impl Stage {
    const HELD: u8 = 0;
    const EDITED: u8 = 1;

    fn is_edited(&self) -> bool {
        self.0.load(Ordering::Acquire) == Self::EDITED
    }
}

/// The person's terminal without echo, line by line reading and signals.
#[derive(Debug)]
struct Terminal {
    input: OwnedFd,
    usual: Termios,
    quiet: Termios,
}

impl Keyboard {
    /// Takes the terminal on stdin, and puts one of our own there, from which the editor reads.
    ///
    /// # Errors
    ///
    /// The system's own; stdin is then unchanged.
    pub(crate) fn open() -> io::Result<Self> {
        let terminal = Arc::new(Terminal::new()?);
        let (ours, editors) = open_pair()?;
        let (wake, woken) = UnixStream::pair()?;
        let stage = Arc::new(Stage::default());
        let (press, presses) = watch::channel(0);
        let mut pump = Pump {
            terminal: Arc::clone(&terminal),
            stage: Arc::clone(&stage),
            editor: ours,
            woken,
            press,
            bursts: Bursts::default(),
            waiting: Vec::new(),
        };
        std::thread::Builder::new().name("keyboard".to_owned()).spawn(move || {
            // An error is the end of the terminal; the editor then sees the end of its own.
            let _ = pump.run();
        })?;
        end_by_signal(wake.try_clone()?)?;
        let keyboard = Self { terminal, stage, wake, presses };
        rustix::stdio::dup2_stdin(&editors)?;
        keyboard.terminal.set(&keyboard.terminal.quiet)?;
        Ok(keyboard)
    }

    /// Presses of Ctrl-C while keys are held back.
    pub(crate) fn presses(&self) -> watch::Receiver<u64> {
        self.presses.clone()
    }

    /// Hands keys to the editor while `edit` runs, those first that were held back.
    pub(crate) fn during<T>(&mut self, edit: impl FnOnce() -> T) -> T {
        self.stage.0.store(Stage::EDITED, Ordering::Release);
        // The thread has ended where the terminal has.
        let _ = self.wake.write_all(b"e");
        let result = edit();
        self.stage.0.store(Stage::HELD, Ordering::Release);
        result
    }
}

impl Drop for Keyboard {
    fn drop(&mut self) {
        // A drop cannot report its errors.
        let _ = self.wake.shutdown(std::net::Shutdown::Both);
        let _ = self.terminal.set(&self.terminal.usual);
        let _ = rustix::stdio::dup2_stdin(&self.terminal.input);
    }
}

impl Terminal {
    fn new() -> io::Result<Self> {
        let input = io::stdin().as_fd().try_clone_to_owned()?;
        let usual = tcgetattr(&input)?;
        let mut quiet = usual.clone();
        quiet.input_modes.remove(
            InputModes::BRKINT
                | InputModes::ICRNL
                | InputModes::INPCK
                | InputModes::ISTRIP
                | InputModes::IXON,
        );
        quiet
            .local_modes
            .remove(LocalModes::ECHO | LocalModes::ICANON | LocalModes::IEXTEN | LocalModes::ISIG);
        quiet.special_codes[SpecialCodeIndex::VMIN] = 1;
        quiet.special_codes[SpecialCodeIndex::VTIME] = 0;
        Ok(Self { input, usual, quiet })
    }

    fn set(&self, modes: &Termios) -> io::Result<()> {
        Ok(tcsetattr(&self.input, OptionalActions::Drain, modes)?)
    }

    /// Everything that arrives together; empty at the end.
    fn read_burst(&self) -> io::Result<Vec<u8>> {
        let mut burst = Vec::new();
        let mut part = [0; 4096];
        loop {
            let n_read = match rustix::io::read(&self.input, &mut part) {
                Err(Errno::INTR) => continue,
                read => read?,
            };
            burst.extend_from_slice(&part[..n_read]);
            // Only a newline needs to know what comes after it.
            let ends_line = burst.contains(&b'\r') || burst.contains(&b'\n');
            let is_whole = n_read == 0 || !ends_line || burst.len() >= BURST_BYTES;
            if is_whole || !is_ready(&self.input, PAUSE_MS)? {
                return Ok(burst);
            }
        }
    }
}

/// Whether bytes can be read within some milliseconds.
fn is_ready(input: &OwnedFd, within_ms: i64) -> io::Result<bool> {
    let within = Timespec { tv_sec: 0, tv_nsec: within_ms * 1_000_000 };
    match poll(&mut [PollFd::new(input, PollFlags::IN)], Some(&within)) {
        Err(Errno::INTR) => Ok(false),
        ready => Ok(ready? > 0),
    }
}

/// From now on SIGTERM ends the keys; a second one ends the process.
fn end_by_signal(wake: UnixStream) -> io::Result<()> {
    let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
    let guard = runtime.enter();
    let mut signals = signal(SignalKind::terminate())?;
    drop(guard);
    let wait = move || {
        runtime.block_on(signals.recv());
        // The other end is gone where the keys have ended already.
        let _ = wake.shutdown(std::net::Shutdown::Both);
        runtime.block_on(signals.recv());
        std::process::exit(128 + Signal::TERM.as_raw());
    };
    std::thread::Builder::new().name("terminate".to_owned()).spawn(wait)?;
    Ok(())
}

/// A terminal of our own: our end, and the editor's.
fn open_pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let ours = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)?;
    grantpt(&ours)?;
    unlockpt(&ours)?;
    let name = ptsname(&ours, Vec::new())?;
    let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
    let editors = rustix::fs::open(name, flags, Mode::empty())?;
    let mut modes = tcgetattr(&editors)?;
    modes.make_raw();
    tcsetattr(&editors, OptionalActions::Now, &modes)?;
    rustix::io::ioctl_fionbio(&ours, true)?;
    Ok((ours, editors))
}

/// The thread that reads the terminal.
struct Pump {
    terminal: Arc<Terminal>,
    stage: Arc<Stage>,
    editor: OwnedFd,
    woken: UnixStream,
    press: watch::Sender<u64>,
    bursts: Bursts,
    /// Bytes for the editor.
    waiting: Vec<u8>,
}

impl Pump {
    fn run(&mut self) -> io::Result<()> {
        loop {
            let (has_keys, is_woken) = self.wait()?;
            if is_woken && rustix::io::read(&self.woken, &mut [0; 64])? == 0 {
                // An answer that is being written stops here.
                self.press.send_modify(|n_presses| *n_presses += 1);
                return Ok(());
            }
            if has_keys {
                let burst = self.terminal.read_burst()?;
                if burst.is_empty() {
                    return Ok(());
                }
                self.take(&burst)?;
            }
            self.hand_over()?;
        }
    }

    /// Waits for keys, for a byte that wakes, or until the editor can take what waits for it.
    fn wait(&self) -> io::Result<(bool, bool)> {
        let mut fds = [
            PollFd::new(&self.terminal.input, PollFlags::IN),
            PollFd::new(&self.woken, PollFlags::IN),
            PollFd::new(&self.editor, PollFlags::OUT),
        ];
        let has_work = self.stage.is_edited() && !self.waiting.is_empty();
        let n_fds = if has_work { 3 } else { 2 };
        match poll(&mut fds[..n_fds], None) {
            Err(Errno::INTR) => Ok((false, false)),
            ready => {
                ready?;
                Ok((!fds[0].revents().is_empty(), !fds[1].revents().is_empty()))
            }
        }
    }

    fn take(&mut self, burst: &[u8]) -> io::Result<()> {
        let mut text = self.bursts.push(burst);
        if text.contains(CTRL_Z) {
            text = text.replace(CTRL_Z, "");
            self.suspend()?;
        }
        if !self.stage.is_edited() && text.contains(CTRL_C) {
            text = text.replace(CTRL_C, "");
            self.press.send_modify(|n_presses| *n_presses += 1);
        }
        self.waiting.extend_from_slice(text.as_bytes());
        Ok(())
    }

    /// Writes as much as the editor takes.
    fn hand_over(&mut self) -> io::Result<()> {
        while self.stage.is_edited() && !self.waiting.is_empty() {
            match rustix::io::write(&self.editor, &self.waiting) {
                Ok(n_written) => drop(self.waiting.drain(..n_written)),
                Err(Errno::AGAIN) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Ctrl-Z: stops the process as the terminal would, and comes back when the shell continues it.
    fn suspend(&mut self) -> io::Result<()> {
        self.terminal.set(&self.terminal.usual)?;
        rustix::process::kill_current_process_group(Signal::TSTP)?;
        self.terminal.set(&self.terminal.quiet)?;
        if self.stage.is_edited() {
            // A character that comes and goes makes the editor draw its line again.
            self.waiting.extend_from_slice(b" \x7f");
        }
        Ok(())
    }
}
