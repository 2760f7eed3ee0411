/* slow_locks, to be preloaded: threads of the agent hold two locks for long that the child of a fork would
 * wait for: that of Python's list of thread states (3.8 to 3.11: a semaphore, released without having the
 * GIL), and that of glibc's list of loaded objects. */
#include <dlfcn.h>
#include <link.h>
#include <semaphore.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>

typedef int each_function(struct dl_phdr_info *, size_t, void *);

static int is_agent(void)
{
    char name[16] = "";

    prctl(PR_GET_NAME, name);
    return strncmp(name, "probing", 7) == 0;
}

static void pause_a_moment(void)
{
    nanosleep(&(struct timespec){.tv_nsec = 3000000}, NULL);
}

int sem_post(sem_t *sem)
{
    int (*real)(sem_t *) = (int (*)(sem_t *))dlsym(RTLD_NEXT, "sem_post");
    int (*has_gil)(void) = (int (*)(void))dlsym(RTLD_DEFAULT, "PyGILState_Check");

    if (is_agent() && has_gil && !has_gil())
        pause_a_moment();
    return real(sem);
}

static int pause_inside(struct dl_phdr_info *info, size_t size, void *unused)
{
    pause_a_moment();
    return 1;
}

int dl_iterate_phdr(each_function *callback, void *argument)
{
    int (*real)(each_function *, void *) =
        (int (*)(each_function *, void *))dlsym(RTLD_NEXT, "dl_iterate_phdr");

    if (is_agent())
        real(pause_inside, NULL);
    return real(callback, argument);
}
