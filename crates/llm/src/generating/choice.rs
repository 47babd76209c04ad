//! One answer of a request while it grows.

use pelton_base::{FinishReason, TokenId, Usage};
use pelton_engine::{Fault, TokenStream, Trace};
use pelton_parse::{Delta, Reader, Standing};
use pelton_text::{Detokenizer, Tokenizer};

use crate::beam::BeamScore;
use crate::event::{CallPiece, Event, Finish};
use crate::stop::{StopMatcher, StopOutcome};

/// One answer.
pub(super) struct Choice {
    /// `None` once the answer has ended, and where beams are searched.
    pub(super) stream: Option<TokenStream>,
    pub(super) detokenizer: Detokenizer,
    pub(super) stop: StopMatcher,
    pub(super) usage: Usage,
    /// Takes thoughts and calls out of the text; `None` where the text is all.
    pub(super) reader: Option<Reader>,
    /// Tokens before which no thought has begun, and after which one may still: white space, or the
    /// header of a message.
    pub(super) n_undecided: usize,
    pub(super) n_calls: usize,
    pub(super) malformed_call: bool,
    /// Whether its first event has come.
    pub(super) has_begun: bool,
    /// The steps of an answer that has ended.
    pub(super) trace: Option<Trace>,
}

impl Choice {
    /// The text of a token, held back while a character is incomplete; control tokens that the
    /// reader looks for are text, too.
    pub(super) fn text_of(
        &mut self,
        id: TokenId,
        tokenizer: &Tokenizer,
        control: &[TokenId],
    ) -> String {
        let mut piece = self.detokenizer.push(id);
        if control.contains(&id) {
            let name = tokenizer.token_bytes(id).unwrap_or_default();
            piece.push_str(&String::from_utf8_lossy(name));
        }
        piece
    }

    /// Adds text to an event, as what it is.
    pub(super) fn read(&mut self, text: &str, event: &mut Event) {
        let Some(reader) = &mut self.reader else {
            event.text.push_str(text);
            return;
        };
        for delta in reader.push(text) {
            self.tell(delta, event);
        }
    }

    /// Counts the token whose text was read last, if it belongs to a thought.
    pub(super) fn count_thought(&mut self) {
        match self.reader.as_ref().map(Reader::standing) {
            Some(Standing::Undecided) => self.n_undecided += 1,
            Some(Standing::Thought) => {
                self.usage.reasoning_tokens += std::mem::take(&mut self.n_undecided) + 1;
            }
            Some(Standing::Said) | None => self.n_undecided = 0,
        }
    }

    /// Adds what the reader held back.
    pub(super) fn end(&mut self, event: &mut Event) {
        let Some(reader) = &mut self.reader else { return };
        let end = reader.finish();
        self.malformed_call |= end.malformed;
        for delta in end.deltas {
            self.tell(delta, event);
        }
    }

    fn tell(&mut self, delta: Delta, event: &mut Event) {
        match delta {
            Delta::Content(text) => event.text.push_str(&text),
            Delta::Reasoning(text) => event.thought.push_str(&text),
            Delta::Call { index, name } => {
                self.n_calls += 1;
                let (name, arguments) = (Some(name), String::new());
                event.calls.push(CallPiece { index, name, arguments });
            }
            Delta::Arguments { index, text } => match event.calls.last_mut() {
                Some(last) if last.index == index => last.arguments.push_str(&text),
                _ => event.calls.push(CallPiece { index, name: None, arguments: text }),
            },
        }
    }

    pub(super) fn finish(
        &self,
        reason: FinishReason,
        (stop, stop_token): (Option<String>, Option<TokenId>),
        fault: Option<Fault>,
        beam: Option<BeamScore>,
    ) -> Finish {
        let Self { usage, n_calls, malformed_call, .. } = *self;
        Finish { reason, stop, stop_token, fault, beam, n_calls, malformed_call, usage }
    }

    /// Finds stop strings that end in the text of the token that was counted last.
    pub(super) fn watch(&mut self, piece: &str, min_tokens: usize) -> StopOutcome {
        if self.usage.completion_tokens > min_tokens {
            return self.stop.push(piece);
        }
        StopOutcome { text: self.stop.push_early(piece), matched: None }
    }
}
