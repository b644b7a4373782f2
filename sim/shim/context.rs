//! A device's file, opened: the objects that were made through it.
//!
//! Knows: handles, what stands behind each, how each is destroyed.
//! Must not know: how an object is made.

use std::collections::BTreeMap;

use warpverbs_sim_nic::Check;
use warpverbs_wire::prm::{
    Command, Status, dealloc_pd, destroy_cq, destroy_qp, destroy_rmp, header,
};

use crate::abi::copy;
use crate::errno::{Errno, Result, of_status};
use crate::events::Queue;
use crate::windows::Window;
use crate::world::{State, World};

/// An opened device.
#[derive(Debug)]
pub(crate) struct Context {
    /// Which NIC.
    pub(crate) nic: usize,
    /// What the driver writes into every command of it.
    pub(crate) uid: u16,
    /// GET_CONTEXT was called.
    pub(crate) ready: bool,
    /// DevX was asked for.
    pub(crate) devx: bool,
    /// Channels of asynchronous events.
    pub(crate) asynchronous: Vec<i32>,
    issued: u32,
    pub(crate) objects: BTreeMap<u32, Object>,
}

/// Kinds of object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    Pd,
    Ah,
    Mr,
    Cq,
    Qp,
    Srq,
    Devx,
    Umem,
    Uar,
}

/// An object, and what it needs to be destroyed.
#[derive(Debug)]
pub(crate) enum Object {
    Pd {
        pdn: u32,
    },
    Ah {
        pd: u32,
    },
    Mr {
        lkey: u32,
        window: Option<Window>,
    },
    Cq(Cq),
    Qp(Qp),
    Srq(Srq),
    Devx {
        /// The command that destroys it.
        destroy: Vec<u8>,
        /// What events call it.
        queue: Option<Queue>,
        /// Its number.
        number: u32,
    },
    Umem {
        id: u32,
        window: Option<Window>,
    },
    Uar {
        page: u32,
    },
}

/// Memory of a queue that verbs made: of its ring, and of its doorbell record.
#[derive(Debug, Default)]
pub(crate) struct QueueMemory(pub(crate) Vec<(u32, Window)>);

#[derive(Debug)]
pub(crate) struct Cq {
    pub(crate) cqn: u32,
    pub(crate) memory: QueueMemory,
}

#[derive(Debug)]
pub(crate) struct Srq {
    pub(crate) rmpn: u32,
    pub(crate) memory: QueueMemory,
    pub(crate) pdn: u32,
    pub(crate) max_wr: u32,
    pub(crate) max_sge: u32,
    pub(crate) limit: u32,
}

#[derive(Debug)]
pub(crate) struct Qp {
    pub(crate) qpn: u32,
    pub(crate) memory: QueueMemory,
    pub(crate) cap: crate::abi::verbs::QpCap,
    pub(crate) signals_all: bool,
    /// State in verbs (`ib_qp_state`).
    pub(crate) state: u8,
    /// What transitions remember.
    pub(crate) access: u32,
    pub(crate) reads_answered: u8,
    pub(crate) port: u8,
}

impl Object {
    pub(crate) fn class(&self) -> Class {
        match self {
            Self::Pd { .. } => Class::Pd,
            Self::Ah { .. } => Class::Ah,
            Self::Mr { .. } => Class::Mr,
            Self::Cq(_) => Class::Cq,
            Self::Qp(_) => Class::Qp,
            Self::Srq(_) => Class::Srq,
            Self::Devx { .. } => Class::Devx,
            Self::Umem { .. } => Class::Umem,
            Self::Uar { .. } => Class::Uar,
        }
    }

    /// Number in commands of an object that commands can modify and query, and what events call it.
    pub(crate) fn named(&self) -> Option<(u32, Option<Queue>)> {
        match self {
            Self::Devx { number, queue, .. } => Some((*number, *queue)),
            Self::Cq(cq) => Some((cq.cqn, Some(Queue::Cq(cq.cqn)))),
            Self::Qp(qp) => Some((qp.qpn, Some(Queue::Qp(qp.qpn)))),
            Self::Srq(srq) => Some((srq.rmpn, Some(Queue::Rmp(srq.rmpn)))),
            _ => None,
        }
    }
}

impl Context {
    pub(crate) fn new(nic: usize, uid: u16) -> Self {
        Self {
            nic,
            uid,
            ready: false,
            devx: false,
            asynchronous: Vec::new(),
            issued: 0,
            objects: BTreeMap::new(),
        }
    }

