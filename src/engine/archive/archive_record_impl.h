/* archive_record_impl: struct pb_archiver, shared by archive_record.c and archive_record_open.c. */
#pragma once

#include "engine/archive/archive_list.h"
#include "engine/archive/archive_record.h"
#include "engine/shared/wire.h"
#include "table/reader.h"

#include <limits.h>

/* A segment that is archived and still in the arena. */
struct pb_archiver_done {
    uint64_t serial;
    uint32_t rows;
    bool counted; /* rows is known */
};

struct pb_archiver_part {
    char name[64];
    unsigned index;
    bool listed; /* its file names were read */
    char *columns;
    size_t columns_size;
    struct pb_archiver_done *done; /* by serial */
    size_t ndone;
    uint64_t total, lost;
    char date[PB_ARCHIVE_DATE]; /* the last day with new files; "": none since the last merge */
    unsigned passed;            /* rounds to skip merging, after a failure */
};

struct pb_archiver {
    char folder[PATH_MAX], place[PATH_MAX];
    char compression[32];
    struct pb_archive_run run;
    struct pb_reader *reader;
    struct pb_reader_info info;
    int arena_fd, folder_fd, own_fd, lock_fd;
    int writer; /* socket; -1: not started */
    unsigned counter;
    uint64_t next_serial; /* of the arena, when the last round began */
    struct pb_archiver_part *tables;
    unsigned ntables;
    struct pb_wire in, out;
};

/* Ends the process that writes Parquet, if there is one. */
void pb_archiver_close_writer(struct pb_archiver *r);
