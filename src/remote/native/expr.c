/* expr: see expr.h. */
#include "remote/native/expr.h"

#include <errno.h>

#include "base/bytes.h"
#include "remote/native/unwind.h"

enum {
    DEPTH = 32,
    STEPS = 1000,
};

enum op {
    OP_ADDR = 0x03,
    OP_DEREF = 0x06,
    OP_CONST1U = 0x08,
    OP_CONST1S,
    OP_CONST2U,
    OP_CONST2S,
    OP_CONST4U,
    OP_CONST4S,
    OP_CONST8U,
    OP_CONST8S,
    OP_CONSTU,
    OP_CONSTS,
    OP_DUP,
    OP_DROP,
    OP_OVER,
    OP_PICK,
    OP_SWAP,
    OP_ROT,
    OP_ABS = 0x19,
    OP_AND,
    OP_DIV,
    OP_MINUS,
    OP_MOD,
    OP_MUL,
    OP_NEG,
    OP_NOT,
    OP_OR,
    OP_PLUS,
    OP_PLUS_UCONST,
    OP_SHL,
    OP_SHR,
    OP_SHRA,
    OP_XOR,
    OP_BRA,
    OP_EQ,
    OP_GE,
    OP_GT,
    OP_LE,
    OP_LT,
    OP_NE,
    OP_SKIP,
    OP_LIT0,
    OP_BREG0 = 0x70,
    OP_BREGX = 0x92,
    OP_DEREF_SIZE = 0x94,
    OP_NOP = 0x96,
};

struct stack {
    uint64_t at[DEPTH];
    unsigned n;
    int error;
};

static void push_value(struct stack *s, uint64_t value)
{
    if (s->n == DEPTH)
        s->error = -EBADMSG;
    else
        s->at[s->n++] = value;
}

static uint64_t pop_value(struct stack *s)
{
    if (s->n == 0) {
        s->error = -EBADMSG;
        return 0;
    }
    return s->at[--s->n];
}

static uint64_t pick(struct stack *s, unsigned depth)
{
    if (depth >= s->n) {
        s->error = -EBADMSG;
        return 0;
    }
    return s->at[s->n - 1 - depth];
}

static void push_register(struct stack *s, const struct pb_expr_env *env, uint64_t reg, int64_t offset)
{
    if (reg >= PB_NATIVE_REGS || !(env->known >> reg & 1))
        s->error = -ENODATA;
    else
        push_value(s, env->reg[reg] + (uint64_t)offset);
}

static void push_memory(struct stack *s, const struct pb_expr_env *env, unsigned size)
{
    uint64_t value = 0, addr = pop_value(s);
    if (size == 0 || size > 8)
        s->error = -EBADMSG;
    if (s->error)
        return;
    s->error = env->read(env->arg, addr, &value, size);
    push_value(s, value);
}

/* Constants; false: it is another operation. */
static bool run_constant(struct stack *s, uint8_t op, struct pb_cursor *c)
{
    switch (op) {
    case OP_ADDR:
    case OP_CONST8U:
    case OP_CONST8S:
        push_value(s, pb_u64(c));
        return true;
    case OP_CONST1U:
        push_value(s, pb_u8(c));
        return true;
    case OP_CONST1S:
        push_value(s, (uint64_t)(int8_t)pb_u8(c));
        return true;
    case OP_CONST2U:
        push_value(s, pb_u16(c));
        return true;
    case OP_CONST2S:
        push_value(s, (uint64_t)(int16_t)pb_u16(c));
        return true;
    case OP_CONST4U:
        push_value(s, pb_u32(c));
        return true;
    case OP_CONST4S:
        push_value(s, (uint64_t)(int32_t)pb_u32(c));
        return true;
    case OP_CONSTU:
        push_value(s, pb_uleb(c));
        return true;
    case OP_CONSTS:
        push_value(s, (uint64_t)pb_sleb(c));
        return true;
    default:
        if (op < OP_LIT0 || op > OP_LIT0 + 31)
            return false;
        push_value(s, op - OP_LIT0);
        return true;
    }
}

