//! `pelton run`: one answer, or a conversation in the terminal.

mod answer;
mod chat;
mod clipboard;
mod command;
mod editor;
mod keyboard;
mod page;
mod saved;
mod settings;
mod turns;

use std::io::{IsTerminal, Write};
use std::time::Instant;

use pelton_base::SamplingParams;
use pelton_llm::{ChatOptions, ChatRequest, CompletionRequest, Generation, Llm};
use pelton_text::Message;

use crate::args::RunArgs;
use crate::failure::{Failure, Result};
use crate::interrupt::Interrupts;
use crate::mode::{self, Mode, Situation};
use crate::prompt::Prompt;
use crate::stats::End;
use crate::{memory, model};

use answer::{Answer, Ending, Waiting};
pub(crate) use page::Color;
use page::{Look, Page};

/// Tokens of a continuation when `--max-tokens` is absent: a page or two.
const CONTINUATION_TOKENS: usize = 256;
/// Temperature for models that recommend no sampling of their own.
const TEMPERATURE: f32 = 0.8;
/// Top-p for models that recommend no sampling of their own.
const TOP_P: f32 = 0.95;

/// Everything that answers need, gathered once.
struct Session<'a> {
    args: &'a RunArgs,
    machine: pelton_llm::Runtime,
    llm: std::sync::Arc<Llm>,
    mode: Mode,
    is_embedded: bool,
    generation: Generation,
    options: ChatOptions,
    look: Look,
    load: std::time::Duration,
}

/// Runs the command.
pub(crate) fn run(args: &RunArgs) -> Result<()> {
    // Flags that can be refused without a model are refused before one is loaded.
    args.sampling.check()?;
    check_ends(args)?;
    let (form, options) = (args.form.shape()?, args.tools.options()?);
    let prompt = Prompt::gather(args.prompt.as_deref(), args.tokens())?;
    let started = Instant::now();
    let is_interactive = prompt == Prompt::Interactive;
    args.beams.check(&args.sampling, &args.ends, is_interactive)?;
    let of_one_answer = [(args.json, "--json"), (args.bandwidth, "--bandwidth")];
    if let Some((_, flag)) = of_one_answer.iter().find(|(is_given, _)| is_interactive && *is_given)
    {
        let expected = "expected PROMPT or standard input";
        return Err(Failure::new(format!("`{flag}` needs a prompt: {expected}")));
    }
    let chosen = args.chosen()?;
    let reference = model::reference(Some(&chosen.model))?;

    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::internal(format!("cannot start the runtime: {error}")))?;
    let machine = chosen.runtime()?;
    let llm = model::load(&machine, &reference, &chosen.llm)?;
    chosen.warn_of_idle(llm.info());
    let is_embedded = model::is_embedded(&reference);
    let mode = mode::choose(Situation {
        asked: args.asked_mode(),
        is_interactive,
        is_embedded,
        has_template: llm.template().is_some(),
    });
    if let Some(why) = llm.template_error()
        && args.asked_mode().is_none()
        && !args.quiet
        && !args.json
    {
        eprintln!("note: no chat with this model, the prompt is continued as plain text: {why}");
    }
    if args.has_idle_template() && !args.quiet {
        eprintln!(
            "note: the text is continued as it stands, and the chat template changes nothing"
        );
    }
    let form_field = args.form.flag().to_owned();
    let generation = Generation { form, form_field, ..generation(args, &llm, mode)? };
    let (look, load) = (Look::of_stdout(args.color), started.elapsed());
    let session =
        Session { args, machine, llm, mode, is_embedded, generation, options, look, load };
    // From here on Ctrl-C stops an answer instead of the process.
    let mut interrupts = {
        let _guard = runtime.enter();
        Interrupts::listen()?
    };
    match prompt {
        Prompt::Interactive => chat::converse(&session, &runtime, &mut interrupts),
        prompt => runtime.block_on(session.once(prompt, &mut interrupts)),
    }
}

