//! Doorbell pages as memory: a producer stores to it, and nobody is called.
//!
//! Knows: pages, the registers of each, how a store is taken out, which pages to look at.
//! Must not know: what it says.
//!
//! There may be ten thousand pages. A look covers those that were rung lately, and a share of the others in turn: it costs
//! what there is to find, and no page waits for long.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use warpverbs_wire::doorbell::{REGISTER, REGISTER_CQ_ARM, REGISTER_NO_DBR, UAR_PAGE};

/// Words of a page.
const WORDS: usize = UAR_PAGE / 8;
/// Where doorbells go: to the first register, and by libmlx5 to both buffers of it in turn; further BlueFlame buffers,
/// doorbells without record, and the CQ's.
const REGISTERS: [usize; 6] = [
    REGISTER,
    REGISTER + 0x100,
    REGISTER + 0x200,
    REGISTER + 0x300,
    REGISTER_NO_DBR,
    REGISTER_CQ_ARM,
];
/// Looks that a page stays among those that were rung lately.
const LATELY: u16 = 1000;
/// So many of the others are looked at each time at least.
const LEAST: usize = 64;

/// Which pages a look covers. [`Registers::take`] covers those that were rung lately in any case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Look {
    /// All.
    All,
    /// One part of so many of the others, in turn.
    Part(usize),
    /// One alone.
    Page(u32),
}

/// A page.
#[repr(C, align(4096))]
struct Page([AtomicU64; WORDS]);

/// A page in use.
struct Mapped {
    number: u32,
    page: Backing,
    /// Looks that it stays among those that were rung lately.
    lately: u16,
}

impl Mapped {
    /// Takes out what was stored; true if there was something.
    fn take(&self, stored: &mut impl FnMut(u32, usize, [u8; 8])) -> bool {
        let mut any = false;
        for offset in REGISTERS {
            let Some(register) = self.page.words().get(offset / 8) else {
                continue;
            };
            // Zero is no doorbell: no QP or CQ has number 0.
            if register.load(Ordering::Relaxed) != 0 {
                // Acquires what its writer did before it (rule O3's fence on that side).
                let value = register.swap(0, Ordering::AcqRel);
                stored(self.number, offset, value.to_ne_bytes());
                any = true;
            }
        }
        any
    }
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

    fn addr(&self) -> usize {
        self.words().as_ptr().addr()
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
    /// Where in `used` a page is, by its number.
    places: HashMap<u32, usize>,
    /// Where pages begin.
    addrs: HashSet<usize>,
    /// Places of the pages that were rung lately.
    lately: Vec<usize>,
    /// The place that is looked at next.
    next: usize,
    free: Vec<Arc<Page>>,
}

impl Pages {
    fn add(&mut self, number: u32, page: Backing) {
        self.remove(number);
        self.addrs.insert(page.addr());
        self.places.insert(number, self.used.len());
        self.used.push(Mapped {
            number,
            page,
            lately: 0,
        });
    }

    fn remove(&mut self, number: u32) -> Option<Backing> {
        let place = self.places.remove(&number)?;
        // Places change. Who is rung again is among them again.
        for at in self.lately.drain(..) {
            if let Some(mapped) = self.used.get_mut(at) {
                mapped.lately = 0;
            }
        }
        let removed = self.used.swap_remove(place);
        if let Some(moved) = self.used.get(place) {
            self.places.insert(moved.number, place);
        }
        self.addrs.remove(&removed.page.addr());
        Some(removed.page)
    }

    /// Looks at the page at a place.
    fn look(&mut self, place: usize, stored: &mut impl FnMut(u32, usize, [u8; 8])) {
        if let Some(page) = self.used.get_mut(place)
            && page.take(stored)
            && std::mem::replace(&mut page.lately, LATELY) == 0
        {
            self.lately.push(place);
        }
    }

    fn look_at_those_rung_lately(&mut self, stored: &mut impl FnMut(u32, usize, [u8; 8])) {
        let used = &mut self.used;
        self.lately.retain(|place| {
            let Some(page) = used.get_mut(*place) else {
                return false;
            };
            page.lately = if page.take(stored) {
                LATELY
            } else {
                page.lately.saturating_sub(1)
            };
            page.lately > 0
        });
    }
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
        pages.add(number, Backing::Own(page));
        addr
    }

    /// Has page `number` lie in memory that is given, which is zeroed.
    pub fn map_given(&self, number: u32, words: &'static [AtomicU64; WORDS]) {
        words
            .iter()
            .for_each(|word| word.store(0, Ordering::Relaxed));
        self.pages().add(number, Backing::Given(words));
    }

    /// Takes a page's memory back.
    pub fn unmap(&self, number: u32) {
        let mut pages = self.pages();
        if let Some(Backing::Own(page)) = pages.remove(number) {
            pages.free.push(page);
        }
    }

    /// True if a page in use begins at `addr`.
    pub(crate) fn has(&self, addr: u64) -> bool {
        usize::try_from(addr).is_ok_and(|addr| self.pages().addrs.contains(&addr))
    }

