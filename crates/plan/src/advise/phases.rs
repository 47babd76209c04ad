//! The steps as work: one after the other, each measured before the next.

use serde::Serialize;

use super::Step;
use super::scenario::Scenario;

/// One change, and the measurement that shows its gain.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Phase {
    /// The change to make.
    pub change: String,
    /// The measurement that follows it.
    pub measure: String,
}

/// The plain server, and then a phase for each step.
pub(super) fn phases(scenario: &Scenario, steps: &[Step]) -> Vec<Phase> {
    let Scenario { input_tokens, output_tokens, batch, .. } = scenario;
    let clients = if *batch > 1 { format!("1,{batch}") } else { "1".to_owned() };
    let sweep = |at: usize| {
        format!(
            "`pelton bench sweep --clients {clients} --lengths {input_tokens}:{output_tokens} --json > \
             {at}.json`"
        )
    };
    let first = Phase {
        change: "the plain server: `max_running: 1`, `prefix_cache: false`".to_owned(),
        measure: sweep(0),
    };
    let phase = |(at, step): (usize, &Step)| {
        let own = match step.technique {
            "quantized weights" | "smaller keys and values" => "`pelton eval` for the loss, then ",
            "speculation" => "`pelton bench spec` for the share of drafts that are right, then ",
            "prefix cache" => {
                "`cached_share` of `pelton bench serve --workload shared-prefix`, then "
            }
            _ => "",
        };
        let change = match step.settings.is_empty() {
            true => format!("{}, by `pelton convert`", step.change),
            false => format!("{} (`{}`)", step.change, step.settings.join("`, `")),
        };
        Phase {
            change,
            measure: format!("{own}{}; expect {:.2}x of the step before", sweep(at), step.gain),
        }
    };
    std::iter::once(first).chain((1..).zip(steps).map(phase)).collect()
}
