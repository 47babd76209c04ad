use std::num::NonZeroU64;

use proptest::prelude::*;

use super::*;

const NOON: u64 = 1_795_348_800;

fn at(seconds: u64) -> Now {
    Now { elapsed: Duration::from_secs(seconds), unix_seconds: NOON + seconds }
}

fn limits(set: &[(Limit, u64)]) -> Limits {
    let mut limits = Limits::default();
    set.iter().for_each(|&(limit, most)| limits.set(limit, NonZeroU64::new(most)));
    limits
}

/// A gate with one key of one tenant.
fn gate(key: &[(Limit, u64)], tenant: &[(Limit, u64)]) -> (Gate, Who) {
    let mut gate = Gate::default();
    let tenant = gate.party(Party::Tenant, "t", limits(tenant));
    let key = gate.party(Party::Key, "k", limits(key));
    (gate, Who { key: Some(key), tenant })
}

fn demand(prompt_tokens: u64, answer_tokens: u64) -> Demand {
    let (least_answer_tokens, most_answer_tokens) = (answer_tokens, answer_tokens);
    Demand { prompt_tokens, n_answers: 1, least_answer_tokens, most_answer_tokens }
}

#[test]
fn a_minute_lets_in_as_many_requests_as_its_limit_says() {
    let (mut gate, who) = gate(&[(Limit::RequestsPerMinute, 3)], &[]);
    (0..3).for_each(|s| gate.begin(who, at(s)).expect("within the limit"));
    let refusal = gate.begin(who, at(10)).expect_err("a fourth");
    assert_eq!((refusal.limit, refusal.party), (Limit::RequestsPerMinute, Party::Key));
    assert_eq!(refusal.wait, Some(Duration::from_secs(51)));
    gate.begin(who, at(61)).expect("the first has left the window");
    gate.begin(who, at(61)).expect_err("the second has not");
    let [requests, tokens] = gate.standing(who, at(61));
    let requests = requests.expect("limited");
    assert_eq!((requests.limit, requests.remaining, tokens), (3, 0, None));
}

#[test]
fn a_refusal_of_the_tenant_changes_nothing_of_the_key() {
    let concurrent = Limit::ConcurrentRequests;
    let (mut gate, who) = gate(&[(Limit::RequestsPerMinute, 2)], &[(concurrent, 1)]);
    gate.begin(who, at(0)).expect("the first");
    for _ in 0..5 {
        let refusal = gate.begin(who, at(1)).expect_err("a second at the same time");
        assert_eq!((refusal.limit, refusal.party), (concurrent, Party::Tenant));
    }
    gate.end(who);
    gate.begin(who, at(2)).expect("refused ones did not count");
}

#[test]
fn tokens_are_reserved_and_what_is_not_used_comes_back() {
    let (mut gate, who) = gate(&[(Limit::TokensPerDay, 100)], &[]);
    let one = gate.reserve(who, demand(10, 50), at(0)).expect("60 of 100");
    let refusal = gate.reserve(who, demand(10, 31), at(0)).expect_err("41 of 40");
    assert_eq!((refusal.left, refusal.needed), (40, 41));
    assert_eq!(refusal.wait, Some(Duration::from_secs(1)), "a running request holds them");
    gate.settle(who, Some(one), 15, at(1));
    let all = gate.reserve(who, demand(10, 75), at(1)).expect("85 of 85");
    gate.settle(who, Some(all), 85, at(2));
    let refusal = gate.reserve(who, demand(1, 1), at(3)).expect_err("none left");
    assert_eq!(refusal.wait, Some(Duration::from_secs(12 * 3600 - 3)), "midnight");
    assert_eq!(gate.reserve(who, demand(1, 100), at(3)).expect_err("too long").wait, None);
}

#[test]
fn an_answer_of_no_stated_length_gets_what_is_left() {
    let (mut gate, who) = gate(&[(Limit::TokensPerMinute, 100)], &[(Limit::TokensTotal, 1000)]);
    let open = |n_answers| Demand { n_answers, least_answer_tokens: 1, ..demand(10, 4000) };
    let reservation = gate.reserve(who, open(2), at(0)).expect("something is left");
    assert_eq!(reservation.answer_tokens, 45);
    gate.reserve(who, open(1), at(0)).expect_err("all of it is reserved");
    gate.settle(who, Some(reservation), 95, at(0));
    gate.reserve(who, open(1), at(0)).expect_err("5 left, and 11 are the least");
    let none = Demand { n_answers: 0, ..demand(5, 0) };
    assert_eq!(gate.reserve(who, none, at(0)).expect("a prompt alone").answer_tokens, 0);
}

