//! The counters of a server over a run, from its metrics in the text format of Prometheus.
//!
//! Names of Pelton are read first, then names of vLLM; series with several labels are added up. A
//! figure that the server does not publish is absent.

use std::collections::BTreeMap;

use serde::Serialize;

macro_rules! phase_names {
    ($name:literal) => {
        [
            [
                concat!("pelton_request_", $name, "_time_seconds_count"),
                concat!("vllm:request_", $name, "_time_seconds_count"),
            ],
            [
                concat!("pelton_request_", $name, "_time_seconds_sum"),
                concat!("vllm:request_", $name, "_time_seconds_sum"),
            ],
        ]
    };
}

const RUNNING: [&str; 2] = ["pelton_num_requests_running", "vllm:num_requests_running"];
const WAITING: [&str; 2] = ["pelton_num_requests_waiting", "vllm:num_requests_waiting"];
const KV_SHARE: [&str; 3] =
    ["pelton_kv_cache_usage_ratio", "vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"];
const PREEMPTIONS: [&str; 2] = ["pelton_num_preemptions_total", "vllm:num_preemptions_total"];
const STEP: [&str; 1] = ["pelton_scheduler_step_seconds_total"];
const PLAN: [&str; 1] = ["pelton_scheduler_plan_seconds_total"];
const MASK: [&str; 1] = ["pelton_scheduler_mask_seconds_total"];
/// Requests and seconds of a phase, of Pelton and of vLLM.
type PhaseNames = [[&'static str; 2]; 2];
const QUEUE: PhaseNames = phase_names!("queue");
const PREFILL: PhaseNames = phase_names!("prefill");
const DECODE: PhaseNames = phase_names!("decode");

/// Fewest looks at waiting requests that say whether the number of running ones stays the same.
const FEWEST_LOOKS: usize = 3;

/// Every series that is looked at.
fn is_used(name: &str) -> bool {
    let single: [&[&str]; 7] = [&RUNNING, &WAITING, &KV_SHARE, &PREEMPTIONS, &STEP, &PLAN, &MASK];
    single.into_iter().chain(phases()).any(|names| names.contains(&name))
}

/// Names of the series of all phases.
fn phases() -> impl Iterator<Item = &'static [&'static str]> {
    const ALL: [PhaseNames; 3] = [QUEUE, PREFILL, DECODE];
    ALL.iter().flatten().map(|names| &names[..])
}

/// The values of the series that are looked at, at one moment, labels added up, by their names. A
/// server may have thousands of others, and they are looked at five times a second.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Series(BTreeMap<String, f64>);

impl Series {
    /// Reads the text of `/metrics`; lines that cannot be read are passed over.
    pub(super) fn read(text: &str) -> Self {
        let mut sums = BTreeMap::new();
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let (name, rest) = match line.find(['{', ' ']) {
                Some(at) if line.as_bytes()[at] == b'{' => {
                    let Some(end) = line.rfind('}') else { continue };
                    (&line[..at], &line[end + 1..])
                }
                Some(at) => line.split_at(at),
                None => continue,
            };
            if !is_used(name) {
                continue;
            }
            let value =
                rest.split_ascii_whitespace().next().and_then(|text| text.parse::<f64>().ok());
            if let Some(value) = value.filter(|value| value.is_finite()) {
                *sums.entry(name.to_owned()).or_insert(0.0) += value;
            }
        }
        Self(sums)
    }

    /// The first of these series that there is.
    fn get(&self, names: &[&str]) -> Option<f64> {
        names.iter().find_map(|name| self.0.get(*name)).copied()
    }
}

/// Requests that passed a phase, and their time in it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Phase {
    /// Requests.
    pub n: f64,
    /// Seconds of all of them.
    pub seconds: f64,
}

impl Phase {
    /// Mean seconds of a request.
    pub fn mean_s(self) -> Option<f64> {
        (self.n > 0.0).then(|| self.seconds / self.n)
    }
}

/// The counters of a server over a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Counters {
    /// Looks at the gauges.
    pub n_looks: usize,
    /// Requests running, on average of the looks.
    pub mean_running: Option<f64>,
    /// The most of any look.
    pub most_running: Option<f64>,
    /// Share of the looks at waiting requests in which as many run as in any look; absent with fewer
    /// than three looks at waiting requests.
    pub full_share: Option<f64>,
    /// Requests waiting, on average of the looks.
    pub mean_waiting: Option<f64>,
    /// Largest share of the KV blocks in use.
    pub most_kv_share: Option<f64>,
    /// Times that a request was preempted.
    pub preemptions: Option<f64>,
    /// Time in steps, in seconds.
    pub step_s: Option<f64>,
    /// Part of it in the scheduler.
    pub plan_s: Option<f64>,
    /// Part of it in which steps waited for masks of grammars and schemas.
    pub mask_s: Option<f64>,
    /// From the arrival to the first step.
    pub queue: Option<Phase>,
    /// From there to the first token.
    pub prefill: Option<Phase>,
    /// From there to the last token.
    pub decode: Option<Phase>,
}

