//! Rules that choose the model of a request.
//!
//! ```text
//!   "auto" ── first rule of `auto` whose condition holds ───────────▶ a model
//!   a model ─ first rule of `degrade` whose condition holds,
//!             while that model has more to do than the rule allows ─▶ another model that is loaded
//! ```
//!
//! A request is moved at most once: rules of the model that it is moved to do not apply to it.

mod rule;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use serde::Serialize;

pub use rule::{AutoRule, Condition, DegradeRule};
pub(crate) use rule::{Load, Traits};

/// The name for which the rules of `auto` choose a model.
pub(crate) const AUTO: &str = "auto";

/// All rules of a server.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Routing {
    /// For requests that ask for `auto`: the first one that fits chooses, and the last one fits all.
    pub auto: Vec<AutoRule>,
    /// For requests that ask for a model: the first one that fits moves them.
    pub degrade: Vec<DegradeRule>,
}

/// A rule that cannot be followed.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("`{list}[{index}]`: {why}")]
pub struct RoutingError {
    /// `auto` or `degrade`.
    pub list: &'static str,
    /// Its place in the list, from 0.
    pub index: usize,
    /// The mistake.
    pub why: String,
}

impl Routing {
    /// Whether there are no rules.
    pub fn is_empty(&self) -> bool {
        self.auto.is_empty() && self.degrade.is_empty()
    }

    /// Checks the rules against the names of tenants, and of models: a list for each, with its aliases.
    ///
    /// # Errors
    ///
    /// The first rule that names something unknown, that no request or every earlier request
    /// fulfils, or that states no load.
    pub fn check(&self, models: &[Vec<String>], tenants: &[String]) -> Result<(), RoutingError> {
        let names = models.concat();
        let known = |name: &String| match names.contains(name) {
            true => Ok(()),
            false => Err(format!("there is no model `{name}`; there are {}", listed(&names))),
        };
        let differ = |a: &String, b: &String| {
            let is_of_both = |names: &Vec<String>| names.contains(a) && names.contains(b);
            match models.iter().any(is_of_both) {
                true => Err("`from` and `to` are the same model".to_owned()),
                false => Ok(()),
            }
        };
        let sound = |when: &Condition| {
            if let Some(field) = when.impossible() {
                return Err(format!("`min_{field}` is above `max_{field}`, so no request fits"));
            }
            match when.tenants.iter().find(|name| !tenants.contains(name)) {
                Some(name) => {
                    Err(format!("there is no tenant `{name}`; there are {}", listed(tenants)))
                }
                None => Ok(()),
            }
        };
        let last = self.auto.len().saturating_sub(1);
        for (index, rule) in self.auto.iter().enumerate() {
            let checked = known(&rule.to).and_then(|()| sound(&rule.when)).and_then(|()| {
                match (index == last, rule.when.is_empty()) {
                    (true, false) => Err("the last rule has no `when`, because it takes all \
                                          requests that fit no other rule"
                        .to_owned()),
                    (false, true) => {
                        Err("it takes all requests, so the rules after it never apply".to_owned())
                    }
                    _ => Ok(()),
                }
            });
            checked.map_err(|why| RoutingError { list: "auto", index, why })?;
        }
        if !self.auto.is_empty() && names.iter().any(|name| name == AUTO) {
            let why = "a model has the name `auto` itself; call it something else".to_owned();
            return Err(RoutingError { list: "auto", index: 0, why });
        }
        for (index, rule) in self.degrade.iter().enumerate() {
            let checked = known(&rule.from)
                .and_then(|()| known(&rule.to))
                .and_then(|()| differ(&rule.from, &rule.to))
                .and_then(|()| sound(&rule.when))
                .and_then(|()| states_load(rule));
            checked.map_err(|why| RoutingError { list: "degrade", index, why })?;
        }
        Ok(())
    }
}

/// Checks the load of a rule.
fn states_load(rule: &DegradeRule) -> Result<(), String> {
    match (rule.waiting_above, rule.headroom_below) {
        (None, None) => {
            Err("it states no load: add `waiting_above` or `headroom_below`".to_owned())
        }
        (_, Some(least)) if !(-1.0..=1.0).contains(&least) => {
            Err(format!("`headroom_below` is {least}; expected -1 to 1"))
        }
        _ => Ok(()),
    }
}

