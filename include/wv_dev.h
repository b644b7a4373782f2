/* Device functions of warpverbs for CUDA C++: post work requests to an mlx5 NIC from GPU threads, and poll their completions.
 *
 * Link them into a kernel compiled with relocatable device code:
 *
 *     cargo xtask ptx --c                                   # target/ptx/wv_dev.ptx
 *     ptxas -c -arch=sm_90 target/ptx/wv_dev.ptx -o wv_dev.o
 *     nvcc -rdc=true -arch=sm_90 -Iinclude kernel.cu wv_dev.o
 *
 * or give the PTX to nvJitLink. The host crate exports a QP; `qp` is the handle's address on the GPU (ExportedQp::handle), `rq` that of
 * a receive queue. The linked module states the version of the handle that it was built for in the global wv_device_abi.
 *
 * Every parameter is a number or a pointer. Addresses of local and remote memory are as the NIC addresses them by their key; pointers
 * are the GPU's (generic). Every function returns an outcome, WV_DEV_*; `ticket`, `index` and `received` may be null, and are
 * written with WV_DEV_DONE only.
 *
 * mode = sharing | scope:
 *   WV_DEV_EXCLUSIVE  nobody but the caller (a thread, warp or block: always the same) uses the queue during the kernel
 *   WV_DEV_SHARED     threads of the GPU share the queue; each of them says so
 *   WV_DEV_THREAD     each thread calls for itself
 *   WV_DEV_WARP       all lanes of the warp make the call together, each with its own arguments: one doorbell for all
 *   WV_DEV_BLOCK      all threads of a one-dimensional block make the call together
 * The doorbell's way and the form of the CQ are the handle's.
 *
 * The caller promises: the handle stays exported; memory that an operation in flight reads is not written, and memory that it writes
 * is neither read nor written, until it has completed. */
#ifndef WV_DEV_H
#define WV_DEV_H

#include <stdint.h>

#ifdef __CUDACC__
#define WV_DEV_FN extern "C" __device__
#elif defined(__cplusplus)
#define WV_DEV_FN extern "C"
#else
#define WV_DEV_FN extern
#endif

#define WV_DEV_EXCLUSIVE 0u
#define WV_DEV_SHARED 3u
#define WV_DEV_THREAD 0u
#define WV_DEV_WARP 0x100u
#define WV_DEV_BLOCK 0x200u

#define WV_DEV_DONE 1u
#define WV_DEV_TIMEOUT 2u
#define WV_DEV_STOPPED 3u
#define WV_DEV_FAULT 4u /* wv_dev_state says why */
#define WV_DEV_BAD_VERSION 5u
#define WV_DEV_INVALID_ARGUMENT 6u
#define WV_DEV_PENDING 7u
#define WV_DEV_NO_RESOURCE 8u

/* One piece of a list: `len` bytes between local and remote memory. */
typedef struct wv_dev_descriptor {
    uint64_t local, remote, len;
    uint32_t lkey, rkey;
} wv_dev_descriptor;

#define WV_DEV_RECEIVED_WRITE_IMMEDIATE 1u
#define WV_DEV_RECEIVED_SEND 2u
#define WV_DEV_RECEIVED_SEND_IMMEDIATE 3u
#define WV_DEV_RECEIVED_SEND_INVALIDATE 4u

/* A message that arrived. */
typedef struct wv_dev_received {
    uint64_t index;
    uint32_t kind, len, immediate, qpn, user_index, unused;
} wv_dev_received;

/* RDMA write of any size. */
WV_DEV_FN uint32_t wv_dev_put(uint64_t qp, uint32_t mode, uint64_t local, uint32_t lkey, uint64_t remote, uint32_t rkey,
                              uint64_t len, uint64_t *ticket);
/* RDMA write of one message, not empty, with immediate data. */
WV_DEV_FN uint32_t wv_dev_put_imm(uint64_t qp, uint32_t mode, uint64_t local, uint32_t lkey, uint64_t remote, uint32_t rkey,
                                  uint64_t len, uint32_t immediate, uint64_t *ticket);
/* RDMA write of 1 to 972 bytes of global memory that are copied into the work request: they may change when the call is over. */
WV_DEV_FN uint32_t wv_dev_put_inline(uint64_t qp, uint32_t mode, const uint8_t *data, uint64_t remote, uint32_t rkey,
                                     uint32_t len, uint64_t *ticket);
/* RDMA read of any size; the data is visible when the ticket is done. */
WV_DEV_FN uint32_t wv_dev_get(uint64_t qp, uint32_t mode, uint64_t local, uint32_t lkey, uint64_t remote, uint32_t rkey,
                              uint64_t len, uint64_t *ticket);
/* Send of one message, not empty. */
WV_DEV_FN uint32_t wv_dev_send(uint64_t qp, uint32_t mode, uint64_t local, uint32_t lkey, uint64_t len, uint64_t *ticket);
WV_DEV_FN uint32_t wv_dev_send_imm(uint64_t qp, uint32_t mode, uint64_t local, uint32_t lkey, uint64_t len,
                                   uint32_t immediate, uint64_t *ticket);