impl Counters {
    /// The counters between two moments, with looks at the gauges in between.
    pub(super) fn new(before: &Series, looks: &[Series], after: &Series) -> Self {
        let gauge = |names: &[&str]| -> Option<Vec<f64>> {
            let values: Vec<f64> = looks.iter().filter_map(|look| look.get(names)).collect();
            (!values.is_empty()).then_some(values)
        };
        let mean = |values: Vec<f64>| values.iter().sum::<f64>() / values.len() as f64;
        let most = |values: Vec<f64>| values.into_iter().fold(0.0, f64::max);
        let grown =
            |names: &[&str]| Some((after.get(names)? - before.get(names).unwrap_or(0.0)).max(0.0));
        let phase =
            |[n, seconds]: &PhaseNames| Some(Phase { n: grown(n)?, seconds: grown(seconds)? });
        let most_running = gauge(&RUNNING).map(most);
        let waited = looks.iter().filter(|look| look.get(&WAITING).is_some_and(|n| n >= 1.0));
        let running: Vec<f64> = waited.filter_map(|look| look.get(&RUNNING)).collect();
        let n_full = running.iter().filter(|&&n| Some(n) == most_running).count();
        let full_share = n_full as f64 / running.len() as f64;
        Self {
            n_looks: looks.len(),
            mean_running: gauge(&RUNNING).map(mean),
            most_running,
            full_share: (running.len() >= FEWEST_LOOKS).then_some(full_share),
            mean_waiting: gauge(&WAITING).map(mean),
            most_kv_share: gauge(&KV_SHARE).map(most),
            preemptions: grown(&PREEMPTIONS),
            step_s: grown(&STEP),
            plan_s: grown(&PLAN),
            mask_s: grown(&MASK),
            queue: phase(&QUEUE),
            prefill: phase(&PREFILL),
            decode: phase(&DECODE),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn series_are_read_with_and_without_labels_and_added_up() {
        let [running, waiting] = [RUNNING[0], WAITING[1]];
        let text = format!(
            "# TYPE a counter\n{running}{{x=\"1\",y=\"}} 7\"}} 2\n\
             {running}{{x=\"2\"}} 3.5 1700000000\n{waiting} 4e-1\n\
             {}{{broken 1\n{} NaN\n{}\n",
            STEP[0], PLAN[0], PREEMPTIONS[0]
        );
        let series = Series::read(&text);
        assert_eq!(series.get(&RUNNING), Some(5.5));
        assert_eq!(series.get(&WAITING), Some(0.4));
        for broken in [&STEP[..], &PLAN, &PREEMPTIONS] {
            assert_eq!(series.get(broken), None, "{broken:?}");
        }
    }

    #[test]
    fn series_that_no_figure_is_made_of_are_not_kept() {
        let mut text: String = (0..1000).map(|i| format!("other_{i}{{le=\"{i}\"}} 1\n")).collect();
        text.push_str("pelton_request_queue_time_seconds_sum 3\n");
        let kept = Series::read(&text);
        assert_eq!((kept.0.len(), kept.get(&QUEUE[1])), (1, Some(3.0)));
        let all = phases().chain([&RUNNING[..], &STEP, &KV_SHARE]).flatten();
        assert!(all.into_iter().all(|name| Series::read(&format!("{name} 1")).0.len() == 1));
    }

    #[test]
    fn counters_are_differences_and_gauges_are_looked_at() {
        let at = |steps: f64, running: f64| {
            Series::read(&format!(
                "pelton_scheduler_step_seconds_total{{model_name=\"m\"}} {steps}\n\
                 pelton_scheduler_mask_seconds_total{{model_name=\"m\"}} {steps}\n\
                 pelton_num_requests_running{{model_name=\"m\"}} {running}\n\
                 vllm:request_queue_time_seconds_sum 3\nvllm:request_queue_time_seconds_count 2\n"
            ))
        };
        let found = Counters::new(&Series::default(), &[at(1.0, 2.0), at(2.0, 4.0)], &at(5.0, 0.0));
        assert_eq!((found.step_s, found.mean_running), (Some(5.0), Some(3.0)));
        assert_eq!((found.mask_s, found.plan_s), (Some(5.0), None));
        assert_eq!((found.most_running, found.n_looks), (Some(4.0), 2));
        assert_eq!(found.queue.and_then(Phase::mean_s), Some(1.5));
        assert_eq!((found.prefill, found.most_kv_share), (None, None));
        assert_eq!(Counters::new(&at(5.0, 0.0), &[], &at(7.0, 0.0)).step_s, Some(2.0));
    }

    #[test]
    fn running_requests_count_as_full_while_others_wait() {
        let at = |(running, waiting): (u32, u32)| {
            Series::read(&format!(
                "pelton_num_requests_running {running}\npelton_num_requests_waiting {waiting}\n"
            ))
        };
        let share = |looks: &[(u32, u32)]| {
            let looks: Vec<Series> = looks.iter().copied().map(at).collect();
            Counters::new(&Series::default(), &looks, &Series::default()).full_share
        };
        // Looks without a waiting request, at the begin and at the end, say nothing.
        assert_eq!(share(&[(1, 0), (2, 5), (2, 3), (2, 1), (1, 0)]), Some(1.0));
        assert_eq!(share(&[(1, 5), (2, 5), (1, 3), (1, 1)]), Some(0.25));
        assert_eq!(share(&[(2, 5), (2, 3), (1, 0)]), None);
    }
}
