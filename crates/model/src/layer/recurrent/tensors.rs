//! The tensors of a linear recurrence: those that files have, and those of a file to be.

use super::{Gate, Recurrent, RecurrentPlan, Rule, ValueHeads};
use crate::arch::{Part as Name, Stored};
use crate::error::ModelError;
use crate::export::{Listing, Order, Source, biased};
use crate::load::{LinearPlan, Lookup, NormPlan, Projection, Rows};

impl Recurrent {
    /// Projections of the residual stream, each part from the tensor that holds it.
    ///
    /// ```text
    /// delta, one tensor    of each key head  | q | k | its v | its z |
    /// delta, apart         | q | k | v |   | z |                    or  | q |   | k |   | v |   | z |
    ///     its gates        of each key head  | its b | its a |      or apart  | b |   | a |
    /// sum                  | z | v | k | q | decay |                        x, B, C and dt
    /// steady               of each head  | q | k | v |   | z |
    /// ```
    pub(super) fn projections(&self, lookup: &Lookup<'_, '_>, layer: usize) -> Vec<Projection> {
        let (key, value, heads) = (self.key_width(), self.value_width(), self.n_value_heads);
        let cut = |name, n_stored, first, n| Projection {
            name,
            rows: Rows { n, first, run: n, filled: n, stride: n, ..Rows::all(n_stored) },
        };
        if let Rule::Sum { .. } = self.rule {
            let part = |first, n| cut(Name::RecurrentIn, self.input_width(), first, n);
            let keys = 2 * value;
            return vec![
                part(keys + key, key),
                part(keys, key),
                part(value, value),
                part(0, value),
                part(keys + 2 * key, heads),
            ];
        }
        let has = |name| lookup.has(&lookup.stem(name, layer));
        let alone = |name, n| Projection { name, rows: Rows::all(n) };
        let [gate_width, beta_width, decay_width] = self.gate_widths();
        let (dim, group) = (self.key_dim, heads / self.n_key_heads);
        let of_heads = |name, per_head, first, run| {
            let (n, n_stored) = (self.n_key_heads * run, self.n_key_heads * per_head);
            let rows = Rows { n, first, run, filled: run, stride: per_head, ..Rows::all(n_stored) };
            Projection { name, rows }
        };
        let values = group * self.value_dim;
        if let Rule::Steady { .. } = self.rule {
            let part =
                |first, run| of_heads(Name::RecurrentQkv, 2 * dim + self.value_dim, first, run);
            let gate = alone(Name::RecurrentGate, gate_width);
            return vec![part(0, dim), part(dim, dim), part(2 * dim, self.value_dim), gate];
        }
        let mut all = if has(Name::RecurrentIn) {
            let part = |first, run| of_heads(Name::RecurrentIn, 2 * dim + 2 * values, first, run);
            let z = part(2 * dim + values, values);
            vec![part(0, dim), part(dim, dim), part(2 * dim, values), z]
        } else if has(Name::RecurrentQ) {
            let q = alone(Name::RecurrentQ, key);
            let (k, v) = (alone(Name::RecurrentK, key), alone(Name::RecurrentV, value));
            vec![q, k, v, alone(Name::RecurrentGate, gate_width)]
        } else {
            let part = |first, n| cut(Name::RecurrentQkv, self.channels(), first, n);
            let z = alone(Name::RecurrentGate, value);
            vec![part(0, key), part(key, key), part(2 * key, value), z]
        };
        all.extend(if has(Name::RecurrentGates) {
            let part = |first| of_heads(Name::RecurrentGates, 2 * group, first, group);
            [part(0), part(group)]
        } else {
            let beta = alone(Name::RecurrentBeta, beta_width);
            [beta, alone(Name::RecurrentDecay, decay_width)]
        });
        all
    }

