//! The text form of a trace: one request per line.
//!
//! ```text
//! # at_ms prompt_tokens output_tokens [key=value]...
//! 0       120 40
//! 12.5    800 100 tenant=acme priority=-1 ttft_ms=500 tpot_ms=60
//! 980.25  300 20  prefix=1:256 prefix=17:30      # the first 256 tokens of text 1, then 30 of 17
//! ```
//!
//! | field | meaning | range |
//! |---|---|---|
//! | `at_ms` | arrival, from the start; never before the line above | 0 to 10¹², six decimals at most |
//! | `prompt_tokens`, `output_tokens` | lengths | 1 to 2²⁷ |
//! | `tenant` | the sender; `default` without it | 1 to 64 letters, digits, `-`, `_`, `.`; 256 names |
//! | `priority` | urgency | 32 bits, signed |
//! | `ttft_ms`, `tpot_ms` | latency targets | above 0, to 10¹², six decimals at most |
//! | `prefix` | beginning of the prompt; up to four, in order | `ID:TOKENS`, together the prompt at most |
//! | `session` | waits for the end of the request before of this session, and then thinks | `ID:THINK_MS` |
//!
//! A `#` begins a comment; empty lines are skipped. Times are decimal and exact to the nanosecond,
//! so a written trace is read back unchanged.

use super::{Prefix, Tenants, TraceRequest, Turn};
use pelton_base::{TenantId, limits};
use std::fmt::Write as _;
use std::time::Duration;

/// Nanoseconds of a millisecond.
const MS: u64 = 1_000_000;
/// Most milliseconds of any time: some thirty years.
const MOST_MS: u64 = 1_000_000_000_000;
const TIME: &str = "milliseconds from 0 to 1000000000000 with at most six decimals";
const TOKENS: &str = "a number of tokens from 1 to 134217728";

/// A wrong field of a line.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("`{field}` must be {expected}, got `{got}`")]
pub struct FieldError {
    /// The field.
    pub field: &'static str,
    /// The values that are allowed.
    pub expected: &'static str,
    /// The value found, of one line: cut to a printable length, control characters escaped.
    pub got: String,
}

impl FieldError {
    pub(super) fn new(field: &'static str, expected: &'static str, got: &str) -> Self {
        let mut shown = String::new();
        for c in got.trim_end().chars().take(40) {
            if c.is_control() { shown.extend(c.escape_default()) } else { shown.push(c) }
        }
        Self { field, expected, got: shown }
    }
}

/// Reads one line; `None` when it holds no request.
///
/// # Errors
///
/// Names the field that is wrong.
pub fn parse_line(line: &str, tenants: &mut Tenants) -> Result<Option<TraceRequest>, FieldError> {
    let text = line.split('#').next().unwrap_or_default();
    let mut words = text.split_ascii_whitespace();
    let Some(at) = words.next() else { return Ok(None) };
    let at_ns = time("at_ms", at)?;
    let n_prompt = tokens("prompt_tokens", words.next())?;
    let n_output = tokens("output_tokens", words.next())?;
    let mut request = TraceRequest::new(at_ns, n_prompt, n_output);
    let mut seen = [false; 5];
    for word in words {
        let pair = word.split_once('=');
        let (key, value) = pair.ok_or_else(|| FieldError::new("option", "key=value", word))?;
        let known = ["tenant", "priority", "ttft_ms", "tpot_ms", "session"];
        if let Some(idx) = known.iter().position(|known| *known == key)
            && std::mem::replace(&mut seen[idx], true)
        {
            return Err(FieldError::new(known[idx], "given once", word));
        }
        match key {
            "tenant" => request.tenant = tenant(value, tenants)?,
            "priority" => {
                let priority = value.parse::<i32>();
                let bad = |_| FieldError::new("priority", "a whole number of 32 bits", value);
                request.priority = priority.map_err(bad)?;
            }
            "ttft_ms" => request.slo.ttft = Some(target("ttft_ms", value)?),
            "tpot_ms" => request.slo.tpot = Some(target("tpot_ms", value)?),
            "prefix" => {
                let expected = "ID:TOKENS, at most four, together no longer than the prompt";
                let longer = prefix(value).and_then(|prefix| request.with_prefix(prefix));
                request = longer.ok_or_else(|| FieldError::new("prefix", expected, value))?;
            }
            "session" => {
                let expected = "ID:THINK_MS, a whole number and milliseconds";
                let bad = || FieldError::new("session", expected, value);
                request.turn = Some(turn(value).ok_or_else(bad)?);
            }
            _ => {
                let expected = "tenant, priority, ttft_ms, tpot_ms, prefix or session";
                return Err(FieldError::new("option", expected, key));
            }
        }
    }
    Ok(Some(request))
}

