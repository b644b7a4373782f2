//! QUERY_HCA_CAP: reads a set of capabilities.
//!
//! `mlx5_ifc_query_hca_cap_in_bits`, `mlx5_ifc_query_hca_cap_out_bits`. The answer ends in a union of 4096 bytes: which set
//! it holds is what `op_mod` asked for, so each set has an `Out` of its own ([`crate::prm::hca_cap`]).

use crate::layout::{Error, open_enum, structure};
use crate::prm::hca_cap::{AtomicCaps, GeneralCaps, GeneralCaps2, RoceCaps};
use crate::prm::{Command, Status};

open_enum! {
    /// Which set of capabilities (`enum mlx5_cap_type` of Linux's `mlx5/device.h`).
    pub enum CapSet: u16 {
        /// [`GeneralCaps`]
        General = 0 as "MLX5_CAP_GENERAL",
        /// [`AtomicCaps`]
        Atomic = 3 as "MLX5_CAP_ATOMIC",
        /// [`RoceCaps`]
        Roce = 4 as "MLX5_CAP_ROCE",
        /// [`GeneralCaps2`]
        General2 = 0x20 as "MLX5_CAP_GENERAL_2",
    }
}

impl CapSet {
    /// `op_mod` that asks for the values in effect; with bit 0 clear it would ask for the largest that could be set.
    pub const fn op_mod_current(self) -> u16 {
        (self.code() << 1) | 1
    }

    /// The set that an `op_mod` asks for, and whether for the values in effect.
    pub const fn from_op_mod(op_mod: u16) -> (Self, bool) {
        (Self::from_code(op_mod >> 1), op_mod & 1 != 0)
    }
}

structure! {
    /// Reads a set of capabilities of this function. Which one is in the header's `op_mod`, which [`Query`] sets.
    pub struct In: Mlx5Ifc "query_hca_cap_in", 0x80 bits, opcode 0x100 {
        /// True: the capabilities of another function are asked for.
        other_function: bool => 0x40, 1;
        /// The other function.
        function_id: u16 => 0x50, 16;
    }
}

/// Asks for one set of capabilities: `Query::<GeneralCaps>::new()`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Query<C>(core::marker::PhantomData<C>);

impl<C: Capabilities> Query<C> {
    /// The values in effect of the set `C`.
    pub const fn new() -> Self {
        Self(core::marker::PhantomData)
    }
}

impl<C: Capabilities> Default for Query<C> {
    fn default() -> Self {
        Self::new()
    }
}

/// A set of capabilities.
pub trait Capabilities: Copy {
    /// Which one.
    const SET: CapSet;
    /// Reads the set.
    fn parse_set(bytes: &[u8]) -> Result<Self, Error>;
}

macro_rules! capabilities {
    ($($ty:ident: $set:ident),*) => {$(
        impl Capabilities for $ty {
            const SET: CapSet = CapSet::$set;
            fn parse_set(bytes: &[u8]) -> Result<Self, Error> {
                Self::parse(bytes)
            }
        }
    )*};
}
capabilities!(GeneralCaps: General, AtomicCaps: Atomic, RoceCaps: Roce, GeneralCaps2: General2);

/// Bytes of the answer: its header, and the union.
pub const OUT_LEN: usize = CAPABILITY_OFFSET + 4096;
/// Where the set begins in the answer (`query_hca_cap_out.capability`).
pub const CAPABILITY_OFFSET: usize = 16;

structure! {
    /// The answer's header; the set of capabilities follows at [`CAPABILITY_OFFSET`].
    pub struct Out: Mlx5Ifc "query_hca_cap_out", 0x80 bits {
        /// How the command ended.
        status: Status => 0x00, 8;
        /// Which check of the firmware failed.
        syndrome: u32 => 0x20, 32;
    }
}

impl<C: Capabilities> Command for Query<C> {
    const NAME: &'static str = "QUERY_HCA_CAP";
    const OPCODE: u16 = In::OPCODE;
    type Out = C;
    type InBytes = [u8; In::LEN];
    type OutBytes = [u8; OUT_LEN];

    fn encode(&self) -> Result<Self::InBytes, Error> {
        let mut bytes = In::default().emit();
        crate::layout::set_bits(&mut bytes, 0x30, 16, C::SET.op_mod_current() as u64);
        Ok(bytes)
    }

    fn reply() -> Self::OutBytes {
        [0; OUT_LEN]
    }

    fn decode(reply: &[u8]) -> Result<C, Error> {
        C::parse_set(reply.get(CAPABILITY_OFFSET..).unwrap_or_default())
    }
}
