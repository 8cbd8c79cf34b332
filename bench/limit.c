/* The limits of this machine, to which bench/compare compares every system.
 *
 *   limit stream tcp|unix:PATH N a server of raw values, without frames, keys or lookups; it
 *                                polls for N microseconds before it sleeps
 *   limit empty tcp|unix:PATH N  a server of Honeycomb's frames that stores nothing: it replies to
 *                                KvGet with N bytes, and to other requests with none
 *   limit client                 a worker (contract.h) for `stream`. It first tries sizes of pieces,
 *                                socket buffers, zero copy, reused and fresh memory, and measures with
 *                                the best choice, which "about" names
 *
 * Both servers print their address, serve on one core and end when their standard input closes.
 */
#include "contract.h"
#include <errno.h>
#include <fcntl.h>
#include <linux/errqueue.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#ifndef SO_ZEROCOPY
#define SO_ZEROCOPY 60
#endif
#ifndef MSG_ZEROCOPY
#define MSG_ZEROCOPY 0x4000000
#endif

#define VALUE_MAX (128ull << 20)
/* Bytes of the memory that a sender of fresh memory cycles through: larger than any cache. */
#define FRESH (256ull << 20)
/* Smaller values are always in the cache, so fresh memory makes no difference for them. */
#define FRESH_MIN (64ull << 10)

/* A way to transfer bytes; also the header of each request, so that both sides use the same way. */
struct way {
    uint64_t size;
    uint32_t put, piece, buffer, zerocopy, fresh, spin_us;
};

static void *mapped(size_t length) {
    void *at = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) fail("no memory: %s", strerror(errno));
    madvise(at, length, MADV_HUGEPAGE);
    memset(at, 0x5a, length);
    return at;
}

static void tune(int fd, const struct way *way, struct way *last) {
    if (way->buffer && way->buffer != last->buffer) {
        int bytes = (int)way->buffer;
        setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes);
        setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &bytes, sizeof bytes);
    }
    *last = *way;
}

/* Waits for events: sleeps at once, or first yields for `spin_us` microseconds. */
static void await(int fd, short events, uint32_t spin_us) {
    struct pollfd p = {.fd = fd, .events = events};
    if (spin_us) {
        uint64_t until = now_ns(CLOCK_MONOTONIC) + spin_us * 1000ull;
        do {
            if (poll(&p, 1, 0) > 0) return;
            sched_yield();
        } while (now_ns(CLOCK_MONOTONIC) < until);
    }
    poll(&p, 1, -1);
}

/* The number of MSG_ZEROCOPY sends whose memory the kernel still uses. */
static uint32_t reap(int fd, uint32_t pending) {
    while (pending) {
        char control[128];
        struct msghdr m = {.msg_control = control, .msg_controllen = sizeof control};
        if (recvmsg(fd, &m, MSG_ERRQUEUE | MSG_DONTWAIT) < 0) {
            if (errno != EAGAIN) fail("recvmsg: %s", strerror(errno));
            struct pollfd p = {.fd = fd, .events = 0};
            poll(&p, 1, 100);
            continue;
        }
        for (struct cmsghdr *c = CMSG_FIRSTHDR(&m); c; c = CMSG_NXTHDR(&m, c)) {
            struct sock_extended_err e;
            memcpy(&e, CMSG_DATA(c), sizeof e);
            if (e.ee_origin == SO_EE_ORIGIN_ZEROCOPY) {
                uint32_t done = e.ee_data - e.ee_info + 1;
                pending -= done < pending ? done : pending;
            }
        }
    }
    return pending;
}

static void send_all(int fd, const unsigned char *from, uint64_t length, const struct way *way) {
    uint32_t pending = 0;
    int flags = MSG_NOSIGNAL | (way->spin_us ? MSG_DONTWAIT : 0);
    int zero = way->zerocopy && length >= 64 * 1024;
    while (length) {
        size_t piece = length < way->piece ? length : way->piece;
        ssize_t n = send(fd, from, piece, flags | (zero ? MSG_ZEROCOPY : 0));
        if (n < 0) {
            if (errno == EAGAIN) { await(fd, POLLOUT, way->spin_us); continue; }
            if (errno == ENOBUFS && zero) { pending = reap(fd, pending); continue; }
            if (errno == EINTR) continue;
            fail("send: %s", strerror(errno));
        }
        pending += (uint32_t)zero;
        from += n;
        length -= (uint64_t)n;
    }
    reap(fd, pending);
}

