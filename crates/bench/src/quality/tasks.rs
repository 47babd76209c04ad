//! Questions with known answers, one JSON object per line, as evaluation harnesses keep them.
//!
//! ```text
//! {"query": "The sky is", "choices": ["blue", "wet"], "gold": 0}            multiple choice
//! {"question": "...", "choices": {"text": [..], "label": [..]}, "answerKey": "B"}
//! {"question": "2 + 2 =", "target": "4", "until": ["\n"]}                  exact match
//! ```
//!
//! A choice is scored by the sum of the log probabilities of its tokens behind the question, and once
//! more per byte of its text; question and choice are one text, with a space between them where neither
//! has one. An exact match compares the greedy continuation up to the first of `until`, spaces at the
//! ends removed. Questions that are too long for the context lose their beginning.
//!
//! **Deviation:** tokens of a choice are those that the whole text has behind the tokens of the
//! question; a token that spans both counts for the choice.

use serde::Serialize;
use serde_json::{Map, Value};

use pelton_base::TokenId;
use pelton_text::Tokenizer;

use super::Subject;
use super::runner::Runner;
use crate::table::{Align, table};
use crate::{BenchError, Progress, Result, Watch};

/// Names of the field with the question.
const QUESTIONS: [&str; 6] = ["query", "question", "question_stem", "ctx", "context", "prompt"];
/// Names of the field with the choices.
const CHOICES: [&str; 2] = ["choices", "endings"];
/// Names of the field with the right choice.
const GOLDS: [&str; 4] = ["gold", "label", "answerKey", "answer"];
/// Names of the field with the right answer.
const TARGETS: [&str; 4] = ["target", "targets", "answer", "answers"];
/// Most tokens of an answer that is generated.
const MOST_ANSWER_TOKENS: usize = 64;

/// One question.
#[derive(Clone, Debug, PartialEq)]
enum Question {
    Choice { context: String, choices: Vec<String>, gold: usize },
    Exact { context: String, targets: Vec<String>, until: Vec<String> },
}

/// The questions of a file.
#[derive(Clone, Debug, PartialEq)]
pub struct Task {
    name: String,
    questions: Vec<Question>,
}

impl Task {
    /// Reads the lines of a file; empty ones are passed over. `name` is that of the file.
    ///
    /// # Errors
    ///
    /// Names the first line that is no question, and the field that is missing or wrong.
    pub fn parse(name: &str, text: &str) -> Result<Self> {
        let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
        let questions: Vec<Question> = lines
            .map(|(at, line)| {
                question(line)
                    .map_err(|why| BenchError::invalid(format!("{name}: line {}: {why}", at + 1)))
            })
            .collect::<Result<_>>()?;
        if questions.is_empty() {
            return Err(BenchError::invalid(format!("{name}: expected a question per line")));
        }
        Ok(Self { name: name.to_owned(), questions })
    }

    /// The first questions.
    #[must_use]
    pub fn first(mut self, n: usize) -> Self {
        self.questions.truncate(n.max(1));
        self
    }
}

/// A string, or several, of one of these fields.
fn field<'a>(object: &'a Map<String, Value>, names: &[&str]) -> Option<(String, &'a Value)> {
    names.iter().find_map(|name| Some(((*name).to_owned(), object.get(*name)?)))
}

fn question(line: &str) -> std::result::Result<Question, String> {
    let object: Map<String, Value> =
        serde_json::from_str(line).map_err(|error| format!("expected a JSON object: {error}"))?;
    let Some((name, context)) = field(&object, &QUESTIONS) else {
        return Err(format!("no question: expected one of `{}`", QUESTIONS.join("`, `")));
    };
    let context = text(&name, context)?;
    if let Some((name, choices)) = field(&object, &CHOICES) {
        let (choices, labels) = match choices {
            Value::Object(both) => {
                let of = |part: &str| texts(&format!("{name}.{part}"), &both[part]);
                if !both.contains_key("text") || !both.contains_key("label") {
                    return Err(format!("`{name}`: expected `text` and `label` in it"));
                }
                (of("text")?, of("label")?)
            }
            list => (texts(&name, list)?, Vec::new()),
        };
        if choices.len() < 2 {
            return Err(format!("`{name}`: expected two choices or more, got {}", choices.len()));
        }
        let Some((name, gold)) = field(&object, &GOLDS) else {
            return Err(format!("no right choice: expected one of `{}`", GOLDS.join("`, `")));
        };
        let gold = gold_of(gold, &labels, choices.len()).ok_or_else(|| {
            let last = choices.len() - 1;
            format!("`{name}` is {gold}: expected 0 to {last}, a letter, or a label of the choices")
        })?;
        return Ok(Question::Choice { context, choices, gold });
    }
    let Some((name, targets)) = field(&object, &TARGETS) else {
        return Err(format!(
            "no answer: expected `{}` with the choices, or one of `{}`",
            CHOICES.join("` or `"),
            TARGETS.join("`, `")
        ));
    };
    let targets = match targets {
        Value::Array(_) => texts(&name, targets)?,
        one => vec![text(&name, one)?],
    };
    if targets.is_empty() {
        return Err(format!("`{name}`: expected at least one answer"));
    }
    let until = object.get("until").map_or(Ok(vec!["\n".to_owned()]), |all| texts("until", all))?;
    Ok(Question::Exact { context, targets, until })
}

