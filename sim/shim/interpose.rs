//! The names of libc that this library stands in for, and what happens when it is loaded.
//!
//! Knows: which calls concern a simulated device, and passes all others on.
//! Must not know: what an ioctl says.
//!
//! One of the files of this crate with `unsafe`: names that the dynamic linker finds before libc's. `open` and `ioctl` are
//! variadic in C; on x86-64 and AArch64 Linux a caller passes integer arguments of a variadic call as those of any other.

use std::ffi::{CString, c_char, c_int, c_ulong, c_void};
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::sync::Mutex;

use crate::abi::{mlx5, verbs};
use crate::context::{Context, Object};
use crate::errno::{Errno, Result};
#[cfg(all(target_arch = "x86_64", target_env = "gnu"))]
use crate::traps;
use crate::{counters, dispatch, fds, sys, sysfs, world};

/// Files of devices: this, and a number.
const DEVICE: &[u8] = b"/dev/infiniband/uverbs";
/// Stands for them.
const STAND_IN: &std::ffi::CStr = c"/dev/null";
/// `NETLINK_RDMA`
const NETLINK_RDMA: c_int = 20;
/// Where to put files for the time of the process.
const FOLDER: &str = "WARPVERBS_SIM_FOLDER";

/// The number of the NIC whose file a path names.
fn device_of(path: *const c_char) -> Option<usize> {
    let path = sys::short_path(path, DEVICE.len() + 4)?;
    let number = std::str::from_utf8(path.strip_prefix(DEVICE)?).ok()?;
    let nic = number.parse::<usize>().ok()?;
    (nic < world::wanted_nics() && nic.to_string() == number).then_some(nic)
}

fn open_device(nic: usize, flags: c_int) -> Result<c_int> {
    let world = world::current()?;
    world.ready(nic)?;
    let fd = sys::open(STAND_IN.as_ptr(), flags, 0)?;
    let mut state = world.state();
    state.uids = state.uids.wrapping_add(1).max(1);
    let uid = state.uids;
    if !fds::watch(fd) {
        drop(state);
        sys::close(fd)?;
        return Err(Errno(libc::EMFILE));
    }
    state.contexts.insert(fd, Context::new(nic, uid));
    Ok(fd)
}

fn close_watched(fd: c_int) {
    if !fds::forget(fd) {
        return;
    }
    if let Some(world) = world::existing() {
        let mut state = world.state();
        if state.contexts.contains_key(&fd) {
            world.close_context(&mut state, fd);
        } else {
            world.close_channel(&mut state, fd);
        }
    }
}

/// A mapping of a doorbell page that the program has allocated.
fn map_doorbells(
    addr: *mut c_void,
    len: usize,
    protection: c_int,
    flags: c_int,
    fd: c_int,
    offset: i64,
) -> Result<*mut c_void> {
    let Some(world) = world::existing() else {
        return Err(Errno::BADF);
    };
    let state = world.state();
    let Some(context) = state.contexts.get(&fd) else {
        drop(state);
        return sys::mmap(addr, len, protection, flags, fd, offset);
    };
    let number = u64::try_from(offset).map_err(|_| Errno::INVAL)? / sys::PAGE;
    let (command, page) = (number >> 16, (number & 0xffff) as u32);
    let allocated =
        |object: &Object| matches!(object, Object::Uar { page: other } if *other == page);
    if command != mlx5::MMAP_UAR
        || len as u64 != sys::PAGE
        || !context.objects.values().any(allocated)
    {
        return Err(Errno::INVAL);
    }
    #[cfg(all(target_arch = "x86_64", target_env = "gnu"))]
    if world.traps_doorbells(context.nic) {
        // Nothing is behind it: every access is a fault.
        let flags = flags & libc::MAP_FIXED | libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let addr = sys::mmap(addr, len, libc::PROT_NONE, flags, -1, 0)?;
        let at = addr as usize as u64;
        if !traps::watch(at, context.nic, page) {
            sys::unmap(at, sys::PAGE);
            return Err(Errno::NOMEM);
        }
        return Ok(addr);
    }
    let file = world.doorbells(context.nic)?;
    let place = (u64::from(page) * sys::PAGE) as i64;
    let mapped = sys::mmap(addr, len, protection, flags, file, place)?;
    world.mapped_at(context.nic, page, mapped as usize as u64);
    Ok(mapped)
}

