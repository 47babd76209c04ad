//! Names of tenants, and their numbers.

use pelton_base::TenantId;

/// Most tenants of one trace.
pub const MOST_TENANTS: usize = 256;

/// The tenants of a trace; the first one sends the requests that name none.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Tenants(Vec<String>);

impl Default for Tenants {
    fn default() -> Self {
        Self(vec!["default".to_owned()])
    }
}

impl Tenants {
    /// The number of a tenant, which is added if it is new; `None` when there are
    /// [`MOST_TENANTS`] others.
    pub fn number(&mut self, name: &str) -> Option<TenantId> {
        let known = self.0.iter().position(|known| known == name);
        if known.is_none() && self.0.len() < MOST_TENANTS {
            self.0.push(name.to_owned());
            return Some(TenantId(self.0.len() as u32 - 1));
        }
        known.map(|idx| TenantId(idx as u32))
    }

    /// The name of a tenant; unknown numbers give the first name.
    pub fn name(&self, tenant: TenantId) -> &str {
        self.0.get(tenant.0 as usize).unwrap_or(&self.0[0])
    }

    /// All names in order of their numbers; never empty.
    pub fn names(&self) -> &[String] {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_keeps_its_number_and_too_many_are_refused() {
        let mut tenants = Tenants::default();
        let a = tenants.number("a");
        assert_eq!(tenants.number("a"), a);
        assert_eq!(tenants.number("default"), Some(TenantId(0)));
        let n_new = (0..300).filter(|i| tenants.number(&format!("t{i}")).is_some()).count();
        assert_eq!(n_new, MOST_TENANTS - 2);
        assert_eq!(tenants.number("a"), a);
        assert_eq!(tenants.name(TenantId(1)), "a");
        assert_eq!(tenants.name(TenantId(9_999)), "default");
    }
}
