/* Verbs as programs have used them since before DevX, over whatever device is there: states and transitions of a queue pair,
 * every opcode of ibv_post_send, several segments, shared receive queues, events, many threads. Says what it saw; the first
 * surprise ends it. ci/programs runs it over the simulated device. */
#include <errno.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <poll.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ASSERT(what)                                                                                                            \
    do {                                                                                                                        \
        if (!(what)) {                                                                                                          \
            fprintf(stderr, "%s:%d: %s (errno %d, %s)\n", __FILE__, __LINE__, #what, errno, strerror(errno));                   \
            exit(1);                                                                                                            \
        }                                                                                                                       \
    } while (0)

enum { BYTES = 1 << 16, GID = 3, DEPTH = 64 };

static struct ibv_context *context;
static struct ibv_pd *pd;
static union ibv_gid gid;

struct memory {
    uint8_t *bytes;
    struct ibv_mr *mr;
};

static struct memory memory(void)
{
    struct memory made = {aligned_alloc(4096, BYTES), NULL};
    memset(made.bytes, 0, BYTES);
    int rights = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
    made.mr = ibv_reg_mr(pd, made.bytes, BYTES, rights);
    ASSERT(made.mr);
    return made;
}

static struct ibv_qp *create(struct ibv_cq *cq, struct ibv_srq *srq)
{
    struct ibv_qp_init_attr wanted = {
        .send_cq = cq,
        .recv_cq = cq,
        .srq = srq,
        .qp_type = IBV_QPT_RC,
        .cap = {.max_send_wr = DEPTH, .max_recv_wr = srq ? 0 : DEPTH, .max_send_sge = 4, .max_recv_sge = 4, .max_inline_data = 64},
    };
    struct ibv_qp *qp = ibv_create_qp(pd, &wanted);
    ASSERT(qp);
    return qp;
}

static int to_init(struct ibv_qp *qp)
{
    struct ibv_qp_attr attr = {
        .qp_state = IBV_QPS_INIT,
        .port_num = 1,
        .qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC,
    };
    return ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
}

static int to_rtr(struct ibv_qp *qp, uint32_t peer)
{
    struct ibv_qp_attr attr = {
        .qp_state = IBV_QPS_RTR,
        .path_mtu = IBV_MTU_1024,
        .dest_qp_num = peer,
        .rq_psn = 0x123456,
        .max_dest_rd_atomic = 8,
        .min_rnr_timer = 12,
        .ah_attr = {.is_global = 1, .port_num = 1, .sl = 3, .grh = {.dgid = gid, .sgid_index = GID, .hop_limit = 7, .traffic_class = 0x68}},
    };
    return ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                                        IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
}

static int to_rts(struct ibv_qp *qp)
{
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 6, .rnr_retry = 5, .sq_psn = 0x123456, .max_rd_atomic = 4};
    return ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC);
}

static int to(struct ibv_qp *qp, enum ibv_qp_state state)
{
    struct ibv_qp_attr attr = {.qp_state = state};
    return ibv_modify_qp(qp, &attr, IBV_QP_STATE);
}

static void connect_qps(struct ibv_qp *a, struct ibv_qp *b)
{
    ASSERT(!to_init(a) && !to_init(b));
    ASSERT(!to_rtr(a, b->qp_num) && !to_rtr(b, a->qp_num));
    ASSERT(!to_rts(a) && !to_rts(b));
}

static struct ibv_qp_attr query(struct ibv_qp *qp)
{
    struct ibv_qp_attr attr;
    struct ibv_qp_init_attr init;
    ASSERT(!ibv_query_qp(qp, &attr, (1 << 21) - 1, &init));
    ASSERT(attr.qp_state == attr.cur_qp_state);
    ASSERT(init.qp_type == IBV_QPT_RC && init.cap.max_inline_data >= 64);
    return attr;
}

static struct ibv_wc wait_for(struct ibv_cq *cq)
{
    struct ibv_wc wc;
    int found;
    while (!(found = ibv_poll_cq(cq, 1, &wc)))
        ;
    ASSERT(found == 1);
    return wc;
}

