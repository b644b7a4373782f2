//! How a message is cut into packets of the path MTU (IBA 9.7: all but the last are full).

use crate::roce::Position;

/// Packets of a message of `len` bytes: one even for none. `mtu` of 0 counts as 1.
pub const fn packets(len: u32, mtu: u32) -> u32 {
    let mtu = if mtu == 0 { 1 } else { mtu };
    match len.div_ceil(mtu) {
        0 => 1,
        packets => packets,
    }
}

/// A packet's part of its message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Which packet, from 0.
    pub index: u32,
    /// Where its bytes begin in the message.
    pub offset: u32,
    /// Its bytes.
    pub len: u32,
    /// Where it stands.
    pub position: Position,
}

/// The packets of a message, in order; any of them can be asked for, as a retransmission does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segments {
    len: u32,
    mtu: u32,
    next: u32,
}

impl Segments {
    /// The packets of a message of `len` bytes. `mtu` of 0 counts as 1.
    pub const fn new(len: u32, mtu: u32) -> Self {
        Self {
            len,
            mtu: if mtu == 0 { 1 } else { mtu },
            next: 0,
        }
    }

    /// How many packets there are.
    pub const fn count(&self) -> u32 {
        packets(self.len, self.mtu)
    }

    /// The packet of that index; `None` behind the last.
    pub const fn get(&self, index: u32) -> Option<Segment> {
        let count = self.count();
        if index >= count {
            return None;
        }
        let offset = index * self.mtu;
        let left = self.len - offset;
        let position = match (index == 0, index + 1 == count) {
            (true, true) => Position::Only,
            (true, false) => Position::First,
            (false, false) => Position::Middle,
            (false, true) => Position::Last,
        };
        Some(Segment {
            index,
            offset,
            len: if left < self.mtu { left } else { self.mtu },
            position,
        })
    }
}

impl Iterator for Segments {
    type Item = Segment;

    fn next(&mut self) -> Option<Segment> {
        let segment = self.get(self.next)?;
        self.next += 1;
        Some(segment)
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use std::vec::Vec;

    use super::*;

    #[test]
    fn sizes_around_the_mtu() {
        let cut = |len| {
            Segments::new(len, 1024)
                .map(|s| (s.offset, s.len, s.position))
                .collect::<Vec<_>>()
        };
        assert_eq!(cut(0), [(0, 0, Position::Only)]);
        assert_eq!(cut(1), [(0, 1, Position::Only)]);
        assert_eq!(cut(1024), [(0, 1024, Position::Only)]);
        assert_eq!(
            cut(1025),
            [(0, 1024, Position::First), (1024, 1, Position::Last)]
        );
        assert_eq!(
            cut(3072),
            [
                (0, 1024, Position::First),
                (1024, 1024, Position::Middle),
                (2048, 1024, Position::Last)
            ]
        );
    }

    #[test]
    fn the_largest_message_and_no_mtu() {
        let all = Segments::new(u32::MAX, 256);
        assert_eq!(all.count(), 1 << 24);
        assert_eq!(
            all.get((1 << 24) - 1),
            Some(Segment {
                index: (1 << 24) - 1,
                offset: 0xffff_ff00,
                len: 255,
                position: Position::Last
            })
        );
        assert_eq!(all.get(1 << 24), None);
        assert_eq!(Segments::new(2, 0).count(), 2);
    }
}
