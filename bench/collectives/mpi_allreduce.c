// MPI_Allreduce of fp32 sums, timed by the rule in compare.py; a line of JSON for each size, from rank 0.
//   mpirun -n N mpi_allreduce --min BYTES --max BYTES
#include <math.h>
#include <mpi.h>
#include <stdio.h>
#include <string.h>

#include "../common/timing.h"

enum { WARMUP = 5 };

// Nearest rank: the smallest time that a share q of all n does not exceed.
static double quantile(const double *sorted, int n, double q) {
    return sorted[(int)ceil(q * n) - 1];
}

static double timed(const float *send, float *recv, size_t count) {
    MPI_Barrier(MPI_COMM_WORLD);
    double start = now();
    MPI_Allreduce(send, recv, (int)count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    return now() - start;
}

int main(int argc, char **argv) {
    size_t min = 1 << 10, max = 64 << 20;
    for (int i = 1; i + 1 < argc; i += 2) {
        if (!strcmp(argv[i], "--min")) min = strtoull(argv[i + 1], NULL, 10);
        if (!strcmp(argv[i], "--max")) max = strtoull(argv[i + 1], NULL, 10);
    }
    MPI_Init(&argc, &argv);
    int rank, p;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &p);
    float *send = aligned_alloc(64, max), *recv = aligned_alloc(64, max);
    static double mine[MOST], worst[MOST];

    // Small integers: every sum is exact, in whatever order it is taken.
    for (size_t i = 0; i < max / 4; i++) send[i] = (float)((rank + 1) * (i % 1024 + 1));
    memset(recv, 0, max); // pages are touched before anything is timed

    for (size_t bytes = min; bytes <= max; bytes *= 4) {
        size_t count = bytes / 4;
        for (int i = 0; i < WARMUP; i++) timed(send, recv, count);
        double start = now();
        for (int i = 0; i < WARMUP; i++) timed(send, recv, count);
        double fit = BUDGET / ((now() - start) / WARMUP);
        int n = fit < LEAST ? LEAST : fit > MOST ? MOST : (int)fit;
        MPI_Bcast(&n, 1, MPI_INT, 0, MPI_COMM_WORLD);

        for (int i = 0; i < n; i++) mine[i] = timed(send, recv, count);
        MPI_Reduce(mine, worst, n, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);

        memset(recv, 0xff, bytes); // NaN, so that only this call can make it right
        MPI_Allreduce(send, recv, (int)count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
        long bad = 0, wrong = 0;
        for (size_t i = 0; i < count; i++) bad += recv[i] != (float)(p * (p + 1) / 2 * (i % 1024 + 1));
        MPI_Reduce(&bad, &wrong, 1, MPI_LONG, MPI_SUM, 0, MPI_COMM_WORLD);

        if (rank == 0) {
            qsort(worst, n, sizeof *worst, ascending);
            double p50 = quantile(worst, n, 0.5);
            printf("{\"bytes\": %zu, \"us_min\": %.3f, \"us_p50\": %.3f, \"us_p99\": %.3f, "
                   "\"busbw\": %.6f, \"wrong\": %ld}\n",
                   bytes, worst[0] * 1e6, p50 * 1e6, quantile(worst, n, 0.99) * 1e6,
                   2.0 * (p - 1) / p * bytes / p50 / 1e9, wrong);
            fflush(stdout);
        }
    }
    MPI_Finalize();
}
