/* format: see format.h. */
#include "engine/worker/format.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef __int128 i128;
typedef unsigned __int128 u128;

const char *pb_format_type(duckdb_type id)
{
    static const char *const names[] = {
        [DUCKDB_TYPE_BOOLEAN] = "BOOLEAN",
        [DUCKDB_TYPE_TINYINT] = "TINYINT",
        [DUCKDB_TYPE_SMALLINT] = "SMALLINT",
        [DUCKDB_TYPE_INTEGER] = "INTEGER",
        [DUCKDB_TYPE_BIGINT] = "BIGINT",
        [DUCKDB_TYPE_UTINYINT] = "UTINYINT",
        [DUCKDB_TYPE_USMALLINT] = "USMALLINT",
        [DUCKDB_TYPE_UINTEGER] = "UINTEGER",
        [DUCKDB_TYPE_UBIGINT] = "UBIGINT",
        [DUCKDB_TYPE_FLOAT] = "FLOAT",
        [DUCKDB_TYPE_DOUBLE] = "DOUBLE",
        [DUCKDB_TYPE_TIMESTAMP] = "TIMESTAMP",
        [DUCKDB_TYPE_DATE] = "DATE",
        [DUCKDB_TYPE_TIME] = "TIME",
        [DUCKDB_TYPE_INTERVAL] = "INTERVAL",
        [DUCKDB_TYPE_HUGEINT] = "HUGEINT",
        [DUCKDB_TYPE_UHUGEINT] = "UHUGEINT",
        [DUCKDB_TYPE_BLOB] = "BLOB",
        [DUCKDB_TYPE_TIMESTAMP_S] = "TIMESTAMP_S",
        [DUCKDB_TYPE_TIMESTAMP_MS] = "TIMESTAMP_MS",
        [DUCKDB_TYPE_TIMESTAMP_NS] = "TIMESTAMP_NS",
        [DUCKDB_TYPE_UUID] = "UUID",
        [DUCKDB_TYPE_TIMESTAMP_TZ] = "TIMESTAMPTZ",
    };
    const char *name = id < sizeof(names) / sizeof(names[0]) ? names[id] : NULL;
    return name ? name : "VARCHAR";
}

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

static enum pb_sql_kind put_i128(struct pb_wire *m, i128 value, unsigned scale)
{
    char text[64], *p = text + sizeof(text);
    u128 rest = value < 0 ? -(u128)value : (u128)value;
    unsigned digits = 0;

    do {
        *--p = (char)('0' + (int)(rest % 10));
        rest /= 10;
        if (++digits == scale)
            *--p = '.';
    } while (rest || digits <= scale);
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

/* A decimal of 15 to 17 digits that reads back as the same number. JSON has none for NaN and infinity: they
 * are texts. */
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

/* The proleptic Gregorian calendar, for any day that fits. */
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
    put_clock(m, value - day * per_day, per_second, digits);
    return PB_SQL_TEXT;
}

static enum pb_sql_kind put_interval(struct pb_wire *m, duckdb_interval v)
{
    size_t start = m->size;

    if (v.months / 12)
        put(m, "%d year%s ", v.months / 12, abs(v.months / 12) == 1 ? "" : "s");
    if (v.months % 12)
        put(m, "%d month%s ", v.months % 12, abs(v.months % 12) == 1 ? "" : "s");
    if (v.days)
        put(m, "%d day%s ", v.days, abs(v.days) == 1 ? "" : "s");
    if (v.micros || m->size == start) {
        uint64_t size = v.micros < 0 ? -(uint64_t)v.micros : (uint64_t)v.micros;
        pb_wire_put(m, "-", v.micros < 0);
        put_clock(m, (int64_t)size, 1000000, 6);
    } else if (m->size > start) {
        m->size--;
    }
    return PB_SQL_TEXT;
}

/* Printable ASCII as it is, other bytes as \xNN: what SQL takes for a BLOB. */
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

static enum pb_sql_kind put_uuid(struct pb_wire *m, duckdb_hugeint v)
{
    /* Stored with its top bit turned, so that it sorts. */
    uint64_t high = (uint64_t)v.upper ^ UINT64_C(1) << 63;
    return put(m, "%08" PRIx64 "-%04" PRIx64 "-%04" PRIx64 "-%04" PRIx64 "-%012" PRIx64, high >> 32,
               high >> 16 & 0xffff, high & 0xffff, v.lower >> 48, v.lower & UINT64_C(0xffffffffffff));
}

/* The time and its distance from UTC, which is stored so that equal moments sort by it. */
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

/* The first byte says how many bits of the second are not part of it. */
static enum pb_sql_kind put_bits(struct pb_wire *m, const char *data, size_t n)
{
    for (size_t i = n > 1 ? 8 + (size_t)(data[0] & 7) : 8 * n; i < 8 * n; i++)
        pb_wire_put(m, (unsigned char)data[i / 8] >> (7 - i % 8) & 1 ? "1" : "0", 1);
    return PB_SQL_TEXT;
}

static i128 wide(duckdb_hugeint v)
{
    return (i128)((u128)(uint64_t)v.upper << 64 | v.lower);
}

#define AT(type) (((const type *)data)[row])

