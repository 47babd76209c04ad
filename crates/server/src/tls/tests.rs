//! Pairs that are read, refused, and renewed.

use super::*;

#[path = "../../tests/harness/certificates.rs"]
mod certificates;

use certificates::{DAY, House, put};

/// A moment at which the pairs of these tests are valid, in seconds since 1970.
const NOW: u64 = 2_000_000_000;

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
}

fn files(certificate: &Path, key: &Path) -> TlsConfig {
    TlsConfig { certificate: Some(certificate.to_owned()), key: Some(key.to_owned()) }
}

fn refusal(certificate: &Path, key: &Path) -> String {
    Certificates::open(&files(certificate, key), NOW).expect_err("not usable").to_string()
}

#[test]
fn all_three_forms_of_keys_are_read_also_beside_their_certificate() {
    let house = House::new();
    house.install(&house.make(NOW - DAY, NOW + DAY));
    let pkcs8 = std::fs::read_to_string(house.key()).expect("a key");
    assert!(pkcs8.starts_with("-----BEGIN PRIVATE KEY-----"), "PKCS#8");
    let opened = Certificates::open(&files(&house.cert(), &house.key()), NOW).expect("usable");
    assert_eq!(opened.expect("files are named").not_after(), NOW + DAY);
    for name in ["pkcs1.pem", "sec1.pem"] {
        let path = fixture(name);
        let opened = Certificates::open(&files(&path, &path), NOW).expect(name);
        let pair = opened.expect("files are named").pair();
        assert_eq!(pair.config.alpn_protocols, [b"http/1.1"], "{name}");
    }
}

#[test]
fn a_file_that_cannot_be_used_is_refused_with_its_name_and_the_reason() {
    let house = House::new();
    house.install(&house.make(NOW - DAY, NOW + DAY));
    let (cert, key) = (house.cert(), house.key());
    let write = |name: &str, text: &str| {
        let path = house.path(name);
        std::fs::write(&path, text).expect("written");
        path
    };
    let cut = |path: &Path| {
        let text = std::fs::read_to_string(path).expect("text");
        text[..text.len() / 3].to_owned()
    };
    let empty = write("empty", "");
    let (cut_cert, cut_key) = (write("cut-cert", &cut(&cert)), write("cut-key", &cut(&key)));
    let no_der = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
    let locked =
        "-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED PRIVATE KEY-----\n";
    let no_key = "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n";
    let no_base64 = "-----BEGIN PRIVATE KEY-----\n!secret!\n-----END PRIVATE KEY-----\n";
    let many = std::fs::read_to_string(&cert).expect("text").repeat(9);
    for (certificate, key, flag, words) in [
        (&house.path("none"), &key, "--tls-cert", "No such file"),
        (&cert, &house.path("none"), "--tls-key", "No such file"),
        (&house.path(""), &key, "--tls-cert", "regular file"),
        (&empty, &key, "--tls-cert", "no certificate"),
        (&key, &key, "--tls-cert", "a private key and no certificate"),
        (&cut_cert, &key, "--tls-cert", "no -----END line"),
        (&write("no-der", no_der), &key, "--tls-cert", "cannot be read"),
        (&write("many", &many), &key, "--tls-cert", "more than 16 certificates"),
        (&write("long", &"x".repeat((1 << 20) + 1)), &key, "--tls-cert", "longer than 1048576"),
        (&cert, &empty, "--tls-key", "no private key"),
        (&cert, &cert, "--tls-key", "no private key"),
        (&cert, &cut_key, "--tls-key", "no -----END line"),
        (&cert, &write("locked", locked), "--tls-key", "encrypted"),
        (&cert, &write("no-key", no_key), "--tls-key", "cannot be used"),
        (&cert, &write("no-base64", no_base64), "--tls-key", "no base 64"),
        (&cert, &fixture("sec1.pem"), "--tls-key", "does not belong to the first certificate"),
    ] {
        let refusal = refusal(certificate, key);
        let bad = if flag == "--tls-cert" { certificate } else { key };
        for part in [flag, words, bad.to_str().expect("UTF-8")] {
            assert!(refusal.contains(part), "`{part}` is missing in: {refusal}");
        }
        assert!(!refusal.contains("secret"), "{refusal}");
    }
}

