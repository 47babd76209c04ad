//! The scheduler told as stories: every file of `scenarios/` is a list of commands, each followed
//! by `----` and by what the scheduler must then say.
//!
//! ```text
//! # A comment.
//! config blocks=8 block=2 batch=8 chunk=8 running=4 context=16     one per file, first
//! add 1 prompt=3 max=2 [stop=9]       queue request 1: a prompt of 3 tokens, at most 2 to generate
//! step [1=9] [1=5,6] [fail=2]         schedule, compute, update; sampled tokens are 7 unless given
//! abort 1                             the client of request 1 went away
//! admits prompt=99 max=1              could such a request ever run?
//! ```
//!
//! With `UPDATE_SCENARIOS=1` in the environment the files are rewritten with what was said.

use pelton_base::{Request, RequestId, SamplingParams, ServiceParams, TokenId};
use pelton_sched::{
    Scheduler, SchedulerConfig, SchedulerOutput, Signals, StepOutput, StepUpdates, Tick,
};
use std::fmt::Write as _;

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

#[derive(Default)]
struct Story {
    scheduler: Option<Scheduler>,
    tick: u64,
}

impl Story {
    fn tell(&mut self, command: &str) -> String {
        let words: Vec<&str> = command.split_whitespace().collect();
        if words[0] == "config" {
            self.scheduler = Some(Scheduler::new(SchedulerConfig {
                max_batch_tokens: number(&words, "batch"),
                max_chunk_tokens: number(&words, "chunk"),
                max_running: number(&words, "running"),
                max_context: number(&words, "context"),
                ..SchedulerConfig::new(number(&words, "blocks") as u32, number(&words, "block"))
            }));
        }
        let scheduler = self.scheduler.as_mut().expect("`config` comes first");
        let mut said = String::new();
        match words[0] {
            "config" => {}
            "add" => scheduler.add(Request {
                id: id(words[1]),
                prompt: vec![TokenId(0); number(&words, "prompt")],
                sampling: SamplingParams::default(),
                choice: 0,
                max_tokens: number(&words, "max"),
                stop_tokens: value(&words, "stop")
                    .map(|token| TokenId(token.parse().expect("stop is a token")))
                    .into_iter()
                    .collect(),
                service: ServiceParams::default(),
            }),
            "abort" => {
                let was_here = scheduler.abort(id(words[1]));
                writeln!(said, "{}", if was_here { "forgotten" } else { "not here" }).unwrap();
            }
            "admits" => match scheduler.admits(number(&words, "prompt"), number(&words, "max")) {
                Ok(()) => return "yes\n".to_owned(),
                Err(refusal) => return format!("no: {refusal}\n"),
            },
            "step" => {
                self.tick += 1;
                step(scheduler, Tick(self.tick), &words, &mut said);
            }
            other => panic!("unknown command `{other}`"),
        }
        scheduler.check_integrity();
        writeln!(said, "{scheduler}").unwrap();
        said
    }
}

fn step(scheduler: &mut Scheduler, now: Tick, words: &[&str], said: &mut String) {
    let mut plan = SchedulerOutput::default();
    scheduler.schedule(now, &Signals::default(), &mut plan);
    scheduler.check_integrity();
    let mut answer = StepOutput::default();
    if let Some(failed) = value(words, "fail") {
        answer.failed.push(id(failed));
    }
    for id in &plan.preempted {
        writeln!(said, "{} is preempted", id.0).unwrap();
    }
    for share in &plan.sequences {
        let (name, end) = (share.id.0.to_string(), share.first_position + share.tokens.len());
        let blocks: Vec<u32> = plan.block_table_of(share).iter().map(|block| block.0).collect();
        write!(said, "{name} computes {}..{end} in blocks {blocks:?}", share.first_position)
            .unwrap();
        if share.samples {
            write!(said, ", samples output {}", share.n_generated).unwrap();
            let tokens = value(words, &name).unwrap_or("7");
            let tokens = tokens.split(',').map(|t| TokenId(t.parse().expect("a token")));
            answer.sampled.extend(tokens.map(|token| (share.id, token)));
        }
        writeln!(said).unwrap();
    }
    let mut updates = StepUpdates::default();
    scheduler.update(&answer, &mut updates);
    for update in &updates.sequences {
        let tokens: Vec<u32> = updates.tokens_of(update).iter().map(|token| token.0).collect();
        write!(said, "{} gets {tokens:?}", update.id.0).unwrap();
        if let Some(finish) = update.finish {
            let usage = update.usage;
            let (n_prompt, n_output) = (usage.prompt_tokens, usage.completion_tokens);
            write!(said, ", ends: {finish:?} after {n_prompt} + {n_output} tokens").unwrap();
        }
        writeln!(said).unwrap();
    }
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