impl Session<'_> {
    /// One prompt, one answer.
    async fn once(&self, prompt: Prompt, interrupts: &mut Interrupts) -> Result<()> {
        let mut page = match self.args.json {
            true => Page::Silent,
            false => Page::stdout(self.look, self.mode == Mode::Chat),
        };
        let mut echoed = None;
        let generating = match (prompt, self.mode) {
            (Prompt::Text(text), Mode::Chat) => {
                let mut messages = system_messages(self.args.system.as_deref());
                messages.push(Message::new("user", text));
                let (generation, options) = (self.generation.clone(), self.options.clone());
                self.llm.chat(ChatRequest { messages, generation, options })?
            }
            (Prompt::Text(text), Mode::Raw) => {
                echoed = Some(text.clone());
                self.complete(pelton_llm::Prompt::Text(text), &self.generation)?
            }
            (Prompt::Tokens(tokens), _) => {
                self.complete(pelton_llm::Prompt::Tokens(tokens), &self.generation)?
            }
            (Prompt::Interactive, _) => unreachable!("a conversation is not a single prompt"),
        };
        let n_prompt = generating.usage().prompt_tokens;
        self.warn_of_length(n_prompt);
        if let Some(text) = echoed {
            self.echo(&mut page, &text);
        }
        let waiting = self.waiting(n_prompt);
        let answer = answer::receive(generating, interrupts, &mut page, waiting).await?;
        if self.args.json {
            self.print_json(&answer)?;
        }
        if !self.args.quiet && !self.args.json {
            let stats = self.stats(&answer, &self.generation);
            eprint!(
                "
{}",
                self.look.remark(&stats.render())
            );
            self.note_toy();
        }
        match answer.ending {
            Ending::Interrupted => Err(Failure::interrupted()),
            Ending::Failed => Err(answer.failure()),
            Ending::Complete => Ok(()),
        }
    }

    /// Starts a continuation.
    fn complete(
        &self,
        prompt: pelton_llm::Prompt,
        generation: &Generation,
    ) -> Result<pelton_llm::Generating> {
        let generation = generation.clone();
        Ok(self.llm.complete(CompletionRequest { prompts: vec![prompt], generation })?)
    }

    /// Shows a person the text that is being continued; a pipe gets the continuation alone.
    fn echo(&self, page: &mut Page, text: &str) {
        let is_person = std::io::stdout().is_terminal() && std::io::stderr().is_terminal();
        if is_person && !self.args.json && !self.args.quiet {
            page.echo(text);
        }
    }

    /// A spinner for a prompt of `n_tokens`, where a person looks.
    fn waiting(&self, n_tokens: usize) -> Waiting<'_> {
        let is_shown = self.look.wraps && !self.args.quiet && !self.args.json;
        Waiting::new(&self.llm, n_tokens, is_shown)
    }

    /// Says at once that an answer cannot become as long as `--max-tokens` allows.
    fn warn_of_length(&self, n_prompt: usize) {
        if self.args.quiet {
            return;
        }
        let context = self.llm.info().context_tokens;
        let room = self.llm.engine().answer_room(n_prompt);
        if let Some(note) = length_note(self.generation.max_tokens, room, context) {
            eprint!("{}", self.look.remark(&note));
        }
    }

    /// Says what the embedded model is, so that nobody takes it for a real one.
    fn note_toy(&self) {
        if self.is_embedded && !self.args.quiet {
            eprint!("{}", self.look.remark(&format!("{}\n", model::TOY_NOTE)));
        }
    }

    /// The figures of one answer.
    fn stats(&self, answer: &Answer, generation: &Generation) -> crate::stats::Stats {
        let info = self.llm.info();
        let sampling = &generation.sampling;
        let (usage, max_tokens) = (answer.usage, generation.max_tokens);
        crate::stats::Stats {
            mode: self.mode,
            model: info.name.clone(),
            seed: (!sampling.is_greedy()).then_some(sampling.seed),
            end: End::of(
                answer.finish(),
                usage,
                max_tokens,
                self.llm.engine().answer_room(usage.prompt_tokens),
            ),
            usage,
            load: self.load,
            timings: answer.timings,
            // Read before the bandwidth is measured, which takes memory of its own.
            peak_memory_bytes: memory::peak_bytes(),
            bytes_per_token: Some(crate::stats::bytes_per_token(
                info.weight_bytes + info.states.bytes_per_request,
                info.kv_bytes_per_token,
                usage,
            )),
            bandwidth: self.args.bandwidth.then(|| self.bandwidth()),
        }
    }

    /// Measures the memory with the threads that computed, in bytes per second.
    fn bandwidth(&self) -> f64 {
        /// Far beyond any cache of this decade's processors, in bytes.
        const BYTES: usize = 256 << 20;
        const SECONDS: f64 = 0.5;
        self.machine.cpu(0).measure_read_bandwidth(BYTES, SECONDS)
    }

    fn print_json(&self, answer: &Answer) -> Result<()> {
        let stats = self.stats(answer, &self.generation);
        let mut object = serde_json::json!({
            "model": stats.model,
            "mode": self.mode,
            "seed": self.generation.sampling.seed,
            "tokens": answer.tokens,
            "text": answer.text,
            "reasoning": answer.thought,
            "tool_calls": answer.calls,
            "finish_reason": answer.finish(),
            "end": stats.end.to_string(),
            "usage": answer.usage,
            "timings": stats.timings(),
        });
        if let Some(beam) = answer.beam {
            object["cumulative_logprob"] = beam.cumulative_logprob.into();
            object["score"] = beam.score.into();
        }
        let mut stdout = std::io::stdout().lock();
        writeln!(stdout, "{object}").map_err(|error| Failure::stdout(&error))
    }
}

