/* Makes each fdatasync or fsync take at least SLOW_SYNC_MICROSECONDS, and appends a byte to the
 * file SLOW_SYNC_COUNT for each. Loaded into a daemon by LD_PRELOAD. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

static int sync_slowly(const char *name, int descriptor)
{
    int (*real)(int) = (int (*)(int))dlsym(RTLD_NEXT, name);
    long microseconds = atol(getenv("SLOW_SYNC_MICROSECONDS"));
    struct timespec time = { microseconds / 1000000, microseconds % 1000000 * 1000 };
    int count = open(getenv("SLOW_SYNC_COUNT"), O_WRONLY | O_APPEND | O_CREAT, 0600);

    if (count >= 0) {
        if (write(count, "x", 1) != 1) {
            abort();
        }
        close(count);
    }
    nanosleep(&time, NULL);
    return real(descriptor);
}

int fdatasync(int descriptor)
{
    return sync_slowly("fdatasync", descriptor);
}

int fsync(int descriptor)
{
    return sync_slowly("fsync", descriptor);
}
