//! Floods: the share of service of each tenant and of old requests.
//!
//! Every bound here is counted in tokens and holds after every step.

mod flood;

use flood::{COST, Flood, LONGEST, tenants};
use pelton_base::ServiceParams;
use pelton_sched::{Choices, Outlook, PolicyKind, PromptSize, StepCost};
use std::time::Duration;

#[test]
fn old_requests_get_a_tenth_of_the_tokens_and_none_starves() {
    for policy in [PolicyKind::Priority, PolicyKind::Sla, PolicyKind::LongestPrefix] {
        for max_running in [4, 64] {
            let max_wait = Duration::from_secs(5);
            let choices = Choices { policy, max_running, max_wait, ..Choices::default() };
            let mut flood = Flood::new(Choices { tenants: tenants(&[1, 1]), ..choices }, COST);
            // Old and of no urgency, then more urgent requests than can be served.
            (0..50).for_each(|_| flood.add(0, 9));
            // Promoted tokens beyond their tenth of all: now, and the least so far.
            let (mut least, mut worst) = (0, 0);
            for _ in 0..10_000 {
                while flood.scheduler.n_waiting() < 100 {
                    flood.add(1, -1);
                }
                flood.step();
                let promoted = flood.scheduler.stats().n_promoted_tokens as i64;
                let beyond = 10 * promoted - flood.n_computed as i64;
                least = least.min(beyond);
                worst = worst.max(beyond - least);
            }
            let n_places = (max_running as u64 / 10).max(1);
            let most = 10 * n_places * LONGEST;
            let stats = flood.scheduler.stats();
            assert!(worst <= most as i64, "{policy:?}: {worst} beyond a tenth, at most {most}");
            assert!(stats.n_promoted > 0, "{policy:?}: {stats:?}");
            assert!(stats.n_promoted_tokens > stats.n_promoted, "{policy:?}: {stats:?}");
            if policy == PolicyKind::Priority {
                assert_eq!(flood.n_ended[&0], 50, "{stats:?}");
            }
        }
    }
}

#[test]
fn a_flood_of_old_requests_leaves_the_guard_to_other_tenants_too() {
    let choices = Choices {
        policy: PolicyKind::Priority,
        max_running: 16,
        max_wait: Duration::from_secs(5),
        tenants: tenants(&[1, 1, 1]),
        ..Choices::default()
    };
    let mut flood = Flood::new(choices, COST);
    (0..500).for_each(|_| flood.add(0, 9));
    (0..5).for_each(|_| flood.add(1, 9));
    for _ in 0..8_000 {
        while flood.scheduler.n_waiting() < 600 {
            flood.add(2, -1);
        }
        flood.step();
    }
    assert_eq!(flood.n_ended[&1], 5, "{:?}", flood.n_ended);
    assert!(flood.n_ended[&0] < 400, "the flood was served anyway: {:?}", flood.n_ended);
}

#[test]
fn tenants_that_always_want_more_get_tokens_by_weight_at_any_age() {
    let weights = [1, 2, 5];
    let choices = Choices {
        policy: PolicyKind::Fair,
        max_running: 16,
        max_wait: Duration::from_millis(1),
        tenants: tenants(&weights),
        ..Choices::default()
    };
    // Without prices each token costs the same, and held blocks nearly nothing.
    let mut flood = Flood::new(choices, StepCost::default());
    let most = 16 * LONGEST;
    for _ in 0..8_000 {
        for tenant in 0..3 {
            while flood.n_live(tenant) < 100 {
                flood.add(tenant, 0);
            }
        }
        flood.step();
        let served = |i: usize| {
            let n_tokens = flood.computed.get(&(i as u32)).copied().unwrap_or(0);
            n_tokens / u64::from(weights[i])
        };
        let shares = [served(0), served(1), served(2)];
        let apart = shares.iter().max().unwrap() - shares.iter().min().unwrap();
        assert!(apart <= most, "{shares:?} after {} tokens", flood.n_computed);
    }
    assert_eq!(flood.scheduler.stats().n_promoted, 0, "age does not count under `fair`");
}

#[test]
fn one_place_is_free_for_a_tenant_that_comes_back() {
    let choices = Choices {
        policy: PolicyKind::Fair,
        max_running: 8,
        tenants: tenants(&[1, 1]),
        ..Choices::default()
    };
    let mut flood = Flood::new(choices, COST);
    (0..40).for_each(|_| flood.add_sized(0, 0, 100, 100));
    (0..20).for_each(|_| flood.step());
    assert_eq!(flood.scheduler.n_running(), 7);
    flood.add_sized(1, 0, 100, 100);
    flood.step();
    assert_eq!(flood.scheduler.n_running(), 8);
    let first = flood.plan.sequences.iter().find(|share| flood.tenants[&share.id] == 1);
    assert!(first.is_some_and(|share| share.samples), "{:?}", flood.plan.sequences);
}

