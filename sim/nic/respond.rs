//! Answers on their way out.
//!
//! Knows: what each answer's packet carries, and that answers stay in order.
//! Must not know: why an answer is given.

use warpverbs_wire::eqe::EventType;
use warpverbs_wire::roce::{
    Aeth, AtomicAckEth, Extended, Message, NakCode, Opcode, Position, Psn, Reth, Syndrome,
    UNLIMITED_CREDITS,
};

use crate::keys::{self, Right};
use crate::packet::{Packet, Source};
use crate::responder::Answer;
use crate::work::Work;

impl Work<'_> {
    /// Sends an answer, behind those that wait.
    pub(crate) fn answer(&mut self, answer: Answer) {
        let Some(qp) = self.qp() else { return };
        let first = qp.responder.answers.is_empty();
        qp.responder.answers.push_back(answer);
        // READ data takes steps of its own.
        if first && !matches!(qp.responder.answers.front(), Some(Answer::Data { .. })) {
            self.respond();
        }
    }

    /// Sends a packet of the first answer that waits.
    pub(crate) fn respond(&mut self) {
        let Some(answer) = self.qp().and_then(|qp| qp.responder.answers.pop_front()) else {
            return;
        };
        let ok = Syndrome::Ack {
            credits: UNLIMITED_CREDITS,
        };
        match answer {
            Answer::Ack { psn } => self.acknowledge_packet(psn, ok),
            Answer::NotReady { psn } => {
                let timer = self.qp().map_or(0, |qp| qp.context.min_rnr_nak);
                self.acknowledge_packet(psn, Syndrome::RnrNak { timer });
            }
            Answer::Nak { psn, code } => {
                self.acknowledge_packet(psn, Syndrome::Nak(code));
                // All but a gap in the sequence take the responder to ERR (IBA 9.9, class C).
                if code != NakCode::PsnSequence {
                    self.raise(match code {
                        NakCode::RemoteAccess => EventType::WqAccessError,
                        NakCode::InvalidRequest => EventType::WqInvalidRequest,
                        _ => EventType::WqCatastrophicError,
                    });
                    self.enter_error(None);
                }
            }
            Answer::Original { psn, original, .. } => {
                let aeth = Some(self.aeth(ok));
                let extended = Extended {
                    aeth,
                    atomic_ack: Some(AtomicAckEth { original }),
                    ..Extended::default()
                };
                self.transmit(Opcode::AtomicAcknowledge, psn, extended, Vec::new());
            }
            Answer::Data {
                psn,
                request,
                begun,
                repeats,
            } => self.send_data(psn, request, begun, repeats),
        }
    }

    /// Sends one packet of READ data.
    fn send_data(&mut self, psn: Psn, request: Reth, begun: bool, repeats: bool) {
        let mtu = self.qp().map_or(0, |qp| qp.mtu());
        let len = request.length.min(mtu);
        let ends = len == request.length;
        let mut data = self.buffers.pop().unwrap_or_default();
        data.clear();
        // The key may be gone since the request was taken.
        let refused = match self.remote_target(&request, request.length.into(), Right::RemoteRead) {
            Err(code) => Some(code),
            Ok(None) => None,
            Ok(Some((bus_addr, access))) => {
                data.resize(len as usize, 0);
                match self.dma.read(access, bus_addr, &mut data) {
                    Ok(()) => {
                        self.stats.bytes_read += u64::from(len);
                        None
                    }
                    Err(fault) => {
                        self.note_fault(keys::object_of(request.key), &fault);
                        Some(NakCode::RemoteOperation)
                    }
                }
            }
        };
        if let Some(code) = refused {
            if let Some(qp) = self.qp() {
                qp.responder.answers.push_front(Answer::Nak { psn, code });
            }
            return;
        }
        let opcode = Message::ReadResponse.opcode(match (begun, ends) {
            (false, true) => Position::Only,
            (false, false) => Position::First,
            (true, false) => Position::Middle,
            (true, true) => Position::Last,
        });
        let extended = Extended {
            aeth: opcode
                .headers()
                .is_some_and(|headers| headers.aeth)
                .then(|| {
                    self.aeth(Syndrome::Ack {
                        credits: UNLIMITED_CREDITS,
                    })
                }),
            ..Extended::default()
        };
        self.transmit(opcode, psn, extended, data);
        if !ends && let Some(qp) = self.qp() {
            qp.responder.answers.push_front(Answer::Data {
                psn: psn.next(),
                request: Reth {
                    address: request.address.wrapping_add(len.into()),
                    length: request.length - len,
                    ..request
                },
                begun: true,
                repeats,
            });
        }
    }

    fn aeth(&mut self, syndrome: Syndrome) -> Aeth {
        Aeth {
            syndrome,
            msn: self.qp().map_or(0, |qp| qp.responder.msn),
        }
    }

    fn acknowledge_packet(&mut self, psn: Psn, syndrome: Syndrome) {
        let extended = Extended {
            aeth: Some(self.aeth(syndrome)),
            ..Extended::default()
        };
        self.transmit(Opcode::Acknowledge, psn, extended, Vec::new());
    }

    fn transmit(&mut self, opcode: Opcode, psn: Psn, extended: Extended, payload: Vec<u8>) {
        let Some(qp) = self.objects.qps.get(self.qpn) else {
            return;
        };
        let packet = Packet {
            source: Source::Here,
            opcode,
            destination_qp: qp.context.remote_qpn,
            pkey: 0,
            psn,
            ack_request: false,
            solicited: false,
            extended,
            payload,
            bulk: None,
        };
        self.emit_packet(packet);
    }
}
