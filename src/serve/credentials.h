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

/* The user at the other end of a unix socket. False: another user, and this is not root's service. */
bool pb_credentials_of_peer(int socket, struct pb_credentials *ret);

/* The command line that runs argv as that user: argv itself for the service's own, else words, which is
 * filled. Its texts live as long as argv and text. */
char *const *pb_credentials_command(const struct pb_credentials *credentials, char *const *argv,
                                    char *words[PB_CREDENTIALS_WORDS], struct pb_credentials_text *text);

/* Whether a user may take one more of `places`: `taken` are in use, `own` of these by this user. The
 * service's user may take all. Other users must leave it a quarter, and each must leave free as many as it
 * holds. */
bool pb_credentials_may_take(uid_t uid, unsigned places, unsigned taken, unsigned own);

/* `probing-serve --as UID GID COMMAND ...`: becomes the command. Returns only on failure, the exit status. */
int pb_credentials_become(int argc, char **argv);

/* Gives a folder or file of the service's to that user. */
int pb_credentials_give(const struct pb_credentials *credentials, int folder, const char *name);
/* Opens a file that a command wrote. Another user may have put anything in the folder: only a regular file of
 * that user is opened, without blocking. */
int pb_credentials_open(const struct pb_credentials *credentials, int folder, const char *name);
