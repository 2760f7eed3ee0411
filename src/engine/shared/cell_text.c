/* cell_text: the exact text of one value, by its type: see cells.h. Numbers are written in full (64 and 128
 * bits, decimals with their scale, doubles so that they read back unchanged), times as in SQL. */
#include "engine/shared/cells.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef __int128 i128;
typedef unsigned __int128 u128;

__attribute__((format(printf, 2, 3))) static enum pb_sql_kind put(struct pb_wire *m, const char *format, ...)
{
    char text[96];
    va_list ap;

    va_start(ap, format);
    int n = vsnprintf(text, sizeof(text), format, ap);
    va_end(ap);
    pb_wire_put(m, text, n > 0 ? (size_t)n : 0);
    return PB_SQL_TEXT;
}

static enum pb_sql_kind put_u64(struct pb_wire *m, uint64_t value, bool negative)
{
    char text[24], *p = text + sizeof(text);

    do
        *--p = (char)('0' + (int)(value % 10));
    while (value /= 10);
    if (negative)
        *--p = '-';
    pb_wire_put(m, p, (size_t)(text + sizeof(text) - p));
    return PB_SQL_NUMBER;
}

static enum pb_sql_kind put_i64(struct pb_wire *m, int64_t value)
{
    return put_u64(m, value < 0 ? -(uint64_t)value : (uint64_t)value, value < 0);
}

static enum pb_sql_kind put_i128(struct pb_wire *m, i128 value, unsigned scale)
{
    char text[64], *p = text + sizeof(text);
    u128 rest = value < 0 ? -(u128)value : (u128)value;
    unsigned digits = 0;

    /* A 128-bit division costs as much as ten of 64 bits. */
    for (; rest > UINT64_MAX; rest /= 10) {
        *--p = (char)('0' + (int)(rest % 10));
        if (++digits == scale)
            *--p = '.';
    }
    uint64_t low = (uint64_t)rest;
    do {
        *--p = (char)('0' + (int)(low % 10));
        low /= 10;
        if (++digits == scale)
            *--p = '.';
    } while (low || digits <= scale);
    if (value < 0)
        *--p = '-';
    pb_wire_put(m, p, (size_t)(text + sizeof(text) - p));
    return PB_SQL_NUMBER;
}

static enum pb_sql_kind put_u128(struct pb_wire *m, u128 value)
{
    char text[48], *p = text + sizeof(text);

    do
        *--p = (char)('0' + (int)(value % 10));
    while (value /= 10);
    pb_wire_put(m, p, (size_t)(text + sizeof(text) - p));
    return PB_SQL_NUMBER;
}

/* A decimal of 15 to 17 digits that reads back as the same number. NaN and infinity are texts, since JSON has
 * no such numbers. */
static enum pb_sql_kind put_double(struct pb_wire *m, double value, bool single)
{
    char text[40];

    if (isnan(value))
        return put(m, "nan");
    if (isinf(value))
        return put(m, value < 0 ? "-inf" : "inf");
    for (int digits = single ? 6 : 15; digits <= 17; digits++) {
        snprintf(text, sizeof(text), "%.*g", digits, value);
        if (single ? strtof(text, NULL) == (float)value : strtod(text, NULL) == value)
            break;
    }
    if (!strpbrk(text, ".e"))
        strcat(text, ".0");
    put(m, "%s", text);
    return PB_SQL_NUMBER;
}

static int64_t floor_div(int64_t a, int64_t b)
{
    return a / b - (a % b < 0);
}

/* The proleptic Gregorian calendar, for any day in range. */
static enum pb_sql_kind put_date(struct pb_wire *m, int64_t days)
{
    int64_t z = days + 719468, era = floor_div(z, 146097), doe = z - era * 146097;
    int64_t yoe = (doe - doe / 1460 + doe / 36524 - doe / 146096) / 365,
            doy = doe - (365 * yoe + yoe / 4 - yoe / 100);
    int64_t mp = (5 * doy + 2) / 153, day = doy - (153 * mp + 2) / 5 + 1, month = mp < 10 ? mp + 3 : mp - 9;
    int64_t year = yoe + era * 400 + (month <= 2);

