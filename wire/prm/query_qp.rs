//! QUERY_QP: reads a queue pair's context.
//!
//! `mlx5_ifc_query_qp_in_bits`, `mlx5_ifc_query_qp_out_bits`. With `qpc_ext` an extension of the context follows the answer
//! (`mlx5_ifc_qp_context_extension_bits`), which tells why a QP went into error.

use crate::cqe::Syndrome;
use crate::layout::structure;
use crate::prm::qpc::Qpc;
use crate::prm::{Command, Error, Status};

structure! {
    /// Reads the context of a QP.
    pub struct In: Mlx5Ifc "query_qp_in", 0x80 bits, opcode 0x50b {
        /// True: [`Extension`] follows the answer. Needs the capability `qpc_extension`.
        qpc_ext: bool => 0x40, 1;
        /// QP number.
        qpn: u32 => 0x48, 24;
    }
}

structure! {
    /// The answer to [`In`].
    pub struct Out: Mlx5Ifc "query_qp_out", 0x880 bits {
        /// How the command ended.
        status: Status => 0x00, 8;
        /// Which check of the firmware failed.
        syndrome: u32 => 0x20, 32;
        /// Which optional fields of the context the command takes: [`OptParam`](crate::prm::qpc::OptParam).
        opt_param_mask: u32 => 0x80, 32;
        /// Enhanced connection establishment options; zero for none.
        ece: u32 => 0xa0, 32;
        /// The QP's context.
        qpc: Qpc => 0xc0, 0x740;
    }
}

crate::prm::command!(In, Out, "QUERY_QP");

structure! {
    /// Why a QP went into error: what the error CQE that caused it says, written or not. Needs the capability
    /// `qp_error_syndrome`.
    pub struct ErrorSyndrome: Mlx5Ifc "cqe_error_syndrome", 0x20 bits {
        /// As [`hw_error_syndrome`](crate::cqe::ErrorCqe::hw_error_syndrome).
        hw_error_syndrome: u8 => 0x00, 8;
        /// Type of `hw_error_syndrome`.
        hw_syndrome_type: u8 => 0x08, 4;
        /// As [`vendor_syndrome`](crate::cqe::ErrorCqe::vendor_syndrome).
        vendor_syndrome = "vendor_error_syndrome": u8 => 0x10, 8;
        /// As [`syndrome`](crate::cqe::ErrorCqe::syndrome).
        syndrome: Syndrome => 0x18, 8;
    }
}

structure! {
    /// The extension of a QP's context.
    pub struct Extension: Mlx5Ifc "qp_context_extension", 0x600 bits {
        /// Why the QP went into error.
        error_syndrome: ErrorSyndrome => 0x60, 0x20;
    }
}

/// Asks for the context of a QP and its extension.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Extended {
    /// QP number.
    pub qpn: u32,
}

/// Where the extension begins in the answer.
pub const EXTENSION_OFFSET: usize = Out::LEN;

impl Command for Extended {
    const NAME: &'static str = "QUERY_QP";
    const OPCODE: u16 = In::OPCODE;
    type Out = (Out, Extension);
    type InBytes = [u8; In::LEN];
    type OutBytes = [u8; EXTENSION_OFFSET + Extension::LEN];

    fn encode(&self) -> Result<Self::InBytes, Error> {
        In {
            qpc_ext: true,
            qpn: self.qpn,
        }
        .encode()
    }

    fn reply() -> Self::OutBytes {
        [0; EXTENSION_OFFSET + Extension::LEN]
    }

    fn decode(reply: &[u8]) -> Result<Self::Out, Error> {
        let extension = reply.get(EXTENSION_OFFSET..).unwrap_or_default();
        Ok((Out::parse(reply)?, Extension::parse(extension)?))
    }
}
