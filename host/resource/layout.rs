//! Where the parts of QPs lie in the memory that they share.
//!
//! Knows: sizes, alignments and offsets. Must not know: what is written there.

use std::mem::size_of;

use warpverbs_wire::abi::{QpHandle, RqHandle};
use warpverbs_wire::cqe::CQE;
use warpverbs_wire::wqe::WQEBB;

use super::{CqForm, DoorbellPath};

/// Largest page that a NIC may use for the UMEM: GPU memory comes in pages of 64 KiB.
pub(super) const MAX_PAGE: u64 = 64 * 1024;

/// Alignment of rings. mlx5 gives a ring's offset in a page 6 bits (`qpc.page_offset`, `cqc.page_offset`), so a page of
/// the UMEM is at most 64 times the smallest alignment of a ring in it.
const RING_ALIGN: u64 = 1024;
const _: () = assert!(64 * RING_ALIGN >= MAX_PAGE);

/// A line of the GPU's caches; no two records share one.
const LINE: u64 = 64;
/// Words in it.
const LINE_WORDS: u32 = LINE as u32 / 8;

/// log2 of the bytes of a receive WQE: four pieces.
pub(super) const LOG_RECEIVE: u8 = 6;
const RECEIVE: u64 = 1 << LOG_RECEIVE;

/// Byte offsets in one allocation with places for several QPs.
///
/// | part | of one QP |
/// |---|---|
/// | send queues | a ring |
/// | CQs | a ring |
/// | control blocks | the CQ's doorbell record, the QP's on a line of its own, the handle |
/// | CQs of receives | a ring |
/// | their control blocks | the CQ's doorbell record, the receive queue's handle |
///
/// A receive queue lies in front of its send queue: mlx5 has one ring for both. The last two parts are there with receive queues.
///
/// The control blocks of neighbours follow each other, so that one copy of rows reaches many handles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    pub(crate) places: u32,
    pub(crate) sq_depth: u32,
    pub(crate) cq_depth: u32,
    pub(crate) collapsed: bool,
    pub(crate) doorbell_path: DoorbellPath,
    sq_pitch: u64,
    cqs: u64,
    cq_pitch: u64,
    controls: u64,
    /// WQEs of a receive queue; 0: there is none.
    pub(crate) rq_depth: u32,
    receive_cqs: u64,
    receive_cq_pitch: u64,
    receive_controls: u64,
    len: u64,
}

impl Layout {
    /// Bytes from one control block to the next.
    pub(crate) const CONTROL: u64 = 2 * LINE + QpHandle::LEN as u64;
    /// Offset of the QP's doorbell record in a control block; the CQ's comes first.
    pub(crate) const QP_DBR: u64 = LINE;
    /// Offset of the handle in a control block.
    pub(crate) const HANDLE: u64 = 2 * LINE;

    /// Bytes from one control block of a receive queue to the next.
    pub(crate) const RECEIVE_CONTROL: u64 = LINE + RqHandle::LEN as u64;

    /// The layout for `places` send queues of `sq_depth` WQEBBs, a power of two.
    pub(crate) fn new(
        sq_depth: u32,
        form: CqForm,
        doorbell_path: DoorbellPath,
        places: u32,
    ) -> Self {
        let cq_depth = cq_depth(sq_depth, form);
        let sq_pitch = align(u64::from(sq_depth) * WQEBB as u64);
        let cq_pitch = align(u64::from(cq_depth) * CQE as u64);
        let all = |pitch: u64| u64::from(places) * pitch;
        let cqs = all(sq_pitch);
        let controls = cqs + all(cq_pitch);
        Self {
            places,
            sq_depth,
            cq_depth,
            collapsed: form == CqForm::Collapsed,
            doorbell_path,
            sq_pitch,
            cqs,
            cq_pitch,
            controls,
            rq_depth: 0,
            receive_cqs: 0,
            receive_cq_pitch: 0,
            receive_controls: 0,
            len: controls + all(Self::CONTROL),
        }
    }

    /// The same, with receive queues of `depth` WQEs, a power of two; 0: without.
    pub(crate) fn with_receives(self, depth: u32) -> Self {
        if depth == 0 {
            return self;
        }
        let all = |pitch: u64| u64::from(self.places) * pitch;
        let rings = u64::from(depth) * RECEIVE + u64::from(self.sq_depth) * WQEBB as u64;
        let sq_pitch = align(rings);
        let cqs = all(sq_pitch);
        let controls = cqs + all(self.cq_pitch);
        let receive_cqs = align(controls + all(Self::CONTROL));
        let receive_cq_pitch = align(u64::from(cq_depth(depth, CqForm::Ring)) * CQE as u64);
        let receive_controls = receive_cqs + all(receive_cq_pitch);
        Self {
            sq_pitch,
            cqs,
            controls,
            rq_depth: depth,
            receive_cqs,
            receive_cq_pitch,
            receive_controls,
            len: receive_controls + all(Self::RECEIVE_CONTROL),
            ..self
        }
    }

