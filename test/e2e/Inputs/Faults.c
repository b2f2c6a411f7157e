// Preloaded into a program: kills it, or makes a call fail, at the n-th write, sync, rename or
// removal below a folder. Tests use it to try each file operation of a save in turn, in the real
// program. FAULT_ROOT is the folder; FAULT_AT counts from 1; FAULT_KIND is kill, half (kill after
// half a write), ENOSPC or EACCES. At its end, the program writes the number of calls to the file
// FAULT_COUNT, if set.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { kFilesMax = 1024 };
static atomic_long calls;
static atomic_bool watched[kFilesMax]; // open file descriptors below the folder

static void *next(const char *name) {
  void *found = dlsym(RTLD_NEXT, name);
  if (!found)
    abort();
  return found;
}

static int isBelow(const char *path) {
  const char *root = getenv("FAULT_ROOT");
  return root && path && strncmp(path, root, strlen(root)) == 0;
}

static int isWatched(int fd) { return fd >= 0 && fd < kFilesMax && watched[fd]; }

// Counts a call. True if it must fail, with errno set; the caller does half writes.
static int isFaulted(int *isHalf) {
  long number = atomic_fetch_add(&calls, 1) + 1;
  const char *at = getenv("FAULT_AT"), *kind = getenv("FAULT_KIND");
  if (!at || !kind || number < atol(at))
    return 0;
  if (strcmp(kind, "half") == 0 && isHalf) {
    *isHalf = 1;
    return 0;
  }
  if (strcmp(kind, "kill") == 0 || strcmp(kind, "half") == 0)
    kill(getpid(), SIGKILL);
  errno = strcmp(kind, "ENOSPC") == 0 ? ENOSPC : EACCES;
  return 1;
}

__attribute__((destructor)) static void writeCount(void) {
  const char *path = getenv("FAULT_COUNT");
  FILE *file = path ? fopen(path, "w") : NULL;
  if (!file)
    return;
  fprintf(file, "%ld\n", atomic_load(&calls));
  fclose(file);
}

static int openAs(const char *name, int folder, const char *path, int flags, mode_t mode) {
  int isSaved = isBelow(path) && (flags & (O_WRONLY | O_RDWR | O_DIRECTORY));
  if (isSaved && (flags & O_CREAT) && isFaulted(NULL))
    return -1;
  int (*real)(int, const char *, int, ...) = next(name);
  int fd = real(folder, path, flags, mode);
  if (fd >= 0 && fd < kFilesMax)
    watched[fd] = isSaved;
  return fd;
}

static mode_t modeOf(int flags, va_list list) {
  return (flags & (O_CREAT | O_TMPFILE)) ? va_arg(list, mode_t) : 0;
}

#define OPEN(name, real)                                                                           \
  int name(const char *path, int flags, ...) {                                                     \
    va_list list;                                                                                  \
    va_start(list, flags);                                                                         \
    mode_t mode = modeOf(flags, list);                                                             \
    va_end(list);                                                                                  \
    return openAs(real, AT_FDCWD, path, flags, mode);                                              \
  }
OPEN(open, "openat")
OPEN(open64, "openat64")

int close(int fd) {
  if (fd >= 0 && fd < kFilesMax)
    watched[fd] = 0;
  int (*real)(int) = next("close");
  return real(fd);
}

ssize_t write(int fd, const void *data, size_t size) {
  ssize_t (*real)(int, const void *, size_t) = next("write");
  int isHalf = 0;
  if (isWatched(fd) && isFaulted(&isHalf))
    return -1;
  if (isHalf) {
    (void)!real(fd, data, size / 2);
    kill(getpid(), SIGKILL);
  }
  return real(fd, data, size);
}

ssize_t pwrite64(int fd, const void *data, size_t size, off64_t at) {
  ssize_t (*real)(int, const void *, size_t, off64_t) = next("pwrite64");
  int isHalf = 0;
  if (isWatched(fd) && isFaulted(&isHalf))
    return -1;
  if (isHalf) {
    (void)!real(fd, data, size / 2, at);
    kill(getpid(), SIGKILL);
  }
  return real(fd, data, size, at);
}

ssize_t pwrite(int fd, const void *data, size_t size, off_t at) {
  return pwrite64(fd, data, size, at);
}

#define SYNC(name)                                                                                 \
  int name(int fd) {                                                                               \
    int (*real)(int) = next(#name);                                                                \
    return isWatched(fd) && isFaulted(NULL) ? -1 : real(fd);                                       \
  }
SYNC(fsync)
SYNC(fdatasync)

int rename(const char *from, const char *to) {
  int (*real)(const char *, const char *) = next("rename");
  return isBelow(to) && isFaulted(NULL) ? -1 : real(from, to);
}

int renameat2(int fromFolder, const char *from, int toFolder, const char *to, unsigned flags) {
  int (*real)(int, const char *, int, const char *, unsigned) = next("renameat2");
  return isBelow(to) && isFaulted(NULL) ? -1 : real(fromFolder, from, toFolder, to, flags);
}

int mkdir(const char *path, mode_t mode) {
  int (*real)(const char *, mode_t) = next("mkdir");
  return isBelow(path) && isFaulted(NULL) ? -1 : real(path, mode);
}

// Folders are removed with paths relative to open folders.
int unlinkat(int folder, const char *path, int flags) {
  int (*real)(int, const char *, int) = next("unlinkat");
  char link[64], target[PATH_MAX];
  int isSaved = isBelow(path);
  if (!isSaved && folder >= 0 && path && path[0] != '/') {
    snprintf(link, sizeof link, "/proc/self/fd/%d", folder);
    ssize_t size = readlink(link, target, sizeof target - 1);
    target[size > 0 ? size : 0] = '\0';
    isSaved = isBelow(target);
  }
  return isSaved && isFaulted(NULL) ? -1 : real(folder, path, flags);
}

int remove(const char *path) {
  int (*real)(const char *) = next("remove");
  return isBelow(path) && isFaulted(NULL) ? -1 : real(path);
}

int rmdir(const char *path) {
  int (*real)(const char *) = next("rmdir");
  return isBelow(path) && isFaulted(NULL) ? -1 : real(path);
}
