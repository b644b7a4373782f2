//! Kernels that make one call of the data path, and those that make and compare data.
//!
//! Knows: their parameter blocks, and what must hold before they are given to them.
//! Must not know: what a thread reports.
//!
//! One of the files that call `unsafe` functions.

use std::time::Duration;

use warpverbs_wire::abi::{self, BwParams, DataParams, Descriptor, TaskParams};

use super::bandwidth::Direction;
use super::mode::{Completions, Doorbell, Order, Sharing, check_modes};
use super::run::{Results, Run};
use super::{DEFAULT_WAIT_DEADLINE, check_qps, nanos, wrong};
use crate::driver::LaunchShape;
use crate::error::Result;
use crate::export::ExportedQp;
use crate::launch::{Stream, View};
use crate::module::Module;
use crate::resource::{GpuMemory, Mr, RemoteMr};

/// What the threads of a [`TaskLaunch`] do.
#[derive(Clone, Copy, Debug)]
pub enum Task<'a> {
    /// `wv_put_signal`: thread `t`'s operation `i` writes `size` bytes at offset `(t * slots + i % slots) * size` of both regions, and
    /// behind that adds to the signal.
    PutSignal {
        /// Where data comes from.
        local: &'a Mr,
        /// Where it goes.
        remote: RemoteMr,
        /// Bytes of one write.
        size: u32,
        /// Buffers that a thread uses in turn.
        slots: u32,
        /// Operations of one thread.
        iters: u64,
        /// The signal: its first 8 bytes. Registered without relaxed ordering.
        signal: RemoteMr,
        /// What is added.
        add: u64,
        /// Where values before the signals go: 8 bytes a thread.
        fetched: &'a Mr,
    },
    /// `wv_wait_signal`: each thread waits until the first 8 bytes are at least the value.
    WaitSignal {
        /// The word, which a peer's signal changes.
        word: &'a Mr,
        /// What it is to be, at least.
        value: u64,
    },
    /// `wv_put_list`: the threads share descriptors, which lie in this memory one behind the other, and wait for what they say.
    List {
        /// The [`Descriptor`]s.
        descriptors: &'a GpuMemory,
        /// How many.
        count: u64,
        /// Which way data moves.
        direction: Direction,
        /// The local region of all of them.
        local: &'a Mr,
    },
    /// `wv_progress`: each thread takes up to so many completions of its queue, if they are there.
    Progress {
        /// Completions.
        most: u32,
    },
    /// `wv_drain`: each thread waits until all that was posted to its queue has completed.
    Drain,
}

/// A launch of a [`Task`].
#[derive(Clone, Copy, Debug)]
pub struct TaskLaunch<'a> {
    /// What threads do.
    pub task: Task<'a>,
    /// Threads, in blocks of [`Self::block`].
    pub threads: u32,
    /// Threads of a block.
    pub block: u32,
    /// Which threads share a QP: [`Sharing::Exclusive`] or [`Sharing::Gpu`].
    pub sharing: Sharing,
    /// Time that one wait of a thread may take.
    pub wait_deadline: Duration,
}

impl<'a> TaskLaunch<'a> {
    /// By one thread, on a QP of its own.
    pub fn new(task: Task<'a>) -> Self {
        Self {
            task,
            threads: 1,
            block: 32,
            sharing: Sharing::Exclusive,
            wait_deadline: DEFAULT_WAIT_DEADLINE,
        }
    }