fn answer<T>(result: Result<T>, failed: T) -> T {
    match result {
        Ok(value) => value,
        Err(error) => {
            sys::set_errno(error);
            failed
        }
    }
}

fn open_any(path: *const c_char, flags: c_int, mode: u32) -> c_int {
    // This library writes them.
    if flags & libc::O_ACCMODE == libc::O_RDONLY {
        refresh_counters(path);
    }
    let result = match device_of(path) {
        Some(nic) => open_device(nic, flags),
        None => sys::open(path, flags, mode),
    };
    answer(result, -1)
}

/// Writes counters again before one is read.
fn refresh_counters(path: *const c_char) {
    /// Longer than paths of the tree are.
    const LONG: usize = 512;
    let is_counter = |path: &[u8]| path.windows(13).any(|part| part == b"/hw_counters/");
    if world::existing().is_none() {
        return;
    }
    if let Some(path) = sys::short_path(path, LONG)
        && is_counter(&path)
        && let Some(root) = tree()
        && path.starts_with(root.as_os_str().as_encoded_bytes())
    {
        counters::refresh(&root);
    }
}

fn stat_any(path: *const c_char, buffer: *mut libc::stat) -> c_int {
    let result = match device_of(path) {
        Some(_) => sys::stat(STAND_IN.as_ptr(), buffer),
        None => sys::stat(path, buffer),
    };
    answer(result.map(|()| 0), -1)
}

fn mmap_any(
    addr: *mut c_void,
    len: usize,
    protection: c_int,
    flags: c_int,
    fd: c_int,
    offset: i64,
) -> *mut c_void {
    #[cfg(all(target_arch = "x86_64", target_env = "gnu"))]
    if flags & libc::MAP_FIXED != 0 {
        traps::forget(addr as usize as u64, len as u64);
    }
    let result = if fds::is_watched(fd) && flags & libc::MAP_ANONYMOUS == 0 {
        map_doorbells(addr, len, protection, flags, fd, offset)
    } else {
        sys::mmap(addr, len, protection, flags, fd, offset)
    };
    answer(result, libc::MAP_FAILED)
}

/// `open` of libc.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn open(path: *const c_char, flags: c_int, mode: u32) -> c_int {
    open_any(path, flags, mode)
}

/// `open64` of libc.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn open64(path: *const c_char, flags: c_int, mode: u32) -> c_int {
    open_any(path, flags | libc::O_LARGEFILE, mode)
}

/// `stat` of libc.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn stat(path: *const c_char, buffer: *mut libc::stat) -> c_int {
    stat_any(path, buffer)
}

/// `stat64` of libc.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn stat64(path: *const c_char, buffer: *mut libc::stat) -> c_int {
    stat_any(path, buffer)
}

/// `stat` of programs that were built with glibc before 2.33.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn __xstat(
    _version: c_int,
    path: *const c_char,
    buffer: *mut libc::stat,
) -> c_int {
    stat_any(path, buffer)
}

/// `close` of libc.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn close(fd: c_int) -> c_int {
    if fds::is_watched(fd) {
        close_watched(fd);
    }
    answer(sys::close(fd).map(|()| 0), -1)
}

/// `socket` of libc.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    // Without it libibverbs finds devices in sysfs.
    let result = if domain == libc::AF_NETLINK && protocol == NETLINK_RDMA {
        Err(Errno::PROTONOSUPPORT)
    } else {
        sys::socket(domain, kind, protocol)
    };
    answer(result, -1)
}

/// `ioctl` of libc.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn ioctl(fd: c_int, request: c_ulong, argument: *mut c_void) -> c_int {
    let argument = argument as usize as u64;
    let result = match world::existing() {
        // Others concern the file that stands in, or a channel's socket.
        Some(world) if fds::is_watched(fd) && request as u32 == verbs::IOCTL => {
            dispatch::ioctl(world, fd, argument).map(|()| 0)
        }
        _ => sys::ioctl(fd, request, argument),
    };
    answer(result, -1)
}

