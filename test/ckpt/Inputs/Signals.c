/* Preloaded into a program: sends it SIGTERM when it creates a data file of a checkpoint or of a model, and again at
   each removal after that. Where a sanitizer's runtime comes first, it has its own of these functions, which call the
   next ones. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <string.h>
#include <unistd.h>

static void sign(const char *path, int flags) {
  int isData = strstr(path, ".distcp") != NULL || strstr(path, ".safetensors") != NULL;
  if ((flags & O_CREAT) != 0 && isData)
    kill(getpid(), SIGTERM);
}

static int opened(const char *name, const char *path, int flags, va_list more) {
  int (*next)(const char *, int, ...) = (int (*)(const char *, int, ...))dlsym(RTLD_NEXT, name);
  sign(path, flags);
  return (flags & O_CREAT) != 0 ? next(path, flags, va_arg(more, int)) : next(path, flags);
}

#define OPEN(name)                                                                                                     \
  int name(const char *path, int flags, ...) {                                                                         \
    va_list more;                                                                                                      \
    va_start(more, flags);                                                                                             \
    int fd = opened(#name, path, flags, more);                                                                         \
    va_end(more);                                                                                                      \
    return fd;                                                                                                         \
  }
OPEN(open)
OPEN(open64)

int unlinkat(int folder, const char *path, int flags) {
  int (*next)(int, const char *, int) = (int (*)(int, const char *, int))dlsym(RTLD_NEXT, "unlinkat");
  kill(getpid(), SIGTERM);
  return next(folder, path, flags);
}
