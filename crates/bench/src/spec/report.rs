//! The figures as a table and as JSON, with advice at the end.

use pelton_engine::SpecStats;
use pelton_llm::{LlmInfo, SpecMethod};
use pelton_sched::StepCost;
use serde::Serialize;

use super::advice::{Advice, Evidence, Outcome};
use super::name;
use super::subject::{Cell, Run};
use crate::record::{Measure, Reads, Reported};
use crate::samples::Summary;
use crate::table::{Align, INTERRUPTED, table};

/// One method with one kind of text at one batch size.
#[derive(Clone, Debug, Serialize)]
struct Figure {
    batch: usize,
    texts: String,
    method: &'static str,
    tokens_per_s: Summary,
    /// Speed over that of plain decoding in the same round; 1 for itself.
    ratio: Summary,
    /// New tokens of a step of one sequence.
    tokens_per_step: f64,
    drafts: u64,
    accepted: u64,
    /// Share of the drafts that were right, with all before them, by place.
    acceptance_by_position: Vec<f64>,
    /// Microseconds to make one draft.
    draft_us: Option<f64>,
    /// Whether the tokens always were those of plain decoding.
    equal: bool,
}

impl Figure {
    /// `None` before the first round has ended.
    fn new(cell: &Cell, idx: usize, method: SpecMethod) -> Option<Self> {
        let runs = &cell.runs[idx];
        let stats = sum(runs);
        let n_tokens: usize = runs.iter().map(|run| run.n_tokens).sum();
        let n_steps: usize = runs.iter().map(|run| run.n_row_steps).sum();
        let places = stats.accepted_at.iter().zip(stats.drafted_at);
        let places = places.take_while(|(_, n_drafted)| *n_drafted > 0);
        Some(Self {
            batch: cell.batch,
            texts: cell.text.kind.clone(),
            method: name(method),
            tokens_per_s: Summary::new(runs.iter().map(rate).collect())?,
            ratio: ratio(&[(runs, &cell.runs[0])])?,
            tokens_per_step: n_tokens as f64 / (n_steps as f64).max(1.0),
            drafts: stats.n_drafted,
            accepted: stats.n_accepted,
            acceptance_by_position: places.map(|(&n, all)| n as f64 / all as f64).collect(),
            draft_us: (stats.n_drafted > 0)
                .then(|| stats.draft_ns as f64 / stats.n_drafted as f64 / 1e3),
            equal: cell.is_equal[idx],
        })
    }

    fn row(&self) -> [String; 8] {
        let places = self.acceptance_by_position.iter();
        let places: Vec<String> = places.map(|share| format!("{:.0}", 100.0 * share)).collect();
        let or_none = |text: String| if text.is_empty() { "-".to_owned() } else { text };
        let ratio = &self.ratio;
        [
            format!("{} x {}", self.batch, self.texts),
            self.method.to_owned(),
            format!("{:.1}", self.tokens_per_s.median),
            format!("{:.2} ({:.2}..{:.2})", ratio.median, ratio.lowest, ratio.highest),
            format!("{:.2}", self.tokens_per_step),
            self.drafts.to_string(),
            or_none(self.draft_us.map_or_else(String::new, |us| format!("{us:.1}"))),
            or_none(places.join(" ")),
        ]
    }
}

/// Everything that was measured.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    model: String,
    threads: usize,
    /// Whether the caller ended it early.
    pub interrupted: bool,
    /// Whether all tokens were those of plain decoding.
    equal: bool,
    figures: Vec<Figure>,
    advice: Vec<Advice>,
}

