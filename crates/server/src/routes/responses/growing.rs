//! A growing response, and the events that tell of it.
//!
//! ```text
//! created  in_progress
//!   output_item.added  content_part.added  output_text.delta..done     content_part.done  output_item.done
//!   output_item.added  content_part.added  reasoning_text.delta..done  content_part.done  output_item.done
//!   output_item.added                function_call_arguments.delta..done                  output_item.done
//! completed | incomplete | failed
//! ```

use pelton_base::{FinishReason, Usage};
use pelton_llm::Event;
use serde::Serialize;

use super::echo::{Echo, Failure, Incomplete, Progress, ResponseBody};
use super::items::{Content, Item, Status};
use crate::error::ApiError;
use crate::routes::chat::TokenLogprob;
use crate::routes::conversation::{Part, Parts, Step, Turns};
use crate::wire::{Chunks, Head, finish_reason, unix_seconds};

/// Beginning of the ids of calls.
const CALL_PREFIX: &str = "call_";
/// Why a response is incomplete.
const CUT: &str = "max_output_tokens";

/// Where events go.
pub(crate) trait Sink {
    /// Takes one event; `name` is its type.
    fn put(&mut self, name: &'static str, event: &impl Serialize);
}

impl Sink for Chunks {
    fn put(&mut self, name: &'static str, event: &impl Serialize) {
        self.push_named(name, event);
    }
}

/// For answers in one piece.
impl Sink for () {
    fn put(&mut self, _: &'static str, _: &impl Serialize) {}
}

/// One event: its type, its number, and what is new.
#[derive(Serialize)]
struct Framed<'a, T> {
    #[serde(rename = "type")]
    name: &'static str,
    sequence_number: usize,
    #[serde(flatten)]
    news: &'a T,
}

#[derive(Serialize)]
struct OfResponse<'a> {
    response: ResponseBody<'a>,
}

#[derive(Serialize)]
struct OfItem<'a> {
    output_index: usize,
    item: &'a Item,
}

#[derive(Serialize)]
struct OfPart<'a, T: Serialize> {
    item_id: &'a str,
    output_index: usize,
    content_index: usize,
    #[serde(flatten)]
    news: T,
}

#[derive(Serialize)]
struct PartNews<'a> {
    part: &'a Content,
}

#[derive(Serialize)]
struct TextDelta<'a> {
    delta: &'a str,
    logprobs: Vec<TokenLogprob>,
}

#[derive(Serialize)]
struct TextDone<'a> {
    text: &'a str,
    logprobs: &'a [TokenLogprob],
}

#[derive(Serialize)]
struct ThoughtDelta<'a> {
    delta: &'a str,
}

#[derive(Serialize)]
struct ThoughtDone<'a> {
    text: &'a str,
}

#[derive(Serialize)]
struct OfCall<'a, T: Serialize> {
    item_id: &'a str,
    output_index: usize,
    #[serde(flatten)]
    news: T,
}

#[derive(Serialize)]
struct ArgumentsDone<'a> {
    name: &'a str,
    arguments: &'a str,
}

/// Numbers the events of one response.
#[derive(Debug, Default)]
struct Counter(usize);

impl Counter {
    fn put(&mut self, out: &mut impl Sink, name: &'static str, news: &impl Serialize) {
        out.put(name, &Framed { name, sequence_number: self.0, news });
        self.0 += 1;
    }
}

/// A response that grows.
#[derive(Debug)]
pub(crate) struct Growing {
    head: Head,
    echo: Echo,
    parts: Parts,
    /// Whether thoughts are sent a second time, for clients that keep nothing else of them.
    shows_own_thoughts: bool,
    output: Vec<Item>,
    progress: Progress,
    usage: Option<Usage>,
    failure: Option<ApiError>,
    completed_at: Option<u64>,
    counter: Counter,
}

impl Growing {
    pub(crate) fn new(head: Head, echo: Echo, shows_own_thoughts: bool) -> Self {
        Self {
            head,
            echo,
            parts: Parts::new(CALL_PREFIX, false),
            shows_own_thoughts,
            output: Vec::new(),
            progress: Progress::InProgress,
            usage: None,
            failure: None,
            completed_at: None,
            counter: Counter::default(),
        }
    }

    pub(crate) fn id(&self) -> &str {
        &self.head.id
    }

    /// Says that the response is not stored after all.
    pub(crate) fn forget(&mut self) {
        self.echo.store = false;
    }

