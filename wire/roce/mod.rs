//! Packets of the reliable connection service: RoCE v2 and v1, as whole Ethernet frames, and InfiniBand's own.
//!
//! Knows: the bytes of each header, one file a header ([`frame`] joins them), the invariant CRC, and the arithmetic that the
//! packets themselves define: packet sequence numbers, segmentation, timer and credit codes.
//! Must not know: what a QP does with a packet, or who carries frames.
//!
//! A frame is Ethernet, IPv4 or IPv6, UDP to port 4791, base transport header (BTH), the extended headers that the BTH's
//! opcode demands, payload, padding to 4 bytes, invariant CRC. The Ethernet frame check sequence is not part of it.
//! Sources: IBA 1.4 volume 1 (chapter 9, and annex A17 for RoCE v2); RFC 791, 768 and 8200.

pub mod address;
mod aeth;
mod atomic;
mod bth;
mod ethernet;
pub mod frame;
mod icrc;
mod immediate;
mod ip;
mod lrh;
pub mod native;
mod opcode;
mod psn;
mod reth;
mod segment;
pub mod timer;
mod transport;
mod udp;

pub use aeth::{Aeth, NakCode, Syndrome, UNLIMITED_CREDITS, credits};
pub use atomic::{AtomicAckEth, AtomicEth, MaskedAtomicEth};
pub use bth::Bth;
pub use ethernet::{EtherType, Ethernet, Vlan};
pub use frame::{Error, Frame};
pub use icrc::icrc;
pub use immediate::{Ieth, ImmDt};
pub use ip::{Ip, Ipv4, Ipv6, UDP_PROTOCOL};
pub use lrh::{Lrh, NEXT_BTH, NEXT_GRH};
pub use native::{IBA_TRANSPORT, Native, Route};
pub use opcode::{Headers, Message, Opcode, Position};
pub use psn::Psn;
pub use reth::Reth;
pub use segment::{Segment, Segments, packets};
pub use transport::Extended;
pub use udp::{ROCE_PORT, Udp};
