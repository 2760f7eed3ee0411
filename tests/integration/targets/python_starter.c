/* python_starter: preloaded into a program that has CPython 3.4 to 3.11 in it: runs the script STARTER_SCRIPT
 * with the modules of STARTER_PATH instead of what the program is for. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <wchar.h>

__attribute__((constructor)) static void start(void)
{
    void (*set_path)(const wchar_t *) = dlsym(RTLD_DEFAULT, "Py_SetPath");
    void (*initialize)(int) = dlsym(RTLD_DEFAULT, "Py_InitializeEx");
    int (*run)(FILE *, const char *, int, void *) = dlsym(RTLD_DEFAULT, "PyRun_SimpleFileExFlags");
    int *no_site = dlsym(RTLD_DEFAULT, "Py_NoSiteFlag");
    const char *script = getenv("STARTER_SCRIPT"), *modules = getenv("STARTER_PATH");
    wchar_t path[4096];

    if (!set_path || !initialize || !run || !no_site || !script || !modules)
        _Exit(2);
    mbstowcs(path, modules, sizeof(path) / sizeof(path[0]));
    set_path(path);
    *no_site = 1;
    initialize(0);
    _Exit(run(fopen(script, "r"), script, 1, NULL));
}
