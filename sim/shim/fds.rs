//! Which descriptors are this library's: asked at every `ioctl`, `mmap` and `close` of the program, without a lock.
//!
//! Knows: one bit a descriptor. Must not know: what stands behind one.

use std::sync::atomic::{AtomicU64, Ordering};

/// Descriptors that can be told apart.
const MOST: usize = 1 << 16;

static WATCHED: [AtomicU64; MOST / 64] = [const { AtomicU64::new(0) }; MOST / 64];

fn place(fd: i32) -> Option<(&'static AtomicU64, u64)> {
    let fd = usize::try_from(fd).ok()?;
    Some((WATCHED.get(fd / 64)?, 1 << (fd % 64)))
}

/// From now on the descriptor is this library's; false if its number is too high.
pub(crate) fn watch(fd: i32) -> bool {
    place(fd).is_some_and(|(word, bit)| {
        word.fetch_or(bit, Ordering::SeqCst);
        true
    })
}

/// From now on it is not. True if it was.
pub(crate) fn forget(fd: i32) -> bool {
    place(fd).is_some_and(|(word, bit)| word.fetch_and(!bit, Ordering::SeqCst) & bit != 0)
}

/// True if it is this library's.
pub(crate) fn is_watched(fd: i32) -> bool {
    place(fd).is_some_and(|(word, bit)| word.load(Ordering::SeqCst) & bit != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_descriptor_is_watched_until_it_is_forgotten() {
        let fd = 60_000;
        assert!(!is_watched(fd) && watch(fd) && is_watched(fd) && !is_watched(fd + 1));
        assert!(forget(fd) && !forget(fd) && !is_watched(fd));
        for bad in [-1, i32::MIN, i32::MAX, MOST as i32] {
            assert!(!watch(bad) && !is_watched(bad) && !forget(bad));
        }
    }
}