/// Overrides the recommended sampling by the flags.
fn generation(args: &RunArgs, llm: &Llm, mode: Mode) -> Result<Generation> {
    let mut generation = llm.default_generation();
    // Where the model recommends nothing: plain sampling rambles, so stay a little below it.
    let sampling = llm.recommended_sampling().cloned().unwrap_or_else(|| SamplingParams {
        temperature: TEMPERATURE,
        top_p: TOP_P,
        ..SamplingParams::default()
    });
    let sampling = args.beams.sampling(sampling);
    generation.sampling = args.sampling.over(sampling, args.sampling.seed())?;
    args.sampling.over_texts(&mut generation.texts);
    let continuation = CONTINUATION_TOKENS.max(args.ends.min_tokens.unwrap_or(0));
    generation.max_tokens = (mode == Mode::Raw).then_some(continuation);
    Ok(args.beams.over(args.ends.over(generation)))
}

/// The instructions as the first message, if there are any.
fn system_messages(system: Option<&str>) -> Vec<Message> {
    system.iter().map(|text| Message::new("system", *text)).collect()
}

/// The note about a limit that is longer than the room for an answer.
fn length_note(max_tokens: Option<usize>, room: usize, context: usize) -> Option<String> {
    let max_tokens = max_tokens.filter(|most| *most > room)?;
    Some(format!(
        "note: {max_tokens} tokens do not fit: the context of {context} leaves {room} for the \
         answer\n"
    ))
}

/// Checks the flags that end an answer.
fn check_ends(args: &RunArgs) -> Result<()> {
    args.ends.over(Generation::default()).validate().map_err(|error| {
        let flag = error.param.replace('_', "-");
        let expected = error.expected.replace("max_tokens", "--max-tokens");
        Failure::new(format!("`--{flag}` must be {expected}, got {}", error.got))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_beyond_the_context_is_said() {
        assert_eq!(length_note(None, 90, 100), None);
        assert_eq!(length_note(Some(90), 90, 100), None);
        let note = length_note(Some(91), 90, 100).expect("too long");
        assert!(note.contains("91 tokens do not fit") && note.contains("leaves 90"), "{note}");
    }
}
