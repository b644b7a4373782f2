//! The library linked into a test binary: libc's names lead to it, and whatever a program passes is answered.

mod common;

use libc::c_int;
use proptest::prelude::*;

use common::{Attr, alloc_page, attr, close, device, errno, ioctl, map, open};

#[test]
fn only_devices_are_stood_in_for() {
    assert!(open(c"/dev/infiniband/uverbs1") < 0 && errno() == libc::ENOENT);
    assert!(open(c"/dev/infiniband/uverbs00") < 0);
    assert!(std::fs::read("/proc/self/stat").is_ok());
    let null = open(c"/dev/null");
    let (error, _) = ioctl(null, 0, 3, &[]);
    assert_eq!(error, libc::ENOTTY, "/dev/null itself is no device");
    assert_eq!(close(null), 0);
    // SAFETY: it takes numbers.
    let netlink = unsafe { libc::socket(libc::AF_NETLINK, libc::SOCK_RAW, 20) };
    assert!(netlink < 0 && errno() == libc::EPROTONOSUPPORT);
    let mut status = std::mem::MaybeUninit::<libc::stat>::zeroed();
    // SAFETY: it reads a string and fills a `struct stat`.
    let found = unsafe { libc::stat(c"/dev/infiniband/uverbs0".as_ptr(), status.as_mut_ptr()) };
    assert_eq!(found, 0);
}

#[test]
fn requests_are_checked_as_the_kernel_checks_them() {
    let fd = open(c"/dev/infiniband/uverbs0");
    // Before GET_CONTEXT nothing is to be had but the device.
    assert_eq!(ioctl(fd, 1, 0, &[attr(0, 0, 0)]).0, libc::EINVAL);
    // INVOKE_WRITE without buffers: the probe of libibverbs.
    assert_eq!(ioctl(fd, 0, 0, &[attr(2, 8, 1)]).0, libc::ENOSPC);
    // Neither input nor output is memory.
    assert_eq!(
        ioctl(fd, 0, 3, &[attr(0x1000, 32, 8)]).0,
        libc::EFAULT,
        "an input at address 8"
    );
    close(fd);
    let fd = device();
    assert_eq!(ioctl(fd, 0, 3, &[]).0, libc::EINVAL, "opened twice");
    assert_eq!(ioctl(fd, 99, 0, &[]).0, libc::EPROTONOSUPPORT);
    assert_eq!(ioctl(fd, 1, 0, &[]).0, libc::EINVAL, "attribute missing");
    assert_eq!(
        ioctl(fd, 1, 0, &[attr(0, 0, 0), attr(0, 0, 0)]).0,
        libc::EINVAL,
        "attribute twice"
    );
    assert_eq!(
        ioctl(fd, 1, 0, &[attr(0, 0, 0), attr(9, 0, 0)]).0,
        libc::EPROTONOSUPPORT,
        "unknown and mandatory"
    );
    assert_eq!(ioctl(fd, 1, 0, &[attr(0, 0, 77)]).0, libc::ENOENT);
    assert_eq!(
        ioctl(fd, 0, 6, &[attr(0, 8, 1), attr(1, 8, 9), attr(3, 32, 0)]).0,
        libc::ENODATA,
        "GID 9 is empty"
    );
    assert_eq!(
        ioctl(fd, 0, 6, &[attr(0, 8, 1), attr(1, 8, 0), attr(3, 32, 0)]).0,
        libc::EFAULT,
        "no memory for the answer"
    );
    // SAFETY: an ioctl of another kind, without an argument.
    let other = unsafe { libc::ioctl(fd, 0x1234) };
    assert!(other < 0 && errno() == libc::ENOTTY);
    // A channel of asynchronous events is a descriptor like others, and no device.
    let (error, after) = ioctl(fd, 16, 0, &[attr(0, 0, 0)]);
    assert_eq!(error, 0);
    let channel = after[0].data as c_int;
    let mut yes: c_int = 1;
    // SAFETY: it reads a number.
    let set = unsafe { libc::ioctl(channel, libc::FIONBIO, &raw mut yes) };
    assert_eq!(set, 0);
    assert_eq!(ioctl(channel, 0, 3, &[]).0, libc::ENOTTY);
    let mut event = [0u8; 16];
    // SAFETY: it writes into a buffer of that length.
    let read = unsafe { libc::read(channel, event.as_mut_ptr().cast(), event.len()) };
    assert!(read < 0 && errno() == libc::EAGAIN);
    assert_eq!(close(channel), 0);
    assert_eq!(close(fd), 0);
    assert!(close(fd) < 0 && errno() == libc::EBADF);
    assert_eq!(ioctl(fd, 0, 3, &[]).0, libc::EBADF);
}