    if (days == INT32_MAX)
        return put(m, "infinity");
    if (days == -INT32_MAX)
        return put(m, "-infinity");
    if (year > 0)
        return put(m, "%04" PRId64 "-%02" PRId64 "-%02" PRId64, year, month, day);
    return put(m, "%04" PRId64 "-%02" PRId64 "-%02" PRId64 " (BC)", 1 - year, month, day);
}

static void put_clock(struct pb_wire *m, int64_t of_day, int64_t per_second, int digits)
{
    int64_t s = of_day / per_second, part = of_day % per_second;
    char text[24];

    put(m, "%02" PRId64 ":%02" PRId64 ":%02" PRId64, s / 3600, s / 60 % 60, s % 60);
    if (part == 0)
        return;
    int n = snprintf(text, sizeof(text), ".%0*" PRId64, digits, part);
    while (text[n - 1] == '0')
        n--;
    pb_wire_put(m, text, (size_t)n);
}

static enum pb_sql_kind put_timestamp(struct pb_wire *m, int64_t value, int64_t per_second, int digits)
{
    int64_t per_day = per_second * 86400, day = floor_div(value, per_day);

    if (value == INT64_MAX)
        return put(m, "infinity");
    if (value == -INT64_MAX)
        return put(m, "-infinity");
    put_date(m, day);
    pb_wire_put(m, " ", 1);
    /* The first day of the range begins before the least 64-bit value. */
    put_clock(m, (int64_t)((uint64_t)value - (uint64_t)day * (uint64_t)per_day), per_second, digits);
    return PB_SQL_TEXT;
}

static enum pb_sql_kind put_interval(struct pb_wire *m, struct pb_cell_interval v)
{
    size_t start = m->size;

    if (v.months / 12)
        put(m, "%d year%s ", v.months / 12, abs(v.months / 12) == 1 ? "" : "s");
    if (v.months % 12)
        put(m, "%d month%s ", v.months % 12, abs(v.months % 12) == 1 ? "" : "s");
    if (v.days)
        put(m, "%d day%s ", v.days, v.days == 1 || v.days == -1 ? "" : "s");
    if (v.micros || m->size == start) {
        uint64_t size = v.micros < 0 ? -(uint64_t)v.micros : (uint64_t)v.micros;
        pb_wire_put(m, "-", v.micros < 0);
        put_clock(m, (int64_t)size, 1000000, 6);
    } else if (m->size > start) {
        m->size--;
    }
    return PB_SQL_TEXT;
}

/* Printable ASCII unchanged, other bytes as \xNN: SQL's notation of a BLOB. */
static enum pb_sql_kind put_blob(struct pb_wire *m, const char *data, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        unsigned char c = (unsigned char)data[i];
        if (c >= 0x20 && c < 0x7f && c != '\\' && c != '\'' && c != '"')
            pb_wire_put(m, data + i, 1);
        else
            put(m, "\\x%02X", c);
    }
    return PB_SQL_TEXT;
}

static enum pb_sql_kind put_uuid(struct pb_wire *m, u128 v)
{
    /* Stored with its top bit inverted, so that it sorts. */
    uint64_t high = (uint64_t)(v >> 64) ^ UINT64_C(1) << 63, low = (uint64_t)v;
    return put(m, "%08" PRIx64 "-%04" PRIx64 "-%04" PRIx64 "-%04" PRIx64 "-%012" PRIx64, high >> 32,
               high >> 16 & 0xffff, high & 0xffff, low >> 48, low & UINT64_C(0xffffffffffff));
}

/* The time and its offset from UTC, which is stored so that equal moments sort by it. */
static enum pb_sql_kind put_time_tz(struct pb_wire *m, uint64_t bits)
{
    int64_t offset = 16 * 3600 - 1 - (int64_t)(bits & 0xffffff), size = offset < 0 ? -offset : offset;

    put_clock(m, (int64_t)(bits >> 24), 1000000, 6);
    put(m, "%c%02" PRId64, offset < 0 ? '-' : '+', size / 3600);
    if (size % 3600)
        put(m, ":%02" PRId64, size / 60 % 60);
    if (size % 60)
        put(m, ":%02" PRId64, size % 60);
    return PB_SQL_TEXT;
}

