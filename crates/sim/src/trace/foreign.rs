//! Published traces in their own forms: a line is turned into a request as it is read.
//!
//! | trace | a line | times |
//! |---|---|---|
//! | Mooncake | `{"timestamp": 27482, "input_length": 6955, "output_length": 52, "hash_ids": [46, 47]}` | milliseconds |
//! | BurstGPT | columns named in the first line: `Timestamp,Model,Request tokens,Response tokens,...` | seconds |
//!
//! The form is seen in the first line. Of Mooncake, a hash stands for 512 tokens and all tokens
//! before them. Hashes are numbered in the order in which their blocks first came, so a row of
//! consecutive numbers is the beginning of one text, which is a [`Prefix`] here; a prompt of more
//! than four of them shares its first four. BurstGPT has lines without an answer, of requests that
//! failed: they are left out.

use pelton_base::limits;
use serde::Deserialize;

use super::format::FieldError;
use super::{Prefix, TraceRequest};

/// Tokens of a block of Mooncake.
const BLOCK_TOKENS: usize = 512;
/// Latest arrival, in milliseconds: some thirty years.
const MOST_MS: f64 = 1e12;

/// The form of the lines of a file.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Form {
    /// The form of Pelton.
    Own,
    /// Objects of JSON.
    Mooncake,
    /// Columns.
    BurstGpt(Columns),
}

/// Places of the columns of BurstGPT.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Columns {
    at: usize,
    input: usize,
    output: usize,
}

impl Form {
    /// The form of a file with this first line that is not empty.
    pub(super) fn of(line: &str) -> Self {
        let line = line.trim();
        if line.starts_with('{') {
            return Self::Mooncake;
        }
        let place = |name: &str| line.split(',').position(|column| column.trim() == name);
        let columns = place("Timestamp")
            .zip(place("Request tokens"))
            .zip(place("Response tokens"))
            .map(|((at, input), output)| Columns { at, input, output });
        columns.map_or(Self::Own, Self::BurstGpt)
    }
}

#[derive(Deserialize)]
struct Mooncake {
    timestamp: f64,
    input_length: usize,
    output_length: usize,
    #[serde(default)]
    hash_ids: Vec<u64>,
}

/// Reads a line of Mooncake.
///
/// # Errors
///
/// Names the field that is wrong.
pub(super) fn mooncake(line: &str) -> Result<Option<TraceRequest>, FieldError> {
    if line.trim().is_empty() {
        return Ok(None);
    }
    let expected = "an object with timestamp, input_length, output_length and hash_ids";
    let read: Mooncake =
        serde_json::from_str(line).map_err(|_| FieldError::new("line", expected, line))?;
    let Mooncake { timestamp, input_length, output_length, hash_ids } = read;
    let at_ns = time("timestamp", timestamp, &timestamp.to_string())?;
    let n_prompt = tokens("input_length", input_length)?;
    // A model that ended at once still took a step.
    let n_output = tokens("output_length", output_length.max(1))?;
    let mut request = TraceRequest::new(at_ns, n_prompt, n_output);
    let mut left = n_prompt;
    for run in hash_ids.chunk_by(|a, b| a.checked_add(1) == Some(*b)) {
        let n_tokens = run.len().saturating_mul(BLOCK_TOKENS).min(left);
        let longer = request.with_prefix(Prefix { id: run[0], n_tokens }).filter(|_| n_tokens > 0);
        let Some(longer) = longer else { break };
        (request, left) = (longer, left - n_tokens);
    }
    Ok(Some(request))
}

/// Reads a line of BurstGPT; `None` for the line of names, and for a request without an answer.
///
/// # Errors
///
/// Names the column that is wrong.
pub(super) fn burst_gpt(line: &str, columns: Columns) -> Result<Option<TraceRequest>, FieldError> {
    if line.trim().is_empty() || matches!(Form::of(line), Form::BurstGpt(_)) {
        return Ok(None);
    }
    let cell = |place: usize| line.split(',').nth(place).unwrap_or_default().trim();
    let number = |field, place| {
        let found = cell(place).parse::<f64>().ok().filter(|x| x.is_finite() && *x >= 0.0);
        found.ok_or_else(|| FieldError::new(field, "a number from 0", cell(place)))
    };
    let seconds = number("Timestamp", columns.at)?;
    let at_ns = time("Timestamp", 1e3 * seconds, cell(columns.at))?;
    let (input, output) =
        (number("Request tokens", columns.input)?, number("Response tokens", columns.output)?);
    if input < 1.0 || output < 1.0 {
        return Ok(None);
    }
    let n_prompt = tokens("Request tokens", input as usize)?;
    Ok(Some(TraceRequest::new(at_ns, n_prompt, tokens("Response tokens", output as usize)?)))
}