static void states(void)
{
    struct ibv_cq *cq = ibv_create_cq(context, 2 * DEPTH, NULL, NULL, 0);
    ASSERT(cq);
    struct ibv_qp *a = create(cq, NULL), *b = create(cq, NULL);
    ASSERT(query(a).qp_state == IBV_QPS_RESET);
    /* Out of order, or with something missing. */
    ASSERT(to_rtr(a, b->qp_num) == EINVAL && to_rts(a) == EINVAL);
    struct ibv_qp_attr bare = {.qp_state = IBV_QPS_INIT};
    ASSERT(ibv_modify_qp(a, &bare, IBV_QP_STATE) == EINVAL);
    ASSERT(!to_init(a) && !to_init(b));
    struct ibv_qp_attr attr = query(a);
    ASSERT(attr.qp_state == IBV_QPS_INIT && attr.port_num == 1);
    ASSERT(attr.qp_access_flags == (IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC) || attr.qp_access_flags == IBV_ACCESS_REMOTE_WRITE);
    ASSERT(!to_init(a));
    ASSERT(to_rts(a) == EINVAL);
    ASSERT(!to_rtr(a, b->qp_num) && !to_rtr(b, a->qp_num));
    attr = query(a);
    ASSERT(attr.qp_state == IBV_QPS_RTR && attr.path_mtu == IBV_MTU_1024 && attr.dest_qp_num == b->qp_num);
    ASSERT(attr.rq_psn == 0x123456 && attr.max_dest_rd_atomic == 8 && attr.min_rnr_timer == 12);
    ASSERT(attr.ah_attr.is_global && attr.ah_attr.sl == 3 && attr.ah_attr.grh.hop_limit == 7 && attr.ah_attr.grh.traffic_class == 0x68);
    ASSERT(attr.ah_attr.grh.sgid_index == GID && !memcmp(&attr.ah_attr.grh.dgid, &gid, sizeof gid));
    ASSERT(!to_rts(a) && !to_rts(b));
    attr = query(a);
    ASSERT(attr.qp_state == IBV_QPS_RTS && attr.timeout == 14 && attr.retry_cnt == 6 && attr.rnr_retry == 5);
    ASSERT(attr.sq_psn == 0x123456 && attr.max_rd_atomic == 4);
    /* RTS to RTS: rights and the timer change, the rest stays; what cannot change is refused. */
    struct ibv_qp_attr change = {.qp_state = IBV_QPS_RTS, .cur_qp_state = IBV_QPS_RTS, .qp_access_flags = IBV_ACCESS_REMOTE_READ, .min_rnr_timer = 20};
    ASSERT(!ibv_modify_qp(a, &change, IBV_QP_STATE | IBV_QP_CUR_STATE | IBV_QP_ACCESS_FLAGS | IBV_QP_MIN_RNR_TIMER));
    attr = query(a);
    ASSERT(attr.qp_state == IBV_QPS_RTS && attr.qp_access_flags == IBV_ACCESS_REMOTE_READ && attr.min_rnr_timer == 20);
    ASSERT(attr.timeout == 14 && attr.dest_qp_num == b->qp_num);
    change.cur_qp_state = IBV_QPS_RTR;
    ASSERT(ibv_modify_qp(a, &change, IBV_QP_STATE | IBV_QP_CUR_STATE) == EINVAL);
    change.timeout = 15;
    ASSERT(ibv_modify_qp(a, &change, IBV_QP_STATE | IBV_QP_TIMEOUT) == EINVAL);
    ASSERT(to_init(a) == EINVAL && to_rtr(a, b->qp_num) == EINVAL && to(a, IBV_QPS_SQD) == EINVAL);
    ASSERT(query(a).qp_state == IBV_QPS_RTS);
    ASSERT(!to(a, IBV_QPS_ERR) && query(a).qp_state == IBV_QPS_ERR);
    ASSERT(to_rts(a) == EINVAL && !to(a, IBV_QPS_ERR));
    ASSERT(!to(a, IBV_QPS_RESET) && query(a).qp_state == IBV_QPS_RESET);
    /* And once more around. */
    ASSERT(!to(b, IBV_QPS_RESET));
    connect_qps(a, b);
    ASSERT(query(a).qp_state == IBV_QPS_RTS && query(a).qp_access_flags != IBV_ACCESS_REMOTE_READ);
    /* A CQ cannot be resized, and works on. */
    ASSERT(ibv_resize_cq(cq, 8 * DEPTH) != 0);
    ASSERT(ibv_destroy_cq(cq) == EBUSY);
    struct memory mine = memory();
    struct ibv_sge sge = {(uintptr_t)mine.bytes, 64, mine.mr->lkey};
    struct ibv_send_wr wr = {.wr_id = 5, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED,
                             .wr.rdma = {(uintptr_t)mine.bytes + 4096, mine.mr->rkey}}, *bad;
    ASSERT(!ibv_post_send(a, &wr, &bad));
    struct ibv_wc wc = wait_for(cq);
    ASSERT(wc.status == IBV_WC_SUCCESS && wc.wr_id == 5 && wc.opcode == IBV_WC_RDMA_WRITE);
    ASSERT(!ibv_destroy_qp(a) && !ibv_destroy_qp(b) && !ibv_destroy_cq(cq) && !ibv_dereg_mr(mine.mr));
    free(mine.bytes);
    puts("states: done");
}

