/* widen: see widen.h. */
#include "engine/shared/widen.h"

#include <stdbool.h>

static bool is_signed(enum pb_type type)
{
    return type >= PB_I8 && type <= PB_I64;
}

static bool is_unsigned(enum pb_type type)
{
    return type >= PB_U8 && type <= PB_U64;
}

static bool is_float(enum pb_type type)
{
    return type == PB_F32 || type == PB_F64;
}

/* 0 to 3: 8 to 64 bits. */
static unsigned size_of(enum pb_type integer)
{
    return is_signed(integer) ? integer - PB_I8 : integer - PB_U8;
}

/* A float holds integers exactly up to 24 bits, a double up to 53. */
static enum pb_type widen_to_float(enum pb_type integer, enum pb_type floating)
{
    return size_of(integer) <= 1 ? floating : size_of(integer) == 2 ? PB_F64 : 0;
}

enum pb_type pb_widen_type(enum pb_type a, enum pb_type b)
{
    bool integers[] = {is_signed(a) || is_unsigned(a), is_signed(b) || is_unsigned(b)};

    if (a == b)
        return a;
    if (is_float(a) && is_float(b))
        return PB_F64;
    if (integers[0] && is_float(b))
        return widen_to_float(a, b);
    if (integers[1] && is_float(a))
        return widen_to_float(b, a);
    if (!integers[0] || !integers[1])
        return 0;
    if (is_signed(a) == is_signed(b))
        return size_of(a) > size_of(b) ? a : b;
    /* A signed type can hold a narrower unsigned one. */
    enum pb_type with_sign = is_signed(a) ? a : b, without = is_signed(a) ? b : a;
    if (size_of(with_sign) > size_of(without))
        return with_sign;
    return size_of(without) < 3 ? (enum pb_type)(PB_I8 + size_of(without) + 1) : 0;
}

static double float_at(const void *cells, enum pb_type type, size_t i)
{
    return type == PB_F32 ? (double)((const float *)cells)[i] : ((const double *)cells)[i];
}

/* Never called for UBIGINT, which is not widened. */
static int64_t integer_at(const void *cells, enum pb_type type, size_t i)
{
    switch (type) {
    case PB_I8:
        return ((const int8_t *)cells)[i];
    case PB_I16:
        return ((const int16_t *)cells)[i];
    case PB_I32:
        return ((const int32_t *)cells)[i];
    case PB_U8:
        return ((const uint8_t *)cells)[i];
    case PB_U16:
        return ((const uint16_t *)cells)[i];
    case PB_U32:
        return ((const uint32_t *)cells)[i];
    default:
        return ((const int64_t *)cells)[i];
    }
}

#define WIDEN(type)                                                                                          \
    for (size_t i = 0; i < n; i++)                                                                           \
    ((type *)to)[i] = (type)integer_at(from, from_type, i)

void pb_widen_cells(const void *from, enum pb_type from_type, void *to, enum pb_type to_type, size_t n)
{
    if (is_float(from_type)) {
        for (size_t i = 0; i < n; i++)
            ((double *)to)[i] = float_at(from, from_type, i);
        return;
    }
    switch (to_type) {
    case PB_I16:
    case PB_U16:
        WIDEN(int16_t);
        break;
    case PB_I32:
    case PB_U32:
        WIDEN(int32_t);
        break;
    case PB_F32:
        WIDEN(float);
        break;
    case PB_F64:
        WIDEN(double);
        break;
    default:
        WIDEN(int64_t);
    }
}
