//! Window tables of sequences, and the cached prefixes that they can begin with.

use super::{Held, Host, Kv, Sizes};
use crate::windows::{List, WindowId, WindowTable};
use crate::{BlockId, RadixMatch, SchedulerOutput};
use std::ops::Range;

/// A sequence's hold on window blocks.
#[derive(Debug)]
pub(super) struct HeldWindows {
    pub(super) table: WindowTable,
    /// Blocks of tokens whose window blocks are worth keeping when the sequence has passed them.
    ends: [Range<usize>; 2],
}

/// The window blocks with which a sequence begins.
#[derive(Debug)]
pub(super) struct Beginning {
    /// The first block of tokens that it holds a window block for.
    first: usize,
    /// Window blocks that it shares, from `first` on.
    shared: Vec<WindowId>,
    /// The number of blocks that it takes.
    pub(super) n_own: usize,
}

impl Kv {
    /// The first block of tokens that a sequence reads in layers with a window when it computes the
    /// token at `n_computed`.
    fn first_needed(&self, n_computed: usize) -> usize {
        match &self.windows {
            Some(windows) if !self.reserves_all => {
                windows.config.reach.first_seen(n_computed) / self.block_size
            }
            _ => 0,
        }
    }

    /// Cuts a match back to where a sequence can go on: as deep as all window blocks are kept that the
    /// next token reads, or as deep as the KV on the host, whichever is deeper.
    pub(super) fn cut_to_windows(&mut self, found: &mut RadixMatch, host: Option<&Host>) {
        if self.windows.is_none() {
            return;
        }
        let n_partial = found.partial.map_or(0, |(_, n_tokens)| n_tokens);
        self.n_on_path = found.n_full * self.block_size + n_partial;
        let deepest = self.deepest_with_windows(&self.found);
        let kept = |(block, _): (BlockId, usize)| self.window_of(block).is_some();
        let keeps_partial = deepest == found.n_full && found.partial.is_some_and(kept);
        let n_cached = deepest * self.block_size + if keeps_partial { n_partial } else { 0 };
        match host.map(|host| host.n_tokens) {
            Some(n_on_host) if n_on_host > n_cached => {
                found.cut((n_on_host - 1) / self.block_size, &mut self.found);
            }
            _ if !keeps_partial => found.cut(deepest, &mut self.found),
            _ => {}
        }
    }

    /// The most leading blocks behind which a sequence finds the window blocks that it reads.
    fn deepest_with_windows(&self, blocks: &[BlockId]) -> usize {
        let (mut deepest, mut n_unbroken) = (0, 0);
        for (idx, &block) in blocks.iter().enumerate() {
            n_unbroken = if self.window_of(block).is_some() { n_unbroken + 1 } else { 0 };
            let end = idx + 1;
            if self.first_needed(end * self.block_size) + n_unbroken >= end {
                deepest = end;
            }
        }
        deepest
    }

    fn window_of(&self, block: BlockId) -> Option<WindowId> {
        self.windows.as_ref().and_then(|windows| windows.of(block))
    }

    /// The window blocks with which a sequence begins whose first `n_computed` tokens have KV, the
    /// first `n_full` blocks of them those of the last match. `n_loaded` leading tokens come from the
    /// host, where there are any.
    pub(super) fn begin_windows(
        &self,
        found: &RadixMatch,
        n_loaded: Option<usize>,
        sizes: Sizes,
    ) -> Option<Beginning> {
        self.windows.as_ref()?;
        let n_full = found.n_full;
        let first = self.first_needed(n_loaded.unwrap_or(n_full * self.block_size));
        let shared = match n_loaded {
            None => self.found[first..].iter().map_while(|&block| self.window_of(block)).collect(),
            Some(_) => Vec::new(),
        };
        assert!(n_loaded.is_some() || first + shared.len() == n_full, "a match without windows");
        let n_partial = found.partial.map_or(0, |(_, n_tokens)| n_tokens);
        let n_computed = n_loaded.unwrap_or(n_full * self.block_size + n_partial);
        Some(self.beginning(first, shared, n_computed, sizes))
    }

