use warpverbs::{Access, Mr, Pd};

fn adopt(pd: &Pd, bytes: &mut [u8]) {
    let (addr, len) = (bytes.as_mut_ptr(), bytes.len() as u64);
    let _ = Mr::adopt_host(pd, addr, len, Access::LOCAL_WRITE);
}

fn main() {}
