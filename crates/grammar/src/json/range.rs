//! Numbers between bounds as regular expressions.
//!
//! A bounded number is written without an exponent; the expression says, digit by digit, how it may
//! still differ from the bound:
//!
//! ```text
//!   at least 375:   [4-9]dd | 3(7[5-9] | [8-9]d) | dddd..
//!   at most 0.25:   0 | 0.[0-1]d* | 0.2 | 0.2([0-4]d* | 50*)
//! ```
//!
//! Numbers have at most [`MOST_DIGITS`] digits before the point and as many behind it, and an
//! exponent of at most two, so that each is a finite f64 and no answer is an endless row of digits.
//! Bounded numbers have few digits behind the point: `6.8750000000000000001` is more than 6.875, and
//! is 6.875 once it is read.

use super::decimal::Decimal;

/// Digits before the point, and behind it.
pub(super) const MOST_DIGITS: usize = 40;

/// Bounds of numbers; a bound itself may be excluded.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(super) struct Bounds {
    pub least: Option<(Decimal, bool)>,
    pub most: Option<(Decimal, bool)>,
}

impl Bounds {
    /// Keeps the stricter lower bound; `open` excludes the bound itself.
    pub(super) fn at_least(&mut self, bound: Decimal, open: bool) {
        let is_stricter = match &self.least {
            None => true,
            Some((known, known_open)) => bound > *known || (bound == *known && open && !known_open),
        };
        if is_stricter {
            self.least = Some((bound, open));
        }
    }

    /// Keeps the stricter upper bound.
    pub(super) fn at_most(&mut self, bound: Decimal, open: bool) {
        let is_stricter = match &self.most {
            None => true,
            Some((known, known_open)) => bound < *known || (bound == *known && open && !known_open),
        };
        if is_stricter {
            self.most = Some((bound, open));
        }
    }

    pub(super) fn contains(&self, number: &Decimal) -> bool {
        let above = self
            .least
            .as_ref()
            .is_none_or(|(least, open)| if *open { number > least } else { number >= least });
        let below = self
            .most
            .as_ref()
            .is_none_or(|(most, open)| if *open { number < most } else { number <= most });
        above && below
    }

    /// The same integers with bounds that are integers and not excluded.
    pub(super) fn of_integers(&self) -> Self {
        let least = self.least.as_ref().map(|(bound, open)| {
            let ceil = bound.ceil();
            (if *open && ceil == *bound { ceil.plus_one() } else { ceil }, false)
        });
        let most = self.most.as_ref().map(|(bound, open)| {
            let floor = bound.floor();
            (if *open && floor == *bound { floor.minus_one() } else { floor }, false)
        });
        Self { least, most }
    }

    /// Whether no number is between them.
    pub(super) fn is_empty(&self) -> bool {
        match (&self.least, &self.most) {
            (Some((least, open_least)), Some((most, open_most))) => {
                least > most || (least == most && (*open_least || *open_most))
            }
            _ => false,
        }
    }
}

/// Integers within bounds, as expressions that all must match.
pub(super) fn integers(bounds: &Bounds) -> Vec<String> {
    let bounds = bounds.of_integers();
    let mut all = Vec::new();
    if let Some((least, _)) = &bounds.least {
        all.push(signed(least, true));
    }
    if let Some((most, _)) = &bounds.most {
        all.push(signed(&most.negated(), false));
    }
    if all.is_empty() {
        all.push(format!("(?:0|-?[1-9][0-9]{{0,{}}})", MOST_DIGITS - 1));
    }
    all
}

/// Integers `x >= bound`, or for `upward` false `-x >= bound`.
fn signed(bound: &Decimal, upward: bool) -> String {
    let (same, other) = if upward { ("", "-") } else { ("-", "") };
    let one = Decimal::new(false, "1", "");
    if !bound.negative && !bound.is_zero() {
        return format!("(?:{same}{})", at_least(bound));
    }
    // Zero has no sign.
    let all = at_least(&one);
    if bound.is_zero() {
        return format!("(?:0|{same}{all})");
    }
    let limited = at_most(&bound.magnitude());
    format!("(?:0|{same}{all}|{other}{limited})")
}

/// Positive integers of at least this value.
fn at_least(bound: &Decimal) -> String {
    let digits = bound.whole.as_str();
    let n_digits = digits.len();
    let same_length = digits_at_least(digits);
    if n_digits >= MOST_DIGITS {
        return same_length;
    }
    format!("(?:{same_length}|[1-9][0-9]{{{n_digits},{}}})", MOST_DIGITS - 1)
}

/// Positive integers of at most this value.
fn at_most(bound: &Decimal) -> String {
    let digits = bound.whole.as_str();
    let n_digits = digits.len();
    let same_length = positive_digits_at_most(digits);
    if n_digits == 1 {
        return same_length;
    }
    format!("(?:{same_length}|[1-9][0-9]{{0,{}}})", n_digits - 2)
}

