//! Answers: what acknowledgements and response data do to the requester.
//!
//! Knows: IBA 9.7 (what an answer acknowledges), 9.9 (what its errors mean).
//! Must not know: how a packet is made or a completion written.

use warpverbs_wire::roce::timer::rnr_us;
use warpverbs_wire::roce::{NakCode, Opcode, Psn, Syndrome};

use crate::failure::{
    BAD_RESPONSE, Failed, REMOTE_ACCESS, REMOTE_INVALID_REQUEST, REMOTE_OPERATION, RETRY_EXCEEDED,
    RNR_RETRY_EXCEEDED,
};
use crate::packet::Packet;
use crate::requester::Progress;
use crate::trace::Event;
use crate::work::Work;

impl Work<'_> {
    /// Takes an answer. One to a request that is not outstanding is a ghost: dropped.
    pub(crate) fn take_answer(&mut self, packet: &Packet) {
        let psn = packet.psn;
        let Some(qp) = self.qp() else { return };
        if !qp.requester.expects(psn) {
            return;
        }
        match packet.opcode {
            Opcode::AtomicAcknowledge => {
                let original = packet.extended.atomic_ack.unwrap_or_default().original;
                self.take_original(psn, original);
            }
            opcode if opcode.is_read_response() => self.take_data(packet),
            _ => match packet.extended.aeth.unwrap_or_default().syndrome {
                Syndrome::Ack { .. } => {
                    self.acknowledge(psn.next());
                }
                Syndrome::RnrNak { timer } => self.not_ready(psn, timer),
                Syndrome::Nak(NakCode::PsnSequence) => {
                    self.count(|set| &mut set.packet_seq_err);
                    if self.acknowledge(psn) {
                        self.repeat(psn);
                    }
                }
                Syndrome::Nak(code) => self.refused(psn, code),
                Syndrome::Unknown(_) => self.fail_at(psn, BAD_RESPONSE),
            },
        }
        if let Some(qp) = self.objects.qps.get_mut(self.qpn) {
            qp.requester.arm(self.time.now(), &qp.context);
        }
    }

    /// Everything before `psn` is answered. If response data is missing before it, it was lost: it is asked for again, and
    /// this is false.
    fn acknowledge(&mut self, psn: Psn) -> bool {
        let Some(qp) = self.qp() else { return false };
        if qp.requester.acknowledge(psn, &qp.context) {
            return true;
        }
        let missing = qp.requester.oldest;
        self.count(|set| &mut set.implied_nak_seq_err);
        self.repeat(missing);
        false
    }

    /// Sends again from `psn` on, unless that was begun already.
    fn repeat(&mut self, psn: Psn) {
        let Some(requester) = self.qp().map(|qp| &mut qp.requester) else {
            return;
        };
        if requester.is_recovering() {
            return;
        }
        if !requester.repeat(psn) {
            return requester.fail_at(psn, RETRY_EXCEEDED);
        }
        self.stats.repeats += 1;
    }

    fn not_ready(&mut self, psn: Psn, timer: u8) {
        if !self.acknowledge(psn) {
            return;
        }
        self.stats.rnr_naks += 1;
        self.count(|set| &mut set.rnr_nak_retry_err);
        // Five bits always name a time.
        let us = rnr_us(timer).unwrap_or_default();
        let time = self.time.now().saturating_add(u64::from(us) * 1000);
        if let Some(qp) = self.qp()
            && !qp.requester.pause(psn, time)
        {
            qp.requester.fail_at(psn, RNR_RETRY_EXCEEDED);
        }
    }

    fn refused(&mut self, psn: Psn, code: NakCode) {
        if !self.acknowledge(psn) {
            return;
        }
        self.fail_at(
            psn,
            match code {
                NakCode::InvalidRequest => REMOTE_INVALID_REQUEST,
                NakCode::RemoteAccess => REMOTE_ACCESS,
                NakCode::RemoteOperation => REMOTE_OPERATION,
                _ => BAD_RESPONSE,
            },
        );
    }

    fn fail_at(&mut self, psn: Psn, failed: Failed) {
        if let Some(qp) = self.qp() {
            qp.requester.fail_at(psn, failed);
        }
    }

    /// Takes a packet of READ data.
    fn take_data(&mut self, packet: &Packet) {
        let psn = packet.psn;
        let Some(qp) = self.qp() else { return };
        let mtu = u64::from(qp.mtu());
        // What was asked for before is answered too.
        qp.requester.acknowledge(psn, &qp.context);
        let Some(at) = qp.requester.find(psn) else {
            return;
        };
        let oldest = qp.requester.oldest;
        let Some(operation) = qp.requester.operations.get(at).cloned() else {
            return;
        };
        if operation.slot.opcode != warpverbs_wire::wqe::Opcode::RdmaRead {
            return self.fail_at(psn, BAD_RESPONSE);
        }
        if psn != oldest {
            // Data before it is missing.
            self.count(|set| &mut set.implied_nak_seq_err);
            return self.repeat(oldest);
        }
        let offset = operation.arrived * mtu;
        let expected = mtu.min(operation.len.saturating_sub(offset));
        if packet.payload.len() as u64 != expected {
            return self.fail_at(psn, BAD_RESPONSE);
        }
        let result = self.scatter(&operation, offset, &packet.payload);
        let Some(qp) = self.qp() else { return };
        if let Some(operation) = qp.requester.operations.get_mut(at) {
            operation.arrived += 1;
            operation.progress = match result {
                Err(failed) => Progress::Failed(failed),
                Ok(()) if operation.arrived == u64::from(operation.packets) => Progress::Done,
                Ok(()) => Progress::Waiting,
            };
        }
        qp.requester.answered(psn.next(), &qp.context);
    }

    /// Takes the original value of an atomic.
    fn take_original(&mut self, psn: Psn, original: u64) {
        let Some(qp) = self.qp() else { return };
        qp.requester.acknowledge(psn, &qp.context);
        let oldest = qp.requester.oldest;
        let Some(at) = qp.requester.find(psn) else {
            return;
        };
        let Some(operation) = qp.requester.operations.get(at).cloned() else {
            return;
        };
        let Some(atomic) = operation.atomic else {
            return self.fail_at(psn, BAD_RESPONSE);
        };
        if psn != oldest {
            self.count(|set| &mut set.implied_nak_seq_err);
            return self.repeat(oldest);
        }
        // In the byte order of the host (assumed: hosts here are little-endian), as many bytes as the operands have.
        let bytes = original.to_le_bytes();
        let value = bytes
            .get(..atomic.value_bytes() as usize)
            .unwrap_or_default();
        let result = self.scatter(&operation, 0, value);
        let Some(qp) = self.qp() else { return };
        if let Some(operation) = qp.requester.operations.get_mut(at) {
            operation.progress = match result {
                Err(failed) => Progress::Failed(failed),
                Ok(()) => Progress::Done,
            };
        }
        qp.requester.answered(psn.next(), &qp.context);
    }

    /// A deadline of the QP may have come.
    pub(crate) fn on_time(&mut self) {
        let now = self.time.now();
        let Some(qp) = self.qp() else { return };
        qp.alarm = None;
        let requester = &mut qp.requester;
        if requester.paused.is_some_and(|time| time <= now) {
            requester.paused = None;
        } else if requester.deadline.is_some_and(|time| time <= now) {
            let oldest = requester.oldest;
            requester.deadline = None;
            if requester.repeat(oldest) {
                requester.arm(now, &qp.context);
                self.stats.timeouts += 1;
            } else {
                requester.fail_oldest(RETRY_EXCEEDED);
            }
            self.count(|set| &mut set.local_ack_timeout_err);
            self.note(Event::Timer { qpn: self.qpn });
        }
        self.settle();
    }
}
