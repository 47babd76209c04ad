//! The scheduler told as stories: every file of `scenarios/` is a list of commands, each followed
//! by `----` and by what the scheduler must then say.
//!
//! ```text
//! # A comment.
//! config blocks=8 block=2 batch=8 chunk=8 running=4 context=16     first; starts anew
//!        [policy=sla] [order=high-first] [wait=60000] [host=4] [preemption=swap] [cache=on]
//!        [eviction=lru] [batching=static] [kv=contiguous] [weights=1,3] [step=50]
//!        [lanes=2 snapshots=3 border=4 [every=8] [state-blocks=2]]  recurrent layers, with a border
//!                                     every four tokens; a state is as large as two blocks
//!        [window=6 [parts=3] | segment=4 [parts=3]] [all]          layers that read the last six tokens,
//!                                     or those of a segment; three times as many as there are layers
//!                                     that read all tokens, or all layers
//! prices base=10 token=1 sample=0 attended=0 moved=0 [tried=8]     milliseconds, from now on,
//!                                     learned from steps of up to 8 tokens
//! add 1 prompt=3 max=2 [stop=9]       queue request 1: a prompt of 3 tokens, at most 2 to generate
//!       [tokens=5,6,7]                these tokens instead of zeros
//!       [priority=1] [ttft=100] [tpot=20] [tenant=1] [salt=1] [fork=1]
//!       [cached=2]                    tokens of the prompt that are expected in the cache
//! draft 1 7,8 [after=-,-]             guess what follows: a chain, or each after the one named
//! step [1=9] [1=5,6] [fail=2] [hold=0,3]   schedule, compute, update; sampled tokens are 7 unless
//!      [abort=3]                      given; transfers that are not held are over with the step;
//!                                     request 3 is aborted while the step is computed
//! sleep 100                           milliseconds in which nothing happens
//! abort 1                             the client of request 1 went away
//! admits prompt=99 max=1              could such a request ever run?
//! outlook prompt=9 [cached=4] [ttft=100] [tenant=1]   would it be taken now?
//! ```
//!
//! A step takes as long as it is priced, and a millisecond where nothing is. With
//! `UPDATE_SCENARIOS=1` in the environment the files are rewritten with what was said.

use pelton_base::{
    Ask, KvWindows, Namespace, Reach, Request, RequestId, SamplingParams, ServiceParams, Slo,
    TenantId, TokenId,
};
use pelton_sched::{
    Batching, Choices, Direction, DraftTree, Eviction, KvAllocation, Outlook, PolicyKind,
    PreemptionMode, PriorityOrder, PromptSize, Rows, Scheduler, SchedulerConfig, SchedulerOutput,
    Signals, StateConfig, StateCopy, StepCost, StepOutput, StepUpdates, TenantConfig, Tick,
    TransferId,
};
use std::fmt::Write as _;
use std::time::Duration;

