//! Functions that post.
//!
//! Knows: each operation's parameters. Must not know: modes.

use warpverbs_device::{
    CqForm, Doorbell, Error, Length, Local, Remote, Sharing, Signal, Sq, Ticket,
    abi::{Descriptor, Outcome},
    group::Group,
    op::{
        CompareSwap, Dump, Either, Fenced, FetchAdd, InlineFrom, MaskedCompareSwap4,
        MaskedCompareSwap8, MaskedFetchAdd4, MaskedFetchAdd8, Nop, Outlined, Read, Send, SendImm,
        Then, Write, WriteImm, WriteInlineFrom,
    },
};

use crate::dispatch::{Action, dispatch, share};

const PUT: u32 = 0;
const PUT_IMM: u32 = 1;
const PUT_INLINE: u32 = 2;
const GET: u32 = 3;
const SEND: u32 = 4;
const SEND_IMM: u32 = 5;
const FETCH_ADD: u32 = 6;
const COMPARE_SWAP: u32 = 7;
const MASKED_FETCH_ADD_4: u32 = 8;
const MASKED_FETCH_ADD_8: u32 = 9;
const MASKED_COMPARE_SWAP_4: u32 = 10;
const MASKED_COMPARE_SWAP_8: u32 = 11;
const NOP: u32 = 12;
const DUMP: u32 = 13;
const FENCE: u32 = 14;
const PUT_SIGNAL: u32 = 15;
/// A request of which nothing is left.
const EMPTY: u32 = u32::MAX;

/// An operation, as numbers.
#[derive(Clone, Copy)]
struct Request {
    kind: u32,
    local: Local,
    remote: Remote,
    len: u64,
    values: [u64; 4],
    signal: Signal,
    signals: bool,
    ticket: *mut u64,
}

type Atomics = Either<
    Either<FetchAdd, CompareSwap>,
    Either<
        Either<MaskedFetchAdd4, MaskedFetchAdd8>,
        Either<MaskedCompareSwap4, MaskedCompareSwap8>,
    >,
>;
type Transfers = Either<Either<Write, WriteImm>, Either<Read, Either<Send, SendImm>>>;
type Controls = Either<Either<Nop, Dump>, Either<Fenced<Nop>, WriteInlineFrom>>;
type Any = Either<Transfers, Either<Atomics, Controls>>;

fn transfer(transfer: Transfers) -> Any {
    Either::Left(transfer)
}

fn atomic(atomic: Atomics) -> Any {
    Either::Right(Either::Left(atomic))
}

fn control(control: Controls) -> Any {
    Either::Right(Either::Right(control))
}

impl Request {
    /// The one WQE that it is.
    #[inline(always)]
    fn work(&self, length: impl Fn(u64) -> Result<Length, Error>) -> Result<Any, Error> {
        use Either::{Left, Right};
        let (local, remote, [a, b, c, d]) = (self.local, self.remote, self.values);
        let len = || length(self.len);
        Ok(match self.kind {
            PUT | PUT_SIGNAL => transfer(Left(Left(Write::new(local, remote, len()?)))),
            PUT_IMM => {
                let write = Write::new(local, remote, len()?);
                transfer(Left(Right(WriteImm::new(write, a as u32))))
            }
            GET => transfer(Right(Left(Read::new(local, remote, len()?)))),
            SEND => transfer(Right(Right(Left(Send::new(local, len()?))))),
            SEND_IMM => {
                let send = Send::new(local, len()?);
                transfer(Right(Right(Right(SendImm::new(send, a as u32)))))
            }
            FETCH_ADD => atomic(Left(Left(FetchAdd::new(local, remote, a)?))),
            COMPARE_SWAP => atomic(Left(Right(CompareSwap::new(local, remote, a, b)?))),
            MASKED_FETCH_ADD_4 => {
                let work = MaskedFetchAdd4::new(local, remote, a as u32, b as u32)?;
                atomic(Right(Left(Left(work))))
            }
            MASKED_FETCH_ADD_8 => atomic(Right(Left(Right(MaskedFetchAdd8::new(
                local, remote, a, b,
            )?)))),
            MASKED_COMPARE_SWAP_4 => {
                let work =
                    MaskedCompareSwap4::new(local, remote, a as u32, b as u32, c as u32, d as u32)?;
                atomic(Right(Right(Left(work))))
            }
            MASKED_COMPARE_SWAP_8 => {
                let work = MaskedCompareSwap8::new(local, remote, a, b, c, d)?;
                atomic(Right(Right(Right(work))))
            }
            DUMP => control(Left(Right(Dump::new(local, len()?)))),
            FENCE => control(Right(Left(Fenced::all(Nop)))),
            PUT_INLINE => {
                let len = u32::try_from(self.len).map_err(|_| Error::InvalidArgument)?;
                // SAFETY: the caller of `wv_dev_put_inline` promised it.
                let data = unsafe { InlineFrom::new(local.addr, len) }?;
                control(Right(Right(WriteInlineFrom::new(remote, data, None))))
            }
            _ => control(Left(Left(Nop))),
        })
    }