    /// The response as it is now.
    pub(crate) fn body(&self) -> ResponseBody<'_> {
        let is_cut = self.progress == Progress::Incomplete;
        ResponseBody {
            id: &self.head.id,
            object: "response",
            created_at: self.head.created,
            completed_at: self.completed_at,
            status: self.progress,
            error: self.failure.as_ref().map(Failure::new),
            incomplete_details: is_cut.then_some(Incomplete { reason: CUT }),
            model: &self.head.model,
            output: &self.output,
            usage: self.usage.map(Into::into),
            echo: &self.echo,
        }
    }

    /// The response as it is now, as JSON.
    pub(crate) fn json(&self) -> String {
        serde_json::to_string(&self.body()).expect("invariant: responses are plain data")
    }

    /// Adds the output to a conversation that goes on from it.
    pub(crate) fn tell(&self, turns: &mut Turns) {
        self.output.iter().for_each(|item| item.tell(turns));
    }

    /// Events before the first one of the engine.
    pub(crate) fn start(&mut self, out: &mut impl Sink) {
        self.put_response("response.created", out);
        self.put_response("response.in_progress", out);
    }

    /// Takes an event of the engine.
    pub(crate) fn event(&mut self, event: Event, out: &mut impl Sink) -> Result<(), ApiError> {
        let finish = event.finish.clone();
        for step in self.parts.event(event) {
            self.step(step, out);
        }
        let Some(finish) = finish else { return Ok(()) };
        finish_reason(&finish)?;
        self.progress = match finish.reason {
            FinishReason::Length => Progress::Incomplete,
            _ => Progress::Completed,
        };
        Ok(())
    }

    /// The response has ended by itself; its items are closed.
    pub(crate) fn settle(&mut self, usage: Usage, out: &mut impl Sink) {
        let is_cut = self.progress == Progress::Incomplete;
        // An answer that was cut in a thought has no text.
        let steps = self.parts.end(!is_cut);
        let last = if is_cut { Status::Incomplete } else { Status::Completed };
        for step in steps {
            match step {
                Step::Close => self.close(last, out),
                step => self.step(step, out),
            }
        }
        self.usage = Some(usage);
        self.completed_at = (!is_cut).then(unix_seconds);
    }

    /// The last event of a response that has ended by itself.
    pub(crate) fn conclude(&mut self, out: &mut impl Sink) {
        let is_cut = self.progress == Progress::Incomplete;
        let name = if is_cut { "response.incomplete" } else { "response.completed" };
        self.put_response(name, out);
    }

    /// The response has failed.
    pub(crate) fn fail(&mut self, error: ApiError, out: &mut impl Sink) {
        (self.progress, self.failure) = (Progress::Failed, Some(error));
        self.cut_open_item();
        self.put_response("response.failed", out);
    }

    /// The client has cancelled the response. The last event of its stream says that it is
    /// incomplete, because no other type fits.
    pub(crate) fn cancel(&mut self, usage: Usage, out: &mut impl Sink) {
        (self.progress, self.usage) = (Progress::Cancelled, Some(usage));
        self.cut_open_item();
        self.put_response("response.incomplete", out);
    }

    fn cut_open_item(&mut self) {
        let shows = self.shows_own_thoughts;
        if let Some(item) = self.output.last_mut().filter(|item| item.is_open()) {
            item.close(Status::Incomplete, shows);
        }
    }

    fn put_response(&mut self, name: &'static str, out: &mut impl Sink) {
        let mut counter = std::mem::take(&mut self.counter);
        counter.put(out, name, &OfResponse { response: self.body() });
        self.counter = counter;
    }

    fn step(&mut self, step: Step, out: &mut impl Sink) {
        match step {
            Step::Open(part) => self.open(part, out),
            Step::Add { text, tokens } => {
                let output_index = self.output.len().saturating_sub(1);
                let Some(item) = self.output.last_mut() else { return };
                let logprobs = item.add(&text, tokens);
                if text.is_empty() && logprobs.is_empty() {
                    return;
                }
                let (item_id, delta, content_index) = (item.id(), text.as_str(), 0);
                match item {
                    Item::Message { .. } => {
                        let news = TextDelta { delta, logprobs };
                        let event = OfPart { item_id, output_index, content_index, news };
                        self.counter.put(out, "response.output_text.delta", &event);
                    }
                    Item::Reasoning { .. } => {
                        let news = ThoughtDelta { delta };
                        let event = OfPart { item_id, output_index, content_index, news };
                        self.counter.put(out, "response.reasoning_text.delta", &event);
                    }
                    Item::FunctionCall { .. } => {
                        let event = OfCall { item_id, output_index, news: ThoughtDelta { delta } };
                        self.counter.put(out, "response.function_call_arguments.delta", &event);
                    }
                }
            }
            Step::Close => self.close(Status::Completed, out),
        }
    }

    fn open(&mut self, part: Part, out: &mut impl Sink) {
        let output_index = self.output.len();
        let mut item = Item::open(part);
        self.counter.put(out, "response.output_item.added", &OfItem { output_index, item: &item });
        if let Some(part) = item.empty_content() {
            let news = PartNews { part: &part };
            let event = OfPart { item_id: item.id(), output_index, content_index: 0, news };
            self.counter.put(out, "response.content_part.added", &event);
            item.push(part);
        }
        self.output.push(item);
    }

    fn close(&mut self, status: Status, out: &mut impl Sink) {
        let output_index = self.output.len().saturating_sub(1);
        let Some(item) = self.output.last_mut() else { return };
        item.close(status, self.shows_own_thoughts);
        let item: &Item = item;
        let (item_id, content_index, counter) = (item.id(), 0, &mut self.counter);
        match item {
            Item::Message { content, .. } | Item::Reasoning { content, .. } => {
                let Some(part) = content.last() else { return };
                match part {
                    Content::OutputText { text, logprobs, .. } => {
                        let news = TextDone { text, logprobs };
                        let event = OfPart { item_id, output_index, content_index, news };
                        counter.put(out, "response.output_text.done", &event);
                    }
                    Content::ReasoningText { text } => {
                        let news = ThoughtDone { text };
                        let event = OfPart { item_id, output_index, content_index, news };
                        counter.put(out, "response.reasoning_text.done", &event);
                    }
                }
                let news = PartNews { part };
                let event = OfPart { item_id, output_index, content_index, news };
                counter.put(out, "response.content_part.done", &event);
            }
            Item::FunctionCall { name, arguments, .. } => {
                let news = ArgumentsDone { name, arguments };
                let event = OfCall { item_id, output_index, news };
                counter.put(out, "response.function_call_arguments.done", &event);
            }
        }
        counter.put(out, "response.output_item.done", &OfItem { output_index, item });
    }
}