fn listed(names: &[String]) -> String {
    let names: Vec<String> = names.iter().map(|name| format!("`{name}`")).collect();
    names.join(", ")
}

/// The rules in force, and what became of them.
#[derive(Debug, Default)]
pub(super) struct Rules {
    routing: Routing,
    /// One per rule of `auto`.
    auto: Vec<AtomicU64>,
    /// One per rule of `degrade`.
    degrade: Vec<Switch>,
}

#[derive(Debug, Default)]
struct Switch {
    is_on: AtomicBool,
    n_moved: AtomicU64,
}

/// The rule that chose a model.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Chosen {
    /// The name that the request asked for.
    pub(crate) from: String,
    /// The model that answers.
    pub(crate) to: String,
    /// `auto[0]` or `degrade[2]`.
    pub(crate) rule: String,
}

impl Rules {
    pub(super) fn new(routing: Routing) -> Self {
        let auto = routing.auto.iter().map(|_| AtomicU64::new(0)).collect();
        let degrade = routing.degrade.iter().map(|_| Switch::default()).collect();
        Self { routing, auto, degrade }
    }

    pub(super) fn routing(&self) -> &Routing {
        &self.routing
    }

    /// The rule for a request that asks for `auto`; `None` without rules.
    pub(super) fn choose(&self, request: &Traits, tenant: &str) -> Option<Chosen> {
        let rules = self.routing.auto.iter().zip(&self.auto).enumerate();
        let mut fitting = rules.filter(|(_, (rule, _))| rule.when.holds(request, tenant));
        let (index, (rule, n)) = fitting.next()?;
        n.fetch_add(1, Ordering::Relaxed);
        Some(chosen_by_auto(index, rule))
    }

    /// The rule that moves a request away from the model that it is for. `is` says whether two names
    /// are of one model, `can` whether a model can answer the request now.
    pub(super) fn moves(
        &self,
        model: &str,
        (request, tenant): (&Traits, &str),
        load: impl FnOnce() -> Load,
        is: impl Fn(&str, &str) -> bool,
        can: impl Fn(&str) -> bool,
    ) -> Option<(Chosen, Load)> {
        let rules = self.routing.degrade.iter().zip(&self.degrade).enumerate();
        let mut rules = rules.filter(|(_, (rule, _))| is(&rule.from, model)).peekable();
        rules.peek()?;
        let (load, mut moved) = (load(), None);
        // All switches of the model hear of its load.
        for (index, (rule, switch)) in rules {
            let before = switch.is_on.load(Ordering::Relaxed);
            let is_on = rule.is_on(before, load);
            if is_on != before && switch.is_on.swap(is_on, Ordering::Relaxed) == before {
                let verb = if is_on { "begins" } else { "ends" };
                tracing::info!(
                    "`degrade[{index}]` {verb} to move requests from {model} to {}: {load}",
                    rule.to
                );
            }
            if is_on && moved.is_none() && rule.when.holds(request, tenant) && can(&rule.to) {
                switch.n_moved.fetch_add(1, Ordering::Relaxed);
                moved = Some((chosen_by_degrade(index, rule), load));
            }
        }
        moved
    }

    /// How often each rule chose.
    pub(super) fn counts(&self) -> Vec<(Chosen, u64)> {
        let auto = self.routing.auto.iter().zip(&self.auto).enumerate();
        let auto = auto.map(|(index, (rule, n))| (chosen_by_auto(index, rule), n));
        let degrade = self.routing.degrade.iter().zip(&self.degrade).enumerate();
        let degrade =
            degrade.map(|(index, (rule, it))| (chosen_by_degrade(index, rule), &it.n_moved));
        let all = auto.chain(degrade);
        all.map(|(chosen, n)| (chosen, n.load(Ordering::Relaxed))).collect()
    }
}

fn chosen_by_auto(index: usize, rule: &AutoRule) -> Chosen {
    Chosen { from: AUTO.to_owned(), to: rule.to.clone(), rule: format!("auto[{index}]") }
}

fn chosen_by_degrade(index: usize, rule: &DegradeRule) -> Chosen {
    let (from, to) = (rule.from.clone(), rule.to.clone());
    Chosen { from, to, rule: format!("degrade[{index}]") }
}

#[cfg(test)]
mod tests;
