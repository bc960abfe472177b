/*
 * Makes each fdatasync and fsync of a process take SLOW_SYNC_US microseconds longer, under LD_PRELOAD: a stand-in for a
 * disk that is slower than this machine's.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <unistd.h>

static void wait_longer(void) {
  const char *us = getenv("SLOW_SYNC_US");
  if (us != NULL) usleep((useconds_t)atoi(us));
}

int fdatasync(int fd) {
  static int (*real)(int);
  if (real == NULL) real = (int (*)(int))dlsym(RTLD_NEXT, "fdatasync");
  wait_longer();
  return real(fd);
}

int fsync(int fd) {
  static int (*real)(int);
  if (real == NULL) real = (int (*)(int))dlsym(RTLD_NEXT, "fsync");
  wait_longer();
  return real(fd);
}
