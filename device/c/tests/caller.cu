// A CUDA C++ kernel that calls every function of include/wv_dev.h: ci/device-c compiles and links it.
#include "wv_dev.h"

extern "C" __global__ void put_and_wait(uint64_t qp, uint32_t mode, uint64_t local, uint32_t lkey, uint64_t remote,
                                        uint32_t rkey, uint64_t len, uint32_t *outcomes) {
    uint64_t thread = blockIdx.x * (uint64_t)blockDim.x + threadIdx.x, ticket;
    uint32_t outcome = wv_dev_put(qp, mode, local + thread * len, lkey, remote + thread * len, rkey, len, &ticket);
    if (outcome == WV_DEV_DONE) outcome = wv_dev_wait(qp, mode, ticket, 1000000000);
    outcomes[thread] = outcome;
}

extern "C" __global__ void all(uint64_t qp, uint64_t rq, uint32_t mode, uint64_t at, uint32_t key, const uint8_t *data,
                               const wv_dev_descriptor *list, const uint64_t *word, uint64_t *out) {
    wv_dev_received received;
    uint64_t ticket, sum = 0;
    sum += wv_dev_put_imm(qp, mode, at, key, at, key, 8, 1, &ticket);
    sum += wv_dev_put_inline(qp, mode, data, at, key, 8, &ticket);
    sum += wv_dev_get(qp, mode, at, key, at, key, 8, &ticket);
    sum += wv_dev_send(qp, mode, at, key, 8, &ticket);
    sum += wv_dev_send_imm(qp, mode, at, key, 8, 1, &ticket);
    sum += wv_dev_fetch_add(qp, mode, at, key, at, key, 1, &ticket);
    sum += wv_dev_compare_swap(qp, mode, at, key, at, key, 1, 2, &ticket);
    sum += wv_dev_masked_fetch_add_4(qp, mode, at, key, at, key, 1, 0, &ticket);
    sum += wv_dev_masked_fetch_add_8(qp, mode, at, key, at, key, 1, 0, &ticket);
    sum += wv_dev_masked_compare_swap_4(qp, mode, at, key, at, key, 1, 1, 2, 2, &ticket);
    sum += wv_dev_masked_compare_swap_8(qp, mode, at, key, at, key, 1, 1, 2, 2, &ticket);
    sum += wv_dev_put_signal(qp, mode, at, key, at, key, 8, at, key, 1, at, key, &ticket);
    sum += wv_dev_signal(qp, mode, at, key, 1, at, key, &ticket);
    sum += wv_dev_list(qp, mode, 0, list, 2, &ticket);
    sum += wv_dev_nop(qp, mode, &ticket);
    sum += wv_dev_dump(qp, mode, at, key, 8, &ticket);
    sum += wv_dev_fence(qp, mode, &ticket);
    sum += wv_dev_poll(qp, mode, ticket);
    sum += wv_dev_flush(qp, mode, 1000000000);
    sum += wv_dev_wait_signal(qp, mode, word, 1, 1000000000);
    sum += wv_dev_state(qp);
    sum += wv_dev_post_receive(rq, at, key, 8, &ticket);
    sum += wv_dev_try_receive(rq, &received);
    *out = sum;
}
