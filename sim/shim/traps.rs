//! Conformance mode's doorbell pages: no memory is behind them, so every access is a fault, and every store is seen by itself.
//!
//! Knows: signals, and how an instruction is executed elsewhere. Must not know: what a store says.
//!
//! A store to such a page raises SIGSEGV. Its instruction is copied with another memory operand ([`crate::operand`]) and executed
//! by single step over private memory, twice: over zeros and over ones. What is neither in both runs was stored: so exact bytes
//! are known, whatever the instruction. Then the NIC is told, and the program goes on behind the instruction. The page stays
//! closed all the time, so threads that store at once are seen apart. A load finds ones, as from a device that is gone.
//!
//! Handlers take no lock and allocate nothing. Signals of others are handed to the handlers that the program had or sets
//! ([`sigaction`]), and the two signals are kept out of masks: a fault that is blocked ends a process.
//!
//! One of the files of this crate with `unsafe`.

use std::cell::UnsafeCell;
use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering};

use crate::operand::{self, Base, LONGEST, Redirected, Repeats};
use crate::sys::{self, PAGE};
use crate::world;

/// Pages that can be watched.
const PAGES: usize = 4096;
/// Threads that can be in a step at a time; more wait.
const STEPS: usize = 64;
/// Bytes between copies of instructions.
const STRIDE: usize = 32;
/// Longest store.
const WIDEST: usize = 64;
/// `TF`: the processor stops after each instruction.
const TRAP_FLAG: i64 = 1 << 8;

/// A watched page: its address, and NIC and number in the high and low half.
struct Page {
    addr: AtomicU64,
    what: AtomicU64,
}

static WATCHED: [Page; PAGES] = [const {
    Page {
        addr: AtomicU64::new(0),
        what: AtomicU64::new(0),
    }
}; PAGES];
/// No page beyond is watched.
static USED: AtomicUsize = AtomicUsize::new(0);

/// Watches the page at `addr`; false if there are too many.
pub(crate) fn watch(addr: u64, nic: usize, page: u32) -> bool {
    let what = (nic as u64) << 32 | u64::from(page);
    for (index, place) in WATCHED.iter().enumerate() {
        // A place that is being taken has an odd address, which no page has.
        let free = place
            .addr
            .compare_exchange(0, 1, Ordering::AcqRel, Ordering::Relaxed);
        if free.is_ok() {
            place.what.store(what, Ordering::Relaxed);
            place.addr.store(addr, Ordering::Release);
            USED.fetch_max(index + 1, Ordering::AcqRel);
            return true;
        }
    }
    false
}

/// Pages in this range are mapped to something else from now on.
pub(crate) fn forget(addr: u64, len: u64) {
    for place in WATCHED.iter().take(USED.load(Ordering::Acquire)) {
        let page = place.addr.load(Ordering::Acquire);
        if page & (PAGE - 1) == 0 && page != 0 && page.wrapping_sub(addr) < len {
            let _ = place
                .addr
                .compare_exchange(page, 0, Ordering::AcqRel, Ordering::Relaxed);
        }
    }
}

/// NIC and page of an address.
fn find(addr: u64) -> Option<(usize, u32)> {
    let page = addr & !(PAGE - 1);
    let place = WATCHED
        .iter()
        .take(USED.load(Ordering::Acquire))
        .find(|place| place.addr.load(Ordering::Acquire) == page)?;
    let what = place.what.load(Ordering::Relaxed);
    (page != 0).then_some(((what >> 32) as usize, what as u32))
}

/// Where copies of instructions lie, once they may.
static COPIES: AtomicPtr<u8> = AtomicPtr::new(std::ptr::null_mut());

/// A step under way.
#[repr(C, align(256))]
struct Step {
    /// What the copy stores to, with room in front for any alignment.
    memory: UnsafeCell<[u8; 256]>,
    taken: AtomicBool,
    saved: UnsafeCell<Saved>,
}

/// What the program's thread was doing.
struct Saved {
    registers: [i64; 23],
    mask: u64,
    addr: u64,
    nic: usize,
    page: u32,
    copy: Redirected,
    /// What the first run left.
    first: Option<[u8; WIDEST]>,
}

// SAFETY: `Sync` demands that the cells are not accessed by two threads at once: who has set `taken` alone accesses them.
unsafe impl Sync for Step {}

