//! Opcodes of the base transport header (IBA table 38; `IB_OPCODE_*` of Linux's `rdma/ib_pack.h`, whose RC base is 0).
//!
//! The vendor does not publish the packets of its masked atomics: they have two codes of the manufacturer's range here
//! (assumed), which only another simulated NIC understands.

use crate::layout::open_enum;

open_enum! {
    /// What a packet is.
    pub enum Opcode: u8 {
        /// First packet of a send.
        SendFirst = 0x00 as "IB_OPCODE_SEND_FIRST",
        /// Middle packet of a send.
        SendMiddle = 0x01 as "IB_OPCODE_SEND_MIDDLE",
        /// Last packet of a send.
        SendLast = 0x02 as "IB_OPCODE_SEND_LAST",
        /// Last packet of a send with immediate data.
        SendLastImmediate = 0x03 as "IB_OPCODE_SEND_LAST_WITH_IMMEDIATE",
        /// Only packet of a send.
        SendOnly = 0x04 as "IB_OPCODE_SEND_ONLY",
        /// Only packet of a send with immediate data.
        SendOnlyImmediate = 0x05 as "IB_OPCODE_SEND_ONLY_WITH_IMMEDIATE",
        /// First packet of an RDMA WRITE.
        WriteFirst = 0x06 as "IB_OPCODE_RDMA_WRITE_FIRST",
        /// Middle packet of an RDMA WRITE.
        WriteMiddle = 0x07 as "IB_OPCODE_RDMA_WRITE_MIDDLE",
        /// Last packet of an RDMA WRITE.
        WriteLast = 0x08 as "IB_OPCODE_RDMA_WRITE_LAST",
        /// Last packet of an RDMA WRITE with immediate data.
        WriteLastImmediate = 0x09 as "IB_OPCODE_RDMA_WRITE_LAST_WITH_IMMEDIATE",
        /// Only packet of an RDMA WRITE.
        WriteOnly = 0x0a as "IB_OPCODE_RDMA_WRITE_ONLY",
        /// Only packet of an RDMA WRITE with immediate data.
        WriteOnlyImmediate = 0x0b as "IB_OPCODE_RDMA_WRITE_ONLY_WITH_IMMEDIATE",
        /// RDMA READ request.
        ReadRequest = 0x0c as "IB_OPCODE_RDMA_READ_REQUEST",
        /// First packet of an RDMA READ response.
        ReadResponseFirst = 0x0d as "IB_OPCODE_RDMA_READ_RESPONSE_FIRST",
        /// Middle packet of an RDMA READ response.
        ReadResponseMiddle = 0x0e as "IB_OPCODE_RDMA_READ_RESPONSE_MIDDLE",
        /// Last packet of an RDMA READ response.
        ReadResponseLast = 0x0f as "IB_OPCODE_RDMA_READ_RESPONSE_LAST",
        /// Only packet of an RDMA READ response.
        ReadResponseOnly = 0x10 as "IB_OPCODE_RDMA_READ_RESPONSE_ONLY",
        /// Acknowledgement, positive or negative.
        Acknowledge = 0x11 as "IB_OPCODE_ACKNOWLEDGE",
        /// Acknowledgement of an atomic, with the original value.
        AtomicAcknowledge = 0x12 as "IB_OPCODE_ATOMIC_ACKNOWLEDGE",
        /// Compare and swap.
        CompareSwap = 0x13 as "IB_OPCODE_COMPARE_SWAP",
        /// Fetch and add.
        FetchAdd = 0x14 as "IB_OPCODE_FETCH_ADD",
        /// Last packet of a send that invalidates a key.
        SendLastInvalidate = 0x16 as "IB_OPCODE_SEND_LAST_WITH_INVALIDATE",
        /// Only packet of a send that invalidates a key.
        SendOnlyInvalidate = 0x17 as "IB_OPCODE_SEND_ONLY_WITH_INVALIDATE",
        /// Congestion notification (IBA A17.9); 16 reserved bytes follow the BTH.
        CongestionNotification = 0x81,
        /// Masked compare and swap (assumed).
        MaskedCompareSwap = 0xf3,
        /// Masked fetch and add (assumed).
        MaskedFetchAdd = 0xf4,
    }
}

/// Where a packet stands in its message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Position {
    /// The first of several.
    First,
    /// Between first and last.
    Middle,
    /// The last of several.
    Last,
    /// The whole message.
    Only,
}

impl Position {
    /// True of the packet that begins the message.
    pub const fn is_first(self) -> bool {
        matches!(self, Self::First | Self::Only)
    }

