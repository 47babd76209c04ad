//! Kinds of values: how they are read and shown, whether in a flag, a variable or a file.

use std::ffi::OsString;
use std::time::Duration;

use pelton_base::limits;
use pelton_server::{CorsOrigins, HostName};
use serde::{Serialize, Serializer};
use serde_json::Map;

use super::SpecChoice;
use crate::units;

/// The kind of values of a flag.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Kind {
    /// Any text but the empty one.
    Text,
    /// A whole number from the first to the second.
    Number(u64, u64),
    /// A size such as `4GiB`, of at least so many bytes.
    Bytes(u64),
    /// A time above zero.
    Milliseconds,
    /// A time above zero.
    Seconds,
    /// A time in whole seconds, which may be zero.
    WholeSeconds,
    /// A time in whole milliseconds, at most a day, which may be zero.
    WholeMilliseconds,
    /// One of these names, in upper or lower case.
    Names(fn() -> Vec<&'static str>),
    /// A name, or another name for the same, that the first function finds; the second one lists names.
    Format(fn(&str) -> Option<&'static str>, fn() -> Vec<&'static str>),
    /// `true` or `false`; `on` or `off`.
    Truth,
    /// Nothing on the command line: the flag says `true`, or `false` where it begins with `no-`.
    Switch(bool),
    /// A method of speculation.
    Method,
    /// A folder, or nothing for the one beside the model.
    Folder,
    /// Hosts with commas between them; the flag may be given several times.
    Hosts,
    /// Web pages whose scripts may read answers.
    Origins,
    /// A JSON object.
    Object,
}

/// A value as it was read.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Value {
    /// Of [`Kind::Text`] and [`Kind::Format`].
    Text(String),
    /// Of [`Kind::Number`] and [`Kind::Bytes`].
    Number(u64),
    /// Of the kinds of times.
    Time(Duration),
    /// Of [`Kind::Names`].
    Name(&'static str),
    /// Of [`Kind::Truth`] and [`Kind::Switch`].
    Truth(bool),
    /// Of [`Kind::Method`].
    Method(SpecChoice),
    /// Of [`Kind::Folder`].
    Folder(OsString),
    /// Of [`Kind::Hosts`].
    Hosts(Vec<HostName>),
    /// Of [`Kind::Origins`].
    Origins(CorsOrigins),
    /// Of [`Kind::Object`].
    Object(Map<String, serde_json::Value>),
}

/// The value of `--packed-cache` without a folder.
pub(super) const BESIDE: &str = "beside";

impl Kind {
    /// A whole number from one.
    pub(super) const COUNT: Self = Self::Number(1, usize::MAX as u64);

