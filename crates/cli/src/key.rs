//! `pelton key`: makes, lists and revokes the keys of a key file.

use std::io::{BufRead, IsTerminal, Read, Write};
use std::time::{SystemTime, UNIX_EPOCH};

use pelton_gateway::{Key, KeyFile, Limit, Now, SecretHash, date_time, random_key};
use pelton_server::{change_keys, read_keys};
use rustix::termios::{LocalModes, OptionalActions, tcgetattr, tcsetattr};
use serde_json::{Value, json};

use crate::args::{KeyCommand, ListKeysArgs, NewKeyArgs, RevokeKeysArgs};
use crate::failure::{Failure, Result};
use crate::interrupt::leave_after;

/// Fewest characters of a secret that a person chooses.
const LEAST_SECRET: usize = 12;
/// Most characters of it, so that the whole key can be sent.
const MOST_SECRET: usize = 400;

/// Runs the command.
pub(crate) fn key(command: &KeyCommand) -> Result<()> {
    match command {
        KeyCommand::New(args) => new(args),
        KeyCommand::List(args) => list(args),
        KeyCommand::Revoke(args) => revoke(args),
    }
}

fn new(args: &NewKeyArgs) -> Result<()> {
    let path = &args.file.key_file;
    let created = now().unix_seconds;
    let expires = args.expires.map(|expiry| expiry.from(created));
    if let Some(at) = expires.filter(|at| *at <= created) {
        let message = format!("`--expires`: {} is over", date_time(at));
        return Err(Failure::new(message).hint("such as `--expires 30d`"));
    }
    let (random_id, random_secret) = random()?;
    let id = args.id.clone().unwrap_or(random_id);
    let secret = if args.ask { ask()? } else { random_secret };
    let text = Key::text(&id, &secret);
    let hash = match args.ask {
        true => SecretHash::slow(&text, salt()?),
        false => SecretHash::fast(&text),
    };
    let (scopes, tenant, limits) = (args.scope, args.tenant.clone(), args.limits());
    let key = Key { id, hash, scopes, tenant, created, expires, revoked: None, limits };
    // Read as the server reads it, so that no key is printed that it would refuse.
    let alone = KeyFile { keys: vec![key.clone()] };
    KeyFile::parse(&alone.to_string()).map_err(|error| Failure::new(error.why))?;
    change_keys(path, |file| {
        if file.key_mut(&key.id).is_some() {
            let message = format!("{}: there is a key `{}` already", path.display(), key.id);
            return Err(Failure::new(message).hint("`--id` takes another name"));
        }
        file.keys.push(key.clone());
        Ok(())
    })?;
    let printed = if args.file.json {
        let mut object = describe(&key);
        object["key"] = text.into();
        print(&format!("{object}\n"))
    } else {
        eprintln!("Key `{}` is in {}. It is shown this once:", key.id, path.display());
        print(&format!("{text}\n"))
    };
    if printed.is_err() {
        // A key that was not shown is of no use, and would stay valid.
        change_keys(path, |file| {
            file.keys.retain(|other| other.id != key.id);
            Ok::<(), Failure>(())
        })?;
        eprintln!(
            "Key `{}` is not in {} any more, because it could not be shown.",
            key.id,
            path.display()
        );
    }
    printed
}

fn list(args: &ListKeysArgs) -> Result<()> {
    let keys = read_keys(&args.file.key_file)?.keys;
    if args.file.json {
        let all: Vec<Value> = keys.iter().map(describe).collect();
        return print(&format!("{}\n", Value::from(all)));
    }
    let head = ["ID", "STATE", "SCOPE", "TENANT", "CREATED", "EXPIRES", "LIMITS"];
    let mut rows = vec![head.map(str::to_owned)];
    rows.extend(keys.iter().map(row));
    let widths: Vec<usize> =
        (0..head.len()).map(|i| rows.iter().map(|row| row[i].len()).max().unwrap_or(0)).collect();
    let line = |row: &[String; 7]| {
        let cells: Vec<String> =
            row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}")).collect();
        format!("{}\n", cells.join("  ").trim_end())
    };
    print(&rows.iter().map(line).collect::<String>())
}

