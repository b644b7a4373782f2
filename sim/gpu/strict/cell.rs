//! A cell: eight bytes, their history, and who read them.
//!
//! Knows: coherence order, which messages an agent may read, and where a write may enter.
//! Must not know: races, or agents beyond their clocks.
//!
//! The order of messages is coherence order (PTX ISA, "Coherence Order"), per byte; a cell with an empty history holds what
//! flat memory holds, and that happens before everyone.

use super::clocks::Known;
use super::few::Few;
use super::message::{Message, Side, bits};

/// Messages that a cell keeps. A store becomes visible to everyone when so many others have followed it.
const KEPT: usize = 16;

#[derive(Clone, Debug, Default)]
pub(super) struct Cell {
    pub(super) messages: Few<Message>,
    /// Reads that a later write must be ordered after, one a slot, strength and mask.
    pub(super) reads: Few<Side>,
}

impl Cell {
    /// Begins a history with what the cell holds.
    pub(super) fn begin(&mut self, value: impl FnOnce() -> u64) {
        if self.messages.is_empty() {
            self.messages.push(Message::base(value()));
        }
    }

    /// Index of the oldest message that may be read: nothing older than one that happens before the reader, that was read
    /// before it, or that is visible to all by its age (`visible`: made at or before it).
    pub(super) fn floor(&self, agent: Known<'_>, mask: u8, visible: u64) -> usize {
        let known = |m: &Message| m.live & mask != 0 && (m.at <= visible || m.is_known_to(agent));
        self.oldest(mask)
            .max(self.messages.iter().rposition(known).unwrap_or(0))
    }

    /// Index of the oldest message at which all these bytes have a value.
    pub(super) fn oldest(&self, mask: u8) -> usize {
        let mut left = mask;
        let supplies_last = |m: &Message| {
            left &= !m.live;
            left == 0
        };
        self.messages.iter().position(supplies_last).unwrap_or(0)
    }

    /// The value at a cut of coherence order, and the messages that supply it: each byte comes from the newest message
    /// up to the cut that wrote it.
    pub(super) fn value_at(&self, cut: usize, mask: u8) -> (u64, Sources) {
        let (mut value, mut left, mut sources) = (0, mask, Sources::default());
        for (index, message) in self.messages.iter().enumerate().take(cut + 1).rev() {
            let part = message.live & left;
            if part != 0 {
                value |= message.value & bits(part);
                left &= !part;
                sources.add(index);
                if left == 0 {
                    break;
                }
            }
        }
        (value, sources)
    }

    /// Newest value of all bytes.
    pub(super) fn latest(&self) -> u64 {
        self.value_at(self.messages.len().saturating_sub(1), 0xff).0
    }

    /// Puts a message behind `index`.
    pub(super) fn insert_behind(&mut self, index: usize, message: Message, visible: u64) {
        let at = (index + 1).min(self.messages.len());
        self.messages.insert(at, message);
        self.forget(visible);
    }

    /// Forgets messages that nobody can read any more.
    pub(super) fn forget(&mut self, visible: u64) {
        let aged = self
            .messages
            .iter()
            .rposition(|m| m.at <= visible)
            .unwrap_or(0);
        let floor = aged.max(self.messages.len().saturating_sub(KEPT));
        // A byte is read from nothing older than the newest message up to the floor that wrote it.
        let mut newer = 0;
        for message in self.messages.iter_mut().take(floor + 1).rev() {
            message.live &= !newer;
            newer |= message.live;
        }
        self.messages.retain(|m| m.live != 0);
    }

    /// Remembers a read for later writes.
    pub(super) fn note_read(&mut self, read: Side) {
        let same = |r: &Side| {
            r.slot == read.slot
                && r.mask == read.mask
                && r.strength.strong == read.strength.strong
                && r.non_coherent == read.non_coherent
        };
        match self.reads.iter_mut().find(|r| same(r)) {
            Some(known) => *known = read,
            None => self.reads.push(read),
        }
    }

    /// Forgets reads that happen before a write that has just been made: who races with them races with the write too.
    pub(super) fn settle_reads(&mut self, known: Known<'_>, mask: u8) {
        self.reads
            .retain(|r| r.non_coherent || r.mask & !mask != 0 || !r.is_before(known));
    }
}

/// The messages that a read takes its bytes from: at most one a byte.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sources {
    indices: [usize; 8],
    len: usize,
}

impl Sources {
    fn add(&mut self, index: usize) {
        if let Some(entry) = self.indices.get_mut(self.len) {
            *entry = index;
            self.len += 1;
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = usize> + '_ {
        self.indices.iter().take(self.len).copied()
    }

    /// The message, if there is only one.
    pub(super) fn single(&self) -> Option<usize> {
        (self.len == 1)
            .then(|| self.indices.first().copied())
            .flatten()
    }
}