    /// True of the packet that ends the message.
    pub const fn is_last(self) -> bool {
        matches!(self, Self::Last | Self::Only)
    }
}

/// A message that may span packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message {
    /// Send.
    Send,
    /// Send with immediate data.
    SendImmediate,
    /// Send that invalidates a key.
    SendInvalidate,
    /// RDMA WRITE.
    Write,
    /// RDMA WRITE with immediate data.
    WriteImmediate,
    /// RDMA READ response.
    ReadResponse,
}

impl Message {
    /// The opcode of its packet at `position`.
    pub const fn opcode(self, position: Position) -> Opcode {
        use Position::{First, Last, Middle, Only};
        match (self, position) {
            (Self::Send | Self::SendImmediate | Self::SendInvalidate, First) => Opcode::SendFirst,
            (Self::Send | Self::SendImmediate | Self::SendInvalidate, Middle) => Opcode::SendMiddle,
            (Self::Send, Last) => Opcode::SendLast,
            (Self::Send, Only) => Opcode::SendOnly,
            (Self::SendImmediate, Last) => Opcode::SendLastImmediate,
            (Self::SendImmediate, Only) => Opcode::SendOnlyImmediate,
            (Self::SendInvalidate, Last) => Opcode::SendLastInvalidate,
            (Self::SendInvalidate, Only) => Opcode::SendOnlyInvalidate,
            (Self::Write | Self::WriteImmediate, First) => Opcode::WriteFirst,
            (Self::Write | Self::WriteImmediate, Middle) => Opcode::WriteMiddle,
            (Self::Write, Last) => Opcode::WriteLast,
            (Self::Write, Only) => Opcode::WriteOnly,
            (Self::WriteImmediate, Last) => Opcode::WriteLastImmediate,
            (Self::WriteImmediate, Only) => Opcode::WriteOnlyImmediate,
            (Self::ReadResponse, First) => Opcode::ReadResponseFirst,
            (Self::ReadResponse, Middle) => Opcode::ReadResponseMiddle,
            (Self::ReadResponse, Last) => Opcode::ReadResponseLast,
            (Self::ReadResponse, Only) => Opcode::ReadResponseOnly,
        }
    }
}

/// Which extended headers follow the BTH, in the order of the fields, and whether a payload may.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Headers {
    /// RDMA.
    pub reth: bool,
    /// Atomic.
    pub atomic: bool,
    /// Masked atomic.
    pub masked_atomic: bool,
    /// Acknowledgement.
    pub aeth: bool,
    /// Original value of an atomic.
    pub atomic_ack: bool,
    /// Immediate data.
    pub immediate: bool,
    /// Key to invalidate.
    pub invalidate: bool,
    /// Payload.
    pub payload: bool,
}

impl Opcode {
    /// What follows the BTH (IBA 9.2 and table 38). `None` for an opcode with no name here.
    pub const fn headers(self) -> Option<Headers> {
        let mut headers = Headers {
            reth: false,
            atomic: false,
            masked_atomic: false,
            aeth: false,
            atomic_ack: false,
            immediate: false,
            invalidate: false,
            payload: true,
        };
        match self {
            Self::SendFirst
            | Self::SendMiddle
            | Self::SendLast
            | Self::SendOnly
            | Self::WriteMiddle
            | Self::WriteLast
            | Self::ReadResponseMiddle
            | Self::CongestionNotification => {}
            Self::SendLastImmediate | Self::SendOnlyImmediate | Self::WriteLastImmediate => {
                headers.immediate = true;
            }
            Self::SendLastInvalidate | Self::SendOnlyInvalidate => headers.invalidate = true,
            Self::WriteFirst | Self::WriteOnly => headers.reth = true,
            Self::WriteOnlyImmediate => {
                headers.reth = true;
                headers.immediate = true;
            }
            Self::ReadRequest => {
                headers.reth = true;
                headers.payload = false;
            }
            Self::ReadResponseFirst | Self::ReadResponseLast | Self::ReadResponseOnly => {
                headers.aeth = true;
            }
            Self::Acknowledge => {
                headers.aeth = true;
                headers.payload = false;
            }
            Self::AtomicAcknowledge => {
                headers.aeth = true;
                headers.atomic_ack = true;
                headers.payload = false;
            }
            Self::CompareSwap | Self::FetchAdd => {
                headers.atomic = true;
                headers.payload = false;
            }
            Self::MaskedCompareSwap | Self::MaskedFetchAdd => {
                headers.masked_atomic = true;
                headers.payload = false;
            }
            Self::Unknown(_) => return None,
        }
        Some(headers)
    }

