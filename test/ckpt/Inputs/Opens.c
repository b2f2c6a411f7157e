/* Preloaded into a program and into those that it starts: writes the path of each file that is opened, with `r` or `w`
   before it, to the file that OPENS names. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

static int noted(int fd, int isWritten) {
  const char *log = getenv("OPENS");
  char link[64], line[4200] = {isWritten ? 'w' : 'r', ' '};
  if (fd < 0 || log == NULL)
    return fd;
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  ssize_t length = readlink(link, line + 2, sizeof line - 3);
  int to = (int)syscall(SYS_openat, AT_FDCWD, log, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666);
  if (to >= 0 && length > 0) {
    line[2 + length] = '\n';
    if (write(to, line, (size_t)length + 3) < 0)
      abort();
    close(to);
  }
  return fd;
}

static int at(int folder, const char *path, int flags, va_list more) {
  int mode = (flags & (O_CREAT | O_TMPFILE)) != 0 ? va_arg(more, int) : 0;
  int fd = (int)syscall(SYS_openat, folder, path, flags, mode);
  return (flags & O_PATH) != 0 ? fd : noted(fd, (flags & O_ACCMODE) != O_RDONLY);
}

#define OPEN(name)                                                                                 \
  int name(const char *path, int flags, ...) {                                                     \
    va_list more;                                                                                  \
    va_start(more, flags);                                                                         \
    int fd = at(AT_FDCWD, path, flags, more);                                                      \
    va_end(more);                                                                                  \
    return fd;                                                                                     \
  }
#define OPENAT(name)                                                                               \
  int name(int folder, const char *path, int flags, ...) {                                         \
    va_list more;                                                                                  \
    va_start(more, flags);                                                                         \
    int fd = at(folder, path, flags, more);                                                        \
    va_end(more);                                                                                  \
    return fd;                                                                                     \
  }
#define FOPEN(name)                                                                                \
  FILE *name(const char *path, const char *mode) {                                                 \
    FILE *(*next)(const char *, const char *) =                                                    \
        (FILE * (*)(const char *, const char *)) dlsym(RTLD_NEXT, #name);                          \
    FILE *file = next(path, mode);                                                                 \
    if (file != NULL)                                                                              \
      noted(fileno(file), strpbrk(mode, "wa+") != NULL);                                           \
    return file;                                                                                   \
  }

OPEN(open)
OPEN(open64)
OPENAT(openat)
OPENAT(openat64)
FOPEN(fopen)
FOPEN(fopen64)

/* openat2 has no function of its own in libc. */
long syscall(long number, ...) {
  long (*next)(long, ...) = (long (*)(long, ...))dlsym(RTLD_NEXT, "syscall");
  va_list more;
  long words[6];
  va_start(more, number);
  for (int i = 0; i < 6; ++i)
    words[i] = va_arg(more, long);
  va_end(more);
  long result = next(number, words[0], words[1], words[2], words[3], words[4], words[5]);
#ifdef SYS_openat2
  if (number == SYS_openat2 && result >= 0 && (fcntl((int)result, F_GETFL) & O_PATH) == 0)
    noted((int)result, 0);
#endif
  return result;
}
