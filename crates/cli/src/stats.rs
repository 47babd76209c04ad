//! Cost of one answer: timings, rates, memory, and the used share of the memory bandwidth.
//!
//! Decoding one token reads every weight once, and the keys and values of everything before it.
//! So bytes read per token times tokens per second, over the bandwidth of the machine, says how
//! close to the limit an answer was generated.

use std::fmt::Write as _;
use std::time::Duration;

use pelton_base::{FinishReason, Usage};
pub(crate) use pelton_bench::bytes;
use pelton_llm::Timings;
use serde::Serialize;

use crate::mode::Mode;

/// Measured facts about one answer.
#[derive(Clone, Debug)]
pub(crate) struct Stats {
    /// Treatment of the prompt.
    pub(crate) mode: Mode,
    /// Name of the model.
    pub(crate) model: String,
    /// Seed of the sampler; `None` for greedy decoding, where it plays no part.
    pub(crate) seed: Option<u64>,
    /// The reason why the answer ended.
    pub(crate) end: End,
    /// Tokens in and out.
    pub(crate) usage: Usage,
    /// From the start of the program's work to a ready model.
    pub(crate) load: Duration,
    /// Times since submission.
    pub(crate) timings: Timings,
    /// Largest resident set, in bytes.
    pub(crate) peak_memory_bytes: Option<u64>,
    /// Bytes read to decode one token at the middle of the answer.
    pub(crate) bytes_per_token: Option<u64>,
    /// Measured bandwidth of the memory, in bytes per second.
    pub(crate) bandwidth: Option<f64>,
}

/// The reason why an answer ended, finer than a client of the server sees it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum End {
    /// The model ended it, or a stop text.
    Stop,
    /// The limit of its length.
    MaxTokens,
    /// Prompt and answer fill the context.
    ContextFull,
    /// Ctrl-C.
    Interrupted,
    /// The engine failed.
    Failed,
}

impl End {
    /// The reason in finer words: a full context is not the limit of the answer's length. The prompt
    /// leaves `room` tokens for the answer.
    pub(crate) fn of(
        finish: FinishReason,
        usage: Usage,
        max_tokens: Option<usize>,
        room: usize,
    ) -> Self {
        match finish {
            FinishReason::Stop => Self::Stop,
            FinishReason::Length => {
                let is_long = max_tokens.is_some_and(|most| usage.completion_tokens >= most);
                let is_full = usage.completion_tokens >= room;
                if is_full && !is_long { Self::ContextFull } else { Self::MaxTokens }
            }
            FinishReason::Aborted => Self::Interrupted,
            _ => Self::Failed,
        }
    }
}

impl std::fmt::Display for End {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Stop => "stop",
            Self::MaxTokens => "max tokens",
            Self::ContextFull => "context full",
            Self::Interrupted => "interrupted",
            Self::Failed => "failed",
        })
    }
}

/// The `timings` object of `--json`.
#[derive(Debug, PartialEq, Serialize)]
pub(crate) struct TimingsJson {
    load_s: f64,
    queue_s: Option<f64>,
    ttft_s: Option<f64>,
    prompt_tokens_per_s: Option<f64>,
    generation_s: Option<f64>,
    generation_tokens_per_s: Option<f64>,
    total_s: f64,
    peak_memory_bytes: Option<u64>,
    bytes_per_token: Option<u64>,
    bandwidth_bytes_per_s: Option<f64>,
    bandwidth_percent: Option<f64>,
}

impl Stats {
    /// Time after the first token, in seconds.
    fn generation_s(&self) -> Option<f64> {
        Some((self.timings.total_seconds - self.timings.ttft_seconds?).max(0.0))
    }

    /// Share of the measured bandwidth that decoding used, in per cent.
    pub(crate) fn bandwidth_percent(&self) -> Option<f64> {
        let bytes_per_s =
            self.bytes_per_token? as f64 * self.timings.generation_tokens_per_second?;
        let bandwidth = self.bandwidth.filter(|bandwidth| *bandwidth > 0.0)?;
        Some(100.0 * bytes_per_s / bandwidth)
    }

