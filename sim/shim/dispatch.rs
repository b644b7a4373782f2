//! Which method of which object is whose, and what attributes it takes.
//!
//! Knows: the table. Must not know: what a method does.

use crate::abi::{mlx5, verbs};
use crate::context::{Class, Context, Object};
use crate::errno::{Errno, Result};
use crate::request::Kind::{Fd, In, NewFd, NewObject, Object as Handle, Out};
use crate::request::{Request, Spec, may, must};
use crate::world::{State, World};
use crate::{devx, queues, resources, write};

/// A call under way: of a context, with all locked that it needs.
pub(crate) struct Call<'a> {
    pub(crate) world: &'a World,
    pub(crate) state: &'a mut State,
    /// The device's file.
    pub(crate) fd: i32,
    pub(crate) request: &'a Request,
}

type Handler = fn(&mut Call<'_>) -> Result<()>;

struct Method {
    object: u16,
    method: u16,
    specs: &'static [Spec],
    handler: Handler,
}

const fn method(object: u16, method: u16, specs: &'static [Spec], handler: Handler) -> Method {
    Method {
        object,
        method,
        specs,
        handler,
    }
}

/// Attributes of the driver, of any length.
const UHW_IN: Spec = may(verbs::UHW_IN, In(0));
const UHW_OUT: Spec = may(verbs::UHW_OUT, Out(0));

/// All methods. Numbers are those of `rdma/ib_user_ioctl_cmds.h` and `rdma/mlx5_user_ioctl_cmds.h`.
const METHODS: &[Method] = &[
    method(
        verbs::object::DEVICE,
        0,
        &[
            may(0, In(0)),
            may(1, Out(0)),
            must(2, In(8)),
            UHW_IN,
            UHW_OUT,
        ],
        write::invoke,
    ),
    method(
        verbs::object::DEVICE,
        2,
        &[must(0, In(1)), must(1, Out(36))],
        resources::query_port,
    ),
    method(
        verbs::object::DEVICE,
        3,
        &[may(0, Out(4)), may(1, Out(8)), UHW_IN, UHW_OUT],
        resources::get_context,
    ),
    method(
        verbs::object::DEVICE,
        5,
        &[
            must(0, In(8)),
            may(1, In(4)),
            must(2, Out(0)),
            must(3, Out(8)),
        ],
        resources::query_gid_table,
    ),
    method(
        verbs::object::DEVICE,
        6,
        &[
            must(0, In(4)),
            must(1, In(4)),
            may(2, In(4)),
            must(3, Out(32)),
        ],
        resources::query_gid_entry,
    ),
    method(
        verbs::object::DEVICE,
        0x1001,
        &[must(0x1000, Out(0))],
        resources::data_direct_path,
    ),
    method(verbs::object::PD, 0, &[must(0, Handle)], |call| {
        call.destroy(0, Class::Pd).map(drop)
    }),
    method(verbs::object::AH, 0, &[must(0, Handle)], |call| {
        call.destroy(0, Class::Ah).map(drop)
    }),
    method(verbs::object::MR, 1, &[must(0, Handle)], |call| {
        call.destroy(0, Class::Mr).map(drop)
    }),
    method(
        verbs::object::MR,
        4,
        &[
            must(0, NewObject),
            must(1, Handle),
            must(2, In(8)),
            must(3, In(8)),
            must(4, In(8)),
            must(5, In(4)),
            must(6, In(4)),
            must(7, Out(4)),
            must(8, Out(4)),
            may(0x1000, In(4)),
        ],
        resources::reg_dmabuf_mr,
    ),
    method(
        verbs::object::ASYNC_EVENT,
        0,
        &[must(0, NewFd)],
        resources::alloc_async_events,
    ),
    method(
        verbs::object::CQ,
        0,
        &[
            must(0, NewObject),
            must(1, In(4)),
            must(2, In(8)),
            may(3, Fd),
            must(4, In(4)),
            may(5, In(4)),
            must(6, Out(4)),
            may(7, Fd),
            UHW_IN,
            UHW_OUT,
        ],
        queues::create_cq,
    ),
    method(
        verbs::object::CQ,
        1,
        &[must(0, Handle), must(1, Out(8))],
        queues::destroy_cq,
    ),
    method(
        verbs::object::QP,
        0,
        &[
            must(0, NewObject),
            may(1, Handle),
            may(2, Handle),
            may(3, Handle),
            may(4, Handle),
            may(5, Handle),
            may(6, Handle),
            must(7, In(8)),
            must(8, In(20)),
            must(9, In(8)),
            may(10, In(4)),
            may(11, In(4)),
            may(12, Fd),
            must(13, Out(20)),
            must(14, Out(4)),
            UHW_IN,
            UHW_OUT,
        ],
        queues::create_qp,
    ),
    method(
        verbs::object::QP,
        1,
        &[must(0, Handle), must(1, Out(4))],
        queues::destroy_qp,
    ),
    method(
        verbs::object::SRQ,
        0,
        &[
            must(0, NewObject),
            must(1, Handle),
            may(2, Handle),
            may(3, Handle),
            must(4, In(8)),
            must(5, In(4)),
            must(6, In(4)),
            must(7, In(4)),
            may(8, In(4)),
            must(9, In(8)),
            may(10, Fd),
            must(11, Out(4)),
            must(12, Out(4)),
            may(13, Out(4)),
            UHW_IN,
            UHW_OUT,
        ],
        queues::create_srq,
    ),
    method(
        verbs::object::SRQ,
        1,
        &[must(0, Handle), must(1, Out(4))],
        queues::destroy_srq,
    ),
    method(
        mlx5::object::UAR,
        0x1000,
        &[
            must(0x1000, NewObject),
            must(0x1001, In(8)),
            must(0x1002, Out(8)),
            must(0x1003, Out(4)),
            must(0x1004, Out(4)),
        ],
        devx::alloc_uar,
    ),
    method(mlx5::object::UAR, 0x1001, &[must(0x1000, Handle)], |call| {
        call.destroy(0x1000, Class::Uar).map(drop)
    }),
    method(
        mlx5::object::DEVX,
        0x1000,
        &[must(0x1000, In(16)), must(0x1001, Out(16))],
        devx::command,
    ),
    method(
        mlx5::object::DEVX,
        0x1001,
        &[must(0x1000, In(4)), must(0x1001, Out(4))],
        devx::query_uar,
    ),
    method(
        mlx5::object::DEVX,
        0x1002,
        &[must(0x1000, In(4)), must(0x1001, Out(4))],
        devx::query_eqn,
    ),
    method(
        mlx5::object::DEVX,
        0x1003,
        &[
            must(0x1000, Fd),
            may(0x1001, Handle),
            must(0x1002, In(2)),
            may(0x1003, In(4)),
            may(0x1004, In(8)),
        ],
        devx::subscribe,
    ),
    method(
        mlx5::object::DEVX_OBJ,
        0x1000,
        &[
            must(0x1000, NewObject),
            must(0x1001, In(16)),
            must(0x1002, Out(16)),
        ],
        devx::create,
    ),
    method(
        mlx5::object::DEVX_OBJ,
        0x1001,
        &[must(0x1000, Handle)],
        |call| call.destroy(0x1000, Class::Devx).map(drop),
    ),
    method(
        mlx5::object::DEVX_OBJ,
        0x1002,
        &[
            must(0x1000, Handle),
            must(0x1001, In(16)),
            must(0x1002, Out(16)),
        ],
        devx::modify,
    ),
    method(
        mlx5::object::DEVX_OBJ,
        0x1003,
        &[
            must(0x1000, Handle),
            must(0x1001, In(16)),
            must(0x1002, Out(16)),
        ],
        devx::query,
    ),
    method(
        mlx5::object::DEVX_OBJ,
        0x1004,
        &[
            must(0x1000, Handle),
            must(0x1001, In(16)),
            must(0x1002, Fd),
            must(0x1003, In(8)),
            must(0x1004, In(2)),
        ],
        devx::query_later,
    ),
    method(
        mlx5::object::DEVX_UMEM,
        0x1000,
        &[
            must(0x1000, NewObject),
            must(0x1001, In(8)),
            must(0x1002, In(8)),
            must(0x1003, In(4)),
            must(0x1004, Out(4)),
            may(0x1005, In(8)),
            may(0x1006, Fd),
        ],
        devx::register_umem,
    ),
    method(
        mlx5::object::DEVX_UMEM,
        0x1001,
        &[must(0x1000, Handle)],
        |call| call.destroy(0x1000, Class::Umem).map(drop),
    ),
    method(
        mlx5::object::DEVX_ASYNC_CMD_FD,
        0x1000,
        &[must(0x1000, NewFd)],
        devx::alloc_command_channel,
    ),
    method(
        mlx5::object::DEVX_ASYNC_EVENT_FD,
        0x1000,
        &[must(0x1000, NewFd), must(0x1001, In(4))],
        devx::alloc_event_channel,
    ),
];

/// `RDMA_VERBS_IOCTL` of the program on a descriptor of ours.
pub(crate) fn ioctl(world: &World, fd: i32, argument: u64) -> Result<()> {
    let mut request = Request::read(argument)?;
    let method = METHODS
        .iter()
        .find(|method| method.object == request.object && method.method == request.method)
        .ok_or(Errno::PROTONOSUPPORT)?;
    request.check(method.specs)?;
    let mut state = world.state();
    // A channel takes none.
    let context = state.contexts.get(&fd).ok_or(Errno::NOTTY)?;
    let opens = method.object == verbs::object::DEVICE && matches!(method.method, 0 | 3);
    // Nothing but the device can be used before GET_CONTEXT.
    if !context.ready && !opens {
        return Err(Errno::INVAL);
    }
    let done = (method.handler)(&mut Call {
        world,
        state: &mut state,
        fd,
        request: &request,
    });
    state.pump();
    done
}

impl Call<'_> {
    pub(crate) fn context(&self) -> Result<&Context> {
        self.state.contexts.get(&self.fd).ok_or(Errno(libc::EIO))
    }

    pub(crate) fn context_mut(&mut self) -> Result<&mut Context> {
        self.state
            .contexts
            .get_mut(&self.fd)
            .ok_or(Errno(libc::EIO))
    }

    /// Adds an object, names it in attribute `id`, and has `tell` fill the outputs; if that fails, the object is destroyed.
    pub(crate) fn publish(
        &mut self,
        id: Option<u16>,
        object: Object,
        tell: impl FnOnce(&Request, u32) -> Result<()>,
    ) -> Result<u32> {
        let class = object.class();
        let handle = self.context_mut()?.add(object);
        let told = tell(self.request, handle).and_then(|()| match id {
            Some(id) => self.request.created(id, handle.into()),
            None => Ok(()),
        });
        if let Err(error) = told {
            let _ = self.world.destroy(self.state, self.fd, handle, class);
            return Err(error);
        }
        Ok(handle)
    }

    /// Destroys the object that attribute `id` names. Returns how many events of it were read.
    pub(crate) fn destroy(&mut self, id: u16, class: Class) -> Result<(u32, u32)> {
        let handle = self.request.handle(id)?;
        self.world.destroy(self.state, self.fd, handle, class)
    }
}
