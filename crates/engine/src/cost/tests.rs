//! Synthetic machines: what is measured there is known.

use super::*;

const MACHINE: StepCost = StepCost {
    base_ps: 20_000_000_000,
    token_ps: 900_000_000,
    sample_ps: 250_000_000,
    attended_ps: 60_000,
    moved_block_ps: 150_000_000,
};

/// Whole numbers from nowhere, the same each time.
struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.0 >> 33) % n
    }

    /// A factor within `percent` of one.
    fn noise(&mut self, percent: u64) -> f64 {
        1.0 + (self.below(2 * percent * 100 + 1) as f64 - percent as f64 * 100.0) / 10_000.0
    }
}

fn decode(n: u64, context: usize) -> StepLoad {
    let mut load = StepLoad::default();
    (0..n).for_each(|_| load.add_rows(context, 1, 1));
    load
}

fn prefill(first: usize, n: usize) -> StepLoad {
    let mut load = StepLoad::default();
    load.add_rows(first, n, 0);
    load
}

/// Steps as a server has them: decode rows, chunks beside some of them, a swap now and then.
fn mixed(random: &mut Random) -> StepLoad {
    let mut load = decode(random.below(16), 50 + random.below(2000) as usize);
    if random.below(3) == 0 || load.n_tokens == 0 {
        load.add_rows(random.below(3000) as usize, 1 + random.below(500) as usize, 1);
    }
    if random.below(10) == 0 {
        load.n_moved_blocks = 1 + random.below(200);
    }
    load
}

/// Loads that together tell the five prices apart.
fn probes() -> [StepLoad; 5] {
    let swap = StepLoad { n_moved_blocks: 100, ..decode(8, 500) };
    [decode(1, 100), decode(16, 1000), prefill(0, 512), prefill(4000, 512), swap]
}

/// Largest relative error over the probes.
fn worst(fit: &CostFit, machine: &StepCost) -> f64 {
    let error = |load: &StepLoad| {
        let (said, is) = (fit.cost().step_ns(load) as f64, machine.step_ns(load) as f64);
        (said - is).abs() / is
    };
    probes().iter().map(error).fold(0.0, f64::max)
}

fn slower(machine: &StepCost, times: u64) -> StepCost {
    StepCost {
        base_ps: machine.base_ps * times,
        token_ps: machine.token_ps * times,
        sample_ps: machine.sample_ps * times,
        attended_ps: machine.attended_ps * times,
        moved_block_ps: machine.moved_block_ps * times,
    }
}

#[test]
fn nothing_is_known_before_a_step_was_measured_and_a_prior_is_known_at_once() {
    let mut fit = CostFit::default();
    assert!(!fit.cost().is_known());
    fit.observe(&decode(1, 10), 900_000_000);
    assert!(!fit.cost().is_known(), "the first step is cold");
    let load = decode(1, 11);
    fit.observe(&load, MACHINE.step_ns(&load));
    for load in probes() {
        let ratio = fit.cost().step_ns(&load) as f64 / MACHINE.step_ns(&load) as f64;
        assert!((0.2..5.0).contains(&ratio), "one step gives the scale of all: {ratio}");
    }
    let prior = CostFit::new(Some(MACHINE));
    assert_eq!((prior.cost(), prior.n_tried_tokens()), (MACHINE, usize::MAX));
}

#[test]
fn the_largest_step_counts_as_tried_once_it_was_learned_from() {
    let mut fit = CostFit::default();
    for (n_tokens, n_tried) in [(500, 0), (1, 1), (33, 33), (2, 33), (66, 66)] {
        let load = prefill(0, n_tokens);
        fit.observe(&load, MACHINE.step_ns(&load));
        assert_eq!(fit.n_tried_tokens(), n_tried);
    }
}

#[test]
fn prices_are_found_through_noise() {
    let mut random = Random(1);
    let mut fit = CostFit::default();
    for _ in 0..600 {
        let load = mixed(&mut random);
        let time = MACHINE.step_ns(&load) as f64 * random.noise(10);
        fit.observe(&load, time as u64);
    }
    assert!(worst(&fit, &MACHINE) < 0.08, "{:?}", fit.cost());
    assert!((0.02..0.08).contains(&fit.relative_error()), "{}", fit.relative_error());
}

#[test]
fn steps_that_were_held_up_do_not_move_the_prices() {
    let mut random = Random(2);
    let mut fit = CostFit::default();
    for i in 0..1000 {
        let load = mixed(&mut random);
        let held_up = if i % 17 == 3 { 4.0 } else { 1.0 };
        let time = MACHINE.step_ns(&load) as f64 * random.noise(5) * held_up;
        fit.observe(&load, time as u64);
        assert!(i < 400 || worst(&fit, &MACHINE) < 0.1, "step {i}: {:?}", fit.cost());
    }
}

