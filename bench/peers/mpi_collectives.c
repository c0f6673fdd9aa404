// mpi_collectives SECONDS BYTES...: MPI between processes of this host.
//
// Prints name<TAB>value, as torch_collectives.py does, and the mean beside each
// median.

#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static double *times;
static int rank, ranks;

static int Compare(const void *a, const void *b) {
  const double x = *(const double *)a, y = *(const double *)b;
  return x < y ? -1 : x > y;
}

static void Call(int verb, float *x, float *all, int count) {
  if (verb == 0) {
    MPI_Allreduce(MPI_IN_PLACE, x, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
  } else if (verb == 1) {
    MPI_Bcast(x, count, MPI_FLOAT, 0, MPI_COMM_WORLD);
  } else if (verb == 2) {
    MPI_Allgather(x, count, MPI_FLOAT, all, count, MPI_FLOAT, MPI_COMM_WORLD);
  } else {
    MPI_Barrier(MPI_COMM_WORLD);
  }
}

static void Measure(const char *name, int verb, float *x, float *all, int count,
                    double seconds) {
  for (int i = 0; i < 3; ++i) Call(verb, x, all, count);
  double begin = MPI_Wtime();
  Call(verb, x, all, count);
  double one = MPI_Wtime() - begin;
  int rounds = one < 1e-6 ? 2000 : (int)(seconds / one);
  if (rounds < 5) rounds = 5;
  if (rounds > 2000) rounds = 2000;
  MPI_Bcast(&rounds, 1, MPI_INT, 0, MPI_COMM_WORLD);
  double sum = 0;
  for (int i = 0; i < rounds; ++i) {
    begin = MPI_Wtime();
    Call(verb, x, all, count);
    times[i] = MPI_Wtime() - begin;
    sum += times[i];
  }
  qsort(times, rounds, sizeof *times, Compare);
  if (rank != 0) return;
  printf("%s_us\t%.3f\n", name, times[rounds / 2] * 1e6);
  printf("%s_mean_us\t%.3f\n", name, sum / rounds * 1e6);
}

int main(int argc, char **argv) {
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  const double seconds = atof(argv[1]);
  times = malloc(2000 * sizeof *times);
  if (rank == 0) {
    char version[MPI_MAX_LIBRARY_VERSION_STRING];
    int length;
    MPI_Get_library_version(version, &length);
    version[strcspn(version, ",\n")] = 0;
    printf("version\t%s\n", version);
  }
  for (int i = 2; i < argc; ++i) {
    const int count = (int)(atol(argv[i]) / 4);
    float *x = malloc(count * sizeof *x);
    float *all = malloc((size_t)ranks * count * sizeof *all);
    for (int k = 0; k < count; ++k) x[k] = 1;
    Call(0, x, all, count);
    if (x[count - 1] != ranks) return 1;
    memset(x, 0, count * sizeof *x);
    char name[64];
    snprintf(name, sizeof name, "all_reduce_%s", argv[i]);
    Measure(name, 0, x, all, count, seconds);
    snprintf(name, sizeof name, "broadcast_%s", argv[i]);
    Measure(name, 1, x, all, count, seconds);
    snprintf(name, sizeof name, "all_gather_%s", argv[i]);
    Measure(name, 2, x, all, count, seconds);
    free(x);
    free(all);
  }
  Measure("barrier", 3, NULL, NULL, 0, seconds);
  MPI_Finalize();
  return 0;
}
