//! Formats of strings, as regular expressions.
//!
//! A format is enforced as its RFC defines it, or more strictly where an expression cannot know
//! (leap seconds) or validators disagree (host names of one label).

use super::decimal::Decimal;
use super::pattern::Pattern;
use super::raw::{Raw, Types};

const YEAR_MONTH_DAY: &str = concat!(
    "(?:",
    "[0-9]{3}[1-9]|[0-9]{2}[1-9]0|[0-9][1-9]00|[1-9]000)-",
    "(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])",
    "|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)",
    "|02-(?:0[1-9]|1[0-9]|2[0-8]))",
    // The 29th of February, in years that four divides and, at the end of a century, 400 divides.
    "|(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])",
    "|(?:0[48]|[2468][048]|[13579][26])00)-02-29",
);
const TIME: &str = concat!(
    "(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:[.][0-9]{1,9})?",
    "(?:[zZ]|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])",
);
const DURATION: &str = concat!(
    "P(?:[0-9]{1,9}W|",
    "(?:[0-9]{1,9}Y(?:[0-9]{1,9}M(?:[0-9]{1,9}D)?)?|[0-9]{1,9}M(?:[0-9]{1,9}D)?|[0-9]{1,9}D)",
    "(?:T(?:[0-9]{1,9}H(?:[0-9]{1,9}M(?:[0-9]{1,9}S)?)?|[0-9]{1,9}M(?:[0-9]{1,9}S)?|[0-9]{1,9}S))?|",
    "T(?:[0-9]{1,9}H(?:[0-9]{1,9}M(?:[0-9]{1,9}S)?)?|[0-9]{1,9}M(?:[0-9]{1,9}S)?|[0-9]{1,9}S))",
);
const LABEL: &str = "[A-Za-z0-9](?:[A-Za-z0-9-]{0,58}[A-Za-z0-9])?";
const ATOM: &str = "[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]";
const BYTE: &str = "(?:25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])";
const UUID: &str = "[0-9A-Fa-f]{8}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{12}";
/// Characters of a path of RFC 3986, percent-encoded ones included.
const PCHAR: &str = "(?:[A-Za-z0-9._~!$&'()*+,;=:@-]|%[0-9A-Fa-f]{2})";
const REG_NAME: &str = "(?:[A-Za-z0-9._~!$&'()*+,;=-]|%[0-9A-Fa-f]{2})";
const BASE64: &str = "(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?";
const POINTER: &str = "(?:/(?:[^~/]|~[01])*)*";

/// Formats that say nothing that a grammar could enforce: hints for forms, and widths of numbers
/// that JSON does not have.
const HINTS: &[&str] =
    &["password", "binary", "float", "double", "decimal", "textarea", "markdown", "html"];

/// Adds the restriction of a format to a schema.
///
/// # Errors
///
/// When the format is not known.
pub(super) fn apply(raw: &mut Raw, format: &str) -> Result<(), String> {
    if HINTS.contains(&format) {
        return Ok(());
    }
    if let Some((least, most)) = integer_width(format) {
        // It speaks about numbers only, but the bounds do so, too.
        raw.bounds.at_least(least, false);
        raw.bounds.at_most(most, false);
        return Ok(());
    }
    // Formats of strings do not concern other values.
    if raw.types.is_some_and(|types| !types.has(Types::STRING)) {
        return Ok(());
    }
    let Some(source) = expression(format) else {
        return Err(format!("the format {format:?} is not supported"));
    };
    raw.patterns.push(Pattern::searched(&format!("^(?:{source})$"))?);
    Ok(())
}

fn integer_width(format: &str) -> Option<(Decimal, Decimal)> {
    let (least, most) = match format {
        "int32" => (i64::from(i32::MIN), i64::from(i32::MAX)),
        "int64" => (i64::MIN, i64::MAX),
        "uint32" => (0, i64::from(u32::MAX)),
        _ => return None,
    };
    Some((Decimal::of(&least.into())?, Decimal::of(&most.into())?))
}

