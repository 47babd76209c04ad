//! Processor time of the threads of models, apart from all others.

use std::collections::HashMap;

/// Begins of the names of threads that compute for models or prepare their vocabularies. The system
/// keeps 15 characters of a name.
const MODEL_THREADS: [&str; 5] =
    ["pelton-engine", "team-", "pelton-masks", "pelton-embed", "pelton-forms"];

/// Processor time, by what it was used for. Threads that have ended stay counted, except for what
/// they did since the last look.
#[derive(Debug, Default)]
pub(super) struct Parts {
    /// Nanoseconds of each thread of a model at the last look.
    model_ns: HashMap<u64, u64>,
    /// Nanoseconds of threads that have ended.
    ended_ns: u64,
    last: Seconds,
}

/// Processor time in seconds; never less than at an earlier look.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Seconds {
    /// Threads that compute for models.
    pub(super) model: f64,
    /// All others: HTTP, templates, tokenizers, events.
    pub(super) serving: f64,
}

impl Parts {
    /// Looks at the threads of this process, which has used `process` seconds in all.
    pub(super) fn look(&mut self, process: f64) -> Seconds {
        self.note(model_threads(), process)
    }

    fn note(&mut self, now: HashMap<u64, u64>, process: f64) -> Seconds {
        for (thread, &ns) in &self.model_ns {
            // The system gives the number of an ended thread to a new one.
            if now.get(thread).is_none_or(|&now| now < ns) {
                self.ended_ns += ns;
            }
        }
        let model_ns = self.ended_ns + now.values().sum::<u64>();
        self.model_ns = now;
        let model = (model_ns as f64 / 1e9).max(self.last.model);
        let serving = (process - model).max(self.last.serving);
        self.last = Seconds { model, serving };
        self.last
    }
}

/// Nanoseconds that each thread of a model has run.
fn model_threads() -> HashMap<u64, u64> {
    let mut found = HashMap::new();
    let Ok(threads) = std::fs::read_dir("/proc/self/task") else { return found };
    for thread in threads.flatten() {
        let folder = thread.path();
        let read = |name: &str| std::fs::read_to_string(folder.join(name)).ok();
        let Some(name) = read("comm") else { continue };
        if !MODEL_THREADS.iter().any(|start| name.starts_with(start)) {
            continue;
        }
        let id = thread.file_name().to_str().and_then(|id| id.parse::<u64>().ok());
        let ns = read("schedstat").and_then(|text| text.split(' ').next()?.parse::<u64>().ok());
        found.extend(id.zip(ns));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_that_end_stay_counted_and_time_never_goes_back() {
        let mut parts = Parts::default();
        let second = 1_000_000_000;
        let mut note = |threads: &[(u64, u64)], process| {
            let threads = threads.iter().map(|&(id, s)| (id, s * second)).collect();
            parts.note(threads, process)
        };
        assert_eq!(note(&[(7, 2), (8, 3)], 6.0), Seconds { model: 5.0, serving: 1.0 });
        // Thread 8 ends, and its number goes to a new thread.
        assert_eq!(note(&[(7, 4), (8, 1)], 9.5), Seconds { model: 8.0, serving: 1.5 });
        assert_eq!(note(&[], 9.5), Seconds { model: 8.0, serving: 1.5 });
        // The ticks of the process lag behind.
        assert_eq!(note(&[(9, 3)], 10.0), Seconds { model: 11.0, serving: 1.5 });
        assert_eq!(note(&[(9, 3)], 13.0), Seconds { model: 11.0, serving: 2.0 });
    }

    #[test]
    fn a_thread_of_a_model_is_found_by_its_name() {
        let (done, wait) = std::sync::mpsc::channel::<()>();
        let before = model_threads().len();
        let thread = std::thread::Builder::new().name("team-test".to_owned());
        let thread = thread.spawn(move || wait.recv().is_ok()).expect("a thread");
        // The thread sets its name itself, after it has begun.
        while model_threads().len() <= before {
            std::thread::yield_now();
        }
        drop(done);
        assert!(!thread.join().expect("no panic"), "nothing was sent");
    }
}
