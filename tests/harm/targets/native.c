/* native: a program without Python: threads that come and go and allocate, and children of fork. */
#include "kit.h"

#include <sys/wait.h>

static unsigned compute(void)
{
    unsigned sum = 0;
    for (unsigned i = 0; i < 200000; i++)
        sum = sum * 31 + (i ^ (sum >> 7));
    return sum;
}

static void *allocate(void *unused)
{
    for (size_t size = 24; size < 300000; size *= 5) {
        volatile char *memory = malloc(size);
        memory[0] = memory[size - 1] = (char)size;
        if (compute() != 0 && (memory[0] != (char)size || memory[size - 1] != (char)size))
            kit_complain("memory has changed");
        free((void *)memory);
    }
    return NULL;
}

int main(void)
{
    unsigned first = compute();
    while (kit_going()) {
        pthread_t threads[2];
        for (int i = 0; i < 2; i++)
            if (pthread_create(&threads[i], NULL, allocate, NULL))
                kit_complain("no thread could be started");
        pid_t child = fork();
        if (child == 0) {
            void *memory = malloc(1000);
            free(memory);
            _exit(compute() != first);
        }
        for (int i = 0; i < 2; i++)
            pthread_join(threads[i], NULL);
        int status = -1;
        if (waitpid(child, &status, 0) != child || status)
            kit_complain("a child of fork ended with %d", status);
        if (compute() != first)
            kit_complain("a computation gave another result");
    }
    return 0;
}
