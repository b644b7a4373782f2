//! The port's GID table.
//!
//! Knows: which addresses are this NIC's, and how each was made.
//! Must not know: who changes the table, or what packets carry.

use warpverbs_wire::roce::address;

use crate::config::{GIDS, GidEntry, GidKind, LinkLayer, NicConfig};

/// The table.
pub(crate) struct Gids {
    entries: Vec<Option<GidEntry>>,
}

impl Gids {
    /// The table as Linux fills it at first: RoCE has link-local and IPv4-mapped GIDs, each as v1 and as v2.
    pub(crate) fn new(config: &NicConfig) -> Self {
        let [_, _, _, d, e, f] = config.mac;
        let local = address::link_local_gid(config.mac);
        let mapped = address::gid_of_ipv4([10, d, e, f]);
        let ethernet = |gid, kind| {
            let mac = config.mac;
            Some(GidEntry { gid, kind, mac })
        };
        let mut entries = match config.link_layer {
            LinkLayer::InfiniBand => vec![Some(GidEntry {
                gid: local,
                kind: GidKind::InfiniBand,
                mac: [0; 6],
            })],
            LinkLayer::Ethernet => vec![
                ethernet(local, GidKind::RoceV1),
                ethernet(local, GidKind::RoceV2),
                ethernet(mapped, GidKind::RoceV1),
                ethernet(mapped, GidKind::RoceV2),
            ],
        };
        entries.resize(GIDS as usize, None);
        Self { entries }
    }

    /// An entry; `None` if the table ends before it.
    pub(crate) fn get(&self, index: u32) -> Option<Option<GidEntry>> {
        self.entries.get(index as usize).copied()
    }

    /// Writes an entry; false if the table ends before it.
    pub(crate) fn set(&mut self, index: u32, entry: Option<GidEntry>) -> bool {
        match self.entries.get_mut(index as usize) {
            Some(place) => {
                *place = entry;
                true
            }
            None => false,
        }
    }

    /// The MAC address at which this NIC has a GID.
    pub(crate) fn mac_of(&self, gid: [u8; 16]) -> Option<[u8; 6]> {
        let mut own = self.entries.iter().flatten();
        own.find(|entry| entry.gid == gid).map(|entry| entry.mac)
    }

    /// True if a RoCE frame of a version to these addresses is for this NIC.
    pub(crate) fn takes(&self, kind: GidKind, gid: [u8; 16], mac: [u8; 6]) -> bool {
        let own = GidEntry { gid, kind, mac };
        self.entries.iter().flatten().any(|entry| *entry == own)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_that_is_written_is_this_nics_and_one_that_is_cleared_is_not() {
        let config = NicConfig::default();
        let mut gids = Gids::new(&config);
        let gid = address::gid_of_ipv4([192, 168, 1, 9]);
        let entry = |kind| {
            Some(GidEntry {
                gid,
                kind,
                mac: [2; 6],
            })
        };
        assert_eq!(gids.mac_of(gid), None);
        assert!(gids.set(GIDS - 1, entry(GidKind::RoceV1)));
        assert_eq!(gids.mac_of(gid), Some([2; 6]));
        assert!(gids.takes(GidKind::RoceV1, gid, [2; 6]));
        assert!(
            !gids.takes(GidKind::RoceV2, gid, [2; 6]),
            "no v2 frame to a v1 address"
        );
        assert!(gids.set(GIDS - 1, entry(GidKind::RoceV2)));
        assert!(gids.takes(GidKind::RoceV2, gid, [2; 6]));
        assert!(!gids.takes(GidKind::RoceV2, gid, config.mac));
        assert!(gids.set(GIDS - 1, None));
        assert_eq!(gids.mac_of(gid), None);
        assert!(!gids.set(GIDS, None));
        assert_eq!(gids.get(GIDS), None);
    }
}