    /// Reads a value; an error says what is expected.
    pub(crate) fn parse(self, text: &str) -> Result<Value, String> {
        match self {
            Self::Text if text.is_empty() => Err("expected a text that is not empty".to_owned()),
            Self::Text => Ok(Value::Text(text.to_owned())),
            Self::Number(least, most) => {
                let n = text.parse().ok().filter(|n| (least..=most).contains(n));
                n.map(Value::Number).ok_or_else(|| match most {
                    most if most == usize::MAX as u64 => {
                        format!("expected a whole number of at least {least}, got `{text}`")
                    }
                    most => format!("expected a whole number from {least} to {most}, got `{text}`"),
                })
            }
            Self::Bytes(least) => match units::parse_bytes(text)? {
                n if n < least => Err(format!("expected at least {least} byte, got `{text}`")),
                n => Ok(Value::Number(n)),
            },
            Self::Milliseconds => units::parse_milliseconds(text).map(Value::Time),
            Self::Seconds => units::parse_seconds(text).map(Value::Time),
            Self::WholeSeconds => {
                let n = text.parse().map(Duration::from_secs);
                n.map(Value::Time).map_err(|_| format!("expected whole seconds, got `{text}`"))
            }
            Self::WholeMilliseconds => {
                let n = text.parse().ok().filter(|n| *n as f64 <= limits::SLO_MS);
                n.map(|n| Value::Time(Duration::from_millis(n))).ok_or_else(|| {
                    format!("expected whole milliseconds from 0 to 86400000, got `{text}`")
                })
            }
            Self::Names(all) => {
                let names = all();
                let found = names.iter().find(|name| name.eq_ignore_ascii_case(text));
                found
                    .map(|name| Value::Name(name))
                    .ok_or_else(|| format!("expected one of {}, got `{text}`", names.join(", ")))
            }
            Self::Format(find, all) => match find(text) {
                Some(name) => Ok(Value::Text(name.to_owned())),
                None => Err(format!("expected one of {}, got `{text}`", all().join(", "))),
            },
            Self::Truth | Self::Switch(_) => match text {
                "true" | "on" => Ok(Value::Truth(true)),
                "false" | "off" => Ok(Value::Truth(false)),
                _ => Err(format!("expected true or false, got `{text}`")),
            },
            Self::Method => text.parse().map(Value::Method),
            Self::Folder => Ok(Value::Folder(text.into())),
            Self::Object => serde_json::from_str(text).map(Value::Object).map_err(|_| {
                format!(
                    "expected a JSON object such as {{\"enable_thinking\": false}}, got `{text}`"
                )
            }),
            Self::Hosts => {
                let hosts = text.split(',').map(|host| {
                    let host = host.trim();
                    host.parse().map_err(|why| format!("{why}, got `{host}`"))
                });
                hosts.collect::<Result<_, _>>().map(Value::Hosts)
            }
            Self::Origins => text.parse().map(Value::Origins),
        }
    }

    /// A value as [`parse`](Self::parse) reads it.
    pub(crate) fn show(self, value: &Value) -> String {
        match self.plain(value) {
            Plain::Text(text) => text,
            Plain::Number(n) => n.to_string(),
            Plain::Real(x) => x.to_string(),
            Plain::Truth(is_so) => is_so.to_string(),
        }
    }

    /// A value as it is written to a file.
    pub(crate) fn plain(self, value: &Value) -> Plain {
        match value {
            Value::Text(text) => Plain::Text(text.clone()),
            Value::Number(n) => Plain::Number(*n),
            Value::Time(time) if matches!(self, Self::Milliseconds) => {
                Plain::Real(time.as_secs_f64() * 1000.0)
            }
            Value::Time(time) if matches!(self, Self::WholeSeconds) => {
                Plain::Number(time.as_secs())
            }
            Value::Time(time) if matches!(self, Self::WholeMilliseconds) => {
                Plain::Number(time.as_millis() as u64)
            }
            Value::Time(time) => Plain::Real(time.as_secs_f64()),
            Value::Name(name) => Plain::Text((*name).to_owned()),
            Value::Truth(is_so) => Plain::Truth(*is_so),
            Value::Method(choice) => Plain::Text(choice.to_string()),
            Value::Origins(origins) => Plain::Text(origins.to_string()),
            Value::Folder(path) => Plain::Text(path.to_string_lossy().into_owned()),
            Value::Object(fields) => {
                Plain::Text(serde_json::Value::Object(fields.clone()).to_string())
            }
            Value::Hosts(hosts) => {
                let hosts: Vec<String> = hosts.iter().map(HostName::to_string).collect();
                Plain::Text(hosts.join(","))
            }
        }
    }
}

/// A value without its kind.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Plain {
    Text(String),
    Number(u64),
    Real(f64),
    Truth(bool),
}

impl Serialize for Plain {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Text(text) => serializer.serialize_str(text),
            Self::Number(n) => serializer.serialize_u64(*n),
            Self::Real(x) => serializer.serialize_f64(*x),
            Self::Truth(is_so) => serializer.serialize_bool(*is_so),
        }
    }
}
