//! Send queue indices: what a doorbell and a doorbell record make of producer and consumer.
//!
//! Knows: 64-bit WQEBB indices, of which the wire shows 16 bits (rule: low 16 bits of the WQEBB counter).
//! Must not know: WQEs, memory, or the QP's peer.

/// Send queue indices. `consumer <= producer`, both counted from `NicConfig::first_index`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SendIndices {
    depth: u64,
    first: u64,
    /// First WQEBB of the next WQE to complete.
    pub(crate) consumer: u64,
    /// WQEs below this may be processed.
    pub(crate) producer: u64,
    /// Highest index rung, if any.
    doorbell: Option<u64>,
    /// The doorbell record as last read.
    dbr: u64,
    /// A doorbell that a higher one has followed: the record must have reached it.
    judged: Option<u64>,
    /// The last record that made no sense, so that it is reported once.
    beyond: Option<u16>,
    /// The least that the record held for certain when the last doorbell, or one of the same index before it, arrived.
    /// `None`: nobody looked.
    certain: Option<u64>,
    /// A doorbell that a higher one has followed, and what was certain of its record.
    unordered: Option<(u64, u64)>,
}

/// What a doorbell's index was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rung {
    /// At or after the last one.
    Accepted,
    /// Before the last one: ignored.
    Regressed { last: u64, rung: u64 },
    /// Further ahead of the consumer than the queue is deep: ignored.
    Beyond,
}

/// What a doorbell record's value was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Recorded {
    /// Nothing new.
    Same,
    /// Later than when it was last read.
    Advanced,
    /// Before the value that was read last.
    Regressed { last: u64, now: u64 },
    /// Further ahead of the consumer than the queue is deep: ignored.
    Beyond,
}

impl SendIndices {
    pub(crate) fn new(first: u64, depth: u64) -> Self {
        Self {
            depth,
            first,
            consumer: first,
            producer: first,
            doorbell: None,
            dbr: first,
            judged: None,
            beyond: None,
            certain: None,
            unordered: None,
        }
    }

    /// The 64-bit index of a 16-bit one, as seen from the consumer; `None` if it is neither within the queue ahead nor,
    /// more plausibly, behind. Depth is at most 2^15.
    fn unwrap(&self, index: u16) -> Option<u64> {
        let ahead = u64::from(index.wrapping_sub(self.consumer as u16));
        if ahead <= self.depth {
            return Some(self.consumer + ahead);
        }
        let back = 0x1_0000 - ahead;
        if back <= ahead - self.depth {
            self.consumer.checked_sub(back)
        } else {
            None
        }
    }

    /// Takes a doorbell that makes WQEs below `index` available.
    pub(crate) fn ring(&mut self, index: u16) -> Rung {
        let Some(rung) = self.unwrap(index) else {
            return Rung::Beyond;
        };
        if let Some(last) = self.doorbell {
            if rung < last {
                return Rung::Regressed { last, rung };
            }
            if rung > last {
                self.judged = Some(last);
                self.unordered = self.unordered.or(self.uncertain());
                self.certain = None;
            }
        }
        self.doorbell = Some(rung);
        Rung::Accepted
    }

    /// In RTS: the producer is the later, seen from the consumer, of doorbell and record.
    pub(crate) fn follow_doorbell(&mut self) {
        if let Some(doorbell) = self.doorbell {
            self.producer = self.producer.max(doorbell);
        }
    }

    /// Takes the low 16 bits of the doorbell record. In every state a later record makes WQEs available.
    pub(crate) fn record(&mut self, value: u16) -> Recorded {
        let Some(now) = self.unwrap(value) else {
            return match self.beyond.replace(value) {
                Some(last) if last == value => Recorded::Same,
                _ => Recorded::Beyond,
            };
        };
        self.beyond = None;
        let last = self.dbr;
        self.dbr = now;
        self.producer = self.producer.max(now);
        match now {
            now if now == last => Recorded::Same,
            now if now > last => Recorded::Advanced,
            now => Recorded::Regressed { last, now },
        }
    }

    /// True while the ring may hold WQEs from before the queue was reset, or none yet.
    pub(crate) fn is_first_lap(&self) -> bool {
        self.producer - self.first < self.depth
    }

    /// True if the record holds another value than when it was last read.
    pub(crate) fn is_news(&self, value: u16) -> bool {
        value != self.dbr as u16 && self.beyond != Some(value)
    }

    /// On entering ERR: the producer is forgotten until the record has been read (docs/hardware-facts.md).
    pub(crate) fn enter_error(&mut self) {
        self.producer = self.consumer;
    }

    /// True if the record was behind the last doorbell when it was last read.
    pub(crate) fn lags(&self) -> bool {
        self.doorbell.is_some_and(|doorbell| self.dbr < doorbell)
    }

    /// Takes what a doorbell, on arrival, guarantees of the record.
    pub(crate) fn confirm(&mut self, value: u16) {
        if let Some(record) = self.unwrap(value) {
            self.certain = Some(self.certain.map_or(record, |before| before.max(record)));
        }
    }