    /// The taps of queries, keys and values, in one tensor or in three.
    pub(super) fn plan_taps<'a>(
        &self,
        lookup: &Lookup<'a, '_>,
        layer: usize,
    ) -> Result<NormPlan<'a>, ModelError> {
        if !lookup.has(&lookup.stem(Name::ConvQ, layer)) {
            return lookup.taps(Name::Conv, layer, [self.channels(), self.taps]);
        }
        let part = |name, channels| lookup.taps(name, layer, [channels, self.taps]);
        let mut plan = part(Name::ConvQ, self.key_width())?;
        for (name, channels) in [(Name::ConvK, self.key_width()), (Name::ConvV, self.value_width())]
        {
            plan.weights.extend(part(name, channels)?.weights);
        }
        plan.rows = Rows::all(self.channels() * self.taps);
        Ok(plan)
    }

    /// Lists the tensors of layer `layer` under the names of a GGUF file.
    pub(super) fn list_tensors<'a>(
        &self,
        plan: RecurrentPlan<'a>,
        layer: usize,
        list: &mut Listing<'a, '_>,
    ) -> Result<(), ModelError> {
        let order = |first, run| self.file_order(list.naming.stored, first, run);
        let (heads, of_heads) = (self.n_value_heads, order(0, 1));
        let of_taps = order(2 * self.key_width() * self.taps, self.value_dim * self.taps);
        let of_values = order(0, self.value_dim);
        self.list_input(plan.input, layer, list)?;
        for (name, up) in [(Name::DecayUp, plan.decay_up), (Name::RecurrentGateUp, plan.gate_up)] {
            up.map_or(Ok(()), |up| list.only(name, layer, up))?;
        }
        match (self.rule, plan.conv) {
            (Rule::ChannelDelta { .. }, Some(conv)) => self.list_convs(&conv, layer, list),
            (_, Some(conv)) => list.taps(Name::Conv, layer, conv, self.taps, of_taps),
            (_, None) => {}
        }
        list.bias(Name::Conv, layer, plan.conv_bias);
        if let Some(decay) = plan.decay {
            let shape = match self.rule {
                Rule::Sum { .. } => vec![heads, 1],
                Rule::ChannelDelta { .. } => vec![1, 1, heads, 1],
                _ => vec![heads],
            };
            list.decays(layer, decay, plan.decays_are_rates, shape, of_heads);
        }
        if let Some(NormPlan { weights, rows, .. }) = plan.decay_bias {
            let name = list.naming.bias(Name::DecayBias, layer);
            list.vector(name, Source::plain(weights, rows).ordered(of_heads));
        }
        if let Some(skip) = plan.skip {
            list.bare(Name::Skip, layer, skip, vec![heads, 1]);
        }
        if let Some(NormPlan { weights, rows, .. }) = plan.norm {
            let shape = match self.gate {
                Gate::BeforeNorm { n_groups } | Gate::AfterGroupNorm { n_groups } => {
                    vec![n_groups, rows.n / n_groups]
                }
                _ => vec![rows.n],
            };
            let name = list.naming.weight(Name::GatedNorm, layer);
            list.shaped(name, shape, Source::plain(weights, rows));
        }
        list.of_ordered(Name::RecurrentOut, layer, plan.out, of_values)
    }

    /// The order of a file's value heads, `run` rows each behind `first` rows, unless it is the decoder's.
    fn file_order(&self, stored: &Stored, first: usize, run: usize) -> Option<Order> {
        let (outer, inner) = (self.n_key_heads, self.n_value_heads / self.n_key_heads);
        let is_tiled = stored.value_heads == ValueHeads::Tiled && self.order != ValueHeads::Tiled;
        is_tiled.then_some(Order::Swapped { first, run, outer, inner })
    }

    /// Lists the projections of the residual stream, in the tensors of [`Self::projections`].
    fn list_input<'a>(
        &self,
        plan: LinearPlan<'a>,
        layer: usize,
        list: &mut Listing<'a, '_>,
    ) -> Result<(), ModelError> {
        let stored = list.naming.stored;
        let mut parts = biased(plan);
        let mut take = |n: usize| parts.by_ref().take(n).collect::<Vec<_>>();
        let order = |first, run| self.file_order(stored, first, run);
        match self.rule {
            Rule::Steady { .. } => Err(ModelError::Export(format!(
                "layer {layer}: decays that no row changes are not written as GGUF"
            ))),
            Rule::Sum { .. } => {
                let mut all = take(5);
                // Gates, values, keys, queries, and decays.
                all[..4].reverse();
                list.stacked(Name::RecurrentIn, layer, all, None)
            }
            Rule::ChannelDelta { .. } => {
                let names = [
                    Name::RecurrentQ,
                    Name::RecurrentK,
                    Name::RecurrentV,
                    Name::RecurrentGate,
                    Name::RecurrentBeta,
                    Name::RecurrentDecay,
                ];
                let all = names.into_iter().zip(parts);
                all.into_iter()
                    .try_for_each(|(name, part)| list.projection(name, layer, part, None))
            }
            Rule::Delta { .. } => {
                let (values, heads) = (order(2 * self.key_width(), self.value_dim), order(0, 1));
                list.stacked(Name::RecurrentQkv, layer, take(3), values)?;
                list.stacked(Name::RecurrentGate, layer, take(1), order(0, self.value_dim))?;
                if stored.are_gates_fused {
                    let (inner, run) = (self.n_key_heads, self.n_value_heads / self.n_key_heads);
                    let by_key_head = Order::Swapped { first: 0, run, outer: 2, inner };
                    return list.stacked(Name::RecurrentGates, layer, take(2), Some(by_key_head));
                }
                list.stacked(Name::RecurrentBeta, layer, take(1), heads)?;
                list.stacked(Name::RecurrentDecay, layer, take(1), heads)
            }
        }
    }

    /// Lists the taps of queries, keys and values, a tensor each.
    fn list_convs<'a>(&self, plan: &NormPlan<'a>, layer: usize, list: &mut Listing<'a, '_>) {
        let (key, value, taps) = (self.key_width(), self.value_width(), self.taps);
        let parts = [(Name::ConvQ, 0, key), (Name::ConvK, key, key), (Name::ConvV, 2 * key, value)];
        for (name, first, channels) in parts {
            let n = channels * taps;
            let rows = Rows { n, first: first * taps, run: n, filled: n, ..plan.rows };
            let source = Source::plain(plan.weights.clone(), rows);
            list.shaped(list.naming.weight(name, layer), vec![1, channels, 1, taps], source);
        }
    }
}
