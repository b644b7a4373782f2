//! The responder: whether a QP answers a request, and how it refuses (IBA 9.7.4, 9.9.3).
//!
//! Knows: the peer's state, PSNs, remote access rights and keys.
//! Must not know: the requester's WQE, or how an error is reported there.

use crate::keys::{self, KeyFault, Request, Right, Target};
use crate::objects::Objects;
use crate::qp::Qp;

/// A remote access that a requester asks for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RemoteRequest {
    pub(crate) key: u32,
    pub(crate) addr: u64,
    /// Bytes from `addr` to the end of the message.
    pub(crate) remaining: u64,
    /// Bytes of the whole message.
    pub(crate) len: u64,
    pub(crate) right: Right,
}

/// A request that is answered.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Admitted {
    pub(crate) peer: u32,
    /// `None` for a message of 0 bytes: its key is not looked at (IBA 9.7.4.1).
    pub(crate) target: Option<Target>,
}

/// A request that is not.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Refusal {
    /// Nothing is there that answers.
    NoAnswer,
    /// NAK, invalid request: the peer goes to ERR.
    InvalidRequest { peer: u32 },
    /// NAK, remote access error: the peer goes to ERR.
    Access { peer: u32, fault: KeyFault },
}

/// Judges a request of `requester`, whose number is `qpn`.
pub(crate) fn admit(
    objects: &Objects,
    qpn: u32,
    requester: &Qp,
    request: RemoteRequest,
) -> Result<Admitted, Refusal> {
    if !requester.loops_back {
        return Err(Refusal::NoAnswer);
    }
    let peer = requester.context.remote_qpn;
    let responder = objects.qps.get(peer).ok_or(Refusal::NoAnswer)?;
    // Packets of a QP that the responder is not connected to, or with a PSN that it does not expect, are dropped (IBA
    // 9.7.4.1): the requester sees no answer. That no NAK of a sequence error comes first is assumed. PSNs
    // move when a message is complete, so this holds for all its packets.
    let connected = responder.can_receive() && responder.context.remote_qpn == qpn;
    if !connected || requester.send_psn != responder.receive_psn {
        return Err(Refusal::NoAnswer);
    }
    let allowed = match request.right {
        Right::RemoteWrite => responder.context.rwe,
        Right::RemoteRead => responder.context.rre,
        Right::LocalRead | Right::LocalWrite => false,
    };
    // Packets between the first and the last are as long as the responder's path MTU (IBA 9.7.4.1).
    let sizes_match =
        request.len <= responder.mtu().min(requester.mtu()) || responder.mtu() == requester.mtu();
    if !allowed || !sizes_match || request.len > responder.max_message() {
        return Err(Refusal::InvalidRequest { peer });
    }
    if request.remaining == 0 {
        return Ok(Admitted { peer, target: None });
    }
    let access = Request {
        key: request.key,
        pd: responder.context.pd,
        addr: request.addr,
        len: request.remaining,
        right: request.right,
    };
    match keys::translate(&objects.mkeys, access) {
        Ok(target) => Ok(Admitted {
            peer,
            target: Some(target),
        }),
        Err(fault) => Err(Refusal::Access { peer, fault }),
    }
}
