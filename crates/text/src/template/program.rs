//! A compiled template, rewritten so that every expensive operation pays before it runs.
//!
//! ```text
//!   EmitRaw "text"     ->  LoadConst "text"; Emit            all output meets the formatter
//!   Add, Mul, Rem, ~   ->  CallFunction "+", "*", ..         our own, which know their sizes
//!   ==, !=, <, in      ->  CallFunction "==", ..
//!   filter, method     ->  CallFunction "|name", ".name"     pay, then call the real one
//!   x[i], x[i:j]       ->  CallFunction "[]", "[:]"
//!   {key: value}       ->  CallFunction "{}"
//!   test, set ns.x     ->  CallFunction " deep" on the operand, then the real one
//!   for                ->  CallFunction " shallow" on the list, then the real one
//! ```
//! Jump targets are mapped to the new places. The functions' names cannot be written in a template,
//! so no template can shadow or call them.

use std::collections::BTreeMap;

use minijinja::machinery::{
    CodeGenerator, Instruction, Instructions, Token, eval, make_string_output, parse, tokenize,
};
use minijinja::syntax::SyntaxConfig;
use minijinja::{Environment, Error, ErrorKind, Value};
use pelton_base::limits;

use super::names;

/// Compiled template, ready to run once or more.
pub(super) struct Program<'s> {
    main: Instructions<'s>,
    blocks: BTreeMap<&'s str, Instructions<'s>>,
}

const NAME: &str = "chat template";
/// Most names, operators and brackets in one tag; templates in use stay below a hundred.
const MAX_LINKS: usize = 1000;
/// Most `elif` in one template: each is a level of the tree below the one before.
const MAX_ELIFS: usize = 250;

/// Rewrites `{% generation %}`, which the compiler does not know, to `{% if true %}`: it marks the
/// assistant's words for training and changes nothing in the text.
///
/// # Errors
///
/// Refuses constant products so large that the compiler itself would fold them into memory, and
/// expressions so long that walking their tree could need more stack than there is.
pub(super) fn prepare(source: &str) -> Result<String, Error> {
    // Jinja reads every end of a line as one.
    let source = source.replace("\r\n", "\n").replace('\r', "\n");
    let source = source.as_str();
    let mut text = String::with_capacity(source.len());
    let mut copied = 0;
    let mut in_tag = Vec::new();
    let (mut n_links, mut n_elifs) = (0usize, 0usize);
    for token in tokenize(source, false, syntax()?) {
        let (token, span) = token?;
        let (start, end) = (span.start_offset as usize, span.end_offset as usize);
        // Every link of a chain (`a.b.c`, `1 + 1 + 1`, `not not x`) is a level of the tree; what
        // separates the items of a list is not.
        match &token {
            Token::VariableStart | Token::BlockStart => n_links = 0,
            Token::Comma | Token::Colon | Token::Str(_) | Token::String(_) | Token::Int(_) => {}
            Token::TemplateData(_) => {}
            _ => n_links += 1,
        }
        n_elifs += usize::from(in_tag.is_empty() && matches!(token, Token::Ident("elif")));
        if n_links > MAX_LINKS || n_elifs > MAX_ELIFS {
            let reason = format!(
                "expected at most {MAX_LINKS} names and operators in one tag and {MAX_ELIFS} `elif`"
            );
            return Err(Error::new(ErrorKind::SyntaxError, reason));
        }
        match token {
            Token::VariableStart | Token::BlockStart => in_tag.clear(),
            Token::VariableEnd | Token::BlockEnd => check_constants(&in_tag, source.len())?,
            Token::Ident(name) => {
                let replacement = match name {
                    "generation" => Some("if true"),
                    "endgeneration" => Some("endif"),
                    _ => None,
                };
                // A variable of that name in `{{ generation }}` is followed by no block end.
                if let Some(replacement) = replacement.filter(|_| is_block_tag(source, start)) {
                    text.push_str(&source[copied..start]);
                    text.push_str(replacement);
                    copied = end;
                }
                in_tag.push(Constant::Other);
            }
            Token::Mul => in_tag.push(Constant::Times),
            Token::Pow => in_tag.push(Constant::Power),
            Token::Int(n) => in_tag.push(Constant::Int(n)),
            Token::Int128(_) => in_tag.push(Constant::Int(u64::MAX)),
            _ => in_tag.push(Constant::Other),
        }
    }
    text.push_str(&source[copied..]);
    Ok(text)
}

enum Constant {
    Int(u64),
    Times,
    Power,
    Other,
}

fn is_block_tag(source: &str, at: usize) -> bool {
    source[..at].trim_end().trim_end_matches(['-', '+']).ends_with("{%")
}

/// Refuses a tag whose integers could repeat something into more than the output limit, because the
/// compiler folds constants without a useful limit of its own.
fn check_constants(tag: &[Constant], source_bytes: usize) -> Result<(), Error> {
    if !tag.iter().any(|token| matches!(token, Constant::Times)) {
        return Ok(());
    }
    let power = tag.iter().any(|token| matches!(token, Constant::Power));
    let product = tag.iter().fold(1u64, |product, token| match token {
        Constant::Int(n) => product.saturating_mul((*n).max(1)),
        _ => product,
    });
    let limit = limits::TEMPLATE_OUTPUT_BYTES as u64;
    if power || product.saturating_mul(source_bytes.min(256) as u64) > limit {
        let reason = "a product of constants is too large";
        return Err(Error::new(ErrorKind::SyntaxError, reason));
    }
    Ok(())
}

