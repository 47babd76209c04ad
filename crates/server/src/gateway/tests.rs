//! A gateway whose clock and disk the test holds in its hands.

use std::collections::BTreeMap;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use pelton_base::{TenantId, Usage};
use pelton_gateway::{Counts, Day, Filter, Limit, Limits, Now, RowKey, Store, StoreError};
use pelton_llm::{Asked, Gatekeeper, NotAdmitted};

use super::clock::Clock;
use super::{Gateway, GatewayConfig, Ticket, UsageFailures};

const DAY_SECONDS: u64 = 24 * 60 * 60;

/// A day far from the start of a month.
const TODAY: Day = Day(20_010);

#[derive(Clone, Default)]
struct Disk {
    is_full: Arc<AtomicBool>,
}

impl Store for Disk {
    fn load(&mut self) -> Result<BTreeMap<RowKey, Counts>, StoreError> {
        Ok(BTreeMap::new())
    }

    fn add(&mut self, _: &BTreeMap<RowKey, Counts>) -> Result<(), StoreError> {
        match self.is_full.load(Ordering::SeqCst) {
            true => Err(StoreError("no space left on device".to_owned())),
            false => Ok(()),
        }
    }
}

struct World {
    gateway: Arc<Gateway>,
    disk: Disk,
    unix_seconds: Arc<AtomicU64>,
}

impl World {
    /// At noon of [`TODAY`], with one tenant that has one limit.
    fn new(limit: Limit, most: u64, usage_failures: UsageFailures) -> Self {
        let mut limits = Limits::default();
        limits.set(limit, NonZeroU64::new(most));
        let tenant_limits = vec![("t".to_owned(), limits)];
        let config = GatewayConfig { tenant_limits, usage_failures, ..GatewayConfig::default() };
        let disk = Disk::default();
        let noon = u64::from(TODAY.0) * DAY_SECONDS + DAY_SECONDS / 2;
        let unix_seconds = Arc::new(AtomicU64::new(noon));
        let clock = Clock::new({
            let unix_seconds = Arc::clone(&unix_seconds);
            move || {
                let unix_seconds = unix_seconds.load(Ordering::SeqCst);
                Now { elapsed: Duration::from_secs(unix_seconds - noon), unix_seconds }
            }
        });
        let store = Some(Box::new(disk.clone()) as Box<dyn Store>);
        let gateway = Gateway::with(&config, &["t".to_owned()], store, clock);
        Self { gateway: gateway.expect("settings that fit"), disk, unix_seconds }
    }

    fn ticket(&self) -> Arc<Ticket> {
        self.gateway.ticket(TenantId(0), None)
    }

    /// Reserves a prompt of 10 tokens and an answer of so many.
    fn reserve(&self, ticket: &Ticket, answer_tokens: u64) -> Result<u64, NotAdmitted> {
        self.gateway.admit(Asked {
            ticket: ticket.number(),
            prompt_tokens: 10,
            n_answers: 1,
            least_answer_tokens: answer_tokens,
            most_answer_tokens: answer_tokens,
        })
    }

    /// Counts a prompt of 10 tokens and an answer of so many.
    fn settle(&self, ticket: &Ticket, completion_tokens: usize) {
        let usage = Usage { prompt_tokens: 10, completion_tokens, ..Usage::default() };
        self.gateway.settle(ticket.number(), "m", usage);
    }
}

#[tokio::test]
async fn a_request_that_crosses_midnight_counts_for_the_day_on_which_it_began() {
    let world = World::new(Limit::TokensPerDay, 100, UsageFailures::Accept);
    let late = world.ticket();
    late.begin().expect("admitted");
    assert_eq!(world.reserve(&late, 90).expect("all of a day"), 90);
    world.unix_seconds.fetch_add(DAY_SECONDS / 2 + 1, Ordering::SeqCst);
    world.settle(&late, 90);
    late.end();
    let report = world.gateway.report(&Filter::default());
    assert_eq!(report.data.len(), 1);
    assert_eq!((report.data[0].day, report.total.completion_tokens), (TODAY, 90));
    // The new day has lost nothing.
    let early = world.ticket();
    early.begin().expect("admitted");
    assert_eq!(world.reserve(&early, 90).expect("all of a day"), 90);
}

#[tokio::test]
async fn a_request_that_is_run_again_holds_its_tokens_once() {
    let world = World::new(Limit::TokensTotal, 100, UsageFailures::Accept);
    let ticket = world.ticket();
    ticket.begin().expect("admitted");
    for _ in 0..3 {
        assert_eq!(world.reserve(&ticket, 50).expect("its own tokens are free again"), 50);
    }
    let other = world.ticket();
    other.begin().expect("admitted");
    assert!(world.reserve(&other, 31).is_err(), "60 of 100 tokens are held");
    assert_eq!(world.reserve(&other, 30).expect("the rest"), 30);
    other.end();
    world.settle(&ticket, 50);
    ticket.end();
    let last = world.ticket();
    last.begin().expect("admitted");
    assert!(world.reserve(&last, 31).is_err(), "60 of 100 tokens are used");
    assert_eq!(world.reserve(&last, 30).expect("the rest"), 30);
}

#[tokio::test]
async fn usage_that_cannot_be_written_refuses_requests_with_a_quota_where_it_is_to() {
    for failures in [UsageFailures::Accept, UsageFailures::Refuse] {
        let world = World::new(Limit::TokensTotal, 1000, failures);
        world.disk.is_full.store(true, Ordering::SeqCst);
        let first = world.ticket();
        first.begin().expect("nothing has failed yet");
        world.reserve(&first, 10).expect("enough");
        world.settle(&first, 10);
        world.gateway.written(first.number()).await;
        first.end();
        let second = world.ticket().begin();
        if failures == UsageFailures::Accept {
            second.expect("served all the same");
            continue;
        }
        let error = second.expect_err("its tokens could not be counted");
        assert_eq!((error.status.as_u16(), error.body.code), (503, Some("usage_unavailable")));
        world.disk.is_full.store(false, Ordering::SeqCst);
        while world.ticket().begin().is_err() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}
