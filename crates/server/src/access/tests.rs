use axum::http::HeaderValue;

use super::*;

fn tenant(name: &str, keys: &[&str]) -> Tenant {
    let keys = keys.iter().map(|key| ApiKey::new(key).expect("sendable")).collect();
    Tenant { name: name.to_owned(), priority: name.len() as i32, keys }
}

fn headers(pairs: &[(HeaderName, &str)]) -> HeaderMap {
    let pair = |(name, value): &(HeaderName, &str)| {
        (name.clone(), HeaderValue::from_str(value).expect("a value"))
    };
    pairs.iter().map(pair).collect()
}

#[test]
fn a_key_is_its_tenant_and_nothing_else_is() {
    let access = Access::new(vec![tenant("default", &["k0"]), tenant("blue", &["k1", "k2"])]);
    let access = access.expect("distinct");
    let ask = |value: &str| {
        let headers = headers(&[(header::AUTHORIZATION, value)]);
        access.caller(Need::User, &headers, None).map(|caller| caller.tenant.0)
    };
    assert_eq!((ask("Bearer k0"), ask("bearer  k2 ")), (Ok(0), Ok(1)));
    for wrong in ["Bearer k", "Bearer k00", "Bearer", "Bearer ", "Basic k0", "k0", "", "é"] {
        let error = ask(wrong).expect_err(wrong);
        assert_eq!(error.status, 401, "{wrong}");
        assert!(!error.body.message.contains("k0"), "{}", error.body.message);
    }
    let other = |pairs: &[(HeaderName, &str)]| {
        access.caller(Need::User, &headers(pairs), None).map(|caller| caller.tenant.0)
    };
    assert_eq!(other(&[(KEY_HEADER, " k2 ")]), Ok(1), "the header of Anthropic's clients");
    let basic = (header::AUTHORIZATION, "Basic k0");
    assert_eq!(other(&[basic, (KEY_HEADER, "k2")]), Ok(1), "a proxy has a password of its own");
    let both = [(header::AUTHORIZATION, "Bearer k0"), (KEY_HEADER, "k2")];
    assert_eq!(other(&both), Ok(0), "a token comes first");
    for wrong in ["", "k", "Bearer k0"] {
        assert_eq!(other(&[(KEY_HEADER, wrong)]).expect_err(wrong).status, 401, "{wrong}");
    }
    let none = HeaderMap::new();
    assert_eq!(access.caller(Need::User, &none, None).expect_err("no key").status, 401);
    let scopes = Scopes::default();
    let caller = Caller { tenant: TenantId(0), priority: 7, scopes, ticket: 0 };
    assert_eq!(access.caller(Need::Open, &none, None), Ok(caller));
    let both = headers(&[(header::AUTHORIZATION, "Bearer k1"), (TENANT_HEADER, "default")]);
    assert_eq!(access.caller(Need::User, &both, None).expect_err("contradiction").status, 400);
}

#[test]
fn only_a_key_with_the_scope_sees_all_tenants() {
    let access = Access::new(vec![tenant("default", &["k0", "k1\t metrics", "k2", "k2 metrics"])]);
    let access = access.expect("distinct");
    let sees_all = |need: Need, key: &str| {
        let headers = headers(&[(header::AUTHORIZATION, &format!("Bearer {key}"))]);
        access.caller(need, &headers, None).map(Caller::sees_all)
    };
    for (key, expected) in [("k0", false), ("k1", true), ("k2", true)] {
        assert_eq!(sees_all(Need::User, key), Ok(expected), "{key}");
        assert_eq!(sees_all(Need::Open, key), Ok(expected), "{key}");
    }
    assert_eq!(sees_all(Need::Open, "wrong"), Ok(false), "a monitor with an old key");
    assert_eq!(sees_all(Need::User, "k1 metrics").expect_err("the scope is not sent").status, 401);
    let shared = vec![tenant("a", &["k"]), tenant("b", &["k metrics"])];
    assert!(matches!(Access::new(shared), Err(AccessError::SharedKey { .. })));
    for bad in ["k root", "k metrics metrics", "k ", " metrics"] {
        assert_eq!(ApiKey::new(bad), Err(AccessError::BadKey), "{bad:?}");
    }
}

#[test]
fn a_route_is_open_to_the_scopes_that_include_its_need() {
    let access = Access::new(vec![tenant("default", &["u user", "m metrics", "a admin"])]);
    let access = access.expect("distinct");
    let status = |need: Need, key: &str| {
        let headers = headers(&[(header::AUTHORIZATION, &format!("Bearer {key}"))]);
        access.caller(need, &headers, None).map_or_else(|error| error.status.as_u16(), |_| 200)
    };
    for (need, expected) in [
        (Need::Open, [200, 200, 200, 200]),
        (Need::User, [200, 200, 200, 401]),
        (Need::Metrics, [403, 200, 200, 401]),
        (Need::Admin, [403, 403, 200, 401]),
    ] {
        assert_eq!(["u", "m", "a", "x"].map(|key| status(need, key)), expected, "{need:?}");
    }
}

#[test]
fn without_keys_a_header_names_the_tenant() {
    let access = Access::new(vec![tenant("default", &[]), tenant("blue", &[])]).expect("open");
    let ask = |name: &str| access.caller(Need::User, &headers(&[(TENANT_HEADER, name)]), None);
    let blue = Caller { tenant: TenantId(1), priority: 4, scopes: ALL_SCOPES, ticket: 0 };
    assert_eq!(ask("blue"), Ok(blue));
    assert_eq!(
        access.caller(Need::User, &HeaderMap::new(), None).expect("the first").tenant,
        TenantId(0)
    );
    let message = ask("red").expect_err("unknown").body.message;
    assert!(message.contains("`default`, `blue`"), "{message}");
}

#[test]
fn tenants_that_nobody_or_two_could_be_are_refused() {
    let first = || tenant("default", &[]);
    let shared = vec![first(), tenant("a", &["k"]), tenant("b", &["x", "k"])];
    let error = Access::new(shared).expect_err("shared").to_string();
    assert_eq!(error, "`a` and `b` have an API key in common");
    let error = Access::new(vec![first(), tenant("a", &["k"]), tenant("b", &[])]);
    assert_eq!(error.expect_err("no key"), AccessError::NoKey { tenant: "b".to_owned() });
    Access::new(vec![first(), tenant("a", &["k", "k"])]).expect("twice is once");
    for bad in ["", "a b", "a\n", "\u{e9}", &"x".repeat(limits::API_KEY_BYTES + 1)] {
        assert_eq!(ApiKey::new(bad), Err(AccessError::BadKey));
    }
    assert!(!format!("{:?}", tenant("a", &["secret"])).contains("secret"));
}
