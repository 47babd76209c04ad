//! Where values go: fields of [`Chosen`], whatever their types.

use std::path::PathBuf;
use std::time::Duration;

use pelton_llm::{LogprobsMode, Pooling, Verification};
use pelton_model::{ActivationGroup, Compute, KvDtype, PackedCache, RoundTo, StateDtype};
use pelton_sched::{Batching, Eviction, KvAllocation, PolicyKind, PreemptionMode, PriorityOrder};
use pelton_server::{CorsOrigins, HostName, SocketAccess, UsageFailures};
use serde_json::Map;

use super::kind::BESIDE;
use super::{Chosen, SpecChoice, Value};

/// A field of [`Chosen`].
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    /// Sets the field; the value is of the flag's kind.
    pub(super) set: fn(&mut Chosen, &Value),
    /// The field's value; `None` where nothing is chosen.
    pub(super) get: fn(&Chosen) -> Option<Value>,
}

/// The place of a field, such as `place!(llm.choices.max_wait)`.
macro_rules! place {
    ($($field:ident).+) => {
        $crate::flags::place::Place {
            set: |chosen, value| chosen.$($field).+ = $crate::flags::place::Setting::of(value),
            get: |chosen| $crate::flags::place::Setting::value(&chosen.$($field).+),
        }
    };
}
pub(super) use place;

/// A type of fields that flags set.
pub(super) trait Setting {
    /// The field for a value.
    ///
    /// # Panics
    ///
    /// Where the kind of a flag does not fit its place; a test sets every place.
    fn of(value: &Value) -> Self;

    /// The value of a field.
    fn value(&self) -> Option<Value>;
}

/// A type with few values, each of which has a name.
pub(crate) trait Choice: Copy + 'static {
    /// Every value.
    fn all() -> &'static [Self];
    /// Its name on the command line and in files.
    fn name(self) -> &'static str;

    /// Every name.
    fn names() -> Vec<&'static str> {
        Self::all().iter().map(|value| value.name()).collect()
    }
}

macro_rules! choices {
    ($($type:ty),+) => {$(
        impl Choice for $type {
            fn all() -> &'static [Self] {
                &Self::ALL
            }

            fn name(self) -> &'static str {
                self.name()
            }
        }
    )+};
}
choices!(PolicyKind, PriorityOrder, Batching, KvAllocation, Eviction, PreemptionMode);
choices!(
    ActivationGroup,
    LogprobsMode,
    Verification,
    KvDtype,
    StateDtype,
    Pooling,
    UsageFailures,
    SocketAccess
);

impl Choice for Compute {
    fn all() -> &'static [Self] {
        &[Self::Auto, Self::F32]
    }

    fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            // `Compute` may grow; `all` lists the values that have a name here.
            _ => "auto",
        }
    }
}

impl Choice for RoundTo {
    fn all() -> &'static [Self] {
        Self::all()
    }

    fn name(self) -> &'static str {
        self.name()
    }
}

impl<T: Choice> Setting for T {
    fn of(value: &Value) -> Self {
        let found = T::all().iter().find(|known| Value::Name(known.name()) == *value);
        *found.expect("invariant: a flag of names sets a type that has them")
    }

    fn value(&self) -> Option<Value> {
        Some(Value::Name(self.name()))
    }
}

/// Fields that hold what a kind of value holds.
macro_rules! settings {
    ($($type:ty: $value:ident($inner:ident) => $of:expr, $field:ident => $to:expr;)+) => {$(
        impl Setting for $type {
            fn of(value: &Value) -> Self {
                match value {
                    Value::$value($inner) => $of,
                    other => panic!("invariant: a flag's kind fits its place, got {other:?}"),
                }
            }

            fn value(&self) -> Option<Value> {
                let $field = self;
                Some(Value::$value($to))
            }
        }
    )+};
}
settings! {
    String: Text(text) => text.clone(), field => field.clone();
    PathBuf: Text(text) => PathBuf::from(text), field => field.display().to_string();
    u64: Number(n) => *n, field => *field;
    usize: Number(n) => *n as usize, field => *field as u64;
    u32: Number(n) => *n as u32, field => u64::from(*field);
    u16: Number(n) => *n as u16, field => u64::from(*field);
    Duration: Time(time) => *time, field => *field;
    bool: Truth(is_so) => *is_so, field => *field;
    CorsOrigins: Origins(origins) => origins.clone(), field => field.clone();
    SpecChoice: Method(choice) => choice.clone(), field => field.clone();
}

impl<T: Setting> Setting for Option<T> {
    fn of(value: &Value) -> Self {
        Some(T::of(value))
    }

    fn value(&self) -> Option<Value> {
        self.as_ref()?.value()
    }
}

/// An empty folder, as of an empty variable, is none.
impl Setting for Option<PackedCache> {
    fn of(value: &Value) -> Self {
        match value {
            Value::Folder(path) if path.is_empty() => None,
            Value::Folder(path) if path == BESIDE => Some(PackedCache::Beside),
            Value::Folder(path) => Some(PackedCache::Folder(path.into())),
            other => panic!("invariant: a flag's kind fits its place, got {other:?}"),
        }
    }

    fn value(&self) -> Option<Value> {
        let path = match self.as_ref()? {
            PackedCache::Beside => BESIDE.into(),
            PackedCache::Folder(path) => path.clone().into_os_string(),
        };
        Some(Value::Folder(path))
    }
}

/// No host is none chosen.
impl Setting for Vec<HostName> {
    fn of(value: &Value) -> Self {
        match value {
            Value::Hosts(hosts) => hosts.clone(),
            other => panic!("invariant: a flag's kind fits its place, got {other:?}"),
        }
    }

    fn value(&self) -> Option<Value> {
        (!self.is_empty()).then(|| Value::Hosts(self.clone()))
    }
}

/// No field is none chosen.
impl Setting for Map<String, serde_json::Value> {
    fn of(value: &Value) -> Self {
        match value {
            Value::Object(fields) => fields.clone(),
            other => panic!("invariant: a flag's kind fits its place, got {other:?}"),
        }
    }

    fn value(&self) -> Option<Value> {
        (!self.is_empty()).then(|| Value::Object(self.clone()))
    }
}
