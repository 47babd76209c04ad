//! Rules that an answer obeys: the tokens that may come next, token by token.

use crate::TokenId;
use std::fmt::Debug;
use std::ops::Deref;
use std::sync::Arc;

/// A set of tokens of a vocabulary, one bit per token.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct TokenSet {
    words: Vec<u64>,
}

impl TokenSet {
    /// Removes all tokens, and makes room for the tokens below `n_tokens`.
    pub fn clear(&mut self, n_tokens: usize) {
        self.words.clear();
        self.words.resize(n_tokens.div_ceil(64), 0);
    }

    /// Adds a token; a token for which there is no room is ignored.
    pub fn insert(&mut self, token: TokenId) {
        if let Some(word) = self.words.get_mut(token.0 as usize / 64) {
            *word |= 1 << (token.0 % 64);
        }
    }

    /// Whether a token is in it.
    pub fn contains(&self, token: TokenId) -> bool {
        self.words.get(token.0 as usize / 64).is_some_and(|word| word >> (token.0 % 64) & 1 == 1)
    }

    /// Its tokens as bits, 64 to a word, the lowest first.
    pub fn words(&self) -> &[u64] {
        &self.words
    }

    /// Its tokens as bits, 64 to a word, the lowest first, for rules that compute bit masks.
    pub fn words_mut(&mut self) -> &mut [u64] {
        &mut self.words
    }
}

/// A rule that answers obey, such as a grammar; each answer begins it anew.
pub trait Rule: Debug + Send + Sync {
    /// The rule at the beginning of an answer.
    fn begin(&self) -> Box<dyn RuleState>;

    /// Whether drafts obey the rule too, so that no forbidden draft is verified. Where they do not,
    /// a forbidden draft is rejected like any wrong draft.
    fn binds_drafts(&self) -> bool {
        true
    }
}

/// How far an answer has come in its rule.
pub trait RuleState: Debug + Send {
    /// Adds every token that may come next to `allowed`, which is empty. An answer for which no
    /// token is added cannot go on and ends with an error; a rule that is fulfilled allows a stop
    /// token.
    fn allow(&mut self, allowed: &mut TokenSet);

    /// Advances by `token`; returns `false` and changes nothing where it may not come next.
    fn accept(&mut self, token: TokenId) -> bool;

    /// Appends the tokens that must come next, whatever the model says: as many as are known, the
    /// first one first, none where there is a choice. [`allow`](Self::allow) adds nothing but the
    /// first of them, and after it nothing but the second, and so on.
    fn forced(&mut self, tokens: &mut Vec<TokenId>);

    /// The reason why [`allow`](Self::allow) added nothing, in words for the client: what the rule
    /// expected here; `None` where it has nothing to say.
    fn stuck(&self) -> Option<String>;

    /// A copy that advances independently.
    fn fork(&self) -> Box<dyn RuleState>;
}

/// The rule of a request. Two constraints are equal when they are the same rule.
#[derive(Clone, Debug)]
pub struct Constraint(pub Arc<dyn Rule>);

impl Constraint {
    /// The rule at the beginning of an answer for proposers, if drafts obey it.
    pub fn begin_for_drafts(&self) -> Option<Box<dyn RuleState>> {
        self.binds_drafts().then(|| self.begin())
    }
}

impl PartialEq for Constraint {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Deref for Constraint {
    type Target = dyn Rule;

    fn deref(&self) -> &Self::Target {
        &*self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_holds_what_it_has_room_for() {
        let mut set = TokenSet::default();
        set.insert(TokenId(3));
        assert!(!set.contains(TokenId(3)), "no room yet");
        set.clear(65);
        for token in [0, 63, 64, 200, u32::MAX] {
            set.insert(TokenId(token));
        }
        let held: Vec<u32> = (0..300).filter(|&token| set.contains(TokenId(token))).collect();
        assert_eq!(held, [0, 63, 64]);
        set.clear(65);
        assert!(!set.contains(TokenId(64)));
    }
}
