/* slow_post, to be preloaded: a thread of the agent that releases a lock of Python's without having the GIL does so
 * late. From 3.8 to 3.11 that is the lock of the list of thread states, which the child of a fork takes first. */
#include <dlfcn.h>
#include <semaphore.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>

int sem_post(sem_t *sem)
{
    int (*real)(sem_t *) = (int (*)(sem_t *))dlsym(RTLD_NEXT, "sem_post");
    int (*has_gil)(void) = (int (*)(void))dlsym(RTLD_DEFAULT, "PyGILState_Check");
    char name[16] = "";

    prctl(PR_GET_NAME, name);
    if (strncmp(name, "probing", 7) == 0 && has_gil && !has_gil())
        nanosleep(&(struct timespec){.tv_nsec = 3000000}, NULL);
    return real(sem);
}
