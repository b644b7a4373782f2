//! Commands: mailboxes in, mailboxes out.
//!
//! Knows: which opcode is whose, the checks that all commands share, and how status and syndrome go back.
//! Must not know: where a field of a mailbox lies (`wire`), or how work requests run.

mod caps;
mod cq;
mod mkey;
mod qp;
mod rmp;
mod transition;

use warpverbs_wire::prm::header::{Reply, Request};
use warpverbs_wire::prm::{
    Status, create_cq, create_mkey, create_qp, create_rmp, destroy_cq, destroy_mkey, destroy_qp,
    destroy_rmp, init2rtr_qp, modify_rmp, qp_2err, qp_2rst, query_cq, query_hca_cap, query_qp,
    query_rmp, query_special_contexts, rst2init_qp, rtr2rts_qp,
};

use crate::model::NicModel;
use crate::syndrome::{Check, CommandError};
use crate::trace::Event;

/// What a handler gets: the whole input mailbox, and the uid of its header.
struct Input<'a> {
    bytes: &'a [u8],
    request: Request,
}

/// Runs one handler of a command `$module`: checks lengths and reserved bits, parses, calls, and emits the answer.
macro_rules! execute {
    ($model:expr, $input:expr, $output:expr, $module:ident, $handler:path) => {{
        if $output.len() < $module::Out::LEN {
            return Err(Check::OutputLength);
        }
        let request = parse!($input, $module)?;
        let answer = $handler($model, $input.request.uid, request)?;
        copy(&answer.emit(), $output);
        Ok(())
    }};
}

/// Checks length, op_mod and reserved bits of an input mailbox and parses it.
macro_rules! parse {
    ($input:expr, $module:ident) => {
        match $module::In::parse($input.bytes) {
            Err(_) => Err(Check::InputLength),
            Ok(_) if $input.request.op_mod != 0 => Err(Check::OpMod),
            Ok(_) if $module::In::reserved_nonzero($input.bytes).is_some() => {
                Err(Check::ReservedBits)
            }
            Ok(request) => Ok(request),
        }
    };
}

fn copy(from: &[u8], to: &mut [u8]) {
    for (to, from) in to.iter_mut().zip(from) {
        *to = *from;
    }
}

impl NicModel {
    /// Executes one mailbox as firmware does. Whatever the outcome, `output` gets status and syndrome, as much of them as
    /// fits; what lies behind the answer is zeroed.
    pub fn command(&mut self, input: &[u8], output: &mut [u8]) -> Result<(), CommandError> {
        output.fill(0);
        let request = Request::parse(input);
        let opcode = request.map_or(0, |request| request.opcode);
        let planted = self.planted_refusal(opcode);
        let result = match request {
            _ if self.is_removed() => Err(Check::Removed),
            _ if planted.is_some() => Err(Check::Planted),
            Ok(request) => {
                let bytes = input;
                self.dispatch(Input { bytes, request }, output)
            }
            Err(_) => Err(Check::InputLength),
        }
        .map_err(|check| CommandError {
            opcode,
            check,
            planted: planted.filter(|_| check == Check::Planted),
        });
        self.stats.commands += 1;
        self.note(Event::Command {
            opcode,
            status: result.map_or_else(|error| error.status(), |()| 0),
        });
        if let Err(error) = result {
            self.stats.refused_commands += 1;
            output.fill(0);
            let reply = Reply {
                status: Status::from_code(error.status()),
                syndrome: error.syndrome(),
            };
            copy(&reply.emit(), output);
        }
        result
    }

    fn dispatch(&mut self, input: Input<'_>, output: &mut [u8]) -> Result<(), Check> {
        match input.request.opcode {
            query_hca_cap::In::OPCODE => caps::query_hca_cap(self, &input, output),
            query_special_contexts::In::OPCODE => {
                execute!(
                    self,
                    input,
                    output,
                    query_special_contexts,
                    caps::special_contexts
                )
            }
            create_cq::In::OPCODE => execute!(self, input, output, create_cq, cq::create),
            destroy_cq::In::OPCODE => execute!(self, input, output, destroy_cq, cq::destroy),
            query_cq::In::OPCODE => execute!(self, input, output, query_cq, cq::query),
            create_qp::In::OPCODE => execute!(self, input, output, create_qp, qp::create),
            destroy_qp::In::OPCODE => execute!(self, input, output, destroy_qp, qp::destroy),
            query_qp::In::OPCODE => execute!(self, input, output, query_qp, qp::query),
            rst2init_qp::In::OPCODE => {
                execute!(self, input, output, rst2init_qp, transition::rst2init)
            }
            init2rtr_qp::In::OPCODE => {
                execute!(self, input, output, init2rtr_qp, transition::init2rtr)
            }
            rtr2rts_qp::In::OPCODE => {
                execute!(self, input, output, rtr2rts_qp, transition::rtr2rts)
            }
            qp_2err::In::OPCODE => execute!(self, input, output, qp_2err, transition::to_error),
            qp_2rst::In::OPCODE => execute!(self, input, output, qp_2rst, transition::to_reset),
            create_rmp::In::OPCODE => execute!(self, input, output, create_rmp, rmp::create),
            modify_rmp::In::OPCODE => execute!(self, input, output, modify_rmp, rmp::modify),
            query_rmp::In::OPCODE => execute!(self, input, output, query_rmp, rmp::query),
            destroy_rmp::In::OPCODE => execute!(self, input, output, destroy_rmp, rmp::destroy),
            create_mkey::In::OPCODE => execute!(self, input, output, create_mkey, mkey::create),
            destroy_mkey::In::OPCODE => execute!(self, input, output, destroy_mkey, mkey::destroy),
            _ => Err(Check::Opcode),
        }
    }
}

/// Passes if `holds`.
fn require(holds: bool, check: Check) -> Result<(), Check> {
    if holds { Ok(()) } else { Err(check) }
}
