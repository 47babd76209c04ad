//! Keys and values of layers with an attention window, which are freed behind it.
//!
//! Such a layer reads the last tokens only. So a sequence holds blocks for two kinds of layers, from
//! one pool:
//!
//! ```text
//! tokens            | t t t t | t t t t | t t t t | t t t     block_size 4, reach 6
//! block table       [    7    |    2    |    9    |   11  ]   layers that read all tokens
//! window table      |  freed  |  freed  | 4 5 6   | 1 3 8 ]   layers with a window: here three times as
//!                                                             many, so three blocks for the same tokens
//! ```
//!
//! A *window block* is the keys and values of one block of tokens in the layers with a window. It is
//! `n_blocks` blocks of the pool, which always go together and have one count of holders.
//!
//! **The prefix cache** keeps window blocks beside the blocks of the same tokens. A prefix can be gone on
//! from only where all window blocks are kept that its next token reads. A window block that no sequence
//! uses is in one of two lists, in the order in which it was last used:
//!
//! | list | content | evicted |
//! |---|---|---|
//! | passed | tokens that their sequence went by | before anything else |
//! | ends | the window before the end of a prompt, of a sequence, or of a path that a prompt parted from | with the block of the same tokens; alone only where no block is left to evict |
//!
//! **Architecture invariant:** a window block is cached only while the block of the same tokens is. A
//! sequence that uses a cached window block pins the block of the same tokens.
//!
//! Models with recurrent layers have no window tables: their layers with a window keep all tokens.

use crate::{BlockId, BlockPool};
use pelton_base::KvWindows;
use std::collections::VecDeque;

/// Index of one window block.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct WindowId(u32);

impl WindowId {
    fn idx(self) -> usize {
        self.0 as usize
    }
}

/// The window blocks of one sequence: those of its last tokens.
#[derive(Debug)]
#[must_use = "a table that is dropped instead of released leaks its window blocks"]
pub(crate) struct WindowTable {
    /// Blocks of tokens before the first one that it holds.
    first: usize,
    ids: VecDeque<WindowId>,
}

impl WindowTable {
    /// A table that begins with the window block of `first`, with memory for `capacity` of them.
    pub(crate) fn new(first: usize, capacity: usize) -> Self {
        Self { first, ids: VecDeque::with_capacity(capacity) }
    }

    /// The first block of tokens that it holds.
    pub(crate) fn first(&self) -> usize {
        self.first
    }

    /// One after the last block of tokens that it holds.
    pub(crate) fn end(&self) -> usize {
        self.first + self.ids.len()
    }

    /// Number of window blocks.
    pub(crate) fn len(&self) -> usize {
        self.ids.len()
    }

    /// The window block of a block of tokens, where it is held.
    pub(crate) fn get(&self, idx: usize) -> Option<WindowId> {
        self.ids.get(idx.checked_sub(self.first)?).copied()
    }

    /// Appends a window block that has this table as a holder.
    pub(crate) fn push(&mut self, id: WindowId) {
        self.ids.push_back(id);
    }

    /// All window blocks, in the order of their tokens.
    pub(crate) fn ids(&self) -> impl DoubleEndedIterator<Item = WindowId> + '_ {
        self.ids.iter().copied()
    }
}

/// The lists of cached window blocks that no sequence uses.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum List {
    /// Evicted first.
    Passed,
    /// Evicted with their blocks.
    Ends,
}

const NONE: u32 = u32::MAX;

/// A doubly linked list of window blocks, the least recently used first.
#[derive(Clone, Copy, Debug)]
struct Chain {
    head: u32,
    tail: u32,
}

/// The state of a window block in the cache.
#[derive(Clone, Copy, Debug)]
struct Entry {
    /// The block of the same tokens, while the cache keeps this window block.
    home: u32,
    /// The list that it is in: it is cached, and no sequence uses it.
    list: Option<List>,
    before: u32,
    after: u32,
}

/// All window blocks.
#[derive(Debug)]
pub(crate) struct Windows {
    pub(crate) config: KvWindows,
    /// Counts the holders of window blocks: tables, the cache, and plans that copy from them.
    holders: BlockPool,
    /// `n_blocks` blocks of the pool for each window block.
    blocks: Vec<BlockId>,
    /// The pool, where blocks of tokens are not of it.
    own: Option<BlockPool>,
    entries: Vec<Entry>,
    /// `cached[block]` is the window block of the same tokens, where the cache keeps one.
    cached: Vec<u32>,
    chains: [Chain; 2],
    n_unused: usize,
}

