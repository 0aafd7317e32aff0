// MPI_Allreduce of fp32 sums in place, timed as `ringstep bench collectives --transport mpi --algorithm mpi` times it: so many in a
// row, after a small reduction by which ranks meet; the median over iterations of the slowest rank's time for a call.
#include <mpi.h>
#include <stdint.h>

#include "../common/timing.h"

enum { WARMUP = 10 };

static double once(float *data, size_t count, int in_a_row, MPI_Comm comm) {
    int64_t words[2] = {1, ~1};
    MPI_Request request;
    int done = 0;
    PMPI_Iallreduce(MPI_IN_PLACE, words, 2, MPI_INT64_T, MPI_MAX, comm, &request);
    while (!done) PMPI_Test(&request, &done, MPI_STATUS_IGNORE);
    double start = now();
    for (int i = 0; i < in_a_row; i++) PMPI_Allreduce(MPI_IN_PLACE, data, (int)count, MPI_FLOAT, MPI_SUM, comm);
    return (now() - start) / in_a_row;
}

// In microseconds, on rank 0.
static double timed(float *data, size_t count, int in_a_row, MPI_Comm comm) {
    static double mine[MOST], worst[MOST];
    double warm = 0;
    for (int i = 0; i < WARMUP; i++) warm += once(data, count, in_a_row, comm);
    double fit = BUDGET / (warm / WARMUP * in_a_row);
    int iterations = fit < LEAST ? LEAST : fit > MOST ? MOST : (int)fit;
    PMPI_Bcast(&iterations, 1, MPI_INT, 0, comm);
    for (int i = 0; i < iterations; i++) mine[i] = once(data, count, in_a_row, comm);
    PMPI_Reduce(mine, worst, iterations, MPI_DOUBLE, MPI_MAX, 0, comm);
    qsort(worst, iterations, sizeof *worst, ascending);
    return worst[(iterations + 1) / 2 - 1] * 1e6;
}