#[test]
fn after_decoding_alone_a_prompt_has_a_sane_price() {
    let mut random = Random(3);
    let mut fit = CostFit::default();
    for i in 0..3000 {
        let load = decode(1 + random.below(4), 100 + i);
        fit.observe(&load, (MACHINE.step_ns(&load) as f64 * random.noise(3)) as u64);
    }
    let load = decode(2, 3000);
    let (said, is) = (fit.cost().step_ns(&load) as f64, MACHINE.step_ns(&load) as f64);
    assert!((said / is - 1.0).abs() < 0.05, "what was seen is known: {said} {is}");
    let load = prefill(0, 512);
    let (said, is) = (fit.cost().step_ns(&load) as f64, MACHINE.step_ns(&load) as f64);
    assert!((0.3..3.0).contains(&(said / is)), "what was not is guessed: {said} {is}");
}

#[test]
fn decoding_for_an_hour_does_not_make_it_forget_what_a_prompt_costs() {
    let mut random = Random(4);
    let mut fit = CostFit::default();
    for i in 0..1500 {
        let load = if i < 300 { mixed(&mut random) } else { decode(1, i) };
        fit.observe(&load, (MACHINE.step_ns(&load) as f64 * random.noise(3)) as u64);
    }
    let load = prefill(0, 512);
    let (said, is) = (fit.cost().step_ns(&load) as f64, MACHINE.step_ns(&load) as f64);
    assert!((said / is - 1.0).abs() < 0.15, "{said} {is}");
}

#[test]
fn a_machine_that_changes_its_pace_is_believed_soon() {
    let mut random = Random(5);
    let mut fit = CostFit::default();
    for (machine, n_steps) in [(MACHINE, 500), (slower(&MACHINE, 3), 400), (MACHINE, 400)] {
        for _ in 0..n_steps {
            let load = mixed(&mut random);
            fit.observe(&load, (machine.step_ns(&load) as f64 * random.noise(4)) as u64);
        }
        assert!(worst(&fit, &machine) < 0.15, "{:?} {}", fit.cost(), worst(&fit, &machine));
    }
}

#[test]
fn a_change_of_pace_is_one_of_all_prices() {
    let mut random = Random(7);
    let mut fit = CostFit::default();
    let slow = slower(&MACHINE, 4);
    for i in 0..700 {
        let load = if i < 500 { mixed(&mut random) } else { decode(3, i) };
        let machine = if i < 600 { &MACHINE } else { &slow };
        fit.observe(&load, (machine.step_ns(&load) as f64 * random.noise(4)) as u64);
    }
    // No prompt was computed since.
    let load = prefill(0, 512);
    let (said, is) = (fit.cost().step_ns(&load) as f64, slow.step_ns(&load) as f64);
    assert!((said / is - 1.0).abs() < 0.25, "{said} {is}");
}

/// A part of a step that was hardly seen is uncertain on a machine of any pace, so its first times
/// are believed.
#[test]
fn the_first_prompts_are_believed_on_a_machine_far_from_the_prior() {
    let far = slower(&MACHINE, 1000);
    // A token costs three times as much as the prior's proportion says.
    let machine = StepCost { token_ps: far.token_ps * 3, ..far };
    let mut fit = CostFit::new(Some(MACHINE));
    (0..200).for_each(|i| fit.observe(&decode(1, i), machine.step_ns(&decode(1, i))));
    let load = prefill(0, 512);
    (0..3).for_each(|_| fit.observe(&load, machine.step_ns(&load)));
    let (said, is) = (fit.cost().step_ns(&load) as f64, machine.step_ns(&load) as f64);
    assert!((said / is - 1.0).abs() < 0.1, "{said} {is}");
}

#[test]
fn the_same_load_over_and_over_is_no_harm() {
    let load = decode(4, 100);
    let mut fit = CostFit::default();
    for _ in 0..20_000 {
        fit.observe(&load, MACHINE.step_ns(&load));
    }
    let (said, is) = (fit.cost().step_ns(&load) as f64, MACHINE.step_ns(&load) as f64);
    assert!((said / is - 1.0).abs() < 0.01, "{said} {is}");
    assert!(fit.relative_error() < 0.01);
    let token_share = fit.cost().token_ps as f64 / fit.cost().base_ps as f64;
    assert!((0.01..1.0).contains(&token_share), "{:?}", fit.cost());
}

#[test]
fn a_part_that_costs_nothing_gets_no_negative_price_and_hostile_figures_no_panic() {
    let free = StepCost { sample_ps: 0, attended_ps: 0, moved_block_ps: 0, ..MACHINE };
    let mut random = Random(6);
    let mut fit = CostFit::default();
    for _ in 0..600 {
        let load = mixed(&mut random);
        fit.observe(&load, (free.step_ns(&load) as f64 * random.noise(5)) as u64);
    }
    assert!(worst(&fit, &free) < 0.08, "{:?}", fit.cost());
    let huge = StepLoad {
        n_tokens: u64::MAX,
        n_samples: u64::MAX,
        n_attended: u64::MAX,
        n_moved_blocks: u64::MAX,
    };
    for (load, time) in [(huge, 1), (StepLoad::default(), u64::MAX), (huge, u64::MAX)] {
        fit.observe(&load, time);
        assert!(fit.cost().is_known());
    }
}
