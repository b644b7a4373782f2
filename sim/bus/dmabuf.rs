//! dmabuf handles: how a NIC is told of a range of GPU memory without its address.

use std::collections::BTreeMap;

/// Open handles. A handle stands for the file descriptor that a real driver returns: it must be closed exactly once,
/// after import, on success and on failure.
#[derive(Default)]
pub struct DmabufTable {
    open: BTreeMap<i32, (u64, u64)>,
    issued: i32,
}

impl DmabufTable {
    /// Opens a handle for `len` bytes of simulated memory at `addr`.
    pub fn export(&mut self, addr: u64, len: u64) -> i32 {
        self.issued += 1;
        self.open.insert(self.issued, (addr, len));
        self.issued
    }

    /// Closes a handle; false if it is not open.
    pub fn close(&mut self, fd: i32) -> bool {
        self.open.remove(&fd).is_some()
    }

    /// Address and length behind an open handle.
    pub fn resolve(&self, fd: i32) -> Option<(u64, u64)> {
        self.open.get(&fd).copied()
    }

    /// True if an open handle covers any of `len` bytes at `addr`.
    pub fn overlaps(&self, addr: u64, len: u64) -> bool {
        let end = addr.saturating_add(len);
        self.open
            .values()
            .any(|(base, size)| *base < end && base.saturating_add(*size) > addr)
    }

    /// How many handles are open.
    pub fn open(&self) -> usize {
        self.open.len()
    }
}

#[cfg(test)]
mod tests {
    use super::DmabufTable;

    #[test]
    fn a_handle_closes_once() {
        let mut table = DmabufTable::default();
        let fd = table.export(0x1000, 64);
        assert_eq!(table.resolve(fd), Some((0x1000, 64)));
        assert!(
            table.overlaps(0x103f, 1) && !table.overlaps(0x1040, 8) && !table.overlaps(0, 0x1000)
        );
        assert!(table.close(fd));
        assert!(!table.close(fd));
        assert_eq!((table.resolve(fd), table.open()), (None, 0));
    }
}
