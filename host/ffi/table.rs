// The functions, as `library, version of the symbol, signature`: a table that `functions.rs` makes calls of, and that ci/ffi-check
// compares with the declarations of the system's headers. Included, so that both have it from here.
functions! {
    verbs "IBVERBS_1.1" fn ibv_get_device_list(*mut c_int) -> *mut *mut ibv_device;
    verbs "IBVERBS_1.1" fn ibv_free_device_list(*mut *mut ibv_device);
    verbs "IBVERBS_1.1" fn ibv_get_device_name(*mut ibv_device) -> *const c_char;
    verbs "IBVERBS_1.1" fn ibv_close_device(*mut ibv_context) -> c_int;
    verbs "IBVERBS_1.1" fn ibv_get_async_event(*mut ibv_context, *mut ibv_async_event) -> c_int;
    verbs "IBVERBS_1.1" fn ibv_ack_async_event(*mut ibv_async_event);
    verbs "IBVERBS_1.1" fn ibv_query_port(*mut ibv_context, u8, *mut _compat_ibv_port_attr) -> c_int;
    verbs "IBVERBS_1.1" fn ibv_alloc_pd(*mut ibv_context) -> *mut ibv_pd;
    verbs "IBVERBS_1.1" fn ibv_dealloc_pd(*mut ibv_pd) -> c_int;
    verbs "IBVERBS_1.8" fn ibv_reg_mr_iova2(*mut ibv_pd, *mut c_void, usize, u64, u32) -> *mut ibv_mr;
    verbs "IBVERBS_1.12" fn ibv_reg_dmabuf_mr(*mut ibv_pd, u64, usize, u64, c_int, c_int) -> *mut ibv_mr;
    verbs "IBVERBS_1.1" fn ibv_dereg_mr(*mut ibv_mr) -> c_int;
    verbs "IBVERBS_1.1" fn ibv_create_cq(*mut ibv_context, c_int, *mut c_void, *mut ibv_comp_channel, c_int) -> *mut ibv_cq;
    verbs "IBVERBS_1.1" fn ibv_destroy_cq(*mut ibv_cq) -> c_int;
    verbs "IBVERBS_1.1" fn ibv_create_qp(*mut ibv_pd, *mut ibv_qp_init_attr) -> *mut ibv_qp;
    verbs "IBVERBS_1.1" fn ibv_modify_qp(*mut ibv_qp, *mut ibv_qp_attr, c_int) -> c_int;
    verbs "IBVERBS_1.1" fn ibv_destroy_qp(*mut ibv_qp) -> c_int;
    verbs "IBVERBS_1.1" fn ibv_create_ah(*mut ibv_pd, *mut ibv_ah_attr) -> *mut ibv_ah;
    verbs "IBVERBS_1.1" fn ibv_destroy_ah(*mut ibv_ah) -> c_int;
    verbs "IBVERBS_1.11" fn _ibv_query_gid_ex(*mut ibv_context, u32, u32, *mut ibv_gid_entry, u32, usize) -> c_int;
    mlx5 "MLX5_1.8" fn mlx5dv_is_supported(*mut ibv_device) -> bool;
    mlx5 "MLX5_1.7" fn mlx5dv_open_device(*mut ibv_device, *mut mlx5dv_context_attr) -> *mut ibv_context;
    mlx5 "MLX5_1.2" fn mlx5dv_init_obj(*mut mlx5dv_obj, u64) -> c_int;
    mlx5 "MLX5_1.7" fn mlx5dv_devx_general_cmd(*mut ibv_context, *const c_void, usize, *mut c_void, usize) -> c_int;
    mlx5 "MLX5_1.7" fn mlx5dv_devx_obj_create(*mut ibv_context, *const c_void, usize, *mut c_void, usize) -> *mut mlx5dv_devx_obj;
    mlx5 "MLX5_1.7" fn mlx5dv_devx_obj_query(*mut mlx5dv_devx_obj, *const c_void, usize, *mut c_void, usize) -> c_int;
    mlx5 "MLX5_1.7" fn mlx5dv_devx_obj_modify(*mut mlx5dv_devx_obj, *const c_void, usize, *mut c_void, usize) -> c_int;
    mlx5 "MLX5_1.7" fn mlx5dv_devx_obj_destroy(*mut mlx5dv_devx_obj) -> c_int;
    mlx5 "MLX5_1.8" fn mlx5dv_devx_qp_query(*mut ibv_qp, *const c_void, usize, *mut c_void, usize) -> c_int;
    mlx5 "MLX5_1.19" fn mlx5dv_devx_umem_reg_ex(*mut ibv_context, *mut mlx5dv_devx_umem_in) -> *mut mlx5dv_devx_umem;
    mlx5 "MLX5_1.7" fn mlx5dv_devx_umem_dereg(*mut mlx5dv_devx_umem) -> c_int;
    mlx5 "MLX5_1.7" fn mlx5dv_devx_alloc_uar(*mut ibv_context, u32) -> *mut mlx5dv_devx_uar;
    mlx5 "MLX5_1.7" fn mlx5dv_devx_free_uar(*mut mlx5dv_devx_uar);
    mlx5 "MLX5_1.7" fn mlx5dv_devx_query_eqn(*mut ibv_context, u32, *mut u32) -> c_int;
    mlx5 "MLX5_1.11" fn mlx5dv_devx_create_event_channel(*mut ibv_context, mlx5_ib_uapi_devx_create_event_channel_flags) -> *mut mlx5dv_devx_event_channel;
    mlx5 "MLX5_1.11" fn mlx5dv_devx_destroy_event_channel(*mut mlx5dv_devx_event_channel);
    mlx5 "MLX5_1.11" fn mlx5dv_devx_subscribe_devx_event(*mut mlx5dv_devx_event_channel, *mut mlx5dv_devx_obj, u16, *mut u16, u64) -> c_int;
    mlx5 "MLX5_1.11" fn mlx5dv_devx_get_event(*mut mlx5dv_devx_event_channel, *mut mlx5_ib_uapi_devx_async_event_hdr, usize) -> isize;
}
