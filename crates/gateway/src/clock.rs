//! Time as the rules see it: given, never read.
//!
//! Minutes are measured by a clock that only goes forward. Days and months are those of UTC, by the
//! clock on the wall, which may jump. Usage belongs to the day on which a request began, so a jump
//! to another day opens the quota of that day and takes nothing from it twice.

use std::fmt;
use std::ops::RangeInclusive;
use std::time::Duration;

const DAY_SECONDS: u64 = 86_400;
/// The last second of the year 9999.
const LAST_SECOND: u64 = 253_402_300_799;

/// A moment on both clocks.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Now {
    /// Time since the process began, by a clock that never goes back.
    pub elapsed: Duration,
    /// Seconds since 1970 by the clock on the wall, which may jump.
    pub unix_seconds: u64,
}

impl Now {
    /// The day in UTC.
    pub fn day(self) -> Day {
        Day::of(self.unix_seconds)
    }
}

/// A day in UTC, as days since 1970-01-01.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Day(pub u32);

impl Day {
    /// The day of a second since 1970.
    pub fn of(unix_seconds: u64) -> Self {
        Self((unix_seconds.min(LAST_SECOND) / DAY_SECONDS) as u32)
    }

    /// Reads `2026-11-22`; `None` for any other form, and for days that do not exist.
    pub fn parse(text: &str) -> Option<Self> {
        let bytes = text.as_bytes();
        let is_shaped = bytes.len() == 10 && bytes[4] == b'-' && bytes[7] == b'-';
        let number = |range: std::ops::Range<usize>| {
            let digits = text.get(range)?;
            digits.bytes().all(|b| b.is_ascii_digit()).then(|| digits.parse::<u32>().ok())?
        };
        let (year, month, day) = (number(0..4)?, number(5..7)?, number(8..10)?);
        let found = Self::from_date(year, month, day);
        (is_shaped && year >= 1970 && found.date() == (year, month, day)).then_some(found)
    }

    /// Every day of its month.
    pub fn month(self) -> RangeInclusive<Self> {
        let (year, month, _) = self.date();
        let next = if month == 12 { (year + 1, 1) } else { (year, month + 1) };
        Self::from_date(year, month, 1)..=Self(Self::from_date(next.0, next.1, 1).0 - 1)
    }

    /// Seconds since 1970 at its start.
    pub fn start(self) -> u64 {
        u64::from(self.0) * DAY_SECONDS
    }

    /// The date in the calendar: year, month from 1, day from 1.
    fn date(self) -> (u32, u32, u32) {
        // Days are counted from the first of March of the year 0, so that the leap day is the last
        // of its year; 400 years have 146,097 days.
        let days = self.0 + 719_468;
        let (era, of_era) = (days / 146_097, days % 146_097);
        let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
        let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
        let month_from_march = (5 * of_year + 2) / 153;
        let day = of_year - (153 * month_from_march + 2) / 5 + 1;
        let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
        (era * 400 + year_of_era + u32::from(month <= 2), month, day)
    }

    /// The inverse of [`date`](Self::date); days outside of a month run over into the next.
    fn from_date(year: u32, month: u32, day: u32) -> Self {
        let year = year - u32::from(month <= 2);
        let (era, year_of_era) = (year / 400, year % 400);
        let month_from_march = (month + 9) % 12;
        let of_year = (153 * month_from_march + 2) / 5 + day.saturating_sub(1);
        let of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + of_year;
        Self((era * 146_097 + of_era).saturating_sub(719_468))
    }
}

impl fmt::Display for Day {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (year, month, day) = self.date();
        write!(f, "{year:04}-{month:02}-{day:02}")
    }
}

