/* credentials: whose rights a command has.
 *
 * A service of root's answers other users too, at a unix socket, where the kernel names the peer. Their
 * commands run with the peer's rights and with nothing of root's environment, so that the kernel and not this
 * program decides what each user may see. Looking up a user may wait for a directory service: `probing-serve
 * --as` does that in the child, and then becomes the command. */
#pragma once

#include <stdbool.h>
#include <sys/types.h>

/* Another user; uid 0: none, the service's own. */
struct pb_credentials {
    uid_t uid;
    gid_t gid;
};

enum { PB_CREDENTIALS_WORDS = 48 };

/* The words of a command line of another user, apart from the command. */
struct pb_credentials_text {
    char uid[16], gid[16];
};

/* Whose the other end of a unix socket is. False: another user's, and this is not a service of root's. */
bool pb_credentials_of_peer(int socket, struct pb_credentials *ret);

/* The command line that runs argv as that user: argv itself for the service's own, else words, which is
 * filled. Its texts live as long as argv and text. */
char *const *pb_credentials_command(const struct pb_credentials *credentials, char *const *argv,
                                    char *words[PB_CREDENTIALS_WORDS], struct pb_credentials_text *text);

/* Whether that user may have one more of so many places, of which so many are taken, own of them by that
 * user. The service's own user may have all. Others leave it a quarter, and each leaves as many free for the
 * rest as it has itself. */
bool pb_credentials_may_take(uid_t uid, unsigned places, unsigned taken, unsigned own);

/* `probing-serve --as UID GID COMMAND ...`: becomes the command; the exit status where it cannot. */
int pb_credentials_become(int argc, char **argv);

/* Gives a folder or file of the service's to that user. */
int pb_credentials_give(const struct pb_credentials *credentials, int folder, const char *name);
/* Opens a file that a command has written. A folder of another user may have anything in it by then: only a
 * file of that user's is opened, and nothing that would have the service wait. */
int pb_credentials_open(const struct pb_credentials *credentials, int folder, const char *name);