static RUNNING: [Step; STEPS] = [const {
    Step {
        memory: UnsafeCell::new([0; 256]),
        taken: AtomicBool::new(false),
        saved: UnsafeCell::new(Saved {
            registers: [0; 23],
            mask: 0,
            addr: 0,
            nic: 0,
            page: 0,
            copy: Redirected {
                code: [0; LONGEST + 1],
                base: Base::Rsi,
                shorter: 0,
                string: None,
            },
            first: None,
        }),
    }
}; STEPS];

impl Step {
    /// Address of the memory that stands for the doorbell page's `addr`: aligned alike.
    fn operand(&self, addr: u64) -> u64 {
        self.memory.get() as usize as u64 + 64 + addr % 64
    }
}

/// The signal handlers that the program has set, or had before this library's.
static PROGRAMS: [AtomicPtr<libc::sigaction>; 2] =
    [const { AtomicPtr::new(std::ptr::null_mut()) }; 2];

/// The place of a signal that this library handles.
fn place(signal: c_int) -> Option<&'static AtomicPtr<libc::sigaction>> {
    match signal {
        libc::SIGSEGV => PROGRAMS.first(),
        libc::SIGTRAP => PROGRAMS.get(1),
        _ => None,
    }
}

/// True once signals are handled here.
fn is_armed() -> bool {
    !COPIES.load(Ordering::Acquire).is_null()
}

unsafe extern "C" {
    /// glibc's `sigaction` by its other name: the first one is this library's.
    fn __sigaction(signal: c_int, new: *const libc::sigaction, old: *mut libc::sigaction) -> c_int;
}

/// Handles the signals from now on.
pub(crate) fn arm() -> Result<(), String> {
    if is_armed() {
        return Ok(());
    }
    let copies = sys::mmap(
        std::ptr::null_mut(),
        STEPS * STRIDE,
        libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC,
        libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
        -1,
        0,
    )
    .map_err(|error| format!("no memory for instructions (error {})", error.0))?;
    for (signal, handler) in [
        (libc::SIGSEGV, on_fault as *const () as usize),
        (libc::SIGTRAP, on_trap as *const () as usize),
    ] {
        // SAFETY: every field is a number or null, for which zero is a value.
        let mut new: libc::sigaction = unsafe { std::mem::zeroed() };
        let mut old = new;
        new.sa_sigaction = handler;
        new.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        // SAFETY: it fills a set, the two calls below read and fill structures; the handlers are of the form that
        // SA_SIGINFO demands and stay for the process's life.
        let failed = unsafe {
            libc::sigfillset(&raw mut new.sa_mask);
            __sigaction(signal, &raw const new, &raw mut old)
        };
        if failed != 0 {
            return Err(format!("signal {signal} cannot be handled"));
        }
        if let Some(place) = place(signal) {
            place.store(Box::leak(Box::new(old)), Ordering::Release);
        }
    }
    COPIES.store(copies.cast(), Ordering::Release);
    Ok(())
}

/// `sigaction`: what concerns the two signals is kept for when one comes that is not about a doorbell page.
pub(crate) fn sigaction(
    signal: c_int,
    new: *const libc::sigaction,
    old: *mut libc::sigaction,
) -> c_int {
    if !is_armed() {
        // SAFETY: the arguments are the caller's of `sigaction`.
        return unsafe { __sigaction(signal, new, old) };
    }
    // SAFETY: the caller of `sigaction` passes null or a structure.
    let mut wanted = unsafe { new.as_ref() }.copied();
    if let Some(wanted) = &mut wanted {
        // A fault in the program's handler must not be blocked.
        // SAFETY: both take signals off a set.
        unsafe {
            libc::sigdelset(&raw mut wanted.sa_mask, libc::SIGSEGV);
            libc::sigdelset(&raw mut wanted.sa_mask, libc::SIGTRAP);
        }
    }
    let Some(place) = place(signal) else {
        let wanted = wanted.as_ref().map_or(std::ptr::null(), |wanted| wanted);
        // SAFETY: null or a structure, and the caller's place for the old one.
        return unsafe { __sigaction(signal, wanted, old) };
    };
    let before = match wanted {
        // A handler may be looking at the one before: it is never freed.
        Some(wanted) => place.swap(Box::leak(Box::new(wanted)), Ordering::AcqRel),
        None => place.load(Ordering::Acquire),
    };
    if let (Some(old), Some(before)) = (
        // SAFETY: the caller passes null or a place for a structure, which nobody else uses meanwhile.
        unsafe { old.as_mut() },
        sys::leaked(before),
    ) {
        *old = *before;
    }
    0
}

