/* job: Python code that a client asked to run, each in a thread of its own.
 *
 * The resident thread starts jobs, forwards their output, and enforces their deadlines; it never waits for
 * Python. A job's thread waits for the GIL like any other, runs the code through the embedded Python part,
 * and writes its output to the job's buffer; when the buffer is full it waits without the GIL. A job that
 * cannot be stopped (no GIL, or inside C code) is disowned: its client is answered, and its memory is freed
 * when its thread ends. */
#pragma once

#include "agent/core/server.h"
#include "control/message.h"

#include <stddef.h>
#include <stdint.h>

struct pb_job_request {
    pb_client_id client;
    uint32_t request;
    enum pb_run_mode mode;
    uint64_t timeout_ms; /* 0: none */
    const uint8_t *code;
    size_t code_size;
    const char *filename;
};

/* Jobs, and what Python needs beside them (job_requests.c). */
struct pb_part;
extern const struct pb_part pb_part_jobs, pb_part_python;

/* Has a thread started for it (spawn.h). On failure why holds a sentence: too many jobs, no memory. Later
 * failures (no Python here, no thread) are answered by pb_job_turn. */
int pb_job_start(const struct pb_job_request *request, char *why, size_t why_size);

/* Raises KeyboardInterrupt in the job; its client is answered when it has stopped, or clearly does not
 * stop. */
void pb_job_cancel(pb_client_id client, uint32_t request);

/* The same for all jobs of a client that is gone, or of all clients (0), without an answer. */
void pb_job_disown(pb_client_id client);

/* At Python's end, after pb_enter_close: no job waits for its client to read. */
void pb_job_stop_waiting(void);

/* Whether code of that client runs. */
int pb_job_runs(pb_client_id client);

/* Moves output to the clients, answers finished jobs, acts on deadlines. Returns ms until the next call, -1
 * for none; pb_wake is called when a job has output or an answer. */
int pb_job_turn(struct pb_server *server);

/* In a forked child, after pb_locks_forget: the threads are not there. */
void pb_job_forget_all(void);

/* Releases the Python objects cached between jobs, in a thread of its own since that needs the GIL. */
void pb_job_release_python(void);

/* The globals of the Python part; the first caller creates them, detach releases them. With the GIL. A new
 * reference, since a detach may release them concurrently; NULL with an exception. */
struct pb_python;
struct pb_pyobject *pb_job_part(const struct pb_python *py);

/* A module of the Python part by its name ("_gpu"), a new reference; NULL: not available. Leaves no
 * exception. */
struct pb_pyobject *pb_job_load(const struct pb_python *py, const char *name);
