//! Receive memory pools: receive queues that QPs share.
//!
//! Knows: what belongs to one.
//! Must not know: mailboxes, or who takes its WQEs.

use warpverbs_wire::prm::rmpc::Rmpc;

use crate::objects::ObjectId;
use crate::receive::ReceiveQueue;

/// A receive memory pool.
#[derive(Clone, Debug)]
pub(crate) struct Rmp {
    pub(crate) uid: u16,
    pub(crate) context: Rmpc,
    pub(crate) queue: ReceiveQueue,
    /// An event is raised when fewer WQEs are left; zero is never.
    pub(crate) limit: u16,
    pub(crate) uses: Vec<ObjectId>,
}