/// `signal`, which is `sigaction` with the flag of BSD.
pub(crate) fn signal(number: c_int, handler: usize) -> usize {
    // SAFETY: every field is a number or null, for which zero is a value.
    let mut new: libc::sigaction = unsafe { std::mem::zeroed() };
    let mut old = new;
    new.sa_sigaction = handler;
    new.sa_flags = libc::SA_RESTART;
    if sigaction(number, &raw const new, &raw mut old) == 0 {
        old.sa_sigaction
    } else {
        libc::SIG_ERR
    }
}

/// `sigprocmask` of the calling thread. An error number, or 0.
pub(crate) fn set_mask(how: c_int, new: *const libc::sigset_t, old: *mut libc::sigset_t) -> c_int {
    /// Bytes of a set, as the kernel has it.
    const SET: usize = 8;
    /// Signals of the C library's own, 32 and 33.
    const OWN: u64 = 0b11 << 31;
    /// SIGTRAP and SIGSEGV.
    const KEPT: u64 = 1 << (libc::SIGTRAP - 1) | 1 << (libc::SIGSEGV - 1);
    let mut wanted;
    let mut given = std::ptr::null();
    if !new.is_null() {
        // SAFETY: the caller passes a set, which begins with the kernel's word.
        wanted = unsafe { new.cast::<u64>().read() };
        if how != libc::SIG_UNBLOCK {
            wanted &= !OWN;
            if is_armed() {
                wanted &= !KEPT;
            }
        }
        given = &raw const wanted;
    }
    // SAFETY: it reads 8 bytes, and writes 8 at the caller's set, which is longer.
    let failed = unsafe { libc::syscall(libc::SYS_rt_sigprocmask, how, given, old, SET) };
    if failed == 0 { 0 } else { sys::last_error().0 }
}

/// The registers and the signal mask in a handler's context. The kernel's context is shorter than the C library's: its set of
/// signals is one word.
struct Context(*mut libc::ucontext_t);

impl Context {
    fn register(&self, register: c_int) -> i64 {
        // SAFETY: a handler's context lives, and is the handler's alone, until the handler returns.
        unsafe { (*self.0).uc_mcontext.gregs[register as usize] }
    }

    fn set(&self, register: c_int, value: i64) {
        // SAFETY: as above.
        unsafe { (*self.0).uc_mcontext.gregs[register as usize] = value };
    }

    fn registers(&self) -> [i64; 23] {
        // SAFETY: as above.
        unsafe { (*self.0).uc_mcontext.gregs }
    }

    fn set_registers(&self, registers: &[i64; 23]) {
        // SAFETY: as above.
        unsafe { (*self.0).uc_mcontext.gregs = *registers };
    }

    fn mask(&self) -> u64 {
        // SAFETY: as above, of the kernel's one word.
        unsafe { (&raw const (*self.0).uc_sigmask).cast::<u64>().read() }
    }

    fn set_mask(&self, mask: u64) {
        // SAFETY: as above.
        unsafe { (&raw mut (*self.0).uc_sigmask).cast::<u64>().write(mask) };
    }
}

/// SIGSEGV.
extern "C" fn on_fault(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    let errno = sys::last_error();
    // SAFETY: the kernel passes a handler its information, and this signal has an address.
    let addr = unsafe { (*info).si_addr() } as usize as u64;
    let begun = begin(addr, &Context(context.cast()));
    if !begun {
        hand_on(signal, info, context);
    }
    sys::set_errno(errno);
}

/// SIGTRAP.
extern "C" fn on_trap(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    let errno = sys::last_error();
    if !go_on(&Context(context.cast())) {
        hand_on(signal, info, context);
    }
    sys::set_errno(errno);
}

