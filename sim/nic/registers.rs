//! Doorbell pages as memory: a producer stores to it, and nobody is called.
//!
//! Knows: pages, the registers of each, how a store is taken out.
//! Must not know: what it says.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use warpverbs_wire::doorbell::{REGISTER, REGISTER_CQ_ARM, REGISTER_NO_DBR, UAR_PAGE};

/// Words of a page.
const WORDS: usize = UAR_PAGE / 8;
/// Where doorbells go: to the first register, and by libmlx5 to both buffers of it in turn.
const FIRST: [usize; 2] = [REGISTER, REGISTER + 0x100];
/// The other registers: further BlueFlame buffers, doorbells without record, and the CQ's.
const OTHERS: [usize; 4] = [
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
    page: Backing,
}

/// What a page's memory is.
enum Backing {
    /// Memory of the NICs.
    Own(Arc<Page>),
    /// Memory that someone else has mapped too.
    Given(&'static [AtomicU64; WORDS]),
}

impl Backing {
    fn words(&self) -> &[AtomicU64; WORDS] {
        match self {
            Self::Own(page) => &page.0,
            Self::Given(words) => words,
        }
    }
}

/// The doorbell pages of one NIC.
///
/// A page that is given back is kept, and used again: a store that comes late hits no memory of anyone else.
#[derive(Default)]
pub struct Registers(Mutex<Pages>);

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
    pub fn map(&self, number: u32) -> u64 {
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
        pages.used.push(Mapped {
            number,
            page: Backing::Own(page),
        });
        addr
    }

    /// Has page `number` lie in memory that is given, which is zeroed.
    pub fn map_given(&self, number: u32, words: &'static [AtomicU64; WORDS]) {
        words
            .iter()
            .for_each(|word| word.store(0, Ordering::Relaxed));
        self.pages().used.push(Mapped {
            number,
            page: Backing::Given(words),
        });
    }

    /// Takes a page's memory back.
    pub fn unmap(&self, number: u32) {
        let mut pages = self.pages();
        if let Some(at) = pages.used.iter().position(|used| used.number == number)
            && let Backing::Own(page) = pages.used.swap_remove(at).page
        {
            pages.free.push(page);
        }
    }

    /// True if a page in use begins at `addr`.
    pub fn has(&self, addr: u64) -> bool {
        self.pages()
            .used
            .iter()
            .any(|used| used.page.words().as_ptr().addr() as u64 == addr)
    }

    /// Takes out what was stored: page number, byte offset in the page, value. A register holds one value: of stores that
    /// follow each other closely the last one is found. With `all` the registers that are seldom used are looked at too.
    pub fn take(&self, all: bool, mut stored: impl FnMut(u32, usize, [u8; 8])) {
        let others: &[usize] = if all { &OTHERS } else { &[] };
        for used in &self.pages().used {
            for offset in FIRST.iter().chain(others) {
                let Some(register) = used.page.words().get(offset / 8) else {
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
        let store = |offset: usize, value: u64| {
            registers.pages().used[0].page.words()[offset / 8].store(value, Ordering::Relaxed);
        };
        for offset in [FIRST, FIRST].concat() {
            store(offset, 5);
            assert_eq!(taken(&registers, false), [(7, offset, 5u64.to_ne_bytes())]);
            assert_eq!(taken(&registers, true), []);
        }
        for offset in OTHERS {
            store(offset, 9);
            assert_eq!(taken(&registers, false), []);
            assert_eq!(taken(&registers, true), [(7, offset, 9u64.to_ne_bytes())]);
        }
        // Bytes of a WQE that is pushed are no doorbell.
        store(REGISTER + 8, 5);
        assert_eq!(taken(&registers, true), []);
    }

    #[test]
    fn a_page_can_lie_in_memory_that_is_given() {
        static WORDS_GIVEN: [AtomicU64; WORDS] = [const { AtomicU64::new(3) }; WORDS];
        let registers = Registers::default();
        registers.map_given(4, &WORDS_GIVEN);
        assert!(registers.has(WORDS_GIVEN.as_ptr().addr() as u64));
        assert_eq!(taken(&registers, true), [], "what was there is no doorbell");
        WORDS_GIVEN[REGISTER / 8].store(6, Ordering::Relaxed);
        assert_eq!(
            taken(&registers, false),
            [(4, REGISTER, 6u64.to_ne_bytes())]
        );
        registers.unmap(4);
        WORDS_GIVEN[REGISTER / 8].store(6, Ordering::Relaxed);
        assert_eq!(taken(&registers, true), []);
    }

    #[test]
    fn a_page_that_was_given_back_is_used_again_without_what_came_late() {
        let registers = Registers::default();
        let addr = registers.map(1);
        // The lock ends with the statement.
        let page = match &registers.pages().used[0].page {
            Backing::Own(page) => page.clone(),
            Backing::Given(_) => panic!("it is the NICs' own"),
        };
        registers.unmap(1);
        assert!(!registers.has(addr));
        page.0[REGISTER / 8].store(3, Ordering::Relaxed);
        assert_eq!(taken(&registers, true), []);
        assert_eq!(registers.map(2), addr);
        assert_eq!(taken(&registers, true), []);
    }
}
