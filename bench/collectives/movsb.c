// How fast `rep movsb`, by which Linux copies to and from sockets, copies within the caches, by how many bytes further into
// a page it writes than it reads. Prints the GB/s of the best of some tries: 16 bytes further, and the slowest of 0, 32,
// 64 and 2048. Where the first is much lower, crates/comm/src/transport/stream.rs says what follows. x86-64 only.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { TRIES = 9, PIECE = 32 << 10, TOTAL = 4 << 20 };

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}

static double speed(char *to, const char *from) {
    double best = 0;
    for (int i = 0; i < TRIES; i++) {
        double start = now();
        for (size_t at = 0; at < TOTAL; at += PIECE) {
            void *d = to;
            const void *s = from + at;
            size_t n = PIECE;
            __asm__ volatile("rep movsb" : "+D"(d), "+S"(s), "+c"(n) : : "memory");
        }
        double rate = TOTAL / (now() - start) / 1e9;
        if (rate > best) best = rate;
    }
    return best;
}

int main(void) {
    char *from = aligned_alloc(4096, TOTAL), *to = aligned_alloc(4096, PIECE + 4096);
    if (!from || !to) return 1;
    memset(from, 1, TOTAL);
    memset(to, 1, PIECE + 4096);
    const int others[] = {0, 32, 64, 2048};
    double least = 1e9;
    for (int i = 0; i < 4; i++) {
        double rate = speed(to + others[i], from);
        if (rate < least) least = rate;
    }
    printf("%.1f %.1f\n", speed(to + 16, from), least);
}
