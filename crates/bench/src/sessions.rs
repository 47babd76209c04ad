//! Conversations: a turn waits for the answer before it, and then for its user to think.
//!
//! ```text
//! trace ──admit──▶ session is free ─────────────────────────────▶ begins
//!            │     its user still thinks ──▶ thinking, by time ──▶ begins
//!            └──▶  a turn is under way ──▶ waits ──ended──▶ thinking
//! ```

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::time::{Duration, Instant};

use pelton_sim::trace::TraceRequest;

/// A request that may begin, and the moment at which its user asked where that is not the trace's.
type Ready = (TraceRequest, Option<Instant>);

/// The sessions of a run.
#[derive(Debug, Default)]
pub(crate) struct Sessions {
    states: HashMap<u64, State>,
    /// Turns whose users think, by the end of that; numbers keep the order of equal moments.
    thinking: BTreeMap<(Instant, u64), TraceRequest>,
    n_admitted: u64,
}

#[derive(Debug)]
enum State {
    /// A turn is under way, or its user thinks about it; later turns wait.
    Busy(VecDeque<TraceRequest>),
    /// The last answer ended then.
    Free(Instant),
}

impl Sessions {
    /// Whether no turn waits.
    pub(crate) fn is_empty(&self) -> bool {
        let waits = |state: &State| matches!(state, State::Busy(queue) if !queue.is_empty());
        self.thinking.is_empty() && !self.states.values().any(waits)
    }

    /// Takes a request of the trace; answers with it where it begins now.
    pub(crate) fn admit(&mut self, request: TraceRequest, now: Instant) -> Option<Ready> {
        let Some(turn) = request.turn else { return Some((request, None)) };
        match self.states.get_mut(&turn.session) {
            Some(State::Busy(queue)) => {
                queue.push_back(request);
                None
            }
            Some(State::Free(ended)) => {
                let due = *ended + Duration::from_nanos(turn.think_ns);
                self.states.insert(turn.session, State::Busy(VecDeque::new()));
                if due <= now {
                    return Some((request, None));
                }
                self.think(request, due);
                None
            }
            None => {
                self.states.insert(turn.session, State::Busy(VecDeque::new()));
                Some((request, None))
            }
        }
    }

    /// The moment of the next turn whose user thinks.
    pub(crate) fn due(&self) -> Option<Instant> {
        self.thinking.first_key_value().map(|((due, _), _)| *due)
    }

    /// That turn.
    pub(crate) fn pop(&mut self) -> Option<Ready> {
        self.thinking.pop_first().map(|((due, _), request)| (request, Some(due)))
    }

    /// Notes that the turn of a session that was under way has ended.
    pub(crate) fn ended(&mut self, session: Option<u64>, now: Instant) {
        let Some(state) = session.and_then(|session| self.states.get_mut(&session)) else { return };
        let next = match state {
            State::Busy(queue) => queue.pop_front(),
            State::Free(_) => None,
        };
        match next {
            Some(request) => {
                let think_ns = request.turn.map_or(0, |turn| turn.think_ns);
                self.think(request, now + Duration::from_nanos(think_ns));
            }
            None => *state = State::Free(now),
        }
    }

    fn think(&mut self, request: TraceRequest, due: Instant) {
        self.thinking.insert((due, self.n_admitted), request);
        self.n_admitted += 1;
    }
}

#[cfg(test)]
mod tests {
    use pelton_sim::trace::Turn;

    use super::*;

    #[test]
    fn a_turn_waits_for_the_answer_before_it_and_for_its_user() {
        let zero = Instant::now();
        let at = |ms: u64| zero + Duration::from_millis(ms);
        let turn = |n_prompt, session, think_ms: u64| TraceRequest {
            turn: Some(Turn { session, think_ns: think_ms * 1_000_000 }),
            ..TraceRequest::new(0, n_prompt, 1)
        };
        let mut sessions = Sessions::default();
        let begun = |ready: Option<Ready>| ready.map(|(request, _)| request.n_prompt);
        assert_eq!(begun(sessions.admit(turn(1, 7, 50), at(0))), Some(1), "the first one begins");
        assert_eq!(begun(sessions.admit(turn(2, 7, 20), at(1))), None);
        assert_eq!(begun(sessions.admit(turn(3, 7, 5), at(2))), None);
        assert_eq!(begun(sessions.admit(turn(9, 8, 0), at(3))), Some(9), "another session is free");
        assert!(begun(sessions.admit(TraceRequest::new(0, 4, 1), at(3))).is_some());
        assert_eq!(sessions.due(), None);
        sessions.ended(Some(7), at(100));
        assert_eq!(sessions.due(), Some(at(120)));
        assert_eq!(begun(sessions.pop()), Some(2));
        assert!(!sessions.is_empty(), "the third turn waits");
        sessions.ended(Some(7), at(200));
        assert_eq!((sessions.due(), begun(sessions.pop())), (Some(at(205)), Some(3)));
        sessions.ended(Some(7), at(300));
        assert!(sessions.is_empty() && sessions.pop().is_none());
        // A turn that comes while its user still thinks about the last answer waits for that.
        assert_eq!(begun(sessions.admit(turn(5, 7, 40), at(310))), None);
        assert_eq!((sessions.due(), begun(sessions.pop())), (Some(at(340)), Some(5)));
        sessions.ended(Some(7), at(400));
        assert_eq!(begun(sessions.admit(turn(6, 7, 40), at(441))), Some(6));
    }
}
