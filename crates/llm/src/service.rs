//! Whose an answer is, how urgent, and with whom its prompt is shared.
//!
//! ```text
//!   tenant, cache_salt --keyed hash--> namespace      prefixes are shared within one
//!
//!   no tenant, no salt                 namespace 0    everybody who says nothing
//!   tenant, no salt                    its own        one tenant does not see another's prompts
//!   any tenant, a salt                 its own        a tenant may part its users the same way
//! ```
//!
//! Who shares a prefix can be told by how soon the first token comes, so sharing is a question of
//! trust. The hash is SipHash with keys that the process draws at its start: nobody outside can
//! make two salts meet.

use std::hash::{BuildHasher, RandomState};

use pelton_base::{Namespace, ParamError, ServiceParams, Slo, TenantId, limits};

/// What an answer asks of the scheduler. The default asks for nothing.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Service {
    /// Whose it is: an index into [`Scheduling::tenants`](crate::Scheduling::tenants).
    pub tenant: TenantId,
    /// How urgent; [`Scheduling::priority_order`](crate::Scheduling::priority_order) says whether
    /// low or high goes first.
    pub priority: i32,
    /// Latency targets; where there are none, those of the tenant count, then those of the engine.
    pub slo: Slo,
    /// Cached prefixes are shared only with requests of the same salt.
    pub cache_salt: Option<String>,
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
    /// Whether tenants share what their salts do not part.
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

    /// What the scheduler is told about an answer.
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
        // Whoever knows the names and not the keys cannot tell the namespace.
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
