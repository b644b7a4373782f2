//! System calls, made directly: the names of libc that this library stands in for would lead back to it.
//!
//! Knows: the calls, and memory by address. Must not know: what they are for.
//!
//! One of the files of this crate with `unsafe`.

use std::ffi::CStr;
use std::sync::atomic::AtomicU64;

use crate::errno::{Errno, Result};

/// Bytes of a page of the system, and of a doorbell page.
pub(crate) const PAGE: u64 = 4096;

fn checked(result: libc::c_long) -> Result<i64> {
    if result >= 0 {
        return Ok(result);
    }
    Err(last_error())
}

/// This thread's error number.
pub(crate) fn last_error() -> Errno {
    // SAFETY: `__errno_location` gives this thread's error number, which is always there.
    Errno(unsafe { *libc::__errno_location() })
}

/// Sets this thread's error number.
pub(crate) fn set_errno(error: Errno) {
    // SAFETY: as in `last_error`.
    unsafe { *libc::__errno_location() = error.0 };
}

/// Opens a file. `path` is the caller's of `open`.
pub(crate) fn open(path: *const libc::c_char, flags: i32, mode: u32) -> Result<i32> {
    // SAFETY: `openat` reads the path, and answers EFAULT where there is none.
    checked(unsafe { libc::syscall(libc::SYS_openat, libc::AT_FDCWD, path, flags, mode) })
        .map(|fd| fd as i32)
}

/// `stat`, into the caller's `buffer`.
pub(crate) fn stat(path: *const libc::c_char, buffer: *mut libc::stat) -> Result<()> {
    // SAFETY: `newfstatat` reads the path and fills a `struct stat`, and answers EFAULT where there is none.
    checked(unsafe { libc::syscall(libc::SYS_newfstatat, libc::AT_FDCWD, path, buffer, 0) })
        .map(drop)
}

/// Closes a descriptor.
pub(crate) fn close(fd: i32) -> Result<()> {
    // SAFETY: closing takes a number.
    checked(unsafe { libc::syscall(libc::SYS_close, fd) }).map(drop)
}

/// Makes a socket.
pub(crate) fn socket(domain: i32, kind: i32, protocol: i32) -> Result<i32> {
    // SAFETY: it takes numbers.
    checked(unsafe { libc::syscall(libc::SYS_socket, domain, kind, protocol) }).map(|fd| fd as i32)
}

/// `ioctl` of a descriptor that is not this library's.
pub(crate) fn ioctl(fd: i32, request: libc::c_ulong, argument: u64) -> Result<i32> {
    // SAFETY: the kernel checks the argument as the request demands.
    checked(unsafe { libc::syscall(libc::SYS_ioctl, fd, request, argument) })
        .map(|value| value as i32)
}

/// Maps memory, as the caller of `mmap` asks.
pub(crate) fn mmap(
    addr: *mut libc::c_void,
    len: usize,
    protection: i32,
    flags: i32,
    fd: i32,
    offset: i64,
) -> Result<*mut libc::c_void> {
    // SAFETY: the kernel checks all of it; what a fixed mapping replaces is the caller's, who asked for it.
    checked(unsafe { libc::syscall(libc::SYS_mmap, addr, len, protection, flags, fd, offset) })
        .map(|addr| addr as usize as *mut libc::c_void)
}

/// A pair of joined sockets that keep messages apart.
pub(crate) fn message_pair() -> Result<(i32, i32)> {
    let mut fds = [0i32; 2];
    // SAFETY: it fills an array of two numbers.
    let made = unsafe {
        libc::syscall(
            libc::SYS_socketpair,
            libc::AF_UNIX,
            libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC,
            0,
            fds.as_mut_ptr(),
        )
    };
    checked(made)?;
    Ok((fds[0], fds[1]))
}

/// Sends a message, without waiting.
pub(crate) fn send(fd: i32, message: &[u8]) -> Result<()> {
    let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
    // SAFETY: it reads the message, which is borrowed.
    checked(unsafe { libc::send(fd, message.as_ptr().cast(), message.len(), flags) } as i64)
        .map(drop)
}

/// Takes a message that has arrived; `None` if there is none, or no such socket.
pub(crate) fn receive(fd: i32) -> Option<Vec<u8>> {
    let mut message = vec![0; 8192];
    // SAFETY: it writes into the buffer, not beyond its length.
    let len = unsafe {
        libc::recv(
            fd,
            message.as_mut_ptr().cast(),
            message.len(),
            libc::MSG_DONTWAIT,
        )
    };
    let len = usize::try_from(len).ok().filter(|len| *len > 0)?;
    message.truncate(len);
    Some(message)
}

/// Adds one to an event descriptor.
pub(crate) fn signal(fd: i32) {
    let one = 1u64.to_ne_bytes();
    // A counter that is full is signalled already.
    // SAFETY: it reads 8 bytes, which are borrowed.
    let _ = unsafe { libc::write(fd, one.as_ptr().cast(), one.len()) };
}