fn revoke(args: &RevokeKeysArgs) -> Result<()> {
    let (path, at) = (&args.file.key_file, now().unix_seconds);
    let revoked = change_keys(path, |file| {
        let mut revoked = Vec::new();
        for id in &args.ids {
            let key = file.key_mut(id).ok_or_else(|| {
                Failure::new(format!("{}: there is no key `{id}`", path.display()))
                    .hint("`pelton key list` shows all")
            })?;
            // The first time stays: it says from when on the key opened nothing.
            key.revoked.get_or_insert(at);
            revoked.push(describe(key));
        }
        Ok::<_, Failure>(revoked)
    })?;
    match args.file.json {
        true => print(&format!("{}\n", Value::from(revoked))),
        false => print(&args.ids.iter().map(|id| format!("revoked {id}\n")).collect::<String>()),
    }
}

/// A key without its hash.
fn describe(key: &Key) -> Value {
    let limits = key.limits.iter().map(|(limit, most)| (limit.name().to_owned(), most.into()));
    json!({
        "id": key.id,
        "state": state(key),
        "hash": match key.hash {
            SecretHash::Fast(_) => "sha256",
            SecretHash::Slow(_) => "argon2id",
        },
        "scope": key.scopes.to_string(),
        "tenant": key.tenant,
        "created": date_time(key.created),
        "expires": key.expires.map(date_time),
        "revoked": key.revoked.map(date_time),
        "limits": Value::Object(limits.collect()),
    })
}

fn row(key: &Key) -> [String; 7] {
    let limit = |(limit, most): (Limit, u64)| format!("{}={most}", limit.name());
    let limits: Vec<String> = key.limits.iter().map(limit).collect();
    [
        key.id.clone(),
        state(key).to_owned(),
        key.scopes.to_string(),
        key.tenant.clone(),
        date_time(key.created),
        key.expires.map_or_else(|| "never".to_owned(), date_time),
        limits.join(" "),
    ]
}

fn state(key: &Key) -> &'static str {
    match key.check(now()) {
        Ok(()) => "valid",
        Err(_) if key.revoked.is_some() => "revoked",
        Err(_) => "expired",
    }
}

fn now() -> Now {
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Now { elapsed: std::time::Duration::ZERO, unix_seconds: since_1970.as_secs() }
}

/// A random id and secret.
fn random() -> Result<(String, String)> {
    let mut bytes = [0; 256];
    fill(&mut bytes)?;
    let mut next = 0;
    let mut failure = None;
    let key = random_key(|out| {
        if next + out.len() > bytes.len() {
            next = 0;
            failure = fill(&mut bytes).err().or(failure.take());
        }
        out.copy_from_slice(&bytes[next..next + out.len()]);
        next += out.len();
    });
    failure.map_or(Ok(key), Err)
}

fn salt() -> Result<[u8; 16]> {
    let mut salt = [0; 16];
    fill(&mut salt).map(|()| salt)
}

/// Fills with the random bytes of the system.
fn fill(bytes: &mut [u8]) -> Result<()> {
    let mut file = std::fs::File::open("/dev/urandom")
        .map_err(|error| Failure::internal(format!("no random bytes: {error}")))?;
    file.read_exact(bytes).map_err(|error| Failure::internal(format!("no random bytes: {error}")))
}

/// A secret from standard input; a terminal does not show it.
fn ask() -> Result<String> {
    let stdin = std::io::stdin();
    let mut line = String::new();
    let read = |line: &mut String| {
        let read = stdin.lock().take(4096).read_line(line);
        read.map_err(|error| Failure::new(format!("standard input: {error}")))
    };
    if stdin.is_terminal() {
        let shown = tcgetattr(&stdin).map_err(|error| Failure::internal(error.to_string()))?;
        let mut hidden = shown.clone();
        hidden.local_modes.remove(LocalModes::ECHO);
        let show = move || {
            let _ = tcsetattr(std::io::stdin(), OptionalActions::Now, &shown);
            eprintln!();
        };
        leave_after(show.clone())?;
        let _ = tcsetattr(&stdin, OptionalActions::Now, &hidden);
        eprint!("Secret: ");
        let outcome = read(&mut line);
        show();
        outcome?;
    } else {
        read(&mut line)?;
    }
    let secret = line.trim_end_matches(['\n', '\r']);
    let is_sendable = secret.bytes().all(|b| b.is_ascii_graphic());
    if !is_sendable || !(LEAST_SECRET..=MOST_SECRET).contains(&secret.len()) {
        return Err(Failure::new(format!(
            "the secret: expected {LEAST_SECRET} to {MOST_SECRET} visible ASCII characters without \
             blanks, got {} bytes",
            secret.len()
        )));
    }
    Ok(secret.to_owned())
}

fn print(text: &str) -> Result<()> {
    let mut stdout = std::io::stdout().lock();
    let written = stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush());
    written.map_err(|error| Failure::stdout(&error))
}
