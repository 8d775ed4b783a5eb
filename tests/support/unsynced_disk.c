/* Preloaded into a program: records what it syncs, and delays what it renames or links.

   SYNCED_TO=FOLDER: each fsync puts a file there instead: the content of the file (TIME-INODE.file), or the inode, 1
   for a folder, and the name of each entry of the folder (TIME-INODE.folder); TIME is CLOCK_MONOTONIC in ns. A hard link keeps the inode of a
   synced file from being used again, so FOLDER must be on the same file system.
   DELAY_NAMES_MS=N: a rename or a link to a commit of a Delta table takes up to N ms longer, before it happens. */

#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static unsigned long long now_ns(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1000000000ULL + time.tv_nsec;
}

static void copy_file(const char *from, FILE *to) {
    char bytes[65536];
    size_t count;
    FILE *file = fopen(from, "r");
    if (!file) return;
    while ((count = fread(bytes, 1, sizeof bytes, file)) > 0) fwrite(bytes, 1, count, to);
    fclose(file);
}

static void list_folder(const char *from, FILE *to) {
    struct stat found;
    struct dirent *entry;
    DIR *folder = opendir(from);
    if (!folder) return;
    while ((entry = readdir(folder)))
        if (strcmp(entry->d_name, ".") && strcmp(entry->d_name, "..") &&
            !fstatat(dirfd(folder), entry->d_name, &found, AT_SYMLINK_NOFOLLOW))
            fprintf(to, "%lu %d %s\n", (unsigned long)found.st_ino, S_ISDIR(found.st_mode), entry->d_name);
    closedir(folder);
}

static int record(int descriptor) {
    static __thread unsigned number;
    char self[64], writing[PATH_MAX], done[PATH_MAX];
    struct stat found;
    const char *store = getenv("SYNCED_TO");
    if (!store || fstat(descriptor, &found) || !(S_ISREG(found.st_mode) || S_ISDIR(found.st_mode))) return 0;
    snprintf(self, sizeof self, "/proc/self/fd/%d", descriptor);
    snprintf(writing, sizeof writing, "%s/.%d-%lu-%u", store, getpid(), (unsigned long)&number, number++);
    FILE *to = fopen(writing, "w");
    if (!to) return 0;
    if (S_ISDIR(found.st_mode)) list_folder(self, to);
    else copy_file(self, to);
    fclose(to);
    if (S_ISREG(found.st_mode)) {
        snprintf(done, sizeof done, "%s/%lu.inode", store, (unsigned long)found.st_ino);
        linkat(AT_FDCWD, self, AT_FDCWD, done, AT_SYMLINK_FOLLOW);
    }
    snprintf(done, sizeof done, "%s/%llu-%lu.%s", store, now_ns(), (unsigned long)found.st_ino,
             S_ISDIR(found.st_mode) ? "folder" : "file");
    int (*real)(const char *, const char *) = dlsym(RTLD_NEXT, "rename");
    real(writing, done);
    return 1;
}

int fsync(int descriptor) {
    int (*real)(int) = dlsym(RTLD_NEXT, "fsync");
    return record(descriptor) ? 0 : real(descriptor);
}

int fdatasync(int descriptor) {
    int (*real)(int) = dlsym(RTLD_NEXT, "fdatasync");
    return record(descriptor) ? 0 : real(descriptor);
}

static void delay(const char *target) {
    static __thread unsigned seed;
    const char *most = getenv("DELAY_NAMES_MS"), *end = strrchr(target, '.');
    if (!most || !strstr(target, "_delta_log/") || !end || strcmp(end, ".json")) return;
    if (!seed) seed = now_ns() ^ (unsigned long)&seed;
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
