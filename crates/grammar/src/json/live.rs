//! Which nodes have a finite value.
//!
//! A node is alive where some value fits it. That is the least solution of the obvious equations,
//! found by repetition from "nothing is alive": an object is alive once its required properties are,
//! a union once one of its nodes is. A list that must contain itself never becomes alive.

use super::node::{Array, Node, NodeId, Object};
use super::solve::Solved;
use crate::error::GrammarError;

/// Whether each node has a finite value.
///
/// # Errors
///
/// When the root has none; names the place that is at fault.
pub(super) fn check(nodes: &[Node]) -> Solved<Vec<bool>> {
    let mut alive = vec![false; nodes.len()];
    loop {
        let mut changed = false;
        // Members have larger numbers than what they are in.
        for id in (0..nodes.len()).rev() {
            if !alive[id] && is_alive(&nodes[id], &alive) {
                alive[id] = true;
                changed = true;
            }
        }
        if !changed {
            break;
        }
    }
    if alive.first() == Some(&true) {
        return Ok(alive);
    }
    Err(explain(nodes, &alive))
}

fn is_alive(node: &Node, alive: &[bool]) -> bool {
    match node {
        Node::Never { .. } => false,
        Node::Union(nodes) => nodes.iter().any(|node| alive[*node]),
        Node::Array(array) => dead_item(array, alive).is_none(),
        Node::Object(object) => dead_property(object, alive).is_none() && has_enough(object, alive),
        Node::Values(values) => !values.is_empty(),
        Node::Any | Node::Null | Node::Bool | Node::Number(_) | Node::Text(_) => true,
    }
}

/// An item that must be there and has no value.
fn dead_item(array: &Array, alive: &[bool]) -> Option<NodeId> {
    let first = array.prefix.iter().take(array.n.least).copied();
    let more = (array.n.least > array.prefix.len()).then_some(array.items);
    first.chain(more).find(|node| !alive[*node])
}

fn dead_property(object: &Object, alive: &[bool]) -> Option<NodeId> {
    let mut required = object.properties.iter().filter(|property| property.required);
    required.find(|property| !alive[property.node]).map(|property| property.node)
}

fn has_enough(object: &Object, alive: &[bool]) -> bool {
    let n_required = object.properties.iter().filter(|property| property.required).count();
    let n_possible = object.properties.iter().filter(|property| alive[property.node]).count();
    let is_open = object.rest.iter().any(|rest| alive[rest.node]);
    object.n.most.is_none_or(|most| n_required <= most) && (is_open || n_possible >= object.n.least)
}

/// Follows what must be there and has no value to the reason.
fn explain(nodes: &[Node], alive: &[bool]) -> GrammarError {
    let mut id = 0;
    let mut path = String::new();
    for _ in 0..nodes.len() {
        let next = match &nodes[id] {
            Node::Never { path, why } => return GrammarError::new(path.clone(), why.clone()),
            Node::Union(nodes) => nodes.last().copied(),
            Node::Array(array) => dead_item(array, alive),
            Node::Object(object) => {
                path.clone_from(&object.path);
                let Some(next) = dead_property(object, alive) else {
                    let why = "no object has a number of properties between minProperties and maxProperties";
                    return GrammarError::new(path, why);
                };
                Some(next)
            }
            _ => None,
        };
        let Some(next) = next else { break };
        id = next;
    }
    GrammarError::new(path, "it contains itself, so no value is finite")
}