/// `mmap` of libc.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn mmap(
    addr: *mut c_void,
    len: usize,
    protection: c_int,
    flags: c_int,
    fd: c_int,
    offset: i64,
) -> *mut c_void {
    mmap_any(addr, len, protection, flags, fd, offset)
}

/// `mmap64` of libc.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn mmap64(
    addr: *mut c_void,
    len: usize,
    protection: c_int,
    flags: c_int,
    fd: c_int,
    offset: i64,
) -> *mut c_void {
    mmap_any(addr, len, protection, flags, fd, offset)
}

/// What conformance mode needs to know: who handles signals, and what is unmapped.
#[cfg(all(target_arch = "x86_64", target_env = "gnu"))]
mod signals {
    use super::*;

    /// `munmap` of libc.
    #[unsafe(no_mangle)]
    pub(crate) extern "C" fn munmap(addr: *mut c_void, len: usize) -> c_int {
        let at = addr as usize as u64;
        traps::forget(at, len as u64);
        answer(sys::munmap(at, len as u64).map(|()| 0), -1)
    }

    /// `sigaction` of libc.
    #[unsafe(no_mangle)]
    pub(crate) extern "C" fn sigaction(
        signal: c_int,
        new: *const libc::sigaction,
        old: *mut libc::sigaction,
    ) -> c_int {
        traps::sigaction(signal, new, old)
    }

    /// `signal` of libc: BSD's.
    #[unsafe(no_mangle)]
    pub(crate) extern "C" fn signal(number: c_int, handler: usize) -> usize {
        traps::signal(number, handler)
    }

    /// `sigprocmask` of libc.
    #[unsafe(no_mangle)]
    pub(crate) extern "C" fn sigprocmask(
        how: c_int,
        new: *const libc::sigset_t,
        old: *mut libc::sigset_t,
    ) -> c_int {
        match traps::set_mask(how, new, old) {
            0 => 0,
            error => answer(Err(Errno(error)), -1),
        }
    }

    /// `pthread_sigmask` of libc.
    #[unsafe(no_mangle)]
    pub(crate) extern "C" fn pthread_sigmask(
        how: c_int,
        new: *const libc::sigset_t,
        old: *mut libc::sigset_t,
    ) -> c_int {
        traps::set_mask(how, new, old)
    }
}

/// The tree that this process has written, and the process: a fork's child removes nothing.
static TREE: Mutex<Option<(u32, PathBuf)>> = Mutex::new(None);

/// The root of the tree, if this process has written one.
pub(crate) fn tree() -> Option<PathBuf> {
    let tree = TREE.lock().ok()?;
    let (process, root) = tree.as_ref()?;
    (*process == sys::process()).then(|| root.clone())
}

/// Runs when the library is loaded, before `main` and before libibverbs looks for devices.
extern "C" fn load() {
    if std::env::var_os("SYSFS_PATH").is_none() {
        let parent = std::env::var_os(FOLDER).map_or_else(std::env::temp_dir, PathBuf::from);
        match sysfs::write(&parent, world::wanted_nics()) {
            Ok(root) => {
                if let Ok(value) = CString::new(root.clone().into_os_string().into_vec()) {
                    sys::set_variable(c"SYSFS_PATH", &value);
                }
                if let Ok(mut tree) = TREE.lock() {
                    *tree = Some((sys::process(), root));
                }
            }
            Err(error) => {
                let parent = parent.display();
                eprintln!("libwarpverbs_sim: no simulated NIC: cannot write to {parent}: {error}");
            }
        }
    }
    sys::at_exit(unload);
}

extern "C" fn unload() {
    if let Some(world) = world::existing() {
        world.leave();
    }
    let tree = TREE.lock().ok().and_then(|mut tree| tree.take());
    if let Some((process, root)) = tree
        && process == sys::process()
    {
        let _ = std::fs::remove_dir_all(root);
    }
}

#[used]
#[unsafe(link_section = ".init_array")]
static LOAD: extern "C" fn() = load;
