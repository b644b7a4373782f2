//! Every PTX instruction that Rust has no word for: the only inline assembly of the device code.
//!
//! Knows: PTX. Must not know: queues.
//!
//! Rule O7: there is no core atomic read-modify-write in device code, since LLVM lowers each of them to an unqualified
//! `atom`, which is relaxed and GPU-scope whatever its `Ordering` says. All scoped, ordered and MMIO operations are
//! the ones below, and each names its scope.
//!
//! Each block is one instruction (PTX ISA 8.2, `sm_70`). Addresses are converted to the global state space once
//! (`cvta.to.global`), so that no access pays for generic addressing.
#![allow(unsafe_code)]

use core::arch::asm;

use warpverbs_wire::abi;

use crate::scope::{Cta, Gpu, Plain, Scope, Sys};

/// The version of `wire::abi` that a module was built with, [`abi::VERSION_SYMBOL`]: every module that has
/// this crate has it, users' included. The host reads it after load, and refuses a module of another version.
#[used]
#[unsafe(no_mangle)]
#[allow(non_upper_case_globals)]
pub(crate) static wv_device_abi: u32 = abi::VERSION;

/// An address in the global state space.
#[derive(Clone, Copy, Debug)]
pub struct Global(u64);

impl Global {
    /// Converts a generic address.
    #[inline(always)]
    pub(crate) fn new(generic: u64) -> Self {
        let global: u64;
        // SAFETY: converts a number; no memory is touched.
        unsafe {
            asm!("cvta.to.global.u64 {}, {};", out(reg64) global, in(reg64) generic,
                options(pure, nomem, nostack, preserves_flags));
        }
        Self(global)
    }

    /// The address `bytes` further.
    #[inline(always)]
    pub(crate) fn offset(self, bytes: u64) -> Self {
        Self(self.0.wrapping_add(bytes))
    }

    /// True if it is a multiple of `BYTES`, a power of two.
    #[inline(always)]
    pub(crate) fn is_aligned<const BYTES: u64>(self) -> bool {
        self.0 % BYTES == 0
    }
}

macro_rules! scope {
    ($scope:ident, $name:literal) => {
        impl Scope for $scope {
            #[inline(always)]
            unsafe fn load_relaxed<const OFFSET: usize>(at: Global) -> u64 {
                let value: u64;
                // SAFETY: the caller's (see `Scope`).
                unsafe {
                    asm!(concat!("ld.relaxed.", $name, ".global.u64 {}, [{}+{}];"), out(reg64) value, in(reg64) at.0,
                        const OFFSET, options(nostack, preserves_flags));
                }
                value
            }
            #[inline(always)]
            unsafe fn load_acquire<const OFFSET: usize>(at: Global) -> u64 {
                let value: u64;
                // SAFETY: the caller's (see `Scope`).
                unsafe {
                    asm!(concat!("ld.acquire.", $name, ".global.u64 {}, [{}+{}];"), out(reg64) value, in(reg64) at.0,
                        const OFFSET, options(nostack, preserves_flags));
                }
                value
            }
            #[inline(always)]
            unsafe fn store_relaxed<const OFFSET: usize>(at: Global, value: u64) {
                // SAFETY: the caller's (see `Scope`).
                unsafe {
                    asm!(concat!("st.relaxed.", $name, ".global.u64 [{}+{}], {};"), in(reg64) at.0, const OFFSET,
                        in(reg64) value, options(nostack, preserves_flags));
                }
            }
            #[inline(always)]
            unsafe fn store_release<const OFFSET: usize>(at: Global, value: u64) {
                // SAFETY: the caller's (see `Scope`).
                unsafe {
                    asm!(concat!("st.release.", $name, ".global.u64 [{}+{}], {};"), in(reg64) at.0, const OFFSET,
                        in(reg64) value, options(nostack, preserves_flags));
                }
            }
            #[inline(always)]
            unsafe fn add_relaxed<const OFFSET: usize>(at: Global, value: u64) -> u64 {
                let old: u64;
                // SAFETY: the caller's (see `Scope`).
                unsafe {
                    asm!(concat!("atom.relaxed.", $name, ".global.add.u64 {}, [{}+{}], {};"), out(reg64) old,
                        in(reg64) at.0, const OFFSET, in(reg64) value, options(nostack, preserves_flags));
                }
                old
            }
            #[inline(always)]
            unsafe fn cas_relaxed<const OFFSET: usize>(at: Global, old: u64, new: u64) -> u64 {
                let found: u64;
                // SAFETY: the caller's (see `Scope`).
                unsafe {
                    asm!(concat!("atom.relaxed.", $name, ".global.cas.b64 {}, [{}+{}], {}, {};"), out(reg64) found,
                        in(reg64) at.0, const OFFSET, in(reg64) old, in(reg64) new, options(nostack, preserves_flags));
                }
                found
            }
            #[inline(always)]
            unsafe fn max_relaxed<const OFFSET: usize>(at: Global, value: u64) {
                // SAFETY: the caller's (see `Scope`).
                unsafe {
                    asm!(concat!("red.relaxed.", $name, ".global.max.u64 [{}+{}], {};"), in(reg64) at.0, const OFFSET,
                        in(reg64) value, options(nostack, preserves_flags));
                }
            }
            #[inline(always)]
            unsafe fn or_relaxed<const OFFSET: usize>(at: Global, value: u64) {
                // SAFETY: the caller's (see `Scope`).
                unsafe {
                    asm!(concat!("red.relaxed.", $name, ".global.or.b64 [{}+{}], {};"), in(reg64) at.0, const OFFSET,
                        in(reg64) value, options(nostack, preserves_flags));
                }
            }
            #[inline(always)]
            fn fence() {
                // SAFETY: a fence has no operands.
                unsafe { asm!(concat!("fence.acq_rel.", $name, ";"), options(nostack, preserves_flags)) }
            }
        }
    };
}
scope!(Cta, "cta");
scope!(Gpu, "gpu");
scope!(Sys, "sys");

