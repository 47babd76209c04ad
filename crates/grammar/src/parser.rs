//! llguidance's parser of one answer, whose panics and errors end this answer alone.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use llguidance::api::StopReason;
use llguidance::{TokenParser, panic_utils};
use pelton_base::TokenId;
use toktrie::SimpleVob;

use crate::bias::Bias;
use crate::budget::Share;
use crate::state::in_words;

/// A parser, or the reason why it gave up.
pub(crate) struct Parser {
    inner: TokenParser,
    bias: Arc<Bias>,
    /// Memory that its lexer holds out of the bound of all; none for the beginning of a grammar.
    share: Option<Arc<Share>>,
    failed: Option<String>,
}

impl Parser {
    /// A parser at the beginning of its grammar.
    pub(crate) fn new(mut inner: TokenParser, bias: Bias) -> Self {
        let bias = Arc::new(bias);
        inner.bias_computer = Arc::<Bias>::clone(&bias);
        if inner.is_fresh() {
            inner.start_without_prompt();
        }
        Self { inner, bias, share: None, failed: None }
    }

    /// A copy that shares nothing with it, and whose memory counts as this share.
    pub(crate) fn copy(&self, share: Share) -> Self {
        let bias = Arc::new(self.bias.copy());
        // The lexer of a parser that failed may be lost.
        let mut inner =
            if self.failed.is_none() { self.inner.deep_clone() } else { self.inner.clone() };
        inner.bias_computer = Arc::<Bias>::clone(&bias);
        let share = Some(Arc::new(share));
        let mut copy = Self { inner, bias, share, failed: self.failed.clone() };
        copy.count();
        copy
    }

    /// A copy at the same place that shares the states of the lexer with it.
    pub(crate) fn fork(&self) -> Self {
        Self {
            inner: self.inner.clone(),
            bias: Arc::clone(&self.bias),
            share: self.share.clone(),
            failed: self.failed.clone(),
        }
    }

    /// Why it gave up.
    pub(crate) fn failure(&self) -> Option<&str> {
        self.failed.as_deref()
    }

    /// Whether nothing can follow.
    pub(crate) fn is_stopped(&self) -> bool {
        self.failed.is_some() || self.inner.stop_reason() != StopReason::NotStopped
    }

    /// The tokens that may come next.
    pub(crate) fn mask(&mut self) -> Option<SimpleVob> {
        let mask = self.guard(|inner| inner.compute_mask().map_err(|error| error.to_string()));
        self.count();
        mask.filter(|_| self.failed.is_none())
    }

    /// Whether the grammar may end here.
    pub(crate) fn may_end(&mut self) -> bool {
        self.guard(|inner| Ok(inner.is_accepting())).unwrap_or(false)
    }

    /// The tokens that must come next.
    pub(crate) fn forced(&mut self) -> Vec<u32> {
        self.guard(|inner| Ok(inner.compute_ff_tokens())).unwrap_or_default()
    }

    /// Whether a token may come next.
    pub(crate) fn takes(&mut self, token: TokenId) -> bool {
        let n_taken = self.guard(|inner| {
            inner.validate_tokens_raw(&[token.0]).map_err(|error| error.to_string())
        });
        n_taken == Some(1)
    }

    /// Goes on by a token that may come next.
    pub(crate) fn consume(&mut self, token: TokenId) -> bool {
        let consumed = self.guard(|inner| {
            let n_back = inner.consume_token(token.0).map_err(|error| error.to_string())?;
            if n_back > 0 {
                return Err("the grammar takes back what it allowed".to_owned());
            }
            inner.check_stop().map_err(|error| error.to_string())
        });
        consumed.is_some()
    }

    /// Counts what its lexer holds; it gives up where that is too much.
    fn count(&mut self) {
        let Some(share) = self.share.clone().filter(|_| self.failed.is_none()) else { return };
        let bytes = self.guard(|inner| Ok(inner.parser.lexer_stats().num_bytes)).unwrap_or(0);
        if !share.hold(bytes) {
            let (own, most) = (bytes.div_ceil(1 << 20), share.most() >> 20);
            self.failed = Some(format!(
                "its form holds {own} MiB where the forms of all answers may hold {most} MiB; \
                 send it again when there are fewer, or ask for a smaller form"
            ));
        }
    }

    /// Does something, unless it gave up before; an error or a panic makes it give up.
    fn guard<T>(&mut self, work: impl FnOnce(&mut TokenParser) -> Result<T, String>) -> Option<T> {
        if self.failed.is_some() {
            return None;
        }
        let inner = &mut self.inner;
        let done = panic_utils::catch_unwind(AssertUnwindSafe(|| Ok(work(inner))));
        match done {
            Ok(Ok(value)) => Some(value),
            Ok(Err(error)) => {
                self.failed = Some(in_words(&error));
                None
            }
            Err(error) => {
                self.failed = Some(in_words(&error.to_string()));
                None
            }
        }
    }
}
