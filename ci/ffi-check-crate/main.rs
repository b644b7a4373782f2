//! Says in C what this project believes of the system's headers, for a C compiler to refute; and has the Rust compiler compare
//! the table of functions with the declarations that bindgen finds there now.
//!
//! `FFI_DECLARATIONS` names the file of those declarations at build time, `FFI_WITNESS` that of what is compared with ibverbs-sys.

#[allow(dead_code, non_camel_case_types, non_snake_case, non_upper_case_globals, unsafe_op_in_unsafe_fn)]
#[path = "../../host/ffi/bindings.rs"]
mod bindings;

#[allow(dead_code, improper_ctypes)]
mod declared {
    use super::bindings::*;
    include!(env!("FFI_DECLARATIONS"));
}

use std::ffi::{c_char, c_int, c_void};
use std::mem::{offset_of, size_of};

use bindings::*;

/// Where a declaration is of another type than the table's, this does not compile.
macro_rules! functions {
    ($($library:ident $version:literal fn $name:ident($($argument:ty),* $(,)?) $(-> $result:ty)?;)*) => {
        const _: () = {
            $(let _: unsafe extern "C" fn($($argument),*) $(-> $result)? = declared::$name;)*
        };
        const FUNCTIONS: usize = [$(stringify!($name)),*].len();
    };
}
include!("../../host/ffi/table.rs");

/// Structures of verbs as the crate ibverbs-sys has them: by the headers of another rdma-core and by another bindgen. Where one
/// differs, this does not compile.
mod witness {
    use super::bindings;
    use std::mem::{align_of, offset_of, size_of};

    macro_rules! structure {
        ($name:ident) => {
            const _: () = assert!(
                size_of::<bindings::$name>() == size_of::<ibverbs_sys::$name>()
                    && align_of::<bindings::$name>() == align_of::<ibverbs_sys::$name>(),
                concat!("size of ", stringify!($name))
            );
        };
    }
    macro_rules! field {
        ($name:ident, $field:ident) => {
            const _: () = assert!(
                offset_of!(bindings::$name, $field) == offset_of!(ibverbs_sys::$name, $field),
                concat!("offset of ", stringify!($name), "::", stringify!($field))
            );
        };
    }
    include!(env!("FFI_WITNESS"));
    // Later releases have appended a field. The driver calls the exported ibv_query_port, which fills the structure of the
    // first release and no more.
    const _: () = assert!(
        size_of::<bindings::ibv_port_attr>() <= size_of::<ibverbs_sys::ibv_port_attr>()
    );
    // The comparison can fail.
    const _: () = assert!(
        offset_of!(bindings::ibv_mr, lkey) != offset_of!(ibverbs_sys::ibv_mr, rkey)
            && size_of::<bindings::ibv_mr>() != size_of::<ibverbs_sys::ibv_qp>()
    );
}

macro_rules! structures {
    ($($name:ident { $($field:ident $(= $c:literal)?),* })*) => {
        fn structures() -> Vec<String> {
            vec![$(
                format!("sizeof(struct {}) == {}", stringify!($name), size_of::<$name>()),
                $(format!(
                    "offsetof(struct {}, {}) == {}",
                    stringify!($name), structures!(@name $field $($c)?), offset_of!($name, $field),
                ),)*
            )*]
        }
    };
    (@name $field:ident) => { stringify!($field) };
    (@name $field:ident $c:literal) => { $c };
}
// What the driver reads and writes.
structures! {
    ibv_context { async_fd, cmd_fd }
    ibv_mr { lkey, rkey }
    ibv_async_event { element, event_type }
    ibv_port_attr { state, active_mtu, gid_tbl_len, max_msg_sz, lid, link_layer }
    ibv_gid_entry { gid, gid_index, gid_type, ndev_ifindex }
    ibv_ah_attr { grh, is_global, port_num }
    ibv_global_route { dgid, sgid_index, hop_limit }
    mlx5dv_context_attr { flags, comp_mask }
    mlx5dv_pd { pdn, comp_mask }
    mlx5dv_ah { av, comp_mask }
    mlx5_wqe_av { rmac }
    mlx5dv_devx_umem { umem_id }
    mlx5dv_devx_umem_in { addr, size, access, pgsz_bitmap, comp_mask, dmabuf_fd }
    mlx5dv_devx_uar { reg_addr, base_addr, page_id, mmap_off }
    mlx5dv_devx_event_channel { fd }
    mlx5dv_obj { qp, cq, ah, pd }
}

fn main() {
    let mut claims = structures();
    for layout in warpverbs_sim::abi::layouts() {
        claims.push(format!("sizeof(struct {}) == {}", layout.name, layout.size));
        for (field, offset, size) in layout.fields {
            let member = format!("((struct {} *)0)->{field}", layout.name);
            claims.push(format!("offsetof(struct {}, {field}) == {offset}", layout.name));
            claims.push(format!("sizeof({member}) == {size}"));
        }
    }
    for (name, value) in warpverbs_sim::abi::constants() {
        claims.push(format!("(unsigned long)({name}) == {value}ul"));
    }
    println!("#include <stddef.h>");
    for header in [
        "infiniband/verbs.h",
        "infiniband/mlx5dv.h",
        "rdma/ib_user_verbs.h",
        "rdma/ib_user_ioctl_cmds.h",
        "rdma/ib_user_ioctl_verbs.h",
        "rdma/rdma_user_ioctl_cmds.h",
        "rdma/mlx5-abi.h",
        "rdma/mlx5_user_ioctl_cmds.h",
        "rdma/mlx5_user_ioctl_verbs.h",
    ] {
        println!("#include <{header}>");
    }
    for claim in &claims {
        println!("_Static_assert({claim}, \"not so\");");
    }
    eprintln!(
        "{} claims on layouts and numbers, {FUNCTIONS} functions",
        claims.len()
    );
}
