/* bpf: runs a program of ours in the kernel, in an interrupt of a CPU of our choice.
 *
 * A running thread is read this way without being stopped: nothing else runs on its CPU until the program is
 * done, and the kernel has verified that it ends and only reads. A stop costs the thread two context switches
 * and its CPU a sleep; an interrupt costs microseconds. Needs CAP_BPF and CAP_PERFMON (root) and Linux 5.10;
 * without them the sampler stops the thread instead. Programs are written with the macros below. */
#pragma once

#include <linux/bpf.h>
#include <stddef.h>

/* One instruction each; registers by number: 0 is what a call returns, 1 to 5 are arguments and lost by a
 * call, 6 to 9 are kept, 10 points past our stack. Jumps count instructions from the next one on. */
#define PB_BPF_SET(dst, value)                                                                               \
    {                                                                                                        \
        .code = BPF_ALU64 | BPF_MOV | BPF_K, .dst_reg = (dst), .imm = (int)(value)                           \
    }
#define PB_BPF_MOVE(dst, src)                                                                                \
    {                                                                                                        \
        .code = BPF_ALU64 | BPF_MOV | BPF_X, .dst_reg = (dst), .src_reg = (src)                              \
    }
#define PB_BPF_ADD(dst, value)                                                                               \
    {                                                                                                        \
        .code = BPF_ALU64 | BPF_ADD | BPF_K, .dst_reg = (dst), .imm = (int)(value)                           \
    }
#define PB_BPF_AND(dst, value)                                                                               \
    {                                                                                                        \
        .code = BPF_ALU64 | BPF_AND | BPF_K, .dst_reg = (dst), .imm = (int)(value)                           \
    }
#define PB_BPF_SUB_REG(dst, src)                                                                             \
    {                                                                                                        \
        .code = BPF_ALU64 | BPF_SUB | BPF_X, .dst_reg = (dst), .src_reg = (src)                              \
    }
#define PB_BPF_LOAD(dst, src, at)   BPF_MEMORY_(BPF_LDX, BPF_DW, dst, src, at)
#define PB_BPF_LOAD32(dst, src, at) BPF_MEMORY_(BPF_LDX, BPF_W, dst, src, at)
#define PB_BPF_STORE(dst, at, src)  BPF_MEMORY_(BPF_STX, BPF_DW, dst, src, at)
#define PB_BPF_JUMP(by)                                                                                      \
    {                                                                                                        \
        .code = BPF_JMP | BPF_JA, .off = (short)(by)                                                         \
    }
#define PB_BPF_IF_EQ(dst, value, by)                                                                         \
    {                                                                                                        \
        .code = BPF_JMP | BPF_JEQ | BPF_K, .dst_reg = (dst), .off = (short)(by), .imm = (int)(value)         \
    }
#define PB_BPF_IF_LE(dst, value, by)                                                                         \
    {                                                                                                        \
        .code = BPF_JMP | BPF_JLE | BPF_K, .dst_reg = (dst), .off = (short)(by), .imm = (int)(value)         \
    }
#define PB_BPF_IF_EQ_REG(dst, src, by)                                                                       \
    {                                                                                                        \
        .code = BPF_JMP | BPF_JEQ | BPF_X, .dst_reg = (dst), .src_reg = (src), .off = (short)(by)            \
    }
#define PB_BPF_CALL(function)                                                                                \
    {                                                                                                        \
        .code = BPF_JMP | BPF_CALL, .imm = (function)                                                        \
    }
#define PB_BPF_EXIT                                                                                          \
    {                                                                                                        \
        .code = BPF_JMP | BPF_EXIT                                                                           \
    }
#define BPF_MEMORY_(class, size, dst, src, at)                                                               \
    {                                                                                                        \
        .code = (class) | BPF_MEM | (size), .dst_reg = (dst), .src_reg = (src), .off = (short)(at)           \
    }

/* Memory that program and caller share. */
struct pb_bpf_memory {
    int fd;
    void *at;
    size_t size;
};
int pb_bpf_memory_new(size_t size, struct pb_bpf_memory *ret);
void pb_bpf_memory_done(struct pb_bpf_memory *m);

/* Loads a program and returns its descriptor. -EPERM: not allowed; -EACCES, -EINVAL: the kernel's verifier
 * refused it, or the kernel is too old for it. */
int pb_bpf_load(const struct bpf_insn *program, size_t n);

/* Runs it in an interrupt of that CPU and waits for it. Returns the program's result (>= 0). */
int pb_bpf_run_on(int fd, int cpu);