#[test]
fn a_certificate_is_valid_from_its_first_to_its_last_second() {
    let house = House::new();
    house.install(&house.make(NOW - 5, NOW + 5));
    let config = files(&house.cert(), &house.key());
    let open = |now: u64| Certificates::open(&config, now).map(|opened| opened.is_some());
    assert!(open(NOW - 5).expect("its first second") && open(NOW + 5).expect("its last"));
    let early = open(NOW - 6).expect_err("too early").to_string();
    assert!(early.contains("valid from 2033-05-18T03:33:15Z on"), "{early}");
    assert!(early.contains("it is 2033-05-18T03:33:14Z"), "{early}");
    let late = open(NOW + 6).expect_err("too late").to_string();
    assert!(late.ends_with("the certificate expired at 2033-05-18T03:33:25Z"), "{late}");
}

#[test]
fn a_certificate_and_a_key_come_together() {
    let some = Some(PathBuf::from("file"));
    let open = |certificate: &Option<PathBuf>, key: &Option<PathBuf>| {
        Certificates::open(&TlsConfig { certificate: certificate.clone(), key: key.clone() }, NOW)
            .map(|opened| opened.is_some())
            .map_err(|error| error.to_string())
    };
    assert_eq!(open(&None, &None), Ok(false));
    assert!(open(&some, &None).expect_err("no key").starts_with("`--tls-cert` needs `--tls-key`"));
    assert!(open(&None, &some).expect_err("no cert").starts_with("`--tls-key` needs `--tls-cert`"));
}

#[test]
fn only_a_usable_pair_takes_the_place_of_the_old_one() {
    let house = House::new();
    house.install(&house.make(NOW - DAY, NOW + 30 * DAY));
    let opened = Certificates::open(&files(&house.cert(), &house.key()), NOW).expect("usable");
    let held = opened.expect("files are named");
    let first = held.pair();
    let is_first = |held: &Certificates| Arc::ptr_eq(&held.pair().config, &first.config);
    held.renew_if_changed(NOW);
    assert!(is_first(&held), "nothing has changed");

    let good = house.make(NOW - DAY, NOW + 60 * DAY);
    let other = house.make(NOW - DAY, NOW + 60 * DAY);
    for (what, bad) in [
        ("broken", ("no PEM".to_owned(), good.1.clone())),
        ("of another key", (good.0.clone(), other.1)),
        ("expired", house.make(NOW - 2 * DAY, NOW - DAY)),
        ("not valid yet", house.make(NOW + DAY, NOW + 2 * DAY)),
    ] {
        house.install(&bad);
        held.renew_if_changed(NOW);
        assert!(is_first(&held), "{what}: looked at");
        held.renew(NOW);
        assert!(is_first(&held), "{what}: asked for");
    }
    std::fs::remove_file(house.key()).expect("removed");
    held.renew_if_changed(NOW);
    assert!(is_first(&held), "a file is missing");

    house.install(&good);
    held.renew_if_changed(NOW);
    assert_eq!((is_first(&held), held.not_after()), (false, NOW + 60 * DAY));
    // The key comes after the certificate, between two looks.
    let next = house.make(NOW - DAY, NOW + 90 * DAY);
    put(&house.cert(), &next.0);
    held.renew_if_changed(NOW);
    assert_eq!(held.not_after(), NOW + 60 * DAY, "half of a pair");
    put(&house.key(), &next.1);
    held.renew_if_changed(NOW);
    assert_eq!(held.not_after(), NOW + 90 * DAY);
}

#[test]
fn the_log_warns_in_the_last_fourteen_days() {
    for (left, expected) in [(0, true), (14 * DAY - 1, true), (14 * DAY, false)] {
        assert_eq!(ends_soon(NOW + left, NOW), expected, "{left} seconds left");
    }
    assert!(ends_soon(NOW - 1, NOW));
    for (left, expected) in [(0, 0), (DAY - 1, 0), (DAY, 1), (14 * DAY - 1, 13)] {
        assert_eq!(whole_days(NOW + left, NOW), expected, "{left} seconds left");
    }
}
