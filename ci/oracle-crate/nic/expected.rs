//! What is meant by the CQEs of one end of a connection: it follows from the requests, and from docs/hardware-facts.md for errors.

use warpverbs_wire::cqe::{Cqe, CqeOpcode, ErrorCqe, Syndrome, is_new, vendor_syndrome};

use crate::cqes::{opcode_of, received, status};
use crate::ffi::*;
use crate::request::{Kind, Payload, Request};
use crate::verbs::{Cq, Qp, Told};

/// A completion that is to come.
#[derive(Clone, Debug)]
pub(super) struct Expected {
    pub(super) told: Told,
    /// The CQE, but for time and owner.
    pub(super) cqe: Result<Cqe, ErrorCqe>,
    /// Of a send, its index.
    pub(super) index: Option<u64>,
}

/// One end of a connection, with a CQ for both its queues.
pub(super) struct End {
    pub(super) qp: Qp,
    pub(super) cq: Cq,
    pub(super) consumer: u64,
    /// Time of the last completion.
    pub(super) clock: u64,
    /// Next index of the send queue.
    pub(super) next: u64,
    /// Receives so far, as a queue of its own counts them.
    pub(super) receives: u64,
    /// Posted, and not completed.
    pub(super) posted: Vec<Posted>,
}

/// A receive that is posted: its request, and its index in the queue.
#[derive(Clone, Copy, Debug)]
pub(super) struct Posted {
    pub(super) id: u64,
    pub(super) counter: u16,
}

impl End {
    pub(super) fn flush_of_receive(&self, posted: Posted) -> Expected {
        self.failed_receive(posted, Syndrome::Flushed, vendor_syndrome::FLUSHED)
    }

    pub(super) fn failed_receive(
        &self,
        posted: Posted,
        syndrome: Syndrome,
        vendor: u8,
    ) -> Expected {
        Expected {
            told: Told {
                id: posted.id,
                status: status(syndrome.code()),
                vendor: vendor.into(),
                qpn: self.qp.number,
                ..Told::default()
            },
            cqe: Err(ErrorCqe {
                srqn_uidx: self.qp.user_index,
                vendor_syndrome: vendor,
                syndrome,
                qpn: self.qp.number,
                wqe_counter: posted.counter,
                opcode: CqeOpcode::ResponderError,
                solicited: true,
                ..ErrorCqe::default()
            }),
            index: None,
        }
    }

    /// A send at `index` that fails.
    pub(super) fn failed(
        &self,
        request: &Request,
        index: u64,
        syndrome: u8,
        vendor: u8,
        opcode: u8,
    ) -> Expected {
        Expected {
            told: Told {
                id: request.id,
                status: status(syndrome),
                vendor: vendor.into(),
                qpn: self.qp.number,
                ..Told::default()
            },
            cqe: Err(ErrorCqe {
                srqn_uidx: self.qp.user_index,
                vendor_syndrome: vendor,
                syndrome: Syndrome::from_code(syndrome),
                wqe_opcode: opcode,
                qpn: self.qp.number,
                wqe_counter: index as u16,
                opcode: CqeOpcode::RequesterError,
                solicited: true,
                ..ErrorCqe::default()
            }),
            index: Some(index),
        }
    }

    /// A send at `index` that succeeds.
    pub(super) fn done(&self, request: &Request, index: u64) -> Expected {
        // Of READs and atomics alone.
        let bytes = match request.kind {
            Kind::Read | Kind::CompareSwap | Kind::FetchAdd => len(request),
            _ => 0,
        };
        Expected {
            told: Told {
                id: request.id,
                status: IBV_WC_SUCCESS,
                qpn: self.qp.number,
                opcode: opcode_of(request.kind),
                bytes,
                ..Told::default()
            },
            cqe: Ok(Cqe {
                srqn_uidx: self.qp.user_index,
                byte_count: bytes,
                send_opcode: request.kind.opcode().code(),
                qpn: self.qp.number,
                wqe_counter: index as u16,
                opcode: CqeOpcode::Requester,
                ..Cqe::default()
            }),
            index: Some(index),
        }
    }

    /// A receive that a request has used up.
    pub(super) fn received(&self, request: &Request, posted: Posted, extended: bool) -> Expected {
        let opcode = match request.kind {
            Kind::WriteImmediate => CqeOpcode::ResponderWriteImmediate,
            Kind::SendImmediate => CqeOpcode::ResponderSendImmediate,
            Kind::SendInvalidate => CqeOpcode::ResponderSendInvalidate,
            _ => CqeOpcode::ResponderSend,
        };
        let immediate = if request.kind == Kind::Send {
            0
        } else {
            request.immediate
        };
        let (said, flags) = received(opcode);
        Expected {
            told: Told {
                id: posted.id,
                status: IBV_WC_SUCCESS,
                qpn: self.qp.number,
                opcode: said,
                flags,
                bytes: len(request),
                immediate,
                // Of RC neither source nor path is said, and `ibv_poll_cq` takes the partition's index from the same field.
                pkey_index: if extended { 0 } else { immediate as u16 },
                ..Told::default()
            },
            cqe: Ok(Cqe {
                srqn_uidx: self.qp.user_index,
                immediate,
                byte_count: len(request),
                qpn: self.qp.number,
                wqe_counter: posted.counter,
                opcode,
                solicited: request.solicited,
                ..Cqe::default()
            }),
            index: None,
        }
    }

    pub(super) fn is_there(&self, ahead: u64) -> bool {
        let at = self.consumer + ahead;
        is_new(
            self.cq.ring.acquire(self.cq.slot(at) + 63),
            at,
            self.cq.entries,
        )
    }
}

pub(super) fn len(request: &Request) -> u32 {
    match &request.data {
        _ if request.kind.is_atomic() => 8,
        Payload::Pointers(pointers) => pointers.iter().map(|pointer| pointer.len).sum(),
        Payload::Inline(parts) => parts.iter().map(|part| part.len() as u32).sum(),
    }
}
