//! `strftime_now`: the date as templates ask for it, in UTC.

use std::fmt::Write;
use std::time::{SystemTime, UNIX_EPOCH};

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const DAYS: [&str; 7] =
    ["Thursday", "Friday", "Saturday", "Sunday", "Monday", "Tuesday", "Wednesday"];

pub(super) fn now() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| i64::try_from(since.as_secs()).unwrap_or(0))
}

/// Formats a time as C's `strftime` does; a directive that is not known stays as it is.
pub(super) fn strftime(format: &str, unix_seconds: i64) -> String {
    let (days, seconds) = (unix_seconds.div_euclid(86_400), unix_seconds.rem_euclid(86_400));
    let (year, month, day) = civil(days);
    let (hour, minute, second) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    let hour12 = (hour + 11) % 12 + 1;
    let (month_name, day_name) = (MONTHS[month as usize - 1], DAYS[days.rem_euclid(7) as usize]);
    let day_of_year = days - days_from_civil(year, 1, 1) + 1;
    let mut out = String::new();
    let mut chars = format.chars();
    while let Some(c) = chars.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        let Some(directive) = chars.next() else {
            out.push('%');
            break;
        };
        let written = match directive {
            'Y' => write!(out, "{year:04}"),
            'y' => write!(out, "{:02}", year.rem_euclid(100)),
            'm' => write!(out, "{month:02}"),
            'd' => write!(out, "{day:02}"),
            'e' => write!(out, "{day:2}"),
            'H' => write!(out, "{hour:02}"),
            'I' => write!(out, "{hour12:02}"),
            'M' => write!(out, "{minute:02}"),
            'S' => write!(out, "{second:02}"),
            'j' => write!(out, "{day_of_year:03}"),
            'p' => write!(out, "{}", if hour < 12 { "AM" } else { "PM" }),
            'B' => write!(out, "{month_name}"),
            'b' | 'h' => write!(out, "{}", &month_name[..3]),
            'A' => write!(out, "{day_name}"),
            'a' => write!(out, "{}", &day_name[..3]),
            'F' => write!(out, "{year:04}-{month:02}-{day:02}"),
            'T' => write!(out, "{hour:02}:{minute:02}:{second:02}"),
            'Z' => write!(out, "UTC"),
            'z' => write!(out, "+0000"),
            '%' => write!(out, "%"),
            other => write!(out, "%{other}"),
        };
        written.expect("invariant: writing to a String does not fail");
    }
    out
}

/// Year, month and day of a day counted from 1970-01-01, in the Gregorian calendar.
///
/// Works in years that begin on March 1, so that the leap day comes last.
fn civil(days: i64) -> (i64, i64, i64) {
    let shifted = days + 719_468;
    let era = shifted.div_euclid(146_097);
    let day_of_era = shifted.rem_euclid(146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    (year_of_era + era * 400 + i64::from(month <= 2), month, day)
}

fn days_from_civil(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let year_of_era = year.rem_euclid(400);
    let shifted_month = (month + 9) % 12;
    let day_of_year = (153 * shifted_month + 2) / 5 + day - 1;
    era * 146_097 + year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year - 719_468
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_agree_with_the_calendar() {
        let f = "%Y-%m-%d %H:%M:%S %a %b %j %p %I";
        assert_eq!(strftime(f, 0), "1970-01-01 00:00:00 Thu Jan 001 AM 12");
        assert_eq!(strftime(f, 1_709_210_096), "2024-02-29 12:34:56 Thu Feb 060 PM 12");
        assert_eq!(strftime("%d %B %Y %A%%%q", 4_102_444_799), "31 December 2099 Thursday%%q");
        assert_eq!(strftime("%F", -1), "1969-12-31");
    }

    #[test]
    fn every_day_of_three_eras_follows_the_day_before_it() {
        let is_leap = |year: i64| year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
        let first = days_from_civil(1500, 1, 1);
        let (mut year, mut month, mut day) = (1500, 1, 1);
        for days in first..days_from_civil(2500, 1, 1) {
            assert_eq!(civil(days), (year, month, day));
            assert_eq!(days_from_civil(year, month, day), days);
            let last = match month {
                2 => 28 + i64::from(is_leap(year)),
                4 | 6 | 9 | 11 => 30,
                _ => 31,
            };
            day += 1;
            if day > last {
                (day, month) = (1, month + 1);
            }
            if month > 12 {
                (month, year) = (1, year + 1);
            }
        }
        // The same on the other side of the year 0.
        assert_eq!(civil(days_from_civil(-401, 12, 31)), (-401, 12, 31));
        assert_eq!(days_from_civil(-401, 12, 31) + 1, days_from_civil(-400, 1, 1));
    }

    #[test]
    fn every_directive_is_written_as_in_c() {
        // 2024-02-05 09:07:03.
        let morning = 1_707_124_023;
        for (directive, expected) in [
            ("%Y", "2024"),
            ("%y", "24"),
            ("%m", "02"),
            ("%d", "05"),
            ("%e", " 5"),
            ("%H", "09"),
            ("%I", "09"),
            ("%M", "07"),
            ("%S", "03"),
            ("%j", "036"),
            ("%p", "AM"),
            ("%B", "February"),
            ("%b", "Feb"),
            ("%h", "Feb"),
            ("%A", "Monday"),
            ("%a", "Mon"),
            ("%F", "2024-02-05"),
            ("%T", "09:07:03"),
            ("%Z", "UTC"),
            ("%z", "+0000"),
            ("%%", "%"),
            ("%Q", "%Q"),
            ("%", "%"),
            ("a%", "a%"),
            ("é", "é"),
        ] {
            assert_eq!(strftime(directive, morning), expected, "{directive}");
        }
        let hours = [(0, "12 AM"), (11, "11 AM"), (12, "12 PM"), (13, "01 PM"), (23, "11 PM")];
        for (hour, expected) in hours {
            assert_eq!(strftime("%I %p", hour * 3600), expected);
        }
        assert_eq!(strftime("%y", 0), "70");
    }

    #[test]
    fn the_clock_is_that_of_the_system() {
        let seconds =
            || SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_secs();
        let before = seconds() as i64;
        let read = now();
        assert!((before..=seconds() as i64).contains(&read), "{read} is not now");
    }
}
