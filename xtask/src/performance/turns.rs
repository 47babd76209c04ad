//! The file of measurements, written as they are made: a header, then a line for each turn.

use std::collections::HashMap;
use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::Path;

use anyhow::Context;
use serde_json::{Value, json};

/// The subject of a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Kind {
    /// A model: prompts, decoding, batches, a context, verification.
    Model,
    /// A long prompt of the same model.
    Long,
    /// Products of the model's weight layout.
    Products,
    /// Other engines on the same file.
    Peers,
}

impl Kind {
    const ALL: [Self; 4] = [Self::Model, Self::Long, Self::Products, Self::Peers];

    fn name(self) -> &'static str {
        match self {
            Self::Model => "model",
            Self::Long => "long prompt",
            Self::Products => "products",
            Self::Peers => "other engines",
        }
    }
}

/// One process that measures.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Turn {
    pub(super) round: u64,
    pub(super) format: String,
    pub(super) kernels: String,
    pub(super) kind: Kind,
}

impl fmt::Display for Turn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { round, format, kernels, kind } = self;
        write!(f, "round {round}: {} of {format} with {kernels}", kind.name())
    }
}

/// The reports of all turns so far.
#[derive(Debug)]
pub(super) struct Turns {
    header: Value,
    reports: HashMap<Turn, Value>,
    file: File,
}

impl Turns {
    /// Opens the file of an earlier run of the same machine, binary and model, or begins one.
    /// `is_fresh` discards an earlier run. The commit stays that of the earlier run: the page that
    /// it wrote is a change.
    ///
    /// # Errors
    ///
    /// The earlier run was another, or the file cannot be read or written.
    pub(super) fn open(path: &Path, header: &Value, is_fresh: bool) -> anyhow::Result<Self> {
        let mut header = header.clone();
        let place = || path.display().to_string();
        let kept = match std::fs::read_to_string(path) {
            Ok(text) if !is_fresh => text,
            Ok(_) => String::new(),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
            Err(error) => return Err(error).with_context(place),
        };
        let (mut earlier, mut reports) = (Value::Null, HashMap::new());
        // The last line may have been cut off while it was written.
        let whole = kept.rfind('\n').map_or("", |end| &kept[..=end]);
        for (idx, line) in whole.lines().enumerate() {
            let line: Value = serde_json::from_str(line)
                .with_context(|| format!("{}: line {}", place(), idx + 1))?;
            if idx == 0 {
                earlier = line;
            } else if let Some((turn, report)) = turn_of(&line) {
                reports.insert(turn, report);
            }
        }
        let file = if reports.is_empty() {
            let mut file = File::create(path).with_context(place)?;
            writeln!(file, "{header}").with_context(place)?;
            file
        } else {
            refuse_another(&header["same"], &earlier["same"]).with_context(place)?;
            header["commit"] = earlier["commit"].take();
            let file = OpenOptions::new().append(true).open(path).with_context(place)?;
            file.set_len(whole.len() as u64).with_context(place)?;
            file
        };
        Ok(Self { header, reports, file })
    }

    pub(super) fn add(&mut self, turn: Turn, report: Value) -> anyhow::Result<()> {
        let line = json!({
            "round": turn.round,
            "format": turn.format,
            "kernels": turn.kernels,
            "kind": turn.kind.name(),
            "report": report,
        });
        writeln!(self.file, "{line}").context("write down what was measured")?;
        self.reports.insert(turn, report);
        Ok(())
    }

    pub(super) fn report(&self, turn: &Turn) -> Option<&Value> {
        self.reports.get(turn)
    }

    /// The reports of one kind, in the order of rounds. A round without one is left out.
    pub(super) fn rounds(&self, format: &str, kernels: &str, kind: Kind) -> Vec<&Value> {
        let turn = |round| Turn { round, format: format.into(), kernels: kernels.into(), kind };
        (1..=self.n_rounds()).filter_map(|round| self.report(&turn(round))).collect()
    }

