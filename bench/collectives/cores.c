// How long a word takes from one core to another and is seen there: two threads on two cores answer each other. Prints
// the nanoseconds of each of twenty tenths of a second. Where a host moves the cores of a virtual machine about, near each
// other and far apart, it shows here, and whatever processes exchange through memory is faster or slower with it.
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <time.h>

enum { SAMPLES = 20, TURNS = 100 };

static _Alignas(128) atomic_int word;
static atomic_int over;

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}

static void stay_on(int core) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(core, &set);
    sched_setaffinity(0, sizeof set, &set);
}

static void *answer(void *nothing) {
    stay_on(1);
    for (int turn = 1; !over; turn += 2) {
        while (atomic_load(&word) != turn && !over) {}
        atomic_store(&word, turn + 1);
    }
    return nothing;
}

int main(void) {
    pthread_t other;
    stay_on(0);
    if (pthread_create(&other, NULL, answer, NULL)) return 1;
    int turn = 0;
    for (int i = 0; i < SAMPLES; i++) {
        double start = now(), end = start;
        int turns = 0;
        for (; end - start < 0.1; end = now(), turns += TURNS) {
            for (int j = 0; j < TURNS; j++, turn += 2) {
                atomic_store(&word, turn + 1);
                while (atomic_load(&word) != turn + 2) {}
            }
        }
        printf("%.0f ", (end - start) / turns / 2 * 1e9);
    }
    over = 1;
    puts("");
}
