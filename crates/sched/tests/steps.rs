//! The time of each step beside requests that generate, in priced nanoseconds, and the work that
//! the prices count.

mod flood;

use flood::{COST, Flood, MS};
use pelton_base::{Ask, Request, RequestId, SamplingParams, ServiceParams, TokenId};
use pelton_sched::{
    Choices, Outlook, PromptSize, Scheduler, SchedulerConfig, SchedulerOutput, Signals, StepCost,
    StepOutput, Tick, TransferId,
};
use std::time::Duration;

/// A prompt of which nothing is cached.
fn prompt(n_tokens: usize) -> PromptSize {
    PromptSize { n_tokens, n_cached: 0 }
}

#[test]
fn beside_requests_that_generate_a_step_lasts_as_long_as_was_chosen() {
    for (max_step_ms, max_running) in [(250, 64), (60, 16), (30, 64), (1, 8)] {
        let max_step = Duration::from_millis(max_step_ms);
        let mut flood = Flood::new(Choices { max_running, max_step, ..Choices::default() }, COST);
        let (mut n_full, mut n_alone) = (0, 0);
        for step in 0..3_000 {
            if step % 7 == 3 {
                flood.add(0, 0);
            }
            if step % 900 == 0 {
                flood.add_sized(0, 0, 8_000, 20);
            }
            flood.step();
            let (rows, time_ns) = (flood.rows(), COST.step_ns(&flood.plan.load));
            if rows.n_tokens == 0 {
                n_alone += u64::from(time_ns > max_step_ms * MS);
                continue;
            }
            let rows_ns = COST.step_ns(&rows);
            let most_ns = (max_step_ms * MS).max(rows_ns + rows_ns / 2);
            // One token is computed in any case, and the first row of an answer may be sampled.
            let slack_ns = 2 * (COST.token_ps + COST.sample_ps + 10_000 * COST.attended_ps) / 1000;
            assert!(time_ns <= most_ns + slack_ns, "{time_ns} ns, {most_ns} were chosen");
            n_full += u64::from(time_ns > most_ns * 9 / 10);
        }
        assert!(n_full > 300, "the limit of {max_step_ms} ms was reached {n_full} times");
        assert!(n_alone > 0, "a prompt alone was held back by {max_step_ms} ms");
    }
}

#[test]
fn a_prompt_beside_a_request_that_generates_begins_with_what_was_tried() {
    let choices = Choices { max_batch_tokens: 512, ..Choices::default() };
    let chunk = |flood: &Flood| flood.plan.sequences.last().map_or(0, |share| share.tokens.len());
    let mut flood = Flood::new(choices.clone(), StepCost::default());
    flood.signals.n_tried_tokens = 0;
    flood.add_sized(0, 0, 500, 1_000);
    flood.step();
    assert_eq!(chunk(&flood), 500, "a prompt alone is not held back");
    flood.add_sized(0, 0, 5_000, 1);
    for (n_tried, expected) in [(0, 32), (1, 32), (33, 66), (67, 134), (300, 511)] {
        flood.signals.n_tried_tokens = n_tried;
        flood.step();
        assert_eq!(chunk(&flood), expected, "after steps of {n_tried} tokens");
    }
    flood.signals.n_tried_tokens = 0;
    let choices = Choices { max_step: Duration::ZERO, ..choices };
    let signals = flood.signals;
    let mut flood = Flood::new(choices, StepCost::default());
    flood.signals = signals;
    flood.add_sized(0, 0, 5, 1_000);
    flood.step();
    flood.add_sized(0, 0, 5_000, 1);
    flood.step();
    assert_eq!(chunk(&flood), 511, "without a limit nothing is tried out");
}