impl Scope for Plain {
    #[inline(always)]
    unsafe fn load_relaxed<const OFFSET: usize>(at: Global) -> u64 {
        let value: u64;
        // SAFETY: the caller's (see `Scope`).
        unsafe {
            asm!("ld.global.u64 {}, [{}+{}];", out(reg64) value, in(reg64) at.0, const OFFSET,
                options(nostack, preserves_flags));
        }
        value
    }
    #[inline(always)]
    unsafe fn load_acquire<const OFFSET: usize>(at: Global) -> u64 {
        // SAFETY: the caller's.
        unsafe { Self::load_relaxed::<OFFSET>(at) }
    }
    #[inline(always)]
    unsafe fn store_relaxed<const OFFSET: usize>(at: Global, value: u64) {
        // SAFETY: the caller's (see `Scope`).
        unsafe {
            asm!("st.global.u64 [{}+{}], {};", in(reg64) at.0, const OFFSET, in(reg64) value,
                options(nostack, preserves_flags));
        }
    }
    #[inline(always)]
    unsafe fn store_release<const OFFSET: usize>(at: Global, value: u64) {
        // SAFETY: the caller's.
        unsafe { Self::store_relaxed::<OFFSET>(at, value) }
    }
    #[inline(always)]
    unsafe fn add_relaxed<const OFFSET: usize>(at: Global, value: u64) -> u64 {
        // SAFETY: the caller's.
        unsafe {
            let old = Self::load_relaxed::<OFFSET>(at);
            Self::store_relaxed::<OFFSET>(at, old.wrapping_add(value));
            old
        }
    }
    #[inline(always)]
    unsafe fn cas_relaxed<const OFFSET: usize>(at: Global, old: u64, new: u64) -> u64 {
        // SAFETY: the caller's.
        unsafe {
            let found = Self::load_relaxed::<OFFSET>(at);
            if found == old {
                Self::store_relaxed::<OFFSET>(at, new);
            }
            found
        }
    }
    #[inline(always)]
    unsafe fn max_relaxed<const OFFSET: usize>(at: Global, value: u64) {
        // SAFETY: the caller's.
        unsafe {
            if Self::load_relaxed::<OFFSET>(at) < value {
                Self::store_relaxed::<OFFSET>(at, value);
            }
        }
    }
    #[inline(always)]
    unsafe fn or_relaxed<const OFFSET: usize>(at: Global, value: u64) {
        // SAFETY: the caller's.
        unsafe { Self::store_relaxed::<OFFSET>(at, Self::load_relaxed::<OFFSET>(at) | value) }
    }
    #[inline(always)]
    fn fence() {}
}

