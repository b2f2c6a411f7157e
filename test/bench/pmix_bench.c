/* What PMIx takes for the exchanges of a start: put, commit, fence and get of an id of 128 bytes, as the tree of supervisors does them
 * in launch-bench (docs/adr/0063-tree-of-supervisors.md). Not part of the build:
 *
 *     cc -O2 -I/usr/lib/x86_64-linux-gnu/pmix2/include pmix_bench.c -o pmix_bench -L/usr/lib/x86_64-linux-gnu/pmix2/lib -lpmix
 *     mpirun --oversubscribe -n 64 ./pmix_bench
 *
 * Rank 0 prints its times: of the connection, of the median exchange in which all get one part, and of one in which all get all parts. */
#include <pmix.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { kTurns = 5, kBytes = 128 };

static double now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static void expect(pmix_status_t status, const char *what) {
  if (status == PMIX_SUCCESS)
    return;
  fprintf(stderr, "%s: %s\n", what, PMIx_Error_string(status));
  exit(1);
}

static int byValue(const void *a, const void *b) {
  double left = *(const double *)a, right = *(const double *)b;
  return (left > right) - (left < right);
}

static void put(const char *key, char *bytes) {
  pmix_value_t value;
  value.type = PMIX_BYTE_OBJECT;
  value.data.bo.bytes = bytes;
  value.data.bo.size = kBytes;
  expect(PMIx_Put(PMIX_GLOBAL, key, &value), "put");
  expect(PMIx_Commit(), "commit");
}

static void get(const pmix_proc_t *of, const char *key) {
  pmix_value_t *value = NULL;
  expect(PMIx_Get(of, key, NULL, 0, &value), "get");
  if (value->type != PMIX_BYTE_OBJECT || value->data.bo.size != kBytes)
    expect(PMIX_ERROR, "what was got");
  PMIX_VALUE_RELEASE(value);
}

int main(void) {
  pmix_proc_t self, all;
  double begin = now();
  expect(PMIx_Init(&self, NULL, 0), "init");
  double connected = now() - begin;
  PMIX_PROC_CONSTRUCT(&all);
  PMIX_LOAD_PROCID(&all, self.nspace, PMIX_RANK_WILDCARD);
  pmix_value_t *value = NULL;
  expect(PMIx_Get(&all, PMIX_JOB_SIZE, NULL, 0, &value), "job size");
  uint32_t ranks = value->data.uint32;
  PMIX_VALUE_RELEASE(value);
  char bytes[kBytes];
  memset(bytes, 'x', sizeof bytes);
  pmix_info_t collect;
  bool yes = true;
  PMIX_INFO_LOAD(&collect, PMIX_COLLECT_DATA, &yes, PMIX_BOOL);
  expect(PMIx_Fence(&all, 1, NULL, 0), "fence");
  double one[kTurns], whole[kTurns];
  for (int turn = 0; turn < kTurns; ++turn) {
    char key[32];
    snprintf(key, sizeof key, "one %d", turn);
    double from = now();
    if (self.rank == 0)
      put(key, bytes);
    expect(PMIx_Fence(&all, 1, &collect, 1), "fence");
    pmix_proc_t first = all;
    first.rank = 0;
    get(&first, key);
    expect(PMIx_Fence(&all, 1, NULL, 0), "fence");
    one[turn] = now() - from;
  }
  for (int turn = 0; turn < kTurns; ++turn) {
    char key[32];
    snprintf(key, sizeof key, "all %d", turn);
    double from = now();
    put(key, bytes);
    expect(PMIx_Fence(&all, 1, &collect, 1), "fence");
    for (uint32_t rank = 0; rank < ranks; ++rank) {
      pmix_proc_t of = all;
      of.rank = rank;
      get(&of, key);
    }
    expect(PMIx_Fence(&all, 1, NULL, 0), "fence");
    whole[turn] = now() - from;
  }
  qsort(one, kTurns, sizeof *one, byValue);
  qsort(whole, kTurns, sizeof *whole, byValue);
  if (self.rank == 0)
    printf("%u ranks: connected in %.1f ms; an exchange of one part %.1f ms, of all parts %.1f ms\n", ranks, 1e3 * connected,
           1e3 * one[kTurns / 2], 1e3 * whole[kTurns / 2]);
  expect(PMIx_Finalize(NULL, 0), "finalize");
  return 0;
}
