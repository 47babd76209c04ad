//! The searches under way: which requests are their beams, and the moves from step to step.

use crate::beams::probe::{Lens, Notes, Probe, lock};
use crate::beams::search::{BeamSearch, Bounds, Seen, Top};
use crate::beams::{Beam, BeamParams};
use crate::{Fault, LogitsProcessor, Panicked, guard};
use pelton_base::{Ask, Constraint, Request, RequestId, SamplingParams, TokenId};
use pelton_sampling::TokenLogprobs;
use std::collections::HashMap;
use std::sync::{Arc, Mutex};

/// Names the part of the work that is guarded here, for errors.
const RULE: &str = "the rule of a beam search";

/// All searches.
#[derive(Debug, Default)]
pub(crate) struct Groups {
    groups: HashMap<RequestId, Group>,
    /// The search of each beam.
    by_beam: HashMap<RequestId, RequestId>,
}

/// One search, under the name of the request that asked for it.
#[derive(Debug)]
pub(crate) struct Group {
    name: RequestId,
    /// The request of each beam; its tokens are chosen here, so no parameter shapes them.
    ask: Ask,
    search: BeamSearch,
    lens: Arc<Lens>,
    /// In the order of the search.
    beams: Vec<Member>,
}

/// One live beam.
#[derive(Debug)]
struct Member {
    id: RequestId,
    notes: Arc<Mutex<Notes>>,
    /// Likeliest tokens of the last row, for reports.
    top: Top,
    has_rested: bool,
}

/// The changes of a search from one step to the next, in the order in which they are to be made.
#[derive(Debug, Default)]
pub(crate) struct Moves {
    /// New beams: the beam that each goes on from, its request and probe, and its last token.
    pub(crate) branches: Vec<(RequestId, Request, Box<dyn LogitsProcessor>, TokenId)>,
    /// Beams that go on, and the token that each goes on with.
    pub(crate) extended: Vec<(RequestId, TokenId)>,
    /// Beams that are no longer searched.
    pub(crate) dropped: Vec<RequestId>,
}

impl Groups {
    /// Begins a search.
    pub(crate) fn insert(&mut self, group: Group) {
        self.by_beam.extend(group.beams.iter().map(|beam| (beam.id, group.name)));
        self.groups.insert(group.name, group);
    }

    /// The search that a beam belongs to.
    pub(crate) fn of(&self, beam: RequestId) -> Option<RequestId> {
        self.by_beam.get(&beam).copied()
    }

    /// Notes that a beam is computed, with the report of its row; `true` when all beams of its search
    /// are.
    pub(crate) fn rested(&mut self, beam: RequestId, report: Option<TokenLogprobs>) -> bool {
        let group = self.by_beam.get(&beam).and_then(|name| self.groups.get_mut(name));
        let group = group.expect("invariant: a beam has a search");
        let member = group.beams.iter_mut().find(|member| member.id == beam);
        let member = member.expect("invariant: a search knows its beams");
        member.has_rested = true;
        member.top = report.map(|report| report.top.into());
        group.beams.iter().all(|member| member.has_rested)
    }

    /// Takes a search a step further; `None` when it is over. `new_id` names new beams.
    ///
    /// # Errors
    ///
    /// When its rule panicked; the search can then only be ended.
    pub(crate) fn advance(
        &mut self,
        name: RequestId,
        new_id: impl FnMut() -> RequestId,
    ) -> Result<Option<Moves>, Panicked> {
        let group = self.groups.get_mut(&name).expect("invariant: it is under way");
        let moves = group.advance(new_id)?;
        for id in moves.iter().flat_map(|moves| &moves.dropped) {
            self.by_beam.remove(id);
        }
        for (_, request, ..) in moves.iter().flat_map(|moves| &moves.branches) {
            self.by_beam.insert(request.id, name);
        }
        Ok(moves)
    }

    /// Tokens of each live beam of a search.
    pub(crate) fn n_tokens(&self, name: RequestId) -> usize {
        self.groups.get(&name).map_or(0, |group| group.search.n_tokens())
    }

    /// Forgets beams of a search that is about to end.
    pub(crate) fn forget(&mut self, name: RequestId, beams: impl Iterator<Item = RequestId>) {
        for id in beams {
            self.by_beam.remove(&id);
            let group = self.groups.get_mut(&name);
            group.into_iter().for_each(|group| group.beams.retain(|member| member.id != id));
        }
    }

    /// The names of all searches.
    pub(crate) fn names(&self) -> Vec<RequestId> {
        self.groups.keys().copied().collect()
    }

    /// Takes a search out, with the names of its beams.
    pub(crate) fn remove(&mut self, name: RequestId) -> Option<(Group, Vec<RequestId>)> {
        let group = self.groups.remove(&name)?;
        let beams: Vec<RequestId> = group.beams.iter().map(|member| member.id).collect();
        for beam in &beams {
            self.by_beam.remove(beam);
        }
        Some((group, beams))
    }

