//! Properties of any text and any format.

#[allow(dead_code, reason = "shared by several tests")]
mod common;

use common::{in_pieces, names, tools, transcripts};
use pelton_parse::{
    Answer, REASONING_FORMATS, Reader, ReaderOptions, TOOL_FORMATS, ToolFormat, Trust, read,
};
use proptest::prelude::*;

/// Texts made of the marks of formats and of what stands between them.
fn scrambled() -> impl Strategy<Value = String> {
    let mut words: Vec<String> = vec![
        "{",
        "}",
        "[",
        "]",
        "(",
        ")",
        "\"",
        "'",
        ",",
        ":",
        "=",
        "\\",
        "\n",
        " ",
        "<",
        "é",
        "0",
        "1.5",
        "{\"name\": \"get_weather\", \"arguments\": ",
        "{\"city\": \"Oslo\"}",
        "get_weather",
        "ping",
        "functions.ping:0",
        "null",
        "True",
        "[ping()]",
        "<function=",
        "<parameter=city>",
        "</parameter>",
        "</function>",
        ">",
        "to=functions.ping",
        "functools[",
        "text",
    ]
    .into_iter()
    .map(str::to_owned)
    .collect();
    for format in TOOL_FORMATS {
        words.extend(format.control_tokens().iter().map(|&token| token.to_owned()));
    }
    for format in REASONING_FORMATS {
        words.extend(format.opens().iter().chain(format.closes()).map(|&mark| mark.to_owned()));
    }
    prop::collection::vec(prop::sample::select(words), 0..24).prop_map(|words| words.concat())
}

/// Beginnings of transcripts with something else after them.
fn spliced() -> impl Strategy<Value = String> {
    let raw = || {
        let all: Vec<String> =
            names().iter().flat_map(|name| transcripts(name)).map(|t| t.raw).collect();
        (prop::sample::select(all), any::<prop::sample::Index>()).prop_map(|(raw, at)| {
            let places: Vec<usize> = raw.char_indices().map(|(at, _)| at).collect();
            let at = if places.is_empty() { 0 } else { places[at.index(places.len())] };
            (raw[..at].to_owned(), raw[at..].to_owned())
        })
    };
    (raw(), raw()).prop_map(|((first, _), (_, second))| first + &second)
}

fn formats() -> impl Strategy<Value = &'static dyn ToolFormat> {
    (0..TOOL_FORMATS.len()).prop_map(|at| TOOL_FORMATS[at])
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn the_pieces_of_an_answer_are_the_answer(
        text in prop_oneof![scrambled(), spliced()],
        format in formats(),
        reasoning in prop::option::of(0..REASONING_FORMATS.len()),
        starts_inside: bool,
        knows_tools: bool,
        is_enforced: bool,
        one_in in 1..6_u64,
        seed: u64,
    ) {
        let options = || ReaderOptions {
            reasoning: reasoning.map(|at| &REASONING_FORMATS[at]),
            starts_inside,
            tools: Some((format, if knows_tools { tools() } else { Vec::new() })),
            trust: if is_enforced { Trust::Enforced } else { Trust::Checked },
        };
        let whole = read(options(), &text);
        let mut random = seed;
        let pieces = text.split_inclusive(|_| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (random >> 33).is_multiple_of(one_in)
        });
        prop_assert_eq!(in_pieces(options(), pieces), whole);
    }

    /// A complete call has arguments that are a JSON object, and the name of a tool.
    #[test]
    fn a_checked_call_is_sound(text in prop_oneof![scrambled(), spliced()], format in formats()) {
        let options = ReaderOptions {
            tools: Some((format, tools())),
            ..ReaderOptions::default()
        };
        let answer = read(options, &text);
        let n_complete = answer.calls.len() - usize::from(answer.cut);
        for call in &answer.calls[..n_complete] {
            let arguments: Result<serde_json::Value, _> = serde_json::from_str(&call.arguments);
            // Halves of a pair are JSON that Rust's strings cannot hold.
            let is_half = call.arguments.contains("\\ud");
            prop_assert!(is_half || arguments.is_ok_and(|a| a.is_object()), "{:?}", call);
            prop_assert!(tools().iter().any(|tool| tool.name == call.name));
        }
    }

    /// Text without marks is content as it stands.
    #[test]
    fn plain_text_stays_as_it_is(text in "[a-zé .,\n]{0,60}", format in formats()) {
        let options = ReaderOptions {
            tools: Some((format, tools())),
            ..ReaderOptions::default()
        };
        prop_assert_eq!(read(options, &text), Answer { content: text, ..Answer::default() });
    }
}

/// Blanks after the arguments of a call are nothing before the end of the message, and belong to
/// the text where some follows.
#[test]
fn blanks_after_a_call_of_harmony_stay_where_text_follows() {
    let format = *TOOL_FORMATS.iter().find(|format| format.name() == "openai").expect("openai");
    let options = || ReaderOptions { tools: Some((format, tools())), ..ReaderOptions::default() };
    let call = "<|channel|>commentary to=functions.ping <|message|>{}";
    for (rest, content) in [
        ("", ""),
        (" ", ""),
        (" <|call|>", ""),
        (" How can I", " How can I"),
        (" How  can <|call|>", " How  can "),
        (" \n <|ca", " \n <|ca"),
    ] {
        let text = format!("{call}{rest}");
        let answer = read(options(), &text);
        assert_eq!((answer.content.as_str(), answer.calls.len()), (content, 1), "{rest:?}");
        assert_eq!(in_pieces(options(), text.split_inclusive(|_| true)), answer, "{rest:?}");
    }
}

/// Pieces of a call come while the call is written, where its form is enforced.
#[test]
fn enforced_arguments_come_as_they_are_written() {
    for name in ["hermes", "qwen3_coder", "pythonic", "openai", "mistral_args"] {
        let transcript = transcripts(name)
            .into_iter()
            .filter(|transcript| transcript.calls.len() == 1 && !transcript.cut)
            .max_by_key(|transcript| transcript.raw.len())
            .expect("a transcript");
        let mut reader = Reader::new(transcript.options(Trust::Enforced));
        let letters = transcript.raw.split_inclusive(|_| true);
        let n_pieces = letters.map(|letter| reader.push(letter).len()).sum::<usize>();
        assert!(n_pieces > 20, "{name}: {n_pieces} pieces of {}", transcript.raw);
    }
}
