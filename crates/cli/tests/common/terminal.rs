//! The binary on a terminal of the test's own.

use std::io::{Read, Write};
use std::num::NonZeroU16;
use std::process::Child;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use pty_process::Size;
use pty_process::blocking::{Command, Pty, open};

/// Rows of the screen: more than a test writes, so that nothing scrolls away.
const ROWS: u16 = 1000;
/// Time in which the binary does anything at all, also on a machine that is busy.
const PATIENCE: Duration = Duration::from_secs(120);

/// A terminal with the binary on it.
pub(crate) struct Terminal {
    pty: Pty,
    child: Child,
    bytes: Receiver<Vec<u8>>,
    screen: vt100::Parser,
    /// Everything that the binary wrote.
    pub(crate) log: String,
    /// The row of the last prompt that was answered; none at first.
    prompt_row: Option<u16>,
}

impl Terminal {
    /// Starts the binary in a terminal of `columns`, and waits for its first prompt.
    pub(crate) fn start(columns: u16, args: &[&str]) -> Self {
        let mut terminal = Self::start_with(columns, args, |command| command);
        terminal.wait_for_prompt();
        terminal
    }

    /// Starts the binary after a change of the command, and waits for nothing.
    pub(crate) fn start_with(
        columns: u16,
        args: &[&str],
        change: impl FnOnce(Command) -> Command,
    ) -> Self {
        let (pty, pts) = open().expect("a pseudo terminal");
        pty.resize(Size::new(ROWS, columns)).expect("resized");
        let command = Command::from(super::command(args))
            .env("TERM", "xterm-256color")
            .env("PELTON_HISTORY", "")
            .env_remove("NO_COLOR");
        let child = change(command).spawn(pts).expect("the binary starts");
        let mut reader = std::fs::File::from(
            std::os::fd::AsFd::as_fd(&pty).try_clone_to_owned().expect("a copy"),
        );
        let (send, bytes) = channel();
        std::thread::spawn(move || {
            let mut part = [0; 4096];
            // The system reports an error when the binary has ended.
            while let Ok(n_read) = reader.read(&mut part) {
                if n_read == 0 || send.send(part[..n_read].to_vec()).is_err() {
                    break;
                }
            }
        });
        let size = |n| NonZeroU16::new(n).expect("a size");
        let screen = vt100::Parser::new(size(ROWS), size(columns), 0);
        Self { pty, child, bytes, screen, log: String::new(), prompt_row: None }
    }

    /// Presses keys.
    pub(crate) fn press(&mut self, keys: impl AsRef<[u8]>) {
        self.pty.write_all(keys.as_ref()).expect("the terminal takes keys");
    }

    /// Presses keys, and waits for the next prompt.
    pub(crate) fn say(&mut self, keys: impl AsRef<[u8]>) {
        self.press(keys);
        self.wait_for_prompt();
    }

    /// Waits for an empty prompt below the one before.
    pub(crate) fn wait_for_prompt(&mut self) {
        self.wait("new prompt", |terminal| {
            let (row, column) = terminal.screen.screen().cursor_position();
            let is_empty = column == 2 && terminal.rows()[usize::from(row)] == ">";
            is_empty && terminal.prompt_row.is_none_or(|before| before < row)
        });
        self.prompt_row = Some(self.row());
    }

    /// Waits until the screen shows a text.
    pub(crate) fn wait_for(&mut self, text: &str) {
        self.wait(text, |terminal| terminal.shown().contains(text));
    }

    /// Waits until the answer to a question has begun.
    pub(crate) fn wait_for_answer(&mut self, question: &str) {
        let question = format!("> {question}");
        self.wait("answer", |terminal| {
            let rows = terminal.rows();
            let after = rows.iter().skip_while(|row| **row != question).skip(1);
            after.clone().any(|row| !row.is_empty() && !row.contains("reading the prompt"))
        });
    }

    /// Waits until something has happened.
    pub(crate) fn wait(&mut self, what: &str, has_happened: impl Fn(&Self) -> bool) {
        let deadline = Instant::now() + PATIENCE;
        while !has_happened(self) {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.bytes.recv_timeout(left) {
                Ok(bytes) => {
                    self.screen.process(&bytes);
                    self.log.push_str(&String::from_utf8_lossy(&bytes));
                }
                Err(RecvTimeoutError::Timeout) => panic!("no {what} in time:\n{}", self.shown()),
                Err(RecvTimeoutError::Disconnected) => panic!("no {what}:\n{}", self.shown()),
            }
        }
    }

    /// Waits until the binary ends; its exit code.
    pub(crate) fn end(&mut self) -> Option<i32> {
        while let Ok(bytes) = self.bytes.recv_timeout(PATIENCE) {
            self.screen.process(&bytes);
            self.log.push_str(&String::from_utf8_lossy(&bytes));
        }
        self.child.wait().expect("the binary ends").code()
    }

    /// Rows of the screen up to the cursor.
    pub(crate) fn rows(&self) -> Vec<String> {
        let (_, columns) = self.screen.screen().size();
        let rows = self.screen.screen().rows(0, columns.get());
        rows.take(usize::from(self.row()) + 1).map(|row| row.trim_end().to_owned()).collect()
    }

    /// The screen as text.
    pub(crate) fn shown(&self) -> String {
        self.rows().join("\n")
    }

    /// The whole screen, also below the cursor.
    pub(crate) fn screen(&self) -> String {
        let (_, columns) = self.screen.screen().size();
        let rows = self.screen.screen().rows(0, columns.get());
        rows.map(|row| row.trim_end().to_owned()).collect::<Vec<_>>().join("\n")
    }

    /// Waits until a text stands anywhere on the screen.
    pub(crate) fn wait_on_screen(&mut self, text: &str) {
        self.wait(text, |terminal| terminal.screen().contains(text));
    }

    /// Whether the terminal echoes keys and reads lines, as a shell leaves it.
    pub(crate) fn is_usual(&self) -> bool {
        use rustix::termios::LocalModes;
        let modes = rustix::termios::tcgetattr(&self.pty).expect("modes").local_modes;
        modes.contains(LocalModes::ECHO | LocalModes::ICANON | LocalModes::ISIG)
    }

    /// Process id of the binary.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    fn row(&self) -> u16 {
        self.screen.screen().cursor_position().0
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // A failed test leaves the binary running; one that has ended is not hurt.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
