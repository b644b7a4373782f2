//! Which doorbell pages are mapped into a GPU, each once, however many use it.
//!
//! Knows: that a driver maps a page once (`cuMemHostRegister` refuses a second time), and that a NIC may hand out one page several
//! times: its pages that are not dedicated are one for all.
//! Must not know: what maps a page.

use std::collections::BTreeMap;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use crate::error::{Error, Result};
use crate::teardown::wait_until;

/// The pages that are mapped, by CPU address.
#[derive(Debug, Default)]
pub(super) struct UarPages {
    pages: Mutex<BTreeMap<u64, Page>>,
    changed: Condvar,
}

#[derive(Clone, Copy, Debug)]
enum Page {
    /// A call of the driver that maps or unmaps it is under way.
    Changing,
    Mapped {
        addr: u64,
        users: u32,
    },
}

impl UarPages {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<u64, Page>> {
        self.pages.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Uses the mapping of a page, which `map` makes if there is none; returns its address on the GPU. Busy if a call of another
    /// thread for the same page has not returned by the deadline.
    pub(super) fn acquire(
        &self,
        page: u64,
        deadline: Instant,
        map: impl FnOnce() -> Result<u64>,
    ) -> Result<u64> {
        let settled =
            |pages: &BTreeMap<u64, Page>| !matches!(pages.get(&page), Some(Page::Changing));
        let mut pages = wait_until(&self.changed, self.lock(), deadline, settled);
        match pages.get_mut(&page) {
            Some(Page::Mapped { addr, users }) => {
                *users += 1;
                return Ok(*addr);
            }
            Some(Page::Changing) => {
                return Err(Error::Busy {
                    what: "doorbell page mapping",
                    users: 1,
                });
            }
            None => pages.insert(page, Page::Changing),
        };
        drop(pages);
        let mapped = map();
        let mut pages = self.lock();
        match &mapped {
            Ok(addr) => pages.insert(
                page,
                Page::Mapped {
                    addr: *addr,
                    users: 1,
                },
            ),
            Err(_) => pages.remove(&page),
        };
        drop(pages);
        self.changed.notify_all();
        mapped
    }

    /// Ends a use. The last one has `unmap` take the mapping back; refused, the use goes on.
    pub(super) fn release(&self, page: u64, unmap: impl FnOnce() -> Result<()>) -> Result<()> {
        let mut pages = self.lock();
        let addr = match pages.get_mut(&page) {
            Some(Page::Mapped { users, .. }) if *users > 1 => {
                *users -= 1;
                return Ok(());
            }
            // Nobody else uses it, nor finds it while it changes.
            Some(place @ Page::Mapped { .. }) => match std::mem::replace(place, Page::Changing) {
                Page::Mapped { addr, .. } => addr,
                Page::Changing => 0,
            },
            // Who releases has acquired.
            Some(Page::Changing) | None => return unmap(),
        };
        drop(pages);
        let unmapped = unmap();
        let mut pages = self.lock();
        match &unmapped {
            Ok(()) => pages.remove(&page),
            Err(_) => pages.insert(page, Page::Mapped { addr, users: 1 }),
        };
        drop(pages);
        self.changed.notify_all();
        unmapped
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::time::Duration;

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(30)
    }

    fn refused() -> Error {
        Error::Busy {
            what: "test",
            users: 7,
        }
    }

    #[test]
    fn a_page_is_mapped_once_and_unmapped_with_its_last_use() {
        let pages = UarPages::default();
        let never = || panic!("it is mapped");
        assert!(pages.acquire(1, soon(), || Err(refused())).is_err());
        assert_eq!(pages.acquire(1, soon(), || Ok(5)).unwrap(), 5);
        assert_eq!(pages.acquire(1, soon(), never).unwrap(), 5);
        assert_eq!(pages.acquire(2, soon(), || Ok(6)).unwrap(), 6);
        pages.release(1, || panic!("it is used")).unwrap();
        assert!(pages.release(1, || Err(refused())).is_err());
        assert_eq!(pages.acquire(1, soon(), never).unwrap(), 5, "still mapped");
        pages.release(1, || panic!("it is used")).unwrap();
        pages.release(1, || Ok(())).unwrap();
        assert_eq!(pages.acquire(1, soon(), || Ok(9)).unwrap(), 9);
    }

    #[test]
    fn threads_never_map_or_unmap_one_page_at_once() {
        let pages = UarPages::default();
        let mapped = AtomicU32::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..2000 {
                        pages
                            .acquire(1, soon(), || {
                                assert_eq!(mapped.fetch_add(1, Ordering::SeqCst), 0);
                                Ok(5)
                            })
                            .unwrap();
                        assert_eq!(mapped.load(Ordering::SeqCst), 1);
                        pages
                            .release(1, || {
                                assert_eq!(mapped.fetch_sub(1, Ordering::SeqCst), 1);
                                Ok(())
                            })
                            .unwrap();
                    }
                });
            }
        });
        assert_eq!(mapped.load(Ordering::SeqCst), 0);
    }

    #[test]
    fn a_call_that_hangs_makes_others_busy_at_their_deadline() {
        let pages = UarPages::default();
        let mapping = || {
            let late = Instant::now() + Duration::from_millis(20);
            let error = pages.acquire(1, late, || Ok(1)).unwrap_err();
            assert!(matches!(error, Error::Busy { users: 1, .. }), "{error}");
            Ok(5)
        };
        assert_eq!(pages.acquire(1, soon(), mapping).unwrap(), 5);
    }
}