/// Acquire-release fence for threads of this GPU, of the CPUs, and the NIC. `fence.acq_rel` and not `fence.release`: the
/// latter needs sm_90.
#[inline(always)]
pub(crate) fn fence_sys() {
    // SAFETY: a fence has no operands.
    unsafe { asm!("fence.acq_rel.sys;", options(nostack, preserves_flags)) }
}

/// Loads a word through the non-coherent path.
///
/// # Safety
///
/// Live, aligned, and never written while the kernel runs (rule O8).
#[inline(always)]
pub(crate) unsafe fn load_immutable<const OFFSET: usize>(at: Global) -> u64 {
    let value: u64;
    // SAFETY: the caller's.
    unsafe {
        asm!("ld.global.nc.u64 {}, [{}+{}];", out(reg64) value, in(reg64) at.0, const OFFSET,
            options(pure, readonly, nostack, preserves_flags));
    }
    value
}

/// Stores one WQE segment with one 16-byte store (rule O1). Weak: the fence of the post that follows
/// publishes it (rule O2).
///
/// # Safety
///
/// Live, 16-byte aligned, and no other agent accesses these bytes until a later fence.
#[inline(always)]
pub(crate) unsafe fn store_segment<const OFFSET: usize>(at: Global, segment: [u64; 2]) {
    // SAFETY: the caller's.
    unsafe {
        asm!("st.global.v2.b64 [{}+{}], {{{}, {}}};", in(reg64) at.0, const OFFSET, in(reg64) segment[0],
            in(reg64) segment[1], options(nostack, preserves_flags));
    }
}

/// Relaxed 32-bit store at system scope: the doorbell record (rule O3).
///
/// # Safety
///
/// Live, aligned, otherwise accessed by strong operations only.
#[inline(always)]
pub(crate) unsafe fn store_relaxed_sys_u32(at: Global, value: u32) {
    // SAFETY: the caller's.
    unsafe {
        asm!("st.relaxed.sys.global.u32 [{}], {};", in(reg64) at.0, in(reg32) value, options(nostack, preserves_flags));
    }
}

/// The doorbell: one 8-byte MMIO store (rule O4). `st.volatile` gives no such guarantee for MMIO.
///
/// # Safety
///
/// A mapped doorbell register.
#[inline(always)]
pub(crate) unsafe fn store_mmio<const OFFSET: usize>(at: Global, value: u64) {
    // SAFETY: the caller's.
    unsafe {
        asm!("st.mmio.relaxed.sys.global.u64 [{}+{}], {};", in(reg64) at.0, const OFFSET, in(reg64) value,
            options(nostack, preserves_flags));
    }
}

/// Relaxed 32-bit load at system scope: the doorbell record.
///
/// # Safety
///
/// Live, aligned, otherwise accessed by strong operations only.
#[inline(always)]
pub(crate) unsafe fn load_relaxed_sys_u32(at: Global) -> u32 {
    let value: u32;
    // SAFETY: the caller's.
    unsafe {
        asm!("ld.relaxed.sys.global.u32 {}, [{}];", out(reg32) value, in(reg64) at.0, options(nostack, preserves_flags));
    }
    value
}

/// Weak load of a word that this thread, or one that it has synchronised with, wrote.
///
/// # Safety
///
/// Live, aligned, and no other agent writes it meanwhile.
#[inline(always)]
pub(crate) unsafe fn load_weak_u32(at: Global) -> u32 {
    let value: u32;
    // SAFETY: the caller's.
    unsafe {
        asm!("ld.global.u32 {}, [{}];", out(reg32) value, in(reg64) at.0, options(nostack, preserves_flags));
    }
    value
}

/// Weak load of one byte.
///
/// # Safety
///
/// Live, and no other agent writes it meanwhile.
#[inline(always)]
pub(crate) unsafe fn load_weak_u8(at: Global) -> u8 {
    let value: u32;
    // SAFETY: the caller's. PTX loads a byte into a wider register, zero-extended.
    unsafe {
        asm!("ld.global.u8 {}, [{}];", out(reg32) value, in(reg64) at.0, options(nostack, preserves_flags));
    }
    value as u8
}

