//! `performance`: measures this machine with each instruction set that it has, and writes the
//! tables of `docs/performance.md`.
//!
//! ```text
//! round 1    q8_0    avx2: model, products    avx512: model, products    ...
//!            q4_0    ...
//!            long    avx2                     avx512                     ...
//! round 2    ...
//! page       medians of the rounds; ratios are formed within a round
//! ```
//!
//! Each turn is a process of a built binary with `PELTON_KERNELS` set. Turns are written down as
//! they end, so an interrupted run goes on where it stopped, and more rounds, formats or
//! instruction sets can be added; turns of another machine or binary are refused.

mod goals;
mod page;
mod tables;
mod turns;

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context;
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Value, json};

use crate::bench_model::{self, ShapeName};
use turns::{Kind, Turn, Turns};

/// The names that `PELTON_KERNELS` takes, but for `scalar`, which every processor outdoes.
const KERNELS: [&str; 5] = ["avx2", "avxvnni", "avx512", "avx512vnni", "amx"];

/// The script that measures other engines.
const COMPARE: &str = "benches/peers/compare.py";

/// Measures this machine with each instruction set that it has, and writes docs/performance.md.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// The binary to measure.
    #[arg(long, default_value = "target/release/pelton")]
    binary: PathBuf,
    /// The published model whose shape to measure.
    #[arg(long, value_enum, default_value = "qwen-0.5b")]
    shape: ShapeName,
    /// Weight formats.
    #[arg(long, value_delimiter = ',', default_value = "q8_0,q4_0,q4_k,bf16")]
    formats: Vec<String>,
    /// Instruction sets: avx2, avxvnni, avx512, avx512vnni, amx [default: those of the processor].
    #[arg(long, value_delimiter = ',')]
    kernels: Vec<String>,
    /// Rounds, in each of which everything is measured once.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..))]
    rounds: u64,
    /// Tokens of the long prompt, in the first format; 0 leaves it out.
    #[arg(long, default_value_t = 8192)]
    long: usize,
    /// Python with the packages of benches/peers, to measure other engines in each round too.
    #[arg(long, value_name = "PYTHON")]
    peers: Option<PathBuf>,
    /// Python for llama.cpp with one instruction set, such as avx2=target/avx2/bin/python. By
    /// default the one of --peers, whose llama.cpp has the instruction set that it was built for.
    #[arg(long, value_name = "KERNELS=PYTHON", requires = "peers")]
    llama_python: Vec<String>,
    /// Folder for models and for what was measured.
    #[arg(long, default_value = "target/performance")]
    folder: PathBuf,
    /// Page whose part between `<!-- measured -->` and `<!-- end of measured -->` is replaced.
    #[arg(long, default_value = "docs/performance.md")]
    page: PathBuf,
    /// Discard what an earlier run measured.
    #[arg(long)]
    fresh: bool,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    // Mistakes are better known before an hour of measuring than after it.
    let page = page::Page::open(&args.page)?;
    check_peers(args)?;
    let binary = identity(&args.binary)?;
    let (kernels, machine) = chosen_kernels(args)?;
    let header = header(args, &binary, &kernels, &machine);
    std::fs::create_dir_all(&args.folder)
        .with_context(|| format!("create {}", args.folder.display()))?;
    let mut turns = Turns::open(&args.folder.join("turns.jsonl"), &header, args.fresh)?;
    let missing: Vec<Turn> =
        all_turns(args, &kernels).into_iter().filter(|turn| turns.report(turn).is_none()).collect();
    let models = Models { folder: &args.folder, shape: args.shape };
    for format in &args.formats {
        models.write(format)?;
    }
    let bar = bar(missing.len());
    for turn in missing {
        bar.set_message(turn.to_string());
        let report = measure(args, &models, &turn).with_context(|| turn.to_string())?;
        turns.add(turn, report)?;
        bar.inc(1);
    }
    bar.finish_and_clear();
    page.write(&tables::all(&turns))?;
    println!("{} is written", args.page.display());
    Ok(())
}

/// Length and time of change of a binary, which tell it from another build.
fn identity(binary: &Path) -> anyhow::Result<Value> {
    let file = std::fs::metadata(binary)
        .with_context(|| format!("{}: build it with `cargo build --release`", binary.display()))?;
    let modified = file.modified()?.duration_since(std::time::UNIX_EPOCH)?.as_secs();
    Ok(json!([file.len(), modified]))
}

