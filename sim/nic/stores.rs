//! Stores to doorbell pages, each delivered by itself, in order: a queue from producers to the NIC.
//!
//! Knows: what a store is, and the order in which stores came.
//! Must not know: what a store says, or how it was seen.
//!
//! Producers take no lock, allocate nothing and never wait, so that a signal handler may be one. The queue is a ring of
//! places, each with a turn that says whose it is: in lap n place p is free for the store number `n * PLACES + p` while its
//! turn is that number, and holds it once its turn is one more (D. Vyukov's bounded queue).

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Most bytes of a store: what one instruction stores at most.
pub(crate) const MOST: usize = 64;
/// Stores that can wait.
const PLACES: usize = 4096;

/// A store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Store {
    /// Number of the page.
    pub(crate) page: u32,
    /// Byte offset in the page.
    pub(crate) offset: u16,
    /// How many bytes; none: it was a load.
    len: u8,
    bytes: [u8; MOST],
}

impl Store {
    /// A store; `None` if no instruction makes one that long.
    pub(crate) fn new(page: u32, offset: u16, bytes: &[u8]) -> Option<Self> {
        let mut store = Self {
            page,
            offset,
            len: u8::try_from(bytes.len()).ok()?,
            bytes: [0; MOST],
        };
        store.bytes.get_mut(..bytes.len())?.copy_from_slice(bytes);
        Some(store)
    }

    /// What was stored.
    pub(crate) fn bytes(&self) -> &[u8] {
        self.bytes.get(..self.len.into()).unwrap_or_default()
    }
}

struct Place {
    turn: AtomicUsize,
    /// Page, offset and length.
    head: AtomicU64,
    words: [AtomicU64; MOST / 8],
}

/// The queue. Any number of producers, one consumer at a time.
pub(crate) struct Stores {
    places: Box<[Place]>,
    /// Number of the next store to come.
    next: AtomicUsize,
    /// Number of the next one to be taken.
    taken: AtomicUsize,
}

impl Stores {
    pub(crate) fn new() -> Self {
        let place = |turn| Place {
            turn: AtomicUsize::new(turn),
            head: AtomicU64::new(0),
            words: [const { AtomicU64::new(0) }; MOST / 8],
        };
        Self {
            places: (0..PLACES).map(place).collect(),
            next: AtomicUsize::new(0),
            taken: AtomicUsize::new(0),
        }
    }

    /// Adds a store behind all that were added; false if there is no room.
    pub(crate) fn push(&self, store: &Store) -> bool {
        let mut number = self.next.load(Ordering::Relaxed);
        loop {
            let Some(place) = self.places.get(number % PLACES) else {
                return false;
            };
            let turn = place.turn.load(Ordering::Acquire);
            if turn != number {
                // Behind: not taken yet. Ahead: another producer was faster.
                if turn.wrapping_sub(number) as isize > 0 {
                    number = self.next.load(Ordering::Relaxed);
                    continue;
                }
                return false;
            }
            // SeqCst: the order of numbers is the order of the stores for all threads, as for a device.
            match self.next.compare_exchange_weak(
                number,
                number.wrapping_add(1),
                Ordering::SeqCst,
                Ordering::Relaxed,
            ) {
                Ok(_) => {
                    let head = u64::from(store.page) << 32
                        | u64::from(store.offset) << 8
                        | u64::from(store.len);
                    place.head.store(head, Ordering::Relaxed);
                    for (word, bytes) in place.words.iter().zip(store.bytes.as_chunks::<8>().0) {
                        word.store(u64::from_ne_bytes(*bytes), Ordering::Relaxed);
                    }
                    // Releases what the producer did before its store too: the NIC sees it (rule O3's other side).
                    place.turn.store(number.wrapping_add(1), Ordering::Release);
                    return true;
                }
                Err(now) => number = now,
            }
        }
    }

    /// Takes the oldest store.
    pub(crate) fn pop(&self) -> Option<Store> {
        let number = self.taken.load(Ordering::Relaxed);
        let place = self.places.get(number % PLACES)?;
        if place.turn.load(Ordering::Acquire) != number.wrapping_add(1) {
            return None;
        }
        let head = place.head.load(Ordering::Relaxed);
        let mut bytes = [0; MOST];
        for (bytes, word) in bytes.as_chunks_mut::<8>().0.iter_mut().zip(&place.words) {
            *bytes = word.load(Ordering::Relaxed).to_ne_bytes();
        }
        self.taken.store(number.wrapping_add(1), Ordering::Relaxed);
        place
            .turn
            .store(number.wrapping_add(PLACES), Ordering::Release);
        Some(Store {
            page: (head >> 32) as u32,
            offset: (head >> 8) as u16,
            len: head as u8,
            bytes,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn store(page: u32, value: u64) -> Store {
        Store::new(page, 0x800, &value.to_ne_bytes()).unwrap()
    }

    #[test]
    fn stores_come_out_as_they_went_in() {
        let stores = Stores::new();
        assert_eq!(stores.pop(), None);
        let all: Vec<Store> = (0..=MOST)
            .map(|len| Store::new(u32::MAX - len as u32, 0xfff, &vec![len as u8; len]).unwrap())
            .collect();
        assert!(all.iter().all(|store| stores.push(store)));
        for (len, store) in all.iter().enumerate() {
            let found = stores.pop().unwrap();
            assert_eq!((found, found.bytes().len()), (*store, len));
        }
        assert_eq!(Store::new(0, 0, &[0; MOST + 1]), None);
    }

    #[test]
    fn a_full_queue_takes_none_until_one_is_taken() {
        let stores = Stores::new();
        for lap in 0..3 {
            for number in 0..PLACES as u64 {
                assert!(stores.push(&store(lap, number)));
            }
            assert!(!stores.push(&store(lap, 0)));
            for number in 0..PLACES as u64 {
                assert_eq!(stores.pop(), Some(store(lap, number)));
            }
            assert_eq!(stores.pop(), None);
        }
    }

    #[test]
    fn of_many_producers_none_is_lost_and_each_ones_stay_in_order() {
        const PRODUCERS: u32 = 4;
        const EACH: u64 = 20_000;
        let stores = Stores::new();
        let mut next = [0; PRODUCERS as usize];
        std::thread::scope(|scope| {
            for producer in 0..PRODUCERS {
                let stores = &stores;
                scope.spawn(move || {
                    for number in 0..EACH {
                        while !stores.push(&store(producer, number)) {
                            std::thread::yield_now();
                        }
                    }
                });
            }
            while next.iter().sum::<u64>() < u64::from(PRODUCERS) * EACH {
                let Some(found) = stores.pop() else {
                    std::thread::yield_now();
                    continue;
                };
                let due = &mut next[found.page as usize];
                assert_eq!(found, store(found.page, *due));
                *due += 1;
            }
        });
        assert_eq!(stores.pop(), None);
    }
}