/// Weak load of one segment by one 16-byte load.
///
/// # Safety
///
/// Live, 16-byte aligned, and no other agent writes it meanwhile.
#[inline(always)]
pub(crate) unsafe fn load_segment<const OFFSET: usize>(at: Global) -> [u64; 2] {
    let (low, high): (u64, u64);
    // SAFETY: the caller's.
    unsafe {
        asm!("ld.global.v2.b64 {{{}, {}}}, [{}+{}];", out(reg64) low, out(reg64) high, in(reg64) at.0, const OFFSET,
            options(nostack, preserves_flags));
    }
    [low, high]
}

/// Relaxed load of one byte at system scope.
///
/// # Safety
///
/// Live, otherwise accessed by strong operations only.
#[inline(always)]
pub(crate) unsafe fn load_relaxed_sys_u8(at: Global) -> u8 {
    let value: u32;
    // SAFETY: the caller's. PTX loads a byte into a wider register, zero-extended.
    unsafe {
        asm!("ld.relaxed.sys.global.u8 {}, [{}];", out(reg32) value, in(reg64) at.0, options(nostack, preserves_flags));
    }
    value as u8
}

/// Weak store of one byte.
///
/// # Safety
///
/// Live, and no other agent accesses it until a later fence.
#[inline(always)]
pub(crate) unsafe fn store_u8(at: Global, value: u8) {
    // SAFETY: the caller's. PTX stores the low byte of a wider register.
    unsafe {
        asm!("st.global.u8 [{}], {};", in(reg64) at.0, in(reg32) u32::from(value), options(nostack, preserves_flags));
    }
}

/// `%globaltimer`, in ns. May tick in microseconds.
#[inline(always)]
pub(crate) fn now_ns() -> u64 {
    let now: u64;
    // SAFETY: reads a special register. Not `pure`: each read is a new one.
    unsafe {
        asm!("mov.u64 {}, %globaltimer;", out(reg64) now, options(nomem, nostack, preserves_flags))
    }
    now
}

/// Suspends the thread for about so long, at most twice that and at most a millisecond (PTX ISA, `nanosleep`).
#[inline(always)]
pub(crate) fn sleep_ns(ns: u32) {
    // SAFETY: suspends the thread.
    unsafe { asm!("nanosleep.u32 {};", in(reg32) ns, options(nomem, nostack, preserves_flags)) }
}

