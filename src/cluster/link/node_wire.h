/* node_wire: a question to a node and its answer, as packets (control/packet.h) of the kinds of
 * control/relay.h, the same over a launcher and over a service.
 *
 *   question  VERSION ARGUMENTS BEGIN         as one line of base64, since launchers and services pass text
 *   answer    VERSION (RANK (OUTPUT ERRORS)* EXIT)* (OUTPUT ERRORS)* END
 *
 * VERSION is text: the number of this format, the version of the program, the node's name. ARGUMENTS are
 * texts, each ended by NUL: which processes, which ranks, the limit in ms, then the words of the question.
 * RANK is text: what `pb_cluster_rank` has. OUTPUT and ERRORS between RANK and EXIT are that rank's, all
 * others the node's. END is the status, and a sentence where it is not 0. An answer goes as bytes, or (srun
 * cuts and mixes lines) as base64 without a newline.
 *
 * What came is never trusted: a reader takes any bytes (tests/fuzz/cluster_wire.c), keeps no more than it is
 * allowed to, and names what is wrong. */
#pragma once

#include "cluster/cluster.h"

#define PB_WIRE_FORMAT 2
#define PB_WIRE_VARIABLE                                                                                     \
    "PROBING_CLUSTER_QUESTION" /* the question, where it does not come on standard input */
enum {
    PB_WIRE_WORDS = 256,
    PB_WIRE_NODE_RANKS = 4096,       /* of one node */
    PB_WIRE_QUESTION_MAX = 60 * 1024 /* its texts together: one frame */
};

struct pb_node_question {
    const char *match; /* VARIABLE=VALUE; NULL or "": any process with a rank */
    const char *ranks; /* "0-7,64"; NULL: all */
    unsigned limit_ms; /* for the whole answer */
    const char *const *words;
    size_t nwords;
};

/* One line of base64 with its newline, on the heap. -E2BIG: it is longer than a question may be. */
int pb_question_encode(const struct pb_node_question *q, char **ret, size_t *ret_length);

struct pb_question_in {
    struct pb_node_question q;
    char *text;       /* what q points into */
    char version[32]; /* of the program that asks */
    const char *words[PB_WIRE_WORDS + 1];
};
/* -EBADMSG: no question; -EPROTO: of another format, and err says which. */
int pb_question_decode(const char *line, size_t n, struct pb_question_in *ret, struct pb_err *err);
void pb_question_done(struct pb_question_in *q);

/* --- the answering end --- */
struct pb_answer_writer {
    int fd;    /* -1: nothing is written, a small answer stays in waiting */
    bool text; /* base64 */
    int failed;
    unsigned char partial[3]; /* of base64: what makes no group of three yet */
    size_t npartial;
    char waiting[4096]; /* small frames go together */
    size_t nwaiting;
};
/* Writes what waits; the end of an answer does that too. */
void pb_answer_flush(struct pb_answer_writer *w);
void pb_answer_begin(struct pb_answer_writer *w, const char *node);
void pb_answer_rank(struct pb_answer_writer *w, const struct pb_cluster_rank *rank, uint32_t world);
void pb_answer_bytes(struct pb_answer_writer *w, bool errors, const void *bytes, size_t n);
void pb_answer_exit(struct pb_answer_writer *w, int status);
/* Returns the first failure of all. */
int pb_answer_end(struct pb_answer_writer *w, int status, const char *sentence);

/* --- the asking end --- */
struct pb_bytes {
    char *at; /* a NUL stands behind it; NULL where n is 0 */
    size_t n;
};

/* The output of one rank, or of the node itself. */
struct pb_answer_part {
    struct pb_cluster_rank rank; /* node is not set here */
    bool ended;                  /* an EXIT came */
    int status;
    struct pb_bytes output, errors;
};

struct pb_node_answer {
    char node[PB_CLUSTER_TEXT], version[32];
    struct pb_answer_part *ranks;
    size_t nranks;
    struct pb_bytes output, errors; /* of the node itself */
    uint32_t world;
    int status;
    bool whole; /* END came */
    char sentence[512];
    size_t travelled; /* bytes of it */
};
void pb_node_answer_done(struct pb_node_answer *a);

struct pb_answer_reader {
    struct pb_node_answer answer;
    size_t most; /* limit for buffered bytes */
    bool greeted, text;
    unsigned char *buffer;
    size_t n, cap;
    ssize_t part;  /* to which OUTPUT goes; -1: the node */
    uint32_t bits; /* of base64 */
    int nbits;
    char why[256]; /* of a failure */
};
void pb_answer_reader_init(struct pb_answer_reader *r, size_t most, bool text);
void pb_answer_reader_done(struct pb_answer_reader *r);
/* 0; 1: the answer is complete; -EPROTO: another format; -EBADMSG: malformed; -EMSGSIZE: over the limit;
 * -ENOMEM. After a failure all further input is ignored. */
int pb_answer_reader_take(struct pb_answer_reader *r, const char *bytes, size_t n);