impl Report {
    /// Sums up; methods have at most `spec_max` drafts, and steps cost what the engine found.
    pub(super) fn new(
        info: &LlmInfo,
        methods: &[SpecMethod],
        cells: &[Cell],
        (spec_max, cost): (usize, &StepCost),
    ) -> Self {
        let figure = |cell: &Cell| {
            let of = |(idx, &method)| Figure::new(cell, idx, method);
            methods.iter().enumerate().filter_map(of).collect::<Vec<_>>()
        };
        let mut batches: Vec<usize> = cells.iter().map(|cell| cell.batch).collect();
        batches.dedup();
        let advice = batches.into_iter().map(|batch| {
            let of_batch: Vec<&Cell> = cells.iter().filter(|cell| cell.batch == batch).collect();
            let others = methods.iter().enumerate().skip(1);
            let outcomes: Vec<Outcome> = others
                .filter_map(|(idx, &method)| outcome(&of_batch, idx, method, (spec_max, cost)))
                .collect();
            // Where Ctrl-C came before the first figure there is nothing to judge.
            (!outcomes.is_empty()).then(|| Advice::new(batch, &outcomes))
        });
        Self {
            model: info.name.clone(),
            threads: info.n_threads,
            interrupted: false,
            equal: cells.iter().all(|cell| cell.is_equal.iter().all(|is_equal| *is_equal)),
            advice: advice.flatten().collect(),
            figures: cells.iter().flat_map(figure).collect(),
        }
    }

    /// Names the methods whose tokens differ from plain decoding; `None` where all are equal.
    pub fn differing(&self) -> Option<String> {
        if self.equal {
            return None;
        }
        let wrong = self.figures.iter().filter(|figure| !figure.equal);
        let wrong = wrong.map(|f| format!("{} ({} x {})", f.method, f.batch, f.texts));
        let wrong: Vec<String> = wrong.collect();
        // An interrupted first round has no figures.
        let who = if wrong.is_empty() { "a method".to_owned() } else { wrong.join(", ") };
        Some(format!("THE TOKENS DIFFER from those of plain decoding with {who}: this is a bug"))
    }

    /// The table and the advice.
    pub fn render(&self) -> String {
        const HEAD: [(&str, Align); 8] = [
            ("batch x texts", Align::Left),
            ("method", Align::Left),
            ("tokens/s", Align::Right),
            ("times plain", Align::Right),
            ("tokens/step", Align::Right),
            ("drafts", Align::Right),
            ("µs/draft", Align::Right),
            ("% right by place", Align::Left),
        ];
        let rows: Vec<[String; 8]> = self.figures.iter().map(Figure::row).collect();
        let equality = self.differing();
        let all_equal = match self.figures.is_empty() {
            true => "Nothing was measured.",
            false => "All tokens are those of plain decoding.",
        };
        let equality = equality.as_deref().unwrap_or(all_equal);
        let advice: String = self.advice.iter().map(|advice| advice.text.clone() + "\n").collect();
        let note = if self.interrupted { INTERRUPTED } else { "" };
        let table = table(HEAD, &rows);
        format!("{} on {} threads\n\n{table}\n{equality}\n{advice}{note}", self.model, self.threads)
    }
}

/// A method over all kinds of text of a batch size.
fn outcome(
    cells: &[&Cell],
    idx: usize,
    method: SpecMethod,
    (spec_max, cost): (usize, &StepCost),
) -> Option<Outcome> {
    let pairs: Vec<(&[Run], &[Run])> =
        cells.iter().map(|cell| (&cell.runs[idx][..], &cell.runs[0][..])).collect();
    let runs: Vec<Run> = pairs.iter().flat_map(|(own, _)| own.iter().cloned()).collect();
    let texts = || cells.iter().flat_map(|cell| &cell.text.all);
    let n_prompt =
        texts().map(|question| question.prompt.len()).sum::<usize>() / texts().count().max(1);
    let evidence = Evidence {
        stats: &sum(&runs),
        n_row_steps: runs.iter().map(|run| run.n_all_row_steps).sum(),
        batch: cells.first()?.batch,
        position: n_prompt,
        cost,
    };
    let best_length = evidence.best_length(spec_max);
    Some(Outcome { method: method.name(), ratio: ratio(&pairs)?, best_length })
}

/// Speeds over those of plain decoding, round by round, over all of some pairs of runs.
fn ratio(pairs: &[(&[Run], &[Run])]) -> Option<Summary> {
    let n_rounds = pairs.iter().map(|(own, plain)| own.len().min(plain.len())).min()?;
    let speed = |runs: &mut dyn Iterator<Item = &Run>| {
        let (n_tokens, seconds) =
            runs.fold((0, 0.0), |(n, seconds), run| (n + run.n_tokens, seconds + run.seconds));
        n_tokens as f64 / f64::max(seconds, 1e-9)
    };
    let ratio = |round: usize| {
        let own = speed(&mut pairs.iter().map(|(own, _)| &own[round]));
        let plain = speed(&mut pairs.iter().map(|(_, plain)| &plain[round]));
        // Answers of one token say nothing about speed.
        if plain > 0.0 { own / plain } else { 1.0 }
    };
    Summary::new((0..n_rounds).map(ratio).collect())
}

