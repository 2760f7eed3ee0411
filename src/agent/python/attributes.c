/* attributes: see attributes.h. */
#include "agent/python/attributes.h"

#include "agent/module/module.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define END_SIZE 16 /* ,"_cut":true} */

void pb_attributes_begin(struct pb_attributes *a)
{
    a->used = 0;
    a->cut = 0;
}

static int put_text(struct pb_attributes *a, const char *text, size_t length)
{
    if (length > PB_ATTRIBUTES_SIZE - END_SIZE - a->used)
        return -1;
    memcpy(a->text + a->used, text, length);
    a->used += (unsigned)length;
    return 0;
}

static int put_string(struct pb_attributes *a, const char *text, size_t length)
{
    int r = put_text(a, "\"", 1);

    for (size_t i = 0; r == 0 && i < length; i++) {
        unsigned char c = (unsigned char)text[i];
        char escaped[8];
        if (c == '"' || c == '\\')
            r = put_text(a, (char[]){'\\', (char)c}, 2);
        else if (c < ' ')
            r = put_text(a, escaped, (size_t)snprintf(escaped, sizeof(escaped), "\\u%04x", c));
        else
            r = put_text(a, (const char *)&c, 1);
    }
    return r < 0 ? r : put_text(a, "\"", 1);
}

/* The shortest text that reads back as the same number. The program's locale may write a comma. */
static int put_float(struct pb_attributes *a, double number)
{
    char text[40];
    int n = 0;

    if (!isfinite(number))
        return put_string(a,
                          isnan(number) ? "NaN"
                          : number > 0  ? "Infinity"
                                        : "-Infinity",
                          isnan(number) ? 3
                          : number > 0  ? 8
                                        : 9);
    n = snprintf(text, sizeof(text), "%.15g", number);
    for (char *comma = strchr(text, ','); comma; comma = NULL)
        *comma = '.';
    return put_text(a, text, (size_t)n);
}

static int put_words(struct pb_attributes *a, const struct pb_python *py, pb_pyobject *words)
{
    long length;
    const char *text = words ? py->utf8_size(words, &length) : NULL;
    return text ? put_string(a, text, (size_t)length) : -1;
}

static int put_value(struct pb_attributes *a, const struct pb_python *py, pb_pyobject *value)
{
    pb_pyobject *type = pb_type_of(value, pb_module_header(py));
    char number[24];

    if (value == py->none)
        return put_text(a, "null", 4);
    if (value == py->true_object || value == py->false_object)
        return put_text(a, value == py->true_object ? "true" : "false", value == py->true_object ? 4 : 5);
    if (type == py->float_type)
        return put_float(a, py->float_as(value));
    if (type == py->str_type)
        return put_words(a, py, value);
    if (type == py->int_type) {
        long long i = py->int64_as(value);
        if (i != -1 || !py->err_occurred())
            return put_text(a, number, (size_t)snprintf(number, sizeof(number), "%lld", i));
        py->err_clear();
    }
    pb_pyobject *words = py->repr_of(value);
    int r = put_words(a, py, words);
    if (words)
        py->decref(words);
    return r;
}

void pb_attributes_add(struct pb_attributes *a, const struct pb_python *py, const char *name,
                       pb_pyobject *value)
{
    unsigned before = a->used;

    int r = put_text(a, before ? "," : "{", 1);
    if (r == 0)
        r = put_string(a, name ? name : "?", name ? strlen(name) : 1);
    if (r == 0)
        r = put_text(a, ":", 1);
    if (r == 0)
        r = put_value(a, py, value);
    if (r < 0) {
        a->used = before;
        a->cut = 1;
        py->err_clear();
    }
}

pb_pyobject *pb_attributes_end(struct pb_attributes *a, const struct pb_python *py)
{
    static const char cut[] = "\"_cut\":true}";

    if (!a->used && !a->cut)
        return NULL;
    if (a->cut) {
        a->text[a->used] = a->used ? ',' : '{';
        memcpy(a->text + a->used + 1, cut, strlen(cut));
        a->used += 1 + (unsigned)strlen(cut);
    } else {
        a->text[a->used++] = '}';
    }
    pb_pyobject *made = py->str_from_utf8(a->text, (long)a->used, "replace");
    if (!made)
        py->err_clear();
    return made;
}
