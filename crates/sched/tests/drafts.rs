//! How drafts of a request are counted.

use pelton_base::{Ask, FinishReason, Request, RequestId, SamplingParams, ServiceParams, TokenId};
use pelton_sched::{
    DraftTree, Scheduler, SchedulerConfig, SchedulerOutput, Signals, StepOutput, StepUpdates, Tick,
};

#[test]
fn drafts_beyond_the_end_of_an_answer_were_not_accepted() {
    const STOP: u32 = 9;
    let ends = [(Some(STOP), 100, FinishReason::Stop), (None, 3, FinishReason::Length)];
    for (stop, max_tokens, expected) in ends {
        let mut scheduler = Scheduler::new(SchedulerConfig::new(100, 16));
        let id = RequestId(1);
        let ask = Ask {
            prompt: vec![TokenId(1); 4],
            sampling: SamplingParams::default(),
            choice: 0,
            max_tokens,
            stop_tokens: stop.map(TokenId).into_iter().collect(),
            service: ServiceParams::default(),
            prediction: Vec::new(),
            constraint: None,
        };
        scheduler.add(Request { id, ask });
        let mut plan = SchedulerOutput::default();
        let mut updates = StepUpdates::default();
        let mut step = |scheduler: &mut Scheduler, now, sampled: &[u32]| {
            scheduler.schedule(Tick(now), &Signals::default(), &mut plan);
            let sampled = sampled.iter().map(|&token| (id, TokenId(token))).collect();
            scheduler.update(&StepOutput { sampled, ..StepOutput::default() }, &mut updates);
            updates.sequences.pop().expect("news of the request")
        };
        step(&mut scheduler, 1, &[1]);
        let mut drafts = DraftTree::default();
        drafts.extend([2, STOP, 3, 4].map(TokenId));
        let n_drafts = scheduler.draft(id, &drafts);
        let mut sampled = vec![2, STOP, 3, 4, 5];
        sampled.truncate(n_drafts + 1);
        let update = step(&mut scheduler, 2, &sampled);
        assert_eq!(update.finish, Some(expected));
        let usage = update.usage;
        assert_eq!(usage.completion_tokens, 3);
        assert_eq!(usage.accepted_prediction_tokens, n_drafts.min(2), "of {n_drafts} drafts");
        assert_eq!(usage.rejected_prediction_tokens, n_drafts.saturating_sub(2));
    }
}