/// Has the thread execute the copy of the instruction that faulted; false if the fault is no doorbell.
fn begin(addr: u64, context: &Context) -> bool {
    let (Some((nic, page)), Some(_)) = (find(addr), world::existing()) else {
        return false;
    };
    let ip = context.register(libc::REG_RIP) as u64;
    let mut code = [0; LONGEST];
    let len = sys::copy_code(ip, &mut code);
    let copy = operand::redirect(code.get(..len).unwrap_or_default());
    // Of a string the destination must be what faulted.
    let copy =
        copy.filter(|copy| copy.string.is_none() || context.register(libc::REG_RDI) as u64 == addr);
    let Some(copy) = copy else {
        sys::say(
            "libwarpverbs_sim: an instruction that cannot be followed stores to a doorbell page\n",
        );
        return false;
    };
    let (number, step) = loop {
        let free = RUNNING.iter().enumerate().find(|(_, step)| {
            step.taken
                .compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed)
                .is_ok()
        });
        match free {
            Some(free) => break free,
            // Those under way end by themselves.
            None => sys::give_way(),
        }
    };
    let saved = Saved {
        registers: context.registers(),
        mask: context.mask(),
        addr,
        nic,
        page,
        copy,
        first: None,
    };
    // SAFETY: `write` demands a place that nobody else accesses: this thread has taken the step, and what is there needs no
    // drop.
    unsafe { step.saved.get().write(saved) };
    let at = COPIES.load(Ordering::Acquire).wrapping_add(number * STRIDE);
    // SAFETY: the copies' memory has `STEPS * STRIDE` bytes and is writable; this place is the step's.
    unsafe { std::ptr::copy_nonoverlapping(copy.code.as_ptr(), at, copy.code.len()) };
    run(step, at as usize as i64, 0, context);
    true
}

/// Sends the thread to the copy, over memory full of `pattern`.
fn run(step: &Step, at: i64, pattern: u8, context: &Context) {
    /// What else may interrupt: faults of the instruction itself.
    const OPEN: u64 = 1 << (libc::SIGSEGV - 1)
        | 1 << (libc::SIGTRAP - 1)
        | 1 << (libc::SIGBUS - 1)
        | 1 << (libc::SIGILL - 1)
        | 1 << (libc::SIGFPE - 1);
    // SAFETY: this thread has taken the step: the cells are its own.
    let saved = unsafe {
        (*step.memory.get()).fill(pattern);
        &*step.saved.get()
    };
    context.set_registers(&saved.registers);
    let operand = step.operand(saved.addr) as i64;
    match saved.copy.base {
        Base::Rsi => context.set(libc::REG_RSI, operand),
        Base::Rdi => context.set(libc::REG_RDI, operand),
    }
    context.set(libc::REG_RIP, at);
    context.set(libc::REG_EFL, context.register(libc::REG_EFL) | TRAP_FLAG);
    // Nothing but the step happens to this thread.
    context.set_mask(!OPEN);
}

/// After a step: the second run, or the end; false if no step was under way.
fn go_on(context: &Context) -> bool {
    let copies = COPIES.load(Ordering::Acquire) as usize as u64;
    let ip = context.register(libc::REG_RIP) as u64;
    let distance = ip.wrapping_sub(copies);
    let number = (distance / STRIDE as u64) as usize;
    let Some(step) = RUNNING
        .get(number)
        .filter(|step| copies != 0 && step.taken.load(Ordering::Acquire))
    else {
        return false;
    };
    let at = copies + (number * STRIDE) as u64;
    // SAFETY: the thread that executes a step's copy has taken it, and is this one.
    let (memory, saved) = unsafe { (&*step.memory.get(), &mut *step.saved.get()) };
    let mut now = [0; WIDEST];
    let from = 64 + (saved.addr % 64) as usize;
    if let Some(bytes) = memory.get(from..from + WIDEST) {
        now.copy_from_slice(bytes);
    }
    let Some(first) = saved.first else {
        saved.first = Some(now);
        run(step, at as i64, 0xff, context);
        return true;
    };
    finish(
        saved,
        step.operand(saved.addr) as i64,
        (ip - at) as i64,
        context,
    );
    let (nic, page, addr) = (saved.nic, saved.page, saved.addr);
    // The memory is used again from here on.
    step.taken.store(false, Ordering::Release);
    deliver(nic, page, addr, &first, &now);
    true
}