/// Facts about all turns that the page tells. Turns are of one table if the part `same` is equal.
fn header(args: &Args, binary: &Value, kernels: &[String], machine: &Value) -> Value {
    json!({
        "same": {
            "cpu": machine["cpu"],
            "threads": machine["threads"],
            "binary": binary,
            "shape": args.shape.name(),
            "long": args.long,
        },
        "commit": commit(),
        "formats": args.formats,
        "kernels": kernels,
        "rounds": args.rounds,
    })
}

/// The commit at hand, with a `+` where files differ from it; empty outside a repository.
fn commit() -> String {
    let git = |words: &[&str]| {
        let output =
            Command::new("git").args(words).output().ok().filter(|it| it.status.success())?;
        String::from_utf8(output.stdout).ok()
    };
    let id = git(&["rev-parse", "--short=8", "HEAD"]).unwrap_or_default();
    let is_changed =
        git(&["status", "--porcelain", "--untracked-files=no"]).is_some_and(|it| !it.is_empty());
    format!("{}{}", id.trim(), if is_changed { "+" } else { "" })
}

/// The instruction sets to measure: the named ones, or all that the processor has. With the
/// machine, as a report describes it.
fn chosen_kernels(args: &Args) -> anyhow::Result<(Vec<String>, Value)> {
    let names = if args.kernels.is_empty() {
        KERNELS.map(str::to_owned).to_vec()
    } else {
        args.kernels.clone()
    };
    let (mut chosen, mut machine) = (Vec::new(), Value::Null);
    for name in names {
        anyhow::ensure!(
            KERNELS.contains(&name.as_str()),
            "--kernels: `{name}` is none of {}",
            KERNELS.join(", ")
        );
        let mut probe = Command::new(&args.binary);
        probe.args(["bench", "kernels", "--quick", "--filter", "norm", "--json"]);
        match answer_of(probe.env("PELTON_KERNELS", &name)) {
            Ok(mut report) => {
                machine = report["report"]["machine"].take();
                chosen.push(name);
            }
            Err(why) if args.kernels.is_empty() => eprintln!("without {name}: {why:#}"),
            Err(why) => return Err(why.context(format!("--kernels {name}"))),
        }
    }
    anyhow::ensure!(
        !chosen.is_empty(),
        "this processor has no instruction set with kernels of its own"
    );
    Ok((chosen, machine))
}

/// Refuses interpreters for other engines that do not start, or whose instruction set has no name.
fn check_peers(args: &Args) -> anyhow::Result<()> {
    let mut pythons: Vec<&Path> = args.peers.iter().map(PathBuf::as_path).collect();
    for pair in &args.llama_python {
        let (kernels, python) = pair.split_once('=').unwrap_or((pair, ""));
        anyhow::ensure!(
            KERNELS.contains(&kernels) && !python.is_empty(),
            "--llama-python: expected KERNELS=PYTHON with one of {}, not `{pair}`",
            KERNELS.join(", ")
        );
        pythons.push(Path::new(python));
    }
    for python in pythons {
        let mut help = Command::new(python);
        let output = help.args([COMPARE, "--help"]).output();
        let output = output.with_context(|| format!("start {}", python.display()))?;
        anyhow::ensure!(output.status.success(), "{COMPARE}: {}", last_words(&output.stderr));
    }
    Ok(())
}

/// All turns, in the order in which they are measured.
fn all_turns(args: &Args, kernels: &[String]) -> Vec<Turn> {
    let mut turns = Vec::new();
    for round in 1..=args.rounds {
        let mut add = |format: &String, kind| {
            turns.extend(kernels.iter().map(|kernels| Turn {
                round,
                format: format.clone(),
                kernels: kernels.clone(),
                kind,
            }));
        };
        for format in &args.formats {
            add(format, Kind::Model);
            add(format, Kind::Products);
            if args.peers.is_some() {
                add(format, Kind::Peers);
            }
        }
        if args.long > 0 {
            add(&args.formats[0], Kind::Long);
        }
    }
    turns
}

/// The models that are measured.
struct Models<'a> {
    folder: &'a Path,
    shape: ShapeName,
}

