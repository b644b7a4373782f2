//! `wv_fill` and `wv_verify`: data of a seed, made and compared on the GPU.
//!
//! Geometry: any one-dimensional grid; the threads share the words.

use warpverbs_device::{
    Error,
    abi::{self, DataParams, ThreadResult},
    thread,
};

use crate::report;

/// Does something with each word of this thread's share.
#[inline(always)]
fn each(params: &DataParams, mut act: impl FnMut(u64, u64)) -> Result<u64, Error> {
    if params.version != abi::VERSION {
        return Err(Error::BadVersion(params.version));
    }
    if !params.address.is_multiple_of(8) {
        return Err(Error::InvalidArgument);
    }
    let (mut index, mut words) = (thread::index(), 0);
    while index < params.words {
        act(
            params.address.wrapping_add(index * 8),
            abi::data_word(params.seed, index),
        );
        index += thread::count();
        words += 1;
    }
    Ok(words)
}

/// # Safety
///
/// As the kernels'.
#[inline(always)]
unsafe fn finish(params: &DataParams, done: Result<u64, Error>, right: u64) {
    let result = ThreadResult {
        posted: done.unwrap_or(0),
        completed: right,
        ..ThreadResult::default()
    };
    // SAFETY: the caller's: one result a thread.
    unsafe { report::write(params.results, thread::index(), done.map(|_| ()), result) }
}

entry! {
    /// Writes the words. A launch orders them for whoever comes after it.
    ///
    /// # Safety
    ///
    /// The addresses in the block are live for the kernel, as `DataParams` describes them, and nobody else accesses the data.
    fn wv_fill(params: DataParams) {
        let mut right = 0;
        let done = each(&params, |at, word| {
            // SAFETY: the caller's: live; aligned, as just checked.
            unsafe { (at as *mut u64).write(word) }
            right += 1;
        });
        // SAFETY: the caller's.
        unsafe { finish(&params, done, right) }
    }
}

entry! {
    /// Compares the words; `completed` counts those that are as they should be.
    ///
    /// # Safety
    ///
    /// As [`wv_fill`]'s, but for reading.
    fn wv_verify(params: DataParams) {
        let mut right = 0;
        let done = each(&params, |at, word| {
            // SAFETY: as in `wv_fill`.
            right += u64::from(unsafe { (at as *const u64).read() } == word);
        });
        // SAFETY: the caller's.
        unsafe { finish(&params, done, right) }
    }
}
