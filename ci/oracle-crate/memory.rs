//! Memory that libmlx5, the NIC and this program share, and memory of our own that looks like it.
//!
//! Knows: bytes at addresses. Must not know: what they mean.

use std::sync::atomic::{AtomicU8, Ordering};

/// Bytes at an address, which others may write at any time.
#[derive(Clone, Copy, Debug)]
pub struct Memory {
    at: *mut u8,
    len: usize,
}

impl Memory {
    /// # Safety
    ///
    /// `len` bytes from `at` stay mapped, readable and writable, as long as the value is used, and are accessed through it, by
    /// libmlx5 and by the NIC alone.
    pub unsafe fn new(at: *mut u8, len: usize) -> Self {
        Self { at, len }
    }

    /// Memory of whole pages that is never freed.
    pub fn leak(len: usize) -> Self {
        #[repr(align(4096))]
        struct Page(#[allow(dead_code, reason = "memory")] [u8; 4096]);
        let pages: Vec<Page> = (0..len.div_ceil(4096)).map(|_| Page([0; 4096])).collect();
        let pages = Box::leak(pages.into_boxed_slice());
        Self {
            at: pages.as_mut_ptr().cast(),
            len: pages.len() * 4096,
        }
    }

    pub fn addr(&self) -> u64 {
        self.at as u64
    }

    pub fn len(&self) -> usize {
        self.len
    }

    fn byte(&self, offset: usize) -> &AtomicU8 {
        assert!(offset < self.len, "byte {offset} of {}", self.len);
        // SAFETY: `from_ptr` demands a pointer to a live byte that is accessed atomically only: `new`'s contract; what libmlx5
        // writes it writes in calls of this thread, and the NIC by atomics.
        unsafe { AtomicU8::from_ptr(self.at.add(offset)) }
    }

    /// Bytes from `offset` on; behind the end comes the beginning, as in a ring.
    pub fn get(&self, offset: usize, len: usize) -> Vec<u8> {
        (offset..offset + len)
            .map(|at| self.byte(at % self.len).load(Ordering::Relaxed))
            .collect()
    }

    /// As [`Self::get`].
    pub fn put(&self, offset: usize, bytes: &[u8]) {
        for (at, byte) in (offset..).zip(bytes) {
            self.byte(at % self.len).store(*byte, Ordering::Relaxed);
        }
    }

    pub fn fill(&self, offset: usize, len: usize, byte: u8) {
        for at in offset..offset + len {
            self.byte(at % self.len).store(byte, Ordering::Relaxed);
        }
    }

    /// The last byte of a CQE, behind which the rest may be read.
    pub fn acquire(&self, offset: usize) -> u8 {
        self.byte(offset % self.len).load(Ordering::Acquire)
    }

    /// Makes memory that nobody else sees of the pages that hold these bytes: what is stored there stays as it is. For a doorbell
    /// page, whose stores the NIC would take.
    pub fn cut_off(&self) {
        let page = self.at as usize & !0xfff;
        let len = (self.at as usize + self.len - page).next_multiple_of(4096);
        // SAFETY: `mmap` with MAP_FIXED demands that what was mapped there is not needed any more: it is a device's page, of which
        // this program uses nothing but what it is stored to here.
        let mapped = unsafe {
            libc::mmap(
                page as *mut libc::c_void,
                len,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED,
                -1,
                0,
            )
        };
        assert_eq!(mapped as usize, page, "no memory");
    }
}