/* False at the end of the stream. */
static int receive_all(int fd, unsigned char *to, uint64_t length, const struct way *way) {
    while (length) {
        size_t piece = length < way->piece ? length : way->piece;
        if (way->spin_us) {
            ssize_t n = recv(fd, to, piece, MSG_DONTWAIT);
            if (n < 0 && errno == EAGAIN) { await(fd, POLLIN, way->spin_us); continue; }
            if (n <= 0) return 0;
            to += n, length -= (uint64_t)n;
            continue;
        }
        ssize_t n = recv(fd, to, piece, 0);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return 0;
        to += n, length -= (uint64_t)n;
    }
    return 1;
}

static int listening(const char *where) {
    int fd;
    if (!strncmp(where, "unix:", 5)) {
        struct sockaddr_un a = {.sun_family = AF_UNIX};
        if (strlen(where + 5) >= sizeof a.sun_path) fail("%s is too long", where);
        strcpy(a.sun_path, where + 5);
        unlink(a.sun_path);
        fd = socket(AF_UNIX, SOCK_STREAM, 0);
        if (bind(fd, (struct sockaddr *)&a, sizeof a)) fail("%s: %s", where, strerror(errno));
        printf("%s\n", where);
    } else {
        struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
        socklen_t length = sizeof a;
        fd = socket(AF_INET, SOCK_STREAM, 0);
        if (bind(fd, (struct sockaddr *)&a, sizeof a)) fail("bind: %s", strerror(errno));
        getsockname(fd, (struct sockaddr *)&a, &length);
        printf("127.0.0.1:%d\n", ntohs(a.sin_port));
    }
    if (listen(fd, 256)) fail("listen: %s", strerror(errno));
    fflush(stdout);
    return fd;
}

static void quick(int fd) {
    int one = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    setsockopt(fd, SOL_SOCKET, SO_ZEROCOPY, &one, sizeof one);
}

static int connected(const char *address) {
    int fd, bad;
    if (!strncmp(address, "unix:", 5)) {
        struct sockaddr_un a = {.sun_family = AF_UNIX};
        snprintf(a.sun_path, sizeof a.sun_path, "%s", address + 5);
        fd = socket(AF_UNIX, SOCK_STREAM, 0);
        bad = connect(fd, (struct sockaddr *)&a, sizeof a);
    } else {
        const char *colon = strrchr(address, ':');
        if (!colon) fail("no port in %s", address);
        struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK),
                                .sin_port = htons((uint16_t)atoi(colon + 1))};
        fd = socket(AF_INET, SOCK_STREAM, 0);
        bad = connect(fd, (struct sockaddr *)&a, sizeof a);
    }
    if (bad) fail("cannot connect to %s: %s", address, strerror(errno));
    quick(fd);
    return fd;
}

/* --- stream ------------------------------------------------------------------------------------ */

/* The memory of the next value: the same each time, or with `fresh` another part each time. */
static unsigned char *memory_for(const struct way *way) {
    static _Thread_local unsigned char *all;
    static _Thread_local uint64_t room, at;
    uint64_t wanted = way->fresh ? FRESH : way->size;
    if (room < wanted) {
        if (all) munmap(all, room);
        all = mapped(room = wanted);
    }
    if (!way->fresh) return all;
    at += way->size;
    if (at + way->size > FRESH) at = 0;
    return all + at;
}

/* Time that the server polls before it sleeps. */
static uint32_t spin_us;

static void *serve(void *of) {
    int fd = (int)(intptr_t)of;
    struct way way, last = {0}, head = {.piece = sizeof way, .spin_us = spin_us};
    quick(fd);
    while (receive_all(fd, (unsigned char *)&way, sizeof way, &head)) {
        if (way.size > VALUE_MAX || !way.piece) break;
        way.spin_us = spin_us;
        tune(fd, &way, &last);
        unsigned char *value = memory_for(&way);
        if (!way.put) {
            send_all(fd, value, way.size, &way);
        } else {
            if (!receive_all(fd, value, way.size, &way)) break;
            send_all(fd, value, 1, &head);
        }
    }
    /* The memory is freed with the process: a client makes few connections. */
    close(fd);
    return NULL;
}

/* Runs one thread per connection; the connections are used in turns. */
static void stream(int listener) {
    for (;;) {
        struct pollfd p[2] = {{.fd = listener, .events = POLLIN}, {.fd = 0, .events = POLLIN}};
        poll(p, 2, -1);
        if (p[1].revents) return;
        int fd = accept(listener, NULL, NULL);
        pthread_t thread;
        if (fd >= 0 && !pthread_create(&thread, NULL, serve, (void *)(intptr_t)fd)) {
            pthread_detach(thread);
        }
    }
}