impl Models<'_> {
    fn path(&self, format: &str) -> PathBuf {
        self.folder.join(format!("{}-{format}.gguf", self.shape.name()))
    }

    /// Writes a model, unless it is there.
    fn write(&self, format: &str) -> anyhow::Result<()> {
        let path = self.path(format);
        if path.exists() {
            return Ok(());
        }
        // Under another name until it is whole, so that an interruption leaves no half of one.
        let part = path.with_extension("part");
        bench_model::write(self.shape, format, &part)?;
        std::fs::rename(&part, &path).with_context(|| format!("rename {}", part.display()))
    }
}

fn measure(args: &Args, models: &Models<'_>, turn: &Turn) -> anyhow::Result<Value> {
    let model = models.path(&turn.format);
    let mut command = Command::new(&args.binary);
    match turn.kind {
        Kind::Model => {
            command.args(["bench", "model", "--rounds", "1", "--generate", "32", "--json"]);
            command.args(["--batch", "1,8,32", "--context", "8,4096", "--verify", "5", "-m"]);
            command.arg(&model);
        }
        Kind::Long => {
            command.args(["bench", "model", "--rounds", "1", "--generate", "1", "--json"]);
            command.args(["--batch", "1", "--context", "8", "--verify", "1"]);
            command.args(["--prompt", &args.long.to_string(), "-m"]).arg(&model);
        }
        Kind::Products => {
            let filter = format!("matmul {} [2048, 2048]", tables::layout(&turn.format));
            command.args(["bench", "kernels", "--seconds", "0.1", "--json", "--filter", &filter]);
        }
        Kind::Peers => return measure_peers(args, &model, turn),
    }
    let report = answer_of(command.env("PELTON_KERNELS", &turn.kernels))?;
    let layout = tables::layout(&turn.format);
    let is_of_layout = |row: &Value| row["variant"] == layout.as_str();
    let has_layout = || report["rows"].as_array().is_some_and(|rows| rows.iter().any(is_of_layout));
    anyhow::ensure!(
        turn.kind != Kind::Products || has_layout(),
        "`bench kernels` has no products of a layout `{layout}`"
    );
    Ok(report)
}

/// The other engines on the same file, held to the same instruction set.
fn measure_peers(args: &Args, model: &Path, turn: &Turn) -> anyhow::Result<Value> {
    let python = args.peers.as_ref().context("invariant: turns of peers need their Python")?;
    let answer = args.folder.join("peers.json");
    let mut command = Command::new(python);
    command.args([COMPARE, "--rounds", "1", "--generate", "32"]);
    command.args(["--engines", "llama.cpp,openvino", "--isa", &turn.kernels]);
    let of_kernels = |pair: &String| {
        pair.split_once('=').filter(|(of, _)| *of == turn.kernels).map(|(_, it)| it.to_owned())
    };
    if let Some(python) = args.llama_python.iter().find_map(of_kernels) {
        command.args(["--llama-python", &python]);
    }
    command.arg("--json").arg(&answer).arg(model);
    let output = command.output().with_context(|| format!("start {}", python.display()))?;
    anyhow::ensure!(output.status.success(), "{}", last_words(&output.stderr));
    let text = std::fs::read(&answer).with_context(|| format!("read {}", answer.display()))?;
    Ok(serde_json::from_slice(&text)?)
}

/// Runs a program to its end and reads the JSON object that it writes.
fn answer_of(command: &mut Command) -> anyhow::Result<Value> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command.output().with_context(|| format!("start {program}"))?;
    anyhow::ensure!(output.status.success(), "{}", last_words(&output.stderr));
    serde_json::from_slice(&output.stdout).with_context(|| format!("the answer of {program}"))
}

/// The last line that a program wrote for people.
fn last_words(stderr: &[u8]) -> String {
    let text = String::from_utf8_lossy(stderr);
    let line = text.lines().rfind(|line| !line.trim().is_empty());
    line.map_or_else(|| "it failed without a word".to_owned(), |line| line.trim().to_owned())
}

fn bar(n_turns: usize) -> ProgressBar {
    let style = ProgressStyle::with_template("[{bar:40}] {pos}/{len} ({eta} left) {msg}");
    let style = style.expect("invariant: the template is valid").progress_chars("=> ");
    ProgressBar::new(n_turns as u64).with_style(style)
}
