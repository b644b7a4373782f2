//! The NIC's objects by number, and who uses whom.
//!
//! Knows: kinds of object, numbers, reference counts.
//! Must not know: what an object does, or how a caller asks for it.
//!
//! Numbers are not handed out again until a kind's whole range is used up, so that a late use of a destroyed object
//! is recognised instead of hitting its successor. Each kind starts at a number of its own: a CQ number used as a QP
//! number names nothing.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fmt;

use crate::counters::CounterSet;
use crate::cq::Cq;
use crate::error::NicError;
use crate::keys::MKey;
use crate::qp::Qp;
use crate::rmp::Rmp;
use crate::uar::Uar;
use crate::umem::Umem;

/// Kinds of object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum ObjectKind {
    /// Protection domain.
    Pd,
    /// Transport domain.
    TransportDomain,
    /// Counter set.
    CounterSet,
    /// Doorbell page.
    Uar,
    /// Memory for queues and doorbell records.
    Umem,
    /// Memory key.
    MKey,
    /// Completion queue.
    Cq,
    /// Receive memory pool: a shared receive queue.
    Rmp,
    /// Queue pair.
    Qp,
}

impl fmt::Display for ObjectKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Pd => "PD",
            Self::TransportDomain => "TD",
            Self::CounterSet => "counter set",
            Self::Uar => "UAR",
            Self::Umem => "UMEM",
            Self::MKey => "MKey",
            Self::Cq => "CQ",
            Self::Rmp => "RMP",
            Self::Qp => "QP",
        })
    }
}

/// An object's name in messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ObjectId {
    /// Its kind.
    pub kind: ObjectKind,
    /// Its number.
    pub id: u32,
}

impl ObjectId {
    /// A name.
    pub const fn new(kind: ObjectKind, id: u32) -> Self {
        Self { kind, id }
    }
}

impl fmt::Display for ObjectId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:#x}", self.kind, self.id)
    }
}

struct Counted<T> {
    users: u32,
    object: T,
}

/// All objects of one kind.
pub(crate) struct Table<T> {
    kind: ObjectKind,
    first: u32,
    limit: u32,
    /// Most objects at a time.
    capacity: u64,
    next: u32,
    wrapped: bool,
    live: BTreeMap<u32, Counted<T>>,
}

impl<T> Table<T> {
    /// An empty table whose numbers run from `first` to `limit - 1`, for at most `capacity` objects at a time.
    fn new(kind: ObjectKind, first: u32, limit: u32, capacity: u64) -> Self {
        Self {
            kind,
            first,
            limit,
            capacity: capacity.min(u64::from(limit - first)),
            next: first,
            wrapped: false,
            live: BTreeMap::new(),
        }
    }

    /// Adds the object that `make` builds from its number.
    pub(crate) fn insert(&mut self, make: impl FnOnce(u32) -> T) -> Result<u32, NicError> {
        if self.live.len() as u64 >= self.capacity {
            return Err(NicError::Exhausted(self.kind));
        }
        loop {
            let id = self.next;
            self.next += 1;
            if self.next == self.limit {
                self.next = self.first;
                self.wrapped = true;
            }
            if let Entry::Vacant(vacant) = self.live.entry(id) {
                vacant.insert(Counted {
                    users: 0,
                    object: make(id),
                });
                return Ok(id);
            }
        }
    }

    pub(crate) fn get(&self, id: u32) -> Option<&T> {
        self.live.get(&id).map(|slot| &slot.object)
    }

    pub(crate) fn get_mut(&mut self, id: u32) -> Option<&mut T> {
        self.live.get_mut(&id).map(|slot| &mut slot.object)
    }

    /// How many objects use this one; `None` if there is no such object.
    pub(crate) fn users(&self, id: u32) -> Option<u32> {
        self.live.get(&id).map(|slot| slot.users)
    }

    /// Removes an object that nothing uses.
    pub(crate) fn remove(&mut self, id: u32) -> Result<T, NicError> {
        let object = ObjectId::new(self.kind, id);
        match self.users(id) {
            None => Err(NicError::NoObject(object)),
            Some(0) => match self.live.remove(&id) {
                Some(slot) => Ok(slot.object),
                None => Err(NicError::NoObject(object)),
            },
            Some(users) => Err(NicError::Busy { object, users }),
        }
    }

    /// True if the number was handed out and its object is gone.
    pub(crate) fn is_destroyed(&self, id: u32) -> bool {
        !self.live.contains_key(&id)
            && (self.first..self.limit).contains(&id)
            && (self.wrapped || id < self.next)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        self.live.iter().map(|(id, slot)| (*id, &slot.object))
    }

    /// All of them, once around from a number that `draw` chooses among as many as there are from the first to the last.
    pub(crate) fn iter_from(
        &self,
        draw: impl FnOnce(u32) -> u32,
    ) -> impl Iterator<Item = (u32, &T)> {
        let ends = self.live.first_key_value().zip(self.live.last_key_value());
        let start = ends.map_or(0, |((first, _), (last, _))| first + draw(last - first + 1));
        let behind = self.live.range(start..);
        behind
            .chain(self.live.range(..start))
            .map(|(id, slot)| (*id, &slot.object))
    }

    fn adjust(&mut self, id: u32, by: impl FnOnce(u32) -> u32) {
        if let Some(slot) = self.live.get_mut(&id) {
            slot.users = by(slot.users);
        }
    }
}

