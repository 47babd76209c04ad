//! The single changes with which a broken constraint holds.

use pelton_model::ModelOutline;
use serde::Serialize;

use super::scenario::Scenario;
use super::state::published_losses;
use super::{Advice, Wish, search};
use crate::hardware::Hardware;

/// A constraint without which the others can be kept.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Relief {
    /// Its name.
    pub constraint: &'static str,
    /// The least change that is enough, in words.
    pub change: String,
}

/// Advice for a wish without each of its constraints; empty where all are kept, and where no single
/// one is enough.
pub(super) fn reliefs(model: &ModelOutline, wish: &Wish<'_>, advice: &Advice) -> Vec<Relief> {
    if advice.checks.iter().all(|check| check.holds) {
        return Vec::new();
    }
    let holds = |wish: &Wish<'_>| search(model, wish).checks.iter().all(|check| check.holds);
    let gib = |bytes: u64| (100.0 * bytes as f64 / f64::from(1 << 30)).ceil() / 100.0;
    let longest = model.spec.longest_context();
    let Scenario { input_tokens, output_tokens, longest_tokens, .. } = *wish.scenario;
    let asked = longest_tokens.unwrap_or(0).max(input_tokens + output_tokens);
    if asked > longest {
        // Neither memory nor quality helps.
        let output_tokens = output_tokens.min(longest.saturating_sub(1)).max(1);
        let input_tokens = input_tokens.min(longest.saturating_sub(output_tokens)).max(1);
        let usual = wish.scenario.clone();
        let scenario = Scenario { input_tokens, output_tokens, longest_tokens: None, ..usual };
        if holds(&Wish { scenario: &scenario, ..*wish }) {
            let fewer = asked - longest;
            let change = format!("requests of at most {longest} tokens, which is {fewer} fewer");
            return vec![Relief { constraint: "length", change }];
        }
        return Vec::new();
    }

    let mut found = Vec::new();
    let needed = advice.after.total_bytes;
    let memory_bytes = wish.hardware.memory_bytes.max(needed);
    let larger = Hardware { memory_bytes, ..wish.hardware.clone() };
    if needed > wish.memory_bytes.min(wish.hardware.memory_bytes)
        && holds(&Wish { memory_bytes: needed, hardware: &larger, ..*wish })
    {
        let more = |than: u64| gib(needed.saturating_sub(than));
        let change = match needed > wish.hardware.memory_bytes {
            true => {
                let more = more(wish.hardware.memory_bytes);
                format!("a machine with {:.2} GiB, which is {more:.2} GiB more", gib(needed))
            }
            false => {
                let more = more(wish.memory_bytes);
                format!("`--memory {:.2}GiB`, which is {more:.2} GiB more", gib(needed))
            }
        };
        found.push(Relief { constraint: "memory", change });
    }

    let losses = published_losses().into_iter().filter(|loss| *loss > wish.loss_percent);
    if let Some(loss) = { losses }.find(|&loss| holds(&Wish { loss_percent: loss, ..*wish })) {
        let more = loss - wish.loss_percent;
        let change = format!("`--loss {loss}`, which is {more:.2} % of perplexity more");
        found.push(Relief { constraint: "quality", change });
    }
    found
}
