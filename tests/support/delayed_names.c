/* Preloaded into a program: a rename or a link to a commit of a Delta table takes up to DELAY_NAMES_MS ms longer, before
   it happens. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static void delay(const char *target) {
    static __thread unsigned seed;
    const char *most = getenv("DELAY_NAMES_MS"), *end = strrchr(target, '.');
    if (!most || !strstr(target, "_delta_log/") || !end || strcmp(end, ".json")) return;
    if (!seed) seed = time(NULL) ^ getpid() ^ (unsigned long)&seed;
    usleep(rand_r(&seed) % (1000 * atoi(most) + 1));
}

int rename(const char *from, const char *to) {
    int (*real)(const char *, const char *) = dlsym(RTLD_NEXT, "rename");
    delay(to);
    return real(from, to);
}

int link(const char *from, const char *to) {
    int (*real)(const char *, const char *) = dlsym(RTLD_NEXT, "link");
    delay(to);
    return real(from, to);
}

int linkat(int from_folder, const char *from, int to_folder, const char *to, int flags) {
    int (*real)(int, const char *, int, const char *, int) = dlsym(RTLD_NEXT, "linkat");
    delay(to);
    return real(from_folder, from, to_folder, to, flags);
}
