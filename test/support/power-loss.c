/*
 * Records, for each file of a SQLite database, what a power loss could undo: before a write, the bytes that it replaces
 * are appended to FILE.undo, and a sync empties that. After `kill -9` the test writes them back (power-loss.ts).
 * A record: size of the file before, offset, length of the old bytes (8 bytes each), and the old bytes.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static void *next(const char *name) { return dlsym(RTLD_NEXT, name); }

static int ends_with(const char *text, const char *end) {
  size_t length = strlen(text), least = strlen(end);
  return length >= least && strcmp(text + length - least, end) == 0;
}

/* Opens FILE.undo of a descriptor; -1 if its file is not a database's. */
static int undo_of(int fd, int flags) {
  char link[64], path[4096];
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  ssize_t length = readlink(link, path, sizeof path - 8);
  if (length <= 0) return -1;
  path[length] = 0;
  if (!ends_with(path, ".db") && !ends_with(path, ".db-wal")) return -1;
  strcat(path, ".undo");
  return open(path, O_WRONLY | O_CREAT | flags, 0600);
}

static void keep(int fd, int64_t offset, int64_t length) {
  int undo = undo_of(fd, O_APPEND);
  if (undo < 0) return;
  struct stat found;
  fstat(fd, &found);
  int64_t size = found.st_size;
  int64_t old = offset >= size ? 0 : (offset + length > size ? size - offset : length);
  int64_t head[3] = {size, offset, old};
  char *record = malloc(sizeof head + old);
  memcpy(record, head, sizeof head);
  if (pread(fd, record + sizeof head, old, offset) != old) abort();
  if (write(undo, record, sizeof head + old) != (ssize_t)(sizeof head + old)) abort();
  free(record);
  close(undo);
}

static void forget(int fd) {
  int undo = undo_of(fd, O_TRUNC);
  if (undo >= 0) close(undo);
}

ssize_t pwrite(int fd, const void *bytes, size_t length, off_t offset) {
  keep(fd, offset, length);
  return ((ssize_t(*)(int, const void *, size_t, off_t))next("pwrite"))(fd, bytes, length, offset);
}

ssize_t pwrite64(int fd, const void *bytes, size_t length, off64_t offset) {
  keep(fd, offset, length);
  return ((ssize_t(*)(int, const void *, size_t, off64_t))next("pwrite64"))(fd, bytes, length, offset);
}

static void keep_tail(int fd, int64_t size) {
  struct stat found;
  if (fstat(fd, &found) == 0) keep(fd, size, found.st_size > size ? found.st_size - size : 0);
}

int ftruncate(int fd, off_t size) {
  keep_tail(fd, size);
  return ((int (*)(int, off_t))next("ftruncate"))(fd, size);
}

int ftruncate64(int fd, off64_t size) {
  keep_tail(fd, size);
  return ((int (*)(int, off64_t))next("ftruncate64"))(fd, size);
}

int fsync(int fd) {
  int result = ((int (*)(int))next("fsync"))(fd);
  if (result == 0) forget(fd);
  return result;
}

int fdatasync(int fd) {
  int result = ((int (*)(int))next("fdatasync"))(fd);
  if (result == 0) forget(fd);
  return result;
}
