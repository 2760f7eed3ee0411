/* stop: see stop.h. */
#include "cli/stop.h"

#include <stddef.h>

static const int numbers[] = {SIGINT, SIGTERM, SIGHUP};
#define NUMBERS (sizeof(numbers) / sizeof(numbers[0]))

static struct sigaction before[NUMBERS];
static int depth;
volatile sig_atomic_t pb_stop_flag;

static void note_signal(int number)
{
    pb_stop_flag = number;
}

void pb_signal_take(int number, void (*handler)(int))
{
    struct sigaction action = {.sa_handler = handler}, found;

    if (sigaction(number, NULL, &found) == 0 && found.sa_handler != SIG_IGN)
        sigaction(number, &action, NULL);
}

void pb_stop_begin(void)
{
    if (depth++ > 0)
        return;
    pb_stop_flag = 0;
    for (size_t i = 0; i < NUMBERS; i++) {
        sigaction(numbers[i], NULL, &before[i]);
        pb_signal_take(numbers[i], note_signal);
    }
}

void pb_stop_end(void)
{
    if (--depth > 0)
        return;
    for (size_t i = 0; i < NUMBERS; i++)
        sigaction(numbers[i], &before[i], NULL);
}

int pb_stop_signal(void)
{
    return pb_stop_flag;
}
