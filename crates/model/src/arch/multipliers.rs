//! Factors of projections that stand beside their weights.

use super::Part;

/// Factors of what the projections of all layers give, in models that were trained with them so that
/// settings found at one width hold at another (Yang et al., 2022).
///
/// ```text
/// q, v        W (attention_in · x) + b
/// k           key · (W (attention_in · x) + b)
/// recurrence  recurrent[i] · (W (recurrent_in · x) + b)          i: q, k, v, z, decay
/// out         attention_out · (W x + b), recurrent_out · (W x + b)
/// gate, down  gate · (W x + b), down · (W x + b)
/// ```
///
/// They multiply outputs, before the bias, and are in no weight: a stored weight loses no bit. They are
/// known for projections that a file stores apart.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Multipliers {
    /// Factor of the input of attention.
    pub attention_in: f32,
    /// Factor of keys.
    pub key: f32,
    /// Factor of what attention adds.
    pub attention_out: f32,
    /// Factor of the input of a recurrence.
    pub recurrent_in: f32,
    /// Factors of the queries, keys, values, gates and decays of a recurrence.
    pub recurrent: [f32; 5],
    /// Factor of what a recurrence adds.
    pub recurrent_out: f32,
    /// Factor of the gate of a perceptron, before its activation.
    pub gate: f32,
    /// Factor of what a perceptron adds.
    pub down: f32,
}

impl Multipliers {
    /// None.
    pub const ONE: Self = Self {
        attention_in: 1.0,
        key: 1.0,
        attention_out: 1.0,
        recurrent_in: 1.0,
        recurrent: [1.0; 5],
        recurrent_out: 1.0,
        gate: 1.0,
        down: 1.0,
    };

    /// Factors of the products and of the biases of a part, which is the `nth` of the same name.
    pub(crate) fn of(&self, part: Part, nth: usize) -> [f32; 2] {
        match part {
            Part::Q | Part::V => [self.attention_in, 1.0],
            Part::K => [self.attention_in * self.key, self.key],
            Part::O => [self.attention_out; 2],
            Part::RecurrentIn => {
                let own = self.recurrent.get(nth).copied().unwrap_or(1.0);
                [self.recurrent_in * own, own]
            }
            Part::RecurrentOut => [self.recurrent_out; 2],
            Part::Gate => [self.gate; 2],
            Part::Down => [self.down; 2],
            _ => [1.0; 2],
        }
    }
}