#[test]
fn a_clock_that_jumps_gives_no_day_more_than_its_quota() {
    let (mut gate, who) = gate(&[(Limit::TokensPerDay, 100)], &[]);
    let day = 86_400;
    let on = |unix_seconds| Now { elapsed: Duration::from_secs(5), unix_seconds };
    let use_up = |gate: &mut Gate, now, tokens| {
        let reservation = gate.reserve(who, demand(0, tokens), now)?;
        gate.settle(who, Some(reservation), tokens, now);
        Ok::<(), Refusal>(())
    };
    use_up(&mut gate, on(NOON), 60).expect("today");
    use_up(&mut gate, on(NOON + 400 * day), 100).expect("a jump forward opens that day");
    use_up(&mut gate, on(NOON), 41).expect_err("back again, today is as it was");
    use_up(&mut gate, on(NOON), 40).expect("the rest of today");
    use_up(&mut gate, on(NOON + 400 * day), 1).expect_err("that day is used up for good");
    // A request that runs over a jump counts for the day on which it began.
    let running = gate.reserve(who, demand(0, 100), on(NOON + day)).expect("tomorrow");
    gate.settle(who, Some(running), 100, on(NOON));
    use_up(&mut gate, on(NOON + day), 1).expect_err("tomorrow is used up");
}

#[test]
fn a_month_is_the_sum_of_its_days_and_outlives_the_process() {
    let (mut gate, who) = gate(&[], &[(Limit::TokensPerMonth, 100), (Limit::TokensTotal, 300)]);
    for (day, tokens) in [("2026-10-31", 90), ("2026-11-01", 30), ("2026-11-21", 30)] {
        gate.restore(who.tenant, Day::parse(day).expect(day), tokens);
    }
    let refusal = gate.reserve(who, demand(20, 21), at(0)).expect_err("41 of 40");
    assert_eq!((refusal.limit, refusal.left), (Limit::TokensPerMonth, 40));
    assert_eq!(
        refusal.wait,
        Some(Duration::from_secs(8 * 86_400 + 12 * 3600)),
        "the first of December"
    );
    assert!(gate.has_quota(who));
    let reservation = gate.reserve(who, demand(20, 20), at(0)).expect("the rest of the month");
    gate.settle(who, Some(reservation), 40, at(0));
    let december = Now { unix_seconds: NOON + 10 * 86_400, ..at(0) };
    let refusal = gate.reserve(who, demand(0, 111), december).expect_err("of the month");
    assert_eq!((refusal.limit, refusal.wait), (Limit::TokensPerMonth, None));
}

#[test]
fn new_limits_keep_the_use_so_far() {
    let (mut gate, who) = gate(&[(Limit::TokensTotal, 100)], &[]);
    let reservation = gate.reserve(who, demand(0, 80), at(0)).expect("80 of 100");
    gate.settle(who, Some(reservation), 80, at(0));
    let again = gate.party(Party::Key, "k", limits(&[(Limit::TokensTotal, 90)]));
    assert_eq!(Some(again), who.key);
    gate.reserve(who, demand(0, 11), at(0)).expect_err("11 of 10");
    assert_ne!(gate.party(Party::Tenant, "k", Limits::default()), again, "another kind");
}

proptest! {
    /// Clients begin, settle and abort in any order while both clocks do as they like.
    #[test]
    fn used_and_reserved_tokens_never_exceed_a_limit(
        steps in prop::collection::vec((0_u8..3, 0_u64..200, 0_u64..40, 0_u64..3), 1..300)
    ) {
        let (mut gate, who) = gate(&[(Limit::TokensPerDay, 500)], &[(Limit::TokensTotal, 900)]);
        let (mut running, mut days, mut total, mut seconds) = (Vec::new(), HashMap::new(), 0, 0);
        for (what, tokens, pause, day) in steps {
            seconds += pause;
            let now = Now { unix_seconds: NOON + day * 86_400, ..at(seconds) };
            if what == 0 {
                if let Ok(reservation) = gate.reserve(who, demand(tokens / 2, tokens), now) {
                    running.push((reservation, tokens / 2 + tokens));
                }
            } else if let Some((reservation, most)) = running.pop() {
                let used = if what == 1 { most } else { most / 3 };
                *days.entry(reservation.day()).or_insert(0) += used;
                total += used;
                gate.settle(who, Some(reservation), used, now);
            }
            prop_assert!(days.values().all(|&n| n <= 500) && total <= 900, "{days:?} {total}");
        }
    }
}