/// Copies `len` bytes of this process at `addr`; EFAULT where there is no memory to read.
pub(crate) fn copy_in(addr: u64, len: usize) -> Result<Vec<u8>> {
    let mut bytes = vec![0; len];
    copy_within_process(addr, bytes.as_mut_ptr() as usize as u64, len)?;
    Ok(bytes)
}

/// Copies to memory of this process at `addr`; EFAULT where there is none to write.
pub(crate) fn copy_out(addr: u64, bytes: &[u8]) -> Result<()> {
    copy_within_process(bytes.as_ptr() as usize as u64, addr, bytes.len())
}

/// The kernel copies, so that an address without memory is an error and no fault. The destination is local in
/// both directions: tools that watch memory see it written.
fn copy_within_process(from: u64, to: u64, len: usize) -> Result<()> {
    if len == 0 {
        return Ok(());
    }
    let vector = |addr: u64| libc::iovec {
        iov_base: addr as usize as *mut libc::c_void,
        iov_len: len,
    };
    let (local, remote) = (vector(to), vector(from));
    // SAFETY: `process_vm_readv` reads the two vectors, and memory that they name, and answers EFAULT where there is
    // none. What is written is the caller's buffer, or memory that the program named for an answer.
    let copied = unsafe { libc::process_vm_readv(libc::getpid(), &local, 1, &remote, 1, 0) };
    match usize::try_from(copied) {
        Ok(copied) if copied == len => Ok(()),
        Ok(_) => Err(Errno::FAULT),
        Err(_) => match last_error() {
            Errno(libc::ENOSYS | libc::EPERM) => {
                // SAFETY: where the kernel refuses that service the addresses are taken as given: the program's own,
                // which a driver would also write to. They do not overlap: one is a buffer of this library.
                unsafe {
                    std::ptr::copy_nonoverlapping(
                        from as usize as *const u8,
                        to as usize as *mut u8,
                        len,
                    );
                }
                Ok(())
            }
            error => Err(error),
        },
    }
}

/// Copies instructions at `ip`, as far as there are any, and says how many bytes. The kernel copies, so nothing can fault.
pub(crate) fn copy_code(ip: u64, code: &mut [u8]) -> usize {
    let local = libc::iovec {
        iov_base: code.as_mut_ptr().cast(),
        iov_len: code.len(),
    };
    // In two parts, for what follows on another page may not be there.
    let first = (PAGE - ip % PAGE).min(code.len() as u64) as usize;
    let part = |addr: u64, len: usize| libc::iovec {
        iov_base: addr as usize as *mut libc::c_void,
        iov_len: len,
    };
    let remote = [part(ip, first), part(ip + first as u64, code.len() - first)];
    // SAFETY: `process_vm_readv` reads the vectors and memory that the second names, and writes to the borrowed buffer.
    let copied =
        unsafe { libc::process_vm_readv(libc::getpid(), &local, 1, remote.as_ptr(), 2, 0) };
    usize::try_from(copied).unwrap_or(0)
}

/// Says something on standard error, without a lock.
pub(crate) fn say(text: &str) {
    // SAFETY: it reads the text, which is borrowed.
    let _ = unsafe { libc::write(libc::STDERR_FILENO, text.as_ptr().cast(), text.len()) };
}

/// Lets others run.
pub(crate) fn give_way() {
    // SAFETY: it takes nothing.
    unsafe { libc::sched_yield() };
}

/// Makes pages resident, as pinning does. EFAULT if they are not all mapped, or may not be written though `write`.
pub(crate) fn populate(addr: u64, len: u64, write: bool) -> Result<()> {
    const POPULATE_READ: i32 = 22;
    const POPULATE_WRITE: i32 = 23;
    let first = addr & !(PAGE - 1);
    let end = addr
        .checked_add(len)
        .and_then(|end| end.checked_next_multiple_of(PAGE))
        .filter(|end| *end <= 1 << 47)
        .ok_or(Errno::FAULT)?;
    let advice = if write { POPULATE_WRITE } else { POPULATE_READ };
    // SAFETY: this advice touches pages and changes no contents; the kernel checks the range.
    let advised = checked(unsafe { libc::syscall(libc::SYS_madvise, first, end - first, advice) });
    match advised {
        // A kernel before 5.14: the first access will tell.
        Ok(_) | Err(Errno::INVAL) => Ok(()),
        Err(Errno(libc::EAGAIN)) => Err(Errno::NOMEM),
        Err(_) => Err(Errno::FAULT),
    }
}

/// A page as words.
pub(crate) type PageWords = [AtomicU64; PAGE as usize / 8];

/// Memory of a file without a name, mapped for the rest of the process's life.
pub(crate) struct SharedPages {
    fd: i32,
    words: &'static [AtomicU64],
}