/* Operations on the stack alone with one operand or on its order; false: another. */
static bool run_unary(struct stack *s, uint8_t op)
{
    uint64_t a, b, c;
    switch (op) {
    case OP_DUP:
        push_value(s, pick(s, 0));
        return true;
    case OP_DROP:
        pop_value(s);
        return true;
    case OP_OVER:
        push_value(s, pick(s, 1));
        return true;
    case OP_SWAP:
        a = pop_value(s), b = pop_value(s);
        push_value(s, a), push_value(s, b);
        return true;
    case OP_ROT:
        a = pop_value(s), b = pop_value(s), c = pop_value(s);
        push_value(s, a), push_value(s, c), push_value(s, b);
        return true;
    case OP_ABS:
        a = pop_value(s);
        push_value(s, (int64_t)a < 0 ? 0 - a : a);
        return true;
    case OP_NEG:
        push_value(s, 0 - pop_value(s));
        return true;
    case OP_NOT:
        push_value(s, ~pop_value(s));
        return true;
    default:
        return false;
    }
}

static uint64_t divide(struct stack *s, int64_t a, int64_t b)
{
    if (b == 0 || (a == INT64_MIN && b == -1)) {
        s->error = -EBADMSG;
        return 0;
    }
    return (uint64_t)(a / b);
}

static uint64_t shift(uint8_t op, uint64_t a, uint64_t by)
{
    if (op == OP_SHRA)
        return (uint64_t)((int64_t)a >> (by > 63 ? 63 : by));
    if (by > 63)
        return 0;
    return op == OP_SHL ? a << by : a >> by;
}

static uint64_t combine(struct stack *s, uint8_t op, uint64_t a, uint64_t b)
{
    int64_t sa = (int64_t)a, sb = (int64_t)b;
    switch (op) {
    case OP_AND:
        return a & b;
    case OP_DIV:
        return divide(s, sa, sb);
    case OP_MINUS:
        return a - b;
    case OP_MOD:
        if (b == 0)
            s->error = -EBADMSG;
        return b ? a % b : 0;
    case OP_MUL:
        return a * b;
    case OP_OR:
        return a | b;
    case OP_PLUS:
        return a + b;
    case OP_SHL:
    case OP_SHR:
    case OP_SHRA:
        return shift(op, a, b);
    case OP_XOR:
        return a ^ b;
    case OP_EQ:
        return sa == sb;
    case OP_GE:
        return sa >= sb;
    case OP_GT:
        return sa > sb;
    case OP_LE:
        return sa <= sb;
    case OP_LT:
        return sa < sb;
    case OP_NE:
        return sa != sb;
    default:
        s->error = -EBADMSG;
        return 0;
    }
}

static void run_binary(struct stack *s, uint8_t op)
{
    uint64_t b = pop_value(s), a = pop_value(s);
    uint64_t value = combine(s, op, a, b);
    push_value(s, value);
}

static void jump(struct pb_cursor *c, const unsigned char *start, int16_t by)
{
    if (by < start - c->at || by > c->end - c->at)
        c->bad = true;
    else
        c->at += by;
}

static void run_step(struct stack *s, struct pb_cursor *c, const unsigned char *start,
                     const struct pb_expr_env *env)
{
    uint8_t op = pb_u8(c);
    if (run_constant(s, op, c) || run_unary(s, op))
        return;
    if (op >= OP_BREG0 && op < OP_BREG0 + 32) {
        push_register(s, env, op - OP_BREG0, pb_sleb(c));
        return;
    }
    int16_t by;
    uint64_t reg;
    switch (op) {
    case OP_PICK:
        push_value(s, pick(s, pb_u8(c)));
        break;
    case OP_DEREF:
        push_memory(s, env, 8);
        break;
    case OP_DEREF_SIZE:
        push_memory(s, env, pb_u8(c));
        break;
    case OP_PLUS_UCONST:
        push_value(s, pop_value(s) + pb_uleb(c));
        break;
    case OP_BREGX:
        reg = pb_uleb(c);
        push_register(s, env, reg, pb_sleb(c));
        break;
    case OP_BRA:
        by = (int16_t)pb_u16(c);
        if (pop_value(s))
            jump(c, start, by);
        break;
    case OP_SKIP:
        by = (int16_t)pb_u16(c);
        jump(c, start, by);
        break;
    case OP_NOP:
        break;
    default:
        run_binary(s, op);
    }
}

int pb_expr_run(const unsigned char *code, size_t len, const struct pb_expr_env *env, const uint64_t *first,
                uint64_t *ret)
{
    struct pb_cursor c = {code, code + len, false};
    struct stack s = {0};
    if (first)
        push_value(&s, *first);
    for (unsigned step = 0; pb_left(&c); step++) {
        run_step(&s, &c, code, env);
        if (c.bad || step == STEPS)
            return -EBADMSG;
        if (s.error)
            return s.error;
    }
    if (s.n == 0)
        return -EBADMSG;
    *ret = s.at[s.n - 1];
    return 0;
}
