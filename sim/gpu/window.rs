//! The window through which a GPU sees registers of devices.
//!
//! Knows: which window addresses stand for which bus addresses, and which once did.
//! Must not know: what a register does.

use warpverbs_sim_bus::{Fault, FaultKind, Space};

/// Granularity of a mapping.
const PAGE: u64 = 4096;

struct Mapping {
    /// Address in the window.
    at: u64,
    len: u64,
    bus_addr: u64,
    live: bool,
}

/// Mapped registers. Window addresses are never handed out twice.
#[derive(Default)]
pub(crate) struct RegisterWindow {
    /// Sorted by `at`.
    mappings: Vec<Mapping>,
    next: u64,
}

impl RegisterWindow {
    /// Maps `len` bytes of registers at a bus address; `None` if the window is used up.
    pub(crate) fn map(&mut self, bus_addr: u64, len: u64) -> Option<u64> {
        let size = len.checked_next_multiple_of(PAGE)?;
        let at = Space::MAPPED_REGISTERS.checked_add(self.next)?;
        // A page is left free between two mappings.
        let next = self.next.checked_add(size)?.checked_add(PAGE)?;
        if Space::MAPPED_REGISTERS + next > Space::Shared.base() {
            return None;
        }
        self.next = next;
        self.mappings.push(Mapping {
            at,
            len,
            bus_addr,
            live: true,
        });
        Some(at)
    }

    /// Ends the oldest live mapping of a bus address; false if there is none.
    pub(crate) fn unmap(&mut self, bus_addr: u64) -> bool {
        let found = self
            .mappings
            .iter_mut()
            .find(|m| m.live && m.bus_addr == bus_addr);
        found.is_some_and(|m| {
            m.live = false;
            true
        })
    }

    fn find(&self, addr: u64) -> Option<&Mapping> {
        let after = self.mappings.partition_point(|m| m.at <= addr);
        self.mappings
            .get(after.checked_sub(1)?)
            .filter(|m| addr - m.at < m.len)
    }

    /// The bus address behind `len` bytes of the window.
    pub(crate) fn translate(&self, addr: u64, len: u64) -> Result<u64, Fault> {
        match self.find(addr) {
            None => Err(Fault::new(
                FaultKind::Unmapped,
                addr,
                len,
                "no mapped register",
            )),
            Some(m) if !m.live => Err(Fault::new(FaultKind::Freed, addr, len, self.describe(addr))),
            Some(m) if len > m.len - (addr - m.at) => Err(Fault::new(
                FaultKind::OutOfBounds,
                addr,
                len,
                self.describe(addr),
            )),
            Some(m) => Ok(m.bus_addr + (addr - m.at)),
        }
    }

    /// Names what lies at an address of the window.
    pub(crate) fn describe(&self, addr: u64) -> String {
        match self.find(addr) {
            None => "no mapped register".into(),
            Some(m) => format!(
                "device registers at bus address {:#x}+{:#x} ({} bytes{})",
                m.bus_addr,
                addr - m.at,
                m.len,
                if m.live { "" } else { ", unmapped" }
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mappings_translate_until_they_end_and_do_not_come_back() {
        let mut window = RegisterWindow::default();
        let a = window.map(0xb000_0000_1000, 4096).unwrap();
        let b = window.map(0xb000_0000_5000, 4096).unwrap();
        assert_eq!(window.translate(a + 0x800, 8).unwrap(), 0xb000_0000_1800);
        assert_eq!(window.translate(b, 8).unwrap(), 0xb000_0000_5000);
        assert_eq!(
            window.translate(a + 4092, 8).unwrap_err().kind,
            FaultKind::OutOfBounds
        );
        assert_eq!(
            window.translate(a + 4096, 8).unwrap_err().kind,
            FaultKind::Unmapped
        );
        assert!(window.unmap(0xb000_0000_1000));
        assert!(!window.unmap(0xb000_0000_1000));
        assert_eq!(window.translate(a, 8).unwrap_err().kind, FaultKind::Freed);
        assert!(window.map(0xb000_0000_1000, 4096).unwrap() > b);
        assert_eq!(window.map(0, u64::MAX), None);
    }
}