impl Windows {
    /// Window blocks over a pool of `n_pool` blocks, beside `n_tokens` ids of blocks of tokens.
    pub(crate) fn new(config: KvWindows, n_pool: u32, n_tokens: usize) -> Self {
        let n_ids = n_pool / config.n_blocks as u32;
        let entry = Entry { home: NONE, list: None, before: NONE, after: NONE };
        Self {
            config,
            holders: BlockPool::new(n_ids),
            blocks: vec![BlockId(0); n_ids as usize * config.n_blocks],
            own: config.is_all.then(|| BlockPool::new(n_pool)),
            entries: vec![entry; n_ids as usize],
            cached: vec![NONE; n_tokens],
            chains: [Chain { head: NONE, tail: NONE }; 2],
            n_unused: 0,
        }
    }

    /// The pool of blocks: its own, or `shared`.
    pub(crate) fn pool<'a>(&'a self, shared: &'a BlockPool) -> &'a BlockPool {
        self.own.as_ref().unwrap_or(shared)
    }

    /// Whether blocks of tokens are ids alone, and take nothing of the pool.
    pub(crate) fn has_own_pool(&self) -> bool {
        self.own.is_some()
    }

    /// The blocks of a window block.
    pub(crate) fn blocks(&self, id: WindowId) -> &[BlockId] {
        let n_blocks = self.config.n_blocks;
        &self.blocks[id.idx() * n_blocks..][..n_blocks]
    }

    /// Cached window blocks that no sequence uses.
    pub(crate) fn n_unused(&self) -> usize {
        self.n_unused
    }

    /// Whether the cache keeps this window block and no sequence uses it.
    pub(crate) fn is_unused(&self, id: WindowId) -> bool {
        self.entries[id.idx()].list.is_some()
    }

    /// The window block of the same tokens as a cached block.
    pub(crate) fn of(&self, block: BlockId) -> Option<WindowId> {
        let id = self.cached[block.0 as usize];
        (id != NONE).then_some(WindowId(id))
    }

    /// Adds `n` new window blocks to a table. As many blocks as they take must be free.
    pub(crate) fn extend(&mut self, shared: &mut BlockPool, table: &mut WindowTable, n: usize) {
        let pool = self.own.as_mut().unwrap_or(shared);
        for _ in 0..n {
            let id = self.holders.allocate(1).and_then(|mut ids| ids.next());
            let id = WindowId(id.expect("invariant: a window block for each of its blocks").0);
            let n_blocks = self.config.n_blocks;
            let blocks = pool.allocate(n_blocks).expect("invariant: made free");
            for (slot, block) in self.blocks[id.idx() * n_blocks..].iter_mut().zip(blocks) {
                *slot = block;
            }
            table.push(id);
        }
    }

    /// Adds a holder to a window block.
    pub(crate) fn retain(&mut self, id: WindowId) {
        self.unlink(id);
        self.holders.retain(BlockId(id.0));
    }

    /// Removes a holder from a window block. One that the cache alone holds now goes to the end of
    /// `list`; one that nobody holds goes back to the pool.
    pub(crate) fn release(&mut self, shared: &mut BlockPool, id: WindowId, list: List) {
        self.holders.release(BlockId(id.0));
        match self.holders.ref_count(BlockId(id.0)) {
            0 => {
                let n_blocks = self.config.n_blocks;
                let pool = self.own.as_mut().unwrap_or(shared);
                for &block in self.blocks[id.idx() * n_blocks..][..n_blocks].iter().rev() {
                    pool.release(block);
                }
            }
            1 if self.entries[id.idx()].home != NONE => self.link(id, list),
            _ => {}
        }
    }

    /// Takes the window blocks before the block of tokens `first` out of a table. `list` says where a
    /// cached one goes.
    pub(crate) fn slide(
        &mut self,
        shared: &mut BlockPool,
        table: &mut WindowTable,
        first: usize,
        list: impl Fn(usize) -> List,
    ) {
        while table.first < first {
            let Some(id) = table.ids.pop_front() else {
                table.first = first;
                return;
            };
            self.release(shared, id, list(table.first));
            table.first += 1;
        }
    }

    /// Takes the window blocks from the block of tokens `end` on out of a table, the last first.
    pub(crate) fn truncate(&mut self, shared: &mut BlockPool, table: &mut WindowTable, end: usize) {
        while table.end() > end {
            let Some(id) = table.ids.pop_back() else { return };
            self.release(shared, id, List::Ends);
        }
    }

