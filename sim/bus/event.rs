//! What a memory model must know beside accesses: where execution begins and ends, and who waits for whom.
//!
//! Knows: launches, threads, barriers, streams, posted MMIO stores.
//! Must not know: what order follows from them.

/// Something that orders agents. A memory without a model ignores all of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event<'a> {
    /// The host launches a kernel.
    Launch {
        /// The launch: a number never used before.
        launch: u64,
    },
    /// A launch begins, after everything before it in its stream.
    KernelStart {
        /// The launch.
        launch: u64,
        /// Its stream.
        stream: u64,
    },
    /// A thread begins.
    ThreadStart {
        /// Its number on the bus, [`crate::Agent::Thread`]; free for another once it has ended.
        thread: u32,
        /// Its launch.
        launch: u64,
        /// Its block in the grid.
        block: u64,
        /// Its number in the block.
        index: u32,
    },
    /// A thread ends.
    ThreadEnd {
        /// Its number on the bus.
        thread: u32,
    },
    /// All threads of a launch have ended.
    KernelEnd {
        /// The launch.
        launch: u64,
        /// Its stream.
        stream: u64,
    },
    /// The context died: no thread runs any more.
    ContextDead,
    /// The host has seen that all work of a stream is done.
    HostSync {
        /// The stream.
        stream: u64,
    },
    /// The host gives a device a command.
    Command,
    /// A thread arrives at a barrier and does not wait.
    Arrive {
        /// The thread.
        thread: u32,
        /// The barrier, by a number that no other barrier in use has.
        barrier: u64,
    },
    /// Threads leave a barrier together.
    Meet {
        /// The threads.
        threads: &'a [u32],
        /// The barrier that others may have arrived at without waiting.
        barrier: Option<u64>,
    },
}

/// An MMIO store under way to a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Posted {
    /// The device.
    pub device: u16,
    /// What it is for, as [`crate::Device::context_of`] says.
    pub context: u32,
    /// Byte offset in the device's BAR.
    pub offset: u64,
    /// The bytes, of which the first `len` count.
    pub bytes: [u8; 8],
    /// How many.
    pub len: u8,
}

impl Posted {
    /// The bytes stored.
    pub fn bytes(&self) -> &[u8] {
        self.bytes
            .get(..usize::from(self.len))
            .unwrap_or(&self.bytes)
    }
}
