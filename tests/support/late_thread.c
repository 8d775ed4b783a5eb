/* A thread of a library that takes the interpreter's lock late, in code that must not be ended in its middle. */

#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

extern int PyGILState_Ensure(void);
extern void PyGILState_Release(int);

static void ended(void *unused) {
  (void)unused;
  abort();
}

static void *run(void *unused) {
  (void)unused;
  usleep(500000);
  pthread_cleanup_push(ended, 0);
  PyGILState_Release(PyGILState_Ensure());
  pthread_cleanup_pop(0);
  return 0;
}

int start(void) {
  pthread_t thread;
  return pthread_create(&thread, 0, run, 0);
}