/// Rows of as many digits that are not smaller.
fn digits_at_least(digits: &str) -> String {
    let Some(first) = digits.bytes().next() else { return String::new() };
    let rest = &digits[1..];
    let same = format!("{}{}", char::from(first), digits_at_least(rest));
    if first == b'9' {
        return same;
    }
    let above = format!("[{}-9][0-9]{{{}}}", char::from(first + 1), rest.len());
    format!("(?:{same}|{above})")
}

/// Rows of as many digits that are not larger.
fn digits_at_most(digits: &str) -> String {
    let Some(first) = digits.bytes().next() else { return String::new() };
    let rest = &digits[1..];
    let same = format!("{}{}", char::from(first), digits_at_most(rest));
    if first == b'0' {
        return same;
    }
    let below = format!("[0-{}][0-9]{{{}}}", char::from(first - 1), rest.len());
    format!("(?:{same}|{below})")
}

/// As [`digits_at_most`], without a zero at the beginning.
fn positive_digits_at_most(digits: &str) -> String {
    let Some(first) = digits.bytes().next() else { return String::new() };
    let rest = &digits[1..];
    let same = format!("{}{}", char::from(first), digits_at_most(rest));
    if first <= b'1' {
        return same;
    }
    let below = format!("[1-{}][0-9]{{{}}}", char::from(first - 1), rest.len());
    format!("(?:{same}|{below})")
}

/// Numbers within bounds, as expressions that all must match.
pub(super) fn numbers(bounds: &Bounds) -> Vec<String> {
    let mut all = Vec::new();
    if let Some((least, open)) = &bounds.least {
        all.push(signed_number(least, *open, true));
    }
    if let Some((most, open)) = &bounds.most {
        all.push(signed_number(&most.negated(), *open, false));
    }
    if all.is_empty() {
        all.push(any_number());
    }
    all
}

/// Any number, with or without an exponent.
pub(super) fn any_number() -> String {
    let digits = MOST_DIGITS - 1;
    format!(
        "-?(?:0|[1-9][0-9]{{0,{digits}}})(?:\\.[0-9]{{1,{MOST_DIGITS}}})?(?:[eE][+-]?[0-9]{{1,2}})?"
    )
}

fn any_magnitude() -> String {
    format!("(?:0|[1-9][0-9]{{0,{}}}){}", MOST_DIGITS - 1, any_fraction())
}

fn any_fraction() -> String {
    "(?:\\.[0-9]{1,6})?".to_owned()
}

/// Numbers with a part behind the point that is not zero.
pub(super) fn fractional_number() -> String {
    let whole = format!("(?:0|[1-9][0-9]{{0,{}}})", MOST_DIGITS - 1);
    format!("-?{whole}\\.[0-9]{{0,{}}}[1-9]", MOST_DIGITS - 1)
}

fn signed_number(bound: &Decimal, open: bool, upward: bool) -> String {
    let (same, other) = if upward { ("", "-") } else { ("-", "") };
    if !bound.negative && (open || !bound.is_zero()) {
        return format!("{same}{}", magnitude_at_least(bound, open));
    }
    let any = any_magnitude();
    // Both zeros are zero.
    let zero = "0(?:\\.0{1,10})?";
    if bound.is_zero() {
        return format!("(?:{same}{any}|{zero})");
    }
    let limited = magnitude_at_most(&bound.magnitude(), open);
    format!("(?:{same}{any}|{other}{limited})")
}

fn magnitude_at_least(bound: &Decimal, open: bool) -> String {
    let whole = if bound.whole.is_empty() { "0" } else { &bound.whole };
    let mut options = vec![format!("{whole}{}", fraction_at_least(&bound.fraction, open))];
    let above = Decimal::new(false, &bound.whole, "").plus_one();
    options.push(format!("{}{}", at_least(&above), any_fraction()));
    format!("(?:{})", options.join("|"))
}

fn magnitude_at_most(bound: &Decimal, open: bool) -> String {
    let mut options = Vec::new();
    let whole = if bound.whole.is_empty() { "0" } else { &bound.whole };
    if let Some(fraction) = fraction_at_most(&bound.fraction, open) {
        options.push(format!("{whole}{fraction}"));
    }
    if !bound.whole.is_empty() {
        options.push(format!("0{}", any_fraction()));
        let below = Decimal::new(false, &bound.whole, "").minus_one();
        if !below.is_zero() {
            options.push(format!("{}{}", at_most(&below), any_fraction()));
        }
    }
    format!("(?:{})", options.join("|"))
}

/// The point and the digits behind it, of at least this value.
fn fraction_at_least(digits: &str, open: bool) -> String {
    match (digits.is_empty(), open) {
        (true, false) => any_fraction(),
        (true, true) => "\\.[0-9]{0,4}[1-9][0-9]?".to_owned(),
        (false, _) => format!("\\.{}", tail_at_least(digits, open)),
    }
}