    /// True if the NIC writes local memory for it.
    const fn fetches(&self) -> bool {
        matches!(self.kind, GET) || self.kind >= FETCH_ADD && self.kind <= MASKED_COMPARE_SWAP_8
    }

    /// True if it may be any size, nothing included.
    const fn is_any_size(&self) -> bool {
        matches!(self.kind, PUT | GET | PUT_SIGNAL)
    }
}

/// A message, then what makes visible what it fetched, then a signal: each may be left out.
type Post = Then<Then<Option<Any>, Option<Fenced<Dump>>>, Option<FetchAdd>>;

impl Action for Request {
    #[inline(always)]
    fn run<S: Sharing, D: Doorbell, C: CqForm, G: Group>(
        &self,
        sq: &mut Sq<S, D, C>,
        group: G,
    ) -> Result<Outcome, Error> {
        let checked = check(self, sq.log_max_message(), sq.reads_need_dump());
        // All members stop if one's request cannot be.
        if group.scan(0, u32::from(checked.is_err())).1 != 0 {
            return Err(Error::InvalidArgument);
        }
        let mut request = *self;
        let (rank, members) = group.scan(1, 1);
        let mut last = Ticket::default();
        loop {
            let mut work = Then(Then(None, None), None);
            let left = next(
                &mut request,
                sq.log_max_message(),
                sq.reads_need_dump(),
                &mut work,
            );
            let ends = group.scan(0, u32::from(left)).1 == 0;
            if !(ends && rank + 1 == members) {
                // A signal is sent once, behind the last message of all.
                work.1 = None;
            }
            let ticket = sq.post_by(group, Outlined(&work))?;
            if ticket != Ticket::default() {
                last = ticket;
            }
            if ends {
                break;
            }
        }
        if !self.ticket.is_null() {
            // SAFETY: the caller's: a place for the ticket, or null.
            unsafe { self.ticket.write(last.index()) }
        }
        Ok(Outcome::Done)
    }
}

/// Whether the whole request can be.
#[inline(never)]
fn check(request: &Request, log_max: u32, dumps: bool) -> Result<(), Error> {
    let mut request = *request;
    if request.is_any_size() && request.len > 1 << log_max {
        request.len = 1 << log_max;
    }
    let mut work = Then(Then(None, None), None);
    make(&request, log_max, dumps, &mut work)
}

/// The next message of a request, which becomes what is left; true if something is.
#[inline(never)]
fn next(request: &mut Request, log_max: u32, dumps: bool, work: &mut Post) -> bool {
    let max = 1 << log_max;
    let whole = *request;
    let left = request.is_any_size() && whole.len > max;
    let now = Request {
        len: if left { max } else { whole.len },
        ..whole
    };
    // It was checked.
    let _ = make(&now, log_max, dumps, work);
    if left {
        request.local = whole.local.offset(max);
        request.remote = whole.remote.offset(max);
        request.len -= max;
    } else {
        // Other members may have messages left; this one has none.
        request.kind = EMPTY;
    }
    left
}

fn make(request: &Request, log_max: u32, dumps: bool, work: &mut Post) -> Result<(), Error> {
    let length = |bytes: u64| Length::of(bytes, log_max).ok_or(Error::InvalidArgument);
    let nothing = request.kind == EMPTY || request.is_any_size() && request.len == 0;
    *work = Then(Then(None, None), None);
    if !nothing {
        work.0.0 = Some(request.work(length)?);
        if dumps && request.fetches() {
            work.0.1 = Some(Fenced::reads(Dump::new(request.local, length(1)?)));
        }
    }
    if request.kind == PUT_SIGNAL || request.kind == EMPTY && request.signals {
        let Signal {
            remote,
            add,
            fetched,
        } = request.signal;
        work.1 = Some(FetchAdd::new(fetched, remote, add)?);
    }
    Ok(())
}

