//! Numbers of schemas, exactly as they are written.

use std::cmp::Ordering;

use serde_json::Number;

/// Digits of the largest numbers that are compared exactly; f64 needs 309.
const MAX_DIGITS: usize = 400;

/// A decimal number: `±whole.fraction`, without zeros at the outer ends.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Decimal {
    pub negative: bool,
    /// Digits before the point; empty for zero.
    pub whole: String,
    /// Digits after the point.
    pub fraction: String,
}

impl Decimal {
    #[cfg(test)]
    fn zero() -> Self {
        Self { negative: false, whole: String::new(), fraction: String::new() }
    }

    /// A number of JSON; `None` where it has more digits than are compared.
    pub(super) fn of(number: &Number) -> Option<Self> {
        let text = number.to_string();
        let (text, negative) = match text.strip_prefix('-') {
            Some(text) => (text, true),
            None => (text.as_str(), false),
        };
        let (mantissa, exponent) = match text.split_once(['e', 'E']) {
            Some((mantissa, exponent)) => (mantissa, exponent.parse::<i64>().ok()?),
            None => (text, 0),
        };
        let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
        let digits = format!("{whole}{fraction}");
        let point = whole.len() as i64 + exponent;
        if point.unsigned_abs() as usize > MAX_DIGITS || digits.len() > MAX_DIGITS {
            return None;
        }
        let (whole, fraction) = if point <= 0 {
            (String::new(), format!("{}{digits}", "0".repeat(point.unsigned_abs() as usize)))
        } else if point as usize >= digits.len() {
            let zeros = "0".repeat(point as usize - digits.len());
            (format!("{digits}{zeros}"), String::new())
        } else {
            let (whole, fraction) = digits.split_at(point as usize);
            (whole.to_owned(), fraction.to_owned())
        };
        Some(Self::new(negative, &whole, &fraction))
    }

    pub(super) fn new(negative: bool, whole: &str, fraction: &str) -> Self {
        let whole = whole.trim_start_matches('0').to_owned();
        let fraction = fraction.trim_end_matches('0').to_owned();
        let is_zero = whole.is_empty() && fraction.is_empty();
        Self { negative: negative && !is_zero, whole, fraction }
    }

    pub(super) fn is_zero(&self) -> bool {
        self.whole.is_empty() && self.fraction.is_empty()
    }

    pub(super) fn is_integer(&self) -> bool {
        self.fraction.is_empty()
    }

    /// The same without its sign.
    pub(super) fn magnitude(&self) -> Self {
        Self { negative: false, ..self.clone() }
    }

    fn cmp_magnitude(&self, other: &Self) -> Ordering {
        let by_length = self.whole.len().cmp(&other.whole.len());
        by_length
            .then_with(|| self.whole.cmp(&other.whole))
            .then_with(|| self.fraction.cmp(&other.fraction))
    }

    /// The smallest integer that is not less.
    pub(super) fn ceil(&self) -> Self {
        if self.is_integer() {
            return self.clone();
        }
        let whole = if self.negative { self.whole.clone() } else { successor(&self.whole) };
        Self::new(self.negative, &whole, "")
    }

    /// The largest integer that is not more.
    pub(super) fn floor(&self) -> Self {
        self.negated().ceil().negated()
    }

    pub(super) fn negated(&self) -> Self {
        Self { negative: !self.negative && !self.is_zero(), ..self.clone() }
    }

    /// This integer plus one.
    pub(super) fn plus_one(&self) -> Self {
        if self.negative {
            return Self::new(true, &predecessor(&self.whole), "");
        }
        Self::new(false, &successor(&self.whole), "")
    }

    /// This integer minus one.
    pub(super) fn minus_one(&self) -> Self {
        self.negated().plus_one().negated()
    }

    /// Whether it is `factor` times an integer; `None` when the numbers are too long to tell.
    pub(super) fn is_multiple_of(&self, factor: &Self) -> Option<bool> {
        let places = self.fraction.len().max(factor.fraction.len());
        let (number, factor) = (self.scaled(places)?, factor.scaled(places)?);
        Some(factor != 0 && number % factor == 0)
    }

    /// It times ten to the power of `places`, which is at least its number of places.
    pub(super) fn scaled(&self, places: usize) -> Option<i128> {
        let zeros = "0".repeat(places.checked_sub(self.fraction.len())?);
        let digits = format!("0{}{}{zeros}", self.whole, self.fraction);
        let number: i128 = digits.parse().ok()?;
        Some(if self.negative { -number } else { number })
    }
}

impl Ord for Decimal {
    fn cmp(&self, other: &Self) -> Ordering {
        match (self.negative, other.negative) {
            (false, true) => Ordering::Greater,
            (true, false) => Ordering::Less,
            (false, false) => self.cmp_magnitude(other),
            (true, true) => other.cmp_magnitude(self),
        }
    }
}

impl PartialOrd for Decimal {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

fn successor(digits: &str) -> String {
    let mut out: Vec<u8> = digits.bytes().collect();
    for digit in out.iter_mut().rev() {
        if *digit < b'9' {
            *digit += 1;
            return out.into_iter().map(char::from).collect();
        }
        *digit = b'0';
    }
    format!("1{}", "0".repeat(digits.len()))
}

/// One less than a positive number.
fn predecessor(digits: &str) -> String {
    let mut out: Vec<u8> = digits.bytes().collect();
    for digit in out.iter_mut().rev() {
        if *digit > b'0' {
            *digit -= 1;
            break;
        }
        *digit = b'9';
    }
    out.into_iter().map(char::from).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decimal(text: &str) -> Decimal {
        Decimal::of(&serde_json::from_str(text).expect(text)).expect(text)
    }

    #[test]
    fn numbers_keep_their_value_in_every_spelling() {
        assert_eq!(decimal("1.50"), decimal("15e-1"));
        assert_eq!(decimal("-0.0"), Decimal::zero());
        assert_eq!(decimal("1e3").whole, "1000");
        assert_eq!(decimal("-0.001").fraction, "001");
        assert_eq!(decimal("18446744073709551615").whole, "18446744073709551615");
    }

    #[test]
    fn numbers_are_ordered_by_value() {
        let ordered =
            ["-1e9", "-10", "-9.5", "-0.01", "0", "0.009", "0.1", "0.11", "2", "10", "1e9"];
        for pair in ordered.windows(2) {
            assert!(decimal(pair[0]) < decimal(pair[1]), "{pair:?}");
        }
    }

    #[test]
    fn integers_around_a_number_are_found() {
        let cases = [("1.5", "2", "1"), ("-1.5", "-1", "-2"), ("3", "3", "3"), ("-0.5", "0", "-1")];
        for (number, ceil, floor) in cases {
            assert_eq!(decimal(number).ceil(), decimal(ceil), "{number}");
            assert_eq!(decimal(number).floor(), decimal(floor), "{number}");
        }
        assert_eq!(decimal("-1").plus_one(), Decimal::zero());
        assert_eq!(decimal("0").minus_one(), decimal("-1"));
        assert_eq!(decimal("99").plus_one(), decimal("100"));
        assert_eq!(decimal("-100").plus_one(), decimal("-99"));
    }

    #[test]
    fn multiples_are_decimal_not_binary() {
        assert_eq!(decimal("19.99").is_multiple_of(&decimal("0.01")), Some(true));
        assert_eq!(decimal("0.3").is_multiple_of(&decimal("0.1")), Some(true));
        assert_eq!(decimal("0.35").is_multiple_of(&decimal("0.1")), Some(false));
    }
}
