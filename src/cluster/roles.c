/* roles: see roles.h. */
#include "cluster/roles.h"

#include "base/err.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool is_role_name(const char *name, size_t n)
{
    if (n == 0 || n >= PB_ROLE_NAME || name[0] < 'a' || name[0] > 'z')
        return false;
    for (size_t i = 0; i < n; i++)
        if (!(name[i] >= 'a' && name[i] <= 'z') && !(name[i] >= '0' && name[i] <= '9') && name[i] != '_')
            return false;
    return true;
}

int pb_roles_add(struct pb_roles *r, const char *name, uint32_t value)
{
    size_t n = strlen(name);

    if (!is_role_name(name, n))
        return -EINVAL;
    if (pb_roles_get(r, name) >= 0)
        return -EEXIST;
    if (r->n == PB_ROLES)
        return -ENOSPC;
    memcpy(r->at[r->n].name, name, n + 1);
    r->at[r->n++].value = value;
    return 0;
}

int64_t pb_roles_get(const struct pb_roles *r, const char *name)
{
    for (size_t i = 0; i < r->n; i++)
        if (strcmp(r->at[i].name, name) == 0)
            return r->at[i].value;
    return -1;
}

/* The next NAME=VALUE of a list; *at is behind it then. False: that is none. */
static bool next_pair(const char **at, char ret_name[PB_ROLE_NAME], char ret_value[16])
{
    size_t whole = strcspn(*at, ","), name = strcspn(*at, "=,");

    if (!is_role_name(*at, name) || (*at)[name] != '=' || whole - name - 1 == 0 || whole - name - 1 >= 16)
        return false;
    memcpy(ret_name, *at, name);
    ret_name[name] = '\0';
    memcpy(ret_value, *at + name + 1, whole - name - 1);
    ret_value[whole - name - 1] = '\0';
    *at += whole;
    if (**at == ',' && *++*at == '\0')
        return false;
    return true;
}

static int read_number(const char *text, uint32_t *ret)
{
    size_t n = strspn(text, "0123456789");

    if (n == 0 || n > 9 || text[n])
        return -EINVAL;
    *ret = (uint32_t)strtoul(text, NULL, 10);
    return 0;
}

int pb_roles_parse(const char *text, struct pb_roles *ret)
{
    struct pb_roles r = {0};
    char name[PB_ROLE_NAME], value[16];
    uint32_t number;

    while (*text) {
        if (!next_pair(&text, name, value) || read_number(value, &number) < 0 ||
            pb_roles_add(&r, name, number) < 0)
            return -EINVAL;
    }
    *ret = r;
    return 0;
}

void pb_roles_format(const struct pb_roles *r, char ret[PB_ROLES_TEXT])
{
    int n = 0;

    ret[0] = '\0';
    for (size_t i = 0; i < r->n; i++)
        n += snprintf(ret + n, PB_ROLES_TEXT - (size_t)n, "%s%s=%u", i ? "," : "", r->at[i].name,
                      r->at[i].value);
}

int pb_roles_compute(const char *layout, uint32_t world, uint32_t rank, struct pb_roles *ret,
                     struct pb_err *err)
{
    struct pb_roles r = {0};
    uint32_t size[PB_ROLES];
    char name[PB_ROLE_NAME], value[16];
    size_t star = PB_ROLES;
    uint64_t product = 1;

    for (const char *at = layout; *at;) {
        bool good = next_pair(&at, name, value);
        if (good && strcmp(value, "*") == 0 && star == PB_ROLES)
            star = r.n, size[r.n < PB_ROLES ? r.n : 0] = 1;
        else if (good)
            good = r.n < PB_ROLES && read_number(value, &size[r.n]) == 0 && size[r.n] > 0;
        if (!good || pb_roles_add(&r, name, 0) < 0)
            return pb_fail(err, -EINVAL, "'%s' is no layout of roles such as tp=4,pp=2,dp=*", layout);
        product *= size[r.n - 1];
        if (product > UINT32_MAX)
            return pb_fail(err, -EINVAL, "the layout %s has more ranks than there can be", layout);
    }
    if (star < r.n && world % product == 0)
        size[star] = (uint32_t)(world / product);
    else if (!r.n || product != world)
        return pb_fail(err, -EINVAL, "the layout %s does not fit %u ranks", layout, world);
    for (size_t i = 0; i < r.n; i++) {
        if (size[i] == 0)
            return pb_fail(err, -EINVAL, "the layout %s does not fit %u ranks", layout, world);
        r.at[i].value = rank % size[i];
        rank /= size[i];
    }
    *ret = r;
    return 0;
}