static enum pb_sql_kind put_number(struct pb_wire *m, duckdb_type id, const void *data, idx_t row)
{
    switch (id) {
    case DUCKDB_TYPE_TINYINT:
        return put_i128(m, AT(int8_t), 0);
    case DUCKDB_TYPE_SMALLINT:
        return put_i128(m, AT(int16_t), 0);
    case DUCKDB_TYPE_INTEGER:
        return put_i128(m, AT(int32_t), 0);
    case DUCKDB_TYPE_BIGINT:
        return put_i128(m, AT(int64_t), 0);
    case DUCKDB_TYPE_UTINYINT:
        return put_i128(m, AT(uint8_t), 0);
    case DUCKDB_TYPE_USMALLINT:
        return put_i128(m, AT(uint16_t), 0);
    case DUCKDB_TYPE_UINTEGER:
        return put_i128(m, AT(uint32_t), 0);
    case DUCKDB_TYPE_UBIGINT:
        return put_i128(m, AT(uint64_t), 0);
    case DUCKDB_TYPE_HUGEINT:
        return put_i128(m, wide(AT(duckdb_hugeint)), 0);
    case DUCKDB_TYPE_UHUGEINT:
        return put_u128(m, (u128)AT(duckdb_uhugeint).upper << 64 | AT(duckdb_uhugeint).lower);
    case DUCKDB_TYPE_FLOAT:
        return put_double(m, (double)AT(float), true);
    default:
        return put_double(m, AT(double), false);
    }
}

enum pb_sql_kind pb_format_plain(struct pb_wire *m, duckdb_type id, const void *data, idx_t row)
{
    switch (id) {
    case DUCKDB_TYPE_BOOLEAN:
        put(m, AT(bool) ? "true" : "false");
        return PB_SQL_BOOL;
    case DUCKDB_TYPE_DATE:
        return put_date(m, AT(int32_t));
    case DUCKDB_TYPE_TIME:
        put_clock(m, AT(int64_t), 1000000, 6);
        return PB_SQL_TEXT;
    case DUCKDB_TYPE_TIME_NS:
        put_clock(m, AT(int64_t), 1000000000, 9);
        return PB_SQL_TEXT;
    case DUCKDB_TYPE_TIME_TZ:
        return put_time_tz(m, AT(uint64_t));
    case DUCKDB_TYPE_TIMESTAMP:
        return put_timestamp(m, AT(int64_t), 1000000, 6);
    case DUCKDB_TYPE_TIMESTAMP_TZ:
        put_timestamp(m, AT(int64_t), 1000000, 6);
        return put(m, "+00");
    case DUCKDB_TYPE_TIMESTAMP_S:
        return put_timestamp(m, AT(int64_t), 1, 0);
    case DUCKDB_TYPE_TIMESTAMP_MS:
        return put_timestamp(m, AT(int64_t), 1000, 3);
    case DUCKDB_TYPE_TIMESTAMP_NS:
        return put_timestamp(m, AT(int64_t), 1000000000, 9);
    case DUCKDB_TYPE_INTERVAL:
        return put_interval(m, AT(duckdb_interval));
    case DUCKDB_TYPE_UUID:
        return put_uuid(m, AT(duckdb_hugeint));
    case DUCKDB_TYPE_VARCHAR:
    case DUCKDB_TYPE_BIT:
    case DUCKDB_TYPE_BLOB: {
        const duckdb_string_t *s = &AT(duckdb_string_t);
        uint32_t n = s->value.inlined.length;
        const char *text =
            n <= sizeof(s->value.inlined.inlined) ? s->value.inlined.inlined : s->value.pointer.ptr;
        if (id == DUCKDB_TYPE_BLOB)
            return put_blob(m, text, n);
        if (id == DUCKDB_TYPE_BIT)
            return put_bits(m, text, n);
        pb_wire_put(m, text, n);
        return PB_SQL_TEXT;
    }
    case DUCKDB_TYPE_TINYINT:
    case DUCKDB_TYPE_SMALLINT:
    case DUCKDB_TYPE_INTEGER:
    case DUCKDB_TYPE_BIGINT:
    case DUCKDB_TYPE_UTINYINT:
    case DUCKDB_TYPE_USMALLINT:
    case DUCKDB_TYPE_UINTEGER:
    case DUCKDB_TYPE_UBIGINT:
    case DUCKDB_TYPE_HUGEINT:
    case DUCKDB_TYPE_UHUGEINT:
    case DUCKDB_TYPE_FLOAT:
    case DUCKDB_TYPE_DOUBLE:
        return put_number(m, id, data, row);
    default:
        return put(m, "(a value of a type that is not shown; cast it to VARCHAR)");
    }
}

enum pb_sql_kind pb_format_decimal(struct pb_wire *m, duckdb_type stored, unsigned scale, const void *data,
                                   idx_t row)
{
    switch (stored) {
    case DUCKDB_TYPE_SMALLINT:
        return put_i128(m, AT(int16_t), scale);
    case DUCKDB_TYPE_INTEGER:
        return put_i128(m, AT(int32_t), scale);
    case DUCKDB_TYPE_BIGINT:
        return put_i128(m, AT(int64_t), scale);
    default:
        return put_i128(m, wide(AT(duckdb_hugeint)), scale);
    }
}

void pb_format_json(struct pb_wire *m, const char *text, size_t length)
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
