//! The bus's own memory, of which there is none: the NICs reach the process's memory through windows.

use warpverbs_sim_bus::{Access, Agent, Fault, FaultKind, FenceKind, Memory, RmwOp, Scope, Space};

/// No memory.
pub(crate) struct NoMemory;

fn none<T>(addr: u64, len: u64) -> Result<T, Fault> {
    let detail = "there is no GPU on this bus";
    Err(Fault::new(FaultKind::Unmapped, addr, len, detail))
}

impl Memory for NoMemory {
    fn alloc(&mut self, _: Space, len: u64, _: u64, _: &str) -> Result<u64, Fault> {
        none(0, len)
    }
    fn free(&mut self, addr: u64) -> Result<(), Fault> {
        none(addr, 0)
    }
    fn load(&mut self, _: Access, addr: u64, size: u32) -> Result<u64, Fault> {
        none(addr, size.into())
    }
    fn store(&mut self, _: Access, addr: u64, size: u32, _: u64) -> Result<(), Fault> {
        none(addr, size.into())
    }
    fn rmw(
        &mut self,
        _: Access,
        addr: u64,
        size: u32,
        _: RmwOp,
        _: u64,
        _: u64,
    ) -> Result<u64, Fault> {
        none(addr, size.into())
    }
    fn fence(&mut self, _: Agent, _: FenceKind, _: Scope) {}
    fn read(&mut self, _: Access, addr: u64, bytes: &mut [u8]) -> Result<(), Fault> {
        none(addr, bytes.len() as u64)
    }
    fn write(&mut self, _: Access, addr: u64, bytes: &[u8]) -> Result<(), Fault> {
        none(addr, bytes.len() as u64)
    }
    fn describe(&self, _: u64) -> String {
        String::new()
    }
}
