// The same calls from C in ringstep's own process: a library to be loaded before MPI. At ringstep's first all-reduce of each size it
// times its own calls, on the same communicator and numbers, and rank 0 writes "BYTES MICROSECONDS" to the file $INSIDE; all
// further ones go straight on.
//   env LD_PRELOAD=inside.so INSIDE=FILE IN_A_ROW=20 MIN=1024 ringstep bench collectives --transport mpi --algorithm mpi
#include <stdio.h>
#include <string.h>

#include "timed.h"

int MPI_Allreduce(const void *from, void *data, int count, MPI_Datatype type, MPI_Op op, MPI_Comm comm) {
    static int seen[64], sizes, last = -1, least = -1;
    if (count == last) return PMPI_Allreduce(from, data, count, type, op, comm); // costs next to nothing
    if (least < 0) least = atoi(getenv("MIN")) / 4;
    int is_new = sizes < 64 && count >= least;
    for (int i = 0; i < sizes && is_new; i++) is_new = seen[i] != count;
    last = count;
    if (is_new) {
        seen[sizes++] = count;
        float *own = calloc(count, 4);
        double time = timed(own, count, atoi(getenv("IN_A_ROW")), comm);
        free(own);
        int rank;
        PMPI_Comm_rank(comm, &rank);
        FILE *file = rank ? NULL : fopen(getenv("INSIDE"), "a");
        if (file) {
            fprintf(file, "%zu %.3f\n", (size_t)count * 4, time);
            fclose(file);
        }
    }
    return PMPI_Allreduce(from, data, count, type, op, comm);
}
