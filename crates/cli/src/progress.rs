//! Progress bars on stderr, for work that takes longer than a moment.
//!
//! A bar appears only on a terminal, and only once the work has taken [`PATIENCE`]: short work
//! leaves no trace.

use std::cell::RefCell;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use pelton_llm::hub::HubProgress;

/// Time that work may take before its bar appears.
const PATIENCE: Duration = Duration::from_millis(400);

/// One bar that follows one task after the other.
#[derive(Debug)]
pub(crate) struct Progress {
    state: RefCell<State>,
}

#[derive(Debug)]
struct State {
    task: String,
    started: Instant,
    bar: Option<ProgressBar>,
}

impl Progress {
    /// A bar that shows nothing yet.
    pub(crate) fn new() -> Self {
        let state = State { task: String::new(), started: Instant::now(), bar: None };
        Self { state: RefCell::new(state) }
    }

    /// Shows how many bytes of `task` are done; a new task replaces the old one.
    pub(crate) fn update(&self, task: &str, done_bytes: u64, total_bytes: Option<u64>) {
        let mut state = self.state.borrow_mut();
        if state.task != task {
            state.clear();
            state.task = task.to_owned();
            state.started = Instant::now();
        }
        if state.bar.is_none() && state.started.elapsed() >= PATIENCE {
            state.bar = Some(bar(task, total_bytes));
        }
        if let Some(bar) = &state.bar {
            bar.set_position(done_bytes);
        }
    }

    /// Shows how many bytes of a model have arrived, in one bar for all of its files.
    pub(crate) fn downloading(&self, at: HubProgress<'_>) {
        self.update("downloading", at.done_bytes, at.total_bytes);
        if let Some(bar) = &self.state.borrow().bar {
            bar.set_message(at.file.to_owned());
        }
    }

    /// Shows how many bytes of a model are loaded.
    pub(crate) fn loading(&self, done_bytes: u64, total_bytes: u64) {
        self.update("loading", done_bytes, Some(total_bytes));
    }

    /// Removes the bar from the screen.
    pub(crate) fn clear(&self) {
        self.state.borrow_mut().clear();
    }
}

impl State {
    fn clear(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.clear();
    }
}

/// Hidden by itself where stderr is no terminal.
fn bar(task: &str, total_bytes: Option<u64>) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(total_bytes, ProgressDrawTarget::stderr());
    let template = match total_bytes {
        Some(_) => "{msg} [{bar:30}] {bytes}/{total_bytes} {bytes_per_sec} {eta} left",
        None => "{msg} {bytes} {bytes_per_sec}",
    };
    let style = ProgressStyle::with_template(template).expect("invariant: the template is valid");
    bar.set_style(style.progress_chars("=> "));
    bar.set_message(task.to_owned());
    bar
}

/// A bar that counts steps instead of bytes, for work that prints its results as they come.
pub(crate) fn steps(n_steps: usize) -> ProgressBar {
    let target = ProgressDrawTarget::stderr();
    let bar = ProgressBar::with_draw_target(Some(n_steps as u64), target);
    let style = ProgressStyle::with_template("[{bar:30}] {pos}/{len} {msg}, {eta} left");
    let style = style.expect("invariant: the template is valid");
    bar.set_style(style.progress_chars("=> "));
    bar
}

/// A spinner while a prompt is computed.
#[derive(Debug)]
pub(crate) struct PromptProgress {
    n_tokens: usize,
    started: Instant,
    bar: Option<ProgressBar>,
}

impl PromptProgress {
    /// A spinner for a prompt of `n_tokens`, which shows nothing yet.
    pub(crate) fn new(n_tokens: usize) -> Self {
        Self { n_tokens, started: Instant::now(), bar: None }
    }

    /// Shows how many tokens are computed, and turns.
    pub(crate) fn update(&mut self, n_done: u64) {
        if self.bar.is_none() && self.started.elapsed() >= PATIENCE {
            self.bar = Some(spinner());
        }
        if let Some(bar) = &self.bar {
            bar.set_message(format!("reading the prompt: {n_done} of {} tokens", self.n_tokens));
            bar.tick();
        }
    }
}

impl Drop for PromptProgress {
    fn drop(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
    }
}

/// Its message is cut at the width of the terminal.
fn spinner() -> ProgressBar {
    let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
    let style = ProgressStyle::with_template("{spinner} {wide_msg}");
    bar.set_style(style.expect("invariant: the template is valid"));
    bar
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_of_bar_has_a_valid_template() {
        for total_bytes in [None, Some(10)] {
            super::bar("loading", total_bytes).finish_and_clear();
        }
        super::steps(3).finish_and_clear();
        super::spinner().finish_and_clear();
    }

    #[test]
    fn short_work_leaves_no_trace() {
        let progress = Progress::new();
        progress.loading(1, 2);
        assert!(progress.state.borrow().bar.is_none());
    }
}