    /// Takes out all that was stored, as [`Background`](crate::Background) does of NICs that run by themselves.
    pub fn take_all(&self, stored: impl FnMut(u32, usize, [u8; 8])) {
        self.take(Look::All, stored);
    }

    /// Takes out what was stored: page number, byte offset in the page, value. A register holds one value: of stores that
    /// follow each other closely the last one is found.
    pub(crate) fn take(&self, look: Look, mut stored: impl FnMut(u32, usize, [u8; 8])) {
        let mut pages = self.pages();
        match look {
            Look::All => {
                for place in 0..pages.used.len() {
                    pages.look(place, &mut stored);
                }
            }
            Look::Page(number) => {
                if let Some(place) = pages.places.get(&number).copied() {
                    pages.look(place, &mut stored);
                }
            }
            Look::Part(parts) => {
                pages.look_at_those_rung_lately(&mut stored);
                let all = pages.used.len();
                for _ in 0..all.div_ceil(parts.max(1)).max(LEAST).min(all) {
                    let place = pages.next % all;
                    // Those that were rung lately have been looked at.
                    if pages.used.get(place).is_some_and(|page| page.lately == 0) {
                        pages.look(place, &mut stored);
                    }
                    pages.next = place + 1;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(registers: &Registers, look: Look) -> Vec<(u32, usize, [u8; 8])> {
        let mut found = Vec::new();
        registers.take(look, |page, offset, value| {
            found.push((page, offset, value));
        });
        found
    }

    fn store(registers: &Registers, page: u32, offset: usize, value: u64) {
        let pages = registers.pages();
        pages.used[pages.places[&page]].page.words()[offset / 8].store(value, Ordering::Relaxed);
    }

    #[test]
    fn a_store_is_found_once_and_the_same_value_again_if_it_is_stored_again() {
        let registers = Registers::default();
        let addr = registers.map(7);
        assert!(addr.is_multiple_of(4096) && registers.has(addr) && !registers.has(addr + 8));
        for look in [Look::All, Look::Part(1), Look::Part(9), Look::Page(7)] {
            for offset in [REGISTERS, REGISTERS].concat() {
                store(&registers, 7, offset, 5);
                assert_eq!(taken(&registers, Look::Page(8)), []);
                let found = taken(&registers, look);
                assert_eq!(found, [(7, offset, 5u64.to_ne_bytes())], "{look:?}");
                assert_eq!(taken(&registers, Look::All), []);
            }
        }
        // Bytes of a WQE that is pushed are no doorbell.
        store(&registers, 7, REGISTER + 8, 5);
        assert_eq!(taken(&registers, Look::All), []);
    }

    #[test]
    fn of_many_pages_those_that_were_rung_lately_are_found_at_once_and_each_other_within_one_turn()
    {
        const PAGES: u32 = 1000;
        const PARTS: usize = 10;
        let registers = Registers::default();
        for page in 0..PAGES {
            registers.map(page);
        }
        // Some go, and places change.
        for page in (3..PAGES).step_by(7) {
            registers.unmap(page);
        }
        let left: Vec<u32> = (0..PAGES).filter(|page| page % 7 != 3).collect();
        for page in &left {
            store(&registers, *page, REGISTER, 9);
        }
        let mut found = Vec::new();
        for _ in 0..PARTS {
            let part = taken(&registers, Look::Part(PARTS));
            assert!(part.len() <= left.len().div_ceil(PARTS));
            found.extend(part.iter().map(|(page, ..)| *page));
        }
        found.sort_unstable();
        assert_eq!(found, left);
        // All of them were rung lately.
        for page in &left {
            store(&registers, *page, REGISTER_NO_DBR, 9);
        }
        assert_eq!(taken(&registers, Look::Part(PARTS)).len(), left.len());
        // One goes on; of the others a few are looked at.
        for _ in 0..LATELY {
            store(&registers, 5, REGISTER, 1);
            assert_eq!(taken(&registers, Look::Part(PARTS)).len(), 1);
        }
        assert_eq!(registers.pages().lately.len(), 1);
    }

    #[test]
    fn a_page_can_lie_in_memory_that_is_given() {
        static WORDS_GIVEN: [AtomicU64; WORDS] = [const { AtomicU64::new(3) }; WORDS];
        let registers = Registers::default();
        registers.map_given(4, &WORDS_GIVEN);
        assert!(registers.has(WORDS_GIVEN.as_ptr().addr() as u64));
        assert_eq!(
            taken(&registers, Look::All),
            [],
            "what was there is no doorbell"
        );
        WORDS_GIVEN[REGISTER / 8].store(6, Ordering::Relaxed);
        assert_eq!(
            taken(&registers, Look::Part(1)),
            [(4, REGISTER, 6u64.to_ne_bytes())]
        );
        registers.unmap(4);
        WORDS_GIVEN[REGISTER / 8].store(6, Ordering::Relaxed);
        assert_eq!(taken(&registers, Look::All), []);
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
        assert_eq!(taken(&registers, Look::All), []);
        assert_eq!(registers.map(2), addr);
        assert_eq!(taken(&registers, Look::All), []);
    }
}