/* Every opcode, to and from several segments. */
static void opcodes(void)
{
    struct ibv_cq *cq = ibv_create_cq(context, 4 * DEPTH, NULL, NULL, 0);
    struct ibv_qp *a = create(cq, NULL), *b = create(cq, NULL);
    connect_qps(a, b);
    struct memory mine = memory(), theirs = memory();
    for (int i = 0; i < BYTES; i++)
        mine.bytes[i] = i * 7;
    struct ibv_send_wr *bad;
    struct ibv_recv_wr *bad_recv;
    static const struct {
        enum ibv_wr_opcode opcode;
        enum ibv_wc_opcode done, received;
        int receives, inlined;
    } cases[] = {
        {IBV_WR_RDMA_WRITE, IBV_WC_RDMA_WRITE, 0, 0, 0},
        {IBV_WR_RDMA_WRITE, IBV_WC_RDMA_WRITE, 0, 0, 1},
        {IBV_WR_RDMA_WRITE_WITH_IMM, IBV_WC_RDMA_WRITE, IBV_WC_RECV_RDMA_WITH_IMM, 1, 0},
        {IBV_WR_SEND, IBV_WC_SEND, IBV_WC_RECV, 1, 0},
        {IBV_WR_SEND, IBV_WC_SEND, IBV_WC_RECV, 1, 1},
        {IBV_WR_SEND_WITH_IMM, IBV_WC_SEND, IBV_WC_RECV, 1, 0},
        {IBV_WR_RDMA_READ, IBV_WC_RDMA_READ, 0, 0, 0},
    };
    for (unsigned i = 0; i < sizeof cases / sizeof *cases; i++) {
        /* Three pieces of odd lengths; a receive of as many others. */
        uint32_t lengths[3] = {5, cases[i].inlined ? 20 : 3000, cases[i].inlined ? 9 : 1001}, total = lengths[0] + lengths[1] + lengths[2];
        struct ibv_sge pieces[3], places[3];
        for (int n = 0; n < 3; n++) {
            pieces[n] = (struct ibv_sge){(uintptr_t)mine.bytes + 8192 * n + n, lengths[n], mine.mr->lkey};
            places[n] = (struct ibv_sge){(uintptr_t)theirs.bytes + 8192 * n + 3, lengths[2 - n], theirs.mr->lkey};
        }
        memset(theirs.bytes, 0xee, BYTES);
        if (cases[i].receives) {
            struct ibv_recv_wr recv = {.wr_id = 100 + i, .sg_list = places, .num_sge = 3};
            ASSERT(!ibv_post_recv(b, &recv, &bad_recv));
        }
        struct ibv_send_wr wr = {
            .wr_id = i,
            .sg_list = pieces,
            .num_sge = 3,
            .opcode = cases[i].opcode,
            .send_flags = IBV_SEND_SIGNALED | IBV_SEND_SOLICITED | (cases[i].inlined ? IBV_SEND_INLINE : 0),
            .imm_data = 0x11223344,
            .wr.rdma = {(uintptr_t)theirs.bytes, theirs.mr->rkey},
        };
        ASSERT(!ibv_post_send(a, &wr, &bad));
        int sent = 0, received = 0;
        while (!sent || received < cases[i].receives) {
            struct ibv_wc wc = wait_for(cq);
            ASSERT(wc.status == IBV_WC_SUCCESS);
            if (wc.qp_num == a->qp_num) {
                ASSERT(wc.wr_id == i && wc.opcode == cases[i].done);
                sent++;
            } else {
                ASSERT(wc.wr_id == 100 + i && wc.opcode == cases[i].received && wc.byte_len == total);
                int imm = cases[i].opcode != IBV_WR_SEND;
                ASSERT(!!(wc.wc_flags & IBV_WC_WITH_IMM) == imm && (!imm || wc.imm_data == 0x11223344));
                received++;
            }
        }
        /* What went, in order, and where it went. */
        uint8_t went[8192], came[8192];
        uint32_t at = 0;
        for (int n = 0; n < 3; at += lengths[n++])
            memcpy(went + at, (void *)(uintptr_t)pieces[n].addr, lengths[n]);
        if (cases[i].receives && cases[i].opcode != IBV_WR_RDMA_WRITE_WITH_IMM) {
            at = 0;
            for (int n = 0; n < 3; at += places[n++].length)
                memcpy(came + at, (void *)(uintptr_t)places[n].addr, places[n].length);
        } else {
            memcpy(came, theirs.bytes, total);
        }
        ASSERT(!memcmp(went, came, total));
    }
    /* Atomics. */
    uint64_t *word = (uint64_t *)theirs.bytes, *found = (uint64_t *)mine.bytes;
    struct ibv_sge one = {(uintptr_t)found, 8, mine.mr->lkey};
    *word = 40;
    struct ibv_send_wr add = {.wr_id = 50, .sg_list = &one, .num_sge = 1, .opcode = IBV_WR_ATOMIC_FETCH_AND_ADD, .send_flags = IBV_SEND_SIGNALED,
                              .wr.atomic = {(uintptr_t)word, 2, 0, theirs.mr->rkey}};
    ASSERT(!ibv_post_send(a, &add, &bad));
    ASSERT(wait_for(cq).opcode == IBV_WC_FETCH_ADD && *found == 40 && *word == 42);
    struct ibv_send_wr swap = {.wr_id = 51, .sg_list = &one, .num_sge = 1, .opcode = IBV_WR_ATOMIC_CMP_AND_SWP, .send_flags = IBV_SEND_SIGNALED,
                               .wr.atomic = {(uintptr_t)word, 42, 77, theirs.mr->rkey}};
    ASSERT(!ibv_post_send(a, &swap, &bad));
    ASSERT(wait_for(cq).opcode == IBV_WC_COMP_SWAP && *found == 42 && *word == 77);
    /* A chain of them, of which the last alone is signalled and fenced; nothing at all; more than there is room for. */
    struct ibv_send_wr chain[8];
    for (int n = 0; n < 8; n++)
        chain[n] = (struct ibv_send_wr){.wr_id = n, .next = n < 7 ? &chain[n + 1] : NULL, .sg_list = &one, .num_sge = n != 3, .opcode = IBV_WR_RDMA_WRITE,
                                        .send_flags = n == 7 ? IBV_SEND_SIGNALED | IBV_SEND_FENCE : 0, .wr.rdma = {(uintptr_t)theirs.bytes + 64 * n, theirs.mr->rkey}};
    ASSERT(!ibv_post_send(a, chain, &bad));
    ASSERT(wait_for(cq).wr_id == 7);
    struct ibv_sge many[16];
    for (int n = 0; n < 16; n++)
        many[n] = one;
    chain[0].next = NULL, chain[0].sg_list = many, chain[0].num_sge = 16;
    ASSERT(ibv_post_send(a, chain, &bad) && bad == chain);
    /* What this device does not do is refused, or a completion that says so. */
    static const enum ibv_wr_opcode strange[] = {IBV_WR_LOCAL_INV, IBV_WR_TSO};
    for (int n = 0; n < 2; n++) {
        struct ibv_send_wr wr = {.wr_id = 60, .opcode = strange[n], .send_flags = IBV_SEND_SIGNALED, .invalidate_rkey = theirs.mr->rkey};
        if (ibv_post_send(a, &wr, &bad)) {
            ASSERT(bad == &wr);
            continue;
        }
        struct ibv_wc wc = wait_for(cq);
        ASSERT(wc.status == IBV_WC_LOC_QP_OP_ERR && wc.wr_id == 60 && query(a).qp_state == IBV_QPS_ERR);
        ASSERT(!to(a, IBV_QPS_RESET) && !to(b, IBV_QPS_RESET));
        connect_qps(a, b);
    }
    /* The receiver's key is invalid from then on. */
    struct memory last = memory();
    struct ibv_sge place = {(uintptr_t)theirs.bytes, 64, theirs.mr->lkey};
    struct ibv_recv_wr recv = {.wr_id = 70, .sg_list = &place, .num_sge = 1};
    ASSERT(!ibv_post_recv(b, &recv, &bad_recv));
    struct ibv_send_wr inval = {.wr_id = 71, .sg_list = &one, .num_sge = 1, .opcode = IBV_WR_SEND_WITH_INV, .send_flags = IBV_SEND_SIGNALED, .invalidate_rkey = last.mr->rkey};
    if (!ibv_post_send(a, &inval, &bad)) {
        for (int n = 0; n < 2; n++) {
            struct ibv_wc wc = wait_for(cq);
            ASSERT(wc.status == IBV_WC_SUCCESS);
            if (wc.wr_id == 70)
                ASSERT(wc.wc_flags & IBV_WC_WITH_INV && wc.invalidated_rkey == last.mr->rkey);
        }
    } else {
        puts("opcodes: no SEND_WITH_INV");
    }
    /* Errors: the cause, then flushes in order. */
    for (int n = 0; n < 8; n++)
        chain[n] = (struct ibv_send_wr){.wr_id = n, .next = n < 7 ? &chain[n + 1] : NULL, .sg_list = &one, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE,
                                        .send_flags = IBV_SEND_SIGNALED, .wr.rdma = {(uintptr_t)theirs.bytes, n == 2 ? 0xdead00 : theirs.mr->rkey}};
    ASSERT(!ibv_post_send(a, chain, &bad));
    for (uint64_t n = 0; n < 8; n++) {
        struct ibv_wc wc = wait_for(cq);
        ASSERT(wc.wr_id == n);
        ASSERT(wc.status == (n < 2 ? IBV_WC_SUCCESS : n == 2 ? IBV_WC_REM_ACCESS_ERR : IBV_WC_WR_FLUSH_ERR));
    }
    ASSERT(query(a).qp_state == IBV_QPS_ERR);
    ASSERT(!ibv_destroy_qp(a) && !ibv_destroy_qp(b) && !ibv_destroy_cq(cq));
    ASSERT(!ibv_dereg_mr(mine.mr) && !ibv_dereg_mr(theirs.mr) && !ibv_dereg_mr(last.mr));
    free(mine.bytes), free(theirs.bytes), free(last.bytes);
    puts("opcodes: done");
}