    /// Bytes of the allocation.
    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    /// The rings of a QP: a receive queue, if there is one, and the send queue.
    pub(crate) fn rings(&self, place: u32) -> u64 {
        u64::from(place) * self.sq_pitch
    }

    /// The ring of a send queue.
    pub(crate) fn sq(&self, place: u32) -> u64 {
        self.rings(place) + u64::from(self.rq_depth) * RECEIVE
    }

    /// CQEs of the CQ of a receive queue.
    pub(crate) fn receive_cq_depth(&self) -> u32 {
        cq_depth(self.rq_depth, CqForm::Ring)
    }

    /// The ring of the CQ of a receive queue.
    pub(crate) fn receive_cq(&self, place: u32) -> u64 {
        self.receive_cqs + u64::from(place) * self.receive_cq_pitch
    }

    /// Bytes from the first CQ of receives to the end of the last.
    pub(crate) fn receive_cq_bytes(&self) -> u64 {
        self.receive_controls - self.receive_cqs
    }

    /// A receive queue's control block, which begins with its CQ's doorbell record.
    pub(crate) fn receive_control(&self, place: u32) -> u64 {
        self.receive_controls + u64::from(place) * Self::RECEIVE_CONTROL
    }

    /// The handle of a receive queue.
    pub(crate) fn receive_handle(&self, place: u32) -> u64 {
        self.receive_control(place) + LINE
    }

    /// The ring of a CQ.
    pub(crate) fn cq(&self, place: u32) -> u64 {
        self.cqs + u64::from(place) * self.cq_pitch
    }

    /// Bytes from the first CQ to the end of the last.
    pub(crate) fn cq_bytes(&self) -> u64 {
        self.controls - self.cqs
    }

    /// A control block, which begins with the CQ's doorbell record.
    pub(crate) fn control(&self, place: u32) -> u64 {
        self.controls + u64::from(place) * Self::CONTROL
    }

    /// The QP's doorbell record.
    pub(crate) fn qp_dbr(&self, place: u32) -> u64 {
        self.control(place) + Self::QP_DBR
    }

    /// Words of host-mapped memory: the stop words, and where a host thread rings, two lines of each QP: its
    /// [`ProxyRecord`](warpverbs_wire::abi::ProxyRecord) and its doorbell record.
    pub(crate) fn words(&self) -> u32 {
        match self.doorbell_path {
            DoorbellPath::Proxy => self.proxy_record(self.places),
            DoorbellPath::Gpu | DoorbellPath::GpuWithoutRecord => self.places,
        }
    }

    /// The stop word, by its number among the words.
    pub(crate) fn stop(&self, place: u32) -> u32 {
        place
    }

    /// First word of what GPU threads tell the host thread that rings.
    pub(crate) fn proxy_record(&self, place: u32) -> u32 {
        self.places
            .next_multiple_of(LINE_WORDS)
            .saturating_add(place.saturating_mul(2 * LINE_WORDS))
    }

    /// The word that is the QP's doorbell record, where a host thread rings.
    pub(crate) fn host_dbr(&self, place: u32) -> u32 {
        self.proxy_record(place).saturating_add(LINE_WORDS)
    }

    /// The handle.
    pub(crate) fn handle(&self, place: u32) -> u64 {
        self.control(place) + Self::HANDLE
    }
}

/// CQEs of the CQ of a send queue: one for each WQE and one for the error that ends them all, so that no completion
/// overwrites another.
pub(super) fn cq_depth(sq_depth: u32, form: CqForm) -> u32 {
    match form {
        CqForm::Ring => sq_depth.saturating_add(1).next_power_of_two(),
        CqForm::Collapsed => 1,
    }
}

fn align(len: u64) -> u64 {
    len.next_multiple_of(RING_ALIGN)
}

/// `places`, sorted, as runs of neighbours: the first of each, and how many.
pub(super) fn runs(places: &[u32]) -> Vec<(u32, u32)> {
    let mut runs: Vec<(u32, u32)> = Vec::new();
    for place in places {
        match runs.last_mut() {
            Some((first, count)) if first.checked_add(*count) == Some(*place) => *count += 1,
            _ => runs.push((*place, 1)),
        }
    }
    runs
}