    /// The reports of two kinds in each round that has both.
    pub(super) fn pairs(
        &self,
        format: &str,
        kernels: &str,
        kinds: [Kind; 2],
    ) -> Vec<(&Value, &Value)> {
        let turn =
            |round, kind| Turn { round, format: format.into(), kernels: kernels.into(), kind };
        let pair = |round| {
            let [a, b] = kinds.map(|kind| self.report(&turn(round, kind)));
            a.zip(b)
        };
        (1..=self.n_rounds()).filter_map(pair).collect()
    }

    pub(super) fn n_rounds(&self) -> u64 {
        self.header["rounds"].as_u64().unwrap_or_default()
    }

    pub(super) fn header(&self) -> &Value {
        &self.header
    }

    /// A list of names in the header.
    pub(super) fn names(&self, key: &str) -> Vec<&str> {
        let names = self.header[key].as_array();
        names.into_iter().flatten().filter_map(Value::as_str).collect()
    }

    /// All reports, in no order.
    pub(super) fn reports(&self) -> impl Iterator<Item = &Value> {
        self.reports.values()
    }
}

/// Refuses an earlier run that differs, with the fields that do.
fn refuse_another(now: &Value, kept: &Value) -> anyhow::Result<()> {
    let fields = now.as_object().into_iter().flatten();
    let differs = |(name, value): (&String, &Value)| (kept[name] != *value).then(|| name.clone());
    let names: Vec<String> = fields.filter_map(differs).collect();
    anyhow::ensure!(
        names.is_empty(),
        "an earlier run differs in {}; `--fresh` discards it",
        names.join(", ")
    );
    Ok(())
}

/// The turn of a line, and its report.
fn turn_of(line: &Value) -> Option<(Turn, Value)> {
    let text = |key: &str| line[key].as_str().map(str::to_owned);
    let kind = Kind::ALL.into_iter().find(|kind| line["kind"] == kind.name())?;
    let round = line["round"].as_u64()?;
    let turn = Turn { round, format: text("format")?, kernels: text("kernels")?, kind };
    Some((turn, line["report"].clone()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn turn(round: u64) -> Turn {
        Turn { round, format: "q8_0".into(), kernels: "avx2".into(), kind: Kind::Products }
    }

    #[test]
    fn an_interrupted_run_goes_on_where_it_stopped() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let path = folder.path().join("turns.jsonl");
        let header =
            json!({ "same": { "cpu": "x", "binary": [1, 2] }, "rounds": 3, "commit": "a" });
        let mut turns = Turns::open(&path, &header, false).expect("begins");
        turns.add(turn(1), json!({ "x": 1 })).expect("writes");
        turns.add(turn(2), json!({ "x": 2 })).expect("writes");
        drop(turns);
        // The process was killed while it wrote the second line.
        let text = std::fs::read_to_string(&path).expect("reads");
        std::fs::write(&path, &text[..text.len() - 5]).expect("writes");
        let mut turns = Turns::open(&path, &header, false).expect("opens");
        assert_eq!(turns.report(&turn(1)), Some(&json!({ "x": 1 })));
        assert_eq!(turns.report(&turn(2)), None);
        turns.add(turn(2), json!({ "x": 3 })).expect("writes");
        let turns = Turns::open(&path, &header, false).expect("opens");
        let rounds = turns.rounds("q8_0", "avx2", Kind::Products);
        assert_eq!(rounds, [&json!({ "x": 1 }), &json!({ "x": 3 })]);

        let more = json!({ "same": header["same"], "rounds": 4, "commit": "a+" });
        let turns = Turns::open(&path, &more, false).expect("opens");
        assert_eq!((turns.n_rounds(), &turns.header()["commit"]), (4, &json!("a")));
        assert_eq!(turns.rounds("q8_0", "avx2", Kind::Products).len(), 2);

        let another = json!({ "same": { "cpu": "x", "binary": [1, 3] }, "rounds": 3 });
        let error = Turns::open(&path, &another, false).expect_err("differs");
        assert!(format!("{error:#}").contains("differs in binary; `--fresh`"), "{error:#}");
        let turns = Turns::open(&path, &another, true).expect("begins anew");
        assert_eq!(turns.report(&turn(1)), None);
    }
}
