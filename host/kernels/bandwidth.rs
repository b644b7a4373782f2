//! Bandwidth in the usual modes.
//!
//! Knows: which [`Rate`] it is. Must not know: parameter blocks.

use std::time::Duration;

use super::DEFAULT_WAIT_DEADLINE;
use super::mode::{Doorbell, Sharing};
use super::rate::{Operation, Rate};
use super::run::Run;
use crate::error::Result;
use crate::export::ExportedQp;
use crate::launch::Stream;
use crate::module::Module;
use crate::resource::{Mr, RemoteMr};

/// Which way a bandwidth kernel moves data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Direction {
    /// RDMA write: from the local region to the remote one.
    #[default]
    Write,
    /// RDMA read: from the remote region to the local one.
    Read,
}

/// Writes or reads as fast as the queue takes them: a [`Rate`] whose every WQE completes, ordered at the system's scope.
///
/// Thread `t`'s operation `i` moves `size` bytes at offset `(t * slots + i % slots) * size` of both
/// regions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bandwidth {
    /// Which way data moves.
    pub direction: Direction,
    /// Threads, in blocks of [`Self::block`].
    pub threads: u32,
    /// Threads of a block.
    pub block: u32,
    /// Which threads share a QP.
    pub sharing: Sharing,
    /// How the doorbell is rung.
    pub doorbell: Doorbell,
    /// Bytes of one operation.
    pub size: u32,
    /// Buffers that a thread uses in turn.
    pub slots: u32,
    /// Operations of one thread.
    pub iters: u64,
    /// Time that one wait of a thread may take.
    pub wait_deadline: Duration,
}

impl Default for Bandwidth {
    /// One thread writes 4,096 bytes 1,000 times.
    fn default() -> Self {
        Self {
            direction: Direction::Write,
            threads: 1,
            block: 1024,
            sharing: Sharing::Exclusive,
            doorbell: Doorbell::Db,
            size: 4096,
            slots: 1,
            iters: 1000,
            wait_deadline: DEFAULT_WAIT_DEADLINE,
        }
    }
}

impl Bandwidth {
    /// Bytes that both regions must have.
    pub fn region_len(&self) -> Option<u64> {
        u64::from(self.threads)
            .checked_mul(self.slots.into())?
            .checked_mul(self.size.into())
    }

    /// Launches it.
    pub fn launch(
        &self,
        module: &Module,
        stream: &Stream,
        qps: &[ExportedQp],
        local: &Mr,
        remote: &RemoteMr,
    ) -> Result<Run> {
        let rate = Rate {
            operation: match self.direction {
                Direction::Write => Operation::Write,
                Direction::Read => Operation::Read,
            },
            threads: self.threads,
            block: self.block,
            sharing: self.sharing,
            doorbell: self.doorbell,
            size: self.size,
            slots: self.slots,
            iters: self.iters,
            wait_deadline: self.wait_deadline,
            ..Rate::default()
        };
        rate.launch(module, stream, qps, Some(local), remote)
    }
}
