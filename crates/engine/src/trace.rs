//! The steps of one request, for its timeline.
//!
//! ```text
//!   [ prefill ][ prefill ]   [ decode ][ decode ] x preempted [ prefill ][ decode, 3 of 4 drafts ]
//! ```
//!
//! The list gets room for [`MOST_MARKS`] with the request's first step, so later steps allocate nothing
//! and a waiting request takes no memory for it.
//! When it is full, neighbouring decoding steps are joined two by two, and from then on each mark
//! covers twice as many steps: a long answer has a coarse timeline, but a whole one.

use std::time::Instant;

/// Marks of a request.
const MOST_MARKS: usize = 128;

/// The kind of a mark.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum MarkKind {
    /// Tokens of the prompt were computed, or tokens computed anew after a preemption.
    Prefill,
    /// Tokens were generated.
    Decode,
    /// The request gave up its KV blocks.
    Preempted,
}

/// Some steps of a request.
#[derive(Clone, Copy, Debug)]
pub struct Mark {
    /// Kind of the event.
    pub kind: MarkKind,
    /// Start of the first step.
    pub begin: Instant,
    /// End of the last step.
    pub end: Instant,
    /// Steps.
    pub n_steps: u32,
    /// Tokens computed.
    pub n_rows: u32,
    /// Tokens handed out.
    pub n_tokens: u32,
    /// The part of the computed tokens that was drafted.
    pub n_drafts: u32,
}

/// The marks of a request, the oldest first.
#[derive(Clone, Debug)]
pub struct Trace {
    marks: Vec<Mark>,
    /// Most decoding steps of a mark.
    span: u32,
}

impl Default for Trace {
    fn default() -> Self {
        Self { marks: Vec::new(), span: 1 }
    }
}

impl Trace {
    /// The marks.
    pub fn marks(&self) -> &[Mark] {
        &self.marks
    }

    /// A step with `n_rows` tokens of the request begins; the last `n_drafts` of them are guesses.
    pub(crate) fn step(&mut self, kind: MarkKind, at: Instant, n_rows: usize, n_drafts: usize) {
        let short = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        let (n_rows, n_drafts) = (short(n_rows), short(n_drafts));
        if let Some(last) = self.marks.last_mut()
            && last.kind == kind
            && kind == MarkKind::Decode
            && last.n_steps < self.span
        {
            last.end = at;
            last.n_steps += 1;
            last.n_rows = last.n_rows.saturating_add(n_rows);
            last.n_drafts = last.n_drafts.saturating_add(n_drafts);
            return;
        }
        if self.marks.len() == MOST_MARKS && !self.join() {
            return;
        }
        if self.marks.is_empty() {
            self.marks.reserve_exact(MOST_MARKS);
        }
        let (begin, end) = (at, at);
        self.marks.push(Mark { kind, begin, end, n_steps: 1, n_rows, n_tokens: 0, n_drafts });
    }

    /// The step has ended, and brought `n_tokens`.
    pub(crate) fn ended(&mut self, at: Instant, n_tokens: usize) {
        let Some(last) = self.marks.last_mut() else { return };
        last.end = at;
        last.n_tokens = last.n_tokens.saturating_add(u32::try_from(n_tokens).unwrap_or(u32::MAX));
    }

    /// Joins neighbours of one kind; `false` where there are none.
    fn join(&mut self) -> bool {
        self.span = self.span.saturating_mul(2);
        let (mut kept, span) = (0, self.span);
        for next in 1..self.marks.len() {
            let mark = self.marks[next];
            let last = &mut self.marks[kept];
            let n_steps = last.n_steps.saturating_add(mark.n_steps);
            // Prompts that come in many parts are joined, too, but preemptions stay apart.
            let fits = mark.kind == MarkKind::Prefill || n_steps <= span;
            if last.kind == mark.kind && mark.kind != MarkKind::Preempted && fits {
                last.end = mark.end;
                last.n_steps = n_steps;
                last.n_rows = last.n_rows.saturating_add(mark.n_rows);
                last.n_tokens = last.n_tokens.saturating_add(mark.n_tokens);
                last.n_drafts = last.n_drafts.saturating_add(mark.n_drafts);
            } else {
                kept += 1;
                self.marks[kept] = mark;
            }
        }
        self.marks.truncate(kept + 1);
        self.marks.len() < MOST_MARKS
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_long_answer_keeps_its_begin_its_end_and_every_token() {
        let start = Instant::now();
        let at = |ms: u64| start + Duration::from_millis(ms);
        let mut trace = Trace::default();
        assert_eq!(trace.marks.capacity(), 0, "a waiting request takes no memory");
        trace.step(MarkKind::Prefill, at(0), 100, 0);
        let first = trace.marks.as_ptr();
        trace.ended(at(1), 1);
        for step in 1..10_000 {
            trace.step(MarkKind::Decode, at(10 * step), 3, 2);
            trace.ended(at(10 * step + 5), 2);
        }
        let marks = trace.marks();
        assert!((2..=MOST_MARKS).contains(&marks.len()), "{} marks", marks.len());
        assert_eq!(trace.marks.as_ptr(), first, "nothing was allocated");
        assert_eq!(
            (marks[0].kind, marks[0].n_rows, marks[0].n_tokens),
            (MarkKind::Prefill, 100, 1)
        );
        let sum = |of: fn(&Mark) -> u32| marks[1..].iter().map(of).sum::<u32>();
        assert_eq!(
            (sum(|m| m.n_steps), sum(|m| m.n_tokens), sum(|m| m.n_drafts)),
            (9_999, 19_998, 19_998)
        );
        assert_eq!((marks[1].begin, marks[marks.len() - 1].end), (at(10), at(99_995)));
        assert!(marks.is_sorted_by(|a, b| a.end <= b.begin));
    }

    #[test]
    fn preemptions_stay_apart_and_a_list_full_of_them_ends() {
        let now = Instant::now();
        let mut trace = Trace::default();
        for _ in 0..1000 {
            trace.step(MarkKind::Prefill, now, 1, 0);
            trace.step(MarkKind::Preempted, now, 0, 0);
        }
        assert_eq!(trace.marks().len(), MOST_MARKS);
        let n_preempted = trace.marks().iter().filter(|m| m.kind == MarkKind::Preempted).count();
        assert_eq!(n_preempted, MOST_MARKS / 2);
    }

    #[test]
    fn steps_of_another_kind_begin_a_mark_however_long_the_answer_is() {
        let now = Instant::now();
        let mut trace = Trace::default();
        for _ in 0..10 * MOST_MARKS {
            trace.step(MarkKind::Decode, now, 1, 0);
        }
        assert!(trace.span > 1);
        for kind in [MarkKind::Preempted, MarkKind::Prefill, MarkKind::Decode] {
            trace.step(kind, now, 5, 0);
        }
        let last = &trace.marks()[trace.marks().len() - 3..];
        let kinds = last.iter().map(|mark| (mark.kind, mark.n_steps));
        let expected = [MarkKind::Preempted, MarkKind::Prefill, MarkKind::Decode];
        assert!(kinds.eq(expected.map(|kind| (kind, 1))), "{last:?}");
    }
}
