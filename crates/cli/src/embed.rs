//! `pelton embed`: vectors of texts, or the similarities of the texts.

use std::io::{BufRead, BufReader, Read, Write};
use std::sync::Arc;

use pelton_base::limits;
use pelton_llm::{EmbedInput, EmbedRequest, Embedder, Embeddings, LlmError, cosine};
use serde_json::json;

use crate::args::EmbedArgs;
use crate::failure::{Failure, Result};
use crate::model;

/// Texts of one request: enough to fill steps, few enough to report errors early.
const TEXTS_PER_REQUEST: usize = 256;

/// A text, and where it stands.
struct Given {
    text: String,
    place: String,
}

/// Runs the command.
pub(crate) fn embed(args: &EmbedArgs) -> Result<()> {
    let texts = gather(args)?;
    let chosen = args.chosen();
    let reference = model::reference(Some(&args.model))?;
    let embedder = model::load_embedder(&chosen.runtime()?, &reference, &chosen.embed_options())?;
    let embeddings = embed_all(&embedder, &texts, args)?;
    let mut stdout = std::io::BufWriter::new(std::io::stdout().lock());
    let written = match args.json {
        true => writeln!(stdout, "{}", whole(&embedder, &embeddings, args)),
        false => lines(&mut stdout, &embeddings, args),
    };
    written.and_then(|()| stdout.flush()).map_err(|error| Failure::stdout(&error))
}

fn embed_all(embedder: &Arc<Embedder>, texts: &[Given], args: &EmbedArgs) -> Result<Embeddings> {
    let mut all = Embeddings { vectors: Vec::new(), n_tokens: Vec::new() };
    for chunk in texts.chunks(TEXTS_PER_REQUEST) {
        let request = EmbedRequest {
            inputs: chunk.iter().map(|given| EmbedInput::Text(given.text.clone())).collect(),
            dimensions: args.dimensions.map(Into::into),
            prompt_name: args.prompt.clone(),
            truncate: args.truncate,
        };
        let more = embedder.embed(request).map_err(|error| refused(error, chunk))?;
        all.vectors.extend(more.vectors);
        all.n_tokens.extend(more.n_tokens);
    }
    Ok(all)
}

/// A failure that says where the text stands that it is about.
fn refused(error: LlmError, texts: &[Given]) -> Failure {
    let at = |index: usize, what: &str| Failure::new(format!("{}: {what}", texts[index].place));
    match error {
        LlmError::EmptyInput { index } => {
            at(index, "the text is empty: expected at least one token")
        }
        LlmError::InputTooLong { index, n_tokens, limit } => {
            at(index, &format!("the text has {n_tokens} tokens or more, and at most {limit} fit"))
                .hint("`--truncate` cuts it")
        }
        error => error.into(),
    }
}

/// The texts of the command line, of standard input and of the file, in this order.
fn gather(args: &EmbedArgs) -> Result<Vec<Given>> {
    let mut texts = Vec::new();
    for (idx, text) in args.texts.iter().enumerate() {
        match text.as_str() {
            "-" => read_lines("standard input", std::io::stdin().lock(), &mut texts)?,
            text => {
                let place = format!("text {} of the command line", idx + 1);
                texts.push(Given { text: text.to_owned(), place });
            }
        }
    }
    if let Some(path) = &args.file {
        let name = path.display().to_string();
        let file =
            std::fs::File::open(path).map_err(|error| Failure::new(format!("{name}: {error}")))?;
        read_lines(&name, BufReader::new(file), &mut texts)?;
    }
    match texts.is_empty() {
        true => Err(Failure::new("no texts: expected at least one line")),
        false => Ok(texts),
    }
}

/// Lines without their ends, each and all of them of a limited length: a pipe may be endless.
fn read_lines(name: &str, mut input: impl BufRead, texts: &mut Vec<Given>) -> Result<()> {
    let most = limits::PROMPT_BYTES as u64;
    let mut n_left = limits::EMBED_TEXTS_BYTES;
    for line in 1.. {
        let mut bytes = Vec::new();
        input
            .by_ref()
            .take(most + 2)
            .read_until(b'\n', &mut bytes)
            .map_err(|error| Failure::new(format!("{name}: {error}")))?;
        if bytes.is_empty() {
            break;
        }
        n_left = n_left.checked_sub(bytes.len()).ok_or_else(|| {
            let most = limits::EMBED_TEXTS_BYTES;
            Failure::new(format!("{name}: expected at most {most} bytes, got more"))
        })?;
        let text = String::from_utf8(bytes)
            .map_err(|_| Failure::new(format!("{name}, line {line}: expected UTF-8")))?;
        let text = text.strip_suffix('\n').unwrap_or(&text);
        let text = text.strip_suffix('\r').unwrap_or(text);
        if text.len() as u64 > most {
            return Err(Failure::new(format!("{name}, line {line}: at most {most} bytes")));
        }
        texts.push(Given { text: text.to_owned(), place: format!("{name}, line {line}") });
    }
    Ok(())
}

fn similarities(vectors: &[Vec<f32>]) -> Vec<Vec<f64>> {
    let row = |a: &Vec<f32>| vectors.iter().map(|b| cosine(a, b)).collect();
    vectors.iter().map(row).collect()
}

fn lines(out: &mut impl Write, embeddings: &Embeddings, args: &EmbedArgs) -> std::io::Result<()> {
    if args.similarity {
        for row in similarities(&embeddings.vectors) {
            let cells: Vec<String> = row.iter().map(|x| format!("{x:7.4}")).collect();
            writeln!(out, "{}", cells.join(" "))?;
        }
        return Ok(());
    }
    for vector in &embeddings.vectors {
        let cells: Vec<String> = vector.iter().map(ToString::to_string).collect();
        writeln!(out, "{}", cells.join(" "))?;
    }
    Ok(())
}

fn whole(embedder: &Embedder, embeddings: &Embeddings, args: &EmbedArgs) -> serde_json::Value {
    let n_tokens: usize = embeddings.n_tokens.iter().sum();
    let mut whole = json!({
        "model": embedder.info(),
        "n_tokens": embeddings.n_tokens,
        "usage": { "prompt_tokens": n_tokens, "total_tokens": n_tokens },
    });
    if args.similarity {
        whole["similarity"] = json!(similarities(&embeddings.vectors));
    } else {
        whole["embeddings"] = json!(embeddings.vectors);
    }
    whole
}
