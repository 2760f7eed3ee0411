/* library_child: demangling by libstdc++, loaded when first asked for.
 *
 * Runs in a child with limits (library.c), so a crash or an endless loop in here costs names only. */
#include "remote/native/library_child.h"

#include <dlfcn.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

typedef char *demangler(const char *, char *, size_t *, int *);
static demangler *cxa_demangle;

static bool load_demangler(void)
{
    static bool tried;
    if (!tried) {
        tried = true;
        void *library = dlopen("libstdc++.so.6", RTLD_LAZY | RTLD_LOCAL);
        void *symbol = library ? dlsym(library, "__cxa_demangle") : NULL;
        memcpy(&cxa_demangle, &symbol, sizeof(symbol));
    }
    return cxa_demangle != NULL;
}

static size_t demangle(const char *name, struct pb_library_answer *ret)
{
    int status;

    char *text =
        name[0] == '_' && name[1] == 'Z' && load_demangler() ? cxa_demangle(name, NULL, NULL, &status) : NULL;
    if (!text)
        return 0;
    int n = snprintf(ret->text, sizeof(ret->text), "%s", text);
    free(text);
    return (size_t)n < sizeof(ret->text) ? (size_t)n + 1 : sizeof(ret->text);
}

void pb_library_serve(int fd)
{
    for (;;) {
        static struct pb_library_question q;
        static struct pb_library_answer a;
        ssize_t n = recv(fd, &q, sizeof(q), 0);
        if (n <= 0)
            return;
        q.name[sizeof(q.name) - 1] = '\0';
        size_t len = demangle(q.name, &a);
        a.found = len > 0;
        len += offsetof(struct pb_library_answer, text);
        if (send(fd, &a, len, MSG_NOSIGNAL) != (ssize_t)len)
            return;
    }
}
