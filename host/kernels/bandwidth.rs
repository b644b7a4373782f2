//! The bandwidth kernels.
//!
//! Knows: their parameter block, and what must hold before it is given to them.
//! Must not know: what a thread reports.
//!
//! One of the files that call `unsafe` functions.

use std::time::Duration;

use warpverbs_wire::abi::{self, BwParams};

use super::run::{Results, Run};
use super::{DEFAULT_WAIT_DEADLINE, Doorbell, Sharing, check_qps, nanos};
use crate::driver::LaunchShape;
use crate::error::{Error, Result};
use crate::export::ExportedQp;
use crate::launch::{Stream, View};
use crate::module::Module;
use crate::resource::{GpuContext, Mr, RemoteMr};

/// Which way a bandwidth kernel moves data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Direction {
    /// RDMA write: from the local region to the remote one.
    #[default]
    Write,
    /// RDMA read: from the remote region to the local one.
    Read,
}

/// A run of `wv_write_bw` or `wv_read_bw`.
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
        self.check(module.gpu(), qps, local, remote)?;
        let kernel_name = match self.direction {
            Direction::Write => "wv_write_bw",
            Direction::Read => "wv_read_bw",
        };
        let kernel = module.kernel(kernel_name)?;
        let gpu = module.gpu();
        let addresses: Vec<u8> = qps
            .iter()
            .flat_map(|qp| qp.handle().to_le_bytes())
            .collect();
        let handles = gpu.alloc_copy(&addresses, "QP handle addresses")?;
        let results = Results::alloc(gpu, self.threads)?;
        let params = BwParams {
            version: abi::VERSION,
            qps: qps.len() as u32,
            handles: handles.addr(),
            results: results.memory.addr(),
            local: local.addr(),
            remote: remote.addr,
            lkey: local.lkey(),
            rkey: remote.rkey,
            size: self.size,
            slots: self.slots,
            iters: self.iters,
            deadline_ns: nanos(self.wait_deadline),
            sharing: match self.sharing {
                Sharing::Exclusive => abi::SHARING_EXCLUSIVE,
                Sharing::Gpu => abi::SHARING_GPU,
            },
            doorbell: self.doorbell.code(),
        };
        let view = qps
            .iter()
            .fold(View::new(), self.sharing.view())
            .mr(local)
            .memory(&handles)
            .memory(&results.memory);
        let block = self.block.min(self.threads);
        let shape = LaunchShape::linear(self.threads.div_ceil(block), block);
        // SAFETY: `Stream::launch` demands
        // - parameters as the kernel declares them: the module has this crate's ABI version, and
        //   the block is that version's;
        // - that the kernel accesses only memory that the view keeps and no Rust reference covers:
        //   it accesses the handles, queues and stop words of the QPs, the address array and the
        //   results, all GPU or host-mapped memory that the view keeps; message data is accessed by
        //   the NIC, which checks the keys.
        let launch = unsafe { stream.launch(&kernel, shape, &params.to_bytes(), view) }?;
        Ok(Run {
            kernel: kernel_name,
            expected: self.iters,
            launch,
            results,
        })
    }

    fn check(
        &self,
        gpu: &GpuContext,
        qps: &[ExportedQp],
        local: &Mr,
        remote: &RemoteMr,
    ) -> Result<()> {
        let wrong = |what: String, cure: &'static str| Err(Error::InvalidArgument { what, cure });
        if self.threads == 0
            || self.block == 0
            || self.size == 0
            || self.slots == 0
            || self.iters == 0
        {
            return wrong(
                "threads, block, size, slots and iters must not be 0".into(),
                "give each at least 1",
            );
        }
        if self.threads > self.block && !self.threads.is_multiple_of(self.block) {
            return wrong(
                format!(
                    "{} threads are no whole number of blocks of {}",
                    self.threads, self.block
                ),
                "choose a multiple of the block",
            );
        }
        if qps.is_empty() {
            return wrong("no QP given".into(), "give at least one");
        }
        if self.sharing == Sharing::Exclusive && self.threads as usize > qps.len() {
            return wrong(
                format!(
                    "{} threads need as many QPs of their own, {} given",
                    self.threads,
                    qps.len()
                ),
                "give a QP for each thread, or share the QPs",
            );
        }
        let each: Vec<_> = qps.iter().collect();
        check_qps(gpu, &each, self.size, self.doorbell)?;
        for (which, len) in [("local", local.len()), ("remote", remote.len)] {
            if self.region_len().is_none_or(|needed| needed > len) {
                return wrong(
                    format!(
                        "{} threads with {} slots of {} bytes do not fit the {which} region of {len} bytes",
                        self.threads, self.slots, self.size
                    ),
                    "register larger regions, or move less",
                );
            }
        }
        Ok(())
    }
}
