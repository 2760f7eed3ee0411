/* library_child: demangling by libstdc++ and source lines by elfutils' libdw, each loaded when first asked
 * for.
 *
 * Runs in a child with limits (library.c), so a crash or an endless loop in here costs names and lines only.
 * The few declarations of libdw that are needed stand here: its headers need not be installed to build us. */
#include "remote/native/library_child.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
    DEBUG_FILES = 512,
    INLINE_DEPTH = 16,
    TAG_INLINED = 0x1d,
    TAG_SUBPROGRAM = 0x2e,
    AT_NAME = 0x03,
    AT_CALL_FILE = 0x58,
    AT_CALL_LINE = 0x59,
    AT_LINKAGE_NAME = 0x6e,
    AT_MIPS_LINKAGE_NAME = 0x2007,
};

typedef struct Dwarf Dwarf;
typedef struct Dwarf_Line Dwarf_Line;
typedef struct Dwarf_Files Dwarf_Files;
typedef struct {
    void *addr;
    void *cu;
    void *abbrev;
    long padding;
} Dwarf_Die;
typedef struct {
    unsigned code, form;
    unsigned char *value;
    void *cu;
} Dwarf_Attribute;

static struct {
    bool tried, there;
    Dwarf *(*begin)(int fd, int cmd);
    Dwarf_Die *(*addrdie)(Dwarf *, uint64_t, Dwarf_Die *);
    int (*nextcu)(Dwarf *, uint64_t, uint64_t *, size_t *, uint64_t *, uint8_t *, uint8_t *);
    Dwarf_Die *(*offdie)(Dwarf *, uint64_t, Dwarf_Die *);
    uint64_t (*dieoffset)(Dwarf_Die *);
    int (*haspc)(Dwarf_Die *, uint64_t);
    Dwarf_Line *(*getsrc_die)(Dwarf_Die *, uint64_t);
    const char *(*linesrc)(Dwarf_Line *, uint64_t *, uint64_t *);
    int (*lineno)(Dwarf_Line *, int *);
    int (*getscopes)(Dwarf_Die *, uint64_t, Dwarf_Die **);
    int (*getscopes_die)(Dwarf_Die *, Dwarf_Die **);
    int (*tag)(Dwarf_Die *);
    Dwarf_Attribute *(*attr)(Dwarf_Die *, unsigned, Dwarf_Attribute *);
    Dwarf_Attribute *(*attr_integrate)(Dwarf_Die *, unsigned, Dwarf_Attribute *);
    const char *(*formstring)(Dwarf_Attribute *);
    int (*formudata)(Dwarf_Attribute *, uint64_t *);
    int (*getsrcfiles)(Dwarf_Die *, Dwarf_Files **, size_t *);
    const char *(*filesrc)(Dwarf_Files *, size_t, uint64_t *, uint64_t *);
} dw;

typedef char *demangler(const char *, char *, size_t *, int *);
static demangler *cxa_demangle;

static bool load_dw(void)
{
    static const struct {
        void *into;
        const char *name;
    } wanted[] = {
        {&dw.begin, "dwarf_begin"},
        {&dw.addrdie, "dwarf_addrdie"},
        {&dw.nextcu, "dwarf_nextcu"},
        {&dw.offdie, "dwarf_offdie"},
        {&dw.dieoffset, "dwarf_dieoffset"},
        {&dw.haspc, "dwarf_haspc"},
        {&dw.getsrc_die, "dwarf_getsrc_die"},
        {&dw.linesrc, "dwarf_linesrc"},
        {&dw.lineno, "dwarf_lineno"},
        {&dw.getscopes, "dwarf_getscopes"},
        {&dw.getscopes_die, "dwarf_getscopes_die"},
        {&dw.tag, "dwarf_tag"},
        {&dw.attr, "dwarf_attr"},
        {&dw.attr_integrate, "dwarf_attr_integrate"},
        {&dw.formstring, "dwarf_formstring"},
        {&dw.formudata, "dwarf_formudata"},
        {&dw.getsrcfiles, "dwarf_getsrcfiles"},
        {&dw.filesrc, "dwarf_filesrc"},
    };
    if (dw.tried)
        return dw.there;
    dw.tried = true;
    void *library = dlopen("libdw.so.1", RTLD_LAZY | RTLD_LOCAL);
    if (!library)
        return false;
    for (size_t i = 0; i < sizeof(wanted) / sizeof(wanted[0]); i++) {
        void *symbol = dlsym(library, wanted[i].name);
        if (!symbol)
            return false;
        memcpy(wanted[i].into, &symbol, sizeof(symbol));
    }
    dw.there = true;
    return true;
}

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

struct out {
    struct pb_library_answer answer;
    size_t used;
};

/* Adds a text and its NUL; what does not fit is cut. */
static void add(struct out *o, const char *text)
{
    size_t room = sizeof(o->answer.text) - o->used;
    if (room == 0)
        return;
    int n = snprintf(o->answer.text + o->used, room, "%s", text);
    o->used += (size_t)n < room ? (size_t)n + 1 : room;
}

static void add_demangled(struct out *o, const char *name)
{
    int status;
    char *text = NULL;
    if (name[0] == '_' && name[1] == 'Z' && load_demangler())
        text = cxa_demangle(name, NULL, NULL, &status);
    add(o, text ? text : name);
    free(text);
}

