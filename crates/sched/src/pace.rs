//! The measured pace at which prompts are computed and places become free.

use crate::outlook::ONE;

/// Steps with prompts, and steps with endings, that are remembered: each weighs 1/32 less than the one
/// after it.
const MEMORY: u64 = 32;

/// A ratio of two sums in which old summands count less and less.
#[derive(Clone, Copy, Debug, Default)]
struct Ratio {
    above: u64,
    below: u64,
}

impl Ratio {
    /// Makes all summands so far count less.
    fn fade(&mut self) {
        self.above -= self.above / MEMORY;
        self.below -= self.below / MEMORY;
    }

    fn add(&mut self, above: u64, below: u64) {
        self.above = self.above.saturating_add(above);
        self.below = self.below.saturating_add(below);
    }

    /// `scale · above / below`; zero while nothing is known.
    fn times(&self, scale: u64) -> u64 {
        let product = u128::from(self.above) * u128::from(scale);
        u64::try_from(product / u128::from(self.below.max(1))).unwrap_or(u64::MAX)
    }
}

/// Measured over the last steps.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Pace {
    /// Time of steps that computed prompts, over the time of the prompts alone.
    stretch: Ratio,
    /// Time in which requests waited, over endings in it; endings count [`ONE`] each.
    ending: Ratio,
    /// The last plan's prompts, alone on the machine, in nanoseconds.
    prompt_ns: u64,
    n_ended: u64,
    has_waiting: bool,
}

impl Pace {
    /// A step took `step_ns`.
    pub(crate) fn stepped(&mut self, step_ns: u64) {
        if self.prompt_ns > 0 {
            self.stretch.fade();
            self.stretch.add(step_ns, self.prompt_ns);
        }
        if self.has_waiting {
            // The average fades with each ending. If it faded with each step, the time between two
            // endings of requests of 100 tokens would be a third of the real one after an ending and six
            // times the real one before it.
            if self.n_ended > 0 {
                self.ending.fade();
            }
            self.ending.add(step_ns, self.n_ended.saturating_mul(ONE));
        }
        *self = Self { stretch: self.stretch, ending: self.ending, ..Self::default() };
    }

    /// A plan was made.
    pub(crate) fn planned(&mut self, prompt_ns: u64, has_waiting: bool) {
        (self.prompt_ns, self.has_waiting) = (prompt_ns, has_waiting);
    }

    /// A request has ended.
    pub(crate) fn ended(&mut self) {
        self.n_ended += 1;
    }

    /// How much longer prompts take than alone, in 1/1024; zero while unknown.
    pub(crate) fn stretch(&self) -> u64 {
        self.stretch.times(ONE)
    }

    /// Time between two endings while requests wait, in nanoseconds; zero while unknown.
    pub(crate) fn ending_ns(&self) -> u64 {
        if self.ending.below == 0 { 0 } else { self.ending.times(ONE) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paces_settle_at_what_is_measured() {
        let mut pace = Pace::default();
        assert_eq!((pace.stretch(), pace.ending_ns()), (0, 0));
        for step in 0..1000 {
            pace.planned(2_000, true);
            if step % 10 == 0 {
                pace.ended();
            }
            pace.stepped(5_000);
        }
        assert_eq!(pace.stretch(), 5 * ONE / 2);
        let ending = pace.ending_ns();
        assert!((40_000..60_000).contains(&ending), "one in ten steps of 5 us: {ending}");
        for _ in 0..300 {
            pace.planned(0, true);
            pace.ended();
            pace.stepped(7_000);
        }
        assert_eq!(pace.stretch(), 5 * ONE / 2, "steps without a prompt say nothing of it");
        let ending = pace.ending_ns();
        assert!((6_900..7_100).contains(&ending), "old endings are forgotten: {ending}");
        pace.planned(0, false);
        pace.stepped(1_000_000);
        assert_eq!(pace.ending_ns(), ending, "time in which nothing waited does not count");
    }
}