/* Atomics. What was found is in local memory at `fetched`, visible when the ticket is done. Addresses are multiples of the size. */
WV_DEV_FN uint32_t wv_dev_fetch_add(uint64_t qp, uint32_t mode, uint64_t fetched, uint32_t lkey, uint64_t remote, uint32_t rkey,
                                    uint64_t add, uint64_t *ticket);
WV_DEV_FN uint32_t wv_dev_compare_swap(uint64_t qp, uint32_t mode, uint64_t fetched, uint32_t lkey, uint64_t remote,
                                       uint32_t rkey, uint64_t compare, uint64_t swap, uint64_t *ticket);
WV_DEV_FN uint32_t wv_dev_masked_fetch_add_4(uint64_t qp, uint32_t mode, uint64_t fetched, uint32_t lkey, uint64_t remote,
                                             uint32_t rkey, uint32_t add, uint32_t boundary, uint64_t *ticket);
WV_DEV_FN uint32_t wv_dev_masked_fetch_add_8(uint64_t qp, uint32_t mode, uint64_t fetched, uint32_t lkey, uint64_t remote,
                                             uint32_t rkey, uint64_t add, uint64_t boundary, uint64_t *ticket);
WV_DEV_FN uint32_t wv_dev_masked_compare_swap_4(uint64_t qp, uint32_t mode, uint64_t fetched, uint32_t lkey, uint64_t remote,
                                                uint32_t rkey, uint32_t compare, uint32_t compare_mask, uint32_t swap,
                                                uint32_t swap_mask, uint64_t *ticket);
WV_DEV_FN uint32_t wv_dev_masked_compare_swap_8(uint64_t qp, uint32_t mode, uint64_t fetched, uint32_t lkey, uint64_t remote,
                                                uint32_t rkey, uint64_t compare, uint64_t compare_mask, uint64_t swap,
                                                uint64_t swap_mask, uint64_t *ticket);
/* RDMA write of any size, then a signal: `add` is added to the 8 bytes at `signal`. In a group one signal is sent, behind the data of
 * all. The signal's memory is registered without relaxed ordering. */
WV_DEV_FN uint32_t wv_dev_put_signal(uint64_t qp, uint32_t mode, uint64_t local, uint32_t lkey, uint64_t remote, uint32_t rkey,
                                     uint64_t len, uint64_t signal, uint32_t signal_rkey, uint64_t add, uint64_t fetched,
                                     uint32_t fetched_lkey, uint64_t *ticket);
WV_DEV_FN uint32_t wv_dev_signal(uint64_t qp, uint32_t mode, uint64_t signal, uint32_t signal_rkey, uint64_t add,
                                 uint64_t fetched, uint32_t fetched_lkey, uint64_t *ticket);
/* Transfers what `count` descriptors say, all one way; those that make the call together share them. */
WV_DEV_FN uint32_t wv_dev_list(uint64_t qp, uint32_t mode, uint32_t get, const wv_dev_descriptor *descriptors, uint64_t count,
                               uint64_t *ticket);
WV_DEV_FN uint32_t wv_dev_nop(uint64_t qp, uint32_t mode, uint64_t *ticket);
/* The NIC reads local memory and sends nothing. */
WV_DEV_FN uint32_t wv_dev_dump(uint64_t qp, uint32_t mode, uint64_t local, uint32_t lkey, uint64_t len, uint64_t *ticket);
/* What is posted behind it starts when all before it has completed. */
WV_DEV_FN uint32_t wv_dev_fence(uint64_t qp, uint32_t mode, uint64_t *ticket);

/* WV_DEV_DONE or WV_DEV_PENDING. */
WV_DEV_FN uint32_t wv_dev_poll(uint64_t qp, uint32_t mode, uint64_t ticket);
WV_DEV_FN uint32_t wv_dev_wait(uint64_t qp, uint32_t mode, uint64_t ticket, uint64_t deadline_ns);
/* Waits for all that was posted. */
WV_DEV_FN uint32_t wv_dev_flush(uint64_t qp, uint32_t mode, uint64_t deadline_ns);
/* Waits until the 8 bytes at `address` are at least `value`; a thread calls it for itself. What was before the signal is visible then. */
WV_DEV_FN uint32_t wv_dev_wait_signal(uint64_t qp, uint32_t mode, const uint64_t *address, uint64_t value,
                                      uint64_t deadline_ns);
/* The QP's state word: bit 0 stop, bit 1 fault, then cause, syndrome, vendor syndrome, opcode, index (wire/abi.rs: State). */
WV_DEV_FN uint64_t wv_dev_state(uint64_t qp);

/* Receive queues, shared by threads of the GPU. WV_DEV_NO_RESOURCE: full; WV_DEV_PENDING: nothing has arrived. */
WV_DEV_FN uint32_t wv_dev_post_receive(uint64_t rq, uint64_t local, uint32_t lkey, uint32_t len, uint64_t *index);
WV_DEV_FN uint32_t wv_dev_try_receive(uint64_t rq, wv_dev_received *received);

#endif
