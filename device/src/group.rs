//! Who makes a call together: a thread, lanes of a warp, a block.
//!
//! Knows: how members share a value and meet. Must not know: queues.
//!
//! A call of a group is made by all its members, each with its own operation; all get the same answer. The leader alone waits
//! (rule O13): members stand at the group's own synchronisation, and none holds another ticket.

use crate::arch;

mod sealed {
    pub trait Sealed {}
}

/// Threads that make a call together.
pub trait Group: Copy + sealed::Sealed {
    /// True if there is but one.
    const ALONE: bool;
    /// True in one member.
    fn is_leader(self) -> bool;
    /// The leader's values, in all members. What the leader did before happens before what each does next.
    fn broadcast(self, values: [u64; 2]) -> [u64; 2];
    /// The sum of the values of the members before this one, and of all. If `uniform` is not zero, each value is that.
    fn scan(self, uniform: u32, value: u32) -> (u64, u64);
    /// What members did before happens before what each does next.
    fn sync(self);
}

/// One thread.
#[derive(Clone, Copy, Debug)]
pub struct Thread;

impl sealed::Sealed for Thread {}
impl Group for Thread {
    const ALONE: bool = true;
    #[inline(always)]
    fn is_leader(self) -> bool {
        true
    }
    #[inline(always)]
    fn broadcast(self, values: [u64; 2]) -> [u64; 2] {
        values
    }
    #[inline(always)]
    fn scan(self, _: u32, value: u32) -> (u64, u64) {
        (0, u64::from(value))
    }
    #[inline(always)]
    fn sync(self) {}
}

/// Lanes of a warp, all of which make the call.
#[derive(Clone, Copy, Debug)]
pub struct Lanes {
    mask: u32,
}

impl Lanes {
    /// All lanes of this warp that the block has.
    ///
    /// All of them make each call of the group.
    #[inline(always)]
    pub fn all() -> Self {
        let first = arch::thread_in_block() - arch::lane();
        let threads = arch::block_threads() - first;
        Self {
            mask: if threads >= 32 {
                u32::MAX
            } else {
                (1 << threads) - 1
            },
        }
    }

    /// The lanes that are here together, as the hardware has them: they may be fewer than the program's branches say. Any that are
    /// left out make a group of their own.
    #[inline(always)]
    pub fn here() -> Self {
        Self {
            mask: arch::active_mask(),
        }
    }

    /// The lanes of `mask`, of which this is one; `None` if it is not.
    ///
    /// All of them make each call of the group, with the same mask.
    #[inline(always)]
    pub fn of(mask: u32) -> Option<Self> {
        (mask >> arch::lane() & 1 != 0).then_some(Self { mask })
    }

    /// Its lanes.
    #[inline(always)]
    pub const fn mask(self) -> u32 {
        self.mask
    }

    /// Lanes before this one.
    #[inline(always)]
    pub fn rank(self) -> u32 {
        (self.mask & ((1 << arch::lane()) - 1)).count_ones()
    }

    /// How many they are.
    #[inline(always)]
    pub const fn len(self) -> u32 {
        self.mask.count_ones()
    }

    /// False: this lane is one.
    #[inline(always)]
    pub const fn is_empty(self) -> bool {
        false
    }
}

impl sealed::Sealed for Lanes {}
impl Group for Lanes {
    const ALONE: bool = false;
    #[inline(always)]
    fn is_leader(self) -> bool {
        self.mask.trailing_zeros() == arch::lane()
    }
    #[inline(always)]
    fn broadcast(self, values: [u64; 2]) -> [u64; 2] {
        let leader = self.mask.trailing_zeros();
        // A shuffle orders no memory.
        arch::sync_lanes(self.mask);
        values.map(|value| {
            let low = arch::lane_value(self.mask, value as u32, leader);
            let high = arch::lane_value(self.mask, (value >> 32) as u32, leader);
            u64::from(low) | u64::from(high) << 32
        })
    }
    #[inline(always)]
    fn scan(self, uniform: u32, value: u32) -> (u64, u64) {
        let before = (1 << arch::lane()) - 1;
        if uniform != 0 {
            let count = |lanes: u32| u64::from(lanes.count_ones()) * u64::from(uniform);
            return (count(self.mask & before), count(self.mask));
        }
        // A bit at a time: the lanes need not be neighbours.
        let (mut sum_before, mut sum) = (0, 0);
        let mut bit = 0;
        while bit < 32 && arch::ballot(self.mask, value >> bit != 0) != 0 {
            let set = arch::ballot(self.mask, value >> bit & 1 != 0);
            sum_before += u64::from((set & before).count_ones()) << bit;
            sum += u64::from(set.count_ones()) << bit;
            bit += 1;
        }
        (sum_before, sum)
    }
    #[inline(always)]
    fn sync(self) {
        arch::sync_lanes(self.mask);
    }
}

/// All threads of a block, which has one dimension.
#[derive(Clone, Copy, Debug)]
pub struct Block;

impl sealed::Sealed for Block {}
impl Group for Block {
    const ALONE: bool = false;
    #[inline(always)]
    fn is_leader(self) -> bool {
        arch::thread_in_block() == 0
    }
    #[inline(always)]
    fn broadcast(self, values: [u64; 2]) -> [u64; 2] {
        let places = [arch::BLOCK_WORDS - 2, arch::BLOCK_WORDS - 1];
        // Who still reads the values before has come here when it has.
        arch::sync_block();
        if self.is_leader() {
            arch::store_block_word(places[0], values[0]);
            arch::store_block_word(places[1], values[1]);
        }
        arch::sync_block();
        places.map(arch::load_block_word)
    }
    #[inline(always)]
    fn scan(self, uniform: u32, value: u32) -> (u64, u64) {
        if uniform != 0 {
            let times = |threads: u32| u64::from(threads) * u64::from(uniform);
            return (times(arch::thread_in_block()), times(arch::block_threads()));
        }
        let lanes = Lanes::all();
        let (mut before, sum) = lanes.scan(0, value);
        let (warp, warps) = (
            arch::thread_in_block() / 32,
            arch::block_threads().div_ceil(32),
        );
        arch::sync_block();
        if lanes.is_leader() {
            arch::store_block_word(warp, sum);
        }
        arch::sync_block();
        let mut all = 0;
        for other in 0..warps {
            let sum = arch::load_block_word(other);
            if other < warp {
                before += sum;
            }
            all += sum;
        }
        (before, all)
    }
    #[inline(always)]
    fn sync(self) {
        arch::sync_block();
    }
}