/* The next asynchronous event, which must come. */
static struct ibv_async_event next_event(void)
{
    struct ibv_async_event event;
    struct pollfd fd = {context->async_fd, POLLIN, 0};
    ASSERT(poll(&fd, 1, 30000) == 1);
    ASSERT(!ibv_get_async_event(context, &event));
    return event;
}

static void shared_receive_queue(void)
{
    struct ibv_cq *cq = ibv_create_cq(context, 4 * DEPTH, NULL, NULL, 0);
    struct ibv_srq_init_attr wanted = {.attr = {.max_wr = 16, .max_sge = 2}};
    struct ibv_srq *srq = ibv_create_srq(pd, &wanted);
    ASSERT(srq);
    struct ibv_srq_attr attr;
    ASSERT(!ibv_query_srq(srq, &attr) && attr.max_wr >= 16 && attr.max_sge >= 2 && attr.srq_limit == 0);
    struct ibv_qp *a = create(cq, NULL), *b = create(cq, srq);
    connect_qps(a, b);
    struct memory mine = memory();
    struct ibv_sge sge[2] = {{(uintptr_t)mine.bytes, 8, mine.mr->lkey}, {(uintptr_t)mine.bytes + 64, 56, mine.mr->lkey}};
    struct ibv_recv_wr *bad_recv;
    for (int n = 0; n < 6; n++) {
        struct ibv_recv_wr recv = {.wr_id = n, .sg_list = sge, .num_sge = 2};
        ASSERT(!ibv_post_srq_recv(srq, &recv, &bad_recv));
    }
    /* Armed at 4: with the third receive fewer are left. */
    attr.srq_limit = 4;
    ASSERT(!ibv_modify_srq(srq, &attr, IBV_SRQ_LIMIT));
    ASSERT(!ibv_query_srq(srq, &attr) && attr.srq_limit == 4);
    attr.max_wr = 64;
    ASSERT(ibv_modify_srq(srq, &attr, IBV_SRQ_MAX_WR));
    attr.srq_limit = 1 << 20;
    ASSERT(ibv_modify_srq(srq, &attr, IBV_SRQ_LIMIT));
    struct ibv_send_wr *bad, wr = {.sg_list = sge, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED};
    for (int n = 0; n < 3; n++) {
        ASSERT(!ibv_post_send(a, &wr, &bad));
        ASSERT(wait_for(cq).status == IBV_WC_SUCCESS && wait_for(cq).status == IBV_WC_SUCCESS);
    }
    struct ibv_async_event event;
    do {
        event = next_event();
        /* A QP tells that its peer is there; that is no surprise. */
        ASSERT(event.event_type == IBV_EVENT_SRQ_LIMIT_REACHED || event.event_type == IBV_EVENT_COMM_EST);
        ASSERT(event.event_type != IBV_EVENT_SRQ_LIMIT_REACHED || event.element.srq == srq);
        ibv_ack_async_event(&event);
    } while (event.event_type != IBV_EVENT_SRQ_LIMIT_REACHED);
    ASSERT(!ibv_query_srq(srq, &attr) && attr.srq_limit == 0);
    /* The queue's last QP goes to error: so it is told. */
    ASSERT(!to(b, IBV_QPS_ERR));
    event = next_event();
    ASSERT(event.event_type == IBV_EVENT_QP_LAST_WQE_REACHED && event.element.qp == b);
    ibv_ack_async_event(&event);
    ASSERT(ibv_destroy_srq(srq) == EBUSY);
    ASSERT(!ibv_destroy_qp(a) && !ibv_destroy_qp(b) && !ibv_destroy_srq(srq) && !ibv_destroy_cq(cq) && !ibv_dereg_mr(mine.mr));
    free(mine.bytes);
    puts("shared receive queue: done");
}

