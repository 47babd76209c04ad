//! The work that one rendering may still do.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use minijinja::{Error, ErrorKind};
use pelton_base::limits;

/// The bytes spent by one rendering, and why it was stopped.
#[derive(Debug, Default)]
pub(super) struct Budget {
    work_bytes: AtomicU64,
    output_bytes: AtomicU64,
    stopped: Mutex<Option<Stop>>,
}

#[derive(Clone, Debug)]
enum Stop {
    Raised(String),
    Exceeded(u64, &'static str),
}

impl Budget {
    pub(super) fn new() -> Self {
        Self::default()
    }

    /// Pays for reading or copying `n_bytes`.
    pub(super) fn work(&self, n_bytes: usize) -> Result<(), Error> {
        let spent = self.work_bytes.fetch_add(n_bytes as u64, Ordering::Relaxed);
        if spent.saturating_add(n_bytes as u64) > limits::TEMPLATE_WORK_BYTES {
            return Err(self.exceed(limits::TEMPLATE_WORK_BYTES, "bytes of work"));
        }
        Ok(())
    }

    /// All that was paid for so far.
    #[cfg(test)]
    pub(super) fn worked(&self) -> u64 {
        self.work_bytes.load(Ordering::Relaxed)
    }

    /// Pays for a text or list of `n_bytes` that is about to be made.
    pub(super) fn make(&self, n_bytes: usize) -> Result<(), Error> {
        self.check_output(n_bytes as u64)?;
        self.work(n_bytes)
    }

    /// Checks the size of a text that grows piece by piece and is paid for elsewhere.
    pub(super) fn make_check(&self, n_bytes: usize) -> Result<(), Error> {
        self.check_output(n_bytes as u64)
    }

    /// Pays for `n_bytes` that are about to be written.
    pub(super) fn write(&self, n_bytes: usize) -> Result<(), Error> {
        let written = self.output_bytes.fetch_add(n_bytes as u64, Ordering::Relaxed);
        self.check_output(written.saturating_add(n_bytes as u64))
    }

    pub(super) fn raise(&self, message: String) -> Error {
        self.stop(Stop::Raised(message.clone()));
        Error::new(ErrorKind::InvalidOperation, message)
    }

    pub(super) fn raised(&self) -> Option<String> {
        match self.stopped() {
            Some(Stop::Raised(message)) => Some(message),
            _ => None,
        }
    }

    pub(super) fn exceeded(&self) -> Option<(u64, &'static str)> {
        match self.stopped() {
            Some(Stop::Exceeded(limit, unit)) => Some((limit, unit)),
            _ => None,
        }
    }

    fn check_output(&self, n_bytes: u64) -> Result<(), Error> {
        if n_bytes > limits::TEMPLATE_OUTPUT_BYTES as u64 {
            return Err(self.exceed(limits::TEMPLATE_OUTPUT_BYTES as u64, "bytes of text"));
        }
        Ok(())
    }

    fn exceed(&self, limit: u64, unit: &'static str) -> Error {
        self.stop(Stop::Exceeded(limit, unit));
        Error::new(ErrorKind::InvalidOperation, format!("more than {limit} {unit}"))
    }

    fn stop(&self, why: Stop) {
        let mut stopped = self.stopped.lock().unwrap_or_else(|poison| poison.into_inner());
        stopped.get_or_insert(why);
    }

    fn stopped(&self) -> Option<Stop> {
        self.stopped.lock().unwrap_or_else(|poison| poison.into_inner()).clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WORK: u64 = limits::TEMPLATE_WORK_BYTES;
    const OUTPUT: usize = limits::TEMPLATE_OUTPUT_BYTES;

    #[test]
    fn a_budget_lasts_to_its_limits_and_names_the_one_that_ended_it() {
        let budget = Budget::new();
        budget.work(WORK as usize - 1).expect("below the limit");
        budget.work(1).expect("at the limit");
        assert_eq!(budget.exceeded(), None);
        let error = budget.work(1).expect_err("beyond the limit");
        assert_eq!(budget.exceeded(), Some((WORK, "bytes of work")));
        assert!(error.to_string().contains("bytes of work"), "{error}");
        // The first reason stays.
        budget.write(OUTPUT + 1).expect_err("too much output");
        budget.raise("too late".to_owned());
        assert_eq!((budget.exceeded(), budget.raised()), (Some((WORK, "bytes of work")), None));
    }

    #[test]
    fn texts_that_are_made_and_all_output_together_have_a_limit() {
        let text = Some((OUTPUT as u64, "bytes of text"));
        let budget = Budget::new();
        budget.make(OUTPUT).expect("at the limit");
        budget.make_check(OUTPUT).expect("at the limit");
        assert_eq!(budget.worked(), OUTPUT as u64);
        budget.make(OUTPUT + 1).expect_err("beyond the limit");
        assert_eq!(budget.exceeded(), text);
        let budget = Budget::new();
        budget.make_check(OUTPUT + 1).expect_err("beyond the limit");
        assert_eq!(budget.exceeded(), text);
        let budget = Budget::new();
        budget.write(OUTPUT - 1).expect("below the limit");
        budget.write(1).expect("at the limit");
        budget.write(1).expect_err("beyond the limit");
        assert_eq!(budget.exceeded(), text);
    }

    #[test]
    fn a_raised_message_is_no_limit() {
        let budget = Budget::new();
        let error = budget.raise("no".to_owned());
        assert_eq!((budget.raised().as_deref(), budget.exceeded()), (Some("no"), None));
        assert_eq!(error.detail(), Some("no"));
    }
}