/// Every operation of one WQE and its kin. The other functions say which.
///
/// # Safety
///
/// As `Sq::open`'s; `ticket` is null or that of a live word.
#[inline(never)]
#[allow(clippy::too_many_arguments)]
unsafe extern "C" fn post(
    qp: u64,
    mode: u32,
    kind: u32,
    local: u64,
    lkey: u32,
    remote: u64,
    rkey: u32,
    len: u64,
    a: u64,
    b: u64,
    c: u64,
    d: u64,
    ticket: *mut u64,
) -> u32 {
    let request = Request {
        kind,
        local: Local { addr: local, lkey },
        remote: Remote { addr: remote, rkey },
        len,
        values: [a, b, c, d],
        signal: Signal {
            remote: Remote {
                addr: a,
                rkey: b as u32,
            },
            add: c,
            fetched: Local {
                addr: d,
                lkey: (b >> 32) as u32,
            },
        },
        signals: kind == PUT_SIGNAL,
        ticket,
    };
    // SAFETY: the caller's.
    unsafe { dispatch(qp, mode, &request) }
}

/// RDMA write of any size.
///
/// # Safety
///
/// As the header says.
#[unsafe(no_mangle)]
#[allow(clippy::too_many_arguments)]
pub unsafe extern "C" fn wv_dev_put(
    qp: u64,
    mode: u32,
    local: u64,
    lkey: u32,
    remote: u64,
    rkey: u32,
    len: u64,
    ticket: *mut u64,
) -> u32 {
    // SAFETY: the caller's.
    unsafe {
        post(
            qp, mode, PUT, local, lkey, remote, rkey, len, 0, 0, 0, 0, ticket,
        )
    }
}

/// RDMA write of one message with immediate data.
///
/// # Safety
///
/// As the header says.
#[unsafe(no_mangle)]
#[allow(clippy::too_many_arguments)]
pub unsafe extern "C" fn wv_dev_put_imm(
    qp: u64,
    mode: u32,
    local: u64,
    lkey: u32,
    remote: u64,
    rkey: u32,
    len: u64,
    immediate: u32,
    ticket: *mut u64,
) -> u32 {
    // SAFETY: the caller's.
    unsafe {
        post(
            qp,
            mode,
            PUT_IMM,
            local,
            lkey,
            remote,
            rkey,
            len,
            u64::from(immediate),
            0,
            0,
            0,
            ticket,
        )
    }
}

/// RDMA write of 1 to 972 bytes that travel in the WQE.
///
/// # Safety
///
/// As the header says.
#[unsafe(no_mangle)]
#[allow(clippy::too_many_arguments)]
pub unsafe extern "C" fn wv_dev_put_inline(
    qp: u64,
    mode: u32,
    data: *const u8,
    remote: u64,
    rkey: u32,
    len: u32,
    ticket: *mut u64,
) -> u32 {
    // SAFETY: the caller's.
    unsafe {
        post(
            qp,
            mode,
            PUT_INLINE,
            data as u64,
            0,
            remote,
            rkey,
            u64::from(len),
            0,
            0,
            0,
            0,
            ticket,
        )
    }
}

/// RDMA read of any size.
///
/// # Safety
///
/// As the header says.
#[unsafe(no_mangle)]
#[allow(clippy::too_many_arguments)]
pub unsafe extern "C" fn wv_dev_get(
    qp: u64,
    mode: u32,
    local: u64,
    lkey: u32,
    remote: u64,
    rkey: u32,
    len: u64,
    ticket: *mut u64,
) -> u32 {
    // SAFETY: the caller's.
    unsafe {
        post(
            qp, mode, GET, local, lkey, remote, rkey, len, 0, 0, 0, 0, ticket,
        )
    }
}

/// Send of one message.
///
/// # Safety
///
/// As the header says.
#[unsafe(no_mangle)]
#[allow(clippy::too_many_arguments)]
pub unsafe extern "C" fn wv_dev_send(
    qp: u64,
    mode: u32,
    local: u64,
    lkey: u32,
    len: u64,
    ticket: *mut u64,
) -> u32 {
    // SAFETY: the caller's.
    unsafe { post(qp, mode, SEND, local, lkey, 0, 0, len, 0, 0, 0, 0, ticket) }
}

/// Send of one message with immediate data.
///
/// # Safety
///
/// As the header says.
#[unsafe(no_mangle)]
#[allow(clippy::too_many_arguments)]
pub unsafe extern "C" fn wv_dev_send_imm(
    qp: u64,
    mode: u32,
    local: u64,
    lkey: u32,
    len: u64,
    immediate: u32,
    ticket: *mut u64,
) -> u32 {
    // SAFETY: the caller's.
    unsafe {
        post(
            qp,
            mode,
            SEND_IMM,
            local,
            lkey,
            0,
            0,
            len,
            u64::from(immediate),
            0,
            0,
            0,
            ticket,
        )
    }
}