/// Writes one request as a line, newline included, behind what `line` holds.
pub fn write_line(request: &TraceRequest, tenants: &Tenants, line: &mut String) {
    let TraceRequest { at_ns, n_prompt, n_output, tenant, priority, slo, .. } = *request;
    write_time(at_ns, line);
    let mut put = |args: std::fmt::Arguments<'_>| {
        line.write_fmt(args).expect("invariant: strings take everything");
    };
    put(format_args!(" {n_prompt} {n_output}"));
    if tenant.0 != 0 {
        put(format_args!(" tenant={}", tenants.name(tenant)));
    }
    if priority != 0 {
        put(format_args!(" priority={priority}"));
    }
    for (key, target) in [("ttft_ms", slo.ttft), ("tpot_ms", slo.tpot)] {
        if let Some(target) = target {
            line.push_str(&format!(" {key}="));
            write_time(u64::try_from(target.as_nanos()).unwrap_or(u64::MAX), line);
        }
    }
    for Prefix { id, n_tokens } in request.prefixes.as_slice() {
        line.push_str(&format!(" prefix={id}:{n_tokens}"));
    }
    if let Some(Turn { session, think_ns }) = request.turn {
        line.push_str(&format!(" session={session}:"));
        write_time(think_ns, line);
    }
    line.push('\n');
}

/// Decimal milliseconds, in nanoseconds.
fn time(field: &'static str, text: &str) -> Result<u64, FieldError> {
    parse_time(text).ok_or_else(|| FieldError::new(field, TIME, text))
}

fn parse_time(text: &str) -> Option<u64> {
    let (whole, decimals) = text.split_once('.').unwrap_or((text, "0"));
    if !(1..=6).contains(&decimals.len()) {
        return None;
    }
    let digits = |text: &str| {
        // `parse` would take a sign.
        text.bytes().all(|b| b.is_ascii_digit()).then(|| text.parse::<u64>().ok()).flatten()
    };
    let whole = digits(whole).filter(|&ms| ms < MOST_MS)?;
    let fraction = digits(decimals)? * 10_u64.pow(6 - decimals.len() as u32);
    Some(whole * MS + fraction)
}

fn write_time(ns: u64, line: &mut String) {
    line.push_str(&(ns / MS).to_string());
    let fraction = ns % MS;
    if fraction > 0 {
        line.push_str(format!(".{fraction:06}").trim_end_matches('0'));
    }
}

fn target(field: &'static str, text: &str) -> Result<Duration, FieldError> {
    match time(field, text)? {
        0 => Err(FieldError::new(field, "above 0", text)),
        ns => Ok(Duration::from_nanos(ns)),
    }
}

fn tokens(field: &'static str, text: Option<&str>) -> Result<usize, FieldError> {
    let text = text.unwrap_or_default();
    let n = text.parse::<usize>().ok().filter(|n| (1..=limits::MODEL_CONTEXT).contains(n));
    n.ok_or_else(|| FieldError::new(field, TOKENS, text))
}

fn tenant(name: &str, tenants: &mut Tenants) -> Result<TenantId, FieldError> {
    let fits = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    if !(1..=64).contains(&name.len()) || !name.chars().all(fits) {
        let expected = "1 to 64 letters, digits, `-`, `_` or `.`";
        return Err(FieldError::new("tenant", expected, name));
    }
    tenants.number(name).ok_or_else(|| FieldError::new("tenant", "one of at most 256", name))
}

fn prefix(text: &str) -> Option<Prefix> {
    let (id, n_tokens) = text.split_once(':')?;
    let n_tokens = n_tokens.parse().ok().filter(|&n| n > 0)?;
    Some(Prefix { id: id.parse().ok()?, n_tokens })
}

fn turn(text: &str) -> Option<Turn> {
    let (session, think) = text.split_once(':')?;
    Some(Turn { session: session.parse().ok()?, think_ns: parse_time(think)? })
}