fn text(name: &str, value: &Value) -> std::result::Result<String, String> {
    match value {
        Value::String(text) if !text.is_empty() => Ok(text.clone()),
        Value::Number(number) => Ok(number.to_string()),
        _ => Err(format!("`{name}`: expected a text that is not empty")),
    }
}

fn texts(name: &str, value: &Value) -> std::result::Result<Vec<String>, String> {
    let Value::Array(list) = value else {
        return Err(format!("`{name}`: expected a list of texts"));
    };
    list.iter().map(|value| text(name, value)).collect()
}

/// The index of the right choice: a number, a label, or a letter.
fn gold_of(gold: &Value, labels: &[String], n: usize) -> Option<usize> {
    let named = match gold {
        Value::Number(number) => number.to_string(),
        Value::String(text) => text.clone(),
        _ => return None,
    };
    let by_label = labels.iter().position(|label| *label == named);
    let by_number = || named.parse::<usize>().ok();
    let by_letter = || match named.as_bytes() {
        [letter @ b'A'..=b'Z'] => Some(usize::from(letter - b'A')),
        _ => None,
    };
    let found = match labels.is_empty() {
        true => by_number().or_else(by_letter),
        false => by_label,
    };
    found.filter(|idx| *idx < n)
}

/// The figures of a task.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TaskReport {
    /// Name of the file.
    pub task: String,
    /// Questions that were asked.
    pub n_questions: usize,
    /// Questions with choices.
    pub n_choices: usize,
    /// Share of right choices by the sum of log probabilities.
    pub accuracy: Option<f64>,
    /// The same by the mean per byte.
    pub accuracy_per_byte: Option<f64>,
    /// Share of answers that are the expected text.
    pub exact_match: Option<f64>,
    /// Standard error of the accuracy, or of the exact matches where there are no choices.
    pub standard_error: f64,
}

/// Figures of all tasks.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// Name of the model.
    pub model: String,
    /// One for each task.
    pub tasks: Vec<TaskReport>,
    /// Whether some questions are missing.
    pub interrupted: bool,
}

impl Report {
    /// The figures as a table.
    pub fn render(&self) -> String {
        let percent = |x: Option<f64>| x.map_or("-".to_owned(), |x| format!("{:.1} %", 100.0 * x));
        let head = [
            ("task", Align::Left),
            ("questions", Align::Right),
            ("right", Align::Right),
            ("right per byte", Align::Right),
            ("exact", Align::Right),
            ("standard error", Align::Right),
        ];
        let row = |task: &TaskReport| {
            [
                task.task.clone(),
                task.n_questions.to_string(),
                percent(task.accuracy),
                percent(task.accuracy_per_byte),
                percent(task.exact_match),
                percent(Some(task.standard_error)),
            ]
        };
        let rows: Vec<[String; 6]> = self.tasks.iter().map(row).collect();
        let note =
            if self.interrupted { "(interrupted: not every question was asked)\n" } else { "" };
        format!("model  {}\n\n{}{note}", self.model, table(head, &rows))
    }
}

/// Sums over the questions of a task.
#[derive(Default)]
struct Sums {
    n_choices: usize,
    n_right: usize,
    n_right_per_byte: usize,
    n_exact: usize,
    n_matched: usize,
}

/// Asks all questions. `context` is the most tokens of a question with its answer.
///
/// # Errors
///
/// A question that the tokenizer refuses, memory for keys and values that is refused.
pub fn measure(
    subject: &mut Subject,
    tokenizer: &Tokenizer,
    tasks: &[Task],
    context: usize,
    watch: Watch<'_>,
) -> Result<Report> {
    let mut asker = Asker { runner: Runner::new(&subject.decoder, context)?, tokenizer, context };
    let n_steps = tasks.iter().map(|task| task.questions.len()).sum();
    let (mut n_done, mut interrupted) = (0, false);
    let mut reports = Vec::new();
    for task in tasks {
        let mut sums = Sums::default();
        for question in &task.questions {
            if (watch.is_stopped)() {
                interrupted = true;
                break;
            }
            asker.ask(subject, question, &mut sums)?;
            n_done += 1;
            (watch.progress)(Progress { n_done, n_steps, label: &task.name });
        }
        reports.extend(sums.report(&task.name));
    }
    Ok(Report { model: subject.name.clone(), tasks: reports, interrupted })
}