#[test]
fn uncertain_prices_leave_room_for_their_error() {
    let mut flood = Flood::new(Choices::default(), COST);
    flood.add_sized(0, 0, 10, 1_000);
    flood.step();
    flood.add_sized(0, 0, 5_000, 1);
    for (error_ppm, most_ms) in [(0, 250), (250_000, 200), (1_000_000, 125)] {
        flood.signals.cost_error_ppm = error_ppm;
        flood.step();
        let time_ms = COST.step_ns(&flood.plan.load) / MS;
        assert!((most_ms - 2..=most_ms).contains(&time_ms), "{time_ms} ms of {most_ms}");
    }
}

#[test]
fn an_outlook_counts_every_token_that_waits() {
    let choices = Choices { max_running: 1, max_batch_tokens: 100, ..Choices::default() };
    let config = SchedulerConfig { choices: choices.clone(), ..SchedulerConfig::new(100, 16) };
    let mut flood = Flood::new(choices, COST);
    flood.add_sized(0, 0, 250, 1);
    flood.step();
    let expected_ttft = |flood: &Flood| {
        let mut outlook = Outlook::default();
        flood.scheduler.outlook(&mut outlook);
        outlook.expected_ttft(prompt(10), &ServiceParams::default(), &config).expect("prices")
    };
    let alone = expected_ttft(&flood);
    flood.add_sized(0, 0, 150, 1);
    flood.add_sized(0, 0, 130, 1);
    // 280 tokens in three steps.
    let waiting = Duration::from_nanos((280 * COST.token_ps + 3 * COST.base_ps) / 1000);
    assert_eq!(expected_ttft(&flood) - alone, waiting);
}

#[test]
fn steps_without_a_prompt_do_not_tell_how_long_prompts_take() {
    let choices = Choices { max_batch_tokens: 512, ..Choices::default() };
    let config = SchedulerConfig { choices: choices.clone(), ..SchedulerConfig::new(100_000, 16) };
    let mut flood = Flood::new(choices, COST);
    flood.add_sized(0, 0, 100, 200);
    (0..150).for_each(|_| flood.step());
    assert_eq!(flood.rows().n_tokens, 1, "it generates");
    let mut outlook = Outlook::default();
    flood.scheduler.outlook(&mut outlook);
    let expected = outlook.expected_ttft(prompt(1_000), &ServiceParams::default(), &config);
    assert_eq!(expected, Some(Duration::from_nanos(COST.prefill_ns(0, 1_000, 512))));
}

#[test]
fn a_scored_prompt_pays_for_the_logits_of_each_row() {
    for (max_batch_tokens, expected) in [(64, vec![10]), (4, vec![4, 4, 2]), (9, vec![9, 1])] {
        let choices = Choices { max_batch_tokens, ..Choices::default() };
        let config = SchedulerConfig { choices, ..SchedulerConfig::new(100, 16) };
        let mut scheduler = Scheduler::new(config);
        let ask = Ask {
            prompt: (0..10).map(TokenId).collect(),
            sampling: SamplingParams::default(),
            choice: 0,
            max_tokens: 1,
            stop_tokens: Vec::new(),
            service: ServiceParams::default(),
            prediction: Vec::new(),
            constraint: None,
        };
        scheduler.add_scored_at(Request { id: RequestId(1), ask }, Tick(0));
        let (mut plan, mut n_samples) = (SchedulerOutput::default(), Vec::new());
        for step in 1..=expected.len() as u64 {
            scheduler.schedule(Tick(step), &Signals::default(), &mut plan);
            n_samples.push(plan.load.n_samples);
            let samples = plan.sequences[0].samples.then_some((RequestId(1), TokenId(0)));
            let outcome =
                StepOutput { sampled: samples.into_iter().collect(), ..Default::default() };
            scheduler.update(&outcome, &mut Default::default());
        }
        assert_eq!(n_samples, expected, "in steps of {max_batch_tokens} tokens");
        assert!(scheduler.is_idle());
    }
}

#[test]
fn a_cleared_outcome_is_empty() {
    let mut outcome = StepOutput {
        sampled: vec![(RequestId(1), TokenId(2))],
        failed: vec![RequestId(3)],
        transferred: vec![TransferId(4)],
    };
    outcome.clear();
    assert_eq!(outcome, StepOutput::default());
}