    /// The figures as a JSON object; figures that were not measured are `null`.
    pub(crate) fn timings(&self) -> TimingsJson {
        TimingsJson {
            load_s: self.load.as_secs_f64(),
            queue_s: self.timings.queue_seconds,
            ttft_s: self.timings.ttft_seconds,
            prompt_tokens_per_s: self.timings.prompt_tokens_per_second,
            generation_s: self.generation_s(),
            generation_tokens_per_s: self.timings.generation_tokens_per_second,
            total_s: self.timings.total_seconds,
            peak_memory_bytes: self.peak_memory_bytes,
            bytes_per_token: self.bytes_per_token,
            bandwidth_bytes_per_s: self.bandwidth,
            bandwidth_percent: self.bandwidth_percent(),
        }
    }

    /// The figures in one line, for a conversation; newline at the end.
    pub(crate) fn render_line(&self) -> String {
        let mut out = format!("[{} tokens", self.usage.completion_tokens);
        if let Some(rate) = self.timings.generation_tokens_per_second {
            write(&mut out, format_args!(" · {rate:.1} tokens/s"));
        }
        if let Some(ttft) = self.timings.ttft_seconds {
            write(&mut out, format_args!(" · first after {ttft:.3} s"));
        }
        write(&mut out, format_args!(" · {} in context", self.context_tokens()));
        write(&mut out, format_args!(" · {}]\n", self.end));
        out
    }

    fn context_tokens(&self) -> usize {
        self.usage.prompt_tokens + self.usage.completion_tokens
    }

    /// The figures for a person: a few lines, newline at the end.
    pub(crate) fn render(&self) -> String {
        let mut out = format!("[{} · {} mode", self.model, self.mode);
        match self.seed {
            Some(seed) => write(&mut out, format_args!(" · seed {seed}")),
            None => write(&mut out, format_args!(" · greedy")),
        }
        write(&mut out, format_args!(" · {}]\n", self.end));
        let load = self.load.as_secs_f64();
        write(&mut out, format_args!("  load        {load:.2} s"));
        if let Some(ttft) = self.timings.ttft_seconds {
            write(&mut out, format_args!("; first token {ttft:.3} s later"));
        }
        out.push('\n');
        let prompt_rate = self.timings.prompt_tokens_per_second;
        write_rate(&mut out, "prompt", self.usage.prompt_tokens, prompt_rate);
        if self.usage.cached_tokens > 0 {
            out.pop();
            write(&mut out, format_args!(" ({} cached)\n", self.usage.cached_tokens));
        }
        let generation_rate = self.timings.generation_tokens_per_second;
        write_rate(&mut out, "generation", self.usage.completion_tokens, generation_rate);
        if let Some(peak) = self.peak_memory_bytes {
            let peak = bytes(peak);
            write(&mut out, format_args!("  memory      {peak} at peak\n"));
        }
        if let Some(bandwidth) = self.bandwidth {
            // Bandwidths are given in powers of ten, as memory makers do.
            let gb_per_s = bandwidth / 1e9;
            write(&mut out, format_args!("  bandwidth   {gb_per_s:.1} GB/s measured"));
            if let (Some(percent), Some(per_token)) =
                (self.bandwidth_percent(), self.bytes_per_token)
            {
                let per_token = bytes(per_token);
                write(&mut out, format_args!("; {percent:.0} % used ({per_token} per token)"));
            }
            out.push('\n');
        }
        out
    }
}

/// Bytes read to decode one token in the middle of an answer: all weights and states, which are `fixed`,
/// and the keys and values of the prompt and of half the answer.
pub(crate) fn bytes_per_token(fixed: u64, kv_bytes_per_position: u64, usage: Usage) -> u64 {
    let positions = usage.prompt_tokens + usage.completion_tokens / 2;
    fixed + kv_bytes_per_position * positions as u64
}

