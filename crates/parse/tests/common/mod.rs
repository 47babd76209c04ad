//! The transcripts in `golden/`, and ways to read them in pieces.

use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use pelton_parse::{
    Answer, Reader, ReaderOptions, Tool, ToolCall, Trust, reasoning_format, tool_format,
};
use serde::Deserialize;
use serde_json::Value;

/// The output of a model, and its meaning.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Transcript {
    pub(crate) raw: String,
    pub(crate) content: String,
    pub(crate) calls: Vec<ToolCall>,
    #[serde(default)]
    pub(crate) reasoning: String,
    #[serde(default)]
    pub(crate) malformed: bool,
    #[serde(default)]
    pub(crate) cut: bool,
    /// Format of the calls, where it is not the name of the file.
    pub(crate) format: Option<String>,
    pub(crate) reasoning_format: Option<String>,
    #[serde(default)]
    pub(crate) starts_inside: bool,
}

impl Transcript {
    pub(crate) fn options(&self, trust: Trust) -> ReaderOptions {
        let format = self.format.as_deref().and_then(tool_format);
        ReaderOptions {
            reasoning: self.reasoning_format.as_deref().and_then(reasoning_format),
            starts_inside: self.starts_inside,
            tools: format.map(|format| (format, tools())),
            trust,
        }
    }

    pub(crate) fn expected(&self) -> Answer {
        Answer {
            content: self.content.clone(),
            reasoning: self.reasoning.clone(),
            calls: self.calls.clone(),
            malformed: self.malformed,
            cut: self.cut,
        }
    }
}

fn golden() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden")
}

/// The tools of every transcript.
pub(crate) fn tools() -> Vec<Tool> {
    static TOOLS: LazyLock<Vec<Tool>> = LazyLock::new(|| {
        let text = std::fs::read_to_string(golden().join("tools.json")).expect("a file");
        let tools: Vec<Value> = serde_json::from_str(&text).expect("JSON");
        let name = |tool: &Value| tool["name"].as_str().expect("a name").to_owned();
        tools.iter().map(|tool| Tool::new(name(tool), tool["parameters"].clone())).collect()
    });
    TOOLS.clone()
}

/// The transcripts of a file.
pub(crate) fn transcripts(name: &str) -> Vec<Transcript> {
    let path = golden().join(format!("{name}.jsonl"));
    let text = std::fs::read_to_string(&path).unwrap_or_else(|_| panic!("{}", path.display()));
    let read = |line: &str| {
        let mut transcript: Transcript =
            serde_json::from_str(line).unwrap_or_else(|error| panic!("{name}: {line}: {error}"));
        if tool_format(name).is_some() {
            transcript.format.get_or_insert_with(|| name.to_owned());
        }
        transcript
    };
    text.lines().map(read).collect()
}

/// The names of the files.
pub(crate) fn names() -> Vec<String> {
    let files = std::fs::read_dir(golden()).expect("a folder");
    let names = files.filter_map(|file| {
        let name = file.expect("an entry").file_name().into_string().expect("UTF-8");
        name.strip_suffix(".jsonl").map(str::to_owned)
    });
    let mut names: Vec<String> = names.collect();
    names.sort();
    names
}

/// Reads a text in these pieces.
pub(crate) fn in_pieces<'a>(
    options: ReaderOptions,
    pieces: impl IntoIterator<Item = &'a str>,
) -> Answer {
    let mut reader = Reader::new(options);
    let mut answer = Answer::default();
    for piece in pieces {
        reader.push(piece).iter().for_each(|delta| answer.add(delta));
    }
    answer.end(&reader.finish());
    answer
}
