//! `pelton list`: the models on this machine, whichever program brought them.

use std::io::Write;

use pelton_llm::stores::{self, Store, StoredModel};

use crate::args::ListArgs;
use crate::failure::{Failure, Result};
use crate::stats::bytes;

/// Runs the command.
pub(crate) fn list(args: &ListArgs) -> Result<()> {
    let found = stores::list();
    let text = match args.json {
        true => format!("{}\n", serde_json::to_string(&found)?),
        false => table(&found),
    };
    let mut stdout = std::io::stdout().lock();
    stdout.write_all(text.as_bytes()).map_err(|error| Failure::stdout(&error))?;
    if found.is_empty() && !args.json {
        eprintln!("No models yet; `pelton pull Qwen/Qwen3-0.6B` downloads one of 1.5 GB.");
    }
    Ok(())
}

/// A line per model, in columns; nothing where there are none.
fn table(found: &[StoredModel]) -> String {
    if found.is_empty() {
        return String::new();
    }
    let head = ["NAME", "FORMAT", "SIZE", "FROM"].map(str::to_owned);
    let rows: Vec<[String; 4]> = std::iter::once(head).chain(found.iter().map(row)).collect();
    let width = |i: usize| rows.iter().map(|row| row[i].chars().count()).max().unwrap_or(0);
    let widths = [0, 1, 2].map(width);
    let line = |[name, format, size, from]: &[String; 4]| {
        let [w_name, w_format, w_size] = widths;
        format!("{name:<w_name$}  {format:<w_format$}  {size:>w_size$}  {from}\n")
    };
    rows.iter().map(line).collect()
}

fn row(model: &StoredModel) -> [String; 4] {
    let from = match (model.is_partial, model.store) {
        (false, store) => store.to_string(),
        (true, Store::HuggingFace) => format!("{}, not whole: `pelton pull` goes on", model.store),
        (true, store) => format!("{store}, not whole"),
    };
    [model.name.clone(), model.format.clone(), bytes(model.n_bytes), from]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_entry() {
        let model = |name: &str, n_bytes, is_partial| StoredModel {
            name: name.to_owned(),
            format: "GGUF Q8_0".to_owned(),
            n_bytes,
            is_partial,
            store: Store::Ollama,
            path: "/x".into(),
            commit: None,
        };
        let text = table(&[model("a:1b", 5, false), model("long:70b", 5 << 30, true)]);
        assert_eq!(
            text,
            "NAME      FORMAT        SIZE  FROM\n\
             a:1b      GGUF Q8_0      5 B  Ollama\n\
             long:70b  GGUF Q8_0  5.0 GiB  Ollama, not whole\n"
        );
        assert_eq!(table(&[]), "");
    }
}
