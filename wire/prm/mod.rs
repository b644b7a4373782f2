//! Command mailboxes of the Programmer's Reference Manual.
//!
//! Knows: the bytes of each command's input and output, one file a command; the contexts that several commands carry
//! ([`qpc`], [`cqc`], [`mkc`], [`ads`], [`rmpc`], [`vport`]) in files of their own.
//! Must not know: who sends a command, or what executing it does.
//!
//! Each command's module has an `In` and an `Out` with public fields, `emit`, `parse` and `check`. Queues and doorbell
//! records lie in UMEMs, so no mailbox has a list of page addresses behind it.

pub mod ads;
pub mod alloc_pd;
pub mod alloc_q_counter;
pub mod alloc_transport_domain;
pub mod alloc_uar;
pub mod cqc;
pub mod create_cq;
pub mod create_mkey;
pub mod create_qp;
pub mod create_rmp;
pub mod dealloc_pd;
pub mod dealloc_q_counter;
pub mod dealloc_transport_domain;
pub mod dealloc_uar;
pub mod destroy_cq;
pub mod destroy_mkey;
pub mod destroy_qp;
pub mod destroy_rmp;
pub mod hca_cap;
pub mod header;
pub mod init2init_qp;
pub mod init2rtr_qp;
pub mod mkc;
pub mod modify_rmp;
pub mod qp_2err;
pub mod qp_2rst;
pub mod qpc;
pub mod query_cq;
pub mod query_hca_cap;
pub mod query_hca_vport_context;
pub mod query_hca_vport_gid;
pub mod query_hca_vport_pkey;
pub mod query_nic_vport_context;
pub mod query_q_counter;
pub mod query_qp;
pub mod query_rmp;
pub mod query_roce_address;
pub mod query_special_contexts;
pub mod query_vport_state;
pub mod rmpc;
pub mod roce_address;
pub mod rst2init_qp;
pub mod rtr2rts_qp;
pub mod rts2rts_qp;
pub mod set_roce_address;
pub mod sqerr2rts_qp;
mod status;
pub mod vport;

pub use crate::layout::Error;
pub use status::Status;

/// A command: what code that executes any of them needs to know.
pub trait Command: Copy {
    /// The command's name in the PRM.
    const NAME: &'static str;
    /// Its opcode.
    const OPCODE: u16;
    /// Its answer.
    type Out: Copy;
    /// Storage for the input mailbox.
    type InBytes: AsRef<[u8]> + AsMut<[u8]>;
    /// Storage for the output mailbox.
    type OutBytes: AsRef<[u8]> + AsMut<[u8]>;

    /// The input mailbox; an error if a value does not fit its field.
    fn encode(&self) -> Result<Self::InBytes, Error>;
    /// An output mailbox to be filled in.
    fn reply() -> Self::OutBytes;
    /// Reads the output mailbox of a command that succeeded. Of one that was refused only the header means anything:
    /// look at [`header::Reply`] first.
    fn decode(reply: &[u8]) -> Result<Self::Out, Error>;
}

/// Makes a command of an `In` and an `Out`.
macro_rules! command {
    ($in:ident, $out:ident, $name:literal) => {
        impl $crate::prm::Command for $in {
            const NAME: &'static str = $name;
            const OPCODE: u16 = $in::OPCODE;
            type Out = $out;
            type InBytes = [u8; $in::LEN];
            type OutBytes = [u8; $out::LEN];

            fn encode(&self) -> Result<Self::InBytes, $crate::prm::Error> {
                self.check()?;
                Ok(self.emit())
            }

            fn reply() -> Self::OutBytes {
                [0; $out::LEN]
            }

            fn decode(reply: &[u8]) -> Result<$out, $crate::prm::Error> {
                $out::parse(reply)
            }
        }
    };
}
pub(crate) use command;
