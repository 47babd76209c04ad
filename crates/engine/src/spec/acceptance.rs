//! How likely drafts are right, as seen so far.
//!
//! For a chain: at each place, the share of accepted drafts among the drafts whose predecessors
//! were all accepted. For a tree: for each draft in the order in which it was made, the share that
//! was on the accepted path. For an investment: the mean number of accepted drafts. Old outcomes
//! count less and less, and a new sequence starts with a few assumed outcomes.

/// Places of a chain, and drafts of a tree, that are counted apart; later ones count as the last.
pub const MOST_PLACES: usize = 64;
/// Each outcome weighs this much of the one after it.
const FADING: f32 = 0.9;
/// Weight of the assumed outcomes of a new sequence, in outcomes.
const PRIOR_WEIGHT: f32 = 2.0;

/// Outcomes of drafts by their place.
#[derive(Clone, Copy, Debug)]
pub struct Acceptance {
    tried: [f32; MOST_PLACES],
    accepted: [f32; MOST_PLACES],
}

impl Default for Acceptance {
    fn default() -> Self {
        Self { tried: [0.0; MOST_PLACES], accepted: [0.0; MOST_PLACES] }
    }
}

impl Acceptance {
    /// Counts a chain of `n_drafts` drafts of which the first `n_accepted` were right.
    pub fn saw_chain(&mut self, n_drafts: usize, n_accepted: usize) {
        for place in 0..n_drafts.min(n_accepted + 1).min(MOST_PLACES) {
            self.judge(place, place < n_accepted);
        }
    }

    /// Counts a tree of `n_drafts` drafts of which those in the rows `accepted` were right. The
    /// first draft has row 1, after that of the last known token.
    pub fn saw_tree(&mut self, n_drafts: usize, accepted: &[usize]) {
        for place in 0..n_drafts.min(MOST_PLACES) {
            self.judge(place, accepted.contains(&(place + 1)));
        }
    }

    /// Counts drafts that are judged as a whole, of which `n_accepted` were right.
    pub fn saw_whole(&mut self, n_accepted: usize) {
        self.count(0, n_accepted as f32);
    }

    fn judge(&mut self, place: usize, was_right: bool) {
        self.count(place, f32::from(u8::from(was_right)));
    }

    fn count(&mut self, place: usize, n_accepted: f32) {
        self.tried[place] = self.tried[place] * FADING + 1.0;
        self.accepted[place] = self.accepted[place] * FADING + n_accepted;
    }

    /// Probability that the draft at `place` is right, in a chain given that the drafts before it
    /// are; `prior` before the first outcome. For an investment, at place 0, the number of right
    /// drafts.
    pub fn at(&self, place: usize, prior: f32) -> f32 {
        let place = place.min(MOST_PLACES - 1);
        (self.accepted[place] + PRIOR_WEIGHT * prior) / (self.tried[place] + PRIOR_WEIGHT)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_happens_lately_is_what_is_expected() {
        let mut acceptance = Acceptance::default();
        assert_eq!(acceptance.at(0, 0.5), 0.5);
        for _ in 0..100 {
            acceptance.saw_chain(4, 2);
        }
        assert!(acceptance.at(0, 0.5) > 0.9 && acceptance.at(1, 0.5) > 0.9);
        assert!(acceptance.at(2, 0.5) < 0.1);
        assert_eq!(acceptance.at(3, 0.5), 0.5, "never judged");
        for _ in 0..20 {
            acceptance.saw_chain(4, 4);
        }
        assert!(acceptance.at(2, 0.5) > 0.8);
    }

    #[test]
    fn drafts_of_a_tree_are_judged_one_by_one() {
        let mut acceptance = Acceptance::default();
        for _ in 0..100 {
            acceptance.saw_tree(4, &[1, 4]);
        }
        assert!(acceptance.at(0, 0.5) > 0.9 && acceptance.at(3, 0.5) > 0.9);
        assert!(acceptance.at(1, 0.5) < 0.1 && acceptance.at(2, 0.5) < 0.1);
        acceptance.saw_tree(MOST_PLACES + 1, &[MOST_PLACES + 1]);
    }

    #[test]
    fn of_an_investment_all_that_was_right_counts() {
        let mut acceptance = Acceptance::default();
        for i in 0..100 {
            acceptance.saw_whole(1 + 2 * (i % 2));
        }
        let mean = acceptance.at(0, 0.0);
        assert!((1.5..2.0).contains(&mean), "{mean} of 1 and 3, less the prior");
    }
}
