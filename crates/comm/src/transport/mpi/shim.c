/* What ffi.rs calls: MPI in types that are the same for every MPI. Handles, which are pointers for one and numbers for
   another, are 64 bits here; all functions return MPI's code of an error, and 0 if there is none. */
#include <mpi.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

_Static_assert(sizeof(MPI_Comm) <= 8 && sizeof(MPI_Request) <= 8, "handles fit into 64 bits");
_Static_assert(MPI_SUCCESS == 0, "the code of success is the same for all");

static MPI_Comm comm_of(uint64_t bits) {
    MPI_Comm comm;
    memcpy(&comm, &bits, sizeof comm);
    return comm;
}

static MPI_Request request_of(uint64_t bits) {
    MPI_Request request;
    memcpy(&request, &bits, sizeof request);
    return request;
}

static uint64_t bits_of(const void *handle, size_t size) {
    uint64_t bits = 0;
    memcpy(&bits, handle, size);
    return bits;
}

#define TRY(call)                      \
    do {                               \
        int code = (call);             \
        if (code != MPI_SUCCESS)       \
            return code;               \
    } while (0)

/* Element types and operations, in the order of element.rs. */
enum { F32, F64, F16, BF16, I32, I64, U8, TYPES };
enum { SUM, MEAN, MAX, MIN, PRODUCT, OPS };

/* What MPI has no operation for: floats in their total order, and 16-bit floats. */
extern void ringstep_mpi_reduce(int type, int op, const void *in, void *into, int length);
static MPI_Op own[TYPES][OPS];

#define OWN(type, op)                                                             \
    static void own_##type##_##op(void *in, void *into, int *length, MPI_Datatype *t) { \
        (void)t;                                                                  \
        ringstep_mpi_reduce(type, op, in, into, *length);                         \
    }
#define OWN_FLOAT(type) OWN(type, MAX) OWN(type, MIN)
#define OWN_HALF(type) OWN_FLOAT(type) OWN(type, SUM) OWN(type, PRODUCT)
OWN_FLOAT(F32)
OWN_FLOAT(F64)
OWN_HALF(F16)
OWN_HALF(BF16)

static MPI_Datatype datatype(int type) {
    switch (type) {
    case F32: return MPI_FLOAT;
    case F64: return MPI_DOUBLE;
    case F16: return MPI_UINT16_T;
    case BF16: return MPI_UINT16_T;
    case I32: return MPI_INT32_T;
    case I64: return MPI_INT64_T;
    default: return MPI_UINT8_T;
    }
}

static MPI_Op operation(int type, int op) {
    op = op == MEAN ? SUM : op;
    int is_half = type == F16 || type == BF16, is_float = is_half || type == F32 || type == F64;
    if (is_half || (is_float && (op == MAX || op == MIN)))
        return own[type][op];
    switch (op) {
    case SUM: return MPI_SUM;
    case MAX: return MPI_MAX;
    case MIN: return MPI_MIN;
    default: return MPI_PROD;
    }
}

/* Starts MPI. `enough` says whether any thread may then call it at any time. */
int ringstep_mpi_init(int *enough, int *rank, int *size) {
    int level;
    TRY(MPI_Init_thread(NULL, NULL, MPI_THREAD_MULTIPLE, &level));
    TRY(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN));
    TRY(MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN));
    TRY(MPI_Comm_rank(MPI_COMM_WORLD, rank));
    TRY(MPI_Comm_size(MPI_COMM_WORLD, size));
    *enough = level >= MPI_THREAD_MULTIPLE;
#define CREATE(type, op) TRY(MPI_Op_create(own_##type##_##op, 1, &own[type][op]));
#define CREATE_FLOAT(type) CREATE(type, MAX) CREATE(type, MIN)
#define CREATE_HALF(type) CREATE_FLOAT(type) CREATE(type, SUM) CREATE(type, PRODUCT)
    CREATE_FLOAT(F32)
    CREATE_FLOAT(F64)
    CREATE_HALF(F16)
    CREATE_HALF(BF16)
    return MPI_SUCCESS;
}

int ringstep_mpi_finalize(void) {
    for (int type = 0; type < TYPES; type++)
        for (int op = 0; op < OPS; op++)
            if (type <= BF16 && (type >= F16 || op == MAX || op == MIN) && op != MEAN)
                TRY(MPI_Op_free(&own[type][op]));
    return MPI_Finalize();
}

int ringstep_mpi_abort(void) { return MPI_Abort(MPI_COMM_WORLD, 1); }

/* Both write at most `room` bytes, with a zero at the end. */
static void copy_text(const char *text, char *into, int room) {
    strncpy(into, text, (size_t)room - 1);
    into[room - 1] = 0;
}

void ringstep_mpi_library(char *into, int room) {
    char text[MPI_MAX_LIBRARY_VERSION_STRING] = "";
    int length;
    MPI_Get_library_version(text, &length);
    copy_text(text, into, room);
}

void ringstep_mpi_error(int code, char *into, int room) {
    char text[MPI_MAX_ERROR_STRING] = "";
    int length;
    MPI_Error_string(code, text, &length);
    copy_text(text, into, room);
}

/* A communicator of these processes, in this order; all of them call this, and nobody else need. */
int ringstep_mpi_create(const int *members, int count, int tag, uint64_t *created) {
    MPI_Group world, group;
    MPI_Comm comm;
    TRY(MPI_Comm_group(MPI_COMM_WORLD, &world));
    TRY(MPI_Group_incl(world, count, members, &group));
    TRY(MPI_Comm_create_group(MPI_COMM_WORLD, group, tag, &comm));
    TRY(MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN));
    *created = bits_of(&comm, sizeof comm);
    TRY(MPI_Group_free(&group));
    return MPI_Group_free(&world);
}