    /// Keeps the window block of a table beside a cached block of the same tokens, where the cache has
    /// none; where it has one, the table gets that one, and the one that it held is returned with its hold.
    pub(crate) fn offer(
        &mut self,
        table: &mut WindowTable,
        idx: usize,
        block: BlockId,
    ) -> Option<WindowId> {
        let ours = table.get(idx)?;
        match self.of(block) {
            None => {
                let home = &mut self.entries[ours.idx()].home;
                assert_eq!(*home, NONE, "a window block of two blocks");
                *home = block.0;
                self.cached[block.0 as usize] = ours.0;
                self.holders.retain(BlockId(ours.0));
                None
            }
            Some(kept) if kept != ours => {
                self.retain(kept);
                Some(std::mem::replace(&mut table.ids[idx - table.first], kept))
            }
            Some(_) => None,
        }
    }

    /// Forgets the window block of a block that leaves the cache.
    pub(crate) fn forget(&mut self, shared: &mut BlockPool, block: BlockId) {
        let Some(id) = self.of(block) else { return };
        self.unlink(id);
        self.entries[id.idx()].home = NONE;
        self.cached[block.0 as usize] = NONE;
        self.release(shared, id, List::Ends);
    }

    /// Evicts the least recently used window block of a list; `false` where there is none.
    pub(crate) fn evict(&mut self, shared: &mut BlockPool, list: List) -> bool {
        let head = self.chains[list as usize].head;
        if head == NONE {
            return false;
        }
        self.forget(shared, BlockId(self.entries[head as usize].home));
        true
    }

    fn link(&mut self, id: WindowId, list: List) {
        let tail = std::mem::replace(&mut self.chains[list as usize].tail, id.0);
        match tail {
            NONE => self.chains[list as usize].head = id.0,
            tail => self.entries[tail as usize].after = id.0,
        }
        let entry = &mut self.entries[id.idx()];
        (entry.list, entry.before, entry.after) = (Some(list), tail, NONE);
        self.n_unused += 1;
    }

    fn unlink(&mut self, id: WindowId) {
        let Entry { list, before, after, .. } = self.entries[id.idx()];
        let Some(list) = list else { return };
        match before {
            NONE => self.chains[list as usize].head = after,
            before => self.entries[before as usize].after = after,
        }
        match after {
            NONE => self.chains[list as usize].tail = before,
            after => self.entries[after as usize].before = before,
        }
        self.entries[id.idx()].list = None;
        self.n_unused -= 1;
    }

    /// Panics if a window block is lost or in a wrong list. `n_in_tables` are those of all tables and
    /// plans, and `keeps` says whether the cache keeps a block. Returns the blocks that window blocks
    /// take of the shared pool.
    pub(crate) fn check_integrity(
        &self,
        n_in_tables: usize,
        keeps: impl Fn(BlockId) -> bool,
    ) -> usize {
        self.holders.check_integrity();
        let cached = self.cached.iter().filter(|&&id| id != NONE);
        let n_held = n_in_tables + cached.clone().count();
        assert_eq!(self.holders.n_references(), n_held, "a window block has lost a holder");
        for (block, &id) in self.cached.iter().enumerate().filter(|(_, id)| **id != NONE) {
            assert!(keeps(BlockId(block as u32)), "a window block beside no block");
            assert_eq!(self.entries[id as usize].home, block as u32, "a window block moved");
        }
        let mut n_listed = 0;
        for list in [List::Passed, List::Ends] {
            let (mut next, mut before) = (self.chains[list as usize].head, NONE);
            while next != NONE {
                let entry = &self.entries[next as usize];
                assert_eq!((entry.list, entry.before), (Some(list), before), "a broken list");
                assert_eq!(self.holders.ref_count(BlockId(next)), 1, "a listed one is in use");
                (before, next) = (next, entry.after);
                n_listed += 1;
            }
            assert_eq!(self.chains[list as usize].tail, before, "a list without its end");
        }
        let alone = |&&id: &&u32| self.holders.ref_count(BlockId(id)) == 1;
        assert_eq!(n_listed, cached.filter(alone).count(), "an unused one is in no list");
        assert_eq!(n_listed, self.n_unused, "unused window blocks are counted wrong");
        let n_ids = self.holders.capacity() - self.holders.n_free();
        let n_blocks = n_ids * self.config.n_blocks;
        match &self.own {
            None => n_blocks,
            Some(own) => {
                own.check_integrity();
                assert_eq!(own.n_references(), n_blocks, "a block of a window is lost");
                0
            }
        }
    }

    /// Holders of a window block.
    pub(crate) fn n_holders(&self, id: WindowId) -> u32 {
        self.holders.ref_count(BlockId(id.0))
    }
}
