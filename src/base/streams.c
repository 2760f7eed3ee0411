/* streams: stdout and stderr as variables, for C libraries where they are constants.
 *
 * The outlet (print/outlet.c) puts a stream of its own in their place. musl declares them const and keeps
 * them in read-only memory; base/compat.h names these instead there. */
#ifdef PB_OWN_STREAMS
#undef stdout
#undef stderr

FILE **pb_stream(int fd)
{
    static FILE *streams[2];

    if (!streams[fd == 2])
        streams[fd == 2] = fd == 2 ? stderr : stdout;
    return &streams[fd == 2];
}
#endif