static void demangle(const char *name, struct out *o)
{
    if (!load_demangler())
        return;
    o->answer.count = 1;
    add_demangled(o, name);
}

/* The debug information of the parent's descriptor, opened once; NULL: it has none that can be read. */
static Dwarf *debug_of(int fd, pid_t parent)
{
    static struct {
        int fd;
        Dwarf *dwarf;
    } known[DEBUG_FILES];
    static size_t n;
    for (size_t i = 0; i < n; i++)
        if (known[i].fd == fd)
            return known[i].dwarf;
    if (n == DEBUG_FILES || !load_dw())
        return NULL;
    char path[64];
    snprintf(path, sizeof(path), "/proc/%d/fd/%d", parent, fd);
    int own = open(path, O_RDONLY | O_CLOEXEC);
    known[n].fd = fd;
    known[n].dwarf = own < 0 ? NULL : dw.begin(own, 0);
    return known[n++].dwarf;
}

/* By the table of address ranges; Clang writes none, then each unit is asked. */
static bool find_unit(Dwarf *d, uint64_t addr, Dwarf_Die *ret)
{
    if (dw.addrdie(d, addr, ret))
        return true;
    uint64_t at = 0, next;
    size_t head;
    while (dw.nextcu(d, at, &next, &head, NULL, NULL, NULL) == 0) {
        if (dw.offdie(d, at + head, ret) && dw.haspc(ret, addr) > 0)
            return true;
        at = next;
    }
    return false;
}

static const char *name_of(Dwarf_Die *die)
{
    Dwarf_Attribute a;
    static const unsigned names[] = {AT_LINKAGE_NAME, AT_MIPS_LINKAGE_NAME, AT_NAME};
    for (unsigned i = 0; i < 3; i++) {
        const char *text = dw.attr_integrate(die, names[i], &a) ? dw.formstring(&a) : NULL;
        if (text)
            return text;
    }
    return "";
}

static void add_frame(struct out *o, const char *function, const char *file, unsigned long line)
{
    char number[16];
    snprintf(number, sizeof(number), "%lu", line);
    add_demangled(o, function);
    add(o, file ? file : "");
    add(o, number);
    o->answer.count++;
}

static unsigned long call_site(Dwarf_Die *unit, Dwarf_Die *die, const char **ret_file)
{
    Dwarf_Attribute a;
    Dwarf_Files *files;
    uint64_t file, line;
    size_t n;
    *ret_file = NULL;
    if (!dw.attr(die, AT_CALL_LINE, &a) || dw.formudata(&a, &line) != 0)
        return 0;
    if (dw.attr(die, AT_CALL_FILE, &a) && dw.formudata(&a, &file) == 0 &&
        dw.getsrcfiles(unit, &files, &n) == 0 && file < n)
        *ret_file = dw.filesrc(files, file, NULL, NULL);
    return line;
}

/* The scopes around addr that are functions, innermost first. Each inlined one tells where it was called. */
static void add_scopes(Dwarf_Die *unit, Dwarf_Die *scope, int n, const char *file, unsigned long line,
                       struct out *o)
{
    for (int i = 0; i < n && o->answer.count < INLINE_DEPTH; i++) {
        int tag = dw.tag(&scope[i]);
        if (tag != TAG_INLINED && tag != TAG_SUBPROGRAM)
            continue;
        add_frame(o, name_of(&scope[i]), file, line);
        if (tag == TAG_SUBPROGRAM)
            return;
        line = call_site(unit, &scope[i], &file);
    }
}

static void find_lines(Dwarf *d, uint64_t addr, struct out *o)
{
    Dwarf_Die unit, innermost, *scope = NULL, *around = NULL;
    int number = 0;
    if (!find_unit(d, addr, &unit))
        return;
    Dwarf_Line *line = dw.getsrc_die(&unit, addr);
    const char *file = line ? dw.linesrc(line, NULL, NULL) : NULL;
    if (line)
        dw.lineno(line, &number);
    /* Past an inlined call the first list goes on where that was written, not where it is called from: the
     * second, from the innermost outwards, has the callers. */
    if (dw.getscopes(&unit, addr, &scope) > 0 && dw.offdie(d, dw.dieoffset(&scope[0]), &innermost)) {
        int n = dw.getscopes_die(&innermost, &around);
        add_scopes(&unit, around, n, file, (unsigned long)number, o);
        free(around);
    }
    free(scope);
    if (o->answer.count == 0 && file)
        add_frame(o, "", file, (unsigned long)number);
}

void pb_library_serve(int fd, pid_t parent)
{
    for (;;) {
        static struct pb_library_question q;
        static struct out o;
        ssize_t n = recv(fd, &q, sizeof(q), 0);
        if (n < (ssize_t)offsetof(struct pb_library_question, name))
            return;
        q.name[sizeof(q.name) - 1] = '\0';
        o.answer.count = 0;
        o.used = 0;
        if (q.kind == PB_LIBRARY_DEMANGLE) {
            demangle(q.name, &o);
        } else {
            Dwarf *d = debug_of(q.fd, parent);
            if (d)
                find_lines(d, q.addr, &o);
        }
        size_t len = offsetof(struct pb_library_answer, text) + o.used;
        if (send(fd, &o.answer, len, MSG_NOSIGNAL) != (ssize_t)len)
            return;
    }
}