fn syntax() -> Result<SyntaxConfig, Error> {
    SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()
}

impl<'s> Program<'s> {
    pub(super) fn compile(source: &'s str) -> Result<Self, Error> {
        let tree = parse(source, NAME, syntax()?)?;
        let mut generator = CodeGenerator::new(NAME, source);
        generator.compile_stmt(&tree);
        let (main, blocks) = generator.finish();
        Ok(Self {
            main: rewrite(&main),
            blocks: blocks.iter().map(|(name, block)| (*name, rewrite(block))).collect(),
        })
    }

    pub(super) fn run<'e>(&self, env: &'e Environment<'e>, context: Value) -> Result<String, Error>
    where
        's: 'e,
    {
        let mut text = String::new();
        let mut out = make_string_output(&mut text);
        eval(env, &self.main, context, &self.blocks, &mut out, super::NO_ESCAPE)?;
        drop(out);
        Ok(text)
    }
}

fn rewrite<'s>(old: &Instructions<'s>) -> Instructions<'s> {
    let instructions = || (0..).map_while(|idx| Some((idx, old.get(idx)?)));
    // Where each old instruction begins in the new program; one more for the end.
    let mut places = Vec::new();
    let mut place = 0u32;
    for (_, instruction) in instructions() {
        places.push(place);
        place += guarded(instruction).len() as u32;
    }
    places.push(place);
    let moved = |target: &u32| places[*target as usize];

    let mut new = Instructions::new(old.name(), old.source());
    for (idx, instruction) in instructions() {
        for instruction in guarded(instruction) {
            let instruction = match &instruction {
                Instruction::Iterate(target) => Instruction::Iterate(moved(target)),
                Instruction::Jump(target) => Instruction::Jump(moved(target)),
                Instruction::JumpIfFalse(target) => Instruction::JumpIfFalse(moved(target)),
                Instruction::JumpIfFalseOrPop(to) => Instruction::JumpIfFalseOrPop(moved(to)),
                Instruction::JumpIfTrueOrPop(to) => Instruction::JumpIfTrueOrPop(moved(to)),
                Instruction::BuildMacro(name, target, flags) => {
                    Instruction::BuildMacro(name, moved(target), *flags)
                }
                _ => instruction,
            };
            match (old.get_span(idx), old.get_line(idx)) {
                (Some(span), _) => new.add_with_span(instruction, span),
                (None, Some(line)) => {
                    new.add_with_line(instruction, u16::try_from(line).unwrap_or(u16::MAX))
                }
                (None, None) => new.add(instruction),
            };
        }
    }
    new
}

/// Replacement of an instruction; jump targets are still the old ones.
fn guarded<'s>(instruction: &Instruction<'s>) -> Vec<Instruction<'s>> {
    let call = |name, n_args| Instruction::CallFunction(name, n_args);
    vec![match instruction {
        Instruction::EmitRaw(text) => {
            return vec![Instruction::LoadConst(Value::from(*text)), Instruction::Emit];
        }
        Instruction::Add => call("+", Some(2)),
        Instruction::Mul => call("*", Some(2)),
        Instruction::Rem => call("%", Some(2)),
        Instruction::StringConcat => call("~", Some(2)),
        Instruction::Eq => call("==", Some(2)),
        Instruction::Ne => call("!=", Some(2)),
        Instruction::Lt => call("<", Some(2)),
        Instruction::Lte => call("<=", Some(2)),
        Instruction::Gt => call(">", Some(2)),
        Instruction::Gte => call(">=", Some(2)),
        Instruction::In => call(" in ", Some(2)),
        Instruction::GetItem => call("[]", Some(2)),
        Instruction::Slice => call("[:]", Some(4)),
        // A literal of more pairs is more than any stack of arguments; it stays as it is.
        Instruction::BuildMap(n) if *n < 1 << 14 => call("{}", Some(2 * *n as u16)),
        Instruction::ApplyFilter(name, n_args, _) if names::filter_name(name).is_some() => {
            call(names::filter_name(name).unwrap_or_default(), *n_args)
        }
        Instruction::CallMethod(name, n_args) if names::method_name(name).is_some() => {
            call(names::method_name(name).unwrap_or_default(), *n_args)
        }
        // The operand of a test is on top; a test without one looks at nothing deep.
        Instruction::PerformTest(_, n_args, _) if *n_args != Some(1) => {
            return vec![call(" deep", Some(1)), instruction.clone()];
        }
        Instruction::SetAttr(_) => {
            let swap = Instruction::Swap;
            return vec![swap.clone(), call(" deep", Some(1)), swap, instruction.clone()];
        }
        Instruction::PushLoop(_) => {
            return vec![call(" shallow", Some(1)), instruction.clone()];
        }
        other => other.clone(),
    }]
}
