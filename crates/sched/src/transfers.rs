//! KV on its way between the device and a store beside it, and the memory that it holds until then.
//!
//! ```text
//! plan     transfer 7: blocks 2, 3 to the host as 0, 1      the executor starts it
//!            ... any number of steps ...
//! outcome  transfer 7 is over                               its memory is given back
//! ```
//!
//! A transfer reads or writes its blocks at any time until the executor reports it. So both ends
//! are held until then: a block that is copied out is not handed out again, and a sequence whose KV
//! comes in is not computed.

use crate::kv::Held;
use crate::{HostBlockId, TransferId};

/// The transfers that a plan named and that no outcome has reported yet.
#[derive(Debug, Default)]
pub(crate) struct Transfers {
    under_way: Vec<UnderWay>,
    next_id: u64,
}

/// One transfer, and the memory that is given back when it is over. The memory of the other end
/// belongs to its sequence meanwhile, unless the sequence ends first.
#[derive(Debug)]
pub(crate) struct UnderWay {
    id: TransferId,
    pub(crate) held: Option<Held>,
    pub(crate) host: Vec<HostBlockId>,
}

impl Transfers {
    /// Begins a transfer that holds this memory.
    pub(crate) fn begin(&mut self, held: Option<Held>, host: Vec<HostBlockId>) -> TransferId {
        let id = TransferId(self.next_id);
        self.next_id += 1;
        self.under_way.push(UnderWay { id, held, host });
        id
    }

    /// Ends a transfer; its memory comes back.
    ///
    /// # Panics
    ///
    /// Panics if it is not under way: the executor reports each transfer once.
    pub(crate) fn end(&mut self, id: TransferId) -> UnderWay {
        let idx = self.under_way.iter().position(|transfer| transfer.id == id);
        self.under_way.swap_remove(idx.unwrap_or_else(|| panic!("{id} is not under way")))
    }

    /// A transfer, while it is under way.
    pub(crate) fn get_mut(&mut self, id: TransferId) -> Option<&mut UnderWay> {
        self.under_way.iter_mut().find(|transfer| transfer.id == id)
    }

    pub(crate) fn is_under_way(&self, id: TransferId) -> bool {
        self.under_way.iter().any(|transfer| transfer.id == id)
    }

    pub(crate) fn len(&self) -> usize {
        self.under_way.len()
    }

    /// Device memory that comes back when transfers are over.
    pub(crate) fn held(&self) -> impl Iterator<Item = &Held> + Clone {
        self.under_way.iter().filter_map(|transfer| transfer.held.as_ref())
    }

    /// Host blocks that come back when transfers are over.
    pub(crate) fn n_host_blocks(&self) -> usize {
        self.under_way.iter().map(|transfer| transfer.host.len()).sum()
    }
}
