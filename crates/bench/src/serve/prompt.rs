//! Prompts of words.

use pelton_sim::trace::TraceRequest;

/// Common words. Most vocabularies have each of them, with a space before it, as one token.
const WORDS: &str = "the of and to in is was he for it with as his on be at by had not are but from \
    or have an they which one you were all her she there would their we him been has when who will \
    no more if out so up said what its about than into them can only other time new some could these \
    two may first then do any like my now over such our man me even most made after also did many \
    off before must well back through years much where your way down should because long each just \
    state those people too mr how little good world make very year still see own work men day get \
    here old life both between being under three never know same last another while us might great \
    go come since against right came take used himself few house use place during high without \
    again home around small however found part school thought went say general once upon war left \
    number course until always away something fact water less public put think almost hand enough \
    far took head yet better set told nothing night end why called find going look asked later next \
    knew city white group side face best let name";

/// The text of a request's prompt: a word for each token of the trace.
pub(super) fn prompt(request: &TraceRequest, number: u64, words: &[&str]) -> String {
    let n_words = u32::try_from(words.len()).expect("invariant: a short list");
    let mut text = String::with_capacity(request.n_prompt * 6);
    for token in request.prompt(number, n_words) {
        text.push(' ');
        text.push_str(words[token.0 as usize]);
    }
    text
}

/// All words.
pub(super) fn words() -> Vec<&'static str> {
    WORDS.split_ascii_whitespace().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use pelton_sim::trace::Prefix;

    #[test]
    fn prompts_have_the_words_of_the_trace_and_share_their_prefixes() {
        let words = words();
        assert!(words.len() > 200);
        let request = TraceRequest::new(0, 50, 1);
        let request = request.with_prefix(Prefix { id: 3, n_tokens: 20 }).expect("room");
        let of = |number| prompt(&request, number, &words);
        let (a, b) = (of(1), of(2));
        assert_eq!(a.split_ascii_whitespace().count(), 50);
        let first = |text: &str| {
            text.split_ascii_whitespace().take(20).map(str::to_owned).collect::<Vec<_>>()
        };
        assert_eq!(first(&a), first(&b));
        assert_ne!(a, b);
        assert_eq!(a, of(1));
    }
}