fn write(out: &mut String, args: std::fmt::Arguments<'_>) {
    out.write_fmt(args).expect("invariant: writing to a String never fails");
}

fn write_rate(out: &mut String, what: &str, n_tokens: usize, rate: Option<f64>) {
    write(out, format_args!("  {what:<11} {n_tokens} tokens"));
    if let Some(rate) = rate {
        write(out, format_args!("; {rate:.1} tokens/s"));
    }
    out.push('\n');
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Stats {
        Stats {
            mode: Mode::Raw,
            model: "story".to_owned(),
            seed: Some(42),
            end: End::MaxTokens,
            usage: Usage { prompt_tokens: 10, completion_tokens: 101, ..Usage::default() },
            load: Duration::from_millis(250),
            timings: Timings {
                queue_seconds: Some(0.0),
                ttft_seconds: Some(0.1),
                total_seconds: 1.1,
                prompt_tokens_per_second: Some(100.0),
                generation_tokens_per_second: Some(100.0),
            },
            peak_memory_bytes: Some(48 << 20),
            bytes_per_token: Some(10_000_000),
            bandwidth: Some(2e9),
        }
    }

    #[test]
    fn the_share_of_the_bandwidth_is_bytes_per_token_times_tokens_per_second() {
        // 10 MB per token, 100 tokens/s: 1 GB/s of 2.
        assert_eq!(sample().bandwidth_percent(), Some(50.0));
    }

    #[test]
    fn a_full_context_is_no_answer_as_long_as_asked_for() {
        let usage = Usage { prompt_tokens: 60, completion_tokens: 40, ..Usage::default() };
        let table = [
            (FinishReason::Stop, None, 40, "stop"),
            (FinishReason::Length, None, 40, "context full"),
            (FinishReason::Length, Some(50), 40, "context full"),
            (FinishReason::Length, Some(40), 40, "max tokens"),
            (FinishReason::Length, Some(40), 140, "max tokens"),
            (FinishReason::Aborted, None, 40, "interrupted"),
            (FinishReason::Error, None, 40, "failed"),
        ];
        for (finish, max_tokens, room, expected) in table {
            let end = End::of(finish, usage, max_tokens, room);
            assert_eq!(end.to_string(), expected, "{finish:?} {max_tokens:?} {room}");
        }
    }

    #[test]
    fn cached_tokens_are_told() {
        let mut stats = sample();
        stats.usage.cached_tokens = 5;
        assert!(stats.render().contains("10 tokens; 100.0 tokens/s (5 cached)\n"));
    }

    #[test]
    fn an_answer_without_tokens_has_no_rates() {
        let mut stats = sample();
        stats.usage.completion_tokens = 0;
        stats.timings = Timings { total_seconds: 0.5, ..Timings::default() };
        let json = serde_json::to_value(stats.timings()).expect("serializes");
        for field in ["ttft_s", "generation_s", "generation_tokens_per_s", "bandwidth_percent"] {
            assert!(json[field].is_null(), "{field} in {json}");
        }
        for text in [stats.render(), stats.render_line()] {
            assert!(!text.contains("NaN") && !text.contains("tokens/s"), "{text}");
        }
    }

    #[test]
    fn the_block_for_people_tells_everything() {
        let text = sample().render();
        for part in ["story", "raw mode", "seed 42", "max tokens", "48.0 MiB", "2.0 GB/s", "50 %"] {
            assert!(text.contains(part), "`{part}` is missing in\n{text}");
        }
    }

    #[test]
    fn a_token_reads_the_weights_and_the_context_before_it() {
        let usage = Usage { prompt_tokens: 100, completion_tokens: 50, ..Usage::default() };
        assert_eq!(bytes_per_token(1000, 2, usage), 1000 + 2 * 125);
    }
}