/// Milliseconds in nanoseconds.
fn time(field: &'static str, ms: f64, got: &str) -> Result<u64, FieldError> {
    let fits = (0.0..MOST_MS).contains(&ms);
    let expected = "a time from 0 to 1000000000000 milliseconds";
    if fits { Ok((ms * 1e6).round() as u64) } else { Err(FieldError::new(field, expected, got)) }
}

fn tokens(field: &'static str, n: usize) -> Result<usize, FieldError> {
    let fits = (1..=limits::MODEL_CONTEXT).contains(&n);
    let expected = "a number of tokens from 1 to 134217728";
    if fits { Ok(n) } else { Err(FieldError::new(field, expected, &n.to_string())) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_form_is_seen_in_the_first_line() {
        assert_eq!(Form::of("  {\"timestamp\": 0}"), Form::Mooncake);
        assert_eq!(Form::of("# at_ms prompt_tokens"), Form::Own);
        assert_eq!(Form::of("0 10 10"), Form::Own);
        let names = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type";
        assert_eq!(Form::of(names), Form::BurstGpt(Columns { at: 0, input: 2, output: 3 }));
        let more = "Session ID,Timestamp,Elapsed time,Model,Request tokens,Response tokens";
        assert_eq!(Form::of(more), Form::BurstGpt(Columns { at: 1, input: 4, output: 5 }));
    }

    #[test]
    fn prompts_of_mooncake_share_the_blocks_that_their_hashes_share() {
        let read = |line: &str| mooncake(line).expect("good").expect("a request");
        let first = read(
            r#"{"timestamp": 27482, "input_length": 2000, "output_length": 52, "hash_ids": [46, 47, 48, 49]}"#,
        );
        assert_eq!((first.at_ns, first.n_prompt, first.n_output), (27_482_000_000, 2000, 52));
        assert_eq!(first.prefixes.as_slice(), [Prefix { id: 46, n_tokens: 2000 }]);
        let second = read(
            r#"{"timestamp": 30000, "input_length": 1300, "output_length": 0, "hash_ids": [46, 47, 90]}"#,
        );
        let expected = [Prefix { id: 46, n_tokens: 1024 }, Prefix { id: 90, n_tokens: 276 }];
        assert_eq!((second.prefixes.as_slice(), second.n_output), (&expected[..], 1));
        let (a, b) = (first.prompt(0, 1000), second.prompt(1, 1000));
        assert_eq!(a[..1024], b[..1024]);
        assert_ne!(a[1024..1100], b[1024..1100]);
        let many = read(
            r#"{"timestamp": 1, "input_length": 3072, "output_length": 1, "hash_ids": [1, 3, 5, 7, 9, 11]}"#,
        );
        assert_eq!(many.prefixes.as_slice().len(), 4);
    }

    #[test]
    fn requests_of_burst_gpt_that_failed_are_left_out() {
        let names = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type";
        let Form::BurstGpt(columns) = Form::of(names) else { panic!("columns") };
        let read = |line: &str| burst_gpt(line, columns).expect("good");
        assert_eq!(read(names), None);
        assert_eq!(
            read("5,ChatGPT,472,18,490,Conversation log").map(|r| r.at_ns),
            Some(5_000_000_000)
        );
        assert_eq!(read("45.25,GPT-4,10,0,10,API log"), None);
        assert_eq!(read(""), None);
    }

    #[test]
    fn hostile_lines_are_refused_by_field() {
        for (line, field) in [
            ("{", "line"),
            (r#"{"timestamp": 1}"#, "line"),
            (r#"{"timestamp": -1, "input_length": 1, "output_length": 1}"#, "timestamp"),
            (r#"{"timestamp": 1, "input_length": 0, "output_length": 1}"#, "input_length"),
            (
                r#"{"timestamp": 1, "input_length": 999999999999, "output_length": 1}"#,
                "input_length",
            ),
        ] {
            assert_eq!(mooncake(line).expect_err(line).field, field);
        }
        let columns = Columns { at: 0, input: 1, output: 2 };
        for (line, field) in [
            ("x,1,1", "Timestamp"),
            ("1", "Request tokens"),
            ("1,5,nan", "Response tokens"),
            ("1e99,1,1", "Timestamp"),
        ] {
            assert_eq!(burst_gpt(line, columns).expect_err(line).field, field);
        }
    }
}
