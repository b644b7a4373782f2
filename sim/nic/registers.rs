//! Doorbell pages as memory: a producer stores to it, and nobody is called.
//!
//! Knows: pages, the registers of each, how a store is taken out.
//! Must not know: what it says.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use warpverbs_wire::doorbell::{REGISTER, REGISTER_CQ_ARM, REGISTER_NO_DBR, UAR_PAGE};

/// Words of a page.
const WORDS: usize = UAR_PAGE / 8;
/// The register that all doorbells go to, unless software alternates between BlueFlame buffers.
const FIRST: usize = REGISTER;
/// The other registers: further BlueFlame buffers, doorbells without record, and the CQ's.
const OTHERS: [usize; 5] = [
    REGISTER + 0x100,
    REGISTER + 0x200,
    REGISTER + 0x300,
    REGISTER_NO_DBR,
    REGISTER_CQ_ARM,
];

/// A page.
#[repr(C, align(4096))]
struct Page([AtomicU64; WORDS]);

/// A page in use.
struct Mapped {
    number: u32,
    page: Arc<Page>,
}

/// The doorbell pages of one NIC.
///
/// A page that is given back is kept, and used again: a store that comes late hits no memory of anyone else.
#[derive(Default)]
pub(crate) struct Registers(Mutex<Pages>);

#[derive(Default)]
struct Pages {
    used: Vec<Mapped>,
    free: Vec<Arc<Page>>,
}

impl Registers {
    fn pages(&self) -> MutexGuard<'_, Pages> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives page `number` memory, and returns its address.
    pub(crate) fn map(&self, number: u32) -> u64 {
        let mut pages = self.pages();
        let page = match pages.free.pop() {
            Some(page) => {
                // What came late is nobody's doorbell.
                page.0
                    .iter()
                    .for_each(|word| word.store(0, Ordering::Relaxed));
                page
            }
            None => Arc::new(Page([const { AtomicU64::new(0) }; WORDS])),
        };
        let addr = page.0.as_ptr().expose_provenance() as u64;
        pages.used.push(Mapped { number, page });
        addr
    }

    /// Takes a page's memory back.
    pub(crate) fn unmap(&self, number: u32) {
        let mut pages = self.pages();
        if let Some(at) = pages.used.iter().position(|used| used.number == number) {
            let mapped = pages.used.swap_remove(at);
            pages.free.push(mapped.page);
        }
    }

    /// True if a page in use begins at `addr`.
    pub(crate) fn has(&self, addr: u64) -> bool {
        self.pages()
            .used
            .iter()
            .any(|used| used.page.0.as_ptr().addr() as u64 == addr)
    }

    /// Takes out what was stored: page number, byte offset in the page, value. A register holds one value: of stores that
    /// follow each other closely the last one is found. With `all` the registers that are seldom used are looked at too.
    pub(crate) fn take(&self, all: bool, mut stored: impl FnMut(u32, usize, [u8; 8])) {
        let others: &[usize] = if all { &OTHERS } else { &[] };
        for used in &self.pages().used {
            for offset in std::iter::once(&FIRST).chain(others) {
                let Some(register) = used.page.0.get(offset / 8) else {
                    continue;
                };
                // Zero is no doorbell: no QP or CQ has number 0.
                if register.load(Ordering::Relaxed) != 0 {
                    // Acquires what its writer did before it (rule O3's fence on that side).
                    let value = register.swap(0, Ordering::AcqRel);
                    stored(used.number, *offset, value.to_ne_bytes());
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(registers: &Registers, all: bool) -> Vec<(u32, usize, [u8; 8])> {
        let mut found = Vec::new();
        registers.take(all, |page, offset, value| found.push((page, offset, value)));
        found
    }

    #[test]
    fn a_store_is_found_once_and_the_same_value_again_if_it_is_stored_again() {
        let registers = Registers::default();
        let addr = registers.map(7);
        assert!(addr.is_multiple_of(4096) && registers.has(addr) && !registers.has(addr + 8));
        let page = registers.pages().used[0].page.clone();
        let store = |offset: usize, value: u64| page.0[offset / 8].store(value, Ordering::Relaxed);
        for _ in 0..2 {
            store(FIRST, 5);
            assert_eq!(taken(&registers, false), [(7, FIRST, 5u64.to_ne_bytes())]);
            assert_eq!(taken(&registers, true), []);
        }
        for offset in OTHERS {
            store(offset, 9);
            assert_eq!(taken(&registers, false), []);
            assert_eq!(taken(&registers, true), [(7, offset, 9u64.to_ne_bytes())]);
        }
        // Bytes of a WQE that is pushed are no doorbell.
        store(FIRST + 8, 5);
        assert_eq!(taken(&registers, true), []);
    }

    #[test]
    fn a_page_that_was_given_back_is_used_again_without_what_came_late() {
        let registers = Registers::default();
        let addr = registers.map(1);
        let page = registers.pages().used[0].page.clone();
        registers.unmap(1);
        assert!(!registers.has(addr));
        page.0[FIRST / 8].store(3, Ordering::Relaxed);
        assert_eq!(taken(&registers, true), []);
        assert_eq!(registers.map(2), addr);
        assert_eq!(taken(&registers, true), []);
    }
}