static int fd = -1;
static unsigned char *received;
static struct way last;

/* Transfers one value, on the client's side. A request and a small value to put are sent together. */
static void transfer(const struct way *way) {
    tune(fd, way, &last);
    struct way head = {.piece = sizeof *way, .spin_us = way->spin_us};
    if (!way->put) {
        send_all(fd, (const unsigned char *)way, sizeof *way, &head);
        if (!receive_all(fd, received, way->size, way)) fail("the server is gone");
        return;
    }
    if (way->size <= 64 * 1024) {
        memcpy(received, way, sizeof *way);
        send_all(fd, received, sizeof *way + way->size, way);
    } else {
        send_all(fd, (const unsigned char *)way, sizeof *way, &head);
        send_all(fd, received, way->size, way);
    }
    unsigned char answer;
    if (!receive_all(fd, &answer, 1, &head)) fail("the server is gone");
}

/* Measures a way: the nanoseconds of the median transfer. */
static uint64_t tried(const struct way *way) {
    uint64_t took[64];
    int n = 0;
    transfer(way);
    uint64_t began = now_ns(CLOCK_MONOTONIC), before = began, now;
    do {
        transfer(way);
        now = now_ns(CLOCK_MONOTONIC);
        took[n++] = now - before;
        before = now;
    } while (n < 3 || (n < 64 && now - began < 30000000));
    for (int i = 1; i < n; i++)
        for (int j = i; j > 0 && took[j] < took[j - 1]; j--) {
            uint64_t t = took[j];
            took[j] = took[j - 1], took[j - 1] = t;
        }
    return took[n / 2];
}

static void better(struct way *best, uint64_t *ns, struct way other) {
    uint64_t took = tried(&other);
    if (took < *ns) *ns = took, *best = other;
}

/* Finds the best way to transfer values of this size, one choice after another. */
static struct way chosen(struct way way, int tcp) {
    uint64_t ns = UINT64_MAX;
    struct way best = way;
    for (uint32_t piece = 64 << 10; piece <= 1 << 20; piece *= 2) {
        struct way w = best;
        w.piece = piece;
        better(&best, &ns, w);
        if (way.size <= piece) break;
    }
    for (uint32_t fresh = 0; fresh < 2; fresh++) {
        struct way w = best;
        w.fresh = fresh;
        if (way.size >= FRESH_MIN) better(&best, &ns, w);
    }
    if (tcp && way.size > FRESH_MIN) {
        struct way w = best;
        w.zerocopy = 1;
        better(&best, &ns, w);
        w.piece = 1 << 20;
        better(&best, &ns, w);
    }
    /* Tried last, because the kernel no longer grows buffers whose size was set. */
    if (way.size > FRESH_MIN) {
        int kept = fd;
        struct way kept_last = last;
        for (uint32_t buffer = 1 << 20; buffer <= 4 << 20; buffer *= 4) {
            struct way w = best;
            w.buffer = buffer;
            fd = connected(getenv("LIMIT_ADDRESS"));
            memset(&last, 0, sizeof last);
            better(&best, &ns, w);
            if (best.buffer == buffer) {
                close(kept);
                kept = fd, kept_last = last;
            } else {
                close(fd);
            }
        }
        fd = kept, last = kept_last;
    }
    return best;
}

static void client(void) {
    static char line[LINE_MAX_BYTES];
    struct way way = {0};
    received = mapped(VALUE_MAX + 4096);
    while (fgets(line, sizeof line, stdin)) {
        if (field(line, "system")) {
            char address[256], op[32], about[160];
            text(line, "address", address, sizeof address);
            text(line, "op", op, sizeof op);
            setenv("LIMIT_ADDRESS", address, 1);
            if (fd >= 0) close(fd);
            fd = connected(address);
            memset(&last, 0, sizeof last);
            way = (struct way){.size = (uint64_t)number(line, "size", 64), .piece = 1 << 16,
                               .put = !strcmp(op, "put"),
                               .spin_us = (uint32_t)number(line, "spin_us", 0)};
            if (way.size > VALUE_MAX) fail("values of at most 128 MiB");
            way = chosen(way, strncmp(address, "unix:", 5) != 0);
            snprintf(about, sizeof about, "pieces of %u KiB, %s buffers, %s memory%s", way.piece >> 10,
                     way.buffer == 0 ? "usual" : way.buffer == 1 << 20 ? "1 MiB" : "4 MiB",
                     way.fresh ? "fresh" : "reused", way.zerocopy ? ", MSG_ZEROCOPY" : "");
            ready(about);
            continue;
        }
        struct round round;
        begin_round(&round, line);
        uint64_t before = round.began, now;
        int more;
        do {
            transfer(&way);
            now = now_ns(CLOCK_MONOTONIC);
            more = counted(&round, before, now, 1);
            before = now;
        } while (more);
        end_round(&round);
    }
}

