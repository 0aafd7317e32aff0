// A bare exchange over loopback TCP: a ring of processes in which each sends to the right what a ring all-reduce sends,
// 2(p-1)/p of the slice, while it receives as much from the left. Nothing is reduced, no step waits for another, there
// are no headers. Prints the milliseconds of the median iteration, each as long as its slowest rank, for two ways:
// writing whatever fits, and at most 256 KiB ahead of what has arrived (what is on its way then stays in the cache).
// It is what a simple loop gets from the kernel, not a proof that nothing gets more.
//   loopback WORKERS BYTES
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { MOST = 64, WARMUP = 3, TIMED = 9, MIB = 1 << 20 };
static const size_t BURST = MIB, AHEAD[] = {SIZE_MAX / 2, 256 << 10};

static struct {
    atomic_int arrived;
    double seconds[MOST][TIMED];
} *board; // shared by all

static void check(int ok, const char *what) {
    if (ok) return;
    perror(what);
    exit(1);
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}

static void barrier(int ranks, int *met) {
    atomic_fetch_add(&board->arrived, 1);
    for (*met += ranks; atomic_load(&board->arrived) < *met;) sched_yield();
}

// Bytes moved, or 0 if none can be now.
static size_t moved(ssize_t count, const char *what) {
    check(count > 0 || (count < 0 && (errno == EAGAIN || errno == EINTR)), what);
    return count > 0 ? count : 0;
}

static size_t least(size_t a, size_t b) { return a < b ? a : b; }

static void exchange(int right, int left, char *slice, size_t bytes, size_t total, size_t ahead, int crowded) {
    size_t sent = 0, received = 0;
    for (int idle = 0; sent < total || received < total;) {
        size_t before = sent + received;
        size_t allowed = least(total, received + ahead) - sent;
        if (allowed) {
            size_t at = sent % bytes, count = least(least(allowed, BURST), bytes - at);
            sent += moved(send(right, slice + at, count, MSG_DONTWAIT | MSG_NOSIGNAL), "send");
        }
        if (received < total) {
            size_t at = (received + bytes / 2) % bytes; // elsewhere than what is being sent
            received += moved(recv(left, slice + at, least(total - received, bytes - at), MSG_DONTWAIT), "recv");
        }
        idle = sent + received == before ? idle + 1 : 0;
        // The patience of ringstep's transport: with a core a rank look often, else let the others run; then sleep.
        if (idle && crowded) sched_yield();
        if (idle > (crowded ? 5 : 500)) {
            struct pollfd sockets[] = {{left, received < total ? POLLIN : 0, 0}, {right, allowed ? POLLOUT : 0, 0}};
            poll(sockets, 2, 1000);
        }
    }
}

static int listener(struct sockaddr_in *address) {
    socklen_t length = sizeof *address;
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    check(bind(fd, (void *)address, length) == 0 && listen(fd, 1) == 0, "listen");
    check(getsockname(fd, (void *)address, &length) == 0, "getsockname");
    return fd;
}

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

int main(int argc, char **argv) {
    int ranks = argc == 3 ? atoi(argv[1]) : 0;
    size_t bytes = argc == 3 ? strtoull(argv[2], NULL, 10) : 0;
    if (ranks < 2 || ranks > MOST || bytes < 2) return fprintf(stderr, "loopback WORKERS BYTES\n"), 2;
    size_t total = 2 * (ranks - 1) * (bytes / ranks);
    board = mmap(NULL, sizeof *board, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    check(board != MAP_FAILED, "mmap");

    struct sockaddr_in addresses[MOST];
    int doors[MOST]; // where rank i waits for its left neighbour
    for (int i = 0; i < ranks; i++) {
        addresses[i] = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
        doors[i] = listener(&addresses[i]);
    }
    int rank = 0;
    for (int i = 1; i < ranks && rank == 0; i++) {
        pid_t child = fork();
        check(child >= 0, "fork");
        if (child == 0) {
            rank = i;
            prctl(PR_SET_PDEATHSIG, SIGKILL);
        }
    }

    // Two ranks have one connection, both ways, as ringstep has.
    int left = -1, right = -1, one = 1;
    if (ranks > 2 || rank == 0) {
        struct sockaddr_in *to = &addresses[(rank + 1) % ranks];
        right = socket(AF_INET, SOCK_STREAM, 0);
        check(connect(right, (void *)to, sizeof *to) == 0, "connect");
    }
    if (ranks > 2 || rank == 1) check((left = accept(doors[rank], NULL, NULL)) >= 0, "accept");
    if (left < 0) left = right;
    if (right < 0) right = left;
    setsockopt(right, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    setsockopt(left, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);

    // From a page's start: 16 bytes after it, where malloc begins, the exchange took half as long again on Zen 3.
    char *slice = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    check(slice != MAP_FAILED, "mmap");
    memset(slice, 1, bytes); // touched here, so that no page fault is timed
    int crowded = ranks > sysconf(_SC_NPROCESSORS_ONLN), met = 0;
    for (int way = 0; way < 2; way++) {
        for (int i = -WARMUP; i < TIMED; i++) {
            barrier(ranks, &met);
            double start = now();
            exchange(right, left, slice, bytes, total, AHEAD[way], crowded);
            if (i >= 0) board->seconds[rank][i] = now() - start;
        }
        barrier(ranks, &met);
        if (rank == 0) {
            double slowest[TIMED] = {0};
            for (int i = 0; i < TIMED; i++)
                for (int r = 0; r < ranks; r++)
                    if (board->seconds[r][i] > slowest[i]) slowest[i] = board->seconds[r][i];
            qsort(slowest, TIMED, sizeof *slowest, ascending);
            printf("%.3f%c", slowest[TIMED / 2] * 1e3, way ? '\n' : ' ');
        }
        barrier(ranks, &met);
    }
    if (rank == 0)
        while (wait(NULL) > 0) {}
}
