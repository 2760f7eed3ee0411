/* loaded: see loaded.h. From the auxiliary vector to the program's headers, from its dynamic section to the
 * loader's list. */
#include "remote/loaded.h"

#include <elf.h>
#include <errno.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/cleanup.h"
#include "base/procfs.h"
#include "remote/maps.h"
#include "remote/source.h"

enum {
    OBJECTS_MAX = 8, /* objects tried: a library that the program itself needs is among them */
    PHDRS_MAX = 64,
    DYNAMIC_MAX = 256,
    AUXV_MAX = 64,
};

/* The loader's entry of an object: the beginning of glibc's and musl's own struct. */
struct loaded_link {
    uint64_t bias, name, dynamic, next;
};

static int read_auxv(pid_t pid, uint64_t *ret_phdr, uint64_t *ret_phnum)
{
    Elf64_auxv_t auxv[AUXV_MAX + 1];

    int n = pb_proc_read(pid, "auxv", (char *)auxv, sizeof(auxv));
    *ret_phdr = *ret_phnum = 0;
    for (int i = 0; (i + 1) * (int)sizeof(auxv[0]) <= n; i++) {
        if (auxv[i].a_type == AT_PHDR)
            *ret_phdr = auxv[i].a_un.a_val;
        if (auxv[i].a_type == AT_PHNUM)
            *ret_phnum = auxv[i].a_un.a_val;
    }
    return *ret_phdr && *ret_phnum && *ret_phnum <= PHDRS_MAX ? 0 : -ENOENT;
}

/* The addresses of the program's dynamic section and ELF header. */
static int find_program(struct pb_source *s, uint64_t *ret_base, uint64_t *ret_dynamic)
{
    Elf64_Phdr ph[PHDRS_MAX];
    uint64_t at, n, bias = 0, dynamic = 0;

    int r = read_auxv(s->pid, &at, &n);
    if (r == 0)
        r = pb_source_read(s, at, ph, n * sizeof(ph[0]));
    if (r < 0)
        return r;
    for (uint64_t i = 0; i < n; i++) {
        if (ph[i].p_type == PT_PHDR)
            bias = at - ph[i].p_vaddr;
        if (ph[i].p_type == PT_DYNAMIC)
            dynamic = ph[i].p_vaddr;
    }
    *ret_base = at & ~4095ull;
    *ret_dynamic = bias + dynamic;
    return dynamic ? 0 : -ENOENT;
}

/* The loader leaves the address of its struct r_debug in the program's own section; the list is its second
 * word. */
static int find_list(struct pb_source *s, uint64_t dynamic, uint64_t *ret)
{
    Elf64_Dyn dyn[DYNAMIC_MAX];
    uint64_t debug[2] = {0};

    /* Only its end marker tells its length: reading beyond it does no harm. */
    ssize_t n = pb_source_read_some(s, dynamic, dyn, sizeof(dyn));
    for (size_t i = 0; n > 0 && i < (size_t)n / sizeof(dyn[0]) && dyn[i].d_tag != DT_NULL; i++)
        if (dyn[i].d_tag == DT_DEBUG && pb_source_read(s, dyn[i].d_un.d_ptr, debug, sizeof(debug)) == 0)
            break;
    *ret = debug[1];
    return debug[1] ? 0 : -ENOENT;
}

static void append_map(struct pb_maps *maps, uint64_t base, const char *path)
{
    char *text = maps->text + maps->n * PATH_MAX;

    if (base % 4096)
        return;
    snprintf(text, PATH_MAX, "%s", path);
    maps->at[maps->n++] =
        (struct pb_map){.start = base, .end = base + 4096, .prot = PROT_READ, .inode = 1, .path = text};
}

static bool is_named(const char *path, const char *prefix)
{
    const char *slash = strrchr(path, '/');
    return strncmp(slash ? slash + 1 : path, prefix, strlen(prefix)) == 0;
}

static void follow(struct pb_source *s, uint64_t at, const char *prefix, struct pb_maps *maps)
{
    char path[256];
    struct loaded_link link;
    bool found = false;

    for (int i = 0; at && i < OBJECTS_MAX && !found; i++, at = link.next) {
        if (pb_source_read(s, at, &link, sizeof(link)) < 0)
            return;
        ssize_t n = pb_source_read_some(s, link.name, path, sizeof(path));
        found = n > 0 && memchr(path, '\0', (size_t)n) && is_named(path, prefix);
        if (found)
            append_map(maps, link.bias, path);
    }
}

int pb_loaded_find(struct pb_source *s, const char *prefix, struct pb_maps *ret)
{
    _cleanup_(pb_maps_done) struct pb_maps maps = {0};
    char exe[PATH_MAX];
    uint64_t base, dynamic, list;

    if (!s->pid || s->ops->maps)
        return -ENOENT;
    int r = find_program(s, &base, &dynamic);
    if (r == 0)
        r = find_list(s, dynamic, &list);
    if (r < 0)
        return -ENOENT;
    maps.at = calloc(2, sizeof(*maps.at));
    maps.text = malloc(2 * PATH_MAX);
    if (!maps.at || !maps.text)
        return -ENOMEM;
    if (pb_source_exe(s, exe, sizeof(exe)) > 0)
        append_map(&maps, base, exe);
    follow(s, list, prefix, &maps);
    *ret = maps;
    maps = (struct pb_maps){0};
    return 0;
}
