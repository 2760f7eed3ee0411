/* python_embed: a program with an embedded interpreter. Linked with libpython*.a it is static;
 * built with -DLIBRARY it loads the library that its first argument names, as a plugin host does. */
#include <stdio.h>
#include <stdlib.h>
#include <wchar.h>

#ifdef LIBRARY
#include <dlfcn.h>
#else
int Py_Main(int argc, wchar_t **argv);
#endif

int main(int argc, char **argv)
{
    wchar_t *words[16] = {0};

    for (int i = 0; i < argc && i < 15; i++) {
        words[i] = calloc(4096, sizeof(wchar_t));
        mbstowcs(words[i], argv[i], 4095);
    }
#ifdef LIBRARY
    void *library = argc > 1 ? dlopen(argv[1], RTLD_NOW | RTLD_GLOBAL) : NULL;
    int (*Py_Main)(int, wchar_t **) = library ? (int (*)(int, wchar_t **))dlsym(library, "Py_Main") : NULL;
    if (!Py_Main) {
        fprintf(stderr, "%s\n", dlerror());
        return 2;
    }
    return Py_Main(argc - 1, words + 1);
#else
    return Py_Main(argc, words);
#endif
}
