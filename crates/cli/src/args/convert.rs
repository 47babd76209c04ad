//! Flags of `pelton convert`.

use std::path::PathBuf;

use clap::Args;

pub(super) const HELP_END: &str = "\
Examples:
  pelton convert ./my-model model.gguf                        as stored, to the bit
  pelton convert ./my-model model-q4_k.gguf --format q4_k --head-format q6_k
  pelton convert big.gguf part.gguf --split-max-size 4G       part-00001-of-00003.gguf, ...
  pelton convert part-00001-of-00003.gguf whole.gguf          and back

With --format, norms, biases and expert routers are still stored as f32, because they are small and
every token depends on them. Rows that a format's blocks do not divide are stored as q8_0, or as f32.

The output file appears only when it is complete; an error or Ctrl-C leaves nothing behind.";

/// Flags of `pelton convert`.
#[derive(Args, Debug)]
pub(crate) struct ConvertArgs {
    /// Folder, .gguf file (any part of a split one), hub id (owner/name), or `embedded`
    pub(crate) input: String,
    /// The .gguf file to write
    #[arg(value_parser = parse_output)]
    pub(crate) output: PathBuf,
    /// Format of matrices, such as q8_0, q4_k or bf16 [default: as in the input]
    #[arg(long, value_name = "FORMAT")]
    pub(crate) format: Option<String>,
    /// Format of the embedding table [default: as other matrices]
    #[arg(long, value_name = "FORMAT")]
    pub(crate) embedding_format: Option<String>,
    /// Format of the output head [default: as other matrices]
    #[arg(long, value_name = "FORMAT")]
    pub(crate) head_format: Option<String>,
    /// Most bytes of tensors per file, such as 500M or 4G; larger outputs are split into several
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub(crate) split_max_size: Option<u64>,
    /// Replace existing files
    #[arg(long)]
    pub(crate) force: bool,
    /// One JSON object on stdout: files, bytes, tensors by type
    #[arg(long)]
    pub(crate) json: bool,
}

fn parse_output(text: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(text);
    let is_gguf = path.extension().is_some_and(|extension| extension == "gguf");
    if is_gguf { Ok(path) } else { Err("expected a name that ends in .gguf".to_owned()) }
}

/// Bytes with a decimal suffix.
pub(super) fn parse_size(text: &str) -> Result<u64, String> {
    let (digits, factor) = match text.char_indices().last() {
        Some((at, 'k' | 'K')) => (&text[..at], 1_000),
        Some((at, 'm' | 'M')) => (&text[..at], 1_000_000),
        Some((at, 'g' | 'G')) => (&text[..at], 1_000_000_000),
        _ => (text, 1),
    };
    let bytes = digits.parse::<u64>().ok().and_then(|n| n.checked_mul(factor));
    let is_digits = digits.bytes().all(|byte| byte.is_ascii_digit());
    bytes
        .filter(|&bytes| bytes > 0 && is_digits)
        .ok_or_else(|| "expected bytes, such as 500M or 4G (powers of 1000)".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_decimal_suffixes() {
        for (text, expected) in [
            ("1", Some(1)),
            ("3k", Some(3_000)),
            ("500M", Some(500_000_000)),
            ("4G", Some(4_000_000_000)),
            ("0", None),
            ("", None),
            ("G", None),
            ("+1", None),
            ("-1", None),
            ("1.5G", None),
            ("4GB", None),
            ("99999999999G", None),
            ("1é", None),
        ] {
            assert_eq!(parse_size(text).ok(), expected, "{text}");
        }
    }
}