/// Lets the thread go on behind the instruction, `length` bytes of whose copy were executed and stored to `operand`.
fn finish(saved: &Saved, operand: i64, length: i64, context: &Context) {
    let before = |register: c_int| saved.registers.get(register as usize).copied().unwrap_or(0);
    let mut next = before(libc::REG_RIP) + length + i64::from(saved.copy.shorter);
    match saved.copy.string {
        None => match saved.copy.base {
            Base::Rsi => context.set(libc::REG_RSI, before(libc::REG_RSI)),
            Base::Rdi => context.set(libc::REG_RDI, before(libc::REG_RDI)),
        },
        Some(repeats) => {
            // In the direction that DF says, by the size that the instruction has.
            let moved = context.register(libc::REG_RDI) - operand;
            context.set(libc::REG_RDI, before(libc::REG_RDI) + moved);
            if repeats == Repeats::Yes {
                let left = before(libc::REG_RCX).wrapping_sub(1);
                context.set(libc::REG_RCX, left);
                if left != 0 {
                    next = before(libc::REG_RIP);
                }
            }
        }
    }
    context.set(libc::REG_RIP, next);
    let flags = context.register(libc::REG_EFL) & !TRAP_FLAG;
    context.set(libc::REG_EFL, flags | before(libc::REG_EFL) & TRAP_FLAG);
    context.set_mask(saved.mask);
}

/// Tells the NIC: each run of bytes that were stored. Without any it was a load.
fn deliver(nic: usize, page: u32, addr: u64, zeros: &[u8; WIDEST], ones: &[u8; WIDEST]) {
    let offset = (addr % PAGE) as usize;
    // Beyond the page it is another's.
    let reach = WIDEST.min(PAGE as usize - offset);
    let stored = |at: usize| matches!((zeros.get(at), ones.get(at)), (Some(a), Some(b)) if (*a, *b) != (0, 0xff));
    let mut at = 0;
    let mut any = false;
    while at < reach {
        let len = (at..reach).take_while(|at| stored(*at)).count();
        if len > 0 {
            any = true;
            let bytes = ones.get(at..at + len).unwrap_or_default();
            send(nic, page, (offset + at) as u16, bytes);
        }
        at += len + 1;
    }
    if !any {
        send(nic, page, offset as u16, &[]);
    }
}

fn send(nic: usize, page: u32, offset: u16, bytes: &[u8]) {
    // The NIC's thread makes room.
    while let Some(world) = world::existing() {
        if world.store(nic, page, offset, bytes) {
            return;
        }
        sys::give_way();
    }
}

/// Does what the program wants done for a signal.
fn hand_on(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    let Some(place) = place(signal) else { return };
    // SAFETY: every field is a number or null, for which zero is a value: the default.
    let default: libc::sigaction = unsafe { std::mem::zeroed() };
    let wanted = sys::leaked(place.load(Ordering::Acquire)).unwrap_or(&default);
    // SAFETY: the kernel passes a handler its information.
    let raised = unsafe { (*info).si_code } > 0;
    let handler = wanted.sa_sigaction;
    if handler == libc::SIG_IGN && !raised {
        return;
    }
    if handler == libc::SIG_DFL || handler == libc::SIG_IGN {
        // A fault comes again at once, and ends the process; what was sent is sent again.
        // SAFETY: it reads a structure.
        unsafe { __sigaction(signal, &raw const default, std::ptr::null_mut()) };
        if !raised {
            // SAFETY: it takes a number.
            unsafe { libc::raise(signal) };
        }
        return;
    }
    if wanted.sa_flags & libc::SA_RESETHAND != 0 {
        place.store(std::ptr::null_mut(), Ordering::Release);
    }
    // SAFETY: a set begins with the kernel's word.
    let mut mask = unsafe { (&raw const wanted.sa_mask).cast::<u64>().read() };
    mask |= Context(context.cast()).mask();
    if wanted.sa_flags & libc::SA_NODEFER == 0 {
        mask |= 1 << (signal - 1);
    }
    // SAFETY: it reads 8 bytes. The mask that was returns with the handler.
    unsafe {
        let none = std::ptr::null_mut::<u64>();
        libc::syscall(
            libc::SYS_rt_sigprocmask,
            libc::SIG_SETMASK,
            &raw const mask,
            none,
            8usize,
        );
    }
    // SAFETY: `transmute` to a function demands that one of this form is there: the program named it for this signal, and its flags
    // say of which form it is. It is called as the kernel would call it.
    unsafe {
        if wanted.sa_flags & libc::SA_SIGINFO != 0 {
            let handler: extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) =
                std::mem::transmute(handler);
            handler(signal, info, context);
        } else {
            let handler: extern "C" fn(c_int) = std::mem::transmute(handler);
            handler(signal);
        }
    }
}
