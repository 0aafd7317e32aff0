// The calls that ringstep makes, from C in a program of its own: on a communicator of its own, with MPI_THREAD_MULTIPLE. Prints
// "BYTES MICROSECONDS" for each size.
//   mpirun -n N allreduce MIN MAX FACTOR IN_A_ROW
#include <stdio.h>

#include "timed.h"

int main(int argc, char **argv) {
    if (argc != 5) return 2;
    size_t min = strtoull(argv[1], NULL, 10), max = strtoull(argv[2], NULL, 10), factor = strtoull(argv[3], NULL, 10);
    int in_a_row = atoi(argv[4]), level, rank;
    MPI_Comm comm;
    MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &level);
    MPI_Comm_dup(MPI_COMM_WORLD, &comm);
    MPI_Comm_rank(comm, &rank);
    float *data = calloc(max / 4, 4);
    for (size_t i = 0; i < max / 4; i += 1024) data[i] = 0; // pages are touched before anything is timed
    for (size_t bytes = min; bytes <= max; bytes *= factor) {
        double time = timed(data, bytes / 4, in_a_row, comm);
        if (rank == 0) printf("%zu %.3f\n", bytes, time);
    }
    MPI_Finalize();
    return 0;
}