impl SharedPages {
    /// `len` bytes, zero; they take room when they are touched.
    pub(crate) fn new(name: &CStr, len: usize) -> Result<Self> {
        // SAFETY: it reads the name.
        let made =
            unsafe { libc::syscall(libc::SYS_memfd_create, name.as_ptr(), libc::MFD_CLOEXEC) };
        let fd = checked(made)? as i32;
        // SAFETY: it takes numbers.
        checked(unsafe { libc::syscall(libc::SYS_ftruncate, fd, len as i64) })?;
        let flags = libc::MAP_SHARED | libc::MAP_NORESERVE;
        let addr = mmap(
            std::ptr::null_mut(),
            len,
            libc::PROT_READ | libc::PROT_WRITE,
            flags,
            fd,
            0,
        )?;
        // SAFETY: `from_raw_parts` demands
        // - memory that is valid for `'static`: it is mapped here and never unmapped, and the file never shrinks;
        // - alignment: a mapping begins at a page;
        // - initialised words: the file's bytes are zero, and every value is an `AtomicU64`;
        // - no mutation but through atomics: the program's mappings of these pages stand for device registers, and
        //   machine stores to them are single-copy atomic.
        let words = unsafe { std::slice::from_raw_parts(addr.cast::<AtomicU64>(), len / 8) };
        Ok(Self { fd, words })
    }

    /// The file, for further mappings.
    pub(crate) fn fd(&self) -> i32 {
        self.fd
    }

    /// The words of page `number`.
    pub(crate) fn page(&self, number: u32) -> Option<&'static PageWords> {
        let first = number as usize * 512;
        self.words.get(first..first + 512)?.try_into().ok()
    }
}

/// The string at `path`, if it is short enough to be of interest.
pub(crate) fn short_path(path: *const libc::c_char, longest: usize) -> Option<Vec<u8>> {
    if path.is_null() {
        return None;
    }
    // SAFETY: the caller of `open` or `stat` passes a string with a terminator; `strnlen` looks no further.
    let len = unsafe { libc::strnlen(path, longest + 1) };
    if len > longest {
        return None;
    }
    // SAFETY: `len` bytes before the terminator are the string's, and nobody writes to them during the call.
    Some(unsafe { std::slice::from_raw_parts(path.cast::<u8>(), len) }.to_vec())
}

/// Sets a variable of the environment. Only before `main`: nobody reads it meanwhile.
pub(crate) fn set_variable(name: &CStr, value: &CStr) {
    // SAFETY: both are strings; `setenv` copies them. Called before `main`, from the one thread there is.
    unsafe { libc::setenv(name.as_ptr(), value.as_ptr(), 1) };
}

/// Has `function` called when the process exits.
pub(crate) fn at_exit(function: extern "C" fn()) {
    // SAFETY: it registers a function that stays where it is: this library is not unloaded before exit.
    unsafe { libc::atexit(function) };
}

/// This process.
pub(crate) fn process() -> u32 {
    std::process::id()
}

/// Bytes of a memory file (memfd); EBADF or EINVAL if it is not one, as of a descriptor that is no dmabuf.
pub(crate) fn size_of_memory_file(fd: i32) -> Result<u64> {
    // SAFETY: it takes numbers.
    checked(unsafe { libc::syscall(libc::SYS_fcntl, fd, libc::F_GET_SEALS) })?;
    let mut status = std::mem::MaybeUninit::<libc::stat>::zeroed();
    // SAFETY: it fills a `struct stat`.
    checked(unsafe { libc::syscall(libc::SYS_fstat, fd, status.as_mut_ptr()) })?;
    // SAFETY: all of it is zero or filled, and every value of its fields is valid.
    let status = unsafe { status.assume_init() };
    u64::try_from(status.st_size).map_err(|_| Errno::INVAL)
}

/// Maps part of a file, shared.
pub(crate) fn map_shared(fd: i32, offset: u64, len: u64) -> Result<u64> {
    let offset = i64::try_from(offset).map_err(|_| Errno::INVAL)?;
    let len = usize::try_from(len).map_err(|_| Errno::INVAL)?;
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    mmap(
        std::ptr::null_mut(),
        len,
        protection,
        libc::MAP_SHARED,
        fd,
        offset,
    )
    .map(|addr| addr as usize as u64)
}

/// Takes a mapping of this library's back.
pub(crate) fn unmap(addr: u64, len: u64) {
    // The range was mapped by `map_shared` for its only user, who is done with it.
    let _ = munmap(addr, len);
}

/// Takes mappings back, as the caller of `munmap` asks.
pub(crate) fn munmap(addr: u64, len: u64) -> Result<()> {
    // SAFETY: what is mapped there is the caller's, who gives it up.
    checked(unsafe { libc::syscall(libc::SYS_munmap, addr, len) }).map(drop)
}

/// What a pointer points to that was made by `Box::leak`, or null.
pub(crate) fn leaked<T>(pointer: *mut T) -> Option<&'static T> {
    // SAFETY: `as_ref` demands a null pointer, or one to a value that lives, and is not mutated, for `'static`: a leaked
    // box's is never freed, and its owner gives out shared references alone.
    unsafe { pointer.as_ref() }
}