    /// Takes window blocks for what a token reads and for a chunk: computing on needs no more, because
    /// those of passed tokens are freed. A sequence that is alone takes them as it needs them.
    fn beginning(
        &self,
        first: usize,
        shared: Vec<WindowId>,
        n_computed: usize,
        sizes: Sizes,
    ) -> Beginning {
        let begins = first + shared.len();
        let n_all = sizes.n_reserved.div_ceil(self.block_size);
        let Some(windows) = self.windows.as_ref().filter(|_| !self.reserves_all) else {
            return Beginning { first, shared, n_own: n_all - begins };
        };
        let n_needed = windows.config.n_needed(self.block_size);
        let usual = n_all.min(first + n_needed + self.n_chunk_blocks);
        let least = (n_computed + 1).div_ceil(self.block_size);
        let end = if sizes.n_spare == 0 { least } else { usual };
        Beginning { first, shared, n_own: end.max(least) - begins }
    }

    /// Shared window blocks of a beginning that the cache could evict otherwise.
    pub(super) fn n_unused_in(&self, beginning: &Beginning) -> usize {
        let Some(windows) = &self.windows else { return 0 };
        beginning.shared.iter().filter(|&&id| windows.is_unused(id)).count()
    }

    /// Makes a sequence a holder of the window blocks that it shares.
    pub(super) fn share_windows(
        &mut self,
        beginning: &Beginning,
        sizes: Sizes,
    ) -> Option<Box<HeldWindows>> {
        let end_of =
            |n_tokens: usize| self.first_needed(n_tokens)..n_tokens.div_ceil(self.block_size);
        let ends = [end_of(sizes.n_prompt), end_of(self.n_on_path)];
        let windows = self.windows.as_mut()?;
        let usual = windows.config.n_needed(self.block_size) + self.n_chunk_blocks + 2;
        let n_most = if self.reserves_all { sizes.n_most_blocks } else { usual };
        let mut table = WindowTable::new(beginning.first, n_most.min(sizes.n_most_blocks));
        for &id in &beginning.shared {
            windows.retain(id);
            table.push(id);
        }
        Some(Box::new(HeldWindows { table, ends }))
    }

    /// The window blocks of a fork of `parent`, which has computed the first `n_shared` tokens.
    pub(super) fn fork_windows(
        &self,
        parent: &Held,
        n_shared: usize,
        sizes: Sizes,
    ) -> Option<Beginning> {
        let table = &parent.windows.as_ref()?.table;
        let (first, n_full) = (self.first_needed(n_shared), n_shared / self.block_size);
        let shared: Vec<WindowId> = (first..n_full).map_while(|idx| table.get(idx)).collect();
        assert_eq!(first + shared.len(), n_full, "a fork of what was freed");
        Some(self.beginning(first, shared, n_shared, sizes))
    }

    /// Whether a sequence still holds the window blocks with which another one goes on after its first
    /// `n_tokens` tokens.
    pub(crate) fn reaches(&self, held: &Held, n_tokens: usize) -> bool {
        held.windows.as_ref().is_none_or(|windows| {
            let first = self.first_needed(n_tokens);
            windows.table.first() <= first
                && n_tokens.div_ceil(self.block_size) <= windows.table.end()
        })
    }

    /// Holds a window block that the plan at hand may copy from.
    pub(super) fn hold_window(&mut self, id: Option<WindowId>) {
        if let (Some(windows), Some(id)) = (&mut self.windows, id) {
            windows.retain(id);
        }
    }

    /// Gives up a window block that was held and is not copied from.
    pub(super) fn let_window_go(&mut self, id: Option<WindowId>) {
        if let (Some(windows), Some(id)) = (&mut self.windows, id) {
            windows.release(&mut self.pool, id, List::Ends);
        }
    }

    /// Lists the copies of a window block that is held to that of a block of tokens `idx`. It is given up
    /// when the plan is carried out.
    pub(super) fn copy_window(
        &mut self,
        from: Option<WindowId>,
        to: &Held,
        idx: usize,
        output: &mut SchedulerOutput,
    ) {
        let (Some(windows), Some(from), Some(held)) = (&self.windows, from, &to.windows) else {
            return;
        };
        self.read_windows.push(from);
        let to = held.table.get(idx).expect("invariant: a window block to copy to");
        let pairs = windows.blocks(from).iter().zip(windows.blocks(to));
        output.copies.extend(pairs.map(|(&from, &to)| (from, to)));
    }

