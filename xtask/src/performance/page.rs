//! The page, of which one part is measured.

use std::path::{Path, PathBuf};

use anyhow::Context;

const BEGINS: &str = "<!-- measured -->\n";
const ENDS: &str = "<!-- end of measured -->\n";

/// A page with a part to replace.
#[derive(Debug)]
pub(super) struct Page {
    path: PathBuf,
    before: String,
    behind: String,
}

impl Page {
    /// # Errors
    ///
    /// The file cannot be read, or has no part to replace, or several.
    pub(super) fn open(path: &Path) -> anyhow::Result<Self> {
        let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
        let parts = text.split_once(BEGINS).and_then(|(before, rest)| {
            let (_, behind) = rest.split_once(ENDS)?;
            (!behind.contains(BEGINS)).then_some((before, behind))
        });
        let (before, behind) = parts.with_context(|| {
            format!(
                "{}: expected one `{}` with one `{}` behind it",
                path.display(),
                BEGINS.trim(),
                ENDS.trim()
            )
        })?;
        Ok(Self { path: path.to_owned(), before: before.to_owned(), behind: behind.to_owned() })
    }

    /// Replaces the part. The page is read again: it may have been edited since.
    pub(super) fn write(&self, measured: &str) -> anyhow::Result<()> {
        let Self { path, before, behind } = Self::open(&self.path)?;
        let text = format!("{before}{BEGINS}\n{}\n\n{ENDS}{behind}", measured.trim());
        std::fs::write(&path, text).with_context(|| path.display().to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_measured_part_of_a_page_is_replaced() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let path = folder.path().join("page.md");
        std::fs::write(&path, format!("# Page\n{BEGINS}old\n{ENDS}behind\n")).expect("writes");
        for measured in ["new\n", "newer"] {
            Page::open(&path).expect("a page").write(measured).expect("writes");
            let text = std::fs::read_to_string(&path).expect("reads");
            let wanted = format!("# Page\n{BEGINS}\n{}\n\n{ENDS}behind\n", measured.trim());
            assert_eq!(text, wanted);
        }
        let page = Page::open(&path).expect("a page");
        std::fs::write(&path, format!("# Edited\n{BEGINS}{ENDS}")).expect("writes");
        page.write("newest").expect("writes");
        let text = std::fs::read_to_string(&path).expect("reads");
        assert_eq!(text, format!("# Edited\n{BEGINS}\nnewest\n\n{ENDS}"));
        for text in ["", BEGINS, "<!-- end of measured -->\n<!-- measured -->\n"] {
            std::fs::write(&path, text).expect("writes");
            let error = Page::open(&path).expect_err("no part to replace").to_string();
            assert!(error.contains("expected one `<!-- measured -->`"), "{error}");
        }
    }
}
