//! The part of [`LlmOptions`] that concerns the engine.

use pelton_engine::EngineConfig;
use pelton_sched::PreemptionMode;

use crate::error::LlmError;
use crate::options::LlmOptions;

impl LlmOptions {
    /// Refuses scheduling choices that are out of range or contradict each other.
    ///
    /// # Errors
    ///
    /// [`LlmError::Option`] names the first option that is wrong.
    pub fn check_scheduling(&self) -> Result<(), LlmError> {
        self.choices.check()?;
        let fail = |option, why: &str| Err(LlmError::Option { option, why: why.to_owned() });
        match (self.choices.preemption, self.swap_bytes) {
            (PreemptionMode::Swap, 0) => {
                fail("preemption", "`swap` needs `swap_memory` above 0, got 0")
            }
            (PreemptionMode::Recompute, 1..) => {
                fail("swap_memory", "`preemption: recompute` never swaps; expected 0")
            }
            _ => Ok(()),
        }
    }

    /// The engine's configuration, for sequences of up to `context_tokens` tokens.
    pub(crate) fn engine(&self, context_tokens: usize) -> EngineConfig {
        EngineConfig {
            choices: self.choices.clone(),
            max_waiting_requests: self.max_waiting,
            max_context_tokens: context_tokens,
            spec: self.spec,
            ..EngineConfig::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pelton_sched::Choices;
    use std::time::Duration;

    #[test]
    fn contradictions_are_refused_by_option() {
        let options = |preemption, swap_bytes| LlmOptions {
            choices: Choices { preemption, ..Choices::default() },
            swap_bytes,
            ..LlmOptions::default()
        };
        let choices = Choices { max_wait: Duration::ZERO, ..Choices::default() };
        for (words, options) in [
            (["preemption", "swap_memory"], options(PreemptionMode::Swap, 0)),
            (["preemption", "swap_memory"], options(PreemptionMode::Recompute, 1)),
            (["max_wait", "above 0"], LlmOptions { choices, ..LlmOptions::default() }),
        ] {
            let error = options.check_scheduling().expect_err("a contradiction").to_string();
            assert!(words.iter().all(|word| error.contains(word)), "{words:?}: {error}");
        }
        options(PreemptionMode::Swap, 1 << 30).check_scheduling().expect("swapping");
        LlmOptions::default().check_scheduling().expect("the defaults");
    }
}
