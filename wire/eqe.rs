//! Event queue elements (`mlx5_ifc_eqe_bits`): what the device raises beside completions.
//!
//! Knows: the 64 bytes of an EQE, the types of events, and what each says.
//! Must not know: where event queues lie, or who is told of an event.

use core::fmt;

use crate::layout::{Error, Value, open_enum, structure};

/// Bytes of an EQE.
pub const EQE: usize = Eqe::LEN;

open_enum! {
    /// What happened (`MLX5_EVENT_TYPE_*` of Linux's `mlx5/device.h`).
    pub enum EventType: u8 {
        /// A CQ that was armed has a completion.
        Completion = 0x00 as "MLX5_EVENT_TYPE_COMP",
        /// A QP migrated to its alternate path.
        PathMigrated = 0x01 as "MLX5_EVENT_TYPE_PATH_MIG",
        /// A QP in RTR received its first packet.
        CommunicationEstablished = 0x02 as "MLX5_EVENT_TYPE_COMM_EST",
        /// A send queue is drained.
        SendQueueDrained = 0x03 as "MLX5_EVENT_TYPE_SQ_DRAINED",
        /// A CQ is in error.
        CqError = 0x04 as "MLX5_EVENT_TYPE_CQ_ERROR",
        /// A work queue failed: it could not be read, or its CQ is in error.
        WqCatastrophicError = 0x05 as "MLX5_EVENT_TYPE_WQ_CATAS_ERROR",
        /// A QP did not migrate.
        PathMigrationFailed = 0x07 as "MLX5_EVENT_TYPE_PATH_MIG_FAILED",
        /// The device failed.
        InternalError = 0x08 as "MLX5_EVENT_TYPE_INTERNAL_ERROR",
        /// A port changed.
        PortChange = 0x09 as "MLX5_EVENT_TYPE_PORT_CHANGE",
        /// A responder refused an invalid request.
        WqInvalidRequest = 0x10 as "MLX5_EVENT_TYPE_WQ_INVAL_REQ_ERROR",
        /// A responder refused an access.
        WqAccessError = 0x11 as "MLX5_EVENT_TYPE_WQ_ACCESS_ERROR",
        /// A shared receive queue failed.
        SrqCatastrophicError = 0x12 as "MLX5_EVENT_TYPE_SRQ_CATAS_ERROR",
        /// A QP in error has taken its last receive from its shared receive queue.
        SrqLastWqe = 0x13 as "MLX5_EVENT_TYPE_SRQ_LAST_WQE",
        /// A shared receive queue has fewer WQEs than its limit.
        SrqLimit = 0x14 as "MLX5_EVENT_TYPE_SRQ_RQ_LIMIT",
    }
}

open_enum! {
    /// How a port changed (`MLX5_PORT_CHANGE_SUBTYPE_*`).
    pub enum PortChange: u8 {
        /// It went down.
        Down = 1 as "MLX5_PORT_CHANGE_SUBTYPE_DOWN",
        /// It is active.
        Active = 4 as "MLX5_PORT_CHANGE_SUBTYPE_ACTIVE",
        /// It is up, and not yet active.
        Initialized = 5 as "MLX5_PORT_CHANGE_SUBTYPE_INITIALIZED",
        /// It has another local identifier.
        Lid = 6 as "MLX5_PORT_CHANGE_SUBTYPE_LID",
        /// Its partition keys changed.
        PartitionKeys = 7 as "MLX5_PORT_CHANGE_SUBTYPE_PKEY",
        /// Its GUIDs changed.
        Guids = 8 as "MLX5_PORT_CHANGE_SUBTYPE_GUID",
        /// Clients are to register with the subnet manager again.
        ClientReregister = 9 as "MLX5_PORT_CHANGE_SUBTYPE_CLIENT_REREG",
    }
}

open_enum! {
    /// Why a CQ is in error.
    pub enum CqErrorSyndrome: u8 {
        /// It overflowed.
        Overrun = 1 as "MLX5_CQ_ERROR_SYNDROME_CQ_OVERRUN",
        /// It could not be written.
        AccessViolation = 2 as "MLX5_CQ_ERROR_SYNDROME_CQ_ACCESS_VIOLATION_ERROR",
    }
}

structure! {
    /// An EQE.
    pub struct Eqe: Mlx5Ifc "eqe", 512 bits {
        /// What happened.
        event_type: EventType => 0x08, 8;
        /// Its variant: [`PortChange`] of a port.
        event_sub_type: u8 => 0x18, 8;
        /// What it happened to, by the type.
        event_data: [u8; 28] => 0x100, 224;
        /// Signature of the EQE.
        signature: u8 => 0x1f0, 8;
        /// Owner: changes with each lap of the ring.
        owner: u8 => 0x1ff, 1;
    }
}

structure! {
    /// Data of a completion event.
    pub struct CompletionData: Mlx5Ifc "comp_event", 0xe0 bits {
        /// CQ number.
        cqn = "cq_number": u32 => 0xc8, 24;
    }
}

structure! {
    /// Data of an event of a QP or shared receive queue.
    pub struct QpData: Mlx5Ifc "qp_events", 0xe0 bits {
        /// Kind of the queue (`MLX5_EVENT_QUEUE_TYPE_*`); zero is a QP.
        queue_type = "type": u8 => 0xa0, 8;
        /// Its number.
        number = "qpn_rqn_sqn": u32 => 0xc8, 24;
    }
}

structure! {
    /// Data of an error of a CQ.
    pub struct CqErrorData: Mlx5Ifc "cq_error", 0xe0 bits {
        /// CQ number.
        cqn: u32 => 0x08, 24;
        /// Why.
        syndrome: CqErrorSyndrome => 0x58, 8;
    }
}