impl serde::Serialize for Day {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// Seconds since 1970 as `2026-11-22T19:20:11Z`.
pub fn date_time(unix_seconds: u64) -> String {
    let seconds = unix_seconds.min(LAST_SECOND);
    let of_day = seconds % DAY_SECONDS;
    let (hour, minute, second) = (of_day / 3600, of_day / 60 % 60, of_day % 60);
    format!("{}T{hour:02}:{minute:02}:{second:02}Z", Day::of(seconds))
}

/// Reads `2026-11-22T19:20:11Z`, or `2026-11-22` for its first second.
pub fn parse_date_time(text: &str) -> Option<u64> {
    let Some((day, time)) = text.split_once('T') else { return Day::parse(text).map(Day::start) };
    let time = time.strip_suffix('Z').filter(|time| time.len() == 8)?;
    let mut parts = time.split(':').map(|part| {
        let is_number = part.len() == 2 && part.bytes().all(|b| b.is_ascii_digit());
        is_number.then(|| part.parse::<u64>().ok()).flatten()
    });
    let (hour, minute, second) = (parts.next()??, parts.next()??, parts.next()??);
    let is_time = parts.next().is_none() && hour < 24 && minute < 60 && second < 60;
    is_time.then_some(Day::parse(day)?.start() + hour * 3600 + minute * 60 + second)
}

/// Reads a span such as `90s`, `45m`, `12h`, `30d` or `2w`; at most a hundred years, not zero.
pub fn parse_span(text: &str) -> Option<Duration> {
    let unit = match text.chars().last()? {
        's' => 1,
        'm' => 60,
        'h' => 3600,
        'd' => DAY_SECONDS,
        'w' => 7 * DAY_SECONDS,
        _ => return None,
    };
    let digits = &text[..text.len() - 1];
    let is_number = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
    let seconds = is_number.then(|| digits.parse::<u64>().ok()?.checked_mul(unit)).flatten()?;
    (1..=36_525 * DAY_SECONDS).contains(&seconds).then(|| Duration::from_secs(seconds))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_and_dates_are_inverse_over_four_centuries() {
        let mut day = Day::parse("1970-01-01").expect("the first");
        assert_eq!(day, Day(0));
        for _ in 0..150_000 {
            assert_eq!(Day::parse(&day.to_string()), Some(day));
            day = Day(day.0 + 1);
        }
        for (text, number) in
            [("2000-02-29", 11_016), ("2026-11-22", 20_779), ("2100-03-01", 47_541)]
        {
            assert_eq!(Day::parse(text), Some(Day(number)), "{text}");
        }
        for bad in
            ["2026-02-29", "2026-13-01", "2026-1-01", "26-01-01", "1969-12-31", "2026-00-10", ""]
        {
            assert_eq!(Day::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_month_has_all_its_days() {
        for (day, first, last) in [
            ("2026-11-22", "2026-11-01", "2026-11-30"),
            ("2028-02-01", "2028-02-01", "2028-02-29"),
            ("2026-12-31", "2026-12-01", "2026-12-31"),
        ] {
            let month = Day::parse(day).expect(day).month();
            assert_eq!(
                (month.start().to_string(), month.end().to_string()),
                (first.into(), last.into())
            );
        }
    }

    #[test]
    fn times_are_read_as_they_are_written() {
        for seconds in [0, 1_795_000_000, LAST_SECOND] {
            assert_eq!(parse_date_time(&date_time(seconds)), Some(seconds));
        }
        assert_eq!(date_time(u64::MAX), "9999-12-31T23:59:59Z");
        assert_eq!(parse_date_time("1970-01-02"), Some(86_400));
        for bad in
            ["1970-01-02T00:00:00", "1970-01-02T24:00:00Z", "1970-01-02T0:00:00Z", "now", "T"]
        {
            assert_eq!(parse_date_time(bad), None, "{bad}");
        }
        assert_eq!(parse_span("30d"), Some(Duration::from_secs(2_592_000)));
        for bad in ["", "30", "d", "0s", "-1d", "1y", "99999999999999999999d", "36526d", "1é"] {
            assert_eq!(parse_span(bad), None, "{bad}");
        }
    }
}