/// The first line of a trace that is written: what its columns are.
pub(super) const HEAD: &str = "# at_ms prompt_tokens output_tokens [tenant=NAME] [priority=N] \
    [ttft_ms=MS] [tpot_ms=MS] [prefix=ID:TOKENS]... [session=ID:THINK_MS]\n";

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Option<TraceRequest>, FieldError> {
        parse_line(line, &mut Tenants::default())
    }

    #[test]
    fn an_error_has_one_line_whatever_it_quotes() {
        let error = FieldError::new("line", "an object", "{\0\u{7}\nx\u{3ca}\r\n").to_string();
        assert_eq!(error, "`line` must be an object, got `{\\u{0}\\u{7}\\nx\u{3ca}`");
    }

    #[test]
    fn comments_and_empty_lines_hold_no_request() {
        for line in ["", "   \t ", "# 1 2 3", "  # x", "\r"] {
            assert_eq!(parse(line), Ok(None), "{line:?}");
        }
    }

    #[test]
    fn a_full_line_is_read_field_by_field() {
        let mut tenants = Tenants::default();
        let line = "12.5 800 100 tenant=acme priority=-1 ttft_ms=500 tpot_ms=60.25 \
                    prefix=7:256 prefix=9:30 session=4:1500.5 # why not";
        let request = parse_line(line, &mut tenants).expect("good").expect("a request");
        assert_eq!(request.at_ns, 12_500_000);
        assert_eq!((request.n_prompt, request.n_output, request.priority), (800, 100, -1));
        assert_eq!(tenants.name(request.tenant), "acme");
        assert_eq!(request.slo.ttft, Some(Duration::from_millis(500)));
        assert_eq!(request.slo.tpot, Some(Duration::from_micros(60_250)));
        assert_eq!(request.turn, Some(Turn { session: 4, think_ns: 1_500_500_000 }));
        let expected = [Prefix { id: 7, n_tokens: 256 }, Prefix { id: 9, n_tokens: 30 }];
        assert_eq!(request.prefixes.as_slice(), expected);
        let mut written = String::new();
        write_line(&request, &tenants, &mut written);
        assert_eq!(parse_line(&written, &mut tenants), Ok(Some(request)));
        let plain = parse("0.000001 1 1").expect("good").expect("a request");
        assert_eq!(plain, TraceRequest::new(1, 1, 1));
    }

    #[test]
    fn hostile_lines_are_refused_by_field() {
        let cases = [
            ("x 1 1", "at_ms"),
            ("-1 1 1", "at_ms"),
            ("+1 1 1", "at_ms"),
            ("1. 1 1", "at_ms"),
            (".5 1 1", "at_ms"),
            ("1.0000001 1 1", "at_ms"),
            ("1e3 1 1", "at_ms"),
            ("nan 1 1", "at_ms"),
            ("99999999999999999999999 1 1", "at_ms"),
            ("1000000000000 1 1", "at_ms"),
            ("0", "prompt_tokens"),
            ("0 0 1", "prompt_tokens"),
            ("0 134217729 1", "prompt_tokens"),
            ("0 1", "output_tokens"),
            ("0 1 -4", "output_tokens"),
            ("0 1 1 hello", "option"),
            ("0 1 1 colour=red", "option"),
            ("0 1 1 tenant=", "tenant"),
            ("0 1 1 tenant=a/b", "tenant"),
            ("0 1 1 tenant=a tenant=a", "tenant"),
            ("0 1 1 priority=1.5", "priority"),
            ("0 1 1 priority=99999999999", "priority"),
            ("0 1 1 ttft_ms=0", "ttft_ms"),
            ("0 1 1 tpot_ms=inf", "tpot_ms"),
            ("0 9 1 prefix=1", "prefix"),
            ("0 9 1 prefix=1:0", "prefix"),
            ("0 9 1 prefix=1:10", "prefix"),
            ("0 9 1 prefix=1:5 prefix=2:5", "prefix"),
            ("0 9 1 prefix=1:1 prefix=2:1 prefix=3:1 prefix=4:1 prefix=5:1", "prefix"),
            ("0 9 1 prefix=-1:1", "prefix"),
            ("0 9 1 session=1", "session"),
            ("0 9 1 session=x:1", "session"),
            ("0 9 1 session=1:-1", "session"),
            ("0 9 1 session=1:1 session=1:1", "session"),
            ("0 9 1 prefix=1:18446744073709551615", "prefix"),
        ];
        for (line, field) in cases {
            assert_eq!(parse(line).expect_err(line).field, field, "{line}");
        }
        let long = format!("0 1 1 {}", "x".repeat(10_000));
        assert!(parse(&long).expect_err("no option").got.len() <= 40);
    }
}
