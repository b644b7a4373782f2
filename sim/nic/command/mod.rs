//! Commands: mailboxes in, mailboxes out.
//!
//! Knows: which opcode is whose, the checks that all commands share, and how status and syndrome go back.
//! Must not know: where a field of a mailbox lies (`wire`), or how work requests run.

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

mod caps;
mod cq;
mod mkey;
mod qp;
mod rmp;
mod services;
mod transition;
mod vport;

use warpverbs_wire::prm::header::{Reply, Request};
use warpverbs_wire::prm::{
    Status, alloc_pd, alloc_q_counter, alloc_transport_domain, alloc_uar, create_cq, create_mkey,
    create_qp, create_rmp, dealloc_pd, dealloc_q_counter, dealloc_transport_domain, dealloc_uar,
    destroy_cq, destroy_mkey, destroy_qp, destroy_rmp, init2init_qp, init2rtr_qp, modify_rmp,
    qp_2err, qp_2rst, query_cq, query_hca_cap, query_hca_vport_context, query_hca_vport_gid,
    query_hca_vport_pkey, query_nic_vport_context, query_q_counter, query_qp, query_rmp,
    query_roce_address, query_special_contexts, query_vport_state, rst2init_qp, rtr2rts_qp,
    rts2rts_qp, set_roce_address, sqerr2rts_qp,
};

use crate::model::NicModel;
use crate::syndrome::{Check, CommandError};
use crate::trace::Event;
use crate::umem::Umem;

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

fn copy(from: &[u8], to: &mut [u8]) {
    for (to, from) in to.iter_mut().zip(from) {
        *to = *from;
    }
}

impl NicModel {
    /// Executes one mailbox as firmware does. Whatever the outcome, `output` gets status and syndrome, as much of them as
    /// fits; what lies behind the answer is zeroed. A command without answer ([`Check::NoAnswer`]) leaves zeroes, which mean
    /// nothing.
    pub fn command(&mut self, input: &[u8], output: &mut [u8]) -> Result<(), CommandError> {
        output.fill(0);
        let request = Request::parse(input);
        let opcode = request.map_or(0, |request| request.opcode);
        let planted = self.planted_refusal(opcode);
        let silence = self.planted_silence(opcode);
        let result = match request {
            _ if self.is_removed() => Err(Check::Removed),
            _ if silence == Some(false) => Err(Check::NoAnswer),
            _ if planted.is_some() => Err(Check::Planted),
            Ok(request) => {
                let bytes = input;
                self.dispatch(Input { bytes, request }, output)
            }
            Err(_) => Err(Check::InputLength),
        }
        .and_then(|()| require(silence.is_none(), Check::NoAnswer))
        .map_err(|check| CommandError {
            opcode,
            check,
            planted: planted.filter(|_| check == Check::Planted),
        });
        self.stats.commands += 1;
        self.note(Event::Command {
            opcode,
            status: result.map_or_else(|error| error.status(), |()| 0),
            syndrome: result.map_or_else(|error| error.syndrome(), |()| 0),
        });
        if let Err(error) = result {
            self.stats.refused_commands += 1;
            output.fill(0);
            let reply = Reply {
                status: Status::from_code(error.status()),
                syndrome: error.syndrome(),
            };
            if error.check != Check::NoAnswer {
                copy(&reply.emit(), output);
            }
        }
        result
    }

    fn dispatch(&mut self, input: Input<'_>, output: &mut [u8]) -> Result<(), Check> {
        macro_rules! commands {
            ($($module:ident: $handler:path,)*) => {
                match input.request.opcode {
                    query_hca_cap::In::OPCODE => caps::query_hca_cap(self, &input, output),
                    query_qp::In::OPCODE => qp::query(self, &input, output),
                    $($module::In::OPCODE => execute!(self, input, output, $module, $handler),)*
                    opcode => Err(not_modelled(opcode)),
                }
            };
        }
        commands!(
            query_special_contexts: caps::special_contexts,
            alloc_pd: services::alloc_pd,
            dealloc_pd: services::dealloc_pd,
            alloc_transport_domain: services::alloc_transport_domain,
            dealloc_transport_domain: services::dealloc_transport_domain,
            alloc_uar: services::alloc_uar,
            dealloc_uar: services::dealloc_uar,
            alloc_q_counter: services::alloc_q_counter,
            dealloc_q_counter: services::dealloc_q_counter,
            query_q_counter: services::query_q_counter,
            create_cq: cq::create,
            destroy_cq: cq::destroy,
            query_cq: cq::query,
            create_qp: qp::create,
            destroy_qp: qp::destroy,
            rst2init_qp: transition::rst2init,
            init2init_qp: transition::init2init,
            init2rtr_qp: transition::init2rtr,
            rtr2rts_qp: transition::rtr2rts,
            rts2rts_qp: transition::rts2rts,
            sqerr2rts_qp: transition::sqerr2rts,
            qp_2err: transition::to_error,
            qp_2rst: transition::to_reset,
            create_rmp: rmp::create,
            modify_rmp: rmp::modify,
            query_rmp: rmp::query,
            destroy_rmp: rmp::destroy,
            create_mkey: mkey::create,
            destroy_mkey: mkey::destroy,
            query_vport_state: vport::state,
            query_hca_vport_context: vport::hca_context,
            query_hca_vport_gid: vport::hca_gid,
            query_hca_vport_pkey: vport::hca_pkey,
            query_nic_vport_context: vport::nic_context,
            query_roce_address: vport::query_roce,
            set_roce_address: vport::set_roce,
        )
    }
}

/// MODIFY_CQ, by which a CQ is resized.
const MODIFY_CQ: u16 = 0x403;
/// CREATE_SRQ and its kind, and those of extended reliable connections.
const SRQ: std::ops::RangeInclusive<u16> = 0x700..=0x708;
/// CREATE_DCT and its kind.
const DCT: std::ops::RangeInclusive<u16> = 0x710..=0x714;

/// Why a command of another opcode is refused: those that users of other features send have a check of their own.
fn not_modelled(opcode: u16) -> Check {
    match opcode {
        MODIFY_CQ => Check::NoModifyCq,
        opcode if SRQ.contains(&opcode) => Check::NoSrq,
        opcode if DCT.contains(&opcode) => Check::NoDct,
        _ => Check::Opcode,
    }
}

/// Passes if `holds`.
/// True if a command of a uid may name an object of another's: its own, or as the kernel, which is uid 0, any (Linux mlx5_ib makes
/// keys as uid 0 in PDs of a context's uid). That firmware refuses a context the kernel's objects is assumed.
const fn may_name(uid: u16, owner: u16) -> bool {
    uid == 0 || uid == owner
}

fn has_pd(model: &NicModel, uid: u16, pd: u32) -> bool {
    let owner = model.objects.pds.get(pd);
    owner.is_some_and(|owner| may_name(uid, *owner))
}

/// A page is its context's: the kernel allocates it by the context's uid (Linux mlx5_ib `mlx5_cmd_uar_alloc`).
fn has_uar(model: &NicModel, uid: u16, page: u32) -> bool {
    let owner = model.objects.uars.get(page);
    owner.is_some_and(|uar| may_name(uid, uar.uid))
}

/// A UMEM is its context's: the kernel creates it by the context's uid (Linux devx.c, `UMEM_REG`).
fn named_umem(model: &NicModel, uid: u16, id: u32) -> Option<&Umem> {
    let umem = model.objects.umems.get(id);
    umem.filter(|umem| may_name(uid, umem.uid))
}

fn require(holds: bool, check: Check) -> Result<(), Check> {
    if holds { Ok(()) } else { Err(check) }
}
