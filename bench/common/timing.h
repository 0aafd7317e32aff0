// What programs in C that are timed beside ringstep have in common: how often and how long, by which clock.
#include <stdlib.h>
#include <time.h>

enum { LEAST = 7, MOST = 2000 }; // iterations of a size
static const double BUDGET = 0.25; // seconds for them

// The clock that Python's perf_counter reads too.
static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}
