//! How a measurement talks with its caller while it runs.

/// The caller's side of a measurement.
#[derive(Clone, Copy)]
pub struct Watch<'a> {
    /// Asked between steps whether to end early; what was measured until then is reported.
    pub is_stopped: &'a dyn Fn() -> bool,
    /// Called at each step.
    pub progress: &'a dyn Fn(Progress<'_>),
}

/// How far a measurement is.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Progress<'a> {
    /// Steps that are done.
    pub n_done: usize,
    /// Steps in all.
    pub n_steps: usize,
    /// The step at hand in words, or the figure that it brought.
    pub label: &'a str,
}

impl std::fmt::Debug for Watch<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Watch").finish_non_exhaustive()
    }
}