    /// Launches it.
    pub fn launch(&self, module: &Module, stream: &Stream, qps: &[ExportedQp]) -> Result<Run> {
        let gpu = module.gpu();
        if !matches!(self.sharing, Sharing::Exclusive | Sharing::Gpu) {
            return wrong(
                format!("sharing {:?} has no such kernel", self.sharing),
                "choose the sharing Exclusive or Gpu",
            );
        }
        super::check_geometry((self.threads, self.block, self.sharing), (1, 1, 1), qps)?;
        let each: Vec<_> = qps.iter().collect();
        check_qps(gpu, &each, 1)?;
        // These kernels have the usual doorbell alone.
        check_modes(
            &each,
            Doorbell::Db,
            Order::Sys,
            Completions::Every,
            self.sharing,
        )?;
        let handles = super::addresses(gpu, qps.iter().map(ExportedQp::handle))?;
        let results = Results::alloc(gpu, self.threads)?;
        let mut view = qps
            .iter()
            .fold(View::new(), self.sharing.view())
            .memory(&handles)
            .memory(&results.memory);
        let mut params = TaskParams {
            common: BwParams {
                version: abi::VERSION,
                qps: qps.len() as u32,
                handles: handles.addr(),
                results: results.memory.addr(),
                size: 1,
                slots: 1,
                deadline_ns: nanos(self.wait_deadline),
                sharing: self.sharing.code(),
                ..BwParams::default()
            },
            ..TaskParams::default()
        };
        let (name, expected) = match self.task {
            Task::PutSignal {
                local,
                remote,
                size,
                slots,
                iters,
                signal,
                add,
                fetched,
            } => {
                check_qps(gpu, &each, size)?;
                let data = u64::from(self.threads)
                    .checked_mul(slots.into())
                    .and_then(|count| count.checked_mul(size.into()));
                let fits = data.is_some_and(|data| data <= local.len() && data <= remote.len)
                    && signal.len >= 8
                    && fetched.len() >= 8 * u64::from(self.threads);
                if size == 0 || slots == 0 || iters == 0 || !fits {
                    return wrong(
                        "sizes and counts must not be 0, nor more than the regions hold".into(),
                        "register larger regions, or move less",
                    );
                }
                if !(signal.addr | fetched.addr()).is_multiple_of(8) {
                    return wrong(
                        "a signal is 8 bytes at a multiple of 8".into(),
                        "choose regions that begin at a multiple of 8",
                    );
                }
                params.common = BwParams {
                    local: local.addr(),
                    lkey: local.lkey(),
                    remote: remote.addr,
                    rkey: remote.rkey,
                    size,
                    slots,
                    iters,
                    ..params.common
                };
                params.address = signal.addr;
                params.rkey = signal.rkey;
                params.add = add;
                params.fetched = fetched.addr();
                params.lkey = fetched.lkey();
                view = view.mr(local).mr(fetched);
                ("wv_put_signal", iters)
            }
            Task::WaitSignal { word, value } => {
                if !word.is_on(gpu) || word.len() < 8 || !word.addr().is_multiple_of(8) {
                    return wrong(
                        "a signal is 8 bytes of this GPU's memory, at a multiple of 8".into(),
                        "register GPU memory that begins at a multiple of 8",
                    );
                }
                params.address = word.addr();
                params.count = value;
                view = view.mr(word);
                ("wv_wait_signal", 0)
            }
            Task::List {
                descriptors,
                count,
                direction,
                local,
            } => {
                let needed = count.checked_mul(Descriptor::LEN as u64);
                if needed.is_none_or(|needed| needed > descriptors.len()) {
                    return wrong(
                        format!("{count} descriptors do not fit the memory given"),
                        "give the memory that holds them",
                    );
                }
                params.address = descriptors.addr();
                params.count = count;
                params.direction = match direction {
                    Direction::Write => 0,
                    Direction::Read => 1,
                };
                view = view.memory(descriptors).mr(local);
                ("wv_put_list", count.div_ceil(self.threads.into()))
            }
            Task::Progress { most } => {
                params.count = most.into();
                ("wv_progress", 0)
            }
            Task::Drain => ("wv_drain", 0),
        };
        let kernel = module.kernel(name)?;
        let block = self.block.min(self.threads);
        let shape = LaunchShape::linear(self.threads.div_ceil(block), block);
        // SAFETY: `Stream::launch` demands
        // - parameters as the kernel declares them: the module has this crate's ABI version, and
        //   the block is that version's;
        // - that the kernel accesses only memory that the view keeps and no Rust reference covers:
        //   it accesses the handles, queues and stop words of the QPs, the address array, the
        //   results, descriptors, and the awaited word, all GPU or host-mapped memory that the view
        //   keeps; message data is accessed by the NIC, which checks the keys.
        let launch = unsafe { stream.launch(&kernel, shape, &params.to_bytes(), view) }?;
        Ok(Run {
            kernel: name.into(),
            expected,
            launch,
            results,
        })
    }
}

/// Data of a seed in GPU memory: words of [`abi::data_word`].
#[derive(Clone, Copy, Debug)]
pub struct SeededData<'a> {
    /// The memory: its whole words of 8 bytes.
    pub memory: &'a GpuMemory,
    /// What it is made of.
    pub seed: u64,
    /// Threads, in blocks of at most 256.
    pub threads: u32,
}

impl SeededData<'_> {
    /// Writes the words: `wv_fill`.
    pub fn fill(&self, module: &Module, stream: &Stream) -> Result<Run> {
        self.launch("wv_fill", module, stream)
    }

    /// Compares them: `wv_verify`. A report's `completed` counts the words that are right.
    pub fn verify(&self, module: &Module, stream: &Stream) -> Result<Run> {
        self.launch("wv_verify", module, stream)
    }

    fn launch(&self, name: &'static str, module: &Module, stream: &Stream) -> Result<Run> {
        let block = self.threads.min(256);
        if self.threads == 0 || !self.threads.is_multiple_of(block) {
            return wrong(
                format!("{} threads are no whole number of blocks", self.threads),
                "give at most 256, or a multiple of 256",
            );
        }
        if !self.memory.addr().is_multiple_of(8) {
            return wrong(
                "the memory does not begin at a multiple of 8".into(),
                "give memory as it was allocated",
            );
        }
        let kernel = module.kernel(name)?;
        let results = Results::alloc(module.gpu(), self.threads)?;
        let params = DataParams {
            version: abi::VERSION,
            reserved: 0,
            results: results.memory.addr(),
            address: self.memory.addr(),
            words: self.memory.len() / 8,
            seed: self.seed,
        };
        let view = View::new().memory(self.memory).memory(&results.memory);
        let shape = LaunchShape::linear(self.threads / block, block);
        // SAFETY: as above; the kernel accesses the memory and the results, which the view keeps, and GPU memory is never
        // referenced by host code.
        let launch = unsafe { stream.launch(&kernel, shape, &params.to_bytes(), view) }?;
        Ok(Run {
            kernel: name.into(),
            expected: params.words,
            launch,
            results,
        })
    }
}
