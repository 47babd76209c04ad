//! Waiting requests, in the order in which they should run.
//!
//! ```text
//! lanes    one sorted map, or one per tenant where service decides first
//!          [ (rank, arrival) -> waiting or preempted ]
//! by_id    the place of each, for aborts
//! by_age   requests of each tenant that were not promoted, in order of arrival and of branching
//! ```
//!
//! Insertion, removal and promotion take logarithmic time; looking at the head takes constant time,
//! for a queue of any length.

use crate::sequence::{Parked, Standing};
use crate::tenants::Tenants;
use crate::{Policy, Tick};
use pelton_base::RequestId;
use std::collections::{BTreeMap, HashMap};
use std::ops::Bound;

/// The place of a waiting request.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Spot {
    pub(crate) lane: usize,
    pub(crate) standing: Standing,
}

/// Waiting and preempted requests.
#[derive(Debug)]
pub(crate) struct Queue {
    is_by_service: bool,
    lanes: Vec<BTreeMap<Standing, Parked>>,
    by_id: HashMap<RequestId, Spot>,
    by_age: Vec<BTreeMap<(u64, u64), Spot>>,
    /// Tokens of the prompts and outputs that are expected to be computed.
    n_tokens: u64,
}

impl Queue {
    pub(crate) fn new(policy: &dyn Policy, n_tenants: usize) -> Self {
        let is_by_service = policy.is_by_service();
        let n_lanes = if is_by_service { n_tenants } else { 1 };
        Self {
            is_by_service,
            lanes: std::iter::repeat_with(BTreeMap::new).take(n_lanes).collect(),
            by_id: HashMap::new(),
            by_age: std::iter::repeat_with(BTreeMap::new).take(n_tenants).collect(),
            n_tokens: 0,
        }
    }

    pub(crate) fn push(&mut self, parked: Parked) {
        let sequence = parked.sequence();
        let lane = if self.is_by_service { sequence.tenant } else { 0 };
        let spot = Spot { lane, standing: sequence.standing };
        self.n_tokens += sequence.size().n_computed() as u64;
        if !sequence.standing.is_promoted() {
            self.by_age[sequence.tenant].insert(sequence.standing.age(), spot);
        }
        let before = self.by_id.insert(sequence.id, spot);
        assert!(before.is_none(), "{} waits twice", sequence.id);
        self.lanes[lane].insert(spot.standing, parked);
    }

    pub(crate) fn take(&mut self, spot: Spot) -> Parked {
        let parked = self.lanes[spot.lane].remove(&spot.standing);
        let parked = parked.expect("invariant: a spot names a waiting request");
        let sequence = parked.sequence();
        self.by_id.remove(&sequence.id);
        self.by_age[sequence.tenant].remove(&spot.standing.age());
        self.n_tokens -= sequence.size().n_computed() as u64;
        parked
    }

    pub(crate) fn find(&self, id: RequestId) -> Option<Spot> {
        self.by_id.get(&id).copied()
    }

    pub(crate) fn at(&self, spot: Spot) -> &Parked {
        &self.lanes[spot.lane][&spot.standing]
    }

    /// Puts one request that arrived before `before` ahead of all that are not promoted: of the
    /// tenant that had the least service the first to arrive. `false` when none is that old.
    pub(crate) fn promote(&mut self, before: Tick, tenants: &Tenants) -> bool {
        let old = self.by_age.iter().enumerate().filter_map(|(tenant, by_age)| {
            let (&age, &spot) = by_age.first_key_value()?;
            let is_old = self.at(spot).sequence().arrived_at < before;
            is_old.then(|| (tenants.counter(tenant), age, spot))
        });
        let Some((.., spot)) = old.min_by_key(|&(counter, age, _)| (counter, age)) else {
            return false;
        };
        let mut parked = self.take(spot);
        parked.sequence_mut().standing = spot.standing.promoted();
        self.push(parked);
        true
    }

    /// The next of a lane after `standing`, or its first.
    pub(crate) fn next_in(&self, lane: usize, after: Option<Standing>) -> Option<Spot> {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let (&standing, _) = self.lanes[lane].range((from, Bound::Unbounded)).next()?;
        Some(Spot { lane, standing })
    }

    /// The next of all lanes, each after its cursor: that of the tenant whose turn it is.
    pub(crate) fn next(&self, cursors: &[Option<Standing>], tenants: &Tenants) -> Option<Spot> {
        if !self.is_by_service {
            return self.next_in(0, cursors[0]);
        }
        let heads = (0..self.lanes.len()).filter_map(|lane| self.next_in(lane, cursors[lane]));
        heads.min_by_key(|spot| (tenants.turn(spot.lane), spot.standing.arrival))
    }

    pub(crate) fn n_lanes(&self) -> usize {
        self.lanes.len()
    }

    pub(crate) fn len(&self) -> usize {
        self.by_id.len()
    }

    /// Requests that were promoted and wait.
    pub(crate) fn n_promoted(&self) -> usize {
        self.len() - self.by_age.iter().map(BTreeMap::len).sum::<usize>()
    }

    /// Tokens that are expected to be computed before all of them generate.
    pub(crate) fn n_tokens(&self) -> u64 {
        self.n_tokens
    }

    /// Every request, lane by lane in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Parked> + Clone {
        self.lanes.iter().flat_map(BTreeMap::values)
    }

    pub(crate) fn check_integrity(&self) {
        let mut n = 0;
        for (lane, waiting) in self.lanes.iter().enumerate() {
            for (&standing, parked) in waiting {
                let sequence = parked.sequence();
                assert_eq!(sequence.standing, standing, "{} has another standing", sequence.id);
                assert_eq!(self.by_id.get(&sequence.id), Some(&Spot { lane, standing }));
                let by_age = self.by_age[sequence.tenant].contains_key(&standing.age());
                assert_eq!(by_age, !standing.is_promoted(), "{}: age or promotion", sequence.id);
                n += 1;
            }
        }
        assert_eq!(n, self.by_id.len(), "the index names a request that does not wait");
        let n_by_age: usize = self.by_age.iter().map(BTreeMap::len).sum();
        assert!(n_by_age <= n, "the ages name a request that does not wait");
        let sizes = self.iter().map(|parked| parked.sequence().size());
        assert_eq!(sizes.map(|size| size.n_computed() as u64).sum::<u64>(), self.n_tokens);
    }
}