fn tail_at_least(digits: &str, open: bool) -> String {
    let Some(first) = digits.bytes().next() else {
        return if open { "[0-9]{0,4}[1-9][0-9]?".to_owned() } else { "[0-9]{0,6}".to_owned() };
    };
    let same = format!("{}{}", char::from(first), tail_at_least(&digits[1..], open));
    if first == b'9' {
        return same;
    }
    format!("(?:{same}|[{}-9][0-9]{{0,5}})", char::from(first + 1))
}

/// The point and the digits behind it, of at most this value; `None` when there are none.
fn fraction_at_most(digits: &str, open: bool) -> Option<String> {
    match (digits.is_empty(), open) {
        (true, true) => None,
        (true, false) => Some("(?:\\.0{1,10})?".to_owned()),
        (false, _) => Some(format!("(?:\\.{})?", tail_at_most(digits, open))),
    }
}

/// Digits of at most this value; `digits` is not empty and does not end with a zero.
fn tail_at_most(digits: &str, open: bool) -> String {
    let first = digits.as_bytes()[0];
    let rest = &digits[1..];
    let mut options = Vec::new();
    if first > b'0' {
        options.push(format!("[0-{}][0-9]{{0,5}}", char::from(first - 1)));
    }
    match (rest.is_empty(), open) {
        (true, true) => {}
        (true, false) => options.push(format!("{}0{{0,10}}", char::from(first))),
        (false, _) => {
            options.push(format!("{}(?:{})?", char::from(first), tail_at_most(rest, open)))
        }
    }
    format!("(?:{})", options.join("|"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use llguidance::derivre::{Regex, RegexAst, RegexBuilder};

    fn decimal(text: &str) -> Decimal {
        Decimal::of(&serde_json::from_str(text).expect(text)).expect(text)
    }

    fn compiled(all: Vec<String>) -> Regex {
        let mut builder = RegexBuilder::new();
        let parts = all.into_iter().map(RegexAst::Regex).collect();
        let expression = builder.mk(&RegexAst::And(parts)).expect("an expression");
        builder.into_regex(expression)
    }

    #[test]
    fn expressions_of_integer_ranges_match_what_lies_between() {
        let ends = [
            "-1000", "-999", "-101", "-100", "-19", "-10", "-9", "-1", "0", "1", "7", "10", "99",
            "105", "1000",
        ];
        let bounds = ends.iter().flat_map(|least| ends.iter().map(move |most| (least, most)));
        for (least, most) in bounds.filter(|(least, most)| decimal(least) <= decimal(most)) {
            let mut range = Bounds::default();
            range.at_least(decimal(least), false);
            range.at_most(decimal(most), false);
            let mut regex = compiled(integers(&range));
            for number in -1101..=1101_i64 {
                let expected = range.contains(&decimal(&number.to_string()));
                assert_eq!(
                    regex.is_match(&number.to_string()),
                    expected,
                    "{least}..{most}: {number}"
                );
            }
            assert!(!regex.is_match("-0") && !regex.is_match("01") && !regex.is_match(""));
        }
    }

    #[test]
    fn expressions_of_number_ranges_match_what_lies_between() {
        let ends =
            ["-12.5", "-1", "-0.25", "-0.1", "0", "0.05", "0.1", "0.99", "1", "1.25", "2", "10.01"];
        let mut samples: Vec<String> = Vec::new();
        for whole in ["0", "1", "2", "9", "10", "12", "13"] {
            samples.push(whole.to_owned());
            for fraction in [
                "0", "00", "01", "04", "05", "050", "06", "1", "10", "11", "2", "24", "25", "251",
                "5", "99", "990", "991",
            ] {
                samples.push(format!("{whole}.{fraction}"));
            }
        }
        let negative: Vec<String> = samples.iter().map(|sample| format!("-{sample}")).collect();
        samples.extend(negative);
        for (idx, least) in ends.iter().enumerate() {
            for (most, flags) in ends[idx..].iter().flat_map(|most| (0..4).map(move |f| (most, f)))
            {
                let mut range = Bounds::default();
                range.at_least(decimal(least), flags & 1 == 1);
                range.at_most(decimal(most), flags & 2 == 2);
                let mut regex = compiled(numbers(&range));
                for sample in &samples {
                    let expected = range.contains(&decimal(sample));
                    // Of negative zero, which is zero, not every spelling is allowed.
                    if expected && decimal(sample).is_zero() && sample.starts_with('-') {
                        continue;
                    }
                    assert_eq!(
                        regex.is_match(sample),
                        expected,
                        "{least}..{most} {flags}: {sample}"
                    );
                }
            }
        }
    }

    #[test]
    fn an_excluded_integer_bound_is_the_next_integer() {
        let mut range = Bounds::default();
        range.at_least(decimal("1.5"), true);
        range.at_most(decimal("4"), true);
        let range = range.of_integers();
        assert_eq!(range.least, Some((decimal("2"), false)));
        assert_eq!(range.most, Some((decimal("3"), false)));
    }
}