    /// The last doorbell and what is certain of its record, if that is less.
    pub(crate) fn uncertain(&self) -> Option<(u64, u64)> {
        let doorbell = self.doorbell?;
        let certain = self.certain.filter(|certain| *certain < doorbell)?;
        Some((doorbell, certain))
    }

    /// The last doorbell and the record, as last read, if nobody rang for all that the record covers.
    pub(crate) fn unrung(&self) -> Option<(u64, u64)> {
        let rung = self.doorbell.unwrap_or(self.first);
        (self.dbr > rung).then_some((rung, self.dbr))
    }

    /// True if there is a doorbell that [`Self::take_unordered`] gives.
    pub(crate) fn has_unordered(&self) -> bool {
        self.unordered.is_some()
    }

    /// A doorbell that a higher one has followed and that never made sure of its record.
    pub(crate) fn take_unordered(&mut self) -> Option<(u64, u64)> {
        self.unordered.take()
    }

    /// The doorbell that a higher one has followed although the record, when read after that, had not reached it.
    pub(crate) fn judge(&mut self) -> Option<Lag> {
        let doorbell = self.judged.take()?;
        (self.dbr < doorbell).then_some(Lag {
            doorbell,
            dbr: self.dbr,
        })
    }

    /// The last doorbell, if the record has not reached it.
    pub(crate) fn judge_last(&self) -> Option<Lag> {
        let doorbell = self.doorbell?;
        (self.dbr < doorbell).then_some(Lag {
            doorbell,
            dbr: self.dbr,
        })
    }

    /// True if a WQE is available.
    pub(crate) fn has_work(&self) -> bool {
        self.consumer < self.producer
    }

    pub(crate) fn depth(&self) -> u64 {
        self.depth
    }
}

/// A doorbell record that is behind a doorbell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Lag {
    pub(crate) doorbell: u64,
    pub(crate) dbr: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRSTS: [u64; 5] = [
        0,
        (1 << 16) - 5,
        (1 << 16) + 3,
        (1 << 24) - 5,
        (1u64 << 32) - 5,
    ];

    #[test]
    fn the_later_of_doorbell_and_record_is_the_producer() {
        for first in FIRSTS {
            let mut sq = SendIndices::new(first, 64);
            let at = |n: u64| (first + n) as u16;
            assert_eq!(sq.ring(at(3)), Rung::Accepted);
            sq.follow_doorbell();
            assert_eq!(sq.producer, first + 3);
            assert_eq!(sq.record(at(7)), Recorded::Advanced);
            assert_eq!(sq.producer, first + 7);
            assert_eq!(
                sq.ring(at(5)),
                Rung::Accepted,
                "late, but after the last doorbell"
            );
            sq.follow_doorbell();
            assert_eq!(sq.producer, first + 7);
            assert_eq!(
                sq.ring(at(5)),
                Rung::Accepted,
                "a repeated doorbell is legal"
            );
        }
    }

    #[test]
    fn a_doorbell_that_moves_back_is_ignored() {
        for first in FIRSTS {
            let mut sq = SendIndices::new(first, 64);
            assert_eq!(sq.ring((first + 9) as u16), Rung::Accepted);
            assert_eq!(
                sq.ring((first + 8) as u16),
                Rung::Regressed {
                    last: first + 9,
                    rung: first + 8
                }
            );
        }
        let mut sq = SendIndices::new(0, 64);
        assert_eq!(sq.ring(65), Rung::Beyond);
        assert_eq!(sq.ring(0xfff0), Rung::Beyond, "before the first index");
    }

    #[test]
    fn a_record_is_judged_at_the_next_higher_doorbell() {
        let mut sq = SendIndices::new(10, 64);
        sq.ring(11);
        sq.record(10);
        assert_eq!(
            sq.judge(),
            None,
            "not yet: the early mode stores the record after the first ring"
        );
        assert!(sq.lags());
        sq.ring(11);
        sq.record(10);
        assert_eq!(sq.judge(), None);
        sq.ring(12);
        sq.record(10);
        assert_eq!(
            sq.judge(),
            Some(Lag {
                doorbell: 11,
                dbr: 10
            })
        );
        assert_eq!(
            sq.judge_last(),
            Some(Lag {
                doorbell: 12,
                dbr: 10
            })
        );
        sq.record(12);
        assert_eq!(sq.judge_last(), None);
    }

    #[test]
    fn the_whole_depth_can_be_rung_at_once_at_the_largest_depth() {
        for first in FIRSTS {
            let mut sq = SendIndices::new(first, 1 << 15);
            assert_eq!(sq.ring((first + (1 << 15)) as u16), Rung::Accepted);
            sq.follow_doorbell();
            assert_eq!(sq.producer - sq.consumer, 1 << 15);
        }
    }

    #[test]
    fn in_error_only_the_record_counts() {
        let mut sq = SendIndices::new(100, 64);
        sq.ring(105);
        sq.follow_doorbell();
        sq.consumer = 102;
        sq.enter_error();
        assert!(!sq.has_work());
        assert_eq!(sq.record(101), Recorded::Advanced);
        assert!(!sq.has_work(), "behind the consumer");
        sq.record(104);
        assert_eq!((sq.consumer, sq.producer), (102, 104));
    }
}