/// Tokens per second.
fn rate(run: &Run) -> f64 {
    run.n_tokens as f64 / run.seconds.max(1e-9)
}

/// All that runs counted.
fn sum(runs: &[Run]) -> SpecStats {
    runs.iter().fold(SpecStats::default(), |sum, run| sum.and(&run.stats))
}

impl Reported for Report {
    const KIND: &'static str = "spec";

    fn measures(&self) -> Vec<Measure> {
        let rate = |figure: &Figure| {
            let Figure { batch, texts, method, tokens_per_s, .. } = figure;
            let name = format!("{method}, {batch} x {texts}");
            Measure::rate(name, "tokens/s", tokens_per_s.rounds.clone())
        };
        self.figures.iter().map(rate).collect()
    }

    fn is_interrupted(&self) -> bool {
        self.interrupted
    }

    fn threads(&self) -> Option<usize> {
        Some(self.threads)
    }

    fn reads(&self) -> Option<Reads> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::super::prompts::{Question, Texts};
    use super::*;
    use pelton_base::TokenId;

    fn info() -> LlmInfo {
        LlmInfo {
            name: "tiny".to_owned(),
            architecture: "Tiny".to_owned(),
            vocab_size: 9,
            context_tokens: 9,
            weight_bytes: 0,
            loaded_bytes: 0,
            rounded_to: None,
            kv_bytes: 0,
            kv_bytes_per_token: 0,
            n_long_requests: 0,
            states: Default::default(),
            n_threads: 1,
        }
    }

    fn run(n_tokens: usize, seconds: f64, token: u32) -> Run {
        let answers = vec![vec![TokenId(token)]];
        let (n_row_steps, n_all_row_steps) = (n_tokens, n_tokens);
        Run { answers, n_tokens, seconds, n_row_steps, n_all_row_steps, ..Run::default() }
    }

    fn texts() -> Texts<Question> {
        let question = Question { prompt: vec![TokenId(1)], rule: None, n_given: None };
        Texts { kind: "given".to_owned(), all: vec![question] }
    }

    const METHODS: [SpecMethod; 2] = [SpecMethod::Off, SpecMethod::Suffix];

    fn report(last: u32) -> Report {
        let mut cell = Cell::new(2, &texts(), METHODS.len());
        for (plain, own, token) in [(1.0, 0.5, 3), (2.0, 0.8, 3), (8.0, 4.0, last)] {
            cell.add(0, run(100, plain, 3), true);
            cell.add(1, run(100, own, token), true);
        }
        Report::new(&info(), &METHODS, &[cell], (8, &StepCost::default()))
    }

    #[test]
    fn ratios_are_those_of_rounds() {
        let report = report(3);
        assert_eq!(report.figures[1].ratio.rounds, [2.0, 2.5, 2.0]);
        assert_eq!(report.figures[0].ratio.rounds, [1.0; 3]);
        assert_eq!(report.advice[0].method, Some("suffix"));
        let text = report.render();
        for part in ["2 x given", "2.00 (2.00..2.50)", "All tokens are", "batch 2: --spec suffix"] {
            assert!(text.contains(part), "{part} is missing in\n{text}");
        }
    }

    #[test]
    fn tokens_that_differ_are_said_loudly() {
        assert_eq!(report(3).differing(), None);
        let wrong = report(4);
        let message = wrong.differing().expect("they differ");
        assert!(message.contains("THE TOKENS DIFFER") && message.contains("suffix"), "{message}");
        assert!(wrong.render().contains(&message));
    }

    #[test]
    fn nothing_measured_is_an_empty_table() {
        let cells = [Cell::new(1, &texts(), METHODS.len())];
        let report = Report::new(&info(), &METHODS, &cells, (8, &StepCost::default()));
        assert!(report.figures.is_empty() && report.advice.is_empty());
        let text = report.render();
        assert!(text.contains("Nothing was measured.") && !text.contains("best here"), "{text}");
    }
}
