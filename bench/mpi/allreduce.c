// The calls that `ringstep bench collectives --transport mpi --algorithm mpi` makes, from C: MPI_Allreduce of fp32 sums in
// place, on a communicator of its own, with MPI_THREAD_MULTIPLE, after the same small reduction by which ranks meet. Prints
// "BYTES MICROSECONDS" for each size: the median over iterations of the slowest rank's time.
//   mpirun -n N allreduce MIN MAX FACTOR
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { WARMUP = 10, LEAST = 7, MOST = 2000 };
static const double BUDGET = 0.25; // seconds for the timed iterations of a size
static MPI_Comm comm;

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double timed(float *data, size_t count) {
    int64_t words[2] = {1, ~1};
    MPI_Request request;
    int done = 0;
    MPI_Iallreduce(MPI_IN_PLACE, words, 2, MPI_INT64_T, MPI_MAX, comm, &request);
    while (!done) MPI_Test(&request, &done, MPI_STATUS_IGNORE);
    double start = now();
    MPI_Allreduce(MPI_IN_PLACE, data, (int)count, MPI_FLOAT, MPI_SUM, comm);
    return now() - start;
}

int main(int argc, char **argv) {
    if (argc != 4) return 2;
    size_t min = strtoull(argv[1], NULL, 10), max = strtoull(argv[2], NULL, 10), factor = strtoull(argv[3], NULL, 10);
    int level, rank;
    MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &level);
    MPI_Comm_dup(MPI_COMM_WORLD, &comm);
    MPI_Comm_rank(comm, &rank);
    float *data = calloc(max / 4, 4);
    for (size_t i = 0; i < max / 4; i += 1024) data[i] = 0; // pages are touched before anything is timed
    static double mine[MOST], worst[MOST];
    for (size_t bytes = min; bytes <= max; bytes *= factor) {
        double warm = 0;
        for (int i = 0; i < WARMUP; i++) warm += timed(data, bytes / 4);
        double fit = BUDGET / (warm / WARMUP);
        int count = fit < LEAST ? LEAST : fit > MOST ? MOST : (int)fit;
        MPI_Bcast(&count, 1, MPI_INT, 0, comm);
        for (int i = 0; i < count; i++) mine[i] = timed(data, bytes / 4);
        MPI_Reduce(mine, worst, count, MPI_DOUBLE, MPI_MAX, 0, comm);
        qsort(worst, count, sizeof *worst, ascending);
        if (rank == 0) printf("%zu %.3f\n", bytes, worst[(count + 1) / 2 - 1] * 1e6);
    }
    MPI_Finalize();
    return 0;
}
