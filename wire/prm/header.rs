//! What every mailbox begins with.
//!
//! Input: opcode, uid, op_mod. Output: status, syndrome (`mlx5_ifc` `mbox_in`, `mbox_out`).

use core::fmt;

use crate::layout::{Error, Field, get_bits, structure};
use crate::prm::Status;

/// Bytes of the header that all inputs and outputs have.
pub const LEN: usize = 8;

/// `uid`: the user context that the kernel's DevX writes into every command.
pub const UID: Field = Field {
    name: "uid",
    offset: 0x10,
    width: 16,
    cited: Some(
        "mlx5_ifc.h: general_obj_in_cmd_hdr, which the kernel's DevX sets on every command",
    ),
    nested: None,
};

/// `op_mod`: the command's variant.
pub const OP_MOD: Field = Field {
    name: "op_mod",
    offset: 0x30,
    width: 16,
    cited: None,
    nested: None,
};

/// `opcode`: the command.
pub const OPCODE: Field = Field {
    name: "opcode",
    offset: 0,
    width: 16,
    cited: None,
    nested: None,
};

/// The header of an input mailbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// The command.
    pub opcode: u16,
    /// The user context; zero unless the kernel's DevX wrote it.
    pub uid: u16,
    /// The command's variant.
    pub op_mod: u16,
}

impl Request {
    /// Reads the header of any input mailbox.
    pub fn parse(bytes: &[u8]) -> Result<Self, Error> {
        if bytes.len() < LEN {
            return Err(Error::Short {
                structure: "mbox_in",
                needed: LEN,
                found: bytes.len(),
            });
        }
        let read = |field: Field| get_bits(bytes, field.offset, field.width) as u16;
        Ok(Self {
            opcode: read(OPCODE),
            uid: read(UID),
            op_mod: read(OP_MOD),
        })
    }
}

structure! {
    /// The header of an output mailbox.
    pub struct Reply: Mlx5Ifc "mbox_out", 0x40 bits {
        /// How the command ended.
        status: Status => 0x00, 8 cited "rdma-core mlx5_ifc.h: mbox_out";
        /// Which check of the firmware failed.
        syndrome: u32 => 0x20, 32 cited "rdma-core mlx5_ifc.h: mbox_out";
    }
}

impl Reply {
    /// An error unless the command succeeded.
    pub fn into_result(self) -> Result<(), Refused> {
        match self.status {
            Status::Ok => Ok(()),
            status => Err(Refused {
                status,
                syndrome: self.syndrome,
            }),
        }
    }
}

/// The firmware refused a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused {
    /// How the command ended.
    pub status: Status,
    /// Which check of the firmware failed.
    pub syndrome: u32,
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "status {:#x} ({:?}), syndrome {:#x}",
            self.status.code(),
            self.status,
            self.syndrome
        )
    }
}

impl core::error::Error for Refused {}
