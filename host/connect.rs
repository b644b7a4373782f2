//! What two ends of an RC connection tell each other, as versioned bytes.
//!
//! Knows: the bytes' layout, and what two ends can agree on.
//! Must not know: how the bytes travel, or how a QP is told.
//!
//! | offset | size | field |
//! |---|---|---|
//! | 0 | 4 | `wvqp` |
//! | 4 | 2 | version |
//! | 6 | 2 | MTU in bytes |
//! | 8 | 4 | QPN |
//! | 12 | 4 | PSN of the first packet that this end sends |
//! | 16 | 2 | LID |
//! | 18 | 1 | link layer: 1 InfiniBand, 2 Ethernet |
//! | 19 | 1 | log2 of the RDMA reads that this end answers at a time |
//! | 20 | 16 | GID |
//!
//! All fields are big-endian.

use crate::driver::LinkLayer;

const MAGIC: [u8; 4] = *b"wvqp";
/// Version of the layout.
const VERSION: u16 = 1;
const SIZE: usize = 36;

/// One end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ConnectInfo {
    pub(crate) qpn: u32,
    pub(crate) psn: u32,
    pub(crate) mtu: u16,
    pub(crate) lid: u16,
    pub(crate) link_layer: LinkLayer,
    pub(crate) log_reads: u8,
    pub(crate) gid: [u8; 16],
}

/// Why bytes cannot be used as connection info.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InfoError {
    /// Not as many bytes as the layout has.
    #[error("{0} bytes, {SIZE} expected")]
    Length(usize),
    /// They do not begin with `wvqp`.
    #[error("it does not begin with \"wvqp\"")]
    Magic,
    /// Another version of the layout.
    #[error("it has version {0}, this crate has {VERSION}")]
    Version(u16),
    /// A field holds a value that it cannot have.
    #[error("its {0} is out of range")]
    Field(&'static str),
    /// The two ends are on networks of different kinds.
    #[error("the remote port is {remote:?}, the local one {local:?}")]
    LinkLayer {
        /// The local port's link layer.
        local: LinkLayer,
        /// The remote one's.
        remote: LinkLayer,
    },
}

impl ConnectInfo {
    pub(crate) fn to_bytes(self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(SIZE);
        bytes.extend(MAGIC);
        bytes.extend(VERSION.to_be_bytes());
        bytes.extend(self.mtu.to_be_bytes());
        bytes.extend(self.qpn.to_be_bytes());
        bytes.extend(self.psn.to_be_bytes());
        bytes.extend(self.lid.to_be_bytes());
        bytes.push(match self.link_layer {
            LinkLayer::InfiniBand => 1,
            LinkLayer::Ethernet => 2,
        });
        bytes.push(self.log_reads);
        bytes.extend(self.gid);
        bytes
    }

    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, InfoError> {
        // The version is judged before the length: another version may have another length.
        let mut rest = bytes;
        let too_short = InfoError::Length(bytes.len());
        if take(&mut rest).ok_or(too_short)? != MAGIC {
            return Err(InfoError::Magic);
        }
        let version = u16::from_be_bytes(take(&mut rest).ok_or(too_short)?);
        if version != VERSION {
            return Err(InfoError::Version(version));
        }
        if bytes.len() != SIZE {
            return Err(too_short);
        }
        let info = Self {
            mtu: u16::from_be_bytes(take(&mut rest).ok_or(too_short)?),
            qpn: u32::from_be_bytes(take(&mut rest).ok_or(too_short)?),
            psn: u32::from_be_bytes(take(&mut rest).ok_or(too_short)?),
            lid: u16::from_be_bytes(take(&mut rest).ok_or(too_short)?),
            link_layer: match take::<1>(&mut rest).ok_or(too_short)? {
                [1] => LinkLayer::InfiniBand,
                [2] => LinkLayer::Ethernet,
                _ => return Err(InfoError::Field("link layer")),
            },
            log_reads: u8::from_be_bytes(take(&mut rest).ok_or(too_short)?),
            gid: take(&mut rest).ok_or(too_short)?,
        };
        if info.qpn >= 1 << 24 {
            return Err(InfoError::Field("QPN"));
        }
        if info.psn >= 1 << 24 {
            return Err(InfoError::Field("PSN"));
        }
        if !matches!(info.mtu, 256 | 512 | 1024 | 2048 | 4096) {
            return Err(InfoError::Field("MTU"));
        }
        // `qpc.log_rra_max` has 3 bits.
        if info.log_reads > 7 {
            return Err(InfoError::Field("number of RDMA reads"));
        }
        Ok(info)
    }
}

fn take<const N: usize>(rest: &mut &[u8]) -> Option<[u8; N]> {
    let (head, tail) = rest.split_first_chunk()?;
    *rest = tail;
    Some(*head)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn example() -> ConnectInfo {
        ConnectInfo {
            qpn: 0x00_1234,
            psn: 0x56_789a,
            mtu: 1024,
            lid: 0xbcde,
            link_layer: LinkLayer::Ethernet,
            log_reads: 4,
            gid: core::array::from_fn(|i| i as u8),
        }
    }

    #[test]
    fn the_layout_is_the_documented_one() {
        let bytes = example().to_bytes();
        assert_eq!(bytes[..4], *b"wvqp");
        assert_eq!(bytes[4..8], [0, 1, 4, 0]);
        assert_eq!(bytes[8..16], [0, 0, 0x12, 0x34, 0, 0x56, 0x78, 0x9a]);
        assert_eq!(bytes[16..20], [0xbc, 0xde, 2, 4]);
        assert_eq!(
            bytes[20..],
            [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15]
        );
        assert_eq!(ConnectInfo::parse(&bytes), Ok(example()));
    }

    #[test]
    fn other_bytes_are_refused_with_a_reason() {
        let with = |at: usize, value: u8| {
            let mut bytes = example().to_bytes();
            bytes[at] = value;
            ConnectInfo::parse(&bytes)
        };
        assert_eq!(with(0, b'x'), Err(InfoError::Magic));
        assert_eq!(with(5, 2), Err(InfoError::Version(2)));
        assert_eq!(with(6, 3), Err(InfoError::Field("MTU")));
        assert_eq!(with(8, 1), Err(InfoError::Field("QPN")));
        assert_eq!(with(12, 1), Err(InfoError::Field("PSN")));
        assert_eq!(with(18, 3), Err(InfoError::Field("link layer")));
        assert_eq!(with(19, 8), Err(InfoError::Field("number of RDMA reads")));
        assert_eq!(ConnectInfo::parse(&[]), Err(InfoError::Length(0)));
        assert_eq!(
            ConnectInfo::parse(&example().to_bytes()[..35]),
            Err(InfoError::Length(35))
        );
        let longer = [example().to_bytes(), vec![0]].concat();
        assert_eq!(ConnectInfo::parse(&longer), Err(InfoError::Length(37)));
    }

    proptest! {
        #[test]
        fn any_bytes_parse_or_are_refused(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            if let Ok(info) = ConnectInfo::parse(&bytes) {
                prop_assert_eq!(info.to_bytes(), bytes);
            }
        }
    }
}
