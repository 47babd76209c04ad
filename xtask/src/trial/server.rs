//! A server under trial.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, bail, ensure};

use super::look::Look;

/// A running `pelton serve`; it is killed when this is dropped.
pub(super) struct Server {
    child: Child,
    pub(super) address: String,
}

impl Server {
    /// Starts the binary with these flags, without waiting for it.
    pub(super) fn spawn(binary: &Path, flags: &[&str]) -> anyhow::Result<Child> {
        spawn(Command::new(binary), flags)
    }

    /// Starts the binary and waits until it listens.
    pub(super) fn start(binary: &Path, flags: &[&str]) -> anyhow::Result<Self> {
        Self::wait(spawn(Command::new(binary), flags)?)
    }

    /// The same after these commands of the shell, which limit it.
    pub(super) fn start_within(limit: &str, binary: &Path, flags: &[&str]) -> anyhow::Result<Self> {
        let mut command = Command::new("sh");
        command.args(["-c", &format!("{limit}; exec \"$0\" \"$@\"")]).arg(binary);
        Self::wait(spawn(command, flags)?)
    }

    /// The same on two of the processors that this process may use.
    pub(super) fn start_on_two_processors(binary: &Path, flags: &[&str]) -> anyhow::Result<Self> {
        let ours = Look::processors(std::process::id())?;
        let list: Vec<String> = ours.iter().take(2).map(u32::to_string).collect();
        let limit = format!("taskset -p -c {} $$ >/dev/null || exit 1", list.join(","));
        let server = Self::start_within(&limit, binary, flags)
            .context("two processors of the server, which `taskset` chooses")?;
        let its = Look::processors(server.pid())?;
        ensure!(its.len() <= 2, "the server runs on {} processors", its.len());
        Ok(server)
    }

    fn wait(mut child: Child) -> anyhow::Result<Self> {
        let mut stderr = BufReader::new(child.stderr.take().context("stderr is piped")?);
        let mut said = String::new();
        loop {
            let mut line = String::new();
            if stderr.read_line(&mut line)? == 0 {
                let status = child.wait()?;
                bail!("the server ended ({status}) before it listened:\n{said}");
            }
            if let Some(at) = line.trim_end().strip_prefix("listening on http://") {
                let address = at.trim_end_matches('/').to_owned();
                // The pipe must be read, or the server would wait for room in it.
                std::thread::spawn(move || std::io::copy(&mut stderr, &mut std::io::sink()));
                return Ok(Self { child, address });
            }
            said.push_str(&line);
        }
    }

    /// Fails where the server has ended by itself.
    pub(super) fn check_alive(&mut self) -> anyhow::Result<()> {
        match self.child.try_wait()? {
            None => Ok(()),
            Some(status) => bail!("the server ended by itself: {status}"),
        }
    }

    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Ends the process without giving it a chance to clean up.
    pub(super) fn kill(mut self, after: Duration) {
        std::thread::sleep(after);
        // Drop kills.
        let _ = self.child.kill();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn spawn(mut command: Command, flags: &[&str]) -> anyhow::Result<Child> {
    command.args(["serve", "--port", "0"]).args(flags);
    command.env("PELTON_TUNING", "off").stdout(Stdio::null()).stderr(Stdio::piped());
    command.spawn().with_context(|| format!("{command:?} does not start"))
}