enum { THREADS = 8, ROUNDS = 100 };
static struct ibv_qp *failing[THREADS];

/* Sends with a completion channel, then fails; its events are read by another. */
static void *worker(void *number)
{
    struct ibv_comp_channel *channel = ibv_create_comp_channel(context);
    struct ibv_cq *cq = ibv_create_cq(context, 2 * DEPTH, number, channel, (int)(intptr_t)number % context->num_comp_vectors);
    ASSERT(channel && cq);
    struct ibv_qp *a = create(cq, NULL), *b = create(cq, NULL);
    connect_qps(a, b);
    struct memory mine = memory();
    struct ibv_sge from = {(uintptr_t)mine.bytes, 512, mine.mr->lkey}, place = {(uintptr_t)mine.bytes + 4096, 512, mine.mr->lkey};
    struct ibv_send_wr *bad, wr = {.sg_list = &from, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED};
    struct ibv_recv_wr *bad_recv, recv = {.sg_list = &place, .num_sge = 1};
    unsigned events = 0;
    for (int round = 0; round < ROUNDS; round++) {
        memset(mine.bytes, round + 1, 512);
        ASSERT(!ibv_req_notify_cq(cq, 0));
        ASSERT(!ibv_post_recv(b, &recv, &bad_recv) && !ibv_post_send(a, &wr, &bad));
        int done = 0;
        while (done < 2) {
            struct ibv_cq *of;
            void *context_of;
            ASSERT(!ibv_get_cq_event(channel, &of, &context_of));
            ASSERT(of == cq && context_of == number);
            events++;
            ASSERT(!ibv_req_notify_cq(cq, 0));
            struct ibv_wc wc;
            int found;
            while ((found = ibv_poll_cq(cq, 1, &wc))) {
                ASSERT(found == 1 && wc.status == IBV_WC_SUCCESS);
                done++;
            }
        }
        ASSERT(mine.bytes[4096] == (uint8_t)(round + 1) && mine.bytes[4096 + 511] == (uint8_t)(round + 1));
        /* Of the last arm an event may be on its way: it is taken in the next round. */
    }
    wr.opcode = IBV_WR_RDMA_WRITE, wr.wr.rdma.remote_addr = 0, wr.wr.rdma.rkey = 0xbad00;
    failing[(intptr_t)number] = b;
    ASSERT(!ibv_post_send(a, &wr, &bad));
    ASSERT(wait_for(cq).status == IBV_WC_REM_ACCESS_ERR);
    ibv_ack_cq_events(cq, events);
    ASSERT(!ibv_destroy_qp(a));
    /* Waits until its event was acknowledged. */
    while (failing[(intptr_t)number])
        sched_yield();
    ASSERT(!ibv_destroy_qp(b) && !ibv_destroy_cq(cq) && !ibv_destroy_comp_channel(channel) && !ibv_dereg_mr(mine.mr));
    free(mine.bytes);
    return NULL;
}

