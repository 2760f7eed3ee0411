/* callable: shows functions, methods, built-in functions and modules by their names, not by their address:
 * forward_call = <method Attention.forward of SelfAttention at 0x..>.
 *
 * The layouts are not in the tables of versions: those of methods and built-in functions have been the same
 * since 3.4, and the fields of functions were reordered once, in 3.10. A name that is not a string is not
 * shown. */
#include <inttypes.h>
#include <string.h>

#include "base/text.h"
#include "remote/python/value.h"

enum {
    WORD = 8,
    /* Fields of a function after its head: code, globals, defaults, kwdefaults, closure, doc, name, dict,
     * weak references, module, annotations, qualname; from 3.10 on globals, builtins, name, qualname. */
    QUALNAME_OLD = 11 * WORD,
    QUALNAME_3_10 = 3 * WORD,
};

/* Reads a C string of the target. Near the end of a mapping fewer bytes can be read. */
static bool read_name(struct pb_py *py, uint64_t addr, char *ret, size_t size)
{
    for (size_t want = size - 1; want; want /= 2) {
        memset(ret, 0, size);
        if (pb_source_read(py->source, addr, ret, want) == 0)
            break;
    }
    return pb_text_clean(ret) > 0;
}

/* The name of a type without the modules before it. */
static bool read_type_name(struct pb_py *py, uint64_t type, char *ret, size_t size)
{
    char name[128];
    uint64_t at;

    if (read_u64(py, type + py->layout.type.name, &at) < 0 || !read_name(py, at, name, sizeof(name)))
        return false;
    const char *dot = strrchr(name, '.');
    const char *last = dot && dot[1] ? dot + 1 : name;
    size_t n = strnlen(last, size - 1);
    memcpy(ret, last, n);
    ret[n] = '\0';
    return true;
}

static bool read_class(struct pb_py *py, uint64_t object, char *ret, size_t size)
{
    uint64_t type;

    return read_u64(py, object + py->layout.object.type, &type) == 0 && read_type_name(py, type, ret, size);
}

/* A str of Python, its control characters masked. */
static bool read_text(struct pb_py *py, uint64_t addr, char *ret, size_t size)
{
    int n = addr ? pb_py_text(py, addr, ret, size, NULL) : -1;

    if (n > 0)
        pb_text_clean(ret);
    return n > 0;
}

static bool read_qualname(struct pb_py *py, uint64_t function, char *ret, size_t size)
{
    uint64_t at = py->layout.version >= 0x030a ? QUALNAME_3_10 : QUALNAME_OLD, text;
    char type[16];

    return read_class(py, function, type, sizeof(type)) && strcmp(type, "function") == 0 &&
           read_u64(py, function + py->layout.object.size + at, &text) == 0 && read_text(py, text, ret, size);
}

static bool put_function(struct value_out *o, uint64_t addr)
{
    char name[PB_PY_NAME_MAX];

    if (!read_qualname(o->py, addr, name, sizeof(name)))
        return false;
    pb_py_put(o, "<function ");
    pb_py_put(o, name);
    pb_py_putf(o, " at 0x%" PRIx64 ">", addr);
    return true;
}

/* PyMethodObject: function, self. The function may be any callable. */
static bool put_method(struct value_out *o, uint64_t addr)
{
    uint64_t fields[2];
    char name[PB_PY_NAME_MAX], class[64];

    if (pb_source_read(o->py->source, addr + o->py->layout.object.size, fields, sizeof(fields)) < 0 ||
        !read_class(o->py, fields[1], class, sizeof(class)))
        return false;
    if (!read_qualname(o->py, fields[0], name, sizeof(name)) &&
        !read_class(o->py, fields[0], name, sizeof(name)))
        return false;
    /* For a class method self is the class itself, whose class is a type. */
    char of[64];
    if (strcmp(class, "type") == 0 && read_type_name(o->py, fields[1], of, sizeof(of)))
        memcpy(class, of, sizeof(class));
    pb_py_put(o, "<method ");
    pb_py_put(o, name);
    pb_py_putf(o, " of %s at 0x%" PRIx64 ">", class, fields[1]);
    return true;
}

/* PyCFunctionObject: its definition, which begins with a pointer to its name, then self. */
static bool put_builtin(struct value_out *o, uint64_t addr)
{
    uint64_t fields[2], at;
    char name[128], class[64];

    if (pb_source_read(o->py->source, addr + o->py->layout.object.size, fields, sizeof(fields)) < 0 ||
        read_u64(o->py, fields[0], &at) < 0 || !read_name(o->py, at, name, sizeof(name)))
        return false;
    bool bound =
        fields[1] && read_class(o->py, fields[1], class, sizeof(class)) && strcmp(class, "module") != 0;
    pb_py_put(o, bound ? "<built-in method " : "<built-in function ");
    pb_py_put(o, name);
    if (bound)
        pb_py_putf(o, " of %s at 0x%" PRIx64, class, fields[1]);
    pb_py_put(o, ">");
    return true;
}

static bool put_module(struct value_out *o, uint64_t addr)
{
    uint64_t text;
    char name[PB_PY_NAME_MAX];

    if (pb_py_attribute(o->py, addr, "__name__", &text) < 0 || !read_text(o->py, text, name, sizeof(name)))
        return false;
    pb_py_put(o, "<module ");
    pb_py_put(o, name);
    pb_py_put(o, ">");
    return true;
}

bool pb_py_put_callable(struct value_out *o, uint64_t addr, const char *type)
{
    static const struct {
        const char *type;
        bool (*put)(struct value_out *o, uint64_t addr);
    } kinds[] = {{"function", put_function},
                 {"method", put_method},
                 {"builtin_function_or_method", put_builtin},
                 {"module", put_module}};

    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++)
        if (strcmp(kinds[i].type, type) == 0)
            return kinds[i].put(o, addr);
    return false;
}