impl Sums {
    /// `None` before the first question.
    fn report(&self, name: &str) -> Option<TaskReport> {
        let share = |part: usize, n: usize| (n > 0).then(|| part as f64 / n as f64);
        let (accuracy, exact_match) =
            (share(self.n_right, self.n_choices), share(self.n_matched, self.n_exact));
        let (p, n) = match accuracy {
            Some(accuracy) => (accuracy, self.n_choices),
            None => (exact_match?, self.n_exact),
        };
        Some(TaskReport {
            task: name.to_owned(),
            n_questions: self.n_choices + self.n_exact,
            n_choices: self.n_choices,
            accuracy,
            accuracy_per_byte: share(self.n_right_per_byte, self.n_choices),
            exact_match,
            standard_error: (p * (1.0 - p) / n as f64).sqrt(),
        })
    }
}

struct Asker<'a> {
    runner: Runner,
    tokenizer: &'a Tokenizer,
    context: usize,
}

impl Asker<'_> {
    fn ask(&mut self, subject: &mut Subject, question: &Question, sums: &mut Sums) -> Result<()> {
        match question {
            Question::Choice { context, choices, gold } => {
                let mut scores = Vec::with_capacity(choices.len());
                for choice in choices {
                    scores.push(self.score(subject, context, choice)?);
                }
                let per_byte =
                    scores.iter().zip(choices).map(|(score, text)| score / text.len() as f64);
                sums.n_choices += 1;
                sums.n_right_per_byte += usize::from(largest(per_byte) == Some(*gold));
                sums.n_right += usize::from(largest(scores.iter().copied()) == Some(*gold));
            }
            Question::Exact { context, targets, until } => {
                let answer = self.answer(subject, context, until)?;
                let is_right = targets.iter().any(|target| target.trim() == answer.trim());
                sums.n_exact += 1;
                sums.n_matched += usize::from(is_right);
            }
        }
        Ok(())
    }

    /// Log probability of a choice behind a question.
    fn score(&mut self, subject: &mut Subject, context: &str, choice: &str) -> Result<f64> {
        // Spaces at the end belong to the tokens of what follows.
        let question = context.trim_end();
        let gap = &context[question.len()..];
        let gap =
            if gap.is_empty() && !choice.starts_with(char::is_whitespace) { " " } else { gap };
        let before = self.encode(question)?;
        let mut tokens = self.encode(&format!("{question}{gap}{choice}"))?;
        if tokens.len() < 2 {
            // Nothing stands before the choice.
            return Ok(f64::NEG_INFINITY);
        }
        let n_common = before.iter().zip(&tokens).take_while(|(a, b)| a == b).count();
        let n_before = n_common.clamp(1, tokens.len() - 1);
        let cut = tokens.len().saturating_sub(self.context);
        tokens.drain(..cut);
        let n_before = n_before.saturating_sub(cut).max(1);
        let scored =
            self.runner.score(&mut subject.decoder, &tokens[..n_before], &tokens[n_before..]);
        Ok(scored.iter().map(|token| token.logprob).sum())
    }

    /// The greedy continuation of a question, up to the first of `until`.
    fn answer(&mut self, subject: &mut Subject, context: &str, until: &[String]) -> Result<String> {
        let mut tokens = self.encode(context.trim_end())?;
        let n_answer = MOST_ANSWER_TOKENS.min(self.context / 2);
        tokens.drain(..tokens.len().saturating_sub(self.context - n_answer));
        let Some(first) = self.runner.prompt(&mut subject.decoder, &tokens) else {
            return Ok(String::new());
        };
        let tokenizer = self.tokenizer;
        // An answer may begin with what ends it.
        let end = |text: &str| {
            let start = text.len() - text.trim_start().len();
            until.iter().filter_map(|end| Some(start + text[start..].find(end.as_str())?)).min()
        };
        let is_end = |tokens: &[TokenId]| {
            tokens.last().copied() == tokenizer.eos()
                || end(&tokenizer.decode(tokens, true)).is_some()
        };
        let n_prompt = tokens.len();
        let answer = self.runner.generate(&mut subject.decoder, n_prompt, first, n_answer, is_end);
        let text = tokenizer.decode(&answer, true);
        let end = end(&text).unwrap_or(text.len());
        Ok(text[..end].to_owned())
    }

    /// The tokens of a text with those that stand before every text; at least one.
    fn encode(&self, text: &str) -> Result<Vec<TokenId>> {
        let tokens = self.tokenizer.encode(text, true);
        let tokens = tokens.map_err(|error| BenchError::invalid(error.to_string()))?;
        match tokens.is_empty() {
            true => Err(BenchError::invalid(format!("`{text}` has no tokens"))),
            false => Ok(tokens),
        }
    }
}