#[test]
fn a_doorbell_page_is_mapped_by_its_offset_alone() {
    let fd = device();
    let page = alloc_page(fd, 1);
    let offset = page.offset;
    assert_eq!(offset, ((9 << 16) + u64::from(page.number)) << 12);
    let map = |offset, len| map(fd, offset, len);
    assert_eq!(map(offset + 4096, 4096), libc::MAP_FAILED);
    assert_eq!(map(offset, 8192), libc::MAP_FAILED);
    assert_eq!(map(0, 4096), libc::MAP_FAILED);
    let mapped = map(offset, 4096);
    assert_ne!(mapped, libc::MAP_FAILED);
    assert_eq!(
        ioctl(fd, 0x1008, 0x1001, &[attr(0x1000, 0, page.handle)]).0,
        0
    );
    assert_eq!(map(offset, 4096), libc::MAP_FAILED, "freed");
    close(fd);
}

/// Values that a program passes where an address belongs: none, one of no memory, and a buffer.
fn address(buffer: u64) -> impl Strategy<Value = u64> {
    prop_oneof![
        Just(0),
        Just(8),
        Just(u64::MAX - 7),
        Just(buffer),
        Just(buffer + 3),
        0..64u64,
        (0..u64::from(u16::MAX)).prop_map(|low| low << 48),
    ]
}

fn any_attr(buffer: u64) -> impl Strategy<Value = Attr> {
    (
        prop_oneof![0..16u16, 0x1000..0x1008u16, any::<u16>()],
        prop_oneof![Just(0u16), Just(4), Just(8), Just(16), Just(32), 0..300u16],
        prop_oneof![Just(0u16), Just(1), any::<u16>()],
        address(buffer),
    )
        .prop_map(|(id, len, flags, data)| Attr {
            id,
            len,
            flags,
            data,
        })
}

/// Numbers of objects and methods, those that exist above all.
fn any_method() -> impl Strategy<Value = (u16, u16)> {
    prop_oneof![
        (0..20u16, 0..8u16),
        (0x1000..0x100au16, 0x1000..0x1006u16),
        (any::<u16>(), any::<u16>()),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    /// No request ends the process, or leaves the device unusable.
    #[test]
    fn any_request_is_answered(
        seed in any::<[u8; 32]>(),
        (object, method) in any_method(),
        attrs in prop::collection::vec(any_attr(1), 0..12),
    ) {
        let mut buffer = vec![0u8; 1024];
        for (at, byte) in buffer.iter_mut().enumerate() {
            *byte = seed[at % 32];
        }
        let base = buffer.as_mut_ptr() as u64;
        // The strategy does not know where the buffer is: it says 1 for its start.
        let attrs: Vec<Attr> = attrs
            .into_iter()
            .map(|attr| match attr.data {
                1 => Attr { data: base, ..attr },
                4 => Attr { data: base + 3, ..attr },
                _ => attr,
            })
            .collect();
        let fd = device();
        // A PD at handle 0, so that something can be named.
        let pd = [0u8; 8];
        let (error, _) = ioctl(fd, 0, 0, &[
            attr(0, 8, pd.as_ptr() as u64),
            attr(1, 4, base),
            attr(2, 8, 3),
        ]);
        prop_assert_eq!(error, 0);
        let _ = ioctl(fd, object, method, &attrs);
        let mut gids = [0u8; 32];
        let (error, _) = ioctl(fd, 0, 6, &[
            attr(0, 8, 1),
            attr(1, 8, 3),
            attr(3, 32, gids.as_mut_ptr() as u64),
        ]);
        prop_assert!(error == 0 || error == libc::EIO, "{}", error);
        close(fd);
    }
}