    /// Where a packet of a send, RDMA WRITE or RDMA READ response stands in its message. `None` for others.
    pub const fn position(self) -> Option<Position> {
        match self {
            Self::SendFirst | Self::WriteFirst | Self::ReadResponseFirst => Some(Position::First),
            Self::SendMiddle | Self::WriteMiddle | Self::ReadResponseMiddle => {
                Some(Position::Middle)
            }
            Self::SendLast
            | Self::SendLastImmediate
            | Self::SendLastInvalidate
            | Self::WriteLast
            | Self::WriteLastImmediate
            | Self::ReadResponseLast => Some(Position::Last),
            Self::SendOnly
            | Self::SendOnlyImmediate
            | Self::SendOnlyInvalidate
            | Self::WriteOnly
            | Self::WriteOnlyImmediate
            | Self::ReadResponseOnly => Some(Position::Only),
            _ => None,
        }
    }

    /// True of a packet of a send.
    pub const fn is_send(self) -> bool {
        matches!(
            self,
            Self::SendFirst
                | Self::SendMiddle
                | Self::SendLast
                | Self::SendLastImmediate
                | Self::SendOnly
                | Self::SendOnlyImmediate
                | Self::SendLastInvalidate
                | Self::SendOnlyInvalidate
        )
    }

    /// True of a packet of an RDMA WRITE.
    pub const fn is_write(self) -> bool {
        matches!(
            self,
            Self::WriteFirst
                | Self::WriteMiddle
                | Self::WriteLast
                | Self::WriteLastImmediate
                | Self::WriteOnly
                | Self::WriteOnlyImmediate
        )
    }

    /// True of a packet of an RDMA READ response.
    pub const fn is_read_response(self) -> bool {
        matches!(
            self,
            Self::ReadResponseFirst
                | Self::ReadResponseMiddle
                | Self::ReadResponseLast
                | Self::ReadResponseOnly
        )
    }

    /// True of an atomic request.
    pub const fn is_atomic(self) -> bool {
        matches!(
            self,
            Self::CompareSwap | Self::FetchAdd | Self::MaskedCompareSwap | Self::MaskedFetchAdd
        )
    }

    /// True of a packet that a requester sends.
    pub const fn is_request(self) -> bool {
        self.is_send() || self.is_write() || self.is_atomic() || matches!(self, Self::ReadRequest)
    }

    /// True of a packet that a responder sends.
    pub const fn is_response(self) -> bool {
        self.is_read_response() || matches!(self, Self::Acknowledge | Self::AtomicAcknowledge)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_packet_of_a_message_knows_its_position() {
        use Message::*;
        for message in [
            Send,
            SendImmediate,
            SendInvalidate,
            Write,
            WriteImmediate,
            ReadResponse,
        ] {
            for position in [
                Position::First,
                Position::Middle,
                Position::Last,
                Position::Only,
            ] {
                let opcode = message.opcode(position);
                assert_eq!(opcode.position(), Some(position), "{message:?}");
                let headers = opcode.headers().unwrap();
                let immediate = matches!(message, SendImmediate | WriteImmediate);
                assert_eq!(
                    headers.immediate,
                    immediate && position.is_last(),
                    "{opcode:?}"
                );
                assert_eq!(
                    headers.invalidate,
                    message == SendInvalidate && position.is_last(),
                    "{opcode:?}"
                );
                let write = matches!(message, Write | WriteImmediate);
                assert_eq!(headers.reth, write && position.is_first(), "{opcode:?}");
                assert_eq!(
                    headers.aeth,
                    message == ReadResponse && position != Position::Middle,
                    "{opcode:?}"
                );
            }
        }
    }

    #[test]
    fn every_named_opcode_is_of_one_kind() {
        for code in 0..=255 {
            let opcode = Opcode::from_code(code);
            let named = !matches!(opcode, Opcode::Unknown(_));
            assert_eq!(opcode.headers().is_some(), named, "{code:#x}");
            let kinds = [
                opcode.is_request(),
                opcode.is_response(),
                opcode == Opcode::CongestionNotification,
            ];
            assert_eq!(
                kinds.iter().filter(|kind| **kind).count(),
                named as usize,
                "{code:#x}"
            );
        }
        assert_eq!(Opcode::from_code(0x15), Opcode::Unknown(0x15));
    }
}
