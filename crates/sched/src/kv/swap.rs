//! KV on its way to the swap store and back.

use super::{Held, Host, Kv};
use crate::sequence::Sequence;
use crate::transfers::UnderWay;
use crate::{Direction, HostBlockId, SchedulerOutput, Transfer, TransferId};

impl Kv {
    /// Starts to copy the KV of the first `n_computed` tokens to the host; of a model with recurrent
    /// layers, that of the tokens before the border of the lane, whose state is kept too. The transfer
    /// takes `held`, which comes back when there is nothing to copy or no room for it.
    pub(crate) fn swap_out(
        &mut self,
        mut held: Held,
        sequence: &Sequence,
        n_computed: usize,
        output: &mut SchedulerOutput,
    ) -> Result<Host, Held> {
        let n_kept = held.lane.as_ref().map_or(n_computed, |lane| lane.border);
        let n_blocks = n_kept.div_ceil(self.block_size);
        self.slide(&mut held, n_computed);
        let first = held.windows.as_ref().map_or(n_blocks, |windows| windows.table.first());
        let n_moved = self.n_taken(n_blocks, n_blocks - first);
        let split = self.host.len().checked_sub(n_moved).filter(|_| n_moved > 0);
        let Some(split) = split else { return Err(held) };
        let mut snapshot = None;
        if let Some(lane) = &held.lane {
            snapshot = self.save(lane);
            if snapshot.is_none() {
                return Err(held);
            }
        }
        self.release_lane(&mut held);
        let blocks = self.host.split_off(split);
        self.offer(&mut held, sequence, n_computed / self.block_size, false);
        self.shrink(&mut held, n_kept);
        let first = output.moved.len();
        self.list_moves(&held, 0, &blocks, output);
        let id = self.transfers.begin(Some(held), Vec::new());
        let moved = first..output.moved.len();
        output.transfers.push(Transfer { id, direction: Direction::Out, moved });
        Ok(Host { blocks, n_tokens: n_kept, transfer: id, snapshot })
    }

    /// Starts to copy KV from the host to the blocks behind those that `held` shares. The transfer
    /// takes the host blocks.
    pub(crate) fn swap_in(
        &mut self,
        held: &Held,
        host: Host,
        output: &mut SchedulerOutput,
    ) -> TransferId {
        self.give_back(host.snapshot);
        let first = output.moved.len();
        self.list_moves(held, held.n_offered, &host.blocks, output);
        let id = self.transfers.begin(None, host.blocks);
        let moved = first..output.moved.len();
        output.transfers.push(Transfer { id, direction: Direction::In, moved });
        id
    }

    /// Lists the blocks that go from a sequence to the host or come from there: those of tokens from
    /// `n_shared` blocks on, and all window blocks, as far as the host has blocks for them.
    fn list_moves(
        &self,
        held: &Held,
        n_shared: usize,
        host: &[HostBlockId],
        output: &mut SchedulerOutput,
    ) {
        let tokens = held.table.blocks();
        let Some((all, windows)) = self.windows.as_ref().zip(held.windows.as_ref()) else {
            let pairs = tokens.iter().copied().zip(host.iter().copied());
            return output.moved.extend(pairs.skip(n_shared));
        };
        // Without windows of all layers, blocks of tokens come first: as many as there are tokens.
        let (n_tokens, each) = (host.len(), all.config.n_blocks);
        let n_tokens = match all.has_own_pool() {
            true => 0,
            false => (n_tokens + windows.table.first() * each) / (1 + each),
        };
        assert!(n_tokens <= tokens.len(), "invariant: blocks for what is moved");
        let pairs = tokens.iter().copied().zip(host.iter().copied()).take(n_tokens);
        output.moved.extend(pairs.skip(n_shared));
        let ids = windows.table.ids().flat_map(|id| all.blocks(id).iter().copied());
        output.moved.extend(ids.zip(host[n_tokens..].iter().copied()));
    }

    /// Takes back the memory of a transfer that is over.
    pub(crate) fn end_transfer(&mut self, id: TransferId) {
        let UnderWay { held, host, .. } = self.transfers.end(id);
        if let Some(held) = held {
            self.let_go(held);
        }
        self.host.extend(host);
    }

    /// Whether the KV on the host is still being copied there.
    pub(crate) fn is_arriving(&self, host: &Host) -> bool {
        self.transfers.is_under_way(host.transfer)
    }

    /// Gives host blocks back, at once or when the transfer that fills them is over.
    pub(crate) fn drop_host(&mut self, host: Host) {
        self.give_back(host.snapshot);
        match self.transfers.get_mut(host.transfer) {
            Some(transfer) => transfer.host.extend(host.blocks),
            None => self.host.extend(host.blocks),
        }
    }

    /// Gives the blocks of a sequence back when the transfer that fills them is over.
    pub(crate) fn abandon(&mut self, mut held: Held, id: TransferId) {
        self.release_lane(&mut held);
        let transfer = self.transfers.get_mut(id).expect("invariant: a loading sequence waits");
        transfer.held = Some(held);
    }

    pub(crate) fn is_under_way(&self, id: TransferId) -> bool {
        self.transfers.is_under_way(id)
    }

    /// Transfers under way.
    pub(crate) fn n_transfers(&self) -> usize {
        self.transfers.len()
    }

    /// Blocks that come back when transfers are over, at most: some may be pinned by other
    /// sequences.
    pub(crate) fn n_leaving(&self) -> usize {
        self.transfers.held().map(|held| self.n_held(held)).sum()
    }
}