static void threads(void)
{
    pthread_t all[THREADS];
    for (intptr_t n = 0; n < THREADS; n++)
        ASSERT(!pthread_create(&all[n], NULL, worker, (void *)n));
    for (int errors = 0; errors < THREADS;) {
        struct ibv_async_event event = next_event();
        int known = 0;
        if (event.event_type == IBV_EVENT_QP_ACCESS_ERR) {
            for (int n = 0; n < THREADS; n++)
                if (__atomic_load_n(&failing[n], __ATOMIC_ACQUIRE) == event.element.qp) {
                    known = 1;
                    ibv_ack_async_event(&event);
                    __atomic_store_n(&failing[n], NULL, __ATOMIC_RELEASE);
                }
            ASSERT(known);
            errors++;
        } else {
            ASSERT(event.event_type == IBV_EVENT_COMM_EST);
            ibv_ack_async_event(&event);
        }
    }
    for (int n = 0; n < THREADS; n++)
        ASSERT(!pthread_join(all[n], NULL));
    printf("threads: %d with %d rounds each\n", THREADS, ROUNDS);
}

int main(void)
{
    struct ibv_device **devices = ibv_get_device_list(NULL);
    ASSERT(devices && devices[0]);
    context = ibv_open_device(devices[0]);
    ASSERT(context);
    ibv_free_device_list(devices);
    pd = ibv_alloc_pd(context);
    ASSERT(pd && !ibv_query_gid(context, 1, GID, &gid));
    states();
    opcodes();
    shared_receive_queue();
    threads();
    ASSERT(!ibv_dealloc_pd(pd) && !ibv_close_device(context));
    puts("verbs: done");
    return 0;
}