/// The index of the largest number, the first among equals; NaN is passed over.
fn largest(numbers: impl Iterator<Item = f64>) -> Option<usize> {
    let mut best: Option<(usize, f64)> = None;
    for (idx, number) in numbers.enumerate() {
        if !number.is_nan() && best.is_none_or(|(_, most)| number > most) {
            best = Some((idx, number));
        }
    }
    best.map(|(idx, _)| idx)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn questions_of_every_form_are_read() {
        let lines = [
            r#"{"query": "a", "choices": ["x", "y"], "gold": 1}"#,
            "",
            r#"{"ctx": "a", "endings": ["x", "y"], "label": "1", "ind": 7}"#,
            r#"{"question": "a", "choices": {"text": ["x", "y"], "label": ["1", "2"]}, "answerKey": "2"}"#,
            r#"{"question": "a", "choices": ["x", "y"], "answer": "B"}"#,
        ];
        let task = Task::parse("t", &lines.join("\n")).expect("questions");
        let choices = vec!["x".to_owned(), "y".to_owned()];
        let expected = Question::Choice { context: "a".to_owned(), choices, gold: 1 };
        assert_eq!(task.questions, vec![expected; 4]);
        let exact = r#"{"question": "2 + 2 =", "target": 4}"#;
        let Question::Exact { targets, until, .. } = question(exact).expect("a question") else {
            panic!("an exact match");
        };
        assert_eq!((targets, until), (vec!["4".to_owned()], vec!["\n".to_owned()]));
    }

    #[test]
    fn a_bad_line_is_named_with_its_number_and_field() {
        for (line, part) in [
            ("{", "JSON object"),
            ("[]", "JSON object"),
            (r#"{"choices": ["x", "y"], "gold": 0}"#, "no question"),
            (r#"{"query": 7.5e3, "choices": "x", "gold": 0}"#, "`choices`: expected a list"),
            (r#"{"query": "", "target": "x"}"#, "`query`: expected a text"),
            (r#"{"query": "a", "choices": ["x"], "gold": 0}"#, "two choices or more, got 1"),
            (r#"{"query": "a", "choices": ["x", "y"], "gold": 2}"#, "`gold` is 2: expected 0 to 1"),
            (r#"{"query": "a", "choices": ["x", "y"], "gold": -1}"#, "`gold` is -1"),
            (r#"{"query": "a", "choices": ["x", "y"]}"#, "no right choice"),
            (r#"{"query": "a", "choices": {"text": ["x", "y"]}, "gold": 0}"#, "`label`"),
            (r#"{"query": "a"}"#, "no answer"),
            (r#"{"query": "a", "target": []}"#, "`target`: expected at least one"),
            (r#"{"query": "a", "target": null}"#, "`target`: expected a text"),
            (r#"{"query": "a", "target": "x", "until": "y"}"#, "`until`: expected a list"),
        ] {
            let text = format!("{{\"query\": \"a\", \"target\": \"b\"}}\n\n{line}\n");
            let error = Task::parse("file.jsonl", &text).expect_err(line).to_string();
            assert!(error.starts_with("file.jsonl: line 3: "), "{error}");
            assert!(error.contains(part), "`{part}` is missing in: {error}");
        }
        let empty = Task::parse("file.jsonl", "\n \n").expect_err("nothing").to_string();
        assert!(empty.contains("a question per line"), "{empty}");
    }

    #[test]
    fn shares_and_their_error_follow_from_the_sums() {
        let sums = Sums { n_choices: 4, n_right: 3, n_right_per_byte: 2, ..Sums::default() };
        let report = sums.report("t").expect("questions");
        assert_eq!((report.accuracy, report.accuracy_per_byte), (Some(0.75), Some(0.5)));
        assert!((report.standard_error - 0.216_506).abs() < 1e-6);
        assert_eq!(report.exact_match, None);
        assert_eq!(Sums::default().report("t"), None);
        assert_eq!(largest([f64::NAN, 1.0, 2.0, 2.0].into_iter()), Some(2));
    }
}