/// Fetch and add of 8 bytes.
///
/// # Safety
///
/// As the header says.
#[unsafe(no_mangle)]
#[allow(clippy::too_many_arguments)]
pub unsafe extern "C" fn wv_dev_fetch_add(
    qp: u64,
    mode: u32,
    fetched: u64,
    lkey: u32,
    remote: u64,
    rkey: u32,
    add: u64,
    ticket: *mut u64,
) -> u32 {
    // SAFETY: the caller's.
    unsafe {
        post(
            qp, mode, FETCH_ADD, fetched, lkey, remote, rkey, 8, add, 0, 0, 0, ticket,
        )
    }
}

/// Compare and swap of 8 bytes.
///
/// # Safety
///
/// As the header says.
#[unsafe(no_mangle)]
#[allow(clippy::too_many_arguments)]
pub unsafe extern "C" fn wv_dev_compare_swap(
    qp: u64,
    mode: u32,
    fetched: u64,
    lkey: u32,
    remote: u64,
    rkey: u32,
    compare: u64,
    swap: u64,
    ticket: *mut u64,
) -> u32 {
    // SAFETY: the caller's.
    unsafe {
        post(
            qp,
            mode,
            COMPARE_SWAP,
            fetched,
            lkey,
            remote,
            rkey,
            8,
            compare,
            swap,
            0,
            0,
            ticket,
        )
    }
}

/// Masked fetch and add of 4 bytes.
///
/// # Safety
///
/// As the header says.
#[unsafe(no_mangle)]
#[allow(clippy::too_many_arguments)]
pub unsafe extern "C" fn wv_dev_masked_fetch_add_4(
    qp: u64,
    mode: u32,
    fetched: u64,
    lkey: u32,
    remote: u64,
    rkey: u32,
    add: u32,
    boundary: u32,
    ticket: *mut u64,
) -> u32 {
    // SAFETY: the caller's.
    unsafe {
        post(
            qp,
            mode,
            MASKED_FETCH_ADD_4,
            fetched,
            lkey,
            remote,
            rkey,
            4,
            u64::from(add),
            u64::from(boundary),
            0,
            0,
            ticket,
        )
    }
}

/// Masked fetch and add of 8 bytes.
///
/// # Safety
///
/// As the header says.
#[unsafe(no_mangle)]
#[allow(clippy::too_many_arguments)]
pub unsafe extern "C" fn wv_dev_masked_fetch_add_8(
    qp: u64,
    mode: u32,
    fetched: u64,
    lkey: u32,
    remote: u64,
    rkey: u32,
    add: u64,
    boundary: u64,
    ticket: *mut u64,
) -> u32 {
    // SAFETY: the caller's.
    unsafe {
        post(
            qp,
            mode,
            MASKED_FETCH_ADD_8,
            fetched,
            lkey,
            remote,
            rkey,
            8,
            add,
            boundary,
            0,
            0,
            ticket,
        )
    }
}

/// Masked compare and swap of 4 bytes.
///
/// # Safety
///
/// As the header says.
#[unsafe(no_mangle)]
#[allow(clippy::too_many_arguments)]
pub unsafe extern "C" fn wv_dev_masked_compare_swap_4(
    qp: u64,
    mode: u32,
    fetched: u64,
    lkey: u32,
    remote: u64,
    rkey: u32,
    compare: u32,
    compare_mask: u32,
    swap: u32,
    swap_mask: u32,
    ticket: *mut u64,
) -> u32 {
    // SAFETY: the caller's.
    unsafe {
        post(
            qp,
            mode,
            MASKED_COMPARE_SWAP_4,
            fetched,
            lkey,
            remote,
            rkey,
            4,
            u64::from(compare),
            u64::from(compare_mask),
            u64::from(swap),
            u64::from(swap_mask),
            ticket,
        )
    }
}

/// Masked compare and swap of 8 bytes.
///
/// # Safety
///
/// As the header says.
#[unsafe(no_mangle)]
#[allow(clippy::too_many_arguments)]
pub unsafe extern "C" fn wv_dev_masked_compare_swap_8(
    qp: u64,
    mode: u32,
    fetched: u64,
    lkey: u32,
    remote: u64,
    rkey: u32,
    compare: u64,
    compare_mask: u64,
    swap: u64,
    swap_mask: u64,
    ticket: *mut u64,
) -> u32 {
    // SAFETY: the caller's.
    unsafe {
        post(
            qp,
            mode,
            MASKED_COMPARE_SWAP_8,
            fetched,
            lkey,
            remote,
            rkey,
            8,
            compare,
            compare_mask,
            swap,
            swap_mask,
            ticket,
        )
    }
}

