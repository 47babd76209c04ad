//! Usage in a file: a [`Store`] on `redb`.
//!
//! ```text
//!   usage   (day, key, tenant, model) -> requests, refused, 4 kinds of tokens, last used
//!   meta    "commits"                 -> number of commits
//! ```
//!
//! A commit is durable when it returns, and whole or absent after a crash. One that failed, on a
//! full disk for instance, may still turn out to be there: the number of commits tells, when the
//! file is opened anew. It is opened anew from the handle of the first time, because in the sandbox
//! no file can be opened for writing.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::fs::{File, OpenOptions};
use std::path::{Path, PathBuf};

use pelton_gateway::{Counts, Day, RowKey, Store, StoreError};
use redb::backends::FileBackend;
use redb::{Builder, Database, DatabaseError, ReadableDatabase, ReadableTable, TableDefinition};

type Name = (u32, &'static str, &'static str, &'static str);
type Numbers = (u64, u64, u64, u64, u64, u64, u64);

const USAGE: TableDefinition<'_, Name, Numbers> = TableDefinition::new("usage");
const META: TableDefinition<'_, &str, u64> = TableDefinition::new("meta");
const COMMITS: &str = "commits";
/// Memory for pages of the file.
const CACHE_BYTES: usize = 4 << 20;

/// Usage in a file; one process at a time has it open.
#[derive(Debug)]
pub struct UsageFile {
    path: PathBuf,
    file: File,
    /// `None` after a commit failed, until the file is opened anew.
    database: Option<Database>,
    n_commits: u64,
    /// Rows of a commit that failed and may be there all the same.
    uncertain: Option<BTreeMap<RowKey, Counts>>,
}

impl UsageFile {
    /// Opens a file, or makes it with mode 600. A file of a process that was killed is repaired.
    ///
    /// # Errors
    ///
    /// When another process has it open, it is no such file, or the disk is full.
    pub fn open(path: &Path) -> Result<Self, StoreError> {
        let fail = |error: &dyn Display| StoreError(format!("{}: {error}", path.display()));
        if std::fs::metadata(path).is_ok_and(|metadata| !metadata.is_file()) {
            return Err(fail(&"expected a regular file"));
        }
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        let file = options.open(path).map_err(|error| fail(&error))?;
        let path = path.to_owned();
        let mut usage = Self { path, file, database: None, n_commits: 0, uncertain: None };
        usage.reopen()?;
        // Finds out now whether the disk takes anything at all.
        usage.add(&BTreeMap::new())?;
        Ok(usage)
    }

    fn fail(&self, error: &dyn Display) -> StoreError {
        StoreError(format!("{}: {error}", self.path.display()))
    }

    fn reopen(&mut self) -> Result<(), StoreError> {
        // Its lock is given back before the new one is taken.
        self.database = None;
        let file = self.file.try_clone().map_err(|error| self.fail(&error))?;
        let backend = FileBackend::new(file).map_err(|error| self.fail(&error))?;
        let opened = Builder::new().set_cache_size(CACHE_BYTES).create_with_backend(backend);
        let database = opened.map_err(|error| match error {
            DatabaseError::DatabaseAlreadyOpen => {
                self.fail(&"another process has it open, perhaps a running `pelton serve`")
            }
            error => self.fail(&error),
        })?;
        self.n_commits = commits(&database).map_err(|error| self.fail(&error))?;
        self.database = Some(database);
        Ok(())
    }

    fn commit(&self, rows: &BTreeMap<RowKey, Counts>, number: u64) -> Result<(), redb::Error> {
        let database = self.database.as_ref().expect("invariant: it is opened before");
        let transaction = database.begin_write()?;
        {
            let mut table = transaction.open_table(USAGE)?;
            for (row, counts) in rows {
                let name = (row.day.0, row.key.as_str(), row.tenant.as_str(), row.model.as_str());
                let mut sum =
                    table.get(name)?.map(|old| from_numbers(old.value())).unwrap_or_default();
                sum.add(counts);
                table.insert(name, to_numbers(&sum))?;
            }
            transaction.open_table(META)?.insert(COMMITS, number)?;
        }
        transaction.commit()?;
        Ok(())
    }
}

impl Store for UsageFile {
    fn load(&mut self) -> Result<BTreeMap<RowKey, Counts>, StoreError> {
        if self.database.is_none() {
            self.reopen()?;
        }
        let database = self.database.as_ref().expect("invariant: it is open");
        rows(database).map_err(|error| self.fail(&error))
    }

    fn add(&mut self, rows: &BTreeMap<RowKey, Counts>) -> Result<(), StoreError> {
        let mut rows = rows.clone();
        if self.database.is_none() {
            let expected = self.n_commits + 1;
            self.reopen()?;
            let before = self.uncertain.take().filter(|_| self.n_commits == expected);
            for (row, counts) in before.into_iter().flatten() {
                rows.entry(row).or_default().subtract(&counts);
            }
        }
        let number = self.n_commits + 1;
        if let Err(error) = self.commit(&rows, number) {
            let error = self.fail(&error);
            self.database = None;
            self.uncertain = Some(rows);
            return Err(error);
        }
        self.n_commits = number;
        Ok(())
    }
}

fn commits(database: &Database) -> Result<u64, redb::Error> {
    match database.begin_read()?.open_table(META) {
        Ok(table) => Ok(table.get(COMMITS)?.map_or(0, |n| n.value())),
        Err(redb::TableError::TableDoesNotExist(_)) => Ok(0),
        Err(error) => Err(error.into()),
    }
}

fn rows(database: &Database) -> Result<BTreeMap<RowKey, Counts>, redb::Error> {
    let table = database.begin_read()?.open_table(USAGE)?;
    let mut rows = BTreeMap::new();
    for entry in table.iter()? {
        let (name, numbers) = entry?;
        let (day, key, tenant, model) = name.value();
        let [key, tenant, model] = [key, tenant, model].map(str::to_owned);
        rows.insert(RowKey { day: Day(day), key, tenant, model }, from_numbers(numbers.value()));
    }
    Ok(rows)
}

fn to_numbers(counts: &Counts) -> Numbers {
    let Counts { requests, refused, prompt_tokens, cached_tokens, .. } = *counts;
    let Counts { completion_tokens, reasoning_tokens, last_used, .. } = *counts;
    let tokens = (prompt_tokens, cached_tokens, completion_tokens, reasoning_tokens);
    (requests, refused, tokens.0, tokens.1, tokens.2, tokens.3, last_used)
}

fn from_numbers(numbers: Numbers) -> Counts {
    let (requests, refused, prompt_tokens, cached_tokens, ..) = numbers;
    let (.., completion_tokens, reasoning_tokens, last_used) = numbers;
    Counts {
        requests,
        refused,
        prompt_tokens,
        cached_tokens,
        completion_tokens,
        reasoning_tokens,
        last_used,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(model: &str) -> RowKey {
        let (key, tenant, model) = ("k".to_owned(), "t".to_owned(), model.to_owned());
        RowKey { day: Day(20_000), key, tenant, model }
    }

    fn counts(n: u64) -> Counts {
        Counts {
            requests: 1,
            refused: n,
            prompt_tokens: n + 1,
            cached_tokens: n + 2,
            completion_tokens: n + 3,
            reasoning_tokens: n + 4,
            last_used: n + 5,
        }
    }

    #[test]
    fn counts_of_a_row_add_up_over_restarts() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("usage");
        for n in 0..3 {
            let mut file = UsageFile::open(&path).expect("opened");
            file.add(&BTreeMap::from([(row("m"), counts(n)), (row("n"), counts(0))]))
                .expect("added");
            let error = UsageFile::open(&path).expect_err("it is open already").to_string();
            assert!(error.contains("another process"), "{error}");
        }
        let rows = UsageFile::open(&path).expect("opened").load().expect("rows");
        let of_m = rows[&row("m")];
        assert_eq!((rows.len(), of_m.requests, of_m.refused, of_m.last_used), (2, 3, 3, 7));
        assert_eq!((of_m.prompt_tokens, of_m.reasoning_tokens), (6, 15));
    }

    #[test]
    fn a_commit_that_failed_and_is_there_is_counted_once() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("usage");
        let mut file = UsageFile::open(&path).expect("opened");
        let rows = BTreeMap::from([(row("m"), counts(10))]);
        for is_there in [true, false] {
            let before = file.load().expect("rows").get(&row("m")).copied().unwrap_or_default();
            // As after a failure: the caller keeps the rows, and adds more to them.
            if is_there {
                file.commit(&rows, file.n_commits + 1).expect("committed");
            }
            file.database = None;
            file.uncertain = Some(rows.clone());
            let mut more = counts(10);
            more.add(&counts(1));
            file.add(&BTreeMap::from([(row("m"), more)])).expect("opened anew");
            let mut expected = before;
            expected.add(&more);
            assert_eq!(file.load().expect("rows")[&row("m")], expected, "{is_there}");
        }
    }

    #[test]
    fn what_is_no_usage_is_named() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("usage");
        UsageFile::open(folder.path()).expect_err("a folder");
        std::fs::write(&path, "some text ".repeat(1000)).expect("written");
        let error = UsageFile::open(&path).expect_err("text").to_string();
        assert!(error.contains("usage"), "{error}");
    }
}