    /// Forgets every search.
    pub(crate) fn clear(&mut self) {
        self.groups.clear();
        self.by_beam.clear();
    }
}

impl Group {
    /// A search for the answers to `request`, with at most `n_most` tokens each; also the request and
    /// the probe of its first beam.
    ///
    /// # Errors
    ///
    /// When the rule of the request panicked.
    pub(crate) fn new(
        request: Request,
        params: BeamParams,
        n_most: usize,
    ) -> Result<(Self, Request, Box<dyn LogitsProcessor>), Panicked> {
        let Request { id, mut ask } = request;
        let constraint = ask.constraint.take();
        let begin = |constraint: &Constraint| guard(RULE, || constraint.begin());
        let rule = constraint.as_ref().map(begin).transpose()?;
        let lens = Arc::new(Lens::new(&ask, params.width));
        let bounds = Bounds {
            n_prompt: ask.prompt.len() - ask.service.source.end(),
            n_most,
            ends: ask.stop_tokens.clone(),
        };
        let SamplingParams { logprobs, .. } = ask.sampling;
        ask.sampling = SamplingParams { logprobs, ..SamplingParams::greedy() };
        ask.stop_tokens.clear();
        let search = BeamSearch::new(params, bounds);
        let notes = Arc::new(Mutex::new(Notes { rule, candidates: None }));
        let probe = Box::new(Probe::new(&lens, &notes));
        let first = Request { id, ask: ask.clone() };
        let beams = vec![Member { id, notes, top: None, has_rested: false }];
        Ok((Self { name: id, ask, search, lens, beams }, first, probe))
    }

    /// The best answers so far.
    pub(crate) fn answers(&self) -> Vec<Beam> {
        self.search.answers()
    }

    /// The reason why no beam goes on, where their rule allows none to.
    pub(crate) fn stuck(&self) -> Option<Fault> {
        let notes = lock(&self.beams.first()?.notes);
        let rule = notes.rule.as_ref()?;
        Some(match guard(RULE, || rule.stuck()) {
            Ok(why) => Fault::Stuck(why.unwrap_or_else(|| "its rule allows none".to_owned())),
            Err(panicked) => Fault::Panicked(panicked),
        })
    }

    /// The best live beam goes on first among those of one parent, in the place of the parent; the
    /// others branch from it.
    fn advance(
        &mut self,
        mut new_id: impl FnMut() -> RequestId,
    ) -> Result<Option<Moves>, Panicked> {
        let seen = self.beams.iter_mut().map(|member| Seen {
            candidates: lock(&member.notes).candidates.take().unwrap_or_default(),
            top: member.top.take(),
        });
        let seen: Vec<Seen> = seen.collect();
        let children = self.search.advance(&seen);
        if children.is_empty() {
            return Ok(None);
        }
        let mut parents: Vec<Option<Member>> = Vec::new();
        let mut moves = Moves::default();
        let mut beams = Vec::with_capacity(children.len());
        for (rank, child) in children.iter().enumerate() {
            let is_first = children[..rank].iter().all(|other| other.parent != child.parent);
            let parent = &self.beams[child.parent];
            let rule = self.rule_after(parent, child.token)?;
            let notes = Arc::new(Mutex::new(Notes { rule, candidates: None }));
            let id = if is_first { parent.id } else { new_id() };
            if is_first {
                moves.extended.push((id, child.token));
            } else {
                let request = Request { id, ask: self.ask.clone() };
                let probe = Box::new(Probe::new(&self.lens, &notes));
                moves.branches.push((parent.id, request, probe, child.token));
            }
            beams.push((is_first.then_some(child.parent), id, notes));
        }
        let goes_on = |idx| children.iter().any(|child| child.parent == idx);
        let dropped = (0..self.beams.len()).filter(|&idx| !goes_on(idx));
        moves.dropped.extend(dropped.map(|idx| self.beams[idx].id));
        parents.extend(self.beams.drain(..).map(Some));
        for (parent, id, notes) in beams {
            let member = match parent.and_then(|idx| parents[idx].take()) {
                // Its probe writes where it always did.
                Some(member) => {
                    let rule = lock(&notes).rule.take();
                    lock(&member.notes).rule = rule;
                    Member { has_rested: false, ..member }
                }
                None => Member { id, notes, top: None, has_rested: false },
            };
            self.beams.push(member);
        }
        Ok(Some(moves))
    }

    /// The rule of a beam after one more token.
    fn rule_after(
        &self,
        parent: &Member,
        token: TokenId,
    ) -> Result<Option<Box<dyn pelton_base::RuleState>>, Panicked> {
        let notes = lock(&parent.notes);
        let Some(rule) = &notes.rule else { return Ok(None) };
        guard(RULE, || {
            let mut rule = rule.fork();
            assert!(rule.accept(token), "it refuses token {token}, which it allowed");
            Some(rule)
        })
    }
}
