//! The stages of a QP's teardown, as one total table.
//!
//! Knows: which event leads from which stage to which. Must not know: what an event takes.

use std::fmt;

use super::sync::{AtomicU8, Ordering};

/// How far the teardown of a QP has come. Each stage is reached once; a refusal leaves it where it is, and closing
/// again goes on from there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Stage {
    /// In use.
    Live,
    /// Launches are refused, and GPU threads were told to stop.
    Stopping,
    /// No kernel uses it.
    Synced,
    /// In error, and everything that was posted has retired: the NIC accesses no memory for it.
    Drained,
    /// Kernels refuse its handle.
    Unexported,
    /// Gone.
    Destroyed,
}

/// What happens to a QP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum StageEvent {
    /// Launches are refused from here on.
    Stop,
    /// Its last kernel has finished.
    Sync,
    /// Its last work request has retired.
    Drain,
    /// Its handle was cleared.
    Unexport,
    /// The NIC destroyed it.
    Destroy,
    /// It was reset: a new life.
    Revive,
}

impl Stage {
    /// All, in order.
    pub const ALL: [Self; 6] = [
        Self::Live,
        Self::Stopping,
        Self::Synced,
        Self::Drained,
        Self::Unexported,
        Self::Destroyed,
    ];

    /// The table: a row a stage, a column an event. `None` is refused. An event whose stage is behind changes nothing,
    /// so that whoever resumes may repeat it.
    #[rustfmt::skip]
    pub const TABLE: [[Option<Self>; 6]; 6] = {
        use Stage::*;
        [
            //                 Stop              Sync              Drain             Unexport          Destroy          Revive
            /* Live */        [Some(Stopping),   None,             None,             None,             None,            Some(Live)],
            /* Stopping */    [Some(Stopping),   Some(Synced),     None,             None,             None,            None],
            /* Synced */      [Some(Synced),     Some(Synced),     Some(Drained),    None,             None,            None],
            /* Drained */     [Some(Drained),    Some(Drained),    Some(Drained),    Some(Unexported), None,            None],
            /* Unexported */  [Some(Unexported), Some(Unexported), Some(Unexported), Some(Unexported), Some(Destroyed), Some(Live)],
            /* Destroyed */   [Some(Destroyed),  Some(Destroyed),  Some(Destroyed),  Some(Destroyed),  Some(Destroyed), None],
        ]
    };

    /// The stage after `event`; `None` if it cannot happen here.
    pub const fn next(self, event: StageEvent) -> Option<Self> {
        Self::TABLE[self as usize][event as usize]
    }

    /// Its name, as in "the QP is stopping".
    pub const fn name(self) -> &'static str {
        match self {
            Self::Live => "live",
            Self::Stopping => "stopping",
            Self::Synced => "synced",
            Self::Drained => "drained",
            Self::Unexported => "unexported",
            Self::Destroyed => "destroyed",
        }
    }

    const fn from_code(code: u8) -> Self {
        match code {
            0 => Self::Live,
            1 => Self::Stopping,
            2 => Self::Synced,
            3 => Self::Drained,
            4 => Self::Unexported,
            _ => Self::Destroyed,
        }
    }
}

impl fmt::Display for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl StageEvent {
    /// All, in the order of the table's columns.
    pub const ALL: [Self; 6] = [
        Self::Stop,
        Self::Sync,
        Self::Drain,
        Self::Unexport,
        Self::Destroy,
        Self::Revive,
    ];
}

/// A stage that threads look at while another changes it.
#[derive(Debug)]
pub(crate) struct StageCell(AtomicU8);

impl StageCell {
    pub(crate) fn live() -> Self {
        Self(AtomicU8::new(Stage::Live as u8))
    }

    pub(crate) fn get(&self) -> Stage {
        Stage::from_code(self.0.load(Ordering::Acquire))
    }

    /// Takes an event; the stage that refuses it, if it does. The change releases what was done before it to whoever
    /// sees it.
    pub(crate) fn take(&self, event: StageEvent) -> Result<Stage, Stage> {
        let mut found = self.get();
        loop {
            let next = found.next(event).ok_or(found)?;
            match self.0.compare_exchange(
                found as u8,
                next as u8,
                Ordering::AcqRel,
                Ordering::Acquire,
            ) {
                Ok(_) => return Ok(next),
                Err(other) => found = Stage::from_code(other),
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn teardown_goes_through_every_stage_in_order_and_no_other_way() {
        let path = &StageEvent::ALL[..5];
        let mut stage = Stage::Live;
        for (at, event) in path.iter().enumerate() {
            for later in &path[at + 1..] {
                assert_eq!(stage.next(*later), None, "{stage} skips to {later:?}");
            }
            let next = stage.next(*event).unwrap();
            assert_eq!(next, Stage::ALL[at + 1]);
            // What is behind may be repeated.
            assert!(path[..=at].iter().all(|e| next.next(*e) == Some(next)));
            stage = next;
        }
    }

    #[test]
    fn only_a_reset_leads_back_and_only_from_where_nothing_uses_the_qp() {
        for stage in Stage::ALL {
            for event in StageEvent::ALL {
                if let Some(next) = stage.next(event)
                    && next < stage
                {
                    assert_eq!((stage, event), (Stage::Unexported, StageEvent::Revive));
                }
            }
        }
        assert_eq!(Stage::Destroyed.next(StageEvent::Revive), None);
    }
}
