/* Defects for the trial, loaded into the daemon by LD_PRELOAD; PLANT names one:
 *
 *     no-sync             files are not synced
 *     no-directory-sync   directories are not synced
 *     reply-before-sync   a sync of a file begins only after it has been reported as done
 *     no-zeros            zeros are not written ahead of the records, which costs flushes and loses
 *                         nothing: a sync of a file also writes down which blocks belong to it */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define LATE_MICROSECONDS 20000

static int has(const char *plant)
{
    const char *name = getenv("PLANT");
    return name && strcmp(name, plant) == 0;
}

static int really_sync(const char *name, int descriptor)
{
    int (*real)(int) = (int (*)(int))dlsym(RTLD_NEXT, name);
    return real(descriptor);
}

static void *sync_late(void *argument)
{
    int descriptor = (int)(intptr_t)argument;
    usleep(LATE_MICROSECONDS);
    really_sync("fdatasync", descriptor);
    close(descriptor);
    return NULL;
}

static int sync_with_defect(const char *name, int descriptor)
{
    struct stat stat;
    pthread_t thread;

    if (fstat(descriptor, &stat) != 0) {
        return -1;
    }
    if (S_ISDIR(stat.st_mode)) {
        return has("no-directory-sync") ? 0 : really_sync(name, descriptor);
    }
    if (has("no-sync")) {
        return 0;
    }
    if (has("reply-before-sync")) {
        if (pthread_create(&thread, NULL, sync_late, (void *)(intptr_t)dup(descriptor)) != 0) {
            abort();
        }
        return pthread_detach(thread);
    }
    return really_sync(name, descriptor);
}

int fsync(int descriptor)
{
    return sync_with_defect("fsync", descriptor);
}

int fdatasync(int descriptor)
{
    return sync_with_defect("fdatasync", descriptor);
}

ssize_t pwrite64(int descriptor, const void *bytes, size_t size, off64_t offset)
{
    static ssize_t (*real)(int, const void *, size_t, off64_t);
    const char *text = bytes;

    /* All bytes are equal to the next one, and the first one is zero. */
    if (has("no-zeros") && size > 1 && !text[0] && !memcmp(text, text + 1, size - 1)) {
        return (ssize_t)size;
    }
    if (!real) {
        real = (ssize_t (*)(int, const void *, size_t, off64_t))dlsym(RTLD_NEXT, "pwrite64");
    }
    return real(descriptor, bytes, size, offset);
}
