//! A folder with a key file and a usage file, for servers with keys.

use std::num::NonZeroU64;
use std::path::PathBuf;

use pelton_gateway::{Key, Limit, Limits, Scope, Scopes, SecretHash};
use pelton_server::{Access, GatewayConfig, KeysError, ServeConfig, Tenant, change_keys};

use super::parrot::parrot;
use super::{Answer, Running, start_with};

/// A folder with a key file and a usage file.
pub struct House {
    folder: tempfile::TempDir,
}

impl House {
    pub fn new() -> Self {
        Self { folder: tempfile::tempdir().expect("a folder") }
    }

    pub fn keys(&self) -> PathBuf {
        self.folder.path().join("keys")
    }

    pub fn usage(&self) -> PathBuf {
        self.folder.path().join("usage")
    }

    /// Adds a key `pelton_ID_secret`.
    pub fn add(&self, id: &str, change: impl FnOnce(&mut Key)) {
        let hash = SecretHash::fast(&Key::text(id, "secret"));
        let mut key = Key {
            id: id.to_owned(),
            hash,
            scopes: Scopes::of(&[Scope::User]),
            tenant: "default".to_owned(),
            created: 0,
            expires: None,
            revoked: None,
            limits: Limits::default(),
        };
        change(&mut key);
        change_keys(&self.keys(), |file| {
            file.keys.push(key);
            Ok::<(), KeysError>(())
        })
        .expect("written");
    }

    pub fn limited(&self, id: &str, limits: &[(Limit, u64)]) {
        self.add(id, |key| {
            limits.iter().for_each(|&(limit, most)| key.limits.set(limit, NonZeroU64::new(most)));
        });
    }

    pub fn config(&self) -> ServeConfig {
        let tenant = |name: &str| Tenant { name: name.to_owned(), priority: 0, keys: Vec::new() };
        let access = Access::with_key_file(vec![tenant("default"), tenant("blue")]);
        let gateway = GatewayConfig {
            key_file: Some(self.keys()),
            usage_file: Some(self.usage()),
            ..GatewayConfig::default()
        };
        ServeConfig { access: access.expect("distinct"), gateway, ..ServeConfig::default() }
    }

    pub async fn serve(&self) -> Running {
        start_with(parrot(), self.config()).await
    }
}

pub fn request(method: &str, path: &str, key: &str, body: &str) -> String {
    format!(
        "{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\
         authorization: Bearer pelton_{key}_secret\r\ncontent-type: application/json\r\n\
         content-length: {}\r\n\r\n{body}",
        body.len()
    )
}

pub async fn get(server: &Running, path: &str, key: &str) -> Answer {
    server.raw(&request("GET", path, key, "")).await
}

/// The value of a header of an answer.
pub fn header<'a>(answer: &'a Answer, name: &str) -> Option<&'a str> {
    answer.head.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
}