/* Values may be unaligned. */
#define VALUE(type) (memcpy(&u, value, sizeof(type)), *(type *)(void *)&u)

enum pb_sql_kind pb_cell_text(struct pb_wire *m, enum pb_cell_type type, unsigned scale, const void *value,
                              size_t size)
{
    union {
        u128 number;
        struct pb_cell_interval interval;
    } u;

    switch (type) {
    case PB_CELL_BOOL:
        put(m, VALUE(uint8_t) ? "true" : "false");
        return PB_SQL_BOOL;
    case PB_CELL_I8:
        return put_i64(m, VALUE(int8_t));
    case PB_CELL_I16:
        return put_i64(m, VALUE(int16_t));
    case PB_CELL_I32:
        return put_i64(m, VALUE(int32_t));
    case PB_CELL_I64:
        return put_i64(m, VALUE(int64_t));
    case PB_CELL_U8:
        return put_i64(m, VALUE(uint8_t));
    case PB_CELL_U16:
        return put_i64(m, VALUE(uint16_t));
    case PB_CELL_U32:
        return put_i64(m, VALUE(uint32_t));
    case PB_CELL_U64:
        return put_u64(m, VALUE(uint64_t), false);
    case PB_CELL_I128:
        return put_i128(m, VALUE(i128), 0);
    case PB_CELL_U128:
        return put_u128(m, VALUE(u128));
    case PB_CELL_DECIMAL:
        return put_i128(m, VALUE(i128), scale);
    case PB_CELL_F32:
        return put_double(m, (double)VALUE(float), true);
    case PB_CELL_F64:
        return put_double(m, VALUE(double), false);
    case PB_CELL_DATE:
        return put_date(m, VALUE(int32_t));
    case PB_CELL_TIME:
        put_clock(m, VALUE(int64_t), 1000000, 6);
        return PB_SQL_TEXT;
    case PB_CELL_TIME_NS:
        put_clock(m, VALUE(int64_t), 1000000000, 9);
        return PB_SQL_TEXT;
    case PB_CELL_TIME_TZ:
        return put_time_tz(m, VALUE(uint64_t));
    case PB_CELL_TIMESTAMP:
        return put_timestamp(m, VALUE(int64_t), 1000000, 6);
    case PB_CELL_TIMESTAMP_S:
        return put_timestamp(m, VALUE(int64_t), 1, 0);
    case PB_CELL_TIMESTAMP_MS:
        return put_timestamp(m, VALUE(int64_t), 1000, 3);
    case PB_CELL_TIMESTAMP_NS:
        return put_timestamp(m, VALUE(int64_t), 1000000000, 9);
    case PB_CELL_TIMESTAMP_TZ:
        put_timestamp(m, VALUE(int64_t), 1000000, 6);
        return put(m, "+00");
    case PB_CELL_INTERVAL:
        return put_interval(m, VALUE(struct pb_cell_interval));
    case PB_CELL_UUID:
        return put_uuid(m, VALUE(u128));
    case PB_CELL_BLOB:
        return put_blob(m, value, size);
    case PB_CELL_TEXT:
    case PB_CELL_BITS:
    case PB_CELL_JSON:
        pb_wire_put(m, value, size);
        return type == PB_CELL_JSON ? PB_SQL_JSON : PB_SQL_TEXT;
    case PB_CELL_NULL:
    case PB_CELL_TYPES:
        break;
    }
    return PB_SQL_NULL;
}

void pb_cell_json(struct pb_wire *m, const char *text, size_t length)
{
    pb_wire_put(m, "\"", 1);
    for (size_t i = 0; i < length; i++) {
        unsigned char c = (unsigned char)text[i];
        if (c == '"' || c == '\\')
            put(m, "\\%c", c);
        else if (c < 0x20)
            put(m, "\\u%04x", c);
        else
            pb_wire_put(m, text + i, 1);
    }
    pb_wire_put(m, "\"", 1);
}