structure! {
    /// Data of a change of a port.
    pub struct PortData: Mlx5Ifc "port_state_change_event", 0xe0 bits {
        /// Port of the device, from 1.
        port = "port_num": u8 => 0x40, 4;
    }
}

/// What an EQE says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A CQ that was armed has a completion.
    Completion {
        /// CQ number.
        cqn: u32,
    },
    /// A CQ is in error.
    CqError {
        /// CQ number.
        cqn: u32,
        /// Why.
        syndrome: CqErrorSyndrome,
    },
    /// Something happened to a QP or shared receive queue.
    Queue {
        /// What.
        event: EventType,
        /// Its number.
        number: u32,
    },
    /// A port changed.
    Port {
        /// Port of the device, from 1.
        port: u8,
        /// How.
        change: PortChange,
    },
    /// An event with no name here, or the device's failure.
    Other(EventType),
}

impl Event {
    /// Its type.
    pub const fn event_type(&self) -> EventType {
        match *self {
            Self::Completion { .. } => EventType::Completion,
            Self::CqError { .. } => EventType::CqError,
            Self::Queue { event, .. } | Self::Other(event) => event,
            Self::Port { .. } => EventType::PortChange,
        }
    }

    /// The EQE that says so, with owner and signature zero.
    pub fn eqe(&self) -> Eqe {
        let (event_type, event_sub_type, event_data) = match *self {
            Self::Completion { cqn } => (EventType::Completion, 0, CompletionData { cqn }.emit()),
            Self::CqError { cqn, syndrome } => {
                (EventType::CqError, 0, CqErrorData { cqn, syndrome }.emit())
            }
            Self::Queue { event, number } => (
                event,
                0,
                QpData {
                    queue_type: 0,
                    number,
                }
                .emit(),
            ),
            Self::Port { port, change } => (
                EventType::PortChange,
                change.code(),
                PortData { port }.emit(),
            ),
            Self::Other(event) => (event, 0, [0; 28]),
        };
        Eqe {
            event_type,
            event_sub_type,
            event_data,
            ..Eqe::default()
        }
    }

    /// Reads an EQE. Whether it is new, its owner bit says, as that of a CQE does.
    pub fn parse(bytes: &[u8]) -> Result<Self, Error> {
        let eqe = Eqe::parse(bytes)?;
        let data = &eqe.event_data;
        Ok(match eqe.event_type {
            EventType::Completion => Self::Completion {
                cqn: CompletionData::get(data, 0, 0).cqn,
            },
            EventType::CqError => {
                let CqErrorData { cqn, syndrome } = CqErrorData::get(data, 0, 0);
                Self::CqError { cqn, syndrome }
            }
            EventType::PortChange => Self::Port {
                port: PortData::get(data, 0, 0).port,
                change: PortChange::from_code(eqe.event_sub_type),
            },
            event @ (EventType::InternalError | EventType::Unknown(_)) => Self::Other(event),
            event => Self::Queue {
                event,
                number: QpData::get(data, 0, 0).number,
            },
        })
    }
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Completion { cqn } => write!(f, "completion on CQ {cqn:#x}"),
            Self::CqError { cqn, syndrome } => write!(f, "error of CQ {cqn:#x}: {syndrome:?}"),
            Self::Queue { event, number } => write!(f, "{event:?} of queue {number:#x}"),
            Self::Port { port, change } => write!(f, "port {port}: {change:?}"),
            Self::Other(event) => write!(f, "event {:#04x} ({event:?})", event.code()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_bytes() {
        let bytes = |event: Event| event.eqe().emit();
        let completion = bytes(Event::Completion { cqn: 0x01_0203 });
        assert_eq!((completion[1], &completion[56..60]), (0, &[0, 1, 2, 3][..]));
        let overrun = bytes(Event::CqError {
            cqn: 0x01_0203,
            syndrome: CqErrorSyndrome::Overrun,
        });
        assert_eq!(
            (overrun[1], &overrun[32..36], overrun[43]),
            (4, &[0, 1, 2, 3][..], 1)
        );
        let last = bytes(Event::Queue {
            event: EventType::SrqLastWqe,
            number: 0x01_0203,
        });
        assert_eq!((last[1], &last[56..60]), (0x13, &[0, 1, 2, 3][..]));
        let down = bytes(Event::Port {
            port: 2,
            change: PortChange::Down,
        });
        assert_eq!((down[1], down[3], down[40]), (9, 1, 0x20));
    }

    #[test]
    fn each_event_survives() {
        for code in 0..=255 {
            let event = match EventType::from_code(code) {
                EventType::Completion => Event::Completion { cqn: 5 },
                EventType::CqError => Event::CqError {
                    cqn: 5,
                    syndrome: CqErrorSyndrome::Unknown(7),
                },
                EventType::PortChange => Event::Port {
                    port: 1,
                    change: PortChange::Active,
                },
                event @ (EventType::InternalError | EventType::Unknown(_)) => Event::Other(event),
                event => Event::Queue { event, number: 5 },
            };
            assert_eq!(event.eqe().event_type.code(), code);
            assert_eq!(Event::parse(&event.eqe().emit()), Ok(event));
        }
        assert!(Event::parse(&[0; 63]).is_err());
    }

    #[test]
    fn printed_with_names() {
        let event = Event::CqError {
            cqn: 5,
            syndrome: CqErrorSyndrome::Overrun,
        };
        extern crate std;
        assert_eq!(std::format!("{event}"), "error of CQ 0x5: Overrun");
    }
}