fn expression(format: &str) -> Option<String> {
    Some(match format {
        "date" => YEAR_MONTH_DAY.to_owned(),
        "time" => TIME.to_owned(),
        "date-time" => format!("(?:{YEAR_MONTH_DAY})[tT]{TIME}"),
        "duration" => DURATION.to_owned(),
        "uuid" => UUID.to_owned(),
        "ipv4" => format!("(?:{BYTE}[.]){{3}}{BYTE}"),
        "ipv6" => ipv6(),
        "hostname" => format!("{LABEL}(?:[.]{LABEL}){{0,3}}"),
        "email" => {
            format!("{ATOM}{{1,20}}(?:[.]{ATOM}{{1,13}}){{0,3}}@{LABEL}(?:[.]{LABEL}){{1,3}}")
        }
        "uri" => format!("[A-Za-z][A-Za-z0-9+.-]*:{}", hierarchy()),
        "uri-reference" => {
            format!("[A-Za-z][A-Za-z0-9+.-]*:{}|{}", hierarchy(), relative())
        }
        "json-pointer" => POINTER.to_owned(),
        "relative-json-pointer" => format!("(?:0|[1-9][0-9]{{0,9}})(?:#|{POINTER})"),
        "byte" | "base64" => BASE64.to_owned(),
        "color" => "#[0-9A-Fa-f]{6}".to_owned(),
        _ => return None,
    })
}

/// Everything of a URI after its scheme.
fn hierarchy() -> String {
    let path = format!("(?:/{PCHAR}*)*");
    let authority = format!("//(?:{REG_NAME}+@)?{REG_NAME}+(?::[0-9]{{1,4}})?{path}");
    let rooted = format!("/(?:{PCHAR}+{path})?");
    let rootless = format!("{PCHAR}+{path}");
    let more = format!("(?:{PCHAR}|[/?])*");
    format!("(?:{authority}|{rooted}|{rootless})(?:[?]{more})?(?:#{more})?")
}

/// A reference without a scheme.
fn relative() -> String {
    let path = format!("(?:/{PCHAR}*)*");
    let rooted = format!("/(?:{PCHAR}+{path})?");
    let rootless = format!("{REG_NAME}+{path}");
    let more = format!("(?:{PCHAR}|[/?])*");
    format!("(?:{rooted}|{rootless})?(?:[?]{more})?(?:#{more})?")
}

/// Addresses of RFC 4291, section 2.2, without a part in decimal.
fn ipv6() -> String {
    let group = "[0-9A-Fa-f]{1,4}";
    let mut options = vec![format!("(?:{group}:){{7}}{group}")];
    for before in 0..=7_usize {
        let head = match before {
            0 => ":".to_owned(),
            n => format!("(?:{group}:){{{n}}}"),
        };
        let tail = match 7 - before {
            0 => String::new(),
            n => format!("(?:{group}(?::{group}){{0,{}}})?", n - 1),
        };
        options.push(format!("{head}:{tail}"));
    }
    options.join("|")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_match_their_texts_and_no_others() {
        let cases = [
            ("date", "2024-02-29", true),
            ("date", "2023-02-29", false),
            ("date", "1900-02-29", false),
            ("date", "2000-02-29", true),
            ("date", "0000-01-01", false),
            ("date", "2024-04-31", false),
            ("date-time", "2024-12-31T23:59:59Z", true),
            ("date-time", "2024-12-31", false),
            ("time", "23:59:59.5+01:00", true),
            ("time", "24:00:00Z", false),
            ("duration", "P1Y2M3DT4H5M6S", true),
            ("duration", "P", false),
            ("uuid", "123e4567-e89b-12d3-a456-426614174000", true),
            ("ipv4", "192.168.0.1", true),
            ("ipv4", "256.1.1.1", false),
            ("ipv4", "01.1.1.1", false),
            ("ipv6", "::1", true),
            ("ipv6", "::", true),
            ("ipv6", "1:2:3:4:5:6:7:8", true),
            ("ipv6", "1:2:3:4:5:6:7::", true),
            ("ipv6", "1::3:4:5:6:7:8", true),
            ("ipv6", "1:2:3:4:5:6:7:8:9", false),
            ("ipv6", "1::2::3", false),
            ("hostname", "a.example.com", true),
            ("hostname", "-a", false),
            ("email", "a.b@example.com", true),
            ("email", "a@", false),
            ("uri", "https://example.com/a?b=c#d", true),
            ("uri", "mailto:a@b.c", true),
            ("uri", "no scheme", false),
            ("json-pointer", "/a~1b/0", true),
            ("json-pointer", "a", false),
        ];
        for (format, text, expected) in cases {
            let mut raw = Raw::default();
            apply(&mut raw, format).expect(format);
            assert_eq!(raw.patterns[0].matches(text), Some(expected), "{format}: {text}");
        }
    }

    #[test]
    fn an_unknown_format_is_refused_unless_no_string_is_meant() {
        let mut raw = Raw::default();
        assert!(apply(&mut raw, "iban").is_err());
        raw.types = Some(Types::INTEGER);
        assert!(apply(&mut raw, "iban").is_ok());
        assert!(apply(&mut raw, "int32").is_ok());
        assert!(raw.bounds.most.is_some());
    }
}