    /// Evicts one window block of a list; `false` where there is none.
    pub(super) fn evict_window(&mut self, list: List) -> bool {
        self.windows.as_mut().is_some_and(|windows| windows.evict(&mut self.pool, list))
    }

    /// Frees the window blocks that a sequence with `n_computed` tokens reads no more.
    pub(super) fn slide(&mut self, held: &mut Held, n_computed: usize) {
        let first = self.first_needed(n_computed);
        let (Some(windows), Some(held)) = (&mut self.windows, &mut held.windows) else { return };
        let ends = &held.ends;
        let list = |idx: usize| {
            let is_end = ends.iter().any(|end| end.contains(&idx));
            if is_end { List::Ends } else { List::Passed }
        };
        windows.slide(&mut self.pool, &mut held.table, first, list);
    }

    /// Adds window blocks to a table. As many blocks as they take must be free.
    pub(super) fn extend_windows(&mut self, held: &mut Held, n: usize) {
        if let (Some(windows), Some(held)) = (&mut self.windows, &mut held.windows) {
            windows.extend(&mut self.pool, &mut held.table, n);
        }
    }

    /// Gives back the window blocks from the block of tokens `end` on.
    pub(super) fn truncate_windows(&mut self, held: &mut Held, end: usize) {
        if let (Some(windows), Some(held)) = (&mut self.windows, &mut held.windows) {
            windows.truncate(&mut self.pool, &mut held.table, end);
        }
    }

    /// Keeps the window blocks of the blocks of tokens `offered`, which the cache keeps now.
    /// The window blocks that they replace are held for the plan at hand, if `is_planned`.
    pub(super) fn offer_windows(
        &mut self,
        held: &mut Held,
        offered: Range<usize>,
        is_planned: bool,
    ) {
        let Held { table, windows: held, .. } = held;
        let (Some(windows), Some(held)) = (&mut self.windows, held) else { return };
        let first = offered.start.max(held.table.first());
        for idx in first..offered.end {
            let replaced = windows.offer(&mut held.table, idx, table.blocks()[idx]);
            match replaced {
                Some(id) if is_planned => self.read_windows.push(id),
                Some(id) => windows.release(&mut self.pool, id, List::Ends),
                None => {}
            }
        }
    }

    /// Window blocks of a sequence.
    pub(super) fn n_windows(held: &Held) -> usize {
        held.windows.as_ref().map_or(0, |windows| windows.table.len())
    }

    /// Window blocks that a sequence lacks to compute up to `n_tokens` tokens.
    pub(super) fn n_missing_windows(&self, held: &Held, n_tokens: usize) -> usize {
        let end = held.windows.as_ref().map(|windows| windows.table.end());
        end.map_or(0, |end| n_tokens.div_ceil(self.block_size).saturating_sub(end))
    }

    /// Adds the block tables of a sequence to a plan, one for each memory group of layers: those that
    /// read all tokens, then those with a window. All have the same length; a block that was freed, or
    /// that this step does not reach, is block 0.
    pub(crate) fn write_tables(&self, held: &Held, blocks: &mut Vec<BlockId>) {
        let tokens = held.table.blocks();
        let (Some(windows), Some(held)) = (&self.windows, &held.windows) else {
            blocks.extend_from_slice(tokens);
            return;
        };
        if !windows.has_own_pool() {
            blocks.extend_from_slice(tokens);
        }
        for part in 0..windows.config.n_blocks {
            let ids = (0..tokens.len()).map(|idx| held.table.get(idx));
            let block = |id: Option<WindowId>| id.map_or(BlockId(0), |id| windows.blocks(id)[part]);
            blocks.extend(ids.map(block));
        }
    }

    /// Block tables of a sequence in a plan.
    pub(crate) fn n_tables(&self) -> usize {
        self.windows
            .as_ref()
            .map_or(1, |windows| windows.config.n_blocks + usize::from(!windows.has_own_pool()))
    }
}