    /// Adds an object and returns its handle.
    pub(crate) fn add(&mut self, object: Object) -> u32 {
        loop {
            let handle = self.issued;
            self.issued = self.issued.wrapping_add(1) & 0x7fff_ffff;
            if let std::collections::btree_map::Entry::Vacant(vacant) = self.objects.entry(handle) {
                vacant.insert(object);
                return handle;
            }
        }
    }

    /// The object behind a handle, if it is of that class.
    pub(crate) fn object(&self, handle: u32, class: Class) -> Result<&Object> {
        self.objects
            .get(&handle)
            .filter(|object| object.class() == class)
            .ok_or(Errno::NOENT)
    }

    /// The PD behind a handle, by its number.
    pub(crate) fn pdn(&self, handle: u32) -> Result<u32> {
        match self.object(handle, Class::Pd)? {
            Object::Pd { pdn } => Ok(*pdn),
            _ => Err(Errno::NOENT),
        }
    }

    /// The CQ behind a handle, by its number.
    pub(crate) fn cqn(&self, handle: u32) -> Result<u32> {
        match self.object(handle, Class::Cq)? {
            Object::Cq(cq) => Ok(cq.cqn),
            _ => Err(Errno::NOENT),
        }
    }
}

impl World {
    /// Sends a command as the driver does, for a context. EREMOTEIO: refused, and `output` says why. ETIMEDOUT: no answer.
    pub(crate) fn command(&self, context: &Context, input: &[u8], output: &mut [u8]) -> Result<()> {
        let mut input = input.to_vec();
        let uid = header::UID.offset as usize / 8;
        if let Some(field) = input.get_mut(uid..) {
            copy(&context.uid.to_be_bytes(), field);
        }
        self.nic(context.nic)?
            .lock()
            .command(&input, output)
            .map_err(|refused| match refused.check {
                Check::NoAnswer => Errno(libc::ETIMEDOUT),
                _ => Errno::REMOTEIO,
            })
    }

    /// As [`Self::command`], for a command that the driver sends for itself: its error is the status.
    pub(crate) fn drive(&self, context: &Context, input: &[u8], output: &mut [u8]) -> Result<()> {
        self.command(context, input, output).map_err(|error| {
            let status = output.first().copied().unwrap_or_default();
            if error == Errno::REMOTEIO {
                of_status(Status::from_code(status))
            } else {
                error
            }
        })
    }

    /// As [`Self::drive`], of a command by its type.
    pub(crate) fn execute<C: Command>(&self, context: &Context, command: &C) -> Result<C::Out> {
        let input = command.encode().map_err(|_| Errno::INVAL)?;
        let mut output = C::reply();
        self.drive(context, input.as_ref(), output.as_mut())?;
        C::decode(output.as_ref()).map_err(|_| Errno(libc::EIO))
    }

    /// Registers memory of a queue; what is registered is added to `memory`.
    pub(crate) fn pin_queue(
        &self,
        context: &Context,
        memory: &mut QueueMemory,
        addr: u64,
        len: u64,
    ) -> Result<u32> {
        let nic = self.nic(context.nic)?;
        let window = Window::open(&nic, addr, len, true)?;
        let (range, rights) = (window.range(addr), crate::windows::QUEUES);
        let registered = nic
            .lock()
            .reg_umem_of(context.uid, range, crate::sys::PAGE, rights);
        match registered {
            Ok(id) => {
                memory.0.push((id, window));
                Ok(id)
            }
            Err(error) => {
                window.close(nic.bus());
                Err(error.into())
            }
        }
    }

    /// Takes memory of queues back.
    pub(crate) fn unpin_queue(&self, context: &Context, memory: QueueMemory) {
        for (id, window) in memory.0 {
            // Nothing uses it: the queue is gone, or was never made.
            if let Ok(nic) = self.nic(context.nic) {
                let _ = nic.lock().dereg_umem(id);
                window.close(nic.bus());
            }
        }
    }

