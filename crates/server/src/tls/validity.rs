//! The time for which a certificate is valid, read from its DER.
//!
//! ```text
//!   Certificate ::= SEQUENCE {
//!       tbsCertificate ::= SEQUENCE {
//!           version [0] OPTIONAL, serialNumber, signature, issuer,
//!           validity ::= SEQUENCE { notBefore, notAfter }, ..
//! ```
//!
//! rustls checks the dates of other people's certificates only, and only together with their chains.

use pelton_gateway::parse_date_time;

/// Tag of a sequence.
const SEQUENCE: u8 = 0x30;
/// Tag of the version, which the oldest certificates lack.
const VERSION: u8 = 0xa0;
/// Tag of a time with two digits for its year.
const UTC_TIME: u8 = 0x17;
/// Tag of a time with four digits for its year.
const GENERALIZED_TIME: u8 = 0x18;

/// First and last second in which a certificate is valid, in seconds since 1970.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Validity {
    pub(super) not_before: u64,
    pub(super) not_after: u64,
}

impl Validity {
    /// Reads a certificate in DER; `None` where it is none.
    pub(super) fn of(certificate: &[u8]) -> Option<Self> {
        let mut certificate = Der(Der(certificate).expect(SEQUENCE)?);
        let mut to_be_signed = Der(certificate.expect(SEQUENCE)?);
        let (first, _) = to_be_signed.next()?;
        if first == VERSION {
            // The serial number, which else was the first.
            to_be_signed.next()?;
        }
        let (_signature, _issuer) = (to_be_signed.next()?, to_be_signed.next()?);
        let mut validity = Der(to_be_signed.expect(SEQUENCE)?);
        Some(Self { not_before: validity.time()?, not_after: validity.time()? })
    }
}

/// The rest of a run of elements.
struct Der<'a>(&'a [u8]);

impl<'a> Der<'a> {
    /// Tag and content of the next element.
    fn next(&mut self) -> Option<(u8, &'a [u8])> {
        let (&tag, rest) = self.0.split_first()?;
        let (&length, rest) = rest.split_first()?;
        let (length, rest) = match length {
            0..=0x7f => (usize::from(length), rest),
            // The length itself has so many bytes.
            0x81..=0x84 => {
                let (digits, rest) = rest.split_at_checked(usize::from(length & 0x7f))?;
                (digits.iter().fold(0, |n, &digit| (n << 8) | usize::from(digit)), rest)
            }
            _ => return None,
        };
        let (content, rest) = rest.split_at_checked(length)?;
        self.0 = rest;
        Some((tag, content))
    }

    /// Content of the next element, which must have this tag.
    fn expect(&mut self, tag: u8) -> Option<&'a [u8]> {
        self.next().filter(|(found, _)| *found == tag).map(|(_, content)| content)
    }

    /// The next element as a time in seconds since 1970; earlier times are 1970.
    fn time(&mut self) -> Option<u64> {
        let (tag, content) = self.next()?;
        let text = std::str::from_utf8(content).ok().filter(|text| text.is_ascii())?;
        let (year, rest) = match tag {
            UTC_TIME => {
                let (year, rest) = text.split_at_checked(2)?;
                // RFC 5280, section 4.1.2.5.1.
                (if year < "50" { format!("20{year}") } else { format!("19{year}") }, rest)
            }
            GENERALIZED_TIME => {
                let (year, rest) = text.split_at_checked(4)?;
                (year.to_owned(), rest)
            }
            _ => return None,
        };
        let digits = rest.strip_suffix('Z').filter(|digits| digits.len() == 10)?;
        let part = |at: usize| &digits[at..at + 2];
        let date = format!("{year}-{}-{}T{}:{}:{}Z", part(0), part(2), part(4), part(6), part(8));
        if year.bytes().all(|digit| digit.is_ascii_digit()) && year.as_str() < "1970" {
            return Some(0);
        }
        parse_date_time(&date)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An element of DER.
    fn element(tag: u8, content: &[u8]) -> Vec<u8> {
        let length = content.len();
        let head = match length {
            0..=0x7f => vec![tag, length as u8],
            0x80..=0xff => vec![tag, 0x81, length as u8],
            _ => vec![tag, 0x82, (length >> 8) as u8, length as u8],
        };
        [&head, content].concat()
    }

    /// The part of a certificate up to its dates.
    fn certificate(has_version: bool, times: &[(u8, &str)]) -> Vec<u8> {
        let version = if has_version { element(VERSION, &[2, 1, 2]) } else { Vec::new() };
        let times: Vec<u8> =
            times.iter().flat_map(|(tag, text)| element(*tag, text.as_bytes())).collect();
        let parts = [
            version,
            element(2, &[7]),
            element(SEQUENCE, &[]),
            element(SEQUENCE, &[0; 200]),
            element(SEQUENCE, &times),
            element(SEQUENCE, &[0; 300]),
        ];
        element(SEQUENCE, &element(SEQUENCE, &parts.concat()))
    }

    #[test]
    fn both_forms_of_times_are_read() {
        for (times, expected) in [
            (
                [(UTC_TIME, "261122192011Z"), (UTC_TIME, "491231235959Z")],
                (1_795_375_211, 2_524_607_999),
            ),
            (
                [(UTC_TIME, "500101000000Z"), (GENERALIZED_TIME, "20500101000000Z")],
                (0, 2_524_608_000),
            ),
            (
                [(UTC_TIME, "700101000001Z"), (GENERALIZED_TIME, "99991231235959Z")],
                (1, 253_402_300_799),
            ),
        ] {
            for has_version in [true, false] {
                let found = Validity::of(&certificate(has_version, &times)).expect("dates");
                assert_eq!((found.not_before, found.not_after), expected, "{times:?}");
            }
        }
    }

    #[test]
    fn what_is_no_certificate_has_no_dates() {
        let good = (UTC_TIME, "261122192011Z");
        for bad in [
            (UTC_TIME, "261122192011"),
            (UTC_TIME, "261322192011Z"),
            (UTC_TIME, "2611221920Z"),
            (UTC_TIME, "261122192011+0100"),
            (UTC_TIME, "26112219201\u{e9}Z"),
            (GENERALIZED_TIME, "261122192011Z"),
            (GENERALIZED_TIME, "20261122192011.5Z"),
            (4, "261122192011Z"),
        ] {
            assert_eq!(Validity::of(&certificate(true, &[good, bad])), None, "{bad:?}");
            assert_eq!(Validity::of(&certificate(true, &[bad, good])), None, "{bad:?}");
        }
        let whole = certificate(true, &[good, good]);
        assert!(Validity::of(&whole).is_some());
        for cut in 0..whole.len() {
            assert_eq!(Validity::of(&whole[..cut]), None, "cut to {cut}");
        }
        for length in [&[0x80][..], &[0x85, 0, 0, 0, 0, 1], &[0x84, 255, 255, 255, 255], &[0xff]] {
            assert_eq!(Validity::of(&[&[SEQUENCE], length, &[0; 8]].concat()), None);
        }
    }
}
