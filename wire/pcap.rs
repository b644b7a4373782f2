//! The pcap capture file: a file header, then each frame behind a record header (pcap-savefile(5)).
//!
//! Knows: the two headers, big-endian, with times in nanoseconds and frames of Ethernet, or of InfiniBand behind a third.
//! Must not know: what is captured, or where the file lies.

use crate::layout::structure;

/// First word of a file in the writer's byte order whose times are in nanoseconds.
pub const MAGIC_NANOSECONDS: u32 = 0xa1b2_3c4d;
/// Frames are Ethernet (`LINKTYPE_ETHERNET`).
pub const LINK_ETHERNET: u32 = 1;
/// Frames are behind an [`ErfHeader`] (`LINKTYPE_ERF`). Wireshark reads InfiniBand packets so; `LINKTYPE_INFINIBAND` it does not know.
pub const LINK_ERF: u32 = 197;
/// Most bytes of a frame that the file holds.
pub const SNAP_LENGTH: u32 = 0x4_0000;

structure! {
    /// The file header.
    pub struct FileHeader: Pcap "pcap_file_header", 192 bits {
        /// [`MAGIC_NANOSECONDS`]
        magic: u32 => 0, 32;
        /// 2
        version_major: u16 => 32, 16;
        /// 4
        version_minor: u16 => 48, 16;
        /// Most bytes of a frame that the file holds.
        snap_length = "snaplen": u32 => 128, 32;
        /// What frames are.
        link_type = "linktype": u32 => 160, 32;
    }
}

impl FileHeader {
    /// The header of a file of Ethernet frames with times in nanoseconds.
    pub const ETHERNET: Self = Self {
        magic: MAGIC_NANOSECONDS,
        version_major: 2,
        version_minor: 4,
        snap_length: SNAP_LENGTH,
        link_type: LINK_ETHERNET,
    };
    /// The header of a file of frames behind [`ErfHeader`]s, likewise.
    pub const ERF: Self = Self {
        link_type: LINK_ERF,
        ..Self::ETHERNET
    };
}

structure! {
    /// What an ERF file has in front of a frame: Endace's extensible record format.
    pub struct ErfHeader: Pcap "erf_header", 128 bits {
        /// Time: seconds, 32 bits, and fractions of a second, 32 bits, the low byte first.
        timestamp = "ts": u64 => 0, 64 cited "Endace, Extensible Record Format types; libpcap LINKTYPE_ERF";
        /// What the frame is.
        record_type = "type": u8 => 64, 8 cited "Endace, Extensible Record Format types";
        /// [`ERF_VARYING`] and others.
        flags: u8 => 72, 8 cited "Endace, Extensible Record Format types";
        /// Bytes of header and frame in the file.
        record_length = "rlen": u16 => 80, 16 cited "Endace, Extensible Record Format types";
        /// Frames lost before this one.
        lost = "lctr": u16 => 96, 16 cited "Endace, Extensible Record Format types";
        /// Bytes that the frame had.
        wire_length = "wlen": u16 => 112, 16 cited "Endace, Extensible Record Format types";
    }
}

/// An InfiniBand packet from LRH to variant CRC (`TYPE_INFINIBAND`).
pub const ERF_INFINIBAND: u8 = 21;
/// Records are as long as their frames.
pub const ERF_VARYING: u8 = 4;

impl ErfHeader {
    /// The header of an InfiniBand packet of `len` bytes, all of which follow, at a time in nanoseconds.
    pub const fn infiniband(time_ns: u64, len: u16) -> Self {
        let seconds = (time_ns / 1_000_000_000) << 32;
        let fraction = ((time_ns % 1_000_000_000) << 32) / 1_000_000_000;
        Self {
            timestamp: (seconds | fraction).swap_bytes(),
            record_type: ERF_INFINIBAND,
            flags: ERF_VARYING,
            record_length: len.saturating_add(Self::LEN as u16),
            lost: 0,
            wire_length: len,
        }
    }
}

structure! {
    /// The header in front of a frame.
    pub struct RecordHeader: Pcap "pcap_sf_pkthdr", 128 bits {
        /// Time: seconds.
        seconds: u32 => 0, 32;
        /// Time: nanoseconds.
        nanoseconds: u32 => 32, 32;
        /// Bytes of the frame in the file.
        captured: u32 => 64, 32;
        /// Bytes that the frame had.
        length: u32 => 96, 32;
    }
}

impl RecordHeader {
    /// The header of a frame of `len` bytes, all of which follow, at a time in nanoseconds.
    pub const fn new(time_ns: u64, len: u32) -> Self {
        Self {
            seconds: (time_ns / 1_000_000_000) as u32,
            nanoseconds: (time_ns % 1_000_000_000) as u32,
            captured: len,
            length: len,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_bytes() {
        #[rustfmt::skip]
        let file = [
            0xa1, 0xb2, 0x3c, 0x4d, 0, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 0, 0, 1,
        ];
        assert_eq!(FileHeader::ETHERNET.emit(), file);
        assert_eq!(FileHeader::parse(&file), Ok(FileHeader::ETHERNET));
        assert_eq!(FileHeader::ERF.emit()[20..], [0, 0, 0, 197]);
        // Two seconds and a half.
        let erf = ErfHeader::infiniband(2_500_000_000, 0x0102);
        let golden = [
            0, 0, 0, 0x80, 2, 0, 0, 0, 21, 4, 0x01, 0x12, 0, 0, 0x01, 0x02,
        ];
        assert_eq!(erf.emit(), golden);
        let record = RecordHeader::new(0x1_0000_0000 * 1_000_000_000 + 5_000_000_006, 0x0102);
        assert_eq!(
            record.emit(),
            [0, 0, 0, 5, 0, 0, 0, 6, 0, 0, 1, 2, 0, 0, 1, 2]
        );
    }
}
