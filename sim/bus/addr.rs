//! The address map.
//!
//! Knows: which range belongs to simulated memory, to device registers and to the process itself.
//! Must not know: what lies at an address.
//!
//! Simulated memory and BARs have bit 47 set. No x86-64 or AArch64 process with 47- or 48-bit user addresses has a
//! mapping there, so host code that dereferences a device pointer faults at once instead of reading something.

/// First address of simulated memory (GPU memory, then host-mapped memory).
const SIMULATED: u64 = 0x0000_d000_0000_0000;
/// First address of device registers.
const BARS: u64 = 0x0000_b000_0000_0000;
const BARS_END: u64 = 0x0000_c000_0000_0000;
const SIMULATED_END: u64 = 0x0001_0000_0000_0000;
/// Bytes of register space a device has: 65,536 UAR pages of 4 KiB.
pub const BAR_SIZE: u64 = 1 << 28;

/// Who answers an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Region {
    /// [`crate::Memory`]: GPU memory or host-mapped memory.
    Simulated,
    /// Registers of an attached device.
    Bar {
        /// The device's number on the bus.
        device: usize,
        /// Byte offset in its BAR.
        offset: u64,
    },
    /// The process's own memory, reachable through [`crate::HostWindows`] only.
    Host,
}

/// The region of `addr`.
pub fn region_of(addr: u64) -> Region {
    match addr {
        BARS..BARS_END => Region::Bar {
            device: ((addr - BARS) / BAR_SIZE) as usize,
            offset: (addr - BARS) % BAR_SIZE,
        },
        SIMULATED..SIMULATED_END => Region::Simulated,
        _ => Region::Host,
    }
}

/// First address of device number `device`'s registers.
pub fn bar_base(device: usize) -> u64 {
    BARS + device as u64 * BAR_SIZE
}

/// First address that a [`crate::Memory`] may hand out in each space: GPU memory, host-mapped memory, mapped
/// registers, and the shared and local windows of running blocks.
pub(crate) const fn space_base(index: u64) -> u64 {
    SIMULATED + (index << 41)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regions_do_not_overlap() {
        assert_eq!(region_of(0x7fff_0000_0000), Region::Host);
        assert_eq!(region_of(space_base(4)), Region::Simulated);
        assert_eq!(
            region_of(bar_base(3) + 0x1000),
            Region::Bar {
                device: 3,
                offset: 0x1000
            }
        );
        assert_eq!(region_of(0xffff_8000_0000_0000), Region::Host);
    }
}