#[test]
fn a_tenant_below_its_share_saves_up_little() {
    let choices = Choices {
        policy: PolicyKind::Fair,
        max_running: 16,
        tenants: tenants(&[1, 1]),
        ..Choices::default()
    };
    let mut flood = Flood::new(choices, COST);
    let keep = |flood: &mut Flood, tenant: u32, n: u64| {
        while flood.n_live(tenant) < n {
            flood.add(tenant, 0);
        }
    };
    // Tenant 1 always has a request, and never more than two.
    for _ in 0..1_500 {
        keep(&mut flood, 0, 50);
        keep(&mut flood, 1, 2);
        flood.step();
    }
    let before = flood.computed.clone();
    // The requests that run, and the tokens of five seconds.
    let most = 16 * LONGEST + 5_000_000_000_000 / COST.token_ps;
    assert!(before[&0] > before[&1] + 3 * most, "tenant 1 used its whole share: {before:?}");
    for _ in 0..500 {
        keep(&mut flood, 0, 50);
        keep(&mut flood, 1, 50);
        flood.step();
        let served = |tenant: u32| flood.computed[&tenant] - before[&tenant];
        assert!(served(1) <= served(0) + most, "{} and {}", served(0), served(1));
    }
}

#[test]
fn service_that_no_other_tenant_wanted_is_no_debt_later() {
    let choices = Choices {
        policy: PolicyKind::Fair,
        max_running: 4,
        tenants: tenants(&[1, 1]),
        ..Choices::default()
    };
    let mut flood = Flood::new(choices, COST);
    for _ in 0..200 {
        flood.add(0, 0);
        while flood.n_live(0) > 0 {
            flood.step();
        }
    }
    // Tenant 1 comes with a flood while nothing waits; tenant 0 goes on as before.
    let fill = |flood: &mut Flood| (flood.scheduler.n_waiting()..100).for_each(|_| flood.add(1, 0));
    for _ in 0..50 {
        let mut n_steps = 0;
        fill(&mut flood);
        flood.add_sized(0, 0, 100, 10);
        while flood.n_live(0) > 0 {
            fill(&mut flood);
            flood.step();
            n_steps += 1;
        }
        assert!(n_steps <= 150, "an answer of 10 tokens took {n_steps} steps");
    }
}

#[test]
fn an_outlook_knows_how_slowly_places_become_free() {
    let mut flood = Flood::new(Choices { max_running: 2, ..Choices::default() }, COST);
    (0..60).for_each(|_| flood.add_sized(0, 0, 10, 100));
    while flood.n_live(0) > 20 {
        flood.step();
    }
    let mut outlook = Outlook::default();
    flood.scheduler.outlook(&mut outlook);
    let prompt = PromptSize { n_tokens: 10, n_cached: 0 };
    let service = ServiceParams::default();
    let expected = outlook.expected_ttft(prompt, &service, flood.scheduler.config());
    let begin = flood.now_ns;
    while flood.n_live(0) > 2 {
        flood.step();
    }
    let real = flood.now_ns - begin;
    let ratio = expected.expect("prices").as_nanos() as f64 / real as f64;
    assert!((0.8..1.25).contains(&ratio), "{ratio} of {real} ns");
}

#[test]
fn only_a_fair_policy_lets_rows_sit_out_for_a_tenant_below_its_share() {
    for (policy, sits_out) in [(PolicyKind::Fcfs, false), (PolicyKind::Fair, true)] {
        let choices = Choices { policy, tenants: tenants(&[1, 1]), ..Choices::default() };
        let mut flood = Flood::new(choices, COST);
        (0..10).for_each(|_| flood.add_sized(0, 0, 10, 500));
        (0..10).for_each(|_| flood.step());
        flood.add_sized(1, 0, 20_000, 1);
        let (mut n_without_rows, mut was_without) = (0, false);
        for _ in 0..20 {
            flood.step();
            let is_without = flood.rows().n_tokens == 0;
            assert!(!(is_without && was_without), "rows wait one step and never two");
            was_without = is_without;
            n_without_rows += usize::from(is_without);
        }
        assert_eq!(n_without_rows > 0, sits_out, "{policy:?}: {n_without_rows} steps");
    }
}