const _: () = assert!(size_of::<QpHandle>().is_multiple_of(LINE as usize));

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_cq_holds_every_completion_and_the_error_that_ends_them() {
        for (depth, form, expected) in [
            (2, CqForm::Ring, 4),
            (64, CqForm::Ring, 128),
            (32_768, CqForm::Ring, 65_536),
            (64, CqForm::Collapsed, 1),
        ] {
            assert_eq!(
                Layout::new(depth, form, DoorbellPath::Gpu, 1).cq_depth,
                expected
            );
        }
    }

    #[test]
    fn a_place_of_8_takes_512_and_1024_and_512_bytes() {
        let layout = Layout::new(8, CqForm::Ring, DoorbellPath::Gpu, 3);
        assert_eq!((layout.sq(1), layout.sq(2)), (1024, 2048));
        assert_eq!((layout.cq(0), layout.cq(1)), (3072, 4096));
        assert_eq!(layout.control(0), 6144);
        assert_eq!(layout.qp_dbr(2), 6144 + 2 * 512 + 64);
        assert_eq!(layout.handle(2), 6144 + 2 * 512 + 128);
        assert_eq!(layout.len(), 6144 + 3 * 512);
    }

    #[test]
    fn of_3_places_stop_words_take_a_line_and_the_records_of_each_two() {
        let layout = Layout::new(8, CqForm::Ring, DoorbellPath::Proxy, 3);
        assert_eq!((layout.stop(0), layout.stop(2)), (0, 2));
        assert_eq!((layout.proxy_record(0), layout.host_dbr(0)), (8, 16));
        assert_eq!((layout.proxy_record(2), layout.host_dbr(2)), (40, 48));
        assert_eq!(layout.words(), 56);
        assert_eq!(
            Layout::new(8, CqForm::Ring, DoorbellPath::Gpu, 3).words(),
            3
        );
    }

    #[test]
    fn neighbours_make_runs() {
        assert_eq!(runs(&[]), []);
        assert_eq!(runs(&[3]), [(3, 1)]);
        assert_eq!(runs(&[0, 1, 2, 5, 7, 8]), [(0, 3), (5, 1), (7, 2)]);
    }

    proptest! {
        /// Parts of all places are apart from each other, aligned as the NIC wants them, and inside.
        #[test]
        fn parts_are_apart_and_aligned(
            log_depth in 1u32..=15,
            collapsed: bool,
            places in 1u32..40,
            receives in prop::option::of(0u32..=15),
        ) {
            let form = if collapsed { CqForm::Collapsed } else { CqForm::Ring };
            let receives = receives.map_or(0, |log| 1 << log);
            let layout = Layout::new(1 << log_depth, form, DoorbellPath::Gpu, places)
                .with_receives(receives);
            let mut parts = Vec::new();
            for place in 0..places {
                let rings = [
                    (layout.sq(place), (WQEBB as u64) << log_depth),
                    (layout.cq(place), CQE as u64 * u64::from(layout.cq_depth)),
                ];
                // On the largest page: 6 bits of offset.
                let begins = [layout.rings(place), rings[1].0];
                prop_assert!(begins.iter().all(|at| at % (MAX_PAGE / 64) == 0));
                let records = [
                    (layout.control(place), 8),
                    (layout.qp_dbr(place), 8),
                    (layout.handle(place), QpHandle::LEN as u64),
                ];
                prop_assert!(records.iter().all(|(at, _)| at % LINE == 0));
                parts.extend(rings);
                parts.extend(records);
                if receives != 0 {
                    let cqes = u64::from(receives + 1).next_power_of_two();
                    let more = [
                        (layout.rings(place), RECEIVE * u64::from(receives)),
                        (layout.receive_cq(place), CQE as u64 * cqes),
                        (layout.receive_control(place), 8),
                        (layout.receive_handle(place), RqHandle::LEN as u64),
                    ];
                    prop_assert!(more.iter().take(2).all(|(at, _)| at % (MAX_PAGE / 64) == 0));
                    prop_assert!(more.iter().all(|(at, _)| at % LINE == 0));
                    // The send queue follows at once: one ring to the NIC.
                    prop_assert_eq!(more[0].0 + more[0].1, rings[0].0);
                    parts.extend(more);
                }
            }
            parts.sort_unstable();
            prop_assert!(parts.windows(2).all(|two| two[0].0 + two[0].1 <= two[1].0));
            let (at, len) = parts[parts.len() - 1];
            prop_assert!(at + len <= layout.len());
        }
    }
}