/* --- empty ------------------------------------------------------------------------------------- */

#define REQUEST_HEADER 64
#define REPLY_HEADER 32
#define KV_GET 0x1201
#define BUFFER (256 << 10)

/* A connection: the rest of a partially received frame, and the bytes of its body to skip. */
struct connection {
    int fd;
    uint32_t kept;
    uint64_t skip;
    unsigned char head[REQUEST_HEADER];
};

static unsigned char in[BUFFER], out[BUFFER * 4];

static void answer_all(struct connection *c, uint32_t bytes) {
    memcpy(in, c->head, c->kept);
    ssize_t n = recv(c->fd, in + c->kept, BUFFER - c->kept, MSG_DONTWAIT);
    if (n == 0 || (n < 0 && errno != EAGAIN)) {
        close(c->fd);
        free(c);
        return;
    }
    if (n < 0) return;
    uint64_t have = c->kept + (uint64_t)n, at = 0, filled = 0;
    if (c->skip) {
        at = c->skip < have ? c->skip : have;
        c->skip -= at;
    }
    while (have - at >= REQUEST_HEADER) {
        const unsigned char *h = in + at;
        uint16_t op;
        uint32_t args, payload;
        memcpy(&op, h + 2, 2);
        memcpy(&args, h + 8, 4);
        memcpy(&payload, h + 12, 4);
        uint32_t length = op == KV_GET ? bytes : 0;
        if (filled + REPLY_HEADER + length > sizeof out) {
            send(c->fd, out, filled, MSG_NOSIGNAL);
            filled = 0;
        }
        unsigned char *r = out + filled;
        memset(r, 0, REPLY_HEADER);
        r[0] = 'h', r[1] = 'c';
        memcpy(r + 12, &length, 4);
        memcpy(r + 16, h + 16, 8);
        filled += REPLY_HEADER + length;
        at += REQUEST_HEADER + (uint64_t)args + payload;
        if (at > have) {
            c->skip = at - have;
            at = have;
        }
    }
    c->kept = (uint32_t)(have - at);
    memcpy(c->head, in + at, c->kept);
    for (uint64_t sent = 0; sent < filled;) {
        ssize_t m = send(c->fd, out + sent, filled - sent, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (m > 0) { sent += (uint64_t)m; continue; }
        if (m < 0 && errno != EAGAIN) return;
        await(c->fd, POLLOUT, 0);
    }
}

static void empty(int listener, uint32_t bytes) {
    int epoll = epoll_create1(0);
    static char at_listener, at_end;
    struct epoll_event e = {.events = EPOLLIN, .data.ptr = &at_listener}, events[256];
    epoll_ctl(epoll, EPOLL_CTL_ADD, listener, &e);
    e.data.ptr = &at_end;
    epoll_ctl(epoll, EPOLL_CTL_ADD, 0, &e);
    for (;;) {
        int n = epoll_wait(epoll, events, 256, -1);
        for (int i = 0; i < n; i++) {
            if (events[i].data.ptr == &at_end) return;
            if (events[i].data.ptr != &at_listener) {
                answer_all(events[i].data.ptr, bytes);
                continue;
            }
            struct connection *c = calloc(1, sizeof *c);
            if (!c) fail("no memory");
            c->fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK);
            quick(c->fd);
            struct epoll_event added = {.events = EPOLLIN, .data.ptr = c};
            epoll_ctl(epoll, EPOLL_CTL_ADD, c->fd, &added);
        }
    }
}

int main(int argc, char **argv) {
    if (argc == 2 && !strcmp(argv[1], "client")) {
        client();
    } else if (argc == 4 && !strcmp(argv[1], "stream")) {
        spin_us = (uint32_t)atoi(argv[3]);
        stream(listening(argv[2]));
    } else if (argc == 4 && !strcmp(argv[1], "empty")) {
        empty(listening(argv[2]), (uint32_t)atoi(argv[3]));
    } else {
        fprintf(stderr, "usage: limit stream|empty tcp|unix:PATH N, limit client\n");
        return 2;
    }
    return 0;
}
