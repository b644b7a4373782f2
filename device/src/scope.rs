//! Scopes as zero-sized types, and the operations whose PTX differs by scope.
//!
//! Knows: which operations exist. Must not know: how a target performs them (`arch`), or what they are for.

use crate::arch::Global;

/// One thread, or accesses that something else orders: plain loads and stores. Atomic operations are a load and a store.
#[derive(Clone, Copy, Debug)]
pub struct Plain;

/// Threads of one block.
#[derive(Clone, Copy, Debug)]
pub struct Cta;

/// Threads of this GPU.
#[derive(Clone, Copy, Debug)]
pub struct Gpu;

/// Threads of this GPU, of the CPUs, and the NIC. That a NIC takes part as a `.sys` observer is an assumption of this
/// project: the PTX memory model names GPU and host threads only.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sys;

/// Operations at one scope, on the word at a byte offset of an address.
///
/// # Safety
///
/// Of every method that takes an address: the offset is in bounds of the memory that the address names, that memory is
/// live, the word is naturally aligned, and it is otherwise accessed by strong operations only; [`Plain`]: no other agent
/// accesses it between two points at which that agent and this thread synchronise.
#[allow(unsafe_code)] // Declares the contract; `arch` implements it, `handle` and `ring` meet it.
pub trait Scope {
    /// Relaxed load.
    unsafe fn load_relaxed<const OFFSET: usize>(at: Global) -> u64;
    /// Acquire load.
    unsafe fn load_acquire<const OFFSET: usize>(at: Global) -> u64;
    /// Relaxed store.
    unsafe fn store_relaxed<const OFFSET: usize>(at: Global, value: u64);
    /// Release store.
    unsafe fn store_release<const OFFSET: usize>(at: Global, value: u64);
    /// Relaxed fetch-and-add; returns the old value.
    unsafe fn add_relaxed<const OFFSET: usize>(at: Global, value: u64) -> u64;
    /// Relaxed compare-and-swap; returns the old value.
    unsafe fn cas_relaxed<const OFFSET: usize>(at: Global, old: u64, new: u64) -> u64;
    /// Relaxed maximum, no result.
    unsafe fn max_relaxed<const OFFSET: usize>(at: Global, value: u64);
    /// Relaxed or, no result.
    unsafe fn or_relaxed<const OFFSET: usize>(at: Global, value: u64);
    /// Acquire-release fence at this scope.
    fn fence();
}
