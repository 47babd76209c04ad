//! Forms of answers, made into rules of the model's own vocabulary.

use std::sync::{Arc, OnceLock};

use pelton_base::{Constraint, Namespace, ParamError, Shape, TokenId};
use pelton_grammar::{GrammarError, Grammars, Layout, Limits, Vocabulary};
use pelton_text::Tokenizer;

use crate::error::LlmError;
use crate::request::Generation;

/// Compiles the forms of requests; equal forms of one namespace are compiled once.
#[derive(Debug)]
pub(crate) struct Forms {
    tokenizer: Arc<Tokenizer>,
    /// The vocabulary as a tree takes a moment to build, so it waits for the first form.
    grammars: OnceLock<Result<Grammars, GrammarError>>,
}

impl Forms {
    pub(crate) fn new(tokenizer: &Arc<Tokenizer>) -> Self {
        Self { tokenizer: Arc::clone(tokenizer), grammars: OnceLock::new() }
    }

    /// Builds the vocabulary as a tree, unless that is done.
    pub(crate) fn prepare(&self) {
        // An error is told to the first request with a form.
        let _ = self.grammars();
    }

    fn grammars(&self) -> &Result<Grammars, GrammarError> {
        self.grammars.get_or_init(|| {
            let limits = Limits::default();
            Ok(Grammars::new(Vocabulary::new(&self.tokenizer, &limits)?, limits))
        })
    }

    /// The rule of a form, whose answers end with one of `ends`.
    ///
    /// # Errors
    ///
    /// Names the place in the request that cannot be enforced.
    pub(crate) fn compile(
        &self,
        shape: &Shape,
        layout: Layout,
        ends: &[TokenId],
        namespace: Namespace,
    ) -> Result<Constraint, LlmError> {
        let refuse = |GrammarError { path, why }| {
            // Some reasons begin with the place already.
            let why = why.strip_prefix(&format!("`{path}`: ")).map_or(why.clone(), str::to_owned);
            LlmError::Form { path, why }
        };
        let grammars = self.grammars().as_ref().map_err(|error| refuse(error.clone()))?;
        on_deep_stack(|| grammars.compile_as(shape, layout, ends, namespace)).map_err(refuse)
    }
}

/// Stack of the thread that compiles a form, in bytes: the compiler calls itself for each part of a
/// schema, and threads that serve have 2 MiB.
const STACK_BYTES: usize = 256 << 20;

/// Runs work on a thread with a deep stack, of which only as much is memory as is used.
fn on_deep_stack<T: Send>(
    work: impl FnOnce() -> Result<T, GrammarError> + Send,
) -> Result<T, GrammarError> {
    let fail = |why: String| GrammarError { path: String::new(), why };
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("pelton-grammar".to_owned());
        let thread = thread.stack_size(STACK_BYTES).spawn_scoped(scope, work);
        let thread =
            thread.map_err(|error| fail(format!("no thread to compile the form: {error}")))?;
        // The compiler guards itself; a panic here is one that it could not catch.
        thread.join().unwrap_or_else(|_| Err(fail("compiling the form failed".to_owned())))
    })
}

/// Refuses parameters that contradict a form.
///
/// # Errors
///
/// Names the parameter.
pub(crate) fn check(generation: &Generation) -> Result<(), ParamError> {
    let fail = |param, expected, got: &dyn std::fmt::Display| {
        Err(ParamError { param, expected, got: got.to_string() })
    };
    if generation.form.is_none() {
        return Ok(());
    }
    if generation.ignore_eos {
        return fail("ignore_eos", "false where the answer has a form, which ends it", &true);
    }
    match generation.sampling.min_tokens {
        0 => Ok(()),
        n => fail("min_tokens", "0 where the answer has a form, which ends it", &n),
    }
}