/// Value of `key=value` among the words of a command.
fn value<'a>(words: &'a [&'a str], key: &str) -> Option<&'a str> {
    words.iter().find_map(|word| word.strip_prefix(key)?.strip_prefix('='))
}

fn number(words: &[&str], key: &str) -> usize {
    let text = value(words, key).unwrap_or_else(|| panic!("`{key}=` is missing in {words:?}"));
    text.parse().unwrap_or_else(|_| panic!("`{key}={text}` is not a number"))
}

fn id(word: &str) -> RequestId {
    RequestId(word.parse().unwrap_or_else(|_| panic!("`{word}` is not a request number")))
}

fn optional(words: &[&str], key: &str) -> Option<usize> {
    value(words, key).map(|_| number(words, key))
}

/// The choice of this name; the default of the story when there is none.
fn choice<T: Copy>(words: &[&str], key: &str, all: &[T], name: fn(T) -> &'static str) -> Option<T> {
    let wanted = value(words, key)?;
    let found = all.iter().find(|&&choice| name(choice) == wanted);
    Some(*found.unwrap_or_else(|| panic!("`{key}={wanted}` is not a choice")))
}

fn tokens(text: &str) -> Vec<TokenId> {
    let token = |word: &str| TokenId(word.parse().expect("a token"));
    text.split(',').map(token).collect()
}

/// `draft ID a,b,c [after=-,0,0]`: a chain, or each after the one that is named.
fn drafts(words: &[&str]) -> DraftTree {
    let mut tree = DraftTree::default();
    match value(words, "after") {
        None => tree.extend(tokens(words[2])),
        Some(parents) => {
            for (token, parent) in tokens(words[2]).into_iter().zip(parents.split(',')) {
                tree.push(parent.parse().ok(), token);
            }
        }
    }
    tree
}

fn config(words: &[&str]) -> SchedulerConfig {
    let weights = value(words, "weights").unwrap_or("1").split(',');
    let tenant = |(i, weight): (usize, &str)| TenantConfig {
        name: format!("t{i}"),
        weight: weight.parse().expect("a weight"),
        max_waiting: optional(words, "queue").unwrap_or(usize::MAX),
        ..TenantConfig::default()
    };
    let choices = Choices {
        max_batch_tokens: number(words, "batch"),
        max_chunk_tokens: Some(number(words, "chunk")),
        max_running: number(words, "running"),
        policy: choice(words, "policy", PolicyKind::ALL, PolicyKind::name).unwrap_or_default(),
        priority_order: choice(words, "order", PriorityOrder::ALL, PriorityOrder::name)
            .unwrap_or_default(),
        max_wait: Duration::from_millis(optional(words, "wait").unwrap_or(60_000) as u64),
        max_step: Duration::from_millis(optional(words, "step").unwrap_or(0) as u64),
        batching: choice(words, "batching", Batching::ALL, Batching::name).unwrap_or_default(),
        kv_allocation: choice(words, "kv", KvAllocation::ALL, KvAllocation::name)
            .unwrap_or_default(),
        prefix_cache: value(words, "cache") == Some("on"),
        eviction: choice(words, "eviction", Eviction::ALL, Eviction::name).unwrap_or_default(),
        preemption: choice(words, "preemption", PreemptionMode::ALL, PreemptionMode::name)
            .unwrap_or_default(),
        tenants: weights.enumerate().map(tenant).collect(),
        ..Choices::default()
    };
    SchedulerConfig {
        max_context: number(words, "context"),
        n_host_blocks: optional(words, "host").unwrap_or(0) as u32,
        states: optional(words, "lanes").map(|n_lanes| StateConfig {
            n_lanes: n_lanes as u32,
            n_snapshots: number(words, "snapshots") as u32,
            chunk: number(words, "border"),
            every: optional(words, "every").unwrap_or(0),
            n_blocks: optional(words, "state-blocks").unwrap_or(0) as u64,
        }),
        windows: windows(words),
        choices,
        ..SchedulerConfig::new(number(words, "blocks") as u32, number(words, "block"))
    }
}

fn windows(words: &[&str]) -> Option<KvWindows> {
    let reach = match (optional(words, "window"), optional(words, "segment")) {
        (None, None) => return None,
        (Some(n), _) => Reach::Last(n),
        (None, Some(n)) => Reach::Segment(n),
    };
    let n_blocks = optional(words, "parts").unwrap_or(1);
    Some(KvWindows { reach, n_blocks, is_all: words.contains(&"all") })
}

fn prices(words: &[&str]) -> StepCost {
    let price = |key| optional(words, key).unwrap_or(0) as u64 * 1_000_000_000;
    StepCost {
        base_ps: price("base"),
        token_ps: price("token"),
        sample_ps: price("sample"),
        attended_ps: price("attended"),
        moved_block_ps: price("moved"),
    }
}

fn service(words: &[&str]) -> ServiceParams {
    let milliseconds = |key| optional(words, key).map(|n| Duration::from_millis(n as u64));
    ServiceParams {
        tenant: TenantId(optional(words, "tenant").unwrap_or(0) as u32),
        priority: value(words, "priority").map_or(0, |n| n.parse().expect("a priority")),
        slo: Slo { ttft: milliseconds("ttft"), tpot: milliseconds("tpot") },
        namespace: Namespace(optional(words, "salt").unwrap_or(0) as u64),
        fork_of: value(words, "fork").map(id),
        ..ServiceParams::default()
    }
}

fn request(words: &[&str]) -> Request {
    let prompt = value(words, "tokens").map(tokens);
    Request {
        id: id(words[1]),
        ask: Ask {
            prompt: prompt.unwrap_or_else(|| vec![TokenId(0); number(words, "prompt")]),
            sampling: SamplingParams::default(),
            choice: 0,
            max_tokens: number(words, "max"),
            stop_tokens: value(words, "stop").map(tokens).unwrap_or_default(),
            service: service(words),
            prediction: Vec::new(),
            constraint: None,
        },
    }
}

/// `[0, 1, 7]`, and `[0, 1, 2, 3, 4, 7]` as `[0..=4, 7]`.
fn runs(numbers: impl Iterator<Item = u32>) -> String {
    let mut runs: Vec<(u32, u32)> = Vec::new();
    for number in numbers {
        match runs.last_mut() {
            Some((_, last)) if *last + 1 == number => *last = number,
            _ => runs.push((number, number)),
        }
    }
    let words: Vec<String> = (runs.into_iter())
        .flat_map(|(first, last)| match last - first {
            0..4 => (first..=last).map(|number| number.to_string()).collect(),
            _ => vec![format!("{first}..={last}")],
        })
        .collect();
    format!("[{}]", words.join(", "))
}

fn copied(copy: StateCopy) -> String {
    match copy {
        StateCopy::Save { lane, snapshot } => {
            format!("lane {} is saved as snapshot {}", lane.0, snapshot.0)
        }
        StateCopy::Load { snapshot, lane } => {
            format!("snapshot {} is loaded into lane {}", snapshot.0, lane.0)
        }
        StateCopy::Fork { from, to } => format!("lane {} is copied to lane {}", from.0, to.0),
    }
}

#[derive(Default)]
struct Story {
    scheduler: Option<Scheduler>,
    /// Transfers under way.
    transfers: Vec<TransferId>,
    signals: Signals,
    now: u64,
}

impl Story {
    fn tell(&mut self, command: &str) -> String {
        let words: Vec<&str> = command.split_whitespace().collect();
        if words[0] == "config" {
            self.scheduler = Some(Scheduler::new(config(&words)));
            self.transfers.clear();
        }
        let scheduler = self.scheduler.as_mut().expect("`config` comes first");
        let mut said = String::new();
        match words[0] {
            "config" => {}
            "prices" => {
                self.signals.cost = prices(&words);
                self.signals.n_tried_tokens = optional(&words, "tried").unwrap_or(usize::MAX);
                return "noted\n".to_owned();
            }
            "sleep" => {
                self.now += words[1].parse::<u64>().expect("milliseconds") * 1_000_000;
                return "later\n".to_owned();
            }
            "add" => match optional(&words, "cached") {
                None => scheduler.add(request(&words)),
                Some(n_cached) => scheduler.add_at(request(&words), Tick(self.now), n_cached),
            },
            "lead" => scheduler.add_led_at(request(&words), Tick(self.now), 0),
            "extend" => scheduler.extend(id(words[1]), tokens(words[2])[0]),
            "branch" => scheduler.branch(id(words[1]), id(words[2]), tokens(words[3])[0]),
            "draft" => {
                let n_taken = scheduler.draft(id(words[1]), &drafts(&words));
                return format!("{n_taken} taken\n");
            }
            "abort" => {
                let was_here = scheduler.abort(id(words[1]));
                writeln!(said, "{}", if was_here { "forgotten" } else { "not here" }).unwrap();
            }
            "admits" => match scheduler.admits(number(&words, "prompt"), number(&words, "max")) {
                Ok(()) => return "yes\n".to_owned(),
                Err(refusal) => return format!("no: {refusal}\n"),
            },
            "outlook" => {
                let mut outlook = Outlook::default();
                scheduler.outlook(&mut outlook);
                let n_cached = optional(&words, "cached").unwrap_or(0);
                let prompt = PromptSize { n_tokens: number(&words, "prompt"), n_cached };
                return match outlook.judge(prompt, &service(&words), scheduler.config()) {
                    Ok(()) => "taken\n".to_owned(),
                    Err(refusal) => {
                        let retry = refusal.retry_after().map_or_else(String::new, |wait| {
                            format!("; try again in {} ms", wait.as_millis())
                        });
                        format!("refused: {refusal}{retry}\n")
                    }
                };
            }
            "step" => {
                let now = Tick(self.now);
                let transfers = &mut self.transfers;
                let load = step((scheduler, transfers), now, &self.signals, &words, &mut said);
                let priced = self.signals.cost.step_ns(&load);
                self.now += if priced > 0 { priced } else { 1_000_000 };
            }
            other => panic!("unknown command `{other}`"),
        }
        scheduler.check_integrity();
        writeln!(said, "{scheduler}").unwrap();
        said
    }
}

fn step(
    (scheduler, transfers): (&mut Scheduler, &mut Vec<TransferId>),
    now: Tick,
    signals: &Signals,
    words: &[&str],
    said: &mut String,
) -> pelton_sched::StepLoad {
    let mut plan = SchedulerOutput::default();
    scheduler.schedule(now, signals, &mut plan);
    scheduler.check_integrity();
    let mut answer = StepOutput::default();
    if let Some(failed) = value(words, "fail") {
        answer.failed.push(id(failed));
    }
    for id in &plan.preempted {
        writeln!(said, "{} is preempted", id.0).unwrap();
    }
    for transfer in &plan.transfers {
        let moved = plan.moved_by(transfer);
        let blocks = runs(moved.iter().map(|(block, _)| block.0));
        let hosts = runs(moved.iter().map(|(_, host)| host.0));
        match transfer.direction {
            Direction::Out => writeln!(said, "{}: blocks {blocks} to host {hosts}", transfer.id),
            Direction::In => writeln!(said, "{}: host {hosts} to blocks {blocks}", transfer.id),
        }
        .unwrap();
        transfers.push(transfer.id);
    }
    for (from, to) in &plan.copies {
        writeln!(said, "block {} is copied to {}", from.0, to.0).unwrap();
    }
    for &copy in &plan.state_copies {
        writeln!(said, "{}", copied(copy)).unwrap();
    }
    for share in &plan.sequences {
        let (name, end) = (share.id.0.to_string(), share.first_position + share.tokens.len());
        let blocks = runs(plan.block_table_of(share).iter().map(|block| block.0));
        write!(said, "{name} computes {}..{end} in blocks {blocks}", share.first_position).unwrap();
        if share.n_drafts > 0 {
            write!(said, ", {} of them drafts", share.n_drafts).unwrap();
        }
        if let Some(parents) = plan.rows_of(share).parents {
            let parent = |&row: &u32| match row {
                Rows::ROOT => "-".to_owned(),
                row => row.to_string(),
            };
            let parents: Vec<String> = parents.iter().map(parent).collect();
            write!(said, ", rows after {}", parents.join(" ")).unwrap();
        }
        if let Some(lane) = &share.lane {
            write!(said, ", in lane {} from {}", lane.lane.0, lane.border).unwrap();
            for (border, snapshot) in plan.saves_of(share) {
                write!(said, ", saves {border} as snapshot {}", snapshot.0).unwrap();
            }
        }
        if share.samples {
            write!(said, ", samples output {}", share.n_generated).unwrap();
            let sampled = tokens(value(words, &name).unwrap_or("7"));
            answer.sampled.extend(sampled.into_iter().map(|token| (share.id, token)));
        }
        writeln!(said).unwrap();
    }
    let held = value(words, "hold").unwrap_or_default();
    let is_held = |id: &TransferId| held.split(',').any(|word| word == id.0.to_string());
    answer.transferred.extend(transfers.extract_if(.., |id| !is_held(id)));
    for id in &answer.transferred {
        writeln!(said, "{id} is over").unwrap();
    }
    if let Some(victim) = value(words, "abort") {
        assert!(scheduler.abort(id(victim)), "{victim} is not here");
        writeln!(said, "{victim} is aborted").unwrap();
    }
    let mut updates = StepUpdates::default();
    scheduler.update(&answer, &mut updates);
    for update in &updates.sequences {
        let tokens: Vec<u32> = updates.tokens_of(update).iter().map(|token| token.0).collect();
        match (tokens.is_empty(), update.finish) {
            (true, None) => write!(said, "{} rests", update.id.0).unwrap(),
            _ => write!(said, "{} gets {tokens:?}", update.id.0).unwrap(),
        }
        if let Some(finish) = update.finish {
            let usage = update.usage;
            let (n_prompt, n_output) = (usage.prompt_tokens, usage.completion_tokens);
            write!(said, ", ends: {finish:?} after {n_prompt} + {n_output} tokens").unwrap();
            if usage.cached_tokens > 0 {
                write!(said, ", {} of them cached", usage.cached_tokens).unwrap();
            }
        }
        writeln!(said).unwrap();
    }
    plan.load
}

#[test]
fn every_scenario_goes_as_it_is_told() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/scenarios");
    let update = std::env::var_os("UPDATE_SCENARIOS").is_some();
    let mut n_files = 0;
    for entry in std::fs::read_dir(folder).expect("the folder of scenarios") {
        let path = entry.expect("an entry").path();
        let told = std::fs::read_to_string(&path).expect("a text file");
        let mut heard = String::new();
        let mut story = Story::default();
        let mut expected = false;
        for line in told.lines() {
            match line {
                "----" => expected = true,
                "" => expected = false,
                _ if expected => continue,
                comment if comment.starts_with('#') => writeln!(heard, "{comment}").unwrap(),
                command => {
                    let said = story.tell(command);
                    write!(heard, "{command}\n----\n{said}\n").unwrap();
                }
            }
        }
        if update {
            std::fs::write(&path, heard.trim_end().to_owned() + "\n").expect("writable");
        } else {
            assert_eq!(told.trim_end(), heard.trim_end(), "in {}", path.display());
        }
        n_files += 1;
    }
    assert!(n_files >= 5, "only {n_files} scenarios found");
}
