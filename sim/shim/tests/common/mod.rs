//! A device's file, and requests on it.
#![allow(dead_code, reason = "each test uses what it needs")]

use std::ffi::{CStr, c_void};

use libc::{c_int, c_ulong};
// Its names come before libc's.
use warpverbs_sim as _;

const IOCTL: c_ulong = 0xc018_1b01;

pub(crate) fn open(path: &CStr) -> c_int {
    // SAFETY: it reads a string.
    unsafe { libc::open(path.as_ptr(), libc::O_RDWR | libc::O_CLOEXEC) }
}

pub(crate) fn close(fd: c_int) -> c_int {
    // SAFETY: it takes a number that is this test's.
    unsafe { libc::close(fd) }
}

pub(crate) fn errno() -> i32 {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Attr {
    pub(crate) id: u16,
    pub(crate) len: u16,
    pub(crate) flags: u16,
    pub(crate) data: u64,
}

pub(crate) fn attr(id: u16, len: u16, data: u64) -> Attr {
    Attr {
        id,
        len,
        flags: 1,
        data,
    }
}

/// An ioctl; its error, and its attributes afterwards.
pub(crate) fn ioctl(fd: c_int, object: u16, method: u16, attrs: &[Attr]) -> (i32, Vec<Attr>) {
    let mut bytes = Vec::new();
    bytes.extend((24 + attrs.len() as u16 * 16).to_ne_bytes());
    bytes.extend(object.to_ne_bytes());
    bytes.extend(method.to_ne_bytes());
    bytes.extend((attrs.len() as u16).to_ne_bytes());
    bytes.extend([0; 8]);
    bytes.extend(1u32.to_ne_bytes());
    bytes.extend([0; 4]);
    for attr in attrs {
        bytes.extend(attr.id.to_ne_bytes());
        bytes.extend(attr.len.to_ne_bytes());
        bytes.extend(attr.flags.to_ne_bytes());
        bytes.extend([0; 2]);
        bytes.extend(attr.data.to_ne_bytes());
    }
    // SAFETY: the argument is a header with its attributes; what they name is memory of the test, or none at all.
    let rc = unsafe { libc::ioctl(fd, IOCTL, bytes.as_mut_ptr()) };
    let error = if rc == 0 { 0 } else { errno() };
    let after = bytes[24..]
        .chunks_exact(16)
        .map(|bytes| Attr {
            id: u16::from_ne_bytes([bytes[0], bytes[1]]),
            len: u16::from_ne_bytes([bytes[2], bytes[3]]),
            flags: u16::from_ne_bytes([bytes[4], bytes[5]]),
            data: u64::from_ne_bytes(bytes[8..].try_into().unwrap()),
        })
        .collect();
    (error, after)
}

/// A device, opened and ready, with DevX.
pub(crate) fn device() -> c_int {
    let fd = open(c"/dev/infiniband/uverbs0");
    assert!(fd >= 0, "{}", errno());
    // total_num_bfregs, num_low_latency_bfregs, flags DEVX, comp_mask, cqe version 1, lib_caps: 4 KiB and dynamic UARs.
    let mut wanted = [0u8; 32];
    wanted[8] = 1;
    wanted[16] = 1;
    wanted[24] = 3;
    let answer = [0u8; 72];
    let (error, after) = ioctl(
        fd,
        0,
        3,
        &[
            attr(0x1000, 32, wanted.as_ptr() as u64),
            attr(0x1001, 72, answer.as_ptr() as u64),
        ],
    );
    assert_eq!((error, after[1].flags), (0, 3));
    // tot_bfregs 0, response_length, cqe_version 1.
    assert_eq!(
        (&answer[8..12], answer[40], answer[44]),
        (&[0; 4][..], 72, 1)
    );
    fd
}

/// A doorbell page.
pub(crate) struct Page {
    pub(crate) handle: u64,
    pub(crate) number: u32,
    /// Where `mmap` finds it.
    pub(crate) offset: u64,
}

/// Allocates a doorbell page of a kind: 0 for BlueFlame, 1 not cached.
pub(crate) fn alloc_page(fd: c_int, kind: u64) -> Page {
    let (mut offset, mut len, mut number) = (0u64, 0u32, 0u32);
    let (error, after) = ioctl(
        fd,
        0x1008,
        0x1000,
        &[
            attr(0x1000, 0, 0),
            attr(0x1001, 8, kind),
            attr(0x1002, 8, &raw mut offset as u64),
            attr(0x1003, 4, &raw mut len as u64),
            attr(0x1004, 4, &raw mut number as u64),
        ],
    );
    assert_eq!((error, len), (0, 4096));
    Page {
        handle: after[0].data,
        number,
        offset,
    }
}

/// Maps a part of a device's file.
pub(crate) fn map(fd: c_int, offset: u64, len: usize) -> *mut c_void {
    // SAFETY: a new mapping, which nothing else knows of.
    unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            len,
            libc::PROT_WRITE,
            libc::MAP_SHARED,
            fd,
            offset as i64,
        )
    }
}