/// Every object of the NIC.
pub(crate) struct Objects {
    /// PDs, with the uid of each.
    pub(crate) pds: Table<u16>,
    /// Transport domains, with the uid of each.
    pub(crate) transport_domains: Table<u16>,
    pub(crate) counters: Table<CounterSet>,
    pub(crate) uars: Table<Uar>,
    pub(crate) umems: Table<Umem>,
    pub(crate) mkeys: Table<MKey>,
    pub(crate) cqs: Table<Cq>,
    pub(crate) rmps: Table<Rmp>,
    pub(crate) qps: Table<Qp>,
}

const NUMBERS_24: u32 = 1 << 24;

impl Objects {
    /// No objects, and room for 2^`log_max` of each kind (of doorbell pages, as many as the BAR has).
    pub(crate) fn new(log_max: u8) -> Self {
        let capacity = 1u64.checked_shl(log_max.into()).unwrap_or(u64::MAX);
        // One UAR page for each 4 KiB of the BAR.
        let uars = (warpverbs_sim_bus::BAR_SIZE >> 12) as u32;
        Self {
            pds: Table::new(ObjectKind::Pd, 0x11, NUMBERS_24, capacity),
            transport_domains: Table::new(ObjectKind::TransportDomain, 0x31, NUMBERS_24, capacity),
            // Numbers have 8 bits, and 0 is none.
            counters: Table::new(ObjectKind::CounterSet, 1, 1 << 8, capacity),
            uars: Table::new(ObjectKind::Uar, 1, uars, uars.into()),
            umems: Table::new(ObjectKind::Umem, 0x21, NUMBERS_24, capacity),
            // Lower indices are the NIC's own keys (QUERY_SPECIAL_CONTEXTS).
            mkeys: Table::new(ObjectKind::MKey, 0x1801, NUMBERS_24, capacity),
            cqs: Table::new(ObjectKind::Cq, 0x401, NUMBERS_24, capacity),
            rmps: Table::new(ObjectKind::Rmp, 0x801, NUMBERS_24, capacity),
            qps: Table::new(ObjectKind::Qp, 0x101, NUMBERS_24, capacity),
        }
    }

    /// Counts one user more for each of `objects`.
    pub(crate) fn retain(&mut self, objects: &[ObjectId]) {
        self.adjust(objects, |users| users.saturating_add(1));
    }

    /// Counts one user less for each of `objects`.
    pub(crate) fn release(&mut self, objects: &[ObjectId]) {
        self.adjust(objects, |users| users.saturating_sub(1));
    }

    fn adjust(&mut self, objects: &[ObjectId], by: fn(u32) -> u32) {
        for object in objects {
            match object.kind {
                ObjectKind::Pd => self.pds.adjust(object.id, by),
                ObjectKind::TransportDomain => self.transport_domains.adjust(object.id, by),
                ObjectKind::CounterSet => self.counters.adjust(object.id, by),
                ObjectKind::Uar => self.uars.adjust(object.id, by),
                ObjectKind::Umem => self.umems.adjust(object.id, by),
                ObjectKind::MKey => self.mkeys.adjust(object.id, by),
                ObjectKind::Cq => self.cqs.adjust(object.id, by),
                ObjectKind::Rmp => self.rmps.adjust(object.id, by),
                ObjectKind::Qp => self.qps.adjust(object.id, by),
            }
        }
    }

    /// All live objects.
    pub(crate) fn live(&self) -> Vec<ObjectId> {
        fn ids<T>(table: &Table<T>) -> impl Iterator<Item = ObjectId> + '_ {
            table.iter().map(|(id, _)| ObjectId::new(table.kind, id))
        }
        ids(&self.pds)
            .chain(ids(&self.transport_domains))
            .chain(ids(&self.counters))
            .chain(ids(&self.uars))
            .chain(ids(&self.umems))
            .chain(ids(&self.mkeys))
            .chain(ids(&self.cqs))
            .chain(ids(&self.rmps))
            .chain(ids(&self.qps))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_reused_only_after_the_whole_range() {
        let mut table = Table::new(ObjectKind::Uar, 1, 4, 9);
        assert_eq!(table.insert(|_| ()).unwrap(), 1);
        assert_eq!(table.insert(|_| ()).unwrap(), 2);
        table.remove(1).unwrap();
        assert!(table.is_destroyed(1));
        assert!(!table.is_destroyed(3), "never handed out");
        assert_eq!(table.insert(|_| ()).unwrap(), 3);
        assert_eq!(table.insert(|_| ()).unwrap(), 1);
        assert_eq!(
            table.insert(|_| ()),
            Err(NicError::Exhausted(ObjectKind::Uar))
        );
    }

    #[test]
    fn a_used_object_is_not_removed() {
        let mut objects = Objects::new(4);
        let pd = objects.pds.insert(|_| 0).unwrap();
        let id = ObjectId::new(ObjectKind::Pd, pd);
        objects.retain(&[id, id]);
        objects.release(&[id]);
        assert_eq!(
            objects.pds.remove(pd),
            Err(NicError::Busy {
                object: id,
                users: 1
            })
        );
        objects.release(&[id]);
        assert_eq!(objects.pds.remove(pd), Ok(0));
        assert_eq!(objects.pds.remove(pd), Err(NicError::NoObject(id)));
    }
}
