//! Finds schemas that refer to themselves without going into the value.
//!
//! `{"$ref": "#"}` says of a value that it is what it is: nothing follows, and no value could ever
//! be finished. A schema may refer to itself through a property or an item.

use super::raw::{Raw, RawId};
use super::solve::Solved;
use crate::error::GrammarError;

/// # Errors
///
/// Names the schema that refers to itself, or whose references and `allOf` are nested too deep.
pub(super) fn check(raws: &[Raw], nesting: usize) -> Solved<()> {
    // Depth of the schemas below that speak about the same value; `None` while that is unknown.
    let mut depths: Vec<Option<usize>> = vec![None; raws.len()];
    let mut on_path = vec![false; raws.len()];
    for root in 0..raws.len() {
        let mut stack: Vec<(RawId, Vec<RawId>)> = Vec::new();
        if depths[root].is_none() {
            on_path[root] = true;
            stack.push((root, raws[root].in_place()));
        }
        while let Some((raw, below)) = stack.last_mut() {
            let raw = *raw;
            match below.pop() {
                Some(next) if on_path[next] => {
                    let why = "refers to itself without any property or item between, so no value is finite";
                    return Err(GrammarError::new(raws[raw].path.clone(), why));
                }
                Some(next) if depths[next].is_none() => {
                    on_path[next] = true;
                    stack.push((next, raws[next].in_place()));
                }
                Some(_) => {}
                None => {
                    let below = raws[raw].in_place();
                    let deepest = below.iter().filter_map(|next| depths[*next]).max();
                    let depth = deepest.map_or(0, |depth| depth + 1);
                    if depth > nesting {
                        let why = format!("references and allOf are nested deeper than {nesting}");
                        return Err(GrammarError::new(raws[raw].path.clone(), why));
                    }
                    depths[raw] = Some(depth);
                    on_path[raw] = false;
                    stack.pop();
                }
            }
        }
    }
    Ok(())
}