macro_rules! special_register {
    ($(#[$doc:meta])* $name:ident, $register:literal) => {
        $(#[$doc])*
        #[inline(always)]
        pub(crate) fn $name() -> u32 {
            let value: u32;
            // SAFETY: reads a special register that is constant for a thread.
            unsafe {
                asm!(concat!("mov.u32 {}, %", $register, ";"), out(reg32) value,
                    options(pure, nomem, nostack, preserves_flags));
            }
            value
        }
    };
}
special_register!(
    /// Thread in its block.
    thread_in_block,
    "tid.x"
);
special_register!(
    /// Threads of a block.
    block_threads,
    "ntid.x"
);
special_register!(
    /// Block in the grid.
    block,
    "ctaid.x"
);
special_register!(
    /// Blocks of the grid.
    blocks,
    "nctaid.x"
);

special_register!(
    /// Lane in its warp.
    lane,
    "laneid"
);

// What lanes do together: LLVM's own functions and not inline assembly, since they are convergent, and inline assembly is not:
// LLVM may move that into a branch, or have two copies of it, which lanes then execute apart.
#[allow(improper_ctypes)]
unsafe extern "C" {
    #[link_name = "llvm.nvvm.activemask"]
    fn nvvm_activemask() -> u32;
    #[link_name = "llvm.nvvm.shfl.sync.idx.i32"]
    fn nvvm_shfl_idx(mask: u32, value: u32, lane: u32, clamp: u32) -> u32;
    #[link_name = "llvm.nvvm.vote.ballot.sync"]
    fn nvvm_ballot(mask: u32, value: bool) -> u32;
    #[link_name = "llvm.nvvm.bar.warp.sync"]
    fn nvvm_bar_warp_sync(mask: u32);
    #[link_name = "llvm.nvvm.barrier.cta.sync.all"]
    fn nvvm_barrier_cta_sync(barrier: u32);
}

/// Lanes that are here together.
#[inline(always)]
pub(crate) fn active_mask() -> u32 {
    // SAFETY: reads the state of the warp.
    unsafe { nvvm_activemask() }
}

/// A lane's value. `mask`'s lanes do this together (`Lanes`), and `lane` is one of them.
#[inline(always)]
pub(crate) fn lane_value(mask: u32, value: u32, lane: u32) -> u32 {
    // SAFETY: `Lanes` promises that all of them come.
    unsafe { nvvm_shfl_idx(mask, value, lane, 31) }
}

/// The lanes whose value is true. `mask`'s lanes do this together.
#[inline(always)]
pub(crate) fn ballot(mask: u32, value: bool) -> u32 {
    // SAFETY: `Lanes` promises that all of them come.
    unsafe { nvvm_ballot(mask, value) }
}

/// Waits for `mask`'s lanes; orders their accesses.
#[inline(always)]
pub(crate) fn sync_lanes(mask: u32) {
    // SAFETY: `Lanes` promises that all of them come.
    unsafe { nvvm_bar_warp_sync(mask) }
}

/// Waits for the threads of the block, whose lanes need not be converged; orders their accesses.
#[inline(always)]
pub(crate) fn sync_block() {
    // SAFETY: `Block` promises that all threads come.
    unsafe { nvvm_barrier_cta_sync(0) }
}

/// Words that a block shares: a sum for each warp, and two of the leader.
pub(crate) const BLOCK_WORDS: u32 = 34;

core::arch::global_asm!(".shared .align 8 .b8 wv_block_words[272];");

#[inline(always)]
fn block_words() -> u32 {
    let address: u32;
    // SAFETY: the address of the variable in the shared state space.
    unsafe {
        asm!("mov.u32 {}, wv_block_words;", out(reg32) address, options(pure, nomem, nostack, preserves_flags));
    }
    address
}

/// Stores a word of the block, below [`BLOCK_WORDS`]. One thread does so between two meetings of the block.
#[inline(always)]
pub(crate) fn store_block_word(index: u32, value: u64) {
    // SAFETY: `wv_block_words` has 34 words.
    unsafe {
        asm!("st.shared.u64 [{}], {};", in(reg32) block_words() + 8 * index, in(reg64) value,
            options(nostack, preserves_flags));
    }
}

/// Loads a word of the block, below [`BLOCK_WORDS`], that was stored before the block's last meeting.
#[inline(always)]
pub(crate) fn load_block_word(index: u32) -> u64 {
    let value: u64;
    // SAFETY: `wv_block_words` has 34 words.
    unsafe {
        asm!("ld.shared.u64 {}, [{}];", out(reg64) value, in(reg32) block_words() + 8 * index,
            options(nostack, preserves_flags));
    }
    value
}

macro_rules! marker {
    ($(#[$doc:meta])* $name:ident, $text:literal) => {
        $(#[$doc])*
        #[inline(always)]
        pub(crate) fn $name() {
            // SAFETY: a comment: no instruction at all.
            unsafe { asm!(concat!("// wv.phase ", $text), options(nomem, nostack, preserves_flags)) }
        }
    };
}
marker!(
    /// From here, instructions count as a post.
    phase_post,
    "post"
);
marker!(
    /// From here, instructions count as a first look at the CQ.
    phase_poll,
    "poll"
);
marker!(
    /// From here, instructions count as a repeated iteration of a wait.
    phase_spin,
    "spin"
);
marker!(
    /// From here, instructions count as the caller's own.
    phase_other,
    "other"
);

/// Marks the branch that it stands in as unlikely, so that the fast path falls through.
#[inline(always)]
pub(crate) fn cold() {
    core::hint::cold_path();
}

/// Keeps the compiler from joining the branches before and behind it into a table.
#[inline(always)]
pub(crate) fn keep_apart() {
    // SAFETY: no instruction.
    unsafe { asm!("") }
}

/// A hint between two iterations of a wait. Empty: a GPU switches warps by itself while a load is outstanding.
#[inline(always)]
pub(crate) fn spin_hint() {}