    /// Destroys an object. Returns how many events of it were read. Refused, it stays.
    pub(crate) fn destroy(
        &self,
        state: &mut State,
        fd: i32,
        handle: u32,
        class: Class,
    ) -> Result<(u32, u32)> {
        let context = state.contexts.get_mut(&fd).ok_or(Errno::BADF)?;
        let nic = context.nic;
        let object = context.object(handle, class)?;
        let mut queue = None;
        match object {
            Object::Pd { pdn } => {
                let used = context
                    .objects
                    .values()
                    .any(|other| matches!(other, Object::Ah { pd } if *pd == handle));
                if used {
                    return Err(Errno::BUSY);
                }
                self.execute(context, &dealloc_pd::In { pd: *pdn })?;
            }
            Object::Ah { .. } => {}
            Object::Mr { lkey, .. } => self.nic(nic)?.lock().dereg_mr(*lkey)?,
            Object::Cq(cq) => {
                self.execute(context, &destroy_cq::In { cqn: cq.cqn })?;
                queue = Some(Queue::Cq(cq.cqn));
            }
            Object::Qp(qp) => {
                self.execute(context, &destroy_qp::In { qpn: qp.qpn })?;
                queue = Some(Queue::Qp(qp.qpn));
            }
            Object::Srq(srq) => {
                self.execute(context, &destroy_rmp::In { rmpn: srq.rmpn })?;
                queue = Some(Queue::Rmp(srq.rmpn));
            }
            // Of a destruction programs get no mailbox, only its status as an error (`devx_obj_cleanup`).
            Object::Devx { destroy, .. } => self.drive(context, destroy, &mut [0; 16])?,
            Object::Umem { id, .. } => self.nic(nic)?.lock().dereg_umem(*id)?,
            Object::Uar { page } => {
                self.nic(nic)?.lock().free_uar(*page)?;
                self.unmap_doorbells(nic, *page);
            }
        }
        let context = state.contexts.get_mut(&fd).ok_or(Errno::BADF)?;
        match context.objects.remove(&handle) {
            Some(Object::Mr { window, .. } | Object::Umem { window, .. }) => {
                if let Some(window) = window {
                    window.close(self.nic(nic)?.bus());
                }
            }
            Some(
                Object::Cq(Cq { memory, .. })
                | Object::Qp(Qp { memory, .. })
                | Object::Srq(Srq { memory, .. }),
            ) => self.unpin_queue(context, memory),
            _ => {}
        }
        state.subscriptions.retain(|subscription| {
            subscription.object.is_none_or(|(of, _)| of != handle)
                || state
                    .channels
                    .get(&subscription.channel)
                    .is_none_or(|channel| channel.context != fd)
        });
        Ok(queue.map_or((0, 0), |queue| state.forget_queue(nic, queue)))
    }

    /// The program has closed the device's file: whatever it left is destroyed, users before what they use.
    pub(crate) fn close_context(&self, state: &mut State, fd: i32) {
        loop {
            let Some(context) = state.contexts.get(&fd) else {
                return;
            };
            let left: Vec<(u32, Class)> = context
                .objects
                .iter()
                .rev()
                .map(|(handle, object)| (*handle, object.class()))
                .collect();
            let before = left.len();
            for (handle, class) in left {
                let _ = self.destroy(state, fd, handle, class);
            }
            let after = state
                .contexts
                .get(&fd)
                .map_or(0, |context| context.objects.len());
            if after == 0 || after == before {
                state.contexts.remove(&fd);
                return;
            }
        }
    }

    /// The NIC behind a device is taken away: who has it open has nothing any more.
    pub(crate) fn abandon(&self, state: &mut State, nic: usize) {
        let open: Vec<i32> = state
            .contexts
            .iter()
            .filter(|(_, context)| context.nic == nic)
            .map(|(fd, _)| *fd)
            .collect();
        for fd in open {
            self.close_context(state, fd);
            let channels: Vec<i32> = state
                .channels
                .iter()
                .filter(|(_, channel)| channel.context == fd)
                .map(|(channel, _)| *channel)
                .collect();
            for channel in channels {
                self.close_channel(state, channel);
                crate::fds::forget(channel);
                let _ = crate::sys::close(channel);
            }
            crate::fds::forget(fd);
            let _ = crate::sys::close(fd);
        }
        state.owners.retain(|(of, _), _| *of != nic);
        state
            .subscriptions
            .retain(|subscription| subscription.nic != nic);
    }

    /// The program has closed a channel.
    pub(crate) fn close_channel(&self, state: &mut State, fd: i32) {
        if let Some(channel) = state.channels.remove(&fd) {
            if let Some(context) = state.contexts.get_mut(&channel.context) {
                context.asynchronous.retain(|other| *other != fd);
            }
            channel.close();
        }
        state
            .subscriptions
            .retain(|subscription| subscription.channel != fd);
        for owner in state.owners.values_mut() {
            owner.completions = owner.completions.filter(|channel| *channel != fd);
            owner.asynchronous = owner.asynchronous.filter(|channel| *channel != fd);
        }
    }
}
