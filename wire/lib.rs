//! Every byte layout that two parties of warpverbs share.
//!
//! Knows: WQEs, CQEs, EQEs, doorbells, PRM mailboxes, RoCE packets, capture files, and what the host exports to a kernel: one file a format.
//! Must not know: who writes or reads them. No allocation, and no dependency unless the feature
//! `fast-crc` asks for one: the device crate, the host crate and the simulated NIC all link it.
#![no_std]
#![deny(unsafe_code)]

pub mod abi;
pub mod cqe;
pub mod doorbell;
pub mod eqe;
pub mod fields;
pub mod layout;
pub mod pcap;
pub mod prm;
pub mod roce;
pub mod wqe;