int ringstep_mpi_free(uint64_t comm) {
    MPI_Comm handle = comm_of(comm);
    return MPI_Comm_free(&handle);
}

int ringstep_mpi_isend(uint64_t comm, const void *data, int bytes, int to, int tag, uint64_t *request) {
    MPI_Request handle;
    TRY(MPI_Isend(data, bytes, MPI_BYTE, to, tag, comm_of(comm), &handle));
    *request = bits_of(&handle, sizeof handle);
    return MPI_SUCCESS;
}

int ringstep_mpi_irecv(uint64_t comm, void *data, int room, int from, int tag, uint64_t *request) {
    MPI_Request handle;
    TRY(MPI_Irecv(data, room, MPI_BYTE, from, tag, comm_of(comm), &handle));
    *request = bits_of(&handle, sizeof handle);
    return MPI_SUCCESS;
}

/* The largest of what all have in each place, in place: nobody is through before all have come. */
int ringstep_mpi_imax(uint64_t comm, int64_t *values, int count, uint64_t *request) {
    MPI_Request handle;
    TRY(MPI_Iallreduce(MPI_IN_PLACE, values, count, MPI_INT64_T, MPI_MAX, comm_of(comm), &handle));
    *request = bits_of(&handle, sizeof handle);
    return MPI_SUCCESS;
}

/* `count` values of each, in the order of the ranks, in place. */
int ringstep_mpi_iall_gather(uint64_t comm, int64_t *values, int count, uint64_t *request) {
    MPI_Request handle;
    TRY(MPI_Iallgather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, values, count, MPI_INT64_T, comm_of(comm), &handle));
    *request = bits_of(&handle, sizeof handle);
    return MPI_SUCCESS;
}

/* Whether a request is through, and how many bytes it has received. */
int ringstep_mpi_test(uint64_t *request, int *done, int *bytes) {
    MPI_Request handle = request_of(*request);
    MPI_Status status;
    TRY(MPI_Test(&handle, done, &status));
    *request = bits_of(&handle, sizeof handle);
    return *done ? MPI_Get_count(&status, MPI_BYTE, bytes) : MPI_SUCCESS;
}

/* A receive that is no longer wanted. */
int ringstep_mpi_cancel(uint64_t request) {
    MPI_Request handle = request_of(request);
    TRY(MPI_Cancel(&handle));
    return MPI_Request_free(&handle);
}

/* Whether a message is there, and from whom; `from` may be anybody, as -1. */
int ringstep_mpi_iprobe(uint64_t comm, int from, int tag, int *found, int *source) {
    MPI_Status status;
    TRY(MPI_Iprobe(from < 0 ? MPI_ANY_SOURCE : from, tag, comm_of(comm), found, &status));
    if (*found)
        *source = status.MPI_SOURCE;
    return MPI_SUCCESS;
}

int ringstep_mpi_all_reduce(uint64_t comm, void *data, int count, int type, int op) {
    return MPI_Allreduce(MPI_IN_PLACE, data, count, datatype(type), operation(type, op), comm_of(comm));
}

int ringstep_mpi_iall_reduce(uint64_t comm, void *data, int count, int type, int op, uint64_t *request) {
    MPI_Request handle;
    TRY(MPI_Iallreduce(MPI_IN_PLACE, data, count, datatype(type), operation(type, op), comm_of(comm), &handle));
    *request = bits_of(&handle, sizeof handle);
    return MPI_SUCCESS;
}

/* Not in place: MPICH 4.0 does not survive that at every root. */
int ringstep_mpi_reduce_to(uint64_t comm, const void *own, void *sum, int count, int type, int op, int root) {
    return MPI_Reduce(own, sum, count, datatype(type), operation(type, op), root, comm_of(comm));
}

/* Leaves this rank's `counts` at the beginning of the data. */
int ringstep_mpi_reduce_scatter(uint64_t comm, void *data, const int *counts, int type, int op) {
    return MPI_Reduce_scatter(MPI_IN_PLACE, data, counts, datatype(type), operation(type, op), comm_of(comm));
}

int ringstep_mpi_broadcast(uint64_t comm, void *data, int bytes, int root) {
    return MPI_Bcast(data, bytes, MPI_BYTE, root, comm_of(comm));
}

int ringstep_mpi_gather(uint64_t comm, const void *part, int bytes, void *all, int root) {
    return MPI_Gather(part, bytes, MPI_BYTE, all, bytes, MPI_BYTE, root, comm_of(comm));
}

int ringstep_mpi_scatter(uint64_t comm, const void *all, void *part, int bytes, int root) {
    return MPI_Scatter(all, bytes, MPI_BYTE, part, bytes, MPI_BYTE, root, comm_of(comm));
}

int ringstep_mpi_all_gather(uint64_t comm, void *data, const int *counts, const int *starts) {
    return MPI_Allgatherv(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, data, counts, starts, MPI_BYTE, comm_of(comm));
}

int ringstep_mpi_all_to_all(uint64_t comm, const void *out, void *in, int bytes) {
    return MPI_Alltoall(out, bytes, MPI_BYTE, in, bytes, MPI_BYTE, comm_of(comm));
}
