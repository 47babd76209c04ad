//! The tenant of a request, its urgency, and the requests that may share its cached prompt.
//!
//! ```text
//!   tenant, cache_salt --keyed hash--> namespace      prefixes are shared within one
//!
//!   no tenant, no salt                 namespace 0    shared by all such requests
//!   tenant, no salt                    its own        one tenant does not see another's prompts
//!   any tenant, a salt                 its own        a tenant can separate its users by salts
//! ```
//!
//! A cached prefix makes the first token come sooner, and a client can measure that. Prefixes are
//! therefore shared only within one namespace. The hash is SipHash with keys that the process draws
//! at its start, so a client cannot construct a salt that meets another client's namespace.

use std::hash::{BuildHasher, RandomState};

use pelton_base::{Namespace, ParamError, ServiceParams, Slo, TenantId, limits};

/// Tenant, urgency and latency targets of a request. The default sets none of them.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Service {
    /// The tenant: an index into [`Choices::tenants`](pelton_sched::Choices::tenants).
    pub tenant: TenantId,
    /// Priority; [`Choices::priority_order`](pelton_sched::Choices::priority_order) says whether
    /// low or high goes first.
    pub priority: i32,
    /// Latency targets; a missing target is that of the tenant, else that of the engine.
    pub slo: Slo,
    /// Salt of the cache: prefixes are shared only with requests of the same salt.
    pub cache_salt: Option<String>,
    /// Whether the answer is to be computed whole: no recorded answer serves the request, and its own
    /// is not recorded. It needs a salt of its own, too.
    pub is_uncached: bool,
    /// Names the request to the [`Gatekeeper`](crate::Gatekeeper) of the model; 0 for a request
    /// that is not asked about.
    pub ticket: u64,
}

impl Service {
    /// Checks every range.
    pub(crate) fn validate(&self) -> Result<(), ParamError> {
        let fail = |param, expected, got: &dyn std::fmt::Display| {
            Err(ParamError { param, expected, got: got.to_string() })
        };
        match self.cache_salt.as_ref().map(String::len) {
            Some(0) => return fail("cache_salt", "a text that is not empty", &"an empty text"),
            Some(n_bytes) if n_bytes > limits::CACHE_SALT_BYTES => {
                return fail("cache_salt", "a text of at most 1024 bytes", &n_bytes);
            }
            _ => {}
        }
        for (param, target) in [("slo.ttft_ms", self.slo.ttft), ("slo.tpot_ms", self.slo.tpot)] {
            if target.is_some_and(|target| target.is_zero()) {
                return fail(param, "above 0", &0);
            }
        }
        Ok(())
    }
}

/// Turns tenants and salts into namespaces; one per process and engine.
#[derive(Clone, Debug)]
pub(crate) struct Namespaces {
    keys: RandomState,
    /// Whether requests of different tenants share prefixes where their salts are equal.
    share_prefixes: bool,
}

impl Namespaces {
    pub(crate) fn new(share_prefixes: bool) -> Self {
        Self { keys: RandomState::new(), share_prefixes }
    }

    fn of(&self, tenant: TenantId, salt: Option<&str>) -> Namespace {
        let tenant = if self.share_prefixes { TenantId::default() } else { tenant };
        match (tenant, salt) {
            (TenantId(0), None) => Namespace::default(),
            parted => Namespace(self.keys.hash_one(parted)),
        }
    }

    /// The parameters of one answer for the scheduler.
    pub(crate) fn params(&self, service: &Service) -> ServiceParams {
        ServiceParams {
            tenant: service.tenant,
            priority: service.priority,
            slo: service.slo,
            namespace: self.of(service.tenant, service.cache_salt.as_deref()),
            ..ServiceParams::default()
        }
    }
}

/// A seed that differs from call to call.
pub(crate) fn fresh_seed() -> u64 {
    // The keys of the standard hasher are random, so the hash of nothing is random too.
    RandomState::new().hash_one(())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn tenants_and_salts_part_prefixes() {
        let namespaces = Namespaces::new(false);
        let of = |tenant, salt| namespaces.of(TenantId(tenant), salt);
        assert_eq!(of(0, None), Namespace::default());
        assert_eq!(of(1, Some("a")), of(1, Some("a")), "the same every time");
        let all = [
            of(0, None),
            of(1, None),
            of(2, None),
            of(0, Some("a")),
            of(1, Some("a")),
            of(1, Some("b")),
        ];
        let distinct: std::collections::HashSet<Namespace> = all.into_iter().collect();
        assert_eq!(distinct.len(), all.len());
        // The namespace cannot be computed from the names without the keys.
        assert_ne!(Namespaces::new(false).of(TenantId(1), Some("a")), of(1, Some("a")));
    }

    #[test]
    fn tenants_that_trust_each_other_are_parted_by_salts_alone() {
        let namespaces = Namespaces::new(true);
        let of = |tenant, salt| namespaces.of(TenantId(tenant), salt);
        assert_eq!(of(1, None), of(0, None));
        assert_eq!(of(1, Some("a")), of(2, Some("a")));
        assert_ne!(of(1, Some("a")), of(1, Some("b")));
    }

    #[test]
    fn what_is_out_of_range_is_named() {
        let salted = |salt: String| Service { cache_salt: Some(salt), ..Service::default() };
        let slo = |ttft, tpot| Service { slo: Slo { ttft, tpot }, ..Service::default() };
        for (param, service) in [
            ("cache_salt", salted(String::new())),
            ("cache_salt", salted("x".repeat(limits::CACHE_SALT_BYTES + 1))),
            ("slo.ttft_ms", slo(Some(Duration::ZERO), None)),
            ("slo.tpot_ms", slo(None, Some(Duration::ZERO))),
        ] {
            assert_eq!(service.validate().expect_err(param).param, param);
        }
        assert_eq!(salted("x".repeat(limits::CACHE_SALT_BYTES)).validate(), Ok(()));
    }
}