/// RDMA write of any size, then a signal.
///
/// # Safety
///
/// As the header says.
#[unsafe(no_mangle)]
#[allow(clippy::too_many_arguments)]
pub unsafe extern "C" fn wv_dev_put_signal(
    qp: u64,
    mode: u32,
    local: u64,
    lkey: u32,
    remote: u64,
    rkey: u32,
    len: u64,
    signal: u64,
    signal_rkey: u32,
    add: u64,
    fetched: u64,
    fetched_lkey: u32,
    ticket: *mut u64,
) -> u32 {
    // SAFETY: the caller's.
    unsafe {
        post(
            qp,
            mode,
            PUT_SIGNAL,
            local,
            lkey,
            remote,
            rkey,
            len,
            signal,
            u64::from(signal_rkey) | u64::from(fetched_lkey) << 32,
            add,
            fetched,
            ticket,
        )
    }
}

/// NOP.
///
/// # Safety
///
/// As the header says.
#[unsafe(no_mangle)]
#[allow(clippy::too_many_arguments)]
pub unsafe extern "C" fn wv_dev_nop(qp: u64, mode: u32, ticket: *mut u64) -> u32 {
    // SAFETY: the caller's.
    unsafe { post(qp, mode, NOP, 0, 0, 0, 0, 0, 0, 0, 0, 0, ticket) }
}

/// DUMP of local memory.
///
/// # Safety
///
/// As the header says.
#[unsafe(no_mangle)]
#[allow(clippy::too_many_arguments)]
pub unsafe extern "C" fn wv_dev_dump(
    qp: u64,
    mode: u32,
    local: u64,
    lkey: u32,
    len: u64,
    ticket: *mut u64,
) -> u32 {
    // SAFETY: the caller's.
    unsafe { post(qp, mode, DUMP, local, lkey, 0, 0, len, 0, 0, 0, 0, ticket) }
}

/// What is posted behind it starts when all before it has completed.
///
/// # Safety
///
/// As the header says.
#[unsafe(no_mangle)]
#[allow(clippy::too_many_arguments)]
pub unsafe extern "C" fn wv_dev_fence(qp: u64, mode: u32, ticket: *mut u64) -> u32 {
    // SAFETY: the caller's.
    unsafe { post(qp, mode, FENCE, 0, 0, 0, 0, 0, 0, 0, 0, 0, ticket) }
}

/// Sends a signal alone.
///
/// # Safety
///
/// As the header says.
#[unsafe(no_mangle)]
#[allow(clippy::too_many_arguments)]
pub unsafe extern "C" fn wv_dev_signal(
    qp: u64,
    mode: u32,
    signal: u64,
    signal_rkey: u32,
    add: u64,
    fetched: u64,
    fetched_lkey: u32,
    ticket: *mut u64,
) -> u32 {
    let keys = u64::from(signal_rkey) | u64::from(fetched_lkey) << 32;
    // SAFETY: the caller's.
    unsafe {
        post(
            qp, mode, PUT_SIGNAL, 0, 0, 0, 0, 0, signal, keys, add, fetched, ticket,
        )
    }
}

/// Transfers what `count` descriptors say: puts, or if `get` is not zero, gets. Those that make the call together share them.
///
/// # Safety
///
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wv_dev_list(
    qp: u64,
    mode: u32,
    get: u32,
    descriptors: *const Descriptor,
    count: u64,
    ticket: *mut u64,
) -> u32 {
    let (rank, members) = share(mode);
    let kind = if get == 0 { PUT } else { GET };
    let mut last = 0;
    let mut first = 0;
    while first < count {
        let number = first.saturating_add(rank);
        let mut own = Descriptor::default();
        if number < count {
            // SAFETY: the caller's: a live descriptor that nobody writes.
            own = unsafe { *descriptors.wrapping_add(number as usize) };
        }
        let mut posted = 0;
        // SAFETY: the caller's.
        let outcome = unsafe {
            post(
                qp,
                mode,
                kind,
                own.local,
                own.lkey,
                own.remote,
                own.rkey,
                own.len,
                0,
                0,
                0,
                0,
                &mut posted,
            )
        };
        if outcome != Outcome::Done.code() {
            return outcome;
        }
        if posted != 0 {
            last = posted;
        }
        first = first.saturating_add(members);
    }
    if !ticket.is_null() {
        // SAFETY: the caller's: a place for the ticket, or null.
        unsafe { ticket.write(last) }
    }
    Outcome::Done.code()
}
